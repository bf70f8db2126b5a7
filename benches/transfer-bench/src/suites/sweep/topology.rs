//! The system at each place: two workers, of one sidecar or of two.

use super::super::{MIB, latencies_us, pair_over, worker};
use crate::actor::batches::Batches;
use crate::actor::pace::Pace;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::percentile;
use crate::stage::{Actor, Sidecar};
use crate::usage::Usage;
use std::ops::Range;
use std::time::Duration;

/// The length of a batch in bytes, if its tensors are shorter than that.
const BATCH: u64 = 16 * MIB;
const KEYS: Range<u64> = 1..64;
/// The number of batches by which the producer may be ahead of the consumer.
const AHEAD: u64 = 2;
/// The limits of the number of single tensors, and of batches: at least 4, for a median, and at most 4,000, so that a
/// run ends.
const TENSORS: Range<u64> = 4..4000;
const BATCHES: Range<u64> = 4..4000;
const TO: &str = "consumer";

/// The place of the two workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Two workers of one sidecar.
    OneHost,
    /// Two sidecars of one host, by shared memory.
    Shm,
    /// Two sidecars, by TCP over loopback.
    Tcp,
    /// Two sidecars, by a device for RDMA.
    Verbs,
}

impl Topology {
    /// All places.
    #[must_use]
    pub fn all() -> [Topology; 4] {
        [Topology::OneHost, Topology::Shm, Topology::Tcp, Topology::Verbs]
    }

    /// The name in figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Topology::OneHost => "one host",
            Topology::Shm => "two sidecars, shm",
            Topology::Tcp => "two sidecars, tcp",
            Topology::Verbs => "two sidecars, verbs",
        }
    }

    /// Whether this host supports it.
    #[must_use]
    pub fn is_here(self) -> bool {
        self != Topology::Verbs || transfer_verbs::devices().is_ok_and(|devices| !devices.is_empty())
    }

    /// Whether bytes move. If they do not, a rate in bytes has no meaning.
    #[must_use]
    pub fn moves_bytes(self) -> bool {
        self != Topology::OneHost
    }
}

/// The result of a run of the system.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// The times of single tensors, from the call of push to the return of fetch, in microseconds.
    pub latencies_us: Vec<f64>,
    /// The bytes that a CPU copied, for each byte of the tensors.
    pub copied: f64,
    /// The nanoseconds of each tensor in batches.
    pub ns: f64,
    /// The CPU time of the workers and the sidecars, for each tensor in batches.
    pub cpu: Duration,
    /// The number of times that one of their threads went to sleep, for each tensor in batches.
    pub sleeps: f64,
}

/// The sidecars and workers of one length at one place.
pub(super) struct Scene<'a> {
    bench: &'a Bench,
    pub(super) place: Topology,
    pub(super) len: u64,
    /// The number of tensors of a batch.
    pub(super) keys: u64,
    /// The number of single tensors of a run.
    pub(super) tensors: u64,
    pub(super) batches: u64,
    version: u64,
    pub(super) sidecars: Vec<Sidecar>,
    producer: Actor,
    consumer: Actor,
}

