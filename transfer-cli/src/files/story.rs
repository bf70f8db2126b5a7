//! The report of many transfers: a bar while they run, a line for each, and the sum.

use super::digest::Hash;
use super::error::FilesError;
use crate::error::Error;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::time::Duration;
use transfer_client::{Report, TensorMeta};
use transfer_terminal::exit::Exit;
use transfer_terminal::output::complain;
use transfer_terminal::units::{bytes, counted, nanos};
use transfer_terminal::{errln, outln};

/// The verbosity.
#[derive(Debug, Clone, clap::Args)]
pub struct Verbosity {
    /// One JSON object per line: one for each finished tensor, and the sum at the end; in bytes and nanoseconds
    #[arg(long)]
    pub json: bool,
    /// Only errors: no progress, no report
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// A finished transfer.
pub(super) struct FileLine<'a> {
    pub(super) key: &'a str,
    pub(super) version: u64,
    pub(super) meta: &'a TensorMeta,
    pub(super) report: &'a Report,
    /// Further bytes that were copied here.
    pub(super) copied_here: u64,
    pub(super) took: Duration,
    pub(super) digest: Option<&'a Hash>,
    /// Whether its bytes were read again and compared.
    pub(super) verified: bool,
    pub(super) file: Option<&'a str>,
}

/// A failed transfer.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) key: String,
    pub(super) error: Box<Error>,
}

impl Failed {
    pub(super) fn of(key: &str, error: impl Into<Error>) -> Failed {
        Failed { key: key.to_owned(), error: Box::new(error.into()) }
    }
}

/// A bar. It is drawn only on a terminal, and not at all if the user wants quiet; a dropped one is cleared.
pub(super) fn bar(all_bytes: Option<u64>, verbosity: &Verbosity) -> ProgressBar {
    let target = if verbosity.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(all_bytes, target);
    set_style(&bar);
    // It is also drawn before anything is counted.
    bar.enable_steady_tick(REDRAW_INTERVAL);
    bar
}

/// The interval at which an unchanged bar is drawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

fn set_style(bar: &ProgressBar) {
    let style = match bar.length() {
        Some(_) => "{bar:30} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left  {msg}",
        None => "{spinner} {binary_bytes}  {binary_bytes_per_sec}  {msg}",
    };
    // This fails only if the template is wrong.
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
}

/// Adds a transfer of that many bytes that has not been counted.
pub(super) fn expect(bar: &ProgressBar, len_bytes: u64) {
    match bar.length() {
        Some(_) => bar.inc_length(len_bytes),
        None => {
            bar.set_length(len_bytes);
            set_style(bar);
        }
    }
}

/// The report so far.
pub(super) struct Story {
    what: &'static str,
    all: usize,
    verbosity: Verbosity,
    to_stderr: bool,
    bar: ProgressBar,
    done: usize,
    bytes: u64,
    copied: u64,
    failed: Vec<Exit>,
    /// The failure of a single transfer: it is the result of the command.
    only: Option<Error>,
}

impl Story {
    /// Makes a report. `what` is "pushed" or "fetched". It goes to the standard error if the standard output has other
    /// contents.
    pub(super) fn new(
        what: &'static str,
        all: usize,
        all_bytes: Option<u64>,
        verbosity: &Verbosity,
        to_stderr: bool,
    ) -> Story {
        let (bar, verbosity) = (bar(all_bytes, verbosity), verbosity.clone());
        Story { what, all, verbosity, to_stderr, bar, done: 0, bytes: 0, copied: 0, failed: Vec::new(), only: None }
    }

