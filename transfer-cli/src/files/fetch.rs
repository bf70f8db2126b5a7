//! `transferctl fetch`: a tensor becomes a file.

use super::Worker;
use crate::error::Error;
use crate::units::{bytes, duration};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What `transferctl fetch` may be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which sidecar, and as whom.
    #[command(flatten)]
    pub worker: Worker,
    /// What to fetch
    pub key: String,
    /// Where to write its elements, as they lie in memory; `-` is the standard output
    pub file: PathBuf,
    /// This version and no other. Default: the newest there is
    #[arg(long, value_name = "N", conflicts_with = "at_least")]
    pub exactly: Option<u64>,
    /// This version or a later one
    #[arg(long, value_name = "N")]
    pub at_least: Option<u64>,
    /// How long to wait, for its publication too
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
}

/// Fetches, writes, and reports: on the standard error where the elements go to the standard output.
///
/// # Errors
/// [`Error::Connect`], [`Error::Call`], [`Error::File`].
pub async fn run(options: &Options) -> Result<(), Error> {
    // It only reads: no arena.
    let client = options.worker.connect(0).await?;
    let fetch = client.fetch(options.key.as_str()).timeout(options.timeout);
    let fetch = match (options.exactly, options.at_least) {
        (Some(version), _) => fetch.exactly(version),
        (None, Some(version)) => fetch.at_least(version),
        (None, None) => fetch.latest(),
    };
    let failed = |source| Error::Call { what: "fetch", key: options.key.clone(), source };
    let tensor = fetch.await.map_err(failed)?;

    let to_stdout = options.file == Path::new("-");
    let written = match to_stdout {
        true => {
            let mut out = io::stdout().lock();
            out.write_all(tensor.as_bytes()).and_then(|()| out.flush())
        }
        false => File::create(&options.file).and_then(|mut file| file.write_all(tensor.as_bytes())),
    };
    written.map_err(|source| Error::File { what: "write", path: options.file.clone(), source })?;

    let (key, version, size) = (&options.key, tensor.version(), bytes(tensor.meta().len_bytes()));
    let story = format!("{key:?} version {version}: {}, {size}\n{}", tensor.meta(), tensor.report());
    match to_stdout {
        true => eprintln!("{story}"),
        false => crate::output::outln!("{story}"),
    }
    Ok(())
}
