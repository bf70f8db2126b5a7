//! Two sidecars over RDMA on one device of this host, compared with perftest on the same device in the same minute.
//!
//! The suite needs a device and perftest's `ib_write_bw`. For hosts without them, tests/rdma-vm has a guest with both.
//! That device is emulated, so only the ratios and the counts are meaningful there.

use super::{KIB, MIB, pair_over, worker};
use crate::actor::batches::Batches;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus};
use crate::stage::{Actor, Sidecar};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use transfer_proto::v1::{Fabric, FabricState, StatusRequest};

const LEN: u64 = MIB;
/// The number of keys that are pushed at a time. Each has two landing slots.
const STREAMS: usize = 4;
/// The length of each tensor in the batches of small tensors, in bytes.
const SMALL: u64 = 4 * KIB;
const KEYS: usize = 256;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let (a, b) = pair_over(&bench.stage, "verbs", &["--verbs", "on", "--pool-bytes", "64MiB"])?;
    let port = Port::of(&a)?;
    let mut sender = worker(&bench.stage, &a, "sender", 2 * LEN)?;
    let mut receiver = worker(&bench.stage, &b, "receiver", 0)?;
    let mut steady = Figure::beside(
        "1 MiB, worker to worker, steady push",
        Unit::GigabytesPerSecond,
        Versus::Ratio,
        Goal::AtLeast(0.85),
    );
    let pushes = bench.pick(25, 5);
    for run in 0..=bench.runs {
        bench.says(format!("1 MiB, run {run} of {}", bench.runs));
        let ours = stream(&mut sender, pushes, u64::from(run) * 1000)?;
        // The first run makes the slots known, and does not count.
        if run > 0 {
            steady.run_beside(ours, port.write_bandwidth(LEN, pushes * STREAMS as u64)?);
        }
    }
    drop(sender);
    let mut figures = vec![steady];
    figures.extend(counted(bench, &a, &b, &mut receiver)?);
    Ok(figures)
}

fn stream(sender: &mut Actor, pushes: u64, above: u64) -> Result<f64, BenchError> {
    let (prefix, to) = ("stream".to_owned(), "receiver".to_owned());
    let task = WorkerTask::Stream { prefix, len: LEN, in_flight: STREAMS, count: pushes, above, to };
    Ok(match sender.ask(task)?.times()[..] {
        [from, to] => super::gigabytes_per_second(LEN * pushes * STREAMS as u64, to - from),
        _ => 0.0,
    })
}

/// Compares the counters of both verbs fabrics before and after a stream of 4 KiB pushes.
fn counted(bench: &Bench, a: &Sidecar, b: &Sidecar, receiver: &mut Actor) -> Result<Vec<Figure>, BenchError> {
    let names = [
        ("WRITEs for each push of 4 KiB", Goal::AtMost(1.0)),
        ("  messages of the receiver for each push", Goal::AtMost(1.05)),
        ("  messages of the sender for each push", Goal::AtMost(0.05)),
        ("  signaled completions for each work request, at the sender", Goal::AtMost(1.0 / 16.0)),
        ("  doorbells for each work request, at the sender", Goal::AtMost(1.0 / 16.0)),
    ];
    let mut figures = names.map(|(what, goal)| Figure::alone(what, Unit::Each, goal));
    let mut producer = worker(&bench.stage, a, "producer", 64 * MIB)?;
    producer.ask(WorkerTask::Prefill { len: SMALL, tensors: 8 * KEYS })?;
    let rounds = bench.pick(40, 10);
    let mut version = 1;
    for run in 0..=bench.runs {
        bench.says(format!("counting, run {run} of {}", bench.runs));
        let batches = Batches {
            prefix: "small".to_owned(),
            keys: KEYS,
            len: SMALL,
            versions: version..version + rounds,
            to: Some("receiver".to_owned()),
            turns: bench.stage.path(&format!("turns-verbs-{run}")),
        };
        version += rounds;
        let before = (counts(a)?, counts(b)?);
        producer.tell(WorkerTask::PushBatches(batches.clone()))?;
        receiver.ask(WorkerTask::FetchBatches(batches))?;
        producer.answer()?;
        let after = (counts(a)?, counts(b)?);
        if run == 0 {
            // The first run asks for names and slots, and does not count.
            continue;
        }
        let more = |side: fn(&(Counts, Counts)) -> &Counts, name: &str| {
            let of = |counts: &Counts| counts.get(name).copied().unwrap_or(0);
            of(side(&after)).saturating_sub(of(side(&before))) as f64
        };
        let pushes = (rounds * KEYS as u64) as f64;
        let requests: f64 =
            ["writes", "sends", "binds", "invalidations", "probes"].iter().map(|name| more(|c| &c.0, name)).sum();
        let found = [
            more(|c| &c.0, "writes") / pushes,
            more(|c| &c.1, "sends") / pushes,
            more(|c| &c.0, "sends") / pushes,
            more(|c| &c.0, "signaled") / requests,
            more(|c| &c.0, "doorbells") / requests,
        ];
        for (figure, found) in figures.iter_mut().zip(found) {
            figure.run(found);
        }
    }
    Ok(figures.into())
}

