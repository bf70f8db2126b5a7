//! A global shuffle of a data set for each epoch, over four workers on two nodes. One of them is killed, and goes on.
//!
//! Run it with `cargo run --release -p epoch_shuffle`, after `cargo build --release -p transfer-server`.
//!
//! # Layout
//! - [`worker`]: **start here**. A worker: its task and its partition of each epoch.
//! - [`job`]: starts two sidecars and four workers, kills one of them, and checks what all have seen.
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod job;
mod worker;

use std::io::Write;
use std::process::ExitCode;

/// Any error: this is a program, and nobody asks for the kind.
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, rest)) if first == "worker" => worker::run(rest),
        None => job::run(),
        Some(_) => Err("epoch_shuffle takes no arguments".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // If standard error cannot be written, nobody can be told.
            let _ = writeln!(std::io::stderr(), "epoch_shuffle: {e}");
            ExitCode::FAILURE
        }
    }
}
