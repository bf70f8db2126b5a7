//! What looking at a sidecar costs: a page of a listing and a scrape of its metrics while a million tensors are published, and how many
//! tensors move with the times that are taken for the metrics beside how many without.

use super::batch::Pair;
use super::{MIB, worker};
use crate::admin::{Address, Target, TlsOptions};
use crate::bench::actor::worker::WorkerTask;
use crate::bench::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::bench::stage::Sidecar;
use crate::bench::{Bench, BenchError};
use crate::units;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;
use transfer_proto::v1::TensorsRequest;

/// Looks of each kind in a run.
const LOOKS: usize = 20;

/// Measures.
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
        (size, Figure::alone(format!("{what} of {name} tensors, p50"), Unit::Micros, Goal::AtMost(10_000.0)))
    };
    let mut pages = [page("a page of 100", 100), page("a page of 1,000", 1000)];
    let what = format!("a scrape of the metrics with {name} tensors, p50");
    let mut scrape = Figure::alone(what, Unit::Micros, Goal::AtMost(100_000.0));
    for run in 1..=bench.runs {
        bench.says(format!("looks: run {run} of {}", bench.runs));
        for (size, figure) in &mut pages {
            figure.run(percentile(&mut page_times(&node, *size)?, 50.0));
        }
        let times = (0..LOOKS).map(|_| scrape_time(&node));
        scrape.run(percentile(&mut times.collect::<Result<Vec<f64>, BenchError>>()?, 50.0));
    }
    let [(_, small), (_, large)] = pages;
    Ok(vec![small, large, scrape])
}

/// How long pages took, one after the other from the first on, each as a client sees it, in microseconds.
fn page_times(node: &Sidecar, page_size: u32) -> Result<Vec<f64>, BenchError> {
    let what = "ask a sidecar for its tensors";
    let failed = |why: String| BenchError::Status { why };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(BenchError::system(what))?.block_on(async {
        let target = Target { admin: Address::Tcp(node.url.clone()), tls: TlsOptions::default() };
        let mut admin = target.connect().await.map_err(|e| failed(e.to_string()))?;
        let (mut times, mut page_token) = (Vec::new(), String::new());
        for _ in 0..LOOKS {
            let request = TensorsRequest { page_size, page_token, ..TensorsRequest::default() };
            let started = Instant::now();
            let page = admin.tensors(request).await.map_err(|e| failed(e.to_string()))?.into_inner();
            times.push(started.elapsed().as_secs_f64() * 1e6);
            if page.tensors.len() != page_size as usize {
                return Err(failed(format!("a page of {page_size} tensors has {}", page.tensors.len())));
            }
            page_token = page.next_page_token;
        }
        Ok(times)
    })
}

/// How long a scrape took, connecting included, in microseconds.
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

/// Tensors a second between two workers, with the times and without, in turns.
fn times(bench: &Bench) -> Result<Figure, BenchError> {
    let what = "4 KiB tensors of two workers, with the times of the metrics beside without";
    let mut figure = Figure::beside(what, Unit::TensorsPerSecond, Versus::Ratio, Goal::AtLeast(0.98));
    let (with, without) =
        (bench.stage.sidecar("with", None, &[])?, bench.stage.sidecar("without", None, &["--no-timings"])?);
    let mut with = Pair::start(bench, "with", &with, &with, false)?;
    let mut without = Pair::start(bench, "without", &without, &without, false)?;
    for run in 1..=bench.runs {
        bench.says(format!("times: run {run} of {}", bench.runs));
        // Who is first has the warmer machine, or the colder one.
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
