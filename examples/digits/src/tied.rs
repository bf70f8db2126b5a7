//! A program that ends with its parent process, even if the parent was killed with SIGKILL and could not clean up.

use crate::error::Error;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process by `program`, tied to its parent. `parent` is the process id of the process that started this
/// one. Returns only if that fails.
///
/// The kernel drops the tie on a fork and keeps it on an exec. So the parent cannot set it in advance, but this process
/// can set it for any program that it then executes. This avoids the usual `unsafe` code between fork and exec.
///
/// # Errors
/// [`Error::Io`] if the program cannot be started, [`Error::Interrupted`] if the parent is gone.
pub fn become_program(parent: u32, program: &OsString, arguments: &[OsString]) -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Error::io("tie the process to its parent")(errno.into()))?;
    // If the parent died before the line above, it sends no signal.
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(parent) {
        return Err(Error::Interrupted);
    }
    Err(Error::io("start the program")(Command::new(program).args(arguments).exec()))
}
