//! The exit codes, for scripts. They mean the same in every program. Each program lists its own in its `--help` and on
//! its page.

use std::fmt::Write;

/// The exit status of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// It failed for another reason than those below.
    Failed = 1,
    /// The command line, or something that it names, is not valid.
    InvalidArguments = 2,
    /// No sidecar answers, or it is gone.
    Unreachable = 3,
    /// This host has no RDMA device to show, or a node has none to ping over.
    NoRdma = 4,
    /// The deadline passed.
    TimedOut = 5,
    /// No worker has published that key or version, or no worker has that name.
    NotFound = 6,
    /// The bytes differ from the expected ones.
    NotVerified = 7,
    /// `transferctl doctor` found something that does not work.
    Unhealthy = 8,
    /// Some of many were done, and some were not.
    PartlyDone = 9,
    /// A signal ended it before it was done.
    Interrupted = 130,
    /// The reader of the standard output has gone: 128 and the number of SIGPIPE.
    ReaderGone = 141,
}

impl Exit {
    /// All exit statuses, in order.
    pub const ALL: [Exit; 12] = [
        Exit::Done,
        Exit::Failed,
        Exit::InvalidArguments,
        Exit::Unreachable,
        Exit::NoRdma,
        Exit::TimedOut,
        Exit::NotFound,
        Exit::NotVerified,
        Exit::Unhealthy,
        Exit::PartlyDone,
        Exit::Interrupted,
        Exit::ReaderGone,
    ];

    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its row in the table of a program's page.
    #[must_use]
    pub fn row(self) -> String {
        format!("| {} | {} |", self.code(), self.means())
    }

    /// Its meaning, in a few words.
    #[must_use]
    pub const fn means(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Failed => "failed",
            Exit::InvalidArguments => "invalid arguments",
            Exit::Unreachable => "the sidecar cannot be reached, or is gone",
            Exit::NoRdma => "no RDMA on this host, or at a node that is pinged over it",
            Exit::TimedOut => "timed out",
            Exit::NotFound => "not found: the key, its version or the worker",
            Exit::NotVerified => "not verified: the bytes differ from the expected ones",
            Exit::Unhealthy => "unhealthy: doctor found something that does not work",
            Exit::PartlyDone => "partly done: some of many failed",
            Exit::Interrupted => "interrupted before it was done",
            Exit::ReaderGone => "the reader of the standard output has gone",
        }
    }
}

/// A table of some exit statuses, as `--help` shows it.
#[must_use]
pub fn help(exits: &[Exit]) -> String {
    let mut text = "Exit codes:\n".to_owned();
    for exit in exits {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:>5}  {}", exit.code(), exit.means());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_rise_and_help_has_them_all() {
        assert!(Exit::ALL.windows(2).all(|pair| pair[0].code() < pair[1].code()));
        let help = help(&Exit::ALL);
        Exit::ALL.iter().for_each(|exit| assert!(help.contains(exit.means()), "{exit:?}"));
    }
}
