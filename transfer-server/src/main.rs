//! `transferd`: the sidecar as a process. The library explains everything else in [`transfer_server::program`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(transfer_server::program::run(&std::env::args_os().collect::<Vec<_>>()))
}
