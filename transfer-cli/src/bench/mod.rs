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
//! - [`figure`]: medians, comparisons, goals. [`fit`]: what an operation costs, and what its bytes do. [`usage`]: what processes have used.
//! - [`machine`]: where they were taken. [`clock`]: with what.

pub mod actor;
pub mod clock;
mod error;
pub mod figure;
pub mod fit;
pub mod machine;
pub mod stage;
pub mod suites;
pub mod usage;

pub use error::BenchError;

use clap::ValueEnum;
use figure::{Figure, Summary};
use indicatif::{ProgressBar, ProgressStyle};
use machine::Machine;
use serde_json::{Value, json};
use stage::Stage;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use suites::sweep::{self, Sweep};
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
    /// For the suite sweep.
    #[command(flatten)]
    pub sweep: sweep::SweepOptions,
}

/// A group of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Two workers of one sidecar, both asleep and then both polling, one message each millisecond
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
    /// What listings and metrics take with a million tensors, and what the times of transfers cost
    Watching,
    /// What a sidecar takes that has nothing to do, and for a million tensors
    Idle,
    /// Tensors of 4 KiB to 1 GiB at every place: latency, rate, what they take of CPUs, and the model that fits them
    Sweep,
}

/// What a suite found.
enum Found {
    Figures(Vec<Figure>),
    Sweep(Sweep),
}

impl Found {
    fn json(&self, suite: Suite) -> Value {
        match self {
            Found::Figures(figures) => {
                let summaries: Vec<Summary<'_>> = figures.iter().map(Figure::summary).collect();
                json!({ "suite": suite.name(), "figures": summaries })
            }
            Found::Sweep(sweep) => json!({ "suite": suite.name(), "places": sweep.json() }),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Figures(figures) => write!(f, "{}", figure::table(figures)),
            Found::Sweep(sweep) => write!(f, "{sweep}"),
        }
    }
}

impl Suite {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    fn run(self, bench: &Bench) -> Result<Found, BenchError> {
        let figures = match self {
            Suite::Sweep => return sweep::run(bench).map(Found::Sweep),
            Suite::Handover => suites::handover::run(bench),
            Suite::Lookup => suites::lookup::run(bench),
            Suite::Copyin => suites::copyin::run(bench),
            Suite::Tcp => suites::tcp::run(bench),
            Suite::Shm => suites::shm::run(bench),
            Suite::Latency => suites::latency::run(bench),
            Suite::Batch => suites::batch::run(bench),
            Suite::Columns => suites::columns::run(bench),
            Suite::Verbs => suites::verbs::run(bench),
            Suite::Watching => suites::watching::run(bench),
            Suite::Idle => suites::idle::run(bench),
        };
        figures.map(Found::Figures)
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
    /// What the sweep was told.
    pub sweep: sweep::SweepOptions,
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
    if options.sweep.are_given() && !options.suites.is_empty() && !options.suites.contains(&Suite::Sweep) {
        let why = "--min, --max and --svg are for the suite sweep, which is not among those that were named";
        return Err(BenchError::Sweep { why: why.to_owned() });
    }
    listen_for_interruption()?;
    let stage = Stage::new(options.transferd.clone(), &options.poll)?;
    let runs = if options.quick { options.runs.min(2) } else { options.runs };
    let style =
        ProgressStyle::with_template("{spinner} {prefix}: {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let progress = ProgressBar::new_spinner().with_style(style);
    progress.enable_steady_tick(Duration::from_millis(500));
    let bench = Bench { stage, runs, quick: options.quick, sweep: options.sweep.clone(), progress };

    let machine = Machine::look();
    let command: Vec<String> = std::env::args().collect();
    let command = command.join(" ");
    if !options.json {
        transfer_terminal::outln!("command  {command}\n{machine}");
        transfer_terminal::outln!(
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
            Ok(found) if options.json => measured.push(found.json(*suite)),
            Ok(found) => bench.progress.suspend(|| transfer_terminal::outln!("{}\n{found}", suite.name())),
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
        transfer_terminal::outln!("{all:#}");
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
