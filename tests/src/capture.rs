//! The logs and traces of this whole process, as far as a test wants to know.

use std::io::Write;
use std::sync::{Mutex, Once};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What no log line may contain: tests put it in payloads. Tokens of callers begin so too.
pub const CANARIES: [&str; 3] = ["canary", "key-of-", "a-token-for-the-tests"];

static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if CANARIES.iter().any(|canary| text.contains(canary)) {
            FOUND.lock().unwrap().push(text.into_owned());
        }
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
        let tracer = SdkTracerProvider::builder().build().tracer("longhaul");
        let filter = || EnvFilter::new("info,longhaul=trace,sqlx=debug,redis=debug,rmcp=debug,reqwest=debug");
        let lines = tracing_subscriber::fmt::layer().json().with_writer(|| Lines).with_filter(filter());
        let spans = tracing_opentelemetry::layer().with_tracer(tracer).with_filter(filter());
        tracing_subscriber::registry().with(spans).with(lines).init();
    });
}

/// The lines with something that no line may contain, since the last time.
pub fn leaks() -> Vec<String> {
    std::mem::take(&mut *FOUND.lock().unwrap())
}
