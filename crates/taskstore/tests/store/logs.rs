//! What the whole test process logs.

use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Sink;

impl Write for Sink {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(line);
        Ok(line.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Keeps from now on what anybody logs, at every level, spans included.
pub fn keep() {
    static KEPT: OnceLock<()> = OnceLock::new();
    KEPT.get_or_init(|| {
        let spans = tracing_subscriber::fmt::format::FmtSpan::FULL;
        let logs = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_span_events(spans);
        tracing::subscriber::set_global_default(logs.with_ansi(false).with_writer(|| Sink).finish()).unwrap();
    });
}

/// What was logged.
pub fn kept() -> String {
    String::from_utf8_lossy(&LOG.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}
