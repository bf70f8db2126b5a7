//! `transferd` and `transferctl`, run by the console scripts of the package.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the sidecar with this command line until it is told to end. Returns the exit status.
#[pyfunction]
#[pyo3(name = "_transferd")]
pub(crate) fn transferd(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| transfer_server::program::run(&words))
}

/// Runs the tool with this command line. Returns the exit status.
#[pyfunction]
#[pyo3(name = "_transferctl")]
pub(crate) fn transferctl(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| transfer_cli::main(transfer_cli::arguments::parse_from(&words)))
}
