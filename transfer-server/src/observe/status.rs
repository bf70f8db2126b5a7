//! `/api/status`: the data of the status page, as JSON.
//!
//! The lists are shortened for people. [`metrics`](super::metrics) and the Admin service have the rest.

use super::history::milliseconds;
use super::observer::{Lists, Observation, Observer, ObserverParts};
use crate::exchanges;
use serde::Serialize;
use std::time::SystemTime;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::{
    Histogram, LinkStatus, Operation, PathMeter, SessionStatus, TensorStatus, TransferStatus, UnfinishedVersion,
};
use transfer_fabric::engine::Clock;

/// The most landing pools that are shown.
const MAX_POOLS_SHOWN: usize = 200;

/// The most tensors that are shown.
const MAX_TENSORS_SHOWN: usize = 20;

/// The most transfers in flight that are shown.
const MAX_TRANSFERS_SHOWN: usize = 20;

/// The most exchanges that are shown.
const MAX_EXCHANGES_SHOWN: usize = 20;

/// A sidecar at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    node: String,
    /// The incarnation is a text, because it exceeds the exact integers of a script.
    incarnation: String,
    version: &'static str,
    at_ms: u64,
    started_ms: u64,
    poll: String,
    require: Option<&'static str>,
    fabrics: Vec<Fabric>,
    directory: Directory,
    pinned: u64,
    pinned_limit: u64,
    pools: Vec<Pool>,
    links: Vec<Link>,
    links_all: u64,
    sessions: Vec<Session>,
    sessions_all: u64,
    /// The listed tensors, the largest first.
    published: Vec<Tensor>,
    /// The listed transfers in flight, the oldest first.
    in_flight: Vec<InFlight>,
    in_flight_all: u64,
    /// The listed exchanges, those with the most bytes first.
    exchanges: Vec<Exchange>,
    exchanges_all: usize,
    /// Versions of sharded states that are not whole, if their roster lives here: the oldest first.
    unfinished: Vec<Unfinished>,
    draining: bool,
    tensors: u64,
    leases: u64,
    operations: u64,
    slots: u64,
    failures: Vec<Failure>,
    paths: Vec<Path>,
    busy_ns: u64,
    log_lines_dropped: u64,
}

#[derive(Debug, Serialize)]
struct Unfinished {
    state: String,
    version: u64,
    world_size: u32,
    committed: u32,
    /// The first ranks that have not committed.
    missing: Vec<u32>,
    age_s: f64,
}

#[derive(Debug, Serialize)]
struct Fabric {
    fabric: &'static str,
    why_not: Option<String>,
}

