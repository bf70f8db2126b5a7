//! The lines of the log on their way to standard error.
//!
//! Standard error may be a pipe that nobody reads. So a thread that logs only puts its line into a bounded queue, and a
//! thread of the log writes. A line that finds the queue full is dropped and counted.

use super::limit::TARGET;
use super::logging::LogFormat;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tracing::field::Field;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use transfer_core::text::{acts_where_shown, printable};

/// The most bytes that wait to be written.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// The queue. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Lines(Arc<LineQueue>);

#[derive(Debug)]
struct LineQueue {
    format: LogFormat,
    queue: Mutex<Queue>,
    /// Notified when there is something to write.
    to_write: Condvar,
    /// Notified when everything was written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// The bytes of `lines`.
    len_bytes: usize,
    /// Whether the thread writes lines that are not in `lines` any more.
    writing: bool,
    /// The number of lines that were dropped.
    dropped: u64,
    /// Those of them that no line has reported.
    untold: u64,
}

impl Lines {
    pub(super) fn new(format: LogFormat) -> Lines {
        let (to_write, written) = (Condvar::new(), Condvar::new());
        Lines(Arc::new(LineQueue { format, queue: Mutex::default(), to_write, written }))
    }

    /// Returns the number of lines that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.0.queue.lock().dropped
    }

    /// Adds a line, which ends with a newline. Never waits for the reader of the log.
    fn add(&self, line: &str) {
        let line = match self.0.format {
            LogFormat::Text => line.as_bytes().to_vec(),
            LogFormat::Json => escaped_json(line).into_bytes(),
        };
        let mut queue = self.0.queue.lock();
        if queue.len_bytes + line.len() > MAX_WAITING_BYTES {
            queue.dropped += 1;
            queue.untold += 1;
            return;
        }
        queue.len_bytes += line.len();
        queue.lines.push_back(line);
        self.0.to_write.notify_one();
    }

    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn start_writing(&self, mut out: File) -> std::io::Result<()> {
        let lines = self.clone();
        std::thread::Builder::new().name("transfer-stderr".into()).spawn(move || {
            loop {
                let (line, untold) = lines.take();
                if let Some(line) = line
                    && !write(&mut out, &line)
                {
                    let mut queue = lines.0.queue.lock();
                    queue.dropped += 1;
                }
                if untold > 0 {
                    tracing::warn!(target: TARGET, dropped = untold, "log lines dropped: standard error did not take them");
                }
            }
        })?;
        Ok(())
    }

    /// Waits for the next line, and takes it. Once there is room for a report, it also takes the number of dropped lines that were
    /// not reported.
    fn take(&self) -> (Option<Vec<u8>>, u64) {
        let mut queue = self.0.queue.lock();
        queue.writing = false;
        while queue.lines.is_empty() {
            self.0.written.notify_all();
            self.0.to_write.wait(&mut queue);
        }
        queue.writing = true;
        let line = queue.lines.pop_front();
        queue.len_bytes -= line.as_ref().map_or(0, Vec::len);
        let untold = if queue.len_bytes <= MAX_WAITING_BYTES / 2 { std::mem::take(&mut queue.untold) } else { 0 };
        (line, untold)
    }

    /// Waits until everything is written, for `patience` at most: perhaps nobody reads.
    pub(super) fn flush(&self, patience: Duration) {
        let mut queue = self.0.queue.lock();
        let is_busy = |queue: &mut Queue| queue.writing || !queue.lines.is_empty();
        self.0.written.wait_while_for(&mut queue, is_busy, patience);
    }
}

