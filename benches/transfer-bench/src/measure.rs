//! Runs the suites that the command line names, one after the other, and prints their results.

use crate::arguments::Options;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::stage::{INTERRUPTED, Stage};
use crate::suite::Suite;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use transfer_terminal::{errln, outln};

/// Measures and prints.
///
/// # Errors
/// The [`BenchError`] of the first suite that fails; the results of the earlier ones are printed.
pub fn run(options: &Options) -> Result<(), BenchError> {
    check(options)?;
    listen_for_interruption()?;
    let stage = Stage::new(options.transferd.clone(), &options.poll)?;
    let runs = if options.quick { options.runs.min(2) } else { options.runs };
    let style =
        ProgressStyle::with_template("{spinner} {prefix}: {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let progress = ProgressBar::new_spinner().with_style(style);
    progress.enable_steady_tick(Duration::from_millis(500));
    let bench = Bench { stage, runs, quick: options.quick, progress };

    let machine = Machine::look();
    let command: Vec<String> = std::env::args().collect();
    let command = command.join(" ");
    if !options.json {
        outln!("command  {command}\n{machine}");
        outln!("runs     {runs}; medians, and the system's run against the baseline's of the same round\n");
    }
    let all = options.suites.is_empty();
    let suites = if all { Suite::value_variants() } else { &options.suites };
    let mut measured = Vec::new();
    let mut result = Ok(());
    for suite in suites {
        bench.progress.set_prefix(suite.name());
        if let Some(why) = suite.lacks().filter(|_| all) {
            errln!("{}: not measured: {why}", suite.name());
            continue;
        }
        match suite.run(&bench, &options.sweep) {
            Ok(found) if options.json => measured.push(found.json(*suite)),
            Ok(found) => bench.progress.suspend(|| outln!("{}\n{found}", suite.name())),
            Err(e) => {
                result = Err(e);
                break;
            }
        }
    }
    bench.progress.finish_and_clear();
    if options.json {
        let all =
            json!({ "command": command, "machine": machine, "runs": runs, "quick": options.quick, "suites": measured });
        outln!("{all:#}");
    }
    result
}

/// Whether the options belong to the suites that are named.
fn check(options: &Options) -> Result<(), BenchError> {
    let wrong = |why: &str| Err(BenchError::Sweep { why: why.to_owned() });
    let is_named = |suite| options.suites.contains(&suite);
    if options.sweep.have_lengths() && !options.suites.is_empty() && !is_named(Suite::Sweep) {
        return wrong("--min and --max are for the suite sweep, which is not among those that were named");
    }
    if options.sweep.svg.is_some() && is_named(Suite::Sweep) == is_named(Suite::Scale) {
        return wrong("--svg is the file of one chart: name the suite sweep or the suite scale, and not both");
    }
    Ok(())
}

/// Sets a flag at SIGINT, SIGTERM or SIGHUP, which ends all waits, and so the run, in order.
fn listen_for_interruption() -> Result<(), BenchError> {
    let what = "listen for signals";
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::system(what))?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(BenchError::system(what))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(BenchError::system(what))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(BenchError::system(what))?;
    drop(entered);
    let listen = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        INTERRUPTED.store(true, Ordering::Relaxed);
    };
    // The thread ends with the process.
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(BenchError::system(what))?;
    Ok(())
}
