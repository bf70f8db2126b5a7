//! The exit codes of `transferctl`, for scripts: one table, which `--help` and docs/transferctl.md show.

use std::fmt::Write;
use transfer_client::{Error as ClientError, FailureCode};

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Exit {
    /// All that was asked for.
    Done = 0,
    /// It was tried, and failed for another reason than those below.
    Failed = 1,
    /// The command line, or what it names, cannot be.
    WrongUse = 2,
    /// No sidecar answers, or it is gone.
    Unreachable = 3,
    /// This host has no RDMA device that could be shown.
    NoRdma = 4,
    /// The time for it was over.
    TimedOut = 5,
    /// Nobody has published that key or version, or no worker has that name.
    NotFound = 6,
    /// The bytes are not those that they should be.
    NotVerified = 7,
    /// `doctor` found something that does not work.
    Unwell = 8,
    /// Some of many were done, and some were not.
    PartlyDone = 9,
    /// Ended by a signal before it was done.
    Interrupted = 130,
    /// Whoever read the standard output has gone: 128 and the number of SIGPIPE.
    ReaderGone = 141,
}

impl Exit {
    /// All of them, in order.
    pub const ALL: [Exit; 12] = [
        Exit::Done,
        Exit::Failed,
        Exit::WrongUse,
        Exit::Unreachable,
        Exit::NoRdma,
        Exit::TimedOut,
        Exit::NotFound,
        Exit::NotVerified,
        Exit::Unwell,
        Exit::PartlyDone,
        Exit::Interrupted,
        Exit::ReaderGone,
    ];

    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What it means, in a few words.
    #[must_use]
    pub const fn means(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Failed => "failed",
            Exit::WrongUse => "wrong use: the command line, or what it names, cannot be",
            Exit::Unreachable => "the sidecar cannot be reached, or is gone",
            Exit::NoRdma => "no RDMA on this host",
            Exit::TimedOut => "timed out",
            Exit::NotFound => "not found: the key, its version or the worker",
            Exit::NotVerified => "not verified: the bytes are not those that they should be",
            Exit::Unwell => "unwell: doctor found something that does not work",
            Exit::PartlyDone => "partly done: some of many failed",
            Exit::Interrupted => "interrupted before it was done",
            Exit::ReaderGone => "the reader of the standard output has gone",
        }
    }

    /// How a call of a session ended.
    #[must_use]
    pub fn of_call(error: &ClientError) -> Exit {
        match error {
            ClientError::Failed(failure) => match failure.code {
                FailureCode::Deadline | FailureCode::PoolFull => Exit::TimedOut,
                FailureCode::UnknownKey | FailureCode::VersionGone | FailureCode::UnknownWorker => Exit::NotFound,
                _ => Exit::Failed,
            },
            ClientError::ArenaFull { .. } | ClientError::NoAnswer { .. } => Exit::TimedOut,
            ClientError::SidecarGone(_) => Exit::Unreachable,
            ClientError::Name(_) | ClientError::Shape(_) | ClientError::WrongLength { .. } => Exit::WrongUse,
            _ => Exit::Failed,
        }
    }
}

/// The table, as `--help` shows it.
#[must_use]
pub fn help() -> String {
    let mut text = "Exit codes:\n".to_owned();
    for exit in Exit::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:>5}  {}", exit.code(), exit.means());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_same_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/transferctl.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ") && line.ends_with(" |")).collect();
        let codes: Vec<_> = rows.iter().filter(|row| row[2..].starts_with(|c: char| c.is_ascii_digit())).collect();
        let table: Vec<_> = Exit::ALL.iter().map(|exit| format!("| {} | {} |", exit.code(), exit.means())).collect();
        assert_eq!(codes, table.iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_call_ends_as_it_failed() {
        let failed = |code| Exit::of_call(&transfer_client::Failure::new(code, "").into());
        assert_eq!(failed(FailureCode::Deadline), Exit::TimedOut);
        assert_eq!(failed(FailureCode::PoolFull), Exit::TimedOut);
        assert_eq!(failed(FailureCode::UnknownKey), Exit::NotFound);
        assert_eq!(failed(FailureCode::UnknownWorker), Exit::NotFound);
        assert_eq!(failed(FailureCode::KeyOwned), Exit::Failed);
        assert_eq!(Exit::of_call(&ClientError::NoAnswer { waited: std::time::Duration::ZERO }), Exit::TimedOut);
        assert_eq!(Exit::of_call(&ClientError::SidecarGone(transfer_client::Gone::Away)), Exit::Unreachable);
    }

    #[test]
    fn codes_rise_and_help_has_them_all() {
        assert!(Exit::ALL.windows(2).all(|pair| pair[0].code() < pair[1].code()));
        let help = help();
        Exit::ALL.iter().for_each(|exit| assert!(help.contains(exit.means()), "{exit:?}"));
    }
}
