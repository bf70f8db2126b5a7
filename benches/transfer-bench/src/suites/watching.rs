//! The cost of observing a sidecar: a page of a listing and a scrape of its metrics while a million tensors are
//! published, and the rate of tensors with and without the times for the metrics.

use super::batch::Pair;
use super::{MIB, worker};
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::Sidecar;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;
use transfer_proto::v1::TensorsRequest;
use transfer_terminal::units;

/// The number of pages, and of scrapes, of a run.
const READS_PER_RUN: usize = 20;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = looks(bench)?;
    figures.push(times(bench)?);
    Ok(figures)
}

fn looks(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let count: u64 = bench.pick(1_000_000, 100_000);
    let node = bench.stage.sidecar("node", None, &["--pool-bytes", "1MiB", "--http-listen", "127.0.0.1:0"])?;
    bench.says(format!("{} tensors", units::count(count)));
    let mut publisher = worker(&bench.stage, &node, "publisher", count * 64 + 16 * MIB)?;
    publisher.ask(WorkerTask::Publish { count })?;
    let name = units::count(count);
    let page = |what: &str, size: u32| {
        let time =
            Figure::alone(format!("a page of {what} of {name} tensors, p50"), Unit::Micros, Goal::AtMost(10_000.0));
        // A sidecar ends a page early if it takes long.
        (size, time, Figure::alone("  tensors on it", Unit::Each, Goal::Open))
    };
    let mut pages = [page("100", 100), page("1,000", 1000)];
    let what = format!("a scrape of the metrics with {name} tensors, p50");
    let mut scrape = Figure::alone(what, Unit::Micros, Goal::AtMost(100_000.0));
    for run in 1..=bench.runs {
        bench.says(format!("looks: run {run} of {}", bench.runs));
        for (size, time, found) in &mut pages {
            let (mut times, tensors) = page_times(&node, *size)?;
            time.run(percentile(&mut times, 50.0));
            found.run(tensors as f64 / times.len() as f64);
        }
        let times = (0..READS_PER_RUN).map(|_| scrape_time(&node));
        scrape.run(percentile(&mut times.collect::<Result<Vec<f64>, BenchError>>()?, 50.0));
    }
    let pages = pages.into_iter().flat_map(|(_, time, found)| [time, found]);
    Ok(pages.chain([scrape]).collect())
}

/// Returns the times of consecutive pages, from the first one on, as a client sees them, in microseconds, and the
/// number of tensors on all of them.
fn page_times(node: &Sidecar, page_size: u32) -> Result<(Vec<f64>, usize), BenchError> {
    let what = "ask a sidecar for its tensors";
    let failed = |why: String| BenchError::Status { why };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(BenchError::system(what))?.block_on(async {
        let mut admin = node.admin().await?;
        let (mut times, mut tensors, mut page_token) = (Vec::new(), 0, String::new());
        for _ in 0..READS_PER_RUN {
            let request = TensorsRequest { page_size, page_token, ..TensorsRequest::default() };
            let started = Instant::now();
            let page = admin.tensors(request).await.map_err(|e| failed(e.to_string()))?.into_inner();
            times.push(started.elapsed().as_secs_f64() * 1e6);
            tensors += page.tensors.len();
            page_token = page.next_page_token;
        }
        Ok((times, tensors))
    })
}

/// Returns the time of a scrape, connecting included, in microseconds.
fn scrape_time(node: &Sidecar) -> Result<f64, BenchError> {
    let what = "scrape a sidecar's metrics";
    let started = Instant::now();
    let address = node.http.as_deref().unwrap_or_default();
    let mut stream = TcpStream::connect(address).map_err(BenchError::system(what))?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(BenchError::system(what))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(BenchError::system(what))?;
    let took = started.elapsed().as_secs_f64() * 1e6;
    match answer.starts_with("HTTP/1.1 200") && answer.contains("# TYPE") {
        true => Ok(took),
        false => Err(BenchError::Status { why: answer.lines().next().unwrap_or("no answer").to_owned() }),
    }
}

/// Measures the rate of tensors between two workers, with the times and without, in turns.
fn times(bench: &Bench) -> Result<Figure, BenchError> {
    let what = "4 KiB tensors of two workers, with the times of the metrics beside without";
    let mut figure = Figure::beside(what, Unit::TensorsPerSecond, Versus::Ratio, Goal::AtLeast(0.98));
    let (with, without) =
        (bench.stage.sidecar("with", None, &[])?, bench.stage.sidecar("without", None, &["--no-timings"])?);
    let mut with = Pair::start(bench, "with", &with, &with, false)?;
    let mut without = Pair::start(bench, "without", &without, &without, false)?;
    for run in 1..=bench.runs {
        bench.says(format!("times: run {run} of {}", bench.runs));
        // The order changes with each run, because the machine may be warmer or colder for the second one.
        let (ours, baseline) = match run % 2 {
            0 => (with.rate(bench)?, without.rate(bench)?),
            _ => {
                let baseline = without.rate(bench)?;
                (with.rate(bench)?, baseline)
            }
        };
        figure.run_beside(ours, baseline);
    }
    Ok(figure)
}
