//! The default trace context of calls, and its conversion for programs that trace with OpenTelemetry.

use transfer_core::trace::TraceContext;

/// The current span, if there is one. With the feature `opentelemetry`.
#[cfg(feature = "opentelemetry")]
pub(crate) fn current() -> Option<TraceContext> {
    use opentelemetry::Context;
    use opentelemetry::trace::TraceContextExt;
    Context::map_current(|context| {
        context.has_active_span().then(|| from_span(context.span().span_context())).flatten()
    })
}

/// No context, without the feature `opentelemetry`.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn current() -> Option<TraceContext> {
    None
}

/// Converts a span of OpenTelemetry into the context that a transfer carries. `None` for an invalid span.
#[cfg(feature = "opentelemetry")]
#[must_use]
pub fn from_span(span: &opentelemetry::trace::SpanContext) -> Option<TraceContext> {
    TraceContext::new(span.trace_id().to_bytes(), span.span_id().to_bytes(), span.trace_flags().to_u8()).ok()
}

/// Converts the context of a transfer, like [`Report::origin`](crate::Report::origin), into a span of OpenTelemetry: a
/// parent, or a link.
#[cfg(feature = "opentelemetry")]
#[must_use]
pub fn to_span(context: TraceContext) -> opentelemetry::trace::SpanContext {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
    let (trace, span) = (TraceId::from_bytes(context.trace_id()), SpanId::from_bytes(context.span_id()));
    SpanContext::new(trace, span, TraceFlags::new(context.flags()), true, TraceState::NONE)
}
