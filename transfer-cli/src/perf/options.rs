//! The command line of `perf`: perftest's names, as far as the flags mean the same.

use super::sweep::Axes;
use super::terms::Setup;
use clap::builder::RangedU64ValueParser;
use std::net::IpAddr;
use std::path::PathBuf;
use transfer_terminal::units;

/// The port on which a server listens, as perftest's.
const PORT: u16 = 18515;

/// The options of `transferctl perf`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_long_help = "Without HOST it is the server: it serves one client, then ends. The client's flags say what is measured; \
                             a server takes its own --ib-dev, --ib-port, --gid-index and --events."
)]
pub struct Options {
    /// What is set up.
    #[command(flatten)]
    pub setup: Setup,
    /// The host where the server runs; without it this is the server
    pub host: Option<String>,
    /// Bytes of a message: 65536, 64KiB. Default: 65536 for bw (1024 over UD), 2 for lat, 8 for atomic
    #[arg(short, long, value_name = "SIZE", value_parser = units::size)]
    pub size: Option<u64>,
    /// All sizes, in powers of two from 2 bytes to 8 MiB, or to the longest message
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Messages of each queue pair. Default: 5000 for write bw, 1000 for all else
    #[arg(short = 'n', long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000))]
    pub iters: Option<u64>,
    /// Measure for that many seconds instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with_all = ["iters", "all", "sweep"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub duration: Option<u32>,
    /// One completion for that many messages. Default: 100 up to 8 KiB, 1 above; no more than --tx-depth
    #[arg(short = 'Q', long = "cq-mod", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub cq_mod: Option<u32>,
    /// Accepted because perftest has it; the processor's frequency is not looked at
    #[arg(short = 'F', long = "CPU-freq")]
    pub cpu_freq: bool,
    /// Vary two of size, inline, post-list, cq-mod, events, qp and verb, each with its values or its usual ones:
    /// size=64/4096,events
    #[arg(long, value_name = "AXIS,AXIS", conflicts_with_all = ["size", "all"])]
    pub sweep: Option<Axes>,
    /// With --sweep: measure all of it that many times, and keep the best of each point
    #[arg(long, value_name = "N", default_value_t = 1, requires = "sweep")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// With --sweep: draw it into this file
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub svg: Option<PathBuf>,
    /// The device
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME")]
    pub ib_dev: Option<String>,
    /// The device's port. Default: the first active one
    #[arg(short = 'i', long = "ib-port", value_name = "N")]
    pub ib_port: Option<u8>,
    /// The entry of the port's table of GIDs. Default: the first that is RoCE v2 over IPv4
    #[arg(short = 'x', long = "gid-index", value_name = "N")]
    pub gid_index: Option<u32>,
    /// The TCP port of the server
    #[arg(short, long, value_name = "PORT", default_value_t = PORT)]
    pub port: u16,
    /// The server's address; 0.0.0.0 or :: for all. Without it, only this host can connect
    #[arg(long, value_name = "ADDRESS", conflicts_with = "host")]
    pub listen: Option<IpAddr>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}
