//! The options of `transferctl fetch`.

use super::Worker;
use super::error::FilesError;
use super::push_options::Format;
use super::slicing::SliceOption;
use super::story::Verbosity;
use crate::admin::Target;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transfer_client::{Client, Fetch};
use transfer_terminal::units::duration;

/// The options of `transferctl fetch`.
#[derive(Debug, Clone, clap::Args)]
#[command(allow_missing_positional = true)]
pub struct Options {
    /// The sidecar, and this worker's name.
    #[command(flatten)]
    pub worker: Worker,
    /// The key to fetch
    #[arg(required_unless_present_any = ["prefix", "keys", "keys_from"])]
    pub key: Option<String>,
    /// The target: a file for the bytes of one tensor, as they are in memory (`-` is the standard output); a
    /// safetensors file for any number of tensors, if the name ends in .safetensors; else a directory with a file for
    /// each
    pub out: PathBuf,
    /// Fetch all keys below PREFIX/ that the nodes list; the sidecar at --admin knows the nodes from its directory. If
    /// a node cannot be asked, it is named, and the exit code is 9. With --key or --keys-from, fetch those keys instead
    /// of a list; the prefix is left out of names in either case
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub prefix: Option<String>,
    /// With --prefix: only keys that are published at the node of --admin
    #[arg(long, requires = "prefix")]
    pub one_node: bool,
    /// Fetch this key; may be given more than once
    #[arg(long = "key", value_name = "KEY", conflicts_with = "key")]
    pub keys: Vec<String>,
    /// Fetch the keys in this file, one on each line
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    pub keys_from: Option<PathBuf>,
    /// Fetch only this slice of the tensor, in numpy's form: `0:1024,512:1024`. Of a state give `NAME=SLICE` for each of
    /// its tensors that is wanted, and `NAME=` for all of one; several make a directory, or a safetensors file
    #[arg(
        long = "slice",
        value_name = "SLICE",
        conflicts_with_all = ["prefix", "keys", "keys_from", "check_digests"],
        allow_hyphen_values = true
    )]
    pub slices: Vec<SliceOption>,
    /// The sidecar that lists keys for --prefix.
    #[command(flatten)]
    pub target: Target,
    /// The format of the output. Default: safetensors if the name ends in .safetensors, else raw
    #[arg(long)]
    pub format: Option<Format>,
    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
    /// Exactly this version. Default: the newest one
    #[arg(long, value_name = "N", conflicts_with = "at_least")]
    pub exactly: Option<u64>,
    /// This version or a later one
    #[arg(long, value_name = "N")]
    pub at_least: Option<u64>,
    /// The time-out for each tensor, including the wait for its publication
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
    /// Compare what comes with the digests of its push, if that has made some; read the written files again, and compare
    #[arg(long)]
    pub verify: bool,
    /// Compare with the digests of the push, and refuse tensors without
    #[arg(long, conflicts_with = "slices")]
    pub require_digest: bool,
    /// Compare with the digests of `push --write-digests`, before anything is written
    #[arg(long, value_name = "FILE")]
    pub check_digests: Option<PathBuf>,
    /// The verbosity.
    #[command(flatten)]
    pub verbosity: Verbosity,
}

/// The shape of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The bytes of one tensor, to the standard output.
    Stdout,
    /// The bytes of one tensor, to a file.
    File,
    /// A file for each tensor.
    Directory,
    /// One file of safetensors.
    Safetensors,
}

impl Options {
    /// A fetch of the version that is asked for.
    pub(super) fn of_version<T>(&self, fetch: Fetch<Client, T>) -> Fetch<Client, T> {
        let fetch = fetch.timeout(self.timeout);
        match (self.exactly, self.at_least) {
            (Some(version), _) => fetch.exactly(version),
            (None, Some(version)) => fetch.at_least(version),
            (None, None) => fetch.latest(),
        }
    }

    /// The shape of the output.
    pub(super) fn shape(&self) -> Result<Shape, FilesError> {
        let one = self.key.is_some();
        let stdout = self.out == Path::new("-");
        let safetensors = match self.format {
            Some(format) => format == Format::Safetensors,
            None => self.out.extension() == Some(OsStr::new("safetensors")),
        };
        match (stdout, safetensors, one) {
            (true, false, true) => Ok(Shape::Stdout),
            (true, true, _) => Err(FilesError::Use("a safetensors file cannot go to the standard output".to_owned())),
            (true, false, false) => {
                Err(FilesError::Use("the standard output takes one tensor: fetch KEY -".to_owned()))
            }
            (false, true, _) => Ok(Shape::Safetensors),
            (false, false, true) => Ok(Shape::File),
            (false, false, false) => Ok(Shape::Directory),
        }
    }
}
