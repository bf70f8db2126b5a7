//! The command line of `transferctl`.

use crate::error::Error;
use crate::files::error::FilesError;
use crate::{admin, certs, devices, doctor, files, layout, perf};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use transfer_terminal::exit::{self, Exit};
use transfer_terminal::{environment, shells};

/// Shows and administers sidecars, and transfers files through them.
#[derive(Debug, Parser)]
#[command(name = "transferctl", version, max_term_width = 120, after_help = exit::help(&Exit::ALL))]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the sidecar's identity, health, contents and counters
    Status(admin::status::Options),
    /// Show the hosts of the directory, which of them leads, and who has not recited to it
    Directory(admin::directory::Options),
    /// A list.
    #[command(flatten)]
    List(admin::lists::Lists),
    /// Print events as they happen
    Events(admin::events::Options),
    /// Show a live screen: throughput of links, transfers, pools, workers, the slowest waits
    Top(admin::top::Options),
    /// Refresh a list periodically
    Watch(admin::watch::Options),
    /// Delete a key, whichever worker owns it
    Delete(admin::changes::Delete),
    /// Let the sidecar finish its work, accept nothing new, and leave
    Drain(admin::drain::Options),
    /// Recall idle landing slots, so that their room becomes free
    Evict(admin::changes::Evict),
    /// Show or change what the sidecar logs
    LogLevel(admin::changes::LogLevel),
    /// Show or change the poll strategy of the sidecar's data plane: busy, event, adaptive
    Poll(admin::poll::Options),
    /// Measure round trips to another node, over the data plane or by RDMA datagrams, and show what carries them
    Ping(admin::ping::Options),
    /// Show the RDMA devices of this host, like ibv_devices, ibv_devinfo and ibstat, and its GPUs
    Devices(devices::Options),
    /// Measure RDMA operations between two hosts, like perftest
    Perf(Box<perf::Options>),
    /// Check this host and its sidecar, and advise what to do
    Doctor(doctor::Options),
    /// Make certificates for the nodes of a job, and an authority that signs them
    Certs(certs::Options),
    /// Publish files as tensors, until interrupted
    Push(files::push_options::Options),
    /// Fetch tensors into files
    Fetch(files::fetch_options::Options),
    /// Show which rank holds which part of the tensors of a sharded state
    Layout(layout::Options),
    /// Copy a file to another node, whose sidecar has a folder for that
    Copy(files::copy_options::Options),
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
}

impl Command {
    /// Executes the command.
    ///
    /// # Errors
    /// Any [`Error`].
    pub(crate) fn run(self) -> Result<(), Error> {
        match self {
            Command::Status(options) => in_runtime(admin::status::run(&options)),
            Command::Directory(options) => in_runtime(admin::directory::run(&options)),
            Command::List(list) => in_runtime(list.run()),
            Command::Events(options) => in_runtime(admin::events::run(&options)),
            Command::Top(options) => in_runtime(admin::top::run(&options)),
            Command::Watch(options) => in_runtime(admin::watch::run(&options)),
            Command::Delete(options) => in_runtime(admin::changes::delete(&options)),
            Command::Drain(options) => in_runtime(admin::drain::run(&options)),
            Command::Evict(options) => in_runtime(admin::changes::evict(&options)),
            Command::LogLevel(options) => in_runtime(admin::changes::log_level(&options)),
            Command::Poll(options) => in_runtime(admin::poll::run(&options)),
            Command::Ping(options) => in_runtime(admin::ping::run(&options)),
            Command::Certs(options) => Ok(certs::run(&options)?),
            Command::Devices(options) => Ok(devices::run(&options)?),
            Command::Doctor(options) => in_runtime(doctor::run(&options)),
            Command::Perf(options) => Ok(perf::run(&options)?),
            Command::Push(options) => in_runtime(files::push::run(&options)),
            Command::Fetch(options) => in_runtime(files::fetch::run(&options)),
            Command::Layout(options) => in_runtime(layout::run(&options)),
            Command::Copy(options) => in_runtime(files::copy::run(&options)),
            Command::Completions { shell } => {
                shells::completions(Arguments::command(), shell);
                Ok(())
            }
            Command::Man { directory } => shells::man(Arguments::command(), &directory)
                .map_err(|source| FilesError::File { what: "write", path: directory, source }.into()),
        }
    }
}

/// Runs a command on one thread, which is enough because each command does one thing at a time.
fn in_runtime(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::Runtime { source })?;
    let done = runtime.block_on(work);
    // An abandoned read, of a pipe for instance, must not delay the end.
    runtime.shutdown_background();
    done
}

/// Parses the command line of this process. Errors are printed, and end the process.
#[must_use]
pub fn parse() -> Arguments {
    parse_from(&std::env::args_os().collect::<Vec<_>>())
}

