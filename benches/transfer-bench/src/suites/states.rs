//! States that are fetched into parts of a tensor of the reader: 500 MB in 300 tensors, from another node over TCP, into the memory of a worker
//! with a sidecar inside, beside a bare socket; the same on one host, beside memcpy; and 1 GiB in 64 tensors between two nodes with
//! default settings, pushed from memory outside of the arena, beside memcpy.

use super::{GIB, MIB, gigabytes_per_second, pair, tcp, worker};
use crate::actor::answer::Answer;
use crate::actor::bare::BareTask;
use crate::actor::states::{State, States};
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::Actor;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub(super) fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = many(bench)?;
    figures.extend(large(bench)?);
    Ok(figures)
}

/// 500 MB in 300 tensors.
fn many(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let of = State { count: 300, elements: bench.pick(416_000, 41_600), version: 0 };
    let arena = of.len_bytes() + 32 * MIB;
    let (mut sender, url) = embed(bench, "sender", None, 4 * arena)?;
    let (mut far, _) = embed(bench, "far", Some(&url), arena)?;
    let rate = |what: &str| Figure::beside(what, Unit::GigabytesPerSecond, Versus::Ratio, Goal::AtLeast(0.95));
    let mut remote = rate("500 MB in 300 tensors into the memory of an embedded worker, over TCP");
    let mut copied = Figure::alone("  copied by a CPU, per byte", Unit::Each, Goal::Open);
    let mut local = rate("the same on one host");
    let mut version = 0;
    for run in 0..bench.runs {
        bench.says(format!("states, run {} of {}", run + 1, bench.runs));
        let (mut of_remote, mut of_local) = (Vec::new(), Vec::new());
        // The first round makes names and memory known, and is not measured.
        for round in 0..=bench.pick(5, 1) {
            version += 1;
            let of = State { version, ..of };
            sender.ask(WorkerTask::States(States::Push { of, in_arena: true }))?;
            let (took, further) = times(&mut far, States::Into { of })?;
            // It is its own reader, and copies once.
            let (here, _) = times(&mut sender, States::Into { of })?;
            if round > 0 {
                of_remote.push(gigabytes_per_second(of.len_bytes(), took));
                of_local.push(gigabytes_per_second(of.len_bytes(), here));
                copied.run(further as f64 / of.len_bytes() as f64);
            }
        }
        let bare = tcp::bare(bench, 1, of.len_bytes(), bench.pick(5, 1))?;
        remote.run_beside(percentile(&mut of_remote, 50.0), bare);
        let copy = memcpy_ns(bench, of.len_bytes())?;
        local.run_beside(percentile(&mut of_local, 50.0), gigabytes_per_second(of.len_bytes(), copy));
    }
    Ok(vec![remote, copied, local])
}

/// 1 GiB in 64 tensors.
fn large(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let of = State { count: 64, elements: bench.pick(4 * MIB, MIB / 4), version: 0 };
    let (a, b) = pair(&bench.stage, &[])?;
    let mut sender = worker(&bench.stage, &a, "sender", 2 * of.len_bytes() + 64 * MIB)?;
    let mut far = worker(&bench.stage, &b, "far", of.len_bytes() + 64 * MIB)?;
    let what = "1 GiB in 64 tensors, pushed and fetched into memory, over TCP";
    let mut figure = Figure::beside(what, Unit::Micros, Versus::Ratio, Goal::AtMost(2.5));
    let mut version = 0;
    for run in 0..bench.runs {
        bench.says(format!("a large state, run {} of {}", run + 1, bench.runs));
        let mut took = Vec::new();
        for round in 0..=bench.pick(3, 1) {
            version += 1;
            let of = State { version, ..of };
            let (pushed, _) = times(&mut sender, States::Push { of, in_arena: false })?;
            let (fetched, _) = times(&mut far, States::Into { of })?;
            if round > 0 {
                took.push((pushed + fetched) as f64 / 1e3);
            }
        }
        figure.run_beside(percentile(&mut took, 50.0), memcpy_ns(bench, of.len_bytes())? as f64 / 1e3);
    }
    Ok(vec![figure])
}

/// How long a task took, and how many bytes were copied.
fn times(actor: &mut Actor, task: States) -> Result<(u64, u64), BenchError> {
    match actor.ask(WorkerTask::States(task))? {
        Answer::Times { ns, copied } if let [started, ended] = ns[..] => Ok((ended - started, copied)),
        _ => Err(BenchError::Task { name: "states".into(), why: "it answered with no two moments".into() }),
    }
}

/// How long one thread copies so many bytes to memory that was touched, in nanoseconds.
fn memcpy_ns(bench: &Bench, len: u64) -> Result<u64, BenchError> {
    let mut copier = bench.stage.actor("copier")?;
    let task = BareTask::Copy { len: len.min(GIB) as usize, buffers: 1, rounds: bench.pick(5, 2), threads: 1 };
    let mut ns: Vec<f64> = copier.ask(task)?.times().into_iter().map(|ns| ns as f64).collect();
    Ok(percentile(&mut ns, 50.0) as u64)
}

/// Starts a worker with a sidecar inside of its process. Returns the address of the sidecar.
fn embed(bench: &Bench, name: &str, directory: Option<&str>, arena_bytes: u64) -> Result<(Actor, String), BenchError> {
    let mut settings = vec![("listen", "127.0.0.1:0"), ("require", "tcp"), ("verbs", "off"), ("lock", "no")];
    settings.extend([("pool_bytes", "64MiB"), ("pinned_limit", "4GiB")]);
    settings.extend(directory.map(|url| ("directory", url)));
    let settings = settings.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let mut actor = bench.stage.actor(name)?;
    match actor.ask(WorkerTask::Embed { settings, name: name.to_owned(), arena_bytes, spin: None })? {
        Answer::Listens(Some(address)) => Ok((actor, format!("http://{address}"))),
        said => Err(BenchError::Unexpected { name: name.to_owned(), said: format!("{said:?}") }),
    }
}
