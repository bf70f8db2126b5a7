//! Fetches that wait for one key: what each of them costs, and what the tensors of others cost meanwhile.

use super::hub::{Hub, Step, step};
use super::report::{Axis, Cell};
use super::{MIB, numbered, tensors};
use crate::actor::crowd::{CrowdTask, Numbered};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::stage::Actor;

/// The sessions of those who wait.
const READERS: u64 = 16;
/// The number of the first key that somebody waits for. Others have smaller numbers.
const AWAITED: u64 = 1 << 40;

pub(super) fn measure(bench: &Bench) -> Result<[Axis; 2], BenchError> {
    let counts = bench.pick(&[16, 256, 4096, 65_536][..], &[16, 1024]);
    let all = counts.last().copied().unwrap_or(0);
    let mut waiters = Axis::new("waiters", "fetches that wait for a key; as many altogether", 65536);
    let mut others = Axis::new("others", "fetches that wait for a key, and others push and fetch", 65536);
    for count in counts.iter().copied() {
        let hub = Hub::start(bench, &[])?;
        let mut crowd = hub.crowd(bench, ["pusher".to_owned(), "reader".to_owned()], 16 * MIB)?;
        let mut readers = hub.crowd(bench, (0..READERS).map(|i| format!("reader-{i}")), MIB)?;
        let mut cell = Cell::new(&waiters, count);
        let keys = all / count;
        hub.rounds(bench, &mut cell, all, |version, now| match now {
            Step::Wait => wait(&mut readers, keys, count, version),
            Step::Push => push(&mut crowd, keys, version),
            Step::Take => readers.ask(CrowdTask::Take).map(drop),
        })?;
        waiters.cells.push(cell);

        let mut cell = Cell::new(&others, count);
        let before = hub.resident()?;
        let version = 1_000_000;
        wait(&mut readers, 1, count, version)?;
        cell.each = Cell::beside(before, hub.resident()?, count);
        let keys = numbered(0, tensors(bench));
        hub.rounds(bench, &mut cell, keys.count, |version, now| crowd.ask(step((0, 1), keys, version, now)).map(drop))?;
        push(&mut crowd, 1, version)?;
        readers.ask(CrowdTask::Take)?;
        others.cells.push(cell);
    }
    Ok([waiters, others])
}

/// Lets this many fetches wait for each of some keys.
fn wait(readers: &mut Actor, keys: u64, count: u64, version: u64) -> Result<(), BenchError> {
    let repeat = count / READERS;
    for session in 0..READERS {
        let keys = Numbered { first: AWAITED, count: keys * repeat, stride: 1, repeat };
        readers.ask(CrowdTask::Wait { session: session as usize, keys, version })?;
    }
    Ok(())
}

fn push(crowd: &mut Actor, keys: u64, version: u64) -> Result<(), BenchError> {
    crowd.ask(CrowdTask::Push { session: 0, keys: numbered(AWAITED, keys), version }).map(drop)
}
