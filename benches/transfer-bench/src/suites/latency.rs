//! 4 KiB from a worker of one sidecar to a worker of another, over loopback TCP, one in flight. The time counts from
//! the call of `push_tensor(..).to(..)` in one worker until `fetch` has returned in the other, which then lets the
//! first one continue.
//!
//! The baseline has the same hops without this project: a byte to a process, 4 KiB over TCP to another one, a byte to
//! the receiver.
//!
//! Then the same between two workers that have their sidecars inside of their processes, as half of a round trip: with all
//! threads asleep while they wait, and with both polling. The baseline is a round trip between two processes that sleep in
//! `recv` of a bare socket, or poll it.

use super::{KIB, latencies_us, pair, worker};
use crate::actor::answer::Answer;
use crate::actor::bare::BareTask;
use crate::actor::pace::Pace;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::Actor;
use std::time::Duration;

const LEN: u64 = 4 * KIB;
/// The first messages of each run, which do not count.
pub(super) const WARM_UP: usize = 50;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let (a, b) = pair(&bench.stage, &["--pool-bytes", "64MiB"])?;
    let mut sender = worker(&bench.stage, &a, "sender", 16 << 20)?;
    let mut receiver = worker(&bench.stage, &b, "receiver", 0)?;
    let count = bench.pick(5000u64, 500) + WARM_UP as u64;
    let mut p50 = Figure::alone("4 KiB, one in flight: p50", Unit::Micros, Goal::AtMost(40.0));
    let mut against = Figure::beside("  against the bare relays", Unit::Micros, Versus::Difference, Goal::Open);
    let mut p99 = Figure::beside("4 KiB, one in flight: p99", Unit::Micros, Versus::Difference, Goal::Open);
    for run in 0..bench.runs {
        bench.says(format!("run {} of {}", run + 1, bench.runs));
        let first = u64::from(run) * count + 1;
        let mut ours = push_to(bench, &mut sender, &mut receiver, first..first + count)?;
        let mut bare: Vec<f64> = relays(bench, LEN, count)?.into_iter().skip(WARM_UP).collect();
        let middle = percentile(&mut ours, 50.0);
        p50.run(middle);
        against.run_beside(middle, percentile(&mut bare, 50.0));
        p99.run_beside(percentile(&mut ours, 99.0), percentile(&mut bare, 99.0));
    }
    drop((sender, receiver));
    Ok([p50, against, p99].into_iter().chain(embedded(bench)?).collect())
}

/// Two embedded workers, beside a bare socket: both asleep while they wait, and then both polling.
fn embedded(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for polling in [false, true] {
        figures.extend(half_rounds(bench, polling)?);
    }
    Ok(figures)
}

fn half_rounds(bench: &Bench, polling: bool) -> Result<[Figure; 2], BenchError> {
    let (mut sender, url) = embed(bench, "sender", None, polling)?;
    let (mut receiver, _) = embed(bench, "receiver", Some(&url), polling)?;
    let count = bench.pick(5000u64, 500) + WARM_UP as u64;
    let (how, goal) = if polling { ("polling", Goal::Open) } else { ("asleep", Goal::AtMost(5.0)) };
    let figure = |which, goal| {
        let name = format!("4 KiB between embedded workers, {how}: {which}");
        Figure::beside(name, Unit::Micros, Versus::Difference, goal)
    };
    let (mut p50, mut p99) = (figure("p50", goal), figure("p99", Goal::Open));
    for run in 0..bench.runs {
        bench.says(format!("embedded, {how}, run {} of {}", run + 1, bench.runs));
        let first = u64::from(run) * count + 1;
        let round = |give: &str, take: &str, to: &str, first_one| WorkerTask::PingPong {
            give: give.to_owned(),
            take: take.to_owned(),
            to: Some(to.to_owned()),
            len: LEN,
            versions: first..first + count,
            first: first_one,
        };
        receiver.tell(round("pong", "ping", "sender", false))?;
        let mut ours = half_rounds_us(sender.ask(round("ping", "pong", "receiver", true))?);
        receiver.answer()?;
        let mut bare = bare_half_rounds(bench, count, polling)?;
        p50.run_beside(percentile(&mut ours, 50.0), percentile(&mut bare, 50.0));
        p99.run_beside(percentile(&mut ours, 99.0), percentile(&mut bare, 99.0));
    }
    Ok([p50, p99])
}

