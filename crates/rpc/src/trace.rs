//! W3C trace context in and out of spans (`traceparent`).

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The `traceparent` of the present span, if it is part of a trace.
pub fn current() -> Option<String> {
    let context = Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8()))
}

/// Makes `span` a child of `traceparent`; text of another shape is ignored.
pub fn set_parent(span: &Span, traceparent: Option<&str>) {
    if let Some(parent) = traceparent.and_then(parse) {
        // A span that no collector listens to cannot have a parent; nothing is lost then.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// Links `span` to the trace of `traceparent`, for work that belongs together but is not nested.
pub fn link(span: &Span, traceparent: Option<&str>) {
    if let Some(other) = traceparent.and_then(parse) {
        span.add_link(other);
    }
}

/// Reads `traceparent` version 00 (W3C Trace Context, section 3.2).
fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version != "00" || trace.len() != 32 || span.len() != 16 || flags.len() != 2 || parts.next().is_some() {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_traceparent_is_read() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(parse(good).is_some());
        for bad in [
            "",
            "00",
            &good[..54],
            &format!("{good}-x"),
            &good.replace("00-4", "01-4"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            &good.replace('4', "g"),
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
