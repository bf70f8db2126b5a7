//! A program that ends with its parent process, even if the parent was killed with SIGKILL and could not clean up.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A program that was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TiedError {
    /// The kernel refuses to tie it.
    #[error("cannot tie the process to its parent")]
    Tie(#[source] io::Error),
    /// The parent is gone.
    #[error("the process that wanted this one is gone")]
    Orphan,
    /// The program cannot be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// The program.
        program: OsString,
        /// The cause.
        source: io::Error,
    },
}

/// Replaces this process by `program`, tied to its parent. `parent` is the process id of the process that started this
/// one. Returns only if that fails.
///
/// The kernel drops the tie on a fork and keeps it on an exec. So the parent cannot set it in advance, but this process
/// can set it for any program that it then executes. This avoids the usual `unsafe` code between fork and exec.
///
/// # Errors
/// [`TiedError`].
pub fn become_program(parent: u32, program: &OsString, arguments: &[OsString]) -> Result<(), TiedError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| TiedError::Tie(errno.into()))?;
    // If the parent died before the line above, it sends no signal.
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(parent) {
        return Err(TiedError::Orphan);
    }
    Err(TiedError::Start { program: program.clone(), source: Command::new(program).args(arguments).exec() })
}
