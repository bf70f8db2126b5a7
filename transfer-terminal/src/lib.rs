//! The common parts of the programs: `transferctl`, the tool for operators, `transfer-bench`, and some of `transferd`.
//!
//! # Layout
//! - `chart`, with the feature of this name: charts of measurements, as SVG.
//! - [`cpu`]: the CPU time of the process.
//! - [`environment`]: the variables that are settings.
//! - [`exit`]: the exit codes.
//! - [`failure`]: error texts for people.
//! - [`file_size`]: the limit of file sizes.
//! - [`output`]: output without panics; [`out!`] and [`outln!`] print to standard output, [`errln!`] to standard error.
//! - [`table`]: text in columns. [`units`]: numbers.
//! - [`unfinished`]: a file that gets its name when it is complete, and other files for output.
//! - [`shells`]: completions and manual pages.
#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

#[cfg(feature = "chart")]
pub mod chart;
pub mod cpu;
pub mod environment;
pub mod exit;
pub mod failure;
pub mod file_size;
pub mod output;
pub mod shells;
pub mod table;
pub mod unfinished;
pub mod units;
