//! The command line of `transferctl`.

use crate::{admin, devices, doctor, files};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use transfer_terminal::exit::{self, Exit};

/// Looks into sidecars, and moves files through them.
#[derive(Debug, Parser)]
#[command(name = "transferctl", version, max_term_width = 120, after_help = exit::help(&Exit::ALL))]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Who the sidecar is, how it is, what it holds and what it counted
    Status(admin::status::Options),
    /// Connected workers
    Sessions(admin::lists::Sessions),
    /// Nodes with a link, or to which one is being made
    Peers(admin::lists::Peers),
    /// Links to peers: what carries them, why nothing better, what waits on them and what they have carried
    Links(admin::lists::Links),
    /// The tensors that are published at the sidecar, or at all nodes
    Tensors(admin::lists::Tensors),
    /// Memory: arenas of workers, landing pools, and the sidecar's own
    Segments(admin::lists::Segments),
    /// What workers have begun and what has not ended, and what it waits for
    Transfers(admin::lists::Transfers),
    /// Landing slots that are not free because a peer might still write there
    Quarantine(admin::lists::Quarantine),
    /// What happens, as it happens
    Events(admin::events::Options),
    /// A live screen: throughput of links, transfers, pools, workers, the slowest waits
    Top(admin::top::Options),
    /// One of these again and again
    Watch(admin::watch::Options),
    /// End a key, whoever owns it
    Delete(admin::changes::Delete),
    /// Let the sidecar finish what runs, take nothing new, and leave
    Drain(admin::drain::Options),
    /// Call back landing slots that lie idle, so that their room is free
    Evict(admin::changes::Evict),
    /// What the sidecar logs; or changes it
    LogLevel(admin::changes::LogLevel),
    /// How the sidecar's data plane waits for work; or changes it: busy, event, adaptive
    Poll(admin::poll::Options),
    /// The RDMA devices of this host: what ibv_devices, ibv_devinfo and ibstat show
    Devices(devices::Options),
    /// What is wrong with this host and its sidecar, and what to do about it
    Doctor(doctor::Options),
    /// Publish files as tensors, until interrupted
    Push(files::push_options::Options),
    /// Fetch tensors into files
    Fetch(files::fetch_options::Options),
    /// Print what makes a shell complete the words of a command line
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    Man {
        /// Where to: a directory, made where it is missing.
        directory: PathBuf,
    },
    /// Moved: the program transfer-bench measures
    #[command(hide = true, disable_help_flag = true)]
    Bench {
        /// What the bench was told.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// The command line of this process. What is wrong with it is printed, and ends the process.
#[must_use]
pub fn parse() -> Arguments {
    parse_from(&std::env::args_os().collect::<Vec<_>>())
}

/// These words as a command line, the first of which is the program's name. What is wrong with it is printed, and ends the process.
#[must_use]
pub fn parse_from(words: &[OsString]) -> Arguments {
    match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => match of_environment(&error, words) {
            None => error.exit(),
            Some(text) => {
                eprintln!("transferctl: {text}");
                std::process::exit(Exit::WrongUse.code().into())
            }
        },
    }
}

/// What is wrong with a value that the environment has and the command line has not: the parser would blame the flag.
fn of_environment(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    // `--admin <URL|PATH>`
    let flag = shown.split([' ', '=']).next()?;
    let given = |word: &OsString| word.to_str().is_some_and(|word| word.split('=').next() == Some(flag));
    if words.iter().any(given) {
        return None;
    }
    let command = Arguments::command();
    let mut all = command.get_subcommands().flat_map(|command| command.get_arguments());
    let name = all.find(|arg| arg.get_long() == flag.strip_prefix("--"))?.get_env()?;
    let (name, value) = (name.to_string_lossy(), std::env::var_os(name)?);
    let why = std::error::Error::source(error).map_or_else(|| "it cannot be".to_owned(), ToString::to_string);
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

    /// Where words stand is a matter of taste.
    #[test]
    fn how_often_to_watch_stands_before_or_behind_what() {
        for line in ["watch --every 1s --times 3 tensors", "watch tensors --every 1s --times 3"] {
            let parsed = Arguments::try_parse_from(std::iter::once("transferctl").chain(line.split(' '))).expect(line);
            let Command::Watch(options) = parsed.command else { panic!("{line}") };
            assert_eq!((options.every.as_secs(), options.times), (1, Some(3)), "{line}");
        }
    }

    /// What they have in common stands apart from what is theirs.
    #[test]
    fn the_flags_of_a_connection_have_a_heading() {
        for mut command in Arguments::command().get_subcommands_mut().map(|command| command.clone()) {
            let help = command.render_long_help().to_string();
            let (own, connection) = help.split_once("Connection:").unwrap_or((&help, ""));
            let has = |text: &str, flag: &str| text.lines().any(|line| line.trim_start().starts_with(flag));
            for flag in ["--admin <", "--tls-ca", "--tls-name", "--socket <"] {
                assert!(!has(own, flag), "{}: {flag} is no flag of its own", command.get_name());
            }
            assert!(!has(connection, "--json") && !has(connection, "--limit"), "{}", command.get_name());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "",
            "status extra",
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
            "completions cmd.exe",
            "man",
            "fetch key - --exactly 1 --at-least 2",
            "fetch key - --timeout soon",
            "tensors --admin ftp://x",
            "poll sometimes",
            "poll --for-us 10",
            "poll adaptive --for-us 0",
            "devices extra",
            "tensors --page-size 1001",
            "tensors --limit 0",
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
        ] {
            let words = std::iter::once("transferctl").chain(line.split_whitespace());
            let error = Arguments::try_parse_from(words).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
