//! A program that ends when the process that started it does, even if that one was killed with SIGKILL and could not clean up.

use crate::error::Error;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes `program`, tied to its parent, whose process id was `parent` when it decided to start this. Returns only if that fails.
///
/// The kernel forgets the tie on a fork and keeps it on an exec. So it cannot be set before this process exists, but it can be set here,
/// for any program, and without the `unsafe` code between fork and exec that is the usual place for it.
///
/// # Errors
/// [`Error::Io`] if the program cannot be started, [`Error::Interrupted`] if the parent is gone already.
pub fn become_program(parent: u32, program: &OsString, arguments: &[OsString]) -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Error::io("tie the process to its parent")(errno.into()))?;
    // A parent that died before the line above sends no signal any more.
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(parent) {
        return Err(Error::Interrupted);
    }
    Err(Error::io("start the program")(Command::new(program).args(arguments).exec()))
}
