//! What `transferctl fetch` may be told.

use super::Worker;
use super::error::FilesError;
use super::push_options::Format;
use super::story::Telling;
use crate::admin::Target;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transfer_terminal::units::duration;

/// What `transferctl fetch` may be told.
#[derive(Debug, Clone, clap::Args)]
#[command(allow_missing_positional = true)]
pub struct Options {
    /// Which sidecar, and as whom.
    #[command(flatten)]
    pub worker: Worker,
    /// What to fetch
    #[arg(required_unless_present_any = ["prefix", "keys", "keys_from"])]
    pub key: Option<String>,
    /// Where to write: a file for one tensor's bytes, as they lie in memory (`-` is the standard output); a safetensors file for any
    /// number, where the name ends so; else a directory for a file each
    pub out: PathBuf,
    /// Fetch all keys below PREFIX/ that the nodes list, which the sidecar at --admin knows from its directory: where one could not be asked, that is
    /// said, and it ends with 9. With --key, or --keys-from, those keys and no list; the prefix is left out of names in either case
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub prefix: Option<String>,
    /// With --prefix: only those keys that are published at the node of --admin
    #[arg(long, requires = "prefix")]
    pub one_node: bool,
    /// Fetch this key; may be given more than once
    #[arg(long = "key", value_name = "KEY", conflicts_with = "key")]
    pub keys: Vec<String>,
    /// Fetch the keys in this file, one on each line
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    pub keys_from: Option<PathBuf>,
    /// Where --prefix looks for keys.
    #[command(flatten)]
    pub target: Target,
    /// What to write. Default: safetensors where the name ends so, else raw
    #[arg(long)]
    pub format: Option<Format>,
    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
    /// This version and no other. Default: the newest there is
    #[arg(long, value_name = "N", conflicts_with = "at_least")]
    pub exactly: Option<u64>,
    /// This version or a later one
    #[arg(long, value_name = "N")]
    pub at_least: Option<u64>,
    /// How long to wait for each, for its publication too
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
    /// Read what was written again, and compare
    #[arg(long)]
    pub verify: bool,
    /// Compare with the digests that `push --write-digests` wrote, before anything is written
    #[arg(long, value_name = "FILE")]
    pub check_digests: Option<PathBuf>,
    /// How much is told.
    #[command(flatten)]
    pub telling: Telling,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One tensor's bytes, to the standard output.
    Stdout,
    /// One tensor's bytes.
    File,
    /// A file each.
    Directory,
    /// One file of safetensors.
    Safetensors,
}

impl Options {
    /// What is to be written.
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