/// Writes a line, however long that takes. Returns `false` if it cannot be written: the reader of a pipe has gone, or a disk is
/// full.
fn write(out: &mut File, mut line: &[u8]) -> bool {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return false,
            Ok(n) => line = line.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // Another process that shares the open file has made it non-blocking.
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let waited = poll(&mut [PollFd::from_borrowed_fd(out.as_fd(), PollFlags::OUT)], None);
                if waited.is_err_and(|e| e != rustix::io::Errno::INTR) {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}

/// Writes a field of a line of text. The names and texts of others do not act on a terminal, and begin no line.
pub(super) fn text_field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = printable(format!("{value:?}"));
    match field.name() {
        "message" => out.write_str(&text),
        name => write!(out, "{name}={text}"),
    }
}

/// Escapes what acts on a terminal in a line of JSON, where it can only be inside of a string. Its writer escapes only what
/// JSON does not allow there.
fn escaped_json(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for c in line.chars() {
        match acts_where_shown(c) && c != '\n' {
            // None of these characters takes two units.
            true => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// The formatter writes each line at once.
impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.add(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::logging::layer;
    use std::io::{BufRead, BufReader};
    use tracing_subscriber::layer::SubscriberExt;

    /// Returns a line with these words, as the log writes it.
    fn logged(format: LogFormat, colours: bool, words: &str) -> String {
        let lines = Lines::new(format);
        let subscriber = tracing_subscriber::registry().with(layer(&lines, format, colours));
        tracing::subscriber::with_default(subscriber, || tracing::info!(worker = %words, text = words, "{words}"));
        let line = lines.0.queue.lock().lines.pop_front().expect("one line");
        String::from_utf8(line).expect("text")
    }

    // Promise: escaped-names, seen to fail
    #[test]
    fn words_of_others_are_escaped_in_every_format_of_the_log() {
        const HOSTILE: &str = "w\u{1b}[31mred\nname\r\u{9b}2J\u{202e}";
        for (format, colours) in [(LogFormat::Text, false), (LogFormat::Text, true), (LogFormat::Json, false)] {
            let line = logged(format, colours, HOSTILE);
            assert!(!line.contains("\u{1b}[31m"), "{line:?}");
            let text = line.strip_suffix('\n').expect("one line");
            assert!(text.chars().all(|c| !acts_where_shown(c) || (colours && c == '\u{1b}')), "{line:?}");
            assert!(line.matches("red").count() == 3 && line.matches("name").count() == 3, "{line:?}");
        }
        let json = logged(LogFormat::Json, false, "a\u{9b}\u{202e}\nb");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["worker"], &json["text"]), (&"a\u{9b}\u{202e}\nb".into(), &"a\u{9b}\u{202e}\nb".into()));
        let text = logged(LogFormat::Text, false, "a b");
        assert!(text.ends_with(" a b worker=a b text=\"a b\"\n"), "{text:?}");
    }

    // Promise: log-readers
    #[test]
    fn lines_that_nobody_reads_are_dropped_counted_and_reported() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let lines = Lines::new(LogFormat::Text);
        lines.start_writing(writer.into()).expect("a thread");
        let mut added = 0;
        while lines.dropped() < 3 {
            lines.add(&format!("{added} {}\n", "x".repeat(1000)));
            added += 1;
        }
        lines.flush(Duration::from_millis(1));
        let (kept, dropped) = (added - 3, 3);
        let mut read = BufReader::new(File::from(reader)).lines().map(|line| line.expect("a line"));
        for n in 0..kept {
            assert!(read.next().expect("a line").starts_with(&format!("{n} ")), "in order, none left out");
        }
        // Its thread logs to the log of the process, and the test has none: what it took is what it reports.
        lines.flush(Duration::MAX);
        let queue = lines.0.queue.lock();
        assert_eq!((queue.dropped, queue.untold), (dropped, 0));
    }

    // Promise: log-readers
    #[test]
    fn log_without_a_reader_ends_nothing() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(reader);
        let lines = Lines::new(LogFormat::Text);
        lines.start_writing(writer.into()).expect("a thread");
        lines.add("lost\n");
        lines.flush(Duration::MAX);
        assert_eq!(lines.dropped(), 1);
    }
}
