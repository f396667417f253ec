//! What is counted of budgets. Their names are the config's.

use longhaul_core::Amount;
use opentelemetry::metrics::Counter;
use opentelemetry::{KeyValue, global};

pub(super) struct Metrics {
    units: Counter<u64>,
    usd: Counter<f64>,
    leases: Counter<u64>,
    late: Counter<u64>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let meter = global::meter("longhaul");
        Self {
            units: meter
                .u64_counter("longhaul_budget_spent_units")
                .with_description("Units that calls were charged, by budget.")
                .build(),
            usd: meter
                .f64_counter("longhaul_budget_spent_usd")
                .with_description("US dollars that calls were charged, by budget.")
                .build(),
            leases: meter
                .u64_counter("longhaul_budget_leases")
                .with_description("Slices of budgets that were asked for, by result.")
                .build(),
            late: meter
                .u64_counter("longhaul_budget_timeouts")
                .with_description("Calls that were not let in because no slice of their budgets came in time.")
                .build(),
        }
    }

    pub(super) fn spent(&self, budget: &str, used: Amount) {
        let label = [KeyValue::new("budget", budget.to_owned())];
        self.units.add(used.units, &label);
        self.usd.add(used.micro_usd as f64 / 1e6, &label);
    }

    pub(super) fn leased(&self, slices: usize, is_answered: bool) {
        let result = if is_answered { "answered" } else { "failed" };
        self.leases.add(slices as u64, &[KeyValue::new("result", result)]);
    }

    pub(super) fn late(&self) {
        self.late.add(1, &[]);
    }
}
