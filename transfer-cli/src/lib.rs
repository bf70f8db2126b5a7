//! `transferctl`: the command-line tool for sidecars.
//!
//! # Layout
//! - [`arguments`]: the command line, and the commands. [`run`] executes it.
//! - [`admin`]: the commands of the Admin gRPC service: `status`, `tensors`, `drain` and others.
//! - [`certs`]: `certs`, the certificates of a job. It needs no sidecar.
//! - [`devices`]: `devices`, the RDMA devices and GPUs of this host. It needs no sidecar.
//! - [`doctor`]: `doctor`, a list of checks.
//! - [`files`]: `push`, `fetch` and `copy`, as a worker of the sidecar.
//! - `gpus`: the GPUs of this host.
//! - [`layout`]: `layout`, who holds what of a sharded state, as a worker of the sidecar.
//! - [`perf`]: `perf`, rates and times of RDMA operations. It needs no sidecar.
//! - [`error`]: errors, with advice and exit codes.
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod admin;
pub mod arguments;
pub mod certs;
pub mod devices;
pub mod doctor;
pub mod error;
pub mod files;
mod gpus;
pub mod layout;
pub mod perf;

use arguments::Arguments;
use error::Error;

/// Executes the command line and prints errors. Returns the exit status.
#[must_use]
pub fn main(arguments: Arguments) -> u8 {
    transfer_terminal::file_size::exceeding_is_an_error();
    match run(arguments) {
        Ok(()) => 0,
        Err(error) => {
            transfer_terminal::output::complain(&error.for_people());
            error.exit_code()
        }
    }
}

/// Executes the command line.
///
/// # Errors
/// Any [`Error`]; its exit code is [`Error::exit_code`].
pub fn run(arguments: Arguments) -> Result<(), Error> {
    arguments.command.run()
}
