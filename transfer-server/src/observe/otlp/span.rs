//! Converts a transfer into a span.
//!
//! The span belongs to the trace that the worker gives. The span of a fetch without a trace belongs to the trace of the
//! push that published its version. Without either, the configured share of transfers starts a new trace. The process
//! that starts a trace decides whether the trace is collected: if its sampled flag is not set, no span is made.

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use std::time::SystemTime;
use transfer_core::protocol::{EndedTransfer, Operation};
use transfer_core::trace::TraceContext;

/// Makes spans.
pub(super) struct Spans {
    /// The sampling of transfers without a trace: one in N.
    sample: u32,
    scope: InstrumentationScope,
}

impl Spans {
    pub(super) fn new(sample: u32) -> Spans {
        let scope = InstrumentationScope::builder("transferd").with_version(env!("CARGO_PKG_VERSION")).build();
        Spans { sample, scope }
    }

    /// Makes the span of a transfer that ended at `end_time`, if its trace is collected.
    pub(super) fn of(&self, ended: &EndedTransfer, end_time: SystemTime) -> Option<SpanData> {
        let origin = ended.outcome.as_ref().ok().and_then(|report| report.origin);
        let parent = ended.trace.or(origin);
        let collected = match parent {
            Some(parent) => parent.is_sampled(),
            None => self.sample > 0 && fastrand::u32(0..self.sample) == 0,
        };
        if !collected {
            return None;
        }
        let mut links = SpanLinks::default();
        // A link to the parent would be redundant.
        links.links.extend(origin.filter(|origin| parent != Some(*origin)).map(link));
        Some(SpanData {
            span_context: own(parent),
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.span_id())),
            parent_span_is_remote: parent.is_some(),
            span_kind: match ended.operation {
                Operation::Push => SpanKind::Producer,
                Operation::Fetch => SpanKind::Client,
                Operation::Serve => SpanKind::Server,
                Operation::Land => SpanKind::Consumer,
            },
            name: ended.operation.name().into(),
            start_time: end_time.checked_sub(ended.took).unwrap_or(SystemTime::UNIX_EPOCH),
            end_time,
            attributes: attributes(ended),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: match ended.outcome {
                Ok(_) => Status::Unset,
                Err(code) => Status::error(format!("{code:?}")),
            },
            instrumentation_scope: self.scope.clone(),
        })
    }
}

/// Makes a new span context in the parent's trace, or in a new trace without a parent.
fn own(parent: Option<TraceContext>) -> SpanContext {
    let trace = match parent {
        Some(parent) => TraceId::from_bytes(parent.trace_id()),
        None => RandomIdGenerator::default().new_trace_id(),
    };
    let span = RandomIdGenerator::default().new_span_id();
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
}

fn link(to: TraceContext) -> Link {
    let (trace, span) = (TraceId::from_bytes(to.trace_id()), SpanId::from_bytes(to.span_id()));
    let context = SpanContext::new(trace, span, TraceFlags::new(to.flags()), true, TraceState::NONE);
    Link::new(context, Vec::new(), 0)
}

