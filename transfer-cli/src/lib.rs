//! `transferctl`: the command-line tool for sidecars.
//!
//! # Layout
//! - [`arguments`]: the command line. [`run`] executes it.
//! - [`admin`]: the commands of the Admin gRPC service: `status`, `tensors`, `drain` and others.
//! - [`certs`]: `certs`, the certificates of a job. It needs no sidecar.
//! - [`devices`]: `devices`, the RDMA devices and GPUs of this host. It needs no sidecar.
//! - [`doctor`]: `doctor`, a list of checks.
//! - [`files`]: `push`, `fetch` and `copy`, as a worker of the sidecar.
//! - `gpus`: the GPUs of this host.
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
pub mod perf;

use arguments::{Arguments, Command};
use clap::CommandFactory;
use error::Error;
use files::error::FilesError;
use transfer_terminal::shells;

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
    match arguments.command {
        Command::Status(options) => in_runtime(admin::status::run(&options)),
        Command::Sessions(list) => in_runtime(admin::lists::run(&list)),
        Command::Peers(list) => in_runtime(admin::lists::run(&list)),
        Command::Links(list) => in_runtime(admin::lists::run(&list)),
        Command::Tensors(list) => in_runtime(admin::lists::run_tensors(&list)),
        Command::Segments(list) => in_runtime(admin::lists::run(&list)),
        Command::Transfers(list) => in_runtime(admin::lists::run(&list)),
        Command::Exchanges(list) => in_runtime(admin::lists::run_exchanges(&list)),
        Command::Quarantine(list) => in_runtime(admin::lists::run(&list)),
        Command::Events(options) => in_runtime(admin::events::run(&options)),
        Command::Top(options) => in_runtime(admin::top::run(&options)),
        Command::Watch(options) => in_runtime(admin::watch::run(&options)),
        Command::Delete(options) => in_runtime(admin::changes::delete(&options)),
        Command::Drain(options) => in_runtime(admin::drain::run(&options)),
        Command::Evict(options) => in_runtime(admin::changes::evict(&options)),
        Command::LogLevel(options) => in_runtime(admin::changes::log_level(&options)),
        Command::Poll(options) => in_runtime(admin::poll::run(&options)),
        Command::Ping(options) => in_runtime(admin::ping::run(&options)),
        Command::Certs(options) => Ok(certs::run(&options)?),
        Command::Devices(options) => Ok(devices::run(&options)?),
        Command::Doctor(options) => in_runtime(doctor::run(&options)),
        Command::Perf(options) => Ok(perf::run(&options)?),
        Command::Push(options) => in_runtime(files::push::run(&options)),
        Command::Fetch(options) => in_runtime(files::fetch::run(&options)),
        Command::Copy(options) => in_runtime(files::copy::run(&options)),
        Command::Completions { shell } => {
            shells::completions(Arguments::command(), shell);
            Ok(())
        }
        Command::Man { directory } => shells::man(Arguments::command(), &directory)
            .map_err(|source| FilesError::File { what: "write", path: directory, source }.into()),
    }
}

/// Runs a command on one thread, which is enough because each command does one thing at a time.
fn in_runtime(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::Runtime { source })?;
    let done = runtime.block_on(work);
    // An abandoned read, of a pipe for instance, must not delay the end.
    runtime.shutdown_background();
    done
}