#[derive(Debug, Serialize)]
struct Directory {
    place: String,
    attached: bool,
    why_not: String,
    /// The reason why the etcd or the Kubernetes of `--directory` does not answer.
    coordinator_why_not: Option<String>,
    keys: Option<u64>,
    workers: Option<u64>,
    nodes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Pool {
    tenant: String,
    bytes: u64,
    used: u64,
    waiting: u64,
}

#[derive(Debug, Serialize)]
struct Link {
    peer: String,
    fabric: &'static str,
    /// The reason why no better fabric carries it.
    why: String,
    rails: usize,
    rails_live: usize,
    credits: u32,
    queued: u64,
    pulls: u64,
    serves: u64,
    flows: u64,
    /// The index of its transfers in `paths`.
    path: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Session {
    worker: String,
    tenant: String,
    arena: u64,
    leases: u64,
    operations: u64,
}

#[derive(Debug, Serialize)]
struct Tensor {
    key: String,
    version: u64,
    what: String,
    bytes: u64,
    owner: String,
    readers: u32,
    published_at_ms: u64,
}

#[derive(Debug, Serialize)]
struct InFlight {
    key: String,
    worker: String,
    what: &'static str,
    peer: Option<String>,
    waits_for: String,
    age_s: f64,
}

/// What an exchange has at this node.
#[derive(Debug, Serialize)]
struct Exchange {
    name: String,
    tenant: String,
    partitions: u32,
    tasks: u32,
    committed: u64,
    rows: u64,
    bytes: u64,
    largest: Option<u64>,
    skew: Option<f64>,
    memory: u64,
    spilled: u64,
    reads: u64,
    writers: u64,
    /// Who waits the longest, and for what.
    waits: Option<String>,
}

#[derive(Debug, Serialize)]
struct Failure {
    code: String,
    count: u64,
}

/// Transfers with one peer over one fabric. The history uses the same index.
#[derive(Debug, Serialize)]
struct Path {
    peer: Option<String>,
    fabric: &'static str,
    operations: Vec<Operations>,
}

#[derive(Debug, Serialize)]
struct Operations {
    operation: &'static str,
    transfers: u64,
    bytes: u64,
    copied: u64,
    /// The median time in flight, in seconds; `None` if it was not measured.
    p50: Option<f64>,
    /// The 99th percentile.
    p99: Option<f64>,
}

/// Makes the status.
pub(super) fn of(watched: &Observer, look: &Observation, lists: &Lists) -> Status {
    let ObserverParts { me, clock, poll, directory, .. } = watched.parts();
    let now = &look.measured.snapshot;
    let paths = look.measured.meters.paths();
    let lacking = me.lacking.iter().map(|l| Fabric { fabric: l.fabric.name(), why_not: Some(l.why.clone()) });
    let there = me.fabrics.iter().map(|kind| Fabric { fabric: kind.name(), why_not: None });
    let failures = look.measured.meters.failures().filter(|(_, count)| *count > 0);
    Status {
        node: me.node.to_string(),
        incarnation: me.incarnation.to_string(),
        version: env!("CARGO_PKG_VERSION"),
        at_ms: milliseconds(look.at),
        started_ms: milliseconds(watched.started_at()),
        poll: crate::poll::in_words(poll.present()),
        require: me.require.map(FabricKind::name),
        fabrics: lacking.chain(there).collect(),
        directory: Directory {
            place: directory.place().describe().to_owned(),
            attached: look.directory.attached,
            why_not: look.directory.why_not.clone(),
            coordinator_why_not: look.coordinator.clone().flatten(),
            keys: look.hosted.map(|h| h.keys),
            workers: look.hosted.map(|h| h.workers),
            nodes: look.hosted.map(|h| h.nodes),
        },
        pinned: look.pinned,
        pinned_limit: look.pinned_limit,
        pools: now
            .pools
            .iter()
            .take(MAX_POOLS_SHOWN)
            .map(|p| Pool { tenant: p.tenant.to_string(), bytes: p.bytes, used: p.used, waiting: p.waiting })
            .collect(),
        links: look.links.iter().map(|l| link(l, paths)).collect(),
        links_all: now.links,
        sessions: lists.sessions.iter().map(session).collect(),
        sessions_all: now.sessions,
        published: published(&lists.tensors, *clock),
        in_flight: in_flight(&lists.transfers),
        in_flight_all: now.operations,
        exchanges: exchanges(&lists.exchanges),
        exchanges_all: lists.exchanges.len(),
        unfinished: now.unfinished.iter().map(|version| unfinished(version, look.at, *clock)).collect(),
        draining: now.draining,
        tensors: now.tensors,
        leases: now.leases,
        operations: now.operations,
        slots: now.slots,
        failures: failures.map(|(code, count)| Failure { code: format!("{code:?}"), count }).collect(),
        paths: paths.iter().map(path).collect(),
        busy_ns: u64::try_from(look.measured.engine.busy.as_nanos()).unwrap_or(u64::MAX),
        log_lines_dropped: look.log_lines_dropped,
    }
}

fn link(link: &LinkStatus, paths: &[PathMeter]) -> Link {
    let same = |p: &PathMeter| p.fabric == link.fabric && p.peer.as_ref() == Some(&link.peer);
    Link {
        peer: link.peer.to_string(),
        fabric: link.fabric.name(),
        why: link.passed_over.iter().map(|passed| passed.why.as_str()).collect::<Vec<_>>().join("; "),
        rails: link.rails,
        rails_live: link.rails_live,
        credits: link.credits,
        queued: link.work.queued,
        pulls: link.work.pulls,
        serves: link.work.serves,
        flows: link.work.flows_in + link.work.flows_out,
        path: paths.iter().position(same),
    }
}

fn session(session: &SessionStatus) -> Session {
    Session {
        worker: session.name.to_string(),
        tenant: session.tenant.to_string(),
        arena: session.arena_bytes,
        leases: session.leases,
        operations: session.operations,
    }
}

/// Returns the largest tensors.
fn published(tensors: &[TensorStatus], clock: Clock) -> Vec<Tensor> {
    let mut largest: Vec<_> = tensors.iter().collect();
    largest.sort_by_key(|tensor| std::cmp::Reverse(tensor.meta.len_bytes()));
    let shown = largest.into_iter().take(MAX_TENSORS_SHOWN).map(|t| Tensor {
        key: t.key.to_string(),
        version: t.version.0,
        what: t.meta.to_string(),
        bytes: t.meta.len_bytes(),
        owner: t.owner.to_string(),
        readers: t.readers,
        published_at_ms: milliseconds(clock.wall_clock(t.published_at)),
    });
    shown.collect()
}

fn unfinished(version: &UnfinishedVersion, at: SystemTime, clock: Clock) -> Unfinished {
    let age = at.duration_since(clock.wall_clock(version.since)).unwrap_or_default();
    Unfinished {
        state: version.state.clone(),
        version: version.version.0,
        world_size: version.world_size,
        committed: version.committed,
        missing: version.missing.clone(),
        age_s: age.as_secs_f64(),
    }
}

/// Returns the exchanges with the most bytes.
fn exchanges(all: &[exchanges::Exchange]) -> Vec<Exchange> {
    let mut largest: Vec<_> = all.iter().collect();
    largest.sort_by_key(|exchange| std::cmp::Reverse(exchange.status.bytes));
    let shown = largest.into_iter().take(MAX_EXCHANGES_SHOWN).map(|exchange| Exchange {
        name: exchange.status.name.clone(),
        tenant: exchange.status.tenant.to_string(),
        partitions: exchange.status.partitions,
        tasks: exchange.status.tasks,
        committed: exchange.status.committed,
        rows: exchange.status.rows,
        bytes: exchange.status.bytes,
        largest: exchange.largest.map(|(_, bytes)| bytes),
        skew: exchange.skew(),
        memory: exchange.status.memory,
        spilled: exchange.status.spilled,
        reads: exchange.reads_waiting,
        writers: exchange.status.writers_waiting,
        waits: exchange.waits.first().map(|wait| format!("{}: {}", wait.worker, wait.waits_for)),
    });
    shown.collect()
}

/// Returns the oldest transfers.
fn in_flight(transfers: &[TransferStatus]) -> Vec<InFlight> {
    let mut oldest: Vec<_> = transfers.iter().collect();
    oldest.sort_by_key(|transfer| std::cmp::Reverse(transfer.age));
    let shown = oldest.into_iter().take(MAX_TRANSFERS_SHOWN).map(|t| InFlight {
        key: t.key.clone(),
        worker: t.worker.to_string(),
        what: t.operation,
        peer: t.peer.as_ref().map(ToString::to_string),
        waits_for: t.waits_for.clone(),
        age_s: t.age.as_secs_f64(),
    });
    shown.collect()
}

fn path(path: &PathMeter) -> Path {
    let operations = Operation::ALL.into_iter().zip(&path.operations).filter(|(_, meter)| meter.transfers > 0);
    let operations = operations.map(|(operation, meter)| Operations {
        operation: operation.name(),
        transfers: meter.transfers,
        bytes: meter.bytes,
        copied: meter.copied,
        p50: quantile(&meter.in_flight, 0.5),
        p99: quantile(&meter.in_flight, 0.99),
    });
    Path {
        peer: path.peer.as_ref().map(ToString::to_string),
        fabric: path.fabric.name(),
        operations: operations.collect(),
    }
}

/// Returns a quantile in seconds, interpolated within its bucket, as Prometheus does it.
#[allow(clippy::cast_precision_loss)]
fn quantile(durations: &Histogram, q: f64) -> Option<f64> {
    let rank = durations.count() as f64 * q;
    let mut below = 0.0;
    for (bucket, count) in durations.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = *count as f64;
        if below + count >= rank {
            let low = if bucket == 0 { 0 } else { Histogram::bound_ns(bucket - 1) };
            let high = Histogram::bound_ns(bucket.min(Histogram::BOUND_COUNT - 1)).max(low);
            return Some((low as f64 + (high - low) as f64 * ((rank - below) / count)) / 1e9);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn quantiles_lie_in_the_bucket_of_their_transfer() {
        let mut durations = Histogram::default();
        assert_eq!(quantile(&durations, 0.5), None);
        for _ in 0..98 {
            durations.record(Duration::from_micros(3));
        }
        durations.record(Duration::from_millis(100));
        durations.record(Duration::from_secs(60));
        let p50 = quantile(&durations, 0.5).unwrap();
        assert!((2.048e-6..=4.096e-6).contains(&p50), "{p50}");
        let p99 = quantile(&durations, 0.99).unwrap();
        assert!((0.067..=0.135).contains(&p99), "{p99}");
        // The quantile exceeds all bounds, so it is at least the last bound.
        assert!(quantile(&durations, 1.0).unwrap() >= 17.0);
    }
}
