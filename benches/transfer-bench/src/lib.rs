//! `transfer-bench`: the speed of the system, compared with the speed of the machine.
//!
//! Each suite starts its own sidecars ([`stage`]) and its own worker processes, which run this program again
//! ([`actor`]), in a temporary directory. A run measures the system and then its baseline; the report has medians over
//! the runs. No process and no socket stays behind: every process is tied to this one, and every wait has a deadline.
//!
//! # Layout
//! - [`arguments`]: the command line. [`run`] executes it; [`measure`] runs the named suites.
//! - [`suite`]: the list of suites. [`suites`]: the measurements. [`bench`](mod@bench): the context that they share.
//! - [`actor`]: the processes: workers, and the baselines' bare ones.
//! - [`stage`]: starts processes, gives them tasks, and ends them. [`tied`]: programs that end with their parent.
//! - [`figure`]: medians, comparisons, goals. [`fit`]: the cost of an operation, and of its bytes. [`usage`]: the
//!   processor time of processes. [`resident`]: their memory, threads and descriptors.
//! - [`machine`]: the machine and the build. [`clock`]: the clock.
//! - [`error`]: errors, with exit codes and advice.
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod actor;
pub mod arguments;
pub mod bench;
pub mod clock;
pub mod error;
pub mod figure;
pub mod fit;
pub mod machine;
pub mod measure;
pub mod resident;
pub mod stage;
pub mod suite;
pub mod suites;
pub mod tied;
pub mod usage;

use arguments::{Arguments, Command};
use clap::CommandFactory;
use error::BenchError;
use transfer_terminal::shells;

/// Executes the command line.
///
/// # Errors
/// Any [`BenchError`]; its exit code is [`BenchError::exit`].
pub fn run(arguments: Arguments) -> Result<(), BenchError> {
    match arguments.command {
        None => measure::run(&arguments.options),
        Some(Command::Completions { shell }) => {
            shells::completions(Arguments::command(), shell);
            Ok(())
        }
        Some(Command::Man { directory }) => shells::man(Arguments::command(), &directory)
            .map_err(|source| BenchError::File { what: "write", path: directory, source }),
        Some(Command::Actor) => actor::run(),
        Some(Command::Tied { parent, program, arguments }) => Ok(tied::become_program(parent, &program, &arguments)?),
    }
}
