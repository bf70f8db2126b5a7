//! Standard output, whose reader may go: `transferctl tensors | head -1`.
//!
//! `println!` panics then. These end the program with the exit code that a shell gives to one that the signal of a closed pipe has
//! ended; what is done so far stands.

use crate::exit::Exit;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;

/// Writes to standard output; what `out!` does.
pub(crate) fn write(what: Arguments<'_>) {
    let mut stdout = stdout().lock();
    match stdout.write_fmt(what).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(Exit::ReaderGone.code().into()),
        Err(error) => {
            eprintln!("transferctl: standard output cannot be written: {error}");
            exit(Exit::Failed.code().into());
        }
    }
}

/// `print!` for a reader that may go.
macro_rules! out {
    ($($what:tt)*) => { $crate::output::write(::std::format_args!($($what)*)) };
}

/// `println!` for a reader that may go.
macro_rules! outln {
    ($($what:tt)*) => { $crate::output::write(::std::format_args!("{}\n", ::std::format_args!($($what)*))) };
}

pub(crate) use {out, outln};
