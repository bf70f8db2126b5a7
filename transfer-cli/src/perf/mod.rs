//! `transferctl perf`: rates and times of RDMA operations between two hosts, as perftest measures them. It needs no
//! sidecar.
//!
//! A server serves one client. They agree over TCP, connect their queue pairs, and measure: the client sends, and the
//! server answers where the operation does not do so by itself. After each run both check the bytes that have arrived.
//!
//! # Layout
//! - `options`: the command line; `plan`, `sweep`: what it asks for. `terms`: the terms of a test, with all checks.
//! - `message`, `control`: what the two ends say to each other. `client`, `server`: who says what, and when.
//! - `rig`: an end with its objects; `memory`, `kinds` (queue pairs), `room` (their places), `cm` (librdmacm), `prepare`:
//!   its parts.
//! - `bandwidth`, `latency`: the two loops that are measured; `wait`: how they wait.
//! - `figures`: the numbers; `report`, `chart`: how they are shown. `error`: errors.

mod bandwidth;
mod chart;
mod client;
mod cm;
mod control;
pub mod error;
mod figures;
mod kinds;
mod latency;
mod memory;
pub mod message;
pub mod options;
mod plan;
mod prepare;
mod report;
mod rig;
mod room;
mod server;
pub mod sweep;
pub mod terms;
mod wait;

use client::{Client, Row};
use error::PerfError;
pub use options::Options;
use plan::Plan;
use serde_json::{Value, json};
use sweep::Axes;
use terms::{Kind, Setup};
use transfer_terminal::{out, outln};
use transfer_verbs::choose::{self, Chosen, Wanted};

/// Measures as a client, or serves one.
///
/// # Errors
/// [`PerfError`].
pub fn run(options: &Options) -> Result<(), PerfError> {
    // What cannot be is refused on a host without a device, too.
    let plan = Plan::new(options, None)?;
    let points = options.sweep.as_ref().map(|axes| sweep::points(options, axes)).transpose()?;
    let wanted = Wanted { device: options.ib_dev.clone(), port: options.ib_port, gid_index: options.gid_index };
    let chosen = choose::port(&wanted)?;
    let Some(host) = &options.host else { return server::run(options, &chosen) };
    match (&options.sweep, points) {
        (Some(axes), Some(points)) => run_sweep(options, host, &chosen, axes, &points, &plan),
        _ => {
            let mtu = options.setup.mtu.unwrap_or(chosen.port.mtu_active.len_bytes());
            let most = if options.setup.kind == Kind::UD { mtu } else { chosen.port.max_message_bytes };
            run_plan(options, host, &chosen, &Plan::new(options, Some(most.into()))?)
        }
    }
}

fn run_plan(options: &Options, host: &str, chosen: &Chosen, plan: &Plan) -> Result<(), PerfError> {
    let mut client = Client::connect(options, host, chosen)?;
    let mut rows: Vec<(Setup, Row)> = Vec::new();
    for (setup, size) in &plan.steps {
        if !options.json && rows.is_empty() {
            out!("{}", report::head(setup, chosen));
        }
        let row = client.measure(setup, *size, plan.messages, plan.seconds)?;
        if !options.json {
            out!("{}", report::line(&row));
        }
        rows.push((setup.clone(), row));
    }
    client.end()?;
    if options.json {
        let results: Vec<_> = rows.iter().map(|(setup, row)| report::value(setup, row)).collect();
        print_json(chosen, &results);
    }
    Ok(())
}

fn run_sweep(
    options: &Options,
    host: &str,
    chosen: &Chosen,
    axes: &Axes,
    points: &[sweep::Point],
    plan: &Plan,
) -> Result<(), PerfError> {
    // Before the measurements, so that an error of the file is reported at once.
    let file = options.svg.as_deref().map(chart::File::begin).transpose()?;
    let mut client = Client::connect(options, host, chosen)?;
    let mut rows: Vec<Row> = Vec::new();
    // All points take turns, so that a slow minute of the machine does not fall on one of them.
    for round in 0..options.rounds {
        for (place, point) in points.iter().enumerate() {
            if !options.json && round == 0 && place == 0 {
                out!("{}", report::head(&point.setup, chosen));
            }
            let row = client.measure(&point.setup, point.setup.max_size, plan.messages, plan.seconds)?;
            if !options.json {
                let axes = [(axes.1.parameter, point.line), (axes.0.parameter, point.x)];
                let words = axes.map(|(of, value)| of.word(value));
                outln!("{}   {}", report::line(&row).trim_end(), words.join(", "));
            }
            match rows.get_mut(place) {
                Some(best) if row.figures.is_better_than(&best.figures) => *best = row,
                Some(_) => {}
                None => rows.push(row),
            }
        }
    }
    client.end()?;
    if let Some(file) = file {
        let kernel = rustix::system::uname();
        let foot = format!(
            "{} port {}, Linux {}",
            chosen.context.device_name(),
            chosen.port.number,
            kernel.release().to_string_lossy()
        );
        file.finish(axes, points, &rows, foot)?;
    }
    if options.json {
        let results: Vec<_> = points.iter().zip(&rows).map(|(point, row)| report::value(&point.setup, row)).collect();
        print_json(chosen, &results);
    }
    Ok(())
}

fn print_json(chosen: &Chosen, results: &[Value]) {
    let (device, port) = (chosen.context.device_name(), chosen.port.number);
    outln!("{:#}", json!({ "device": device, "port": port, "results": results }));
}
