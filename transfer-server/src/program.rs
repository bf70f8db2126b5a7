//! `transferd`: the sidecar as a process.
//!
//! Prints one line that begins with `transferd ready` to stdout when workers can connect. SIGHUP makes it read its
//! configuration again. Exit status: 0 after SIGTERM, SIGINT or a drain, 1 when it could not start, 2 for an invalid
//! configuration, 3 when it ended by itself.

use crate::config::{self, LoadError, Loaded};
use crate::observe::logging::LogControl;
use crate::{Sidecar, StartError};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use sd_notify::NotifyState;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use transfer_core::text::printable;
use transfer_terminal::errln;

/// Runs the sidecar with this command line, whose first word is the program's name, until it is told to end. Returns
/// the exit status. Help and errors of the command line are printed, and then the process exits.
#[must_use]
pub fn run(arguments: &[OsString]) -> u8 {
    let loaded = match config::load(arguments) {
        Ok(loaded) => loaded,
        // Help and the version arrive as errors too, but are no failure.
        Err(LoadError::CommandLine(e)) => e.exit(),
        Err(e) => return wrong(&e),
    };
    if loaded.flags.source.print_config {
        return say(&loaded.to_toml());
    }
    if loaded.flags.source.check {
        return match crate::check(&loaded) {
            Ok(remarks) => {
                remarks.iter().for_each(|remark| errln!("transferd: {remark}"));
                say("transferd: the configuration is good\n")
            }
            Err(e) => wrong(&e),
        };
    }
    let _log = match LogControl::install(&loaded.flags.log) {
        Ok(log) => FlushedAtEnd(log),
        Err(e) => {
            errln!("transferd: --log: {e}");
            return 2;
        }
    };
    let config = match loaded.config() {
        Ok(config) => config,
        Err(e) => return wrong(&e),
    };
    raise_descriptor_limit();
    let ready_file = loaded.flags.ready_file.clone();
    // Signals are caught before anything is bound, so that a signal during the start is not lost.
    let signals = Signals::new().map_err(|source| StartError::System { what: "listening for signals", source });
    let (signals, sidecar) = match signals.and_then(|signals| Ok((signals, Sidecar::start(config)?))) {
        Ok(started) => started,
        Err(e @ (StartError::Config(_) | StartError::Tls(_))) => return wrong(&e),
        Err(e) => {
            // Another node may have chosen the words.
            errln!("transferd: {}", printable(e.to_string()));
            return 1;
        }
    };
    let line = format!("transferd ready {}", sidecar.addresses());
    let announced =
        announce(&line, ready_file.as_deref()).map_err(|(to, e)| format!("{to}: cannot write that it is ready: {e}"));
    let _ready_file = ready_file.map(RemovedAtEnd);
    if let Err(e) = announced {
        errln!("transferd: {e}");
        return 1;
    }
    tell_systemd(&[NotifyState::Ready]);
    let as_wanted = signals.wait(&sidecar, arguments, loaded) || sidecar.has_drained();
    tell_systemd(&[NotifyState::Stopping]);
    sidecar.stop();
    if as_wanted { 0 } else { 3 }
}

/// Raises the limit of descriptors to its maximum: each worker takes some, and so does each segment that is passed to
/// one.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => tracing::debug!(from = limit.current, to = limit.maximum, "more descriptors"),
        Err(error) => tracing::warn!(%error, limit = limit.current, "the limit of open files stays as it is"),
    }
}

/// Reports an invalid configuration. Returns the exit status 2.
fn wrong(error: &dyn std::error::Error) -> u8 {
    errln!("transferd: {error}");
    2
}

fn say(text: &str) -> u8 {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => 0,
        Err(e) => {
            errln!("transferd: cannot write to standard output: {e}");
            1
        }
    }
}

/// Reads the configuration again. Returns the one in effect: the new one, or the previous one if the new one is
/// invalid.
fn reload(sidecar: &Sidecar, arguments: &[OsString], before: Loaded) -> Loaded {
    let again = config::load(arguments).map_err(|e| e.to_string());
    let applied = again.and_then(|new| Ok((sidecar.reload(&before, &new).map_err(|e| e.to_string())?, new)));
    match applied {
        Ok((reloaded, new)) => {
            if !reloaded.needs_restart.is_empty() {
                let keys = reloaded.needs_restart.join(", ");
                tracing::warn!(keys, "changed in the configuration, and in effect only after a restart");
            }
            let changed = reloaded.changed.join(", ");
            tracing::info!(changed, "the configuration was read again");
            new
        }
        Err(why) => {
            tracing::error!(why, "the new configuration cannot be; everything stays as it was");
            before
        }
    }
}

/// SIGTERM, SIGINT and SIGHUP; and SIGXFSZ, only so that a file that would be too long is an error of its write.
struct Signals {
    runtime: tokio::runtime::Runtime,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    _file_size: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let hangup = signal(SignalKind::hangup())?;
        let _file_size = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
        drop(entered);
        Ok(Signals { runtime, terminate, interrupt, hangup, _file_size })
    }

    /// Waits for a signal to end, or until the sidecar ends by itself. Returns `true` for a signal. Reloads the
    /// configuration on each SIGHUP.
    fn wait(mut self, sidecar: &Sidecar, arguments: &[OsString], mut loaded: Loaded) -> bool {
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.terminate.recv() => return true,
                    _ = self.interrupt.recv() => return true,
                    _ = self.hangup.recv() => loaded = reload(sidecar, arguments, loaded),
                    () = sidecar.ended() => return false,
                }
            }
        })
    }
}

/// Announces on stdout and in the ready file that the sidecar is ready.
///
/// # Errors
/// The place that could not be written, and the cause.
fn announce(line: &str, file: Option<&Path>) -> Result<(), (String, std::io::Error)> {
    if let Some(file) = file {
        // The rename makes the file appear with its whole line.
        let mut unfinished = file.as_os_str().to_owned();
        unfinished.push(".tmp");
        let written =
            std::fs::write(&unfinished, format!("{line}\n")).and_then(|()| std::fs::rename(&unfinished, file));
        written.map_err(|e| (format!("--ready-file {}", file.display()), e))?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| ("the standard output".to_owned(), e))
}

/// Notifies systemd if it started this process (Type=notify). Otherwise does nothing.
fn tell_systemd(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        tracing::warn!(error = %e, "systemd cannot be told");
    }
}

struct FlushedAtEnd(LogControl);

impl Drop for FlushedAtEnd {
    fn drop(&mut self) {
        self.0.flush();
    }
}

struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
