//! Export of transfers as spans, by OTLP to a collector.
//!
//! Nothing waits for the collector. A bounded queue leads to a thread that sends spans in batches. Spans that find the
//! queue full are counted, and so are spans that the collector refuses. When the sidecar ends, the rest of the queue
//! has at most [`FLUSH_TIMEOUT`] to be sent.
//!
//! The SDK's own batch processor is not used, because it does not report how many spans it has dropped.
//!
//! - `config`: the settings.
//! - `span`: the conversion of a transfer into a span.

mod config;
mod span;

pub use config::OtlpConfig;

use crate::text;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use span::Spans;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio::time::{timeout, timeout_at};
use transfer_core::protocol::EndedTransfer;
use transfer_core::tensor::Name;

/// The most spans that wait to be sent.
const MAX_WAITING_SPANS: usize = 16 << 10;

/// The most spans of one call.
const SPANS_PER_CALL: usize = 512;

/// The time for which the first span of a batch waits for more.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// The time-out of a batch.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time for which the end of the sidecar waits for the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Counts the spans that were exported, failed, or were dropped.
#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl ExportCounts {
    /// Returns the counts with the names of their metrics.
    pub(crate) fn get(&self) -> [(&'static str, u64); 3] {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("exported", get(&self.exported)), ("failed", get(&self.failed)), ("dropped", get(&self.dropped))]
    }
}

/// The queue to the thread that sends. The thread ends when this is dropped.
pub(super) struct Queue {
    to: mpsc::Sender<SpanData>,
    spans: Spans,
    counts: Arc<ExportCounts>,
}

impl Queue {
    /// Makes the span of a finished transfer, if its trace is sampled, and puts it into the queue.
    pub(super) fn offer(&self, ended: &EndedTransfer, at: SystemTime) {
        if let Some(span) = self.spans.of(ended, at)
            && self.to.try_send(span).is_err()
        {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The state of the thread that sends. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Export {
    counts: Arc<ExportCounts>,
    ended: watch::Receiver<()>,
}

impl Export {
    /// Returns the counts of spans.
    pub(crate) fn counts(&self) -> &ExportCounts {
        &self.counts
    }

    /// Waits until the last spans are sent, for at most `FLUSH_TIMEOUT`. The queue must be dropped, or about to be dropped.
    pub(crate) async fn flushed(mut self) {
        let ended = async { while self.ended.changed().await.is_ok() {} };
        if timeout(FLUSH_TIMEOUT, ended).await.is_err() {
            tracing::warn!("the last spans are lost: the collector does not take them");
        }
    }
}

/// Starts the thread that sends, if there is a collector.
///
/// # Errors
/// The error of the system, or an error of the exporter about its configuration, which includes the environment's
/// `OTEL_` variables.
pub(super) fn start(config: &OtlpConfig, node: &Name, incarnation: u64) -> io::Result<Option<(Queue, Export)>> {
    let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exporter = {
        let _inside = runtime.enter();
        SpanExporter::builder().with_tonic().with_endpoint(endpoint.as_str()).with_timeout(CALL_TIMEOUT).build()
    };
    let mut exporter = exporter.map_err(io::Error::other)?;
    exporter.set_resource(&resource(node, incarnation));
    let (to, from) = mpsc::channel(MAX_WAITING_SPANS);
    let (alive, ended) = watch::channel(());
    let counts = Arc::new(ExportCounts::default());
    let (counted, endpoint) = (counts.clone(), endpoint.clone());
    std::thread::Builder::new().name("transfer-otlp".into()).spawn(move || {
        runtime.block_on(send(from, &exporter, &endpoint, &counted));
        drop(alive);
    })?;
    let spans = Spans::new(config.otlp_sample);
    Ok(Some((Queue { to, spans, counts: counts.clone() }, Export { counts, ended })))
}

/// Makes the resource of the spans. The attributes of `OTEL_RESOURCE_ATTRIBUTES` are added, and take precedence.
fn resource(node: &Name, incarnation: u64) -> Resource {
    let attributes = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", format!("{node}/{incarnation}")),
        KeyValue::new("transfer.node", node.to_string()),
    ];
    let own = Resource::builder_empty().with_service_name("transferd").with_attributes(attributes);
    own.with_detector(Box::new(EnvResourceDetector::new())).build()
}

async fn send(mut from: mpsc::Receiver<SpanData>, exporter: &SpanExporter, endpoint: &str, counts: &ExportCounts) {
    let (mut batch, mut reached) = (Vec::with_capacity(SPANS_PER_CALL), true);
    while fill(&mut from, &mut batch).await {
        let spans = batch.len() as u64;
        let why = match timeout(CALL_TIMEOUT, exporter.export(std::mem::take(&mut batch))).await {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(text::chain(&e)),
            Err(_) => Some(format!("it has not answered within {CALL_TIMEOUT:?}")),
        };
        let count = if why.is_none() { &counts.exported } else { &counts.failed };
        count.fetch_add(spans, Ordering::Relaxed);
        // One line is logged each time that the collector stops or resumes taking spans.
        match why {
            Some(why) if reached => tracing::warn!(endpoint, why, "the collector does not take spans; they are lost"),
            None if !reached => tracing::info!(endpoint, "the collector takes spans again"),
            _ => continue,
        }
        reached = !reached;
    }
}

/// Waits for a first span, and then for a full batch or for `BATCH_TIME`. Returns `false` if no more spans will come.
async fn fill(from: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) -> bool {
    if from.recv_many(batch, SPANS_PER_CALL).await == 0 {
        return false;
    }
    let until = tokio::time::Instant::now() + BATCH_TIME;
    while batch.len() < SPANS_PER_CALL {
        match timeout_at(until, from.recv_many(batch, SPANS_PER_CALL - batch.len())).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    true
}
