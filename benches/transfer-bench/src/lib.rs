//! `transfer-bench`: what the system reaches, beside what the machine gives.
//!
//! Each suite starts its own sidecars ([`stage`]) and its own worker processes, which are this program again ([`actor`]), in a temporary
//! directory. A run measures the system and then its baseline; what is reported are medians over the runs. Whatever happens, no process
//! and no socket stays behind: every process is tied to this one, and every wait has an end.
//!
//! # Layout
//! - [`arguments`]: the command line. [`run`] does what it says; [`measure`] runs the suites that it names.
//! - [`suite`]: the list of suites. [`suites`]: what is measured, and how. [`bench`](mod@bench): what they have in common.
//! - [`actor`]: the processes: workers, and the baselines' bare ones.
//! - [`stage`]: starting them, asking them, ending them. [`tied`]: programs that end with the one that started them.
//! - [`figure`]: medians, comparisons, goals. [`fit`]: what an operation costs, and what its bytes do. [`usage`]: what processes have used.
//! - [`machine`]: where they were taken. [`clock`]: with what.
//! - [`error`]: what can go wrong, what to do next, and the exit code for it.
#![forbid(unsafe_code)]

pub mod actor;
pub mod arguments;
pub mod bench;
pub mod clock;
pub mod error;
pub mod figure;
pub mod fit;
pub mod machine;
pub mod measure;
pub mod stage;
pub mod suite;
pub mod suites;
pub mod tied;
pub mod usage;

use arguments::{Arguments, Command};
use clap::CommandFactory;
use error::BenchError;
use transfer_terminal::shells;

/// Does what the command line says.
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
