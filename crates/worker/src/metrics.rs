//! How busy the worker is, for its operator.

use std::sync::Arc;

use opentelemetry::metrics::UpDownCounter;

/// The slots, as metrics; several workers of one process add up.
#[derive(Clone)]
pub(crate) struct Slots(Arc<Gauges>);

struct Gauges {
    all: UpDownCounter<i64>,
    busy: UpDownCounter<i64>,
    slots: i64,
}

/// One busy slot, until it is dropped.
pub(crate) struct Busy(Slots);

impl Slots {
    pub(crate) fn new(slots: u32) -> Self {
        let meter = opentelemetry::global::meter("longhaul");
        let counter = |name, description| meter.i64_up_down_counter(name).with_description(description).build();
        let all = counter("longhaul_runner_slots", "Tasks that this process can run at a time");
        let busy = counter("longhaul_runner_slots_busy", "Tasks that this process runs now");
        all.add(slots.into(), &[]);
        busy.add(0, &[]);
        Self(Arc::new(Gauges { all, busy, slots: slots.into() }))
    }

    pub(crate) fn busy(&self) -> Busy {
        self.0.busy.add(1, &[]);
        Busy(self.clone())
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.all.add(-self.slots, &[]);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.busy.add(-1, &[]);
    }
}
