//! The logs and traces of this whole process, as far as a test wants to know.

use std::io::Write;
use std::sync::{Mutex, Once};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span, SpanData, SpanProcessor};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What no log line and no span may contain: tests put it in payloads. Tokens of callers begin so too.
pub const CANARIES: [&str; 3] = ["canary", "key-of-", "a-token-for-the-tests"];

static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn look(text: &str) {
    if CANARIES.iter().any(|canary| text.contains(canary)) {
        FOUND.lock().unwrap().push(text.to_owned());
    }
}

#[derive(Debug)]
struct Spans;

impl SpanProcessor for Spans {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        look(&format!("{span:?}"));
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        look(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Begins, once: our own crates with everything they can say. Every span is then part of a trace.
pub fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tracer = SdkTracerProvider::builder().with_span_processor(Spans).build().tracer("longhaul");
        let filter = || EnvFilter::new("info,longhaul=trace,sqlx=debug,redis=debug,rmcp=debug,reqwest=debug");
        let lines = tracing_subscriber::fmt::layer().json().with_writer(|| Lines).with_filter(filter());
        let spans = tracing_opentelemetry::layer().with_tracer(tracer).with_filter(filter());
        tracing_subscriber::registry().with(spans).with(lines).init();
    });
}

/// The lines and spans with something that none may contain, since the last time.
pub fn leaks() -> Vec<String> {
    std::mem::take(&mut *FOUND.lock().unwrap())
}