    /// The bar. Any thread may report bytes that were read or written to it.
    pub(super) fn progress(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Sets the number of transfers. Some of them may be in pieces.
    pub(super) fn count(&mut self, all: usize) {
        self.all = all;
    }

    /// Shows a step on the bar before anything is counted.
    pub(super) fn preparing(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Prints a remark on the standard error.
    pub(super) fn remark(&self, text: &str) {
        if !self.verbosity.quiet {
            self.bar.suspend(|| errln!("{text}"));
        }
    }

    /// Prints an alarm about finished transfers on the standard error, even with --quiet.
    pub(super) fn alarm(&self, text: &str) {
        self.bar.suspend(|| errln!("transferctl: {text}"));
    }

    pub(super) fn done(&mut self, line: &FileLine<'_>) {
        let FileLine { key, version, meta, report, copied_here, took, digest, verified, file } = line;
        let copied = report.copied + copied_here;
        self.done += 1;
        self.bytes += meta.len_bytes();
        self.copied += copied;
        self.bar.set_message(format!("{} of {}", self.done, self.all));
        if self.verbosity.json {
            self.say(
                &json!({
                    "key": key, "version": version, "dtype": meta.dtype().name(), "shape": meta.shape().dims(),
                    "bytes": meta.len_bytes(), "fabric": report.fabric.name(), "copied_bytes": copied,
                    "queued_ns": nanos(report.queued), "waited_ns": nanos(report.waited), "in_flight_ns": nanos(report.in_flight),
                    "took_ns": nanos(*took), "blake3": digest.map(|digest| digest.to_hex().to_string()),
                    "verified": verified, "verified_bytes": report.verified, "relayed_bytes": report.relayed, "file": file,
                })
                .to_string(),
            );
            return;
        }
        let size = bytes(meta.len_bytes());
        let verified = if *verified { ", verified" } else { "" };
        match self.all {
            1 => {
                let besides = if *copied_here > 0 { format!(" and {copied_here} B here") } else { String::new() };
                self.say(&format!("{key:?} version {version}: {meta}, {size}{verified}\n{report}{besides}"));
            }
            _ => {
                let fabric = report.fabric;
                self.say(&format!("{key:?} version {version}: {meta}, {size}, {fabric}, copied={copied} B{verified}"));
            }
        }
    }

    pub(super) fn failed(&mut self, failed: Failed) {
        let Failed { key, error } = failed;
        self.failed.push(error.exit());
        if self.verbosity.json {
            self.say(&json!({ "key": key, "error": error.in_one_line(), "exit": error.exit().code() }).to_string());
        }
        match self.all {
            1 => self.only = Some(*error),
            _ => self.bar.suspend(|| complain(&error.for_people())),
        }
    }

    /// Prints the sum. Returns the result of the command. With `whole`, finished transfers do not count if one has
    /// failed.
    pub(super) fn end(&mut self, whole: bool) -> Result<(), Error> {
        self.bar.finish_and_clear();
        // This includes the tensors that were not tried because of a general failure.
        let tried = self.done + self.failed.len();
        if let Some(exit) = self.failed.last().copied() {
            self.failed.extend(std::iter::repeat_n(exit, self.all.saturating_sub(tried)));
        }
        if self.verbosity.json {
            let sum = json!({
                "done": self.done, "failed": self.failed.len(), "bytes": self.bytes, "copied_bytes": self.copied,
            });
            self.say(&sum.to_string());
        } else if self.all > 1 && (!whole || self.failed.is_empty()) {
            let (done, what) = (counted(self.done as u64, "tensor", "tensors"), self.what);
            self.say(&format!("{done} {what}, {}, copied={} B", bytes(self.bytes), self.copied));
        }
        if let Some(error) = self.only.take() {
            return Err(error);
        }
        match self.failed.first() {
            None => Ok(()),
            Some(first) => {
                let exit = if self.done > 0 && !whole { Exit::PartlyDone } else { *first };
                Err(FilesError::Some { failed: self.failed.len(), all: self.all, exit }.into())
            }
        }
    }

    /// Prints a line of the report.
    pub(super) fn say(&self, text: &str) {
        match (self.verbosity.quiet, self.to_stderr) {
            (true, _) => {}
            (false, true) => self.bar.suspend(|| errln!("{text}")),
            (false, false) => self.bar.suspend(|| outln!("{text}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_bar_has_a_total_once_a_length_is_known() {
        let verbosity = Verbosity { json: false, quiet: true };
        let story = Story::new("fetched", 2, None, &verbosity, false);
        let bar = story.progress();
        assert_eq!(bar.length(), None);
        expect(&bar, 100);
        expect(&bar, 50);
        assert_eq!(bar.length(), Some(150));
        story.preparing("the sidecar makes room".to_owned());
        assert_eq!(bar.message(), "the sidecar makes room");
    }
}
