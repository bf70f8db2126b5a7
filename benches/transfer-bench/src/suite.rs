//! The list of suites, with their names and functions.

use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{self, Figure, Summary};
use crate::suites;
use crate::suites::scale::Scale;
use crate::suites::sweep::{self, Sweep, SweepOptions};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt;

/// A group of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Two workers of one sidecar, both asleep and then both polling, one message each millisecond
    Handover,
    /// Fetches of tensors that are published on the same host
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
    /// A bundle of 100,000 tensors of 1 KiB beside one tensor of as many bytes, on one host and over TCP
    Bundles,
    /// A block [4096, 64] of a matrix [8192, 8192] of 32-bit floats beside a contiguous MiB, over TCP
    Slices,
    /// A sharded state of 1 GiB, from eight ranks to two readers in other layouts, beside its bytes as they lie, over TCP
    Reshard,
    /// 2 GB of records, partitioned and read by four workers at two sidecars, through shared memory and over TCP
    Exchange,
    /// 1 MiB between two sidecars over RDMA, and the device's work requests; needs a device, and perftest
    Verbs,
    /// Fetched tensors of 1 MiB to 1 GiB to a GPU and back; needs a GPU
    Gpu,
    /// The cost of listings and metrics with a million tensors, and of measuring the times of transfers
    Watching,
    /// The cost of a sidecar with nothing to do, and with a million tensors
    Idle,
    /// Tensors of 4 KiB to 1 GiB at every place: latency, rate, processor time, and the model that fits them
    Sweep,
    /// The data plane's time for a tensor among more and more workers, keys, links and waiting fetches
    Scale,
}

/// The result of a suite.
#[derive(Debug)]
pub enum Found {
    /// Figures, with their baselines.
    Figures(Vec<Figure>),
    /// The results of a sweep.
    Sweep(Sweep),
    /// The costs along the axes of scale.
    Scale(Scale),
}

impl Found {
    /// The result as JSON, with every run.
    #[must_use]
    pub fn json(&self, suite: Suite) -> Value {
        match self {
            Found::Figures(figures) => {
                let summaries: Vec<Summary<'_>> = figures.iter().map(Figure::summary).collect();
                json!({ "suite": suite.name(), "figures": summaries })
            }
            Found::Sweep(sweep) => json!({ "suite": suite.name(), "places": sweep.json() }),
            Found::Scale(scale) => json!({ "suite": suite.name(), "axes": scale.json() }),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Figures(figures) => write!(f, "{}", figure::table(figures)),
            Found::Sweep(sweep) => write!(f, "{sweep}"),
            Found::Scale(scale) => write!(f, "{scale}"),
        }
    }
}

impl Suite {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Runs the suite. `options` applies to the suite sweep, and the chart's file also to scale.
    ///
    /// # Errors
    /// Any [`BenchError`].
    pub fn run(self, bench: &Bench, options: &SweepOptions) -> Result<Found, BenchError> {
        let figures = match self {
            Suite::Sweep => return sweep::run(bench, options).map(Found::Sweep),
            Suite::Scale => return suites::scale::run(bench, options.svg.as_deref()).map(Found::Scale),
            Suite::Handover => suites::handover::run(bench),
            Suite::Lookup => suites::lookup::run(bench),
            Suite::Copyin => suites::copyin::run(bench),
            Suite::Tcp => suites::tcp::run(bench),
            Suite::Shm => suites::shm::run(bench),
            Suite::Latency => suites::latency::run(bench),
            Suite::Batch => suites::batch::run(bench),
            Suite::Columns => suites::columns::run(bench),
            Suite::Bundles => suites::bundles::run(bench),
            Suite::Slices => suites::slices::run(bench),
            Suite::Reshard => suites::reshard::run(bench),
            Suite::Exchange => suites::exchange::run(bench),
            Suite::Verbs => suites::verbs::run(bench),
            Suite::Gpu => suites::gpu::run(bench),
            Suite::Watching => suites::watching::run(bench),
            Suite::Idle => suites::idle::run(bench),
        };
        figures.map(Found::Figures)
    }

    /// The reason why the suite cannot run on this host, if there is one.
    #[must_use]
    pub fn lacks(self) -> Option<String> {
        match self {
            Suite::Verbs => match transfer_verbs::devices() {
                Ok(devices) if devices.is_empty() => Some("this host has no RDMA device".to_owned()),
                Ok(_) => None,
                Err(e) => Some(e.to_string()),
            },
            Suite::Gpu => transfer_cuda::devices().err().map(|why| why.to_string()),
            _ => None,
        }
    }
}
