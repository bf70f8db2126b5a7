//! Keys that a node has: the tensors of a round are spread over all of them.

use super::hub::{Hub, step};
use super::report::{Axis, Cell};
use super::{MIB, TENSOR, numbered, tensors};
use crate::actor::crowd::{CrowdTask, Numbered};
use crate::bench::Bench;
use crate::error::BenchError;

pub(super) fn measure(bench: &Bench) -> Result<Axis, BenchError> {
    let (counts, tensors) = (bench.pick(&[4096, 32_768, 262_144, 1_000_000][..], &[1024, 8192]), tensors(bench));
    let mut axis = Axis::new("keys", "keys of a node, in turn", tensors);
    for count in counts.iter().copied() {
        let hub = Hub::start(bench, &[])?;
        let names = ["pusher".to_owned(), "reader".to_owned()];
        let mut crowd = hub.crowd(bench, names, count * TENSOR + 16 * MIB)?;
        let mut cell = Cell::new(&axis, count);
        bench.says(format!("{}: publishing", cell.title()));
        let before = hub.resident()?;
        crowd.ask(CrowdTask::Push { session: 0, keys: numbered(0, count), version: 1 })?;
        cell.each = Cell::beside(before, hub.resident()?, count);
        let stride = (count / tensors).max(1);
        hub.rounds(bench, &mut cell, tensors, |version, now| {
            let keys = Numbered { first: version % stride, count: tensors, stride, repeat: 1 };
            crowd.ask(step((0, 1), keys, version, now)).map(drop)
        })?;
        axis.cells.push(cell);
    }
    Ok(axis)
}
