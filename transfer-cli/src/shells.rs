//! What shells and their users want: completions and manual pages, made of the command line itself.

use crate::arguments::Arguments;
use crate::error::Error;
use crate::files::error::FilesError;
use crate::output::{out, outln};
use clap::CommandFactory;
use clap_complete::{Shell, generate};
use std::path::Path;

const NAME: &str = "transferctl";

/// Prints a shell's completions.
///
/// # Errors
/// None.
pub fn completions(shell: Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), NAME, &mut script);
    out!("{}", String::from_utf8_lossy(&script));
    Ok(())
}

/// Writes a page for the program and one for each of its commands.
///
/// # Errors
/// [`Error::Files`].
pub fn man(directory: &Path) -> Result<(), Error> {
    let failed = |source| FilesError::File { what: "write", path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(failed)?;
    outln!("manual pages are in {0}; `man -l {0}/transferctl.1` shows the first", directory.display());
    Ok(())
}
