//! The command line; everything else is explained in the library, [`transfer_cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(transfer_cli::main(transfer_cli::arguments::parse()))
}
