//! Workers of one sidecar: each pushes its share of the tensors, and fetches that of its neighbour.

use super::hub::{Hub, Step, step};
use super::report::{Axis, Cell};
use super::{MIB, numbered, tensors};
use crate::actor::crowd::CrowdTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::resident::Resident;

pub(super) fn measure(bench: &Bench) -> Result<Axis, BenchError> {
    let (counts, tensors) = (bench.pick(&[1, 4, 16, 64][..], &[1, 8]), tensors(bench));
    let mut axis = Axis::new("workers", "workers of a node that all push and fetch", 64);
    for count in counts.iter().copied() {
        let hub = Hub::start(bench, &[])?;
        let mut first = hub.crowd(bench, ["first".to_owned()], MIB)?;
        first.ask(CrowdTask::Push { session: 0, keys: numbered(1 << 40, 1), version: 1 })?;
        let before = hub.resident()?;
        let mut crowd = hub.crowd(bench, (0..count).map(|i| format!("worker-{i}")), MIB)?;
        let mut cell = Cell::new(&axis, count);
        let after = hub.resident()?;
        // Arenas are as long as their workers wish.
        let after = Resident { shared: after.shared.saturating_sub(count * MIB), ..after };
        cell.each = Cell::beside(before, after, count);
        let share = tensors / count;
        hub.rounds(bench, &mut cell, tensors, |version, now| {
            for at in 0..count {
                let (pusher, reader) = (at as usize, ((at + 1) % count) as usize);
                crowd.ask(step((pusher, reader), numbered(at * share, share), version, now))?;
                if now == Step::Take {
                    // It takes all that is waited for.
                    break;
                }
            }
            Ok(())
        })?;
        axis.cells.push(cell);
    }
    Ok(axis)
}
