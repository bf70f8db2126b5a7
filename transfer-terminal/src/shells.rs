//! Shell completions and manual pages, generated from the command line's definition.

use crate::{out, outln};
use clap::Command;
use clap_complete::{Shell, generate};
use std::io;
use std::path::Path;

/// Prints a shell's completions.
pub fn completions(mut command: Command, shell: Shell) {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    generate(shell, &mut command, name, &mut script);
    out!("{}", String::from_utf8_lossy(&script));
}

/// Writes a manual page for the program and one for each of its commands. The directory is made if it is missing.
///
/// # Errors
/// The system's, if they cannot be written.
pub fn man(command: Command, directory: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)?;
    outln!("manual pages are in {0}; `man -l {0}/{name}.1` shows the first", directory.display());
    Ok(())
}
