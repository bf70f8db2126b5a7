//! One record for each transfer that has ended, written down on a thread of its own: the data plane hands them over, and waits for nobody.
//!
//! They are log lines of the target [`TARGET`] at the level debug, so nobody pays for them who does not ask:
//! `--log info,transfer_span=debug`. The limit of lines does not hold for them.

use crossbeam_channel::{Receiver, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transfer_core::protocol::EndedTransfer;
use transfer_fabric::engine::TraceSink;

/// The target of these lines.
pub(super) const TARGET: &str = "transfer_span";

/// How many may wait to be written.
const WAITING: usize = 16 << 10;

/// How many were not written, because too many waited. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpansDropped(Arc<AtomicU64>);

impl SpansDropped {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// Starts the thread that writes. It ends with the engine that has the sink.
///
/// # Errors
/// The system's.
pub(crate) fn start() -> std::io::Result<(TraceSink, SpansDropped)> {
    let (to, from) = bounded(WAITING);
    std::thread::Builder::new().name("transfer-spans".into()).spawn(move || write_down(&from))?;
    let dropped = SpansDropped::default();
    Ok((TraceSink { to, dropped: dropped.0.clone(), wanted }, dropped))
}

fn write_down(from: &Receiver<EndedTransfer>) {
    for ended in from {
        let EndedTransfer { operation, key, worker, version, peer, outcome, took, .. } = ended;
        let (operation, key, peer) = (operation.name(), key.as_str(), peer.as_ref().map_or("", |p| p.as_str()));
        let (worker, version) = (worker.as_str(), version.map(|v| v.0));
        match outcome {
            Ok(r) => tracing::debug!(
                target: TARGET,
                operation,
                key,
                version,
                worker,
                peer,
                fabric = r.fabric.name(),
                bytes = r.bytes,
                copied = r.copied,
                queued_us = r.queued.as_secs_f64() * 1e6,
                waited_us = r.waited.as_secs_f64() * 1e6,
                flew_us = r.flew.as_secs_f64() * 1e6,
                took_us = took.as_secs_f64() * 1e6,
                outcome = "ok",
                "transfer"
            ),
            Err(code) => tracing::debug!(
                target: TARGET,
                operation,
                key,
                version,
                worker,
                peer,
                took_us = took.as_secs_f64() * 1e6,
                outcome = ?code,
                "transfer"
            ),
        }
    }
}
