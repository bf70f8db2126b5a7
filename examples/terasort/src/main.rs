//! TeraSort: sorts files of 100-byte records by their 10-byte keys, with more data than the memory of the exchange holds.
//!
//! Run it with `cargo run --release -p terasort`, after `cargo build --release -p transfer-server`. The options
//! `--bytes 4294967296 --pool-bytes 1073741824 --folder DIR` sort 4 GiB with pools of 1 GiB.
//!
//! # Layout
//! - [`sort`]: **start here**. Tasks write records into the partition of their key, readers sort one partition each.
//! - [`records`]: the records, and their generator.
//! - [`check`]: the order and the checksum of what was sorted.
//! - [`direct`]: the sorted files, which are written without the page cache.
//! - [`options`]: the command line.
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod check;
mod direct;
mod options;
mod records;
mod sort;

use std::io::Write;
use std::process::ExitCode;

/// Any error: this is a program, and nobody asks for the kind.
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match options::parse(std::env::args().skip(1)).and_then(|options| sort::run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // If standard error cannot be written, nobody can be told.
            let _ = writeln!(std::io::stderr(), "terasort: {e}");
            ExitCode::FAILURE
        }
    }
}
