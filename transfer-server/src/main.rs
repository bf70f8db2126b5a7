//! `transferd`: the sidecar as a process.
//!
//! Prints one line that begins with `transferd ready` to stdout when workers can connect. Exit status: 0 after SIGTERM, SIGINT or a drain, 1
//! when it could not start, 2 for a wrong command line, 3 when it ended by itself.
#![forbid(unsafe_code)]

use clap::Parser;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use transfer_server::config::Flags;
use transfer_server::observe::logging::LogControl;
use transfer_server::{Sidecar, StartError};

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Err(e) = LogControl::install(&flags.log) {
        eprintln!("transferd: --log: {e}");
        return ExitCode::from(2);
    }
    let ready_file = flags.ready_file.clone();
    let started = flags.into_config().map_err(StartError::from).and_then(|config| {
        // Before anything is bound, so that a signal during the start is not lost.
        let signals = Signals::new().map_err(|source| StartError::System { what: "listening for signals", source })?;
        Ok((signals, Sidecar::start(config)?))
    });
    let (signals, sidecar) = match started {
        Ok(started) => started,
        Err(e) => {
            eprintln!("transferd: {e}");
            return ExitCode::from(if matches!(e, StartError::Config(_)) { 2 } else { 1 });
        }
    };
    let line = format!("transferd ready {}", sidecar.addresses());
    let announced = announce(&line, ready_file.as_deref());
    let _ready_file = ready_file.map(RemovedAtEnd);
    if let Err(e) = announced {
        eprintln!("transferd: cannot say that it is ready: {e}");
        return ExitCode::from(1);
    }
    let as_wanted = signals.wait(&sidecar) || sidecar.has_drained();
    sidecar.stop();
    ExitCode::from(if as_wanted { 0 } else { 3 })
}

/// SIGTERM and SIGINT.
struct Signals {
    runtime: tokio::runtime::Runtime,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (terminate, interrupt) = {
            let _entered = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        Ok(Signals { runtime, terminate, interrupt })
    }

    /// Waits for a signal, or for the sidecar to end by itself; `true` for a signal.
    fn wait(mut self, sidecar: &Sidecar) -> bool {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.terminate.recv() => true,
                _ = self.interrupt.recv() => true,
                () = sidecar.ended() => false,
            }
        })
    }
}

/// Says that the sidecar is ready, on stdout and in the file.
fn announce(line: &str, file: Option<&Path>) -> std::io::Result<()> {
    if let Some(file) = file {
        // Whoever finds the file finds the whole line in it.
        let mut unfinished = file.as_os_str().to_owned();
        unfinished.push(".tmp");
        std::fs::write(&unfinished, format!("{line}\n"))?;
        std::fs::rename(&unfinished, file)?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
