//! The command line of `transfer-bench`.

use crate::suite::Suite;
use crate::suites::sweep::SweepOptions;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use transfer_terminal::exit::{self, Exit};

/// The exit statuses of the program.
const EXITS: [Exit; 4] = [Exit::Done, Exit::Failed, Exit::InvalidArguments, Exit::ReaderGone];

/// Measures with its own sidecars and workers, and shows each figure beside its baseline.
#[derive(Debug, Parser)]
#[command(
    name = "transfer-bench",
    version,
    max_term_width = 120,
    after_help = exit::help(&EXITS),
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub struct Arguments {
    /// The measurements.
    #[command(flatten)]
    pub options: Options,
    /// The command, instead of measuring.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The options of the measurements.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The suites to run; all if none is named
    #[arg(value_enum)]
    pub suites: Vec<Suite>,
    /// The number of runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Fewer and shorter runs, to check that it works
    #[arg(long)]
    pub quick: bool,
    /// The sidecar's program. Default: transferd beside this program
    #[arg(long, value_name = "PATH")]
    pub transferd: Option<PathBuf>,
    /// The poll strategy of the sidecars: transferd's --poll
    #[arg(long, default_value = "adaptive", value_parser = ["adaptive", "event", "busy"])]
    pub poll: String,
    /// As JSON, with every run
    #[arg(long)]
    pub json: bool,
    /// The options of the suite sweep.
    #[command(flatten)]
    pub sweep: SweepOptions,
}

/// The command, instead of measuring.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate shell completions
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    Man {
        /// The target directory; it is made if it is missing.
        directory: PathBuf,
    },
    /// A process of a suite: does the tasks from its standard input
    #[command(hide = true)]
    Actor,
    /// Runs a program that ends when the process PARENT does
    #[command(hide = true)]
    Tied {
        /// The process whose end also ends this one.
        #[arg(long)]
        parent: u32,
        /// The program.
        program: OsString,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};

    fn page() -> String {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/transfer-bench.md");
        std::fs::read_to_string(page).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_page_has_the_table_of_exit_codes() {
        let page = page();
        let rows = page.lines().filter(|line| line.starts_with("| ") && line.ends_with(" |"));
        let codes: Vec<_> = rows.filter(|row| row[2..].starts_with(|c: char| c.is_ascii_digit())).collect();
        assert_eq!(codes, EXITS.map(Exit::row));
    }

    #[test]
    fn the_page_has_each_suite_and_an_example_of_each_command() {
        let page = page();
        for suite in Suite::value_variants() {
            assert!(page.contains(&format!("\n| `{}` | ", suite.name())), "{suite:?}");
        }
        for command in Arguments::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(page.contains(&format!("\n## {name}\n")), "docs/transfer-bench.md has no section {name:?}");
            assert!(page.contains(&format!("\ntransfer-bench {name}")), "{name:?} has no example");
        }
    }

    #[test]
    fn invalid_command_lines_are_refused() {
        for line in ["juggling", "--runs 0", "--poll sometimes", "completions cmd.exe", "man", "latency man x"] {
            let words = std::iter::once("transfer-bench").chain(line.split_whitespace());
            let error = Arguments::try_parse_from(words).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
