//! The command line; everything else is explained in the library, [`transfer_bench`].
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use clap::Parser;
use std::process::ExitCode;
use transfer_bench::arguments::Arguments;

fn main() -> ExitCode {
    transfer_terminal::file_size::exceeding_is_an_error();
    match transfer_bench::run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            transfer_terminal::output::complain(&error.for_people());
            ExitCode::from(error.exit().code())
        }
    }
}