impl<'a> Scene<'a> {
    /// Starts the sidecars and workers, and finds the number of tensors that fill the time of a run.
    pub(super) fn start(bench: &'a Bench, place: Topology, len: u64) -> Result<Scene<'a>, BenchError> {
        let keys = (BATCH / len).clamp(KEYS.start, KEYS.end);
        // The tensors of the previous batch, of this one, and those being written; each takes at least a page.
        let room = |tensors: u64| tensors * keys * len.next_multiple_of(4096);
        let (arena, pool) = (room(3) + 16 * MIB, room(2 * AHEAD) + 64 * MIB);
        let texts = [arena, pool, arena + pool + 64 * MIB].map(|bytes| bytes.to_string());
        let [arena_text, pool_text, pinned] = texts.each_ref().map(String::as_str);
        let limits = ["--max-arena-bytes", arena_text, "--pinned-limit", pinned, "--pool-bytes", pool_text];
        let sidecars = match place {
            Topology::OneHost => {
                vec![bench.stage.sidecar("node", None, &[&limits[..4], &["--pool-bytes", "1MiB"]].concat())?]
            }
            Topology::Shm | Topology::Tcp | Topology::Verbs => {
                let (fabric, more): (_, &[&str]) = match place {
                    Topology::Shm => ("shm", &[]),
                    Topology::Verbs => ("verbs", &["--verbs", "on"]),
                    _ => ("tcp", &[]),
                };
                let (a, b) = pair_over(&bench.stage, fabric, &[&limits, more].concat())?;
                vec![a, b]
            }
        };
        let (from, to) = (&sidecars[0], &sidecars[sidecars.len() - 1]);
        let mut producer = worker(&bench.stage, from, "producer", arena)?;
        let consumer = worker(&bench.stage, to, TO, 0)?;
        producer.ask(WorkerTask::Prefill { len, tensors: 3 * keys as usize })?;
        let (tensors, batches) = (TENSORS.start, BATCHES.start);
        let mut scene = Scene { bench, place, len, keys, tensors, batches, version: 1, sidecars, producer, consumer };
        // The first run asks for names and slots, and touches pages for the first time.
        scene.measure()?;
        let tried = scene.measure()?;
        let time = bench.pick(4e8, 6e7);
        let of = |ns: f64, limits: Range<u64>| ((time / ns.max(1.0)) as u64).clamp(limits.start, limits.end);
        let latency = percentile(&mut tried.latencies_us.clone(), 50.0);
        scene.tensors = of(latency * 1e3, TENSORS);
        scene.batches = of(tried.ns * keys as f64, BATCHES);
        Ok(scene)
    }

    /// The greatest number of tensors in flight in batches.
    pub(super) fn under_way(&self) -> u64 {
        AHEAD * self.keys
    }

    /// Does one run.
    pub(super) fn measure(&mut self) -> Result<Measured, BenchError> {
        let (ns, used) = self.in_batches()?;
        let (latencies_us, copied) = self.one_at_a_time()?;
        let tensors = (self.batches * self.keys) as f64;
        Ok(Measured {
            latencies_us,
            copied,
            ns: ns / tensors,
            cpu: used.cpu.div_f64(tensors),
            sleeps: used.sleeps as f64 / tensors,
        })
    }

    fn versions(&mut self, count: u64) -> Range<u64> {
        let versions = self.version..self.version + count;
        self.version = versions.end;
        versions
    }

    fn in_batches(&mut self) -> Result<(f64, Usage), BenchError> {
        let versions = self.versions(self.batches);
        let batches = Batches {
            prefix: "sweep".to_owned(),
            keys: self.keys as usize,
            len: self.len,
            turns: self.bench.stage.new_path("turns"),
            versions,
            to: self.to(),
        };
        let pids: Vec<u32> =
            self.sidecars.iter().map(Sidecar::pid).chain([self.producer.pid(), self.consumer.pid()]).collect();
        let before = Usage::of(&pids);
        self.producer.tell(WorkerTask::PushBatches(batches.clone()))?;
        self.consumer.tell(WorkerTask::FetchBatches(batches))?;
        let (began, ended) = (self.producer.answer()?.times(), self.consumer.answer()?.times());
        let used = Usage::of(&pids).since(before);
        let ns = match (began[..].first(), ended[..].first()) {
            (Some(began), Some(ended)) => ended.saturating_sub(*began) as f64,
            _ => 0.0,
        };
        Ok((ns, used))
    }

    fn one_at_a_time(&mut self) -> Result<(Vec<f64>, f64), BenchError> {
        // One more version than counted: the first one waits until both workers have begun.
        let versions = self.versions(1 + self.tensors);
        let turns = self.bench.stage.new_path("turns");
        let pace = Pace { interval_ns: 0, turns: Some(turns.clone()) };
        // A key of the batches, because its slots exist.
        let (key, len) = ("sweep/0/0".to_owned(), self.len);
        self.producer.tell(WorkerTask::Push {
            key: key.clone(),
            len,
            versions: versions.clone(),
            pace,
            to: self.to(),
        })?;
        self.consumer.tell(WorkerTask::Fetch { key, versions, turns: Some(turns) })?;
        let (pushed, fetched) = (self.producer.answer()?, self.consumer.answer()?);
        let copied = (pushed.copied() + fetched.copied()) as f64 / ((1 + self.tensors) * len) as f64;
        Ok((latencies_us(&pushed.times(), &fetched.times()).into_iter().skip(1).collect(), copied))
    }

    fn to(&self) -> Option<String> {
        self.place.moves_bytes().then(|| TO.to_owned())
    }
}
