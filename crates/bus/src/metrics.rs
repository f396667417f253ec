//! What an operator sees of the bus.

use opentelemetry::metrics::{Counter, Gauge, Histogram};
use opentelemetry::{KeyValue, global};

/// Seconds; Redis on the same network answers in the first two.
const LAG_BOUNDARIES: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];

/// Why a hint did not leave this process.
#[derive(Clone, Copy)]
pub(crate) enum Dropped {
    /// The queue to Redis was full.
    Full,
    /// Redis refused it or did not answer in time.
    Failed,
    /// It does not fit the wire format.
    Unfit,
}

#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    connected: Gauge<u64>,
    dropped: Counter<u64>,
    ignored: Counter<u64>,
    lag: Histogram<f64>,
    backend: [KeyValue; 1],
}

impl Metrics {
    /// The instruments of the global meter provider, which must be set by then.
    pub(crate) fn new(backend: &'static str) -> Self {
        let meter = global::meter("longhaul");
        let metrics = Self {
            connected: meter
                .u64_gauge("longhaul_bus_connected")
                .with_description("Whether hints are believed to arrive (1) or not (0)")
                .build(),
            dropped: meter
                .u64_counter("longhaul_bus_dropped")
                .with_description("Hints that did not leave this process")
                .build(),
            ignored: meter
                .u64_counter("longhaul_bus_ignored")
                .with_description("Messages on the bus that are no hints")
                .build(),
            lag: meter
                .f64_histogram("longhaul_bus_hint_lag_seconds")
                .with_description("From publishing to hearing one's own heartbeat")
                .with_boundaries(LAG_BOUNDARIES.to_vec())
                .build(),
            backend: [KeyValue::new("backend", backend)],
        };
        metrics.connected(false);
        metrics
    }

    pub(crate) fn connected(&self, connected: bool) {
        self.connected.record(connected.into(), &self.backend);
    }

    pub(crate) fn dropped(&self, hints: u64, why: Dropped) {
        let reason = match why {
            Dropped::Full => "full",
            Dropped::Failed => "failed",
            Dropped::Unfit => "unfit",
        };
        self.dropped.add(hints, &[KeyValue::new("reason", reason)]);
    }

    pub(crate) fn ignored(&self) {
        self.ignored.add(1, &[]);
    }

    pub(crate) fn lag(&self, seconds: f64) {
        self.lag.record(seconds, &[]);
    }
}