/// Parses `words`, which begin with the program's name. Errors are printed, and end the process.
#[must_use]
pub fn parse_from(words: &[OsString]) -> Arguments {
    let matches = environment::settings(Arguments::command()).try_get_matches_from(words);
    match matches.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => match of_environment(&error, words) {
            None => error.exit(),
            Some(text) => {
                transfer_terminal::errln!("transferctl: {text}");
                std::process::exit(Exit::InvalidArguments.code().into())
            }
        },
    }
}

/// The error for an invalid value in an environment variable. The parser's own error would name the flag.
fn of_environment(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let (name, value) = environment::invalid_variable(&Arguments::command(), error, words)?;
    let why = std::error::Error::source(error).map_or_else(|| "it is not valid".to_owned(), ToString::to_string);
    Some(format!("{name}={value:?}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_page_has_the_table_of_exit_codes() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/transferctl.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows = page.lines().filter(|line| line.starts_with("| ") && line.ends_with(" |"));
        let codes: Vec<_> = rows.filter(|row| row[2..].starts_with(|c: char| c.is_ascii_digit())).collect();
        assert_eq!(codes, Exit::ALL.map(Exit::row));
    }

    #[test]
    fn each_command_has_an_example_on_the_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/transferctl.md");
        let page = std::fs::read_to_string(page).unwrap();
        let sections: Vec<&str> = page.split("\n## ").collect();
        for command in Arguments::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let section = sections.iter().find(|section| section.lines().next() == Some(name));
            let section = section.unwrap_or_else(|| panic!("docs/transferctl.md has no section {name:?}"));
            assert!(section.contains(&format!("\ntransferctl {name}")), "the section {name:?} has no example");
        }
    }

    /// The order of words does not matter.
    #[test]
    fn flags_of_watch_may_stand_before_or_after_the_list() {
        for line in ["watch --every 1s --times 3 tensors", "watch tensors --every 1s --times 3"] {
            let parsed = Arguments::try_parse_from(std::iter::once("transferctl").chain(line.split(' '))).expect(line);
            let Command::Watch(options) = parsed.command else { panic!("{line}") };
            assert_eq!((options.every.as_secs(), options.times), (1, Some(3)), "{line}");
        }
    }

    /// Common flags stand apart from those of the command.
    #[test]
    fn flags_of_the_connection_have_a_heading() {
        for mut command in Arguments::command().get_subcommands_mut().map(|command| command.clone()) {
            let help = command.render_long_help().to_string();
            let (own, connection) = help.split_once("Connection:").unwrap_or((&help, ""));
            let has = |text: &str, flag: &str| text.lines().any(|line| line.trim_start().starts_with(flag));
            for flag in ["--admin <", "--to-admin <", "--tls-ca", "--tls-name", "--socket <"] {
                assert!(!has(own, flag), "{}: {flag} is no flag of its own", command.get_name());
            }
            assert!(!has(connection, "--json") && !has(connection, "--limit"), "{}", command.get_name());
        }
    }

    #[test]
    fn invalid_command_lines_are_refused() {
        for line in [
            "",
            "status extra",
            "directory move a b",
            "directory lead",
            "push",
            "push --quiet --json key file",
            "push --arena-bytes much key file",
            "push --force key file",
            "push key file --shape 3,x",
            "push key file --dtype f33",
            "push key file --version -1",
            "push key file --until later",
            "push key file --until fetched:0",
            "push key file --outlive --hold 1s",
            "fetch key",
            "fetch --prefix p",
            "fetch --prefix p key file",
            "layout",
            "layout policy --limit 0",
            "layout policy --timeout soon",
            "completions cmd.exe",
            "man",
            "fetch key - --exactly 1 --at-least 2",
            "fetch key - --timeout soon",
            "tensors --admin ftp://x",
            "poll sometimes",
            "poll --for-us 10",
            "poll adaptive --for-us 0",
            "devices extra",
            "copy f",
            "copy f b",
            "copy f :p",
            "copy f b:p --message-size 1KiB",
            "copy f b:p --quiet --json",
            "copy f b:p --compare rsync",
            "copy f b:p --compare-to x:y",
            "copy f b:p --compare cp --compare-to y",
            "ping",
            "ping b c",
            "ping b --count 0",
            "ping b --ud 3",
            "ping b --interval soon",
            "ping b --timeout 10s",
            "tensors --page-size 1001",
            "tensors --limit 0",
            "exchanges epoch",
            "segments --kind cloud",
            "transfers --older-than soon",
            "delete",
            "drain --deadline 0s",
            "evict --uid root",
            "watch",
            "top --every 0s",
            "watch doctor",
            "watch --times 0 links",
            "watch links --times 0",
            "events --after x",
            "doctor extra",
            "certs --node a",
            "certs --out d",
            "certs --out d --node a/b",
            "certs --out d --node ca",
            "certs --out d --node a=b:1",
            "certs --out d --node a --days 0",
        ] {
            let words = std::iter::once("transferctl").chain(line.split_whitespace());
            let error = Arguments::try_parse_from(words).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
