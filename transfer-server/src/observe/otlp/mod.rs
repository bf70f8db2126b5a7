//! Export of transfers as spans, by OTLP to a collector.
//!
//! Nobody waits for the collector. Spans stand in a bounded queue, in front of a thread that sends them in batches; for those that find
//! it full there is a count, and so there is for those that the collector has not taken. When the sidecar ends, what is left in the queue has
//! [`FLUSH`] to get there.
//!
//! The SDK's own batch processor is not used, for it does not tell how many spans it has dropped.
//!
//! - `config`: where they go.
//! - `span`: what a transfer is as a span.

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
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::{timeout, timeout_at};
use transfer_core::protocol::EndedTransfer;
use transfer_core::tensor::Name;

/// How many spans may wait to be sent.
const WAITING: usize = 16 << 10;

/// How many go in one call.
const BATCH: usize = 512;

/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);

/// How long the collector may take for a batch.
const CALL: Duration = Duration::from_secs(5);

/// How long the end of the sidecar waits for the last ones.
const FLUSH: Duration = Duration::from_secs(1);

/// What has become of spans.
#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl ExportCounts {
    /// What has become of how many, by the words of the metrics.
    pub(crate) fn get(&self) -> [(&'static str, u64); 3] {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("exported", get(&self.exported)), ("failed", get(&self.failed)), ("dropped", get(&self.dropped))]
    }
}

/// The queue in front of the thread that sends. That one ends when this is dropped.
pub(super) struct Queue {
    to: mpsc::Sender<SpanData>,
    spans: Spans,
    counts: Arc<ExportCounts>,
}

impl Queue {
    /// Makes a span of a transfer that ended then, where its trace is sampled, and puts it into the queue.
    pub(super) fn offer(&self, ended: &EndedTransfer, at: Instant) {
        if let Some(span) = self.spans.of(ended, at)
            && self.to.try_send(span).is_err()
        {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is known of the thread that sends. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Export {
    counts: Arc<ExportCounts>,
    ended: watch::Receiver<()>,
}

impl Export {
    /// What has become of spans.
    pub(crate) fn counts(&self) -> &ExportCounts {
        &self.counts
    }

    /// Waits until the last spans are sent, if that does not take too long. Their queue has to be gone, or about to.
    pub(crate) async fn flushed(mut self) {
        let ended = async { while self.ended.changed().await.is_ok() {} };
        if timeout(FLUSH, ended).await.is_err() {
            tracing::warn!("the last spans are lost: the collector does not take them");
        }
    }
}

/// Starts the thread that sends, where there is a collector.
///
/// # Errors
/// The system's; and what the exporter says of its configuration, which includes the environment's `OTEL_` variables.
pub(super) fn start(config: &OtlpConfig, node: &Name, incarnation: u64) -> io::Result<Option<(Queue, Export)>> {
    let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exporter = {
        let _inside = runtime.enter();
        SpanExporter::builder().with_tonic().with_endpoint(endpoint.as_str()).with_timeout(CALL).build()
    };
    let mut exporter = exporter.map_err(io::Error::other)?;
    exporter.set_resource(&resource(node, incarnation));
    let (to, from) = mpsc::channel(WAITING);
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

/// Who sends. What `OTEL_RESOURCE_ATTRIBUTES` says comes to that, and before it.
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
    let (mut batch, mut reached) = (Vec::with_capacity(BATCH), true);
    while fill(&mut from, &mut batch).await {
        let spans = batch.len() as u64;
        let why = match timeout(CALL, exporter.export(std::mem::take(&mut batch))).await {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(text::chain(&e)),
            Err(_) => Some(format!("it has not answered within {CALL:?}")),
        };
        let count = if why.is_none() { &counts.exported } else { &counts.failed };
        count.fetch_add(spans, Ordering::Relaxed);
        // Once for each time that it goes and comes.
        match why {
            Some(why) if reached => tracing::warn!(endpoint, why, "the collector does not take spans; they are lost"),
            None if !reached => tracing::info!(endpoint, "the collector takes spans again"),
            _ => continue,
        }
        reached = !reached;
    }
}

/// Waits for spans, and for some more. `false` where none will come any more.
async fn fill(from: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) -> bool {
    if from.recv_many(batch, BATCH).await == 0 {
        return false;
    }
    let until = tokio::time::Instant::now() + LINGER;
    while batch.len() < BATCH {
        match timeout_at(until, from.recv_many(batch, BATCH - batch.len())).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    true
}
