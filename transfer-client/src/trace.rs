//! The trace context of calls where their caller gives none, and its other form in a program that traces with OpenTelemetry.

use transfer_core::trace::TraceContext;

/// With the feature `opentelemetry`: the span in whose context the call is made, where there is one.
#[cfg(feature = "opentelemetry")]
pub(crate) fn current() -> Option<TraceContext> {
    use opentelemetry::Context;
    use opentelemetry::trace::TraceContextExt;
    Context::map_current(|context| {
        context.has_active_span().then(|| from_span(context.span().span_context())).flatten()
    })
}

/// Without the feature `opentelemetry` nobody knows.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn current() -> Option<TraceContext> {
    None
}

/// A span of OpenTelemetry as what travels with a transfer. `None` for one that is not valid.
#[cfg(feature = "opentelemetry")]
#[must_use]
pub fn from_span(span: &opentelemetry::trace::SpanContext) -> Option<TraceContext> {
    TraceContext::new(span.trace_id().to_bytes(), span.span_id().to_bytes(), span.trace_flags().to_u8()).ok()
}

/// What travelled with a transfer, like [`Report::origin`](crate::Report::origin), as a span of OpenTelemetry: to be a parent, or a link.
#[cfg(feature = "opentelemetry")]
#[must_use]
pub fn to_span(context: TraceContext) -> opentelemetry::trace::SpanContext {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
    let (trace, span) = (TraceId::from_bytes(context.trace_id()), SpanId::from_bytes(context.span_id()));
    SpanContext::new(trace, span, TraceFlags::new(context.flags()), true, TraceState::NONE)
}