/// Starts a worker with a sidecar inside of its process. Returns the address of the sidecar.
fn embed(bench: &Bench, name: &str, directory: Option<&str>, polling: bool) -> Result<(Actor, String), BenchError> {
    // The default is to poll for a while: the worker that waits polls the engine of its own process.
    let (poll, spin) = if polling { ("busy", None) } else { ("event", Some(Duration::ZERO)) };
    let mut settings = vec![("listen", "127.0.0.1:0"), ("pool_bytes", "64MiB"), ("require", "tcp"), ("poll", poll)];
    settings.extend([("verbs", "off"), ("lock", "no")]);
    settings.extend(directory.map(|url| ("directory", url)));
    let settings = settings.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let mut actor = bench.stage.actor(name)?;
    match actor.ask(WorkerTask::Embed { settings, name: name.to_owned(), arena_bytes: 16 << 20, spin })? {
        Answer::Listens(Some(address)) => Ok((actor, format!("http://{address}"))),
        said => Err(BenchError::Unexpected { name: name.to_owned(), said: format!("{said:?}") }),
    }
}

/// Half of each round trip between two processes over a bare socket, in microseconds.
fn bare_half_rounds(bench: &Bench, count: u64, polling: bool) -> Result<Vec<f64>, BenchError> {
    let (mut first, mut second) = (bench.stage.actor("first")?, bench.stage.actor("second")?);
    let Answer::Port(port) = second.ask(BareTask::Listen)? else { return Ok(Vec::new()) };
    let bytes = LEN as usize;
    second.tell(BareTask::PingPong { port: None, bytes, count, polling })?;
    let times = first.ask(BareTask::PingPong { port: Some(port), bytes, count, polling })?;
    second.answer()?;
    Ok(half_rounds_us(times))
}

fn half_rounds_us(answer: Answer) -> Vec<f64> {
    let times = answer.times();
    let rounds = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 2e3);
    rounds.skip(WARM_UP).collect()
}

/// Returns the times from pushes by the sender until their fetches at the receiver have returned, in microseconds.
pub(super) fn push_to(
    bench: &Bench,
    sender: &mut Actor,
    receiver: &mut Actor,
    versions: std::ops::Range<u64>,
) -> Result<Vec<f64>, BenchError> {
    let (key, turns) = ("latency".to_owned(), bench.stage.new_path("turns"));
    let pace = Pace { interval_ns: 0, turns: Some(turns.clone()) };
    let to = Some("receiver".to_owned());
    sender.tell(WorkerTask::Push { key: key.clone(), len: LEN, versions: versions.clone(), pace, to })?;
    receiver.tell(WorkerTask::Fetch { key, versions, turns: Some(turns) })?;
    let (pushed, fetched) = (sender.answer()?, receiver.answer()?);
    Ok(latencies_us(&pushed.times(), &fetched.times()).into_iter().skip(WARM_UP).collect())
}

/// Returns the times of messages of `len` bytes over TCP between two processes that relay them, in microseconds.
pub(super) fn relays(bench: &Bench, len: u64, count: u64) -> Result<Vec<f64>, BenchError> {
    let path = |what| bench.stage.new_path(what);
    let (from, to, turns) = (path("from"), path("to"), path("turns"));
    let actor = |name| bench.stage.actor(name);
    let (mut sender, mut out, mut back, mut receiver) =
        (actor("sender")?, actor("out")?, actor("in")?, actor("receiver")?);
    let Answer::Port(port) = back.ask(BareTask::Listen)? else { return Ok(Vec::new()) };
    let bytes = len as usize;
    back.tell(BareTask::RelayIn { to: to.clone(), bytes, count })?;
    out.tell(BareTask::RelayOut { from: from.clone(), port, bytes, count })?;
    sender.tell(BareTask::Send { to: from, count, pace: Pace { interval_ns: 0, turns: Some(turns.clone()) } })?;
    receiver.tell(BareTask::Receive { from: to, count, turns: Some(turns) })?;
    let (sent, received) = (sender.answer()?, receiver.answer()?);
    out.answer()?;
    back.answer()?;
    Ok(latencies_us(&sent.times(), &received.times()))
}
