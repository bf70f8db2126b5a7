//! The options of `transferctl copy`.

use super::Worker;
use super::story::Verbosity;
use crate::admin::Target;
use crate::admin::address::Address;
use std::path::PathBuf;
use std::str::FromStr;
use transfer_terminal::units::size;

/// The smallest and the largest piece that a sidecar takes, in bytes.
const MESSAGE_BYTES: std::ops::RangeInclusive<u64> = 4096..=64 << 20;

/// Where a file is copied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct To {
    /// The node: its name, or its address.
    pub host: String,
    /// The path below its folder for copies.
    pub path: String,
}

/// The text is no HOST:PATH.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is HOST:PATH, with a node's name or address before the colon, and a path below its folder for copies")]
pub struct NotATarget;

impl FromStr for To {
    type Err = NotATarget;

    fn from_str(text: &str) -> Result<To, NotATarget> {
        // An IPv6 address has brackets, and an address may have a port.
        let after = text.find(']').filter(|_| text.starts_with('[')).unwrap_or(0);
        let (_, rest) = text.split_at(after);
        let mut end = after + rest.find(':').ok_or(NotATarget)?;
        let behind = &text[end + 1..];
        if let Some((port, _)) = behind.split_once(':').filter(|(port, _)| port.parse::<u16>().is_ok()) {
            end += 1 + port.len();
        }
        match (&text[..end], &text[end + 1..]) {
            ("", _) | (_, "") => Err(NotATarget),
            (host, path) => Ok(To { host: host.to_owned(), path: path.to_owned() }),
        }
    }
}

/// A program to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Other {
    /// rsync, without its algorithm for differences, and without compression.
    Rsync,
    /// scp.
    Scp,
}

/// The options of `transferctl copy`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The file to copy
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where to: a node's name, or the address of its --listen, and a path below its folder for copies (--copy-folder of
    /// transferd)
    #[arg(value_name = "HOST:PATH")]
    pub to: To,
    /// Replace a regular file that is there
    #[arg(long)]
    pub overwrite: bool,
    /// The bytes of one piece: each is one transfer
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = message_size)]
    pub message_size: u64,
    /// Allow it over RDMA to a node with certificates, although RDMA is not encrypted
    #[arg(long)]
    pub unencrypted: bool,
    /// Then send the same file by this program, and print the times of both
    #[arg(long, value_name = "PROGRAM", requires = "compare_to")]
    pub compare: Option<Other>,
    /// Where that program sends the file, in its own words: user@host:path, or rsync://host/module/path
    #[arg(long, value_name = "TARGET", requires = "compare")]
    pub compare_to: Option<String>,
    /// Where HOST's sidecar takes the call, if it is not the address that the directory knows: its --admin-socket, for
    /// instance
    #[arg(long, help_heading = "Connection", value_name = "URL|PATH")]
    pub to_admin: Option<Address>,
    /// The worker that publishes the pieces.
    #[command(flatten)]
    pub worker: Worker,
    /// The sidecar.
    #[command(flatten)]
    pub target: Target,
    /// The report.
    #[command(flatten)]
    pub verbosity: Verbosity,
}

fn message_size(text: &str) -> Result<u64, String> {
    let bytes = size(text).map_err(|e| e.to_string())?;
    match MESSAGE_BYTES.contains(&bytes) {
        true => Ok(bytes),
        false => Err("a piece has 4KiB to 64MiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_path_are_told_apart() {
        for (text, host, path) in [
            ("b:f", "b", "f"),
            ("b:d/f", "b", "d/f"),
            ("b:a:b", "b", "a:b"),
            ("b:123", "b", "123"),
            ("10.0.0.2:7471:f", "10.0.0.2:7471", "f"),
            ("[fe80::1]:f", "[fe80::1]", "f"),
            ("[fe80::1]:7471:f:g", "[fe80::1]:7471", "f:g"),
        ] {
            assert_eq!(text.parse(), Ok(To { host: host.into(), path: path.into() }), "{text}");
        }
        for text in ["", "b", ":f", "b:", "10.0.0.2:7471:", "[fe80::1]"] {
            assert_eq!(text.parse::<To>(), Err(NotATarget), "{text}");
        }
    }
}
