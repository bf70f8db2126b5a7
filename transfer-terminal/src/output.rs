//! Output that ends no program by a panic.
//!
//! `println!` and `eprintln!` panic when a pipe has no reader, a terminal is closed or a disk is full. [`out!`](crate::out)
//! and [`outln!`](crate::outln) then end the program: if the reader has gone, as in `transferctl tensors | head -1`, with the
//! exit code that a shell reports for SIGPIPE. Finished work stands. [`errln!`](crate::errln) and [`complain`] go on without
//! their line.
//!
//! All of them escape what acts on a terminal, except for line breaks and tabs, because names and texts of others may be
//! hostile. [`control`] does not.

use crate::exit::Exit;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write, stdout};
use std::process::exit;
use transfer_core::text::acts_where_shown;

/// Writes to standard output; used by [`out!`](crate::out).
pub fn write(what: Arguments<'_>) {
    written(stdout().lock(), &shown(&what.to_string()));
}

/// Writes a sequence that controls the terminal to standard output.
pub fn control(sequence: &str) {
    written(stdout().lock(), sequence);
}

fn written(mut out: impl Write, text: &str) {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(Exit::ReaderGone.code().into()),
        Err(error) => {
            complain(&format!("{}: standard output cannot be written: {error}\n", program()));
            exit(Exit::Failed.code().into());
        }
    }
}

/// Writes to standard error, if that is possible. The text has its own line breaks.
pub fn complain(text: &str) {
    // Nobody could be told.
    let _ = io::stderr().lock().write_all(shown(text).as_bytes());
}

/// Returns the text as it can be written to a terminal. What is escaped is so in the way of JSON, which the text may be.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if acts_where_shown(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown
}

/// The name of this program, as it was called.
fn program() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    std::path::Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `print!` that ends the program when standard output cannot be written.
#[macro_export]
macro_rules! out {
    ($($what:tt)*) => { $crate::output::write(::std::format_args!($($what)*)) };
}

/// `println!` that ends the program when standard output cannot be written.
#[macro_export]
macro_rules! outln {
    ($($what:tt)*) => { $crate::output::write(::std::format_args!("{}\n", ::std::format_args!($($what)*))) };
}

/// `eprintln!` that goes on when standard error cannot be written.
#[macro_export]
macro_rules! errln {
    ($($what:tt)*) => { $crate::output::complain(&::std::format!("{}\n", ::std::format_args!($($what)*))) };
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: escaped-names
    #[test]
    fn text_of_others_controls_no_terminal() {
        assert_eq!(shown("a\u{1b}[2J\tb\n\u{9b}1m\u{202e}ä"), "a\\u001b[2J\tb\n\\u009b1m\\u202eä");
    }
}
