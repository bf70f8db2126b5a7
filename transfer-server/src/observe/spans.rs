//! Records of finished transfers. A thread of its own writes them; the data plane passes them on and never waits.
//!
//! The records are log lines of the target [`TARGET`] at the level debug. So they cost nothing unless `--log
//! info,transfer_span=debug` enables them. The limit of log lines does not apply to them. If there is a collector, they
//! are also sent to it as spans.

use super::otlp::{self, Export, OtlpConfig, Queue};
use crossbeam_channel::{Receiver, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transfer_core::protocol::EndedTransfer;
use transfer_core::tensor::Name;
use transfer_fabric::engine::{Clock, TraceSink};

/// The target of these lines.
pub(super) const TARGET: &str = "transfer_span";

/// The most records that wait to be written.
const MAX_WAITING_RECORDS: usize = 16 << 10;

/// The number of records that were dropped because too many waited. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpansDropped(Arc<AtomicU64>);

impl SpansDropped {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The state of the records of transfers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    pub(crate) dropped: SpansDropped,
    /// The export, if there is a collector.
    pub(crate) export: Option<Export>,
}

fn wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// Starts the thread that writes records, and the thread that sends spans if there is a collector. Both end with the
/// engine that owns the sink.
///
/// # Errors
/// The error of the system, or of the exporter.
pub(crate) fn start(config: &OtlpConfig, node: &Name, incarnation: u64) -> std::io::Result<(TraceSink, Records)> {
    let (queue, export) = otlp::start(config, node, incarnation)?.unzip();
    let wanted: fn() -> bool = if queue.is_some() { || true } else { wanted };
    let (to, from) = bounded(MAX_WAITING_RECORDS);
    std::thread::Builder::new().name("transfer-spans".into()).spawn(move || write_down(&from, queue.as_ref()))?;
    let dropped = SpansDropped::default();
    Ok((TraceSink { to, dropped: dropped.0.clone(), wanted }, Records { dropped, export }))
}

fn write_down(from: &Receiver<(EndedTransfer, Clock)>, collector: Option<&Queue>) {
    for (ended, clock) in from {
        if let Some(collector) = collector {
            collector.offer(&ended, clock.wall_clock(ended.at));
        }
        if wanted() {
            log(&ended);
        }
    }
}

fn log(ended: &EndedTransfer) {
    let EndedTransfer { operation, key, worker, version, peer, outcome, took, trace, .. } = ended;
    let (operation, key, peer) = (operation.name(), key.as_str(), peer.as_ref().map_or("", |p| p.as_str()));
    let (worker, version) = (worker.as_ref().map_or("", |w| w.as_str()), version.map(|v| v.0));
    let (trace, took_us) = (trace.map(tracing::field::display), took.as_secs_f64() * 1e6);
    match outcome {
        Ok(r) => tracing::debug!(
            target: TARGET,
            operation,
            key,
            version,
            worker,
            peer,
            trace,
            fabric = r.fabric.name(),
            bytes = r.bytes,
            copied = r.copied,
            queued_us = r.queued.as_secs_f64() * 1e6,
            waited_us = r.waited.as_secs_f64() * 1e6,
            in_flight_us = r.in_flight.as_secs_f64() * 1e6,
            took_us,
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
            trace,
            took_us,
            outcome = ?code,
            "transfer"
        ),
    }
}
