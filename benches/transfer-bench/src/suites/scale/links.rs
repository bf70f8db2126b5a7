//! Links to other sidecars over TCP: each of them fetches its share of the tensors. The others are sidecars inside of
//! their workers' processes.

use super::hub::{Hub, Step};
use super::report::{Axis, Cell};
use super::{KIB, MIB, numbered, tensors};
use crate::actor::crowd::CrowdTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::stage::{Actor, pause};
use std::time::{Duration, Instant};

/// The numbers of links. A sidecar takes at most 1,024 connections for its services from one address, and here all come
/// from one.
const COUNTS: [u64; 4] = [1, 10, 100, 500];

/// The tensors of one batch of fetches. Batches of different links come one after the other, so that each wakes the
/// sidecar, however many links there are.
const BATCH: u64 = 8;

pub(super) fn measure(bench: &Bench) -> Result<Axis, BenchError> {
    let (counts, tensors) = (bench.pick(&COUNTS[..], &[1, 4]), tensors(bench));
    let mut axis = Axis::new("links", "links to other nodes, in turn", 10);
    let hub = Hub::start(bench, &["--require", "tcp"])?;
    let mut pusher = hub.crowd(bench, ["pusher".to_owned()], 16 * MIB)?;
    let mut others: Vec<Actor> = Vec::new();
    for count in counts.iter().copied() {
        let mut cell = Cell::new(&axis, count);
        let (before, first) = (hub.resident()?, others.len() as u64);
        while (others.len() as u64) < count {
            bench.says(format!("{}: starting {}", cell.title(), others.len() + 1));
            others.push(other(bench, &hub, others.len())?);
        }
        let batches = (tensors / BATCH / count).max(1);
        let all = batches * BATCH * count;
        hub.rounds(bench, &mut cell, all, |version, now| {
            // Each cell has versions of its own.
            let version = version + count * 1000;
            match now {
                Step::Wait => (0..batches * count).try_for_each(|at| {
                    let keys = numbered(at * BATCH, BATCH);
                    let other = &mut others[(at % count) as usize];
                    other.ask(CrowdTask::Wait { session: 0, keys, version }).map(drop)
                }),
                Step::Push => pusher.ask(CrowdTask::Push { session: 0, keys: numbered(0, all), version }).map(drop),
                Step::Take => others.iter_mut().try_for_each(|other| other.ask(CrowdTask::Take).map(drop)),
            }
        })?;
        cell.each = Cell::beside(before, hub.resident()?, count - first);
        let span = Duration::from_secs(bench.pick(10, 1));
        bench.says(format!("{}: nothing to do for {span:?}", cell.title()));
        let (before, started) = (hub.cpu()?, Instant::now());
        pause(span)?;
        cell.idle = Some(hub.cpu()?.saturating_sub(before).as_secs_f64() / started.elapsed().as_secs_f64());
        axis.cells.push(cell);
    }
    Ok(axis)
}

fn other(bench: &Bench, hub: &Hub, number: usize) -> Result<Actor, BenchError> {
    let name = format!("other-{number}");
    let mut actor = bench.stage.actor(&name)?;
    let settings = [
        ("listen", "127.0.0.1:0"),
        ("directory", &hub.sidecar.url),
        ("pool_bytes", "1MiB"),
        ("poll", "event"),
        ("verbs", "off"),
        ("shm", "off"),
        ("lock", "no"),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    actor.ask(CrowdTask::Embed { settings, name, arena_bytes: 64 * KIB })?;
    Ok(actor)
}
