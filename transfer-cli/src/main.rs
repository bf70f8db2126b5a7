//! The command line; everything else is explained in the library, [`transfer_cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;
use transfer_cli::arguments;

fn main() -> ExitCode {
    match transfer_cli::run(arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{}", error.for_people());
            ExitCode::from(error.exit_code())
        }
    }
}
