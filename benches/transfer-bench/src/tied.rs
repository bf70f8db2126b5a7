//! A program that ends when the process that started it does, even if that one was killed with SIGKILL and could not clean up.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A program that was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TiedError {
    /// The kernel does not tie it.
    #[error("cannot tie the process to its parent")]
    Tie(#[source] io::Error),
    /// There is nobody to tie it to.
    #[error("the process that wanted this one is gone")]
    Orphan,
    /// The program cannot be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// The program.
        program: OsString,
        /// Why.
        source: io::Error,
    },
}

/// Becomes `program`, tied to its parent, whose process id was `parent` when it decided to start this. Returns only if that fails.
///
/// The kernel forgets the tie on a fork and keeps it on an exec. So it cannot be set before this process exists, but it can be set here,
/// for any program, and without the `unsafe` code between fork and exec that is the usual place for it.
///
/// # Errors
/// [`TiedError`].
pub fn become_program(parent: u32, program: &OsString, arguments: &[OsString]) -> Result<(), TiedError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| TiedError::Tie(errno.into()))?;
    // A parent that died before the line above sends no signal any more.
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(parent) {
        return Err(TiedError::Orphan);
    }
    Err(TiedError::Start { program: program.clone(), source: Command::new(program).args(arguments).exec() })
}
