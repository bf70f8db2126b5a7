//! A collector of spans: it has the gRPC service of OpenTelemetry's collector, and keeps the spans that it receives.

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span, span::SpanKind};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tonic::{Request, Response, Status};

/// A span as the collector received it, with ids in hexadecimal digits.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct SeenSpan {
    /// The sender: `service.name` and `transfer.node`.
    pub service: String,
    pub node: String,
    pub name: String,
    pub kind: SpanKind,
    pub trace: String,
    pub span: String,
    /// Empty if the span has no parent.
    pub parent: String,
    /// The ids of the spans that this span is linked to.
    pub links: Vec<String>,
    /// The attributes as text, whatever their types.
    pub attributes: BTreeMap<String, String>,
    /// The message of the span's status if that is an error.
    pub failed: Option<String>,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// A collector on loopback. It ends when it is dropped.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    seen: Seen,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<Vec<SeenSpan>>>);

impl Collector {
    /// Starts a collector on a free port of loopback.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let seen = Seen::default();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let service = TraceServiceServer::new(seen.clone());
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Collector { address, seen, runtime: Some(runtime) }
    }

    /// Returns the URL for `--otlp-endpoint`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the spans that have arrived so far.
    #[must_use]
    pub fn spans(&self) -> Vec<SeenSpan> {
        self.seen.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until there are `count` spans of one key. There must not be more.
    ///
    /// # Panics
    /// If there are fewer or more.
    #[track_caller]
    #[must_use]
    pub fn of_key(&self, key: &str, count: usize) -> Vec<SeenSpan> {
        let of_key = || self.spans().into_iter().filter(|s| s.attributes["transfer.key"] == key).collect::<Vec<_>>();
        let seen = crate::poll(|| Some(of_key()).filter(|s| s.len() >= count).ok_or_else(of_key));
        let seen = seen.unwrap_or_else(|seen| panic!("{} spans of {key:?}, not {count}: {seen:#?}", seen.len()));
        assert_eq!(seen.len(), count, "{seen:#?}");
        seen
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tonic::async_trait]
impl TraceService for Seen {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let spans = request.into_inner().resource_spans.into_iter().flat_map(|of| {
            let ResourceSpans { resource, scope_spans, .. } = of;
            let resource = texts(&resource.unwrap_or_default().attributes);
            let spans = scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.map(move |span| seen(&resource, span)).collect::<Vec<_>>()
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn seen(resource: &BTreeMap<String, String>, span: Span) -> SeenSpan {
    let of_resource = |name: &str| resource.get(name).cloned().unwrap_or_default();
    SeenSpan {
        service: of_resource("service.name"),
        node: of_resource("transfer.node"),
        kind: span.kind(),
        trace: hex(&span.trace_id),
        span: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
        attributes: texts(&span.attributes),
        // A status code of 2 is an error.
        failed: span.status.filter(|status| status.code == 2).map(|status| status.message),
        start_ns: span.start_time_unix_nano,
        end_ns: span.end_time_unix_nano,
        name: span.name,
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &AnyValue| match &value.value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(n)) => n.to_string(),
        Some(Value::DoubleValue(n)) => n.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|a| (a.key.clone(), a.value.as_ref().map(text).unwrap_or_default())).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