fn attributes(ended: &EndedTransfer) -> Vec<KeyValue> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let mut out = vec![KeyValue::new("transfer.key", ended.key.as_str().to_owned())];
    out.extend(ended.version.map(|version| KeyValue::new("transfer.version", number(version.0))));
    out.extend(ended.worker.as_ref().map(|worker| KeyValue::new("transfer.worker", worker.to_string())));
    out.extend(ended.peer.as_ref().map(|peer| KeyValue::new("transfer.peer", peer.to_string())));
    match &ended.outcome {
        Ok(report) => out.extend([
            KeyValue::new("transfer.outcome", "ok"),
            KeyValue::new("transfer.fabric", report.fabric.name()),
            KeyValue::new("transfer.bytes", number(report.bytes)),
            KeyValue::new("transfer.copied_bytes", number(report.copied)),
            KeyValue::new("transfer.queued_us", report.queued.as_secs_f64() * 1e6),
            KeyValue::new("transfer.waited_us", report.waited.as_secs_f64() * 1e6),
            KeyValue::new("transfer.in_flight_us", report.in_flight.as_secs_f64() * 1e6),
        ]),
        Err(code) => {
            let code = format!("{code:?}");
            out.extend([KeyValue::new("transfer.outcome", code.clone()), KeyValue::new("error.type", code)]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use transfer_core::fabric::FabricKind;
    use transfer_core::op::{FailureCode, Report};
    use transfer_core::tensor::{Key, Name, Version};

    fn context(span: u8, flags: u8) -> Option<TraceContext> {
        TraceContext::new([1; 16], [span; 8], flags).ok()
    }

    fn fetched(trace: Option<TraceContext>, origin: Option<TraceContext>) -> EndedTransfer {
        let (queued, waited, in_flight) = (Duration::ZERO, Duration::ZERO, Duration::from_micros(7));
        EndedTransfer {
            operation: Operation::Fetch,
            key: Key::new("k").unwrap(),
            worker: Some(Name::new("w").unwrap()),
            version: Some(Version(3)),
            peer: None,
            outcome: Ok(Report {
                fabric: FabricKind::Tcp,
                bytes: 5,
                copied: 10,
                verified: 0,
                relayed: 0,
                delta: 0,
                queued,
                waited,
                in_flight,
                origin,
            }),
            at: transfer_core::time::Time(0),
            took: Duration::from_millis(2),
            trace,
        }
    }

    #[test]
    fn parent_is_the_span_of_the_worker_or_of_the_push_or_none() {
        let spans = Spans::new(1);
        let of = |trace, origin| spans.of(&fetched(trace, origin), SystemTime::now()).unwrap();
        let both = of(context(1, 1), context(2, 1));
        assert_eq!((both.parent_span_id, both.links.len()), (SpanId::from_bytes([1; 8]), 1));
        assert_eq!(both.links[0].span_context.span_id(), SpanId::from_bytes([2; 8]));
        assert_eq!(both.span_context.trace_id(), TraceId::from_bytes([1; 16]));
        assert_eq!(both.end_time.duration_since(both.start_time).unwrap(), Duration::from_millis(2));
        let brought = of(None, context(2, 1));
        assert_eq!((brought.parent_span_id, brought.links.len()), (SpanId::from_bytes([2; 8]), 0));
        let (one, other) = (of(None, None), of(None, None));
        assert_eq!((one.parent_span_id, one.parent_span_is_remote), (SpanId::INVALID, false));
        assert_ne!(one.span_context.trace_id(), other.span_context.trace_id());
    }

    #[test]
    fn root_of_a_trace_decides_whether_it_is_collected() {
        let count = |sample, trace, origin| {
            let spans = Spans::new(sample);
            (0..4000).filter(|_| spans.of(&fetched(trace, origin), SystemTime::now()).is_some()).count()
        };
        for sample in [0, 1, 7] {
            assert_eq!(count(sample, context(1, 1), context(2, 0)), 4000);
            assert_eq!(count(sample, context(1, 0), context(2, 1)), 0);
            assert_eq!(count(sample, None, context(2, 0)), 0);
        }
        assert_eq!((count(0, None, None), count(1, None, None)), (0, 4000));
        let some = count(4, None, None);
        // One in four. Chance does not exceed these bounds in practice.
        assert!((500..2000).contains(&some), "{some}");
    }

    #[test]
    fn failed_transfer_carries_its_error_code() {
        let failed = EndedTransfer { outcome: Err(FailureCode::PoolFull), ..fetched(None, None) };
        let span = Spans::new(1).of(&failed, SystemTime::now()).unwrap();
        assert_eq!(span.status, Status::error("PoolFull"));
        assert!(span.attributes.contains(&KeyValue::new("error.type", "PoolFull")));
    }
}
