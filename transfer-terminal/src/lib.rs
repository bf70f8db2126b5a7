//! The common parts of the programs: `transferctl`, the tool for operators, `transfer-bench`, and some of `transferd`.
//!
//! # Layout
//! - `chart`, with the feature of this name: charts of measurements, as SVG.
//! - [`cpu`]: the CPU time of the process.
//! - [`exit`]: the exit codes.
//! - [`failure`]: error texts for people.
//! - [`output`]: standard output whose reader may go; [`out!`] and [`outln!`] print to it.
//! - [`table`]: text in columns. [`units`]: numbers.
//! - [`unfinished`]: a file that gets its name when it is complete.
//! - [`shells`]: completions and manual pages.
#![forbid(unsafe_code)]

#[cfg(feature = "chart")]
pub mod chart;
pub mod cpu;
pub mod exit;
pub mod failure;
pub mod output;
pub mod shells;
pub mod table;
pub mod unfinished;
pub mod units;
