//! Standard output whose reader may go, as in `transferctl tensors | head -1`.
//!
//! `println!` panics in that case. These macros end the program with the exit code that a shell reports for SIGPIPE;
//! finished work stands.

use crate::exit::Exit;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;

/// Writes to standard output; used by [`out!`](crate::out).
pub fn write(what: Arguments<'_>) {
    let mut stdout = stdout().lock();
    match stdout.write_fmt(what).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(Exit::ReaderGone.code().into()),
        Err(error) => {
            eprintln!("{}: standard output cannot be written: {error}", program());
            exit(Exit::Failed.code().into());
        }
    }
}

/// The name of this program, as it was called.
fn program() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    std::path::Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `print!` for a reader that may go.
#[macro_export]
macro_rules! out {
    ($($what:tt)*) => { $crate::output::write(::std::format_args!($($what)*)) };
}

/// `println!` for a reader that may go.
#[macro_export]
macro_rules! outln {
    ($($what:tt)*) => { $crate::output::write(::std::format_args!("{}\n", ::std::format_args!($($what)*))) };
}
