//! What an operator sees of the chain. Labels come from closed sets only.

use std::time::Duration;

use longhaul_rpc::Error;
use opentelemetry::metrics::{Counter, Gauge, Histogram};
use opentelemetry::{KeyValue, global};

/// Seconds. Without a webhook a decision is in the first three.
const DECISIONS: [f64; 10] = [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5];

/// The chain's instruments.
pub(crate) struct Metrics {
    decisions: Histogram<f64>,
    refusals: Counter<u64>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Takes them from the meter provider that is installed by now.
    pub(crate) fn new() -> Self {
        let meter = global::meter("longhaul");
        Self {
            decisions: meter
                .f64_histogram("longhaul_policy_decision_seconds")
                .with_description("How long the admission chain took.")
                .with_boundaries(DECISIONS.to_vec())
                .build(),
            // As the gateway counts what the task-store refuses.
            refusals: meter
                .u64_counter("longhaul_task_refusals")
                .with_description("Calls that were refused, by what refused them.")
                .build(),
        }
    }

    pub(crate) fn decided(&self, took: Duration, decided: &Result<(), Error>) {
        let decision = match decided {
            Ok(()) => "allow",
            Err(Error::Refused(_)) => "refuse",
            Err(Error::Unavailable(_) | Error::NotBegun(_) | Error::Fault(_)) => "unavailable",
        };
        self.decisions.record(took.as_secs_f64(), &[KeyValue::new("decision", decision)]);
    }

    pub(crate) fn refused(&self, by: &'static str) {
        self.refusals.add(1, &[KeyValue::new("refused_by", by)]);
    }
}

/// Whether the files of a check are in force as they are.
pub(crate) fn reloaded(what: &'static str, well: bool) {
    gauge(
        "longhaul_config_reload_success",
        "Whether the last change of a file is in force (1) or could not be used (0).",
    )
    .record(well.into(), &[KeyValue::new("what", what)]);
}

/// Whether rate limits are shared between replicas.
pub(crate) fn shared(is_shared: bool) {
    gauge("longhaul_rate_limits_shared", "Whether replicas count together (1) or each keeps a fixed share (0).")
        .record(is_shared.into(), &[]);
}

fn gauge(name: &'static str, description: &'static str) -> Gauge<u64> {
    global::meter("longhaul").u64_gauge(name).with_description(description).build()
}
