//! The command line.

use crate::Error;
use std::path::PathBuf;

/// What to sort, and with how much memory.
pub(crate) struct Options {
    /// The bytes to sort, a multiple of 100 or rounded up to one.
    pub(crate) bytes: u64,
    /// The memory for arenas together, and for the landing pool: half of it each.
    pub(crate) pool_bytes: u64,
    /// Where files are made. Without it, a folder that is deleted at the end.
    pub(crate) folder: Option<PathBuf>,
}

/// Reads the arguments.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, Error> {
    let mut options = Options { bytes: 64 << 20, pool_bytes: 32 << 20, folder: None };
    let mut arguments = arguments;
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value:?}: give a number of bytes"));
        match name.as_str() {
            "--bytes" => options.bytes = number()?.max(100),
            "--pool-bytes" => options.pool_bytes = number()?.max(32 << 20),
            "--folder" => options.folder = Some(value.into()),
            _ => return Err(format!("{name} is no option: --bytes, --pool-bytes and --folder are").into()),
        }
    }
    Ok(options)
}