type Counts = BTreeMap<String, u64>;

fn counts(sidecar: &Sidecar) -> Result<Counts, BenchError> {
    let state = verbs_of(sidecar)?;
    Ok(state.counts.into_iter().map(|count| (count.name, count.value)).collect())
}

/// The state of a sidecar's verbs fabric.
fn verbs_of(sidecar: &Sidecar) -> Result<FabricState, BenchError> {
    let what = "ask a sidecar for its status";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime.map_err(BenchError::system(what))?.block_on(async {
        let answer = sidecar.admin().await?.status(StatusRequest {}).await;
        answer.map_err(|e| BenchError::Status { why: e.message().to_owned() })
    })?;
    let status = status.into_inner();
    let verbs = status.fabric_states.into_iter().find(|state| state.fabric == i32::from(Fabric::Verbs));
    verbs.ok_or_else(|| BenchError::Status { why: "it says nothing of verbs".to_owned() })
}

/// The port that the sidecars use, in perftest's terms.
pub(super) struct Port {
    device: String,
    gid_index: String,
}

impl Port {
    pub(super) fn of(sidecar: &Sidecar) -> Result<Port, BenchError> {
        let state = verbs_of(sidecar)?;
        let setting = |name: &str| state.settings.iter().find(|s| s.name == name).map(|s| s.value.clone());
        let gid = setting("gid").unwrap_or_default();
        let gid_index = gid.rsplit_once("index ").map_or("0", |(_, index)| index).to_owned();
        Ok(Port { device: setting("device").unwrap_or_default(), gid_index })
    }

    /// Runs perftest's program once, and returns its rate in GB/s.
    pub(super) fn write_bandwidth(&self, len: u64, count: u64) -> Result<f64, BenchError> {
        const PROGRAM: &str = "ib_write_bw";
        let (len, count) = (len.to_string(), count.to_string());
        let run = |peer: Option<&str>| {
            let mut command = Command::new(PROGRAM);
            command.args(["-d", &self.device, "-x", &self.gid_index, "-F", "-s", &len, "-n", &count]).args(peer);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        };
        let what = "start ib_write_bw, of the package perftest";
        let mut server = run(None).map_err(BenchError::system(what))?;
        let deadline = Instant::now() + Duration::from_secs(30);
        let output = loop {
            // The server listens only after a moment, and a client that finds no listener ends at once.
            let client = run(Some("127.0.0.1")).and_then(std::process::Child::wait_with_output);
            let output = client.map_err(BenchError::system(what))?;
            if output.status.success() || Instant::now() > deadline {
                break String::from_utf8_lossy(&output.stdout).into_owned();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // Without a client, the server would wait indefinitely.
        let _ = server.kill();
        server.wait().map_err(BenchError::system(what))?;
        let row = output.lines().rev().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let average =
            row.into_iter().find(|row| row.first() == Some(&len.as_str())).and_then(|row| row.get(3)?.parse().ok());
        let mebibytes: f64 =
            average.ok_or_else(|| BenchError::Unexpected { name: PROGRAM.to_owned(), said: output })?;
        Ok(mebibytes * MIB as f64 / 1e9)
    }
}
