//! `transferctl bench`: what the system reaches, beside what the machine gives.
//!
//! Each suite starts its own sidecars ([`stage`]) and its own worker processes, which are this program again ([`actor`]), in a temporary
//! directory. A run measures the system and then its baseline; what is reported are medians over the runs. Whatever happens, no process
//! and no socket stays behind: every process is tied to this one, and every wait has an end.
//!
//! # Layout
//! - [`suites`]: what is measured, and how.
//! - [`actor`]: the processes: workers, and the baselines' bare ones.
//! - [`stage`]: starting them, asking them, ending them.
//! - [`figure`]: medians, comparisons, goals. [`machine`]: where they were taken. [`clock`]: with what.

pub mod actor;
pub mod clock;
mod error;
pub mod figure;
pub mod machine;
pub mod stage;
pub mod suites;

pub use error::BenchError;

use clap::ValueEnum;
use figure::{Figure, Summary};
use indicatif::{ProgressBar, ProgressStyle};
use machine::Machine;
use serde_json::json;
use stage::Stage;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// What `transferctl bench` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which suites; all of them where none is named
    #[arg(value_enum)]
    pub suites: Vec<Suite>,
    /// How often each measurement is made
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Fewer and shorter runs: to see that it works
    #[arg(long)]
    pub quick: bool,
    /// The sidecar's program. Default: transferd beside this program
    #[arg(long, value_name = "PATH")]
    pub transferd: Option<PathBuf>,
    /// How the sidecars wait: transferd's --poll
    #[arg(long, default_value = "adaptive", value_parser = ["adaptive", "event", "busy"])]
    pub poll: String,
    /// As JSON, with every run
    #[arg(long)]
    pub json: bool,
}

/// A group of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Two workers of one sidecar, both asleep, one message each millisecond
    Handover,
    /// Fetches of what is published on the same host
    Lookup,
    /// Copying memory from outside the arena into it
    Copyin,
    /// 64 MiB tensors between two sidecars, over TCP
    Tcp,
    /// 64 MiB and 4 KiB between two sidecars of one host, through shared memory
    Shm,
    /// 4 KiB between two sidecars over TCP, one in flight
    Latency,
    /// Many 4 KiB tensors at once, on one host and over TCP
    Batch,
    /// A record batch of 40 columns and 64 MiB beside a dense tensor of that size, on one host and over TCP
    Columns,
    /// 1 MiB between two sidecars over RDMA, and what the device is asked to do; needs a device, and perftest
    Verbs,
    /// What a sidecar takes that has nothing to do, and for a million tensors
    Idle,
}

impl Suite {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    fn run(self, bench: &Bench) -> Result<Vec<Figure>, BenchError> {
        match self {
            Suite::Handover => suites::handover::run(bench),
            Suite::Lookup => suites::lookup::run(bench),
            Suite::Copyin => suites::copyin::run(bench),
            Suite::Tcp => suites::tcp::run(bench),
            Suite::Shm => suites::shm::run(bench),
            Suite::Latency => suites::latency::run(bench),
            Suite::Batch => suites::batch::run(bench),
            Suite::Columns => suites::columns::run(bench),
            Suite::Verbs => suites::verbs::run(bench),
            Suite::Idle => suites::idle::run(bench),
        }
    }

    /// Why it cannot be measured on this host.
    fn lacks(self) -> Option<String> {
        match self {
            Suite::Verbs => match transfer_verbs::devices() {
                Ok(devices) if devices.is_empty() => Some("this host has no RDMA device".to_owned()),
                Ok(_) => None,
                Err(e) => Some(e.to_string()),
            },
            _ => None,
        }
    }
}

/// What the suites have in common.
#[derive(Debug)]
pub struct Bench {
    /// Where processes are started.
    pub stage: Stage,
    /// How often each measurement is made.
    pub runs: u32,
    /// Whether to ask for less.
    pub quick: bool,
    progress: ProgressBar,
}

impl Bench {
    /// Says what is going on, to whoever watches.
    pub fn says(&self, text: impl Into<String>) {
        self.progress.set_message(text.into());
    }

    /// `long`, or `short` where little is asked for.
    #[must_use]
    pub fn pick<T>(&self, long: T, short: T) -> T {
        if self.quick { short } else { long }
    }
}

/// Measures and prints.
///
/// # Errors
/// [`BenchError`] for the first suite that fails; those before it are printed.
pub fn run(options: &Options) -> Result<(), BenchError> {
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
        crate::output::outln!("command  {command}\n{machine}");
        crate::output::outln!(
            "runs     {runs}; medians, and the system's run against the baseline's of the same round\n"
        );
    }
    let all = options.suites.is_empty();
    let suites = if all { Suite::value_variants() } else { &options.suites };
    let mut measured = Vec::new();
    let mut result = Ok(());
    for suite in suites {
        bench.progress.set_prefix(suite.name());
        if let Some(why) = suite.lacks().filter(|_| all) {
            eprintln!("{}: not measured: {why}", suite.name());
            continue;
        }
        match suite.run(&bench) {
            Ok(figures) if options.json => {
                let summaries: Vec<Summary<'_>> = figures.iter().map(Figure::summary).collect();
                measured.push(json!({ "suite": suite.name(), "figures": summaries }));
            }
            Ok(figures) => {
                bench.progress.suspend(|| crate::output::outln!("{}\n{}", suite.name(), figure::table(&figures)))
            }
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
        crate::output::outln!("{all:#}");
    }
    result
}

/// SIGINT, SIGTERM and SIGHUP end the waiting, and so the run, in order.
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
        stage::INTERRUPTED.store(true, Ordering::Relaxed);
    };
    // It ends with the process.
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(BenchError::system(what))?;
    Ok(())
}
