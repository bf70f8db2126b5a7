//! The options of `transferctl push`.

use super::Worker;
use super::story::Verbosity;
use std::path::PathBuf;
use std::time::Duration;
use transfer_client::{DType, Digest, Until};
use transfer_terminal::units::{duration, size};

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Elements, row-major and little-endian, and nothing else.
    Raw,
    /// A safetensors file.
    Safetensors,
}

/// The options of `transferctl push`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The sidecar, and this worker's name.
    #[command(flatten)]
    pub worker: Worker,
    /// The files to publish, after the key or prefix: KEY FILE publishes a file under that key, KEY - the standard
    /// input. A safetensors file becomes its tensors under PREFIX/NAME, a directory each of its files under
    /// PREFIX/relative/path, and several files are under PREFIX/name. A single PATH has its own name as key or prefix;
    /// with --prefix all arguments are paths
    #[arg(value_names = ["KEY|PREFIX", "PATH"], required = true)]
    pub words: Vec<PathBuf>,
    /// The prefix of all keys
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// The format of the files. Default: safetensors if the name ends in .safetensors, else raw
    #[arg(long)]
    pub format: Option<Format>,
    /// Skip symbolic links, pipes, sockets and devices below a directory; without this they are refused
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
    /// End after this time. A tensor lives as long as the worker that pushed it, so without --hold the command waits
    /// until it is interrupted
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub hold: Option<Duration>,
    /// How long it stays: until `replaced` by a newer version, until `deleted`, or until `fetched:N` times
    #[arg(long, value_name = "WHAT", default_value = "replaced", value_parser = until)]
    pub until: Until,
    /// It outlives this command, which ends at once: it stays until the sidecar ends
    #[arg(long, conflicts_with = "hold")]
    pub outlive: bool,
    /// Take the key from the worker that owns it
    #[arg(long)]
    pub takeover: bool,
    /// Let workers of these tenants fetch it, too: user ids, or names of the sidecar's --tenants
    #[arg(long, value_name = "TENANT,...", value_delimiter = ',')]
    pub readable_by: Vec<String>,
    /// The size of the arena. Default: room for everything, from several workers if one may not have so much; a larger
    /// file goes in pieces. A smaller arena is used in turns, which needs --to or --until fetched:N, because otherwise
    /// nothing would make room
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub arena_bytes: Option<u64>,
    /// The time-out of each push, and of waiting for room in the arena
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
    /// Fetch each tensor back, read its file again, and compare
    #[arg(long)]
    pub verify: bool,
    /// Publish digests of each chunk and of all of each tensor, with which `fetch --verify` and other readers compare what moves: xxh3, which
    /// is the default, or blake3, which nobody can forge
    #[arg(long, value_name = "HASH", conflicts_with = "arena_bytes", num_args = 0..=1, require_equals = true, default_missing_value = "xxh3", value_parser = digest)]
    pub digest: Option<Digest>,
    /// Write the BLAKE3 digest of each tensor's bytes to this file, for `fetch --check-digests`
    #[arg(long, value_name = "FILE")]
    pub write_digests: Option<PathBuf>,
    /// Replace the file of --write-digests if it exists
    #[arg(long, requires = "write_digests")]
    pub force: bool,
    /// The verbosity.
    #[command(flatten)]
    pub verbosity: Verbosity,
}

fn dtype(text: &str) -> Result<DType, String> {
    let names = || DType::ALL.map(DType::name).join(", ");
    DType::from_name(text).ok_or_else(|| format!("an element type is one of {}", names()))
}

fn digest(text: &str) -> Result<Digest, String> {
    Digest::from_name(text).ok_or_else(|| "it is xxh3 or blake3".to_owned())
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
