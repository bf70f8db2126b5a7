//! What `transferctl push` may be told.

use super::Worker;
use super::story::Telling;
use std::path::PathBuf;
use std::time::Duration;
use transfer_client::{DType, Until};
use transfer_terminal::units::{duration, size};

/// What a file is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Elements, row-major and little-endian, and nothing else.
    Raw,
    /// A safetensors file.
    Safetensors,
}

/// What `transferctl push` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which sidecar, and as whom.
    #[command(flatten)]
    pub worker: Worker,
    /// What to publish, behind the key or prefix: KEY FILE publishes a file under that key, KEY - the standard input. A safetensors file
    /// becomes its tensors under PREFIX/NAME, a directory each of its files under PREFIX/relative/path, and several files lie under
    /// PREFIX/name. One PATH alone has its own name as key or prefix; with --prefix all words are paths
    #[arg(value_names = ["KEY|PREFIX", "PATH"], required = true)]
    pub words: Vec<PathBuf>,
    /// Publish all of it below this
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// What files are. Default: safetensors where the name ends so, else raw
    #[arg(long)]
    pub format: Option<Format>,
    /// Leave out symbolic links, pipes, sockets and devices below a directory; without this they are refused
    #[arg(long)]
    pub skip_special: bool,
    /// The element type of a raw file: bool, i8 to u64, f16, bf16, f32, f64, c64, f8e4m3, f8e5m2. Default: u8
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    pub dtype: Option<DType>,
    /// The dimensions of a raw file, outermost first: 64,128. Default: one dimension, as long as the file
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub shape: Option<Vec<u64>>,
    /// The version; it must be above the key's last one. Default: the last one plus one
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
    /// Land it at this worker's sidecar
    #[arg(long, value_name = "WORKER")]
    pub to: Option<String>,
    /// End after this long. A tensor lives as long as the worker that pushed it, so without --hold this waits until it is interrupted
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub hold: Option<Duration>,
    /// Until what it stays: `replaced` by a newer version, `deleted`, or `fetched:N` times
    #[arg(long, value_name = "WHAT", default_value = "replaced", value_parser = until)]
    pub until: Until,
    /// It stays when this ends, which it does at once: until the sidecar does
    #[arg(long, conflicts_with = "hold")]
    pub outlive: bool,
    /// Take the key from the worker that owns it
    #[arg(long)]
    pub takeover: bool,
    /// Let workers of these tenants fetch it, too: user ids, or names of the sidecar's --tenants
    #[arg(long, value_name = "TENANT,...", value_delimiter = ',')]
    pub readable_by: Vec<String>,
    /// The memory to publish from. Default: as much as all of it takes, from several workers where one may not have so much; a file that is larger
    /// than that goes in pieces. With less it goes in turns, which needs --to or --until fetched:N:
    /// else nothing would make room
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub arena_bytes: Option<u64>,
    /// How long each push may take, and waiting for room in the arena
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
    /// Fetch each tensor back, read its file again, and compare
    #[arg(long)]
    pub verify: bool,
    /// Write the BLAKE3 digest of each tensor's bytes there, for `fetch --check-digests`
    #[arg(long, value_name = "FILE")]
    pub write_digests: Option<PathBuf>,
    /// Replace the file of --write-digests if it exists
    #[arg(long, requires = "write_digests")]
    pub force: bool,
    /// How much is told.
    #[command(flatten)]
    pub telling: Telling,
}

fn dtype(text: &str) -> Result<DType, String> {
    let names = || DType::ALL.map(DType::name).join(", ");
    DType::from_name(text).ok_or_else(|| format!("an element type is one of {}", names()))
}

fn until(text: &str) -> Result<Until, String> {
    match (text, text.strip_prefix("fetched:")) {
        ("replaced", _) => Ok(Until::Replaced),
        ("deleted", _) => Ok(Until::Deleted),
        (_, Some(times)) => {
            times.parse().map(Until::Fetched).map_err(|_| format!("{times:?} is no count of 1 or more"))
        }
        _ => Err("it is replaced, deleted, or fetched:N".to_owned()),
    }
}
