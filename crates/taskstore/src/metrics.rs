//! What the task-store counts. Labels are closed sets; a tool's name is one only if some worker announced it.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use longhaul_core::{Amount, Ending, Interruption};
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};
use opentelemetry::{KeyValue, global};

use crate::store::PhaseCount;

/// Tools that have a label of their own; the rest share one.
const TOOLS_MAX: usize = 1000;

struct Instruments {
    created: Counter<u64>,
    ended: Counter<u64>,
    tasks: Gauge<u64>,
    stored: Gauge<u64>,
    oldest: Gauge<f64>,
    queue: Histogram<f64>,
    run: Histogram<f64>,
    lost: Counter<u64>,
    connections: Gauge<u64>,
    query: Histogram<f64>,
    batch: Histogram<u64>,
    overload: Counter<u64>,
    conflicts: Counter<u64>,
    purged: Counter<u64>,
    units: Counter<u64>,
    usd: Counter<f64>,
    audited: Counter<u64>,
    unsealed: Gauge<f64>,
    tools: Mutex<HashSet<String>>,
}

static INSTRUMENTS: LazyLock<Instruments> = LazyLock::new(|| {
    let meter: Meter = global::meter("longhaul");
    let seconds = |name, bounds: &[f64], what| {
        meter.f64_histogram(name).with_boundaries(bounds.to_vec()).with_description(what).build()
    };
    Instruments {
        created: meter.u64_counter("longhaul_tasks_created").with_description("Tasks created.").build(),
        ended: meter.u64_counter("longhaul_tasks_ended").with_description("Tasks ended, by how.").build(),
        tasks: meter.u64_gauge("longhaul_tasks").with_description("Open tasks, by phase.").build(),
        stored: meter
            .u64_gauge("longhaul_tasks_stored")
            .with_description("Stored tasks, ended ones included, expired ones not.")
            .build(),
        oldest: meter
            .f64_gauge("longhaul_task_oldest_seconds")
            .with_description("How long the oldest open task has been in its phase.")
            .build(),
        queue: seconds(
            "longhaul_task_queue_seconds",
            &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0],
            "From create to claim.",
        ),
        run: seconds(
            "longhaul_task_run_seconds",
            &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0],
            "From claim to end.",
        ),
        lost: meter
            .u64_counter("longhaul_heartbeats_lost")
            .with_description("Tasks ended because their worker was not heard of.")
            .build(),
        connections: meter
            .u64_gauge("longhaul_db_pool_connections")
            .with_description("Database connections, idle and used.")
            .build(),
        query: seconds(
            "longhaul_db_query_seconds",
            &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 5.0],
            "Time of a statement, waiting for a connection included.",
        ),
        batch: meter
            .u64_histogram("longhaul_db_batch_size")
            .with_boundaries(vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
            .with_description("Items in one statement.")
            .build(),
        overload: meter
            .u64_counter("longhaul_db_overload")
            .with_description("Requests refused because too many waited.")
            .build(),
        conflicts: meter
            .u64_counter("longhaul_db_conflicts")
            .with_description("Changes decided anew because the task had moved on.")
            .build(),
        purged: meter.u64_counter("longhaul_purged_tasks").with_description("Expired tasks deleted.").build(),
        units: meter
            .u64_counter("longhaul_budget_spent_units")
            .with_description("Units that calls were charged, by budget.")
            .build(),
        usd: meter
            .f64_counter("longhaul_budget_spent_usd")
            .with_description("US dollars that calls were charged, by budget.")
            .build(),
        audited: meter
            .u64_counter("longhaul_audit_writes")
            .with_description(
                "Rows of the audit log that were recorded apart or sealed, and statements that failed to.",
            )
            .build(),
        unsealed: meter
            .f64_gauge("longhaul_audit_unsealed_seconds")
            .with_description("How long the oldest row of the audit log waited to be sealed.")
            .build(),
        tools: Mutex::default(),
    }
});

/// Lets these tools have a label of their own.
pub(crate) fn know<'a>(tools: impl Iterator<Item = &'a str>) {
    let mut known = INSTRUMENTS.tools.lock().unwrap_or_else(PoisonError::into_inner);
    for tool in tools {
        if known.len() < TOOLS_MAX {
            known.insert(tool.to_owned());
        }
    }
}

fn tool(name: &str) -> KeyValue {
    let known = INSTRUMENTS.tools.lock().unwrap_or_else(PoisonError::into_inner).contains(name);
    KeyValue::new("tool", if known { name.to_owned() } else { "_other".to_owned() })
}

pub(crate) fn created(name: &str) {
    INSTRUMENTS.created.add(1, &[tool(name)]);
}

pub(crate) fn claimed(name: &str, waited: Duration) {
    INSTRUMENTS.queue.record(waited.as_secs_f64(), &[tool(name)]);
}

pub(crate) fn ended(name: &str, ending: Ending, ran: Option<Duration>) {
    let ending = match ending {
        Ending::Result { is_error: false } => "completed",
        Ending::Result { is_error: true } => "tool_error",
        Ending::Error => "failed",
        Ending::Cancelled => "cancelled",
        Ending::Interrupted(Interruption::WorkerLost) => {
            INSTRUMENTS.lost.add(1, &[]);
            "interrupted"
        }
        Ending::Interrupted(Interruption::Drained) => "interrupted",
        Ending::Interrupted(Interruption::Expired) => "expired",
    };
    let labels = [tool(name), KeyValue::new("ending", ending)];
    INSTRUMENTS.ended.add(1, &labels);
    if let Some(ran) = ran {
        INSTRUMENTS.run.record(ran.as_secs_f64(), &labels);
    }
}

pub(crate) fn stored(tasks: u64) {
    INSTRUMENTS.stored.record(tasks, &[]);
}

pub(crate) fn phases(count: PhaseCount, (idle, used): (u64, u64)) {
    let phase = |name| [KeyValue::new("phase", name)];
    INSTRUMENTS.tasks.record(count.queued, &phase("queued"));
    INSTRUMENTS.tasks.record(count.running, &phase("working"));
    INSTRUMENTS.oldest.record(count.oldest_queued.as_secs_f64(), &phase("queued"));
    INSTRUMENTS.oldest.record(count.oldest_running.as_secs_f64(), &phase("working"));
    INSTRUMENTS.connections.record(idle, &[KeyValue::new("state", "idle")]);
    INSTRUMENTS.connections.record(used, &[KeyValue::new("state", "used")]);
}

pub(crate) fn query(name: &'static str, took: Duration) {
    INSTRUMENTS.query.record(took.as_secs_f64(), &[KeyValue::new("query", name)]);
}

pub(crate) fn batch(name: &'static str, items: usize) {
    INSTRUMENTS.batch.record(items as u64, &[KeyValue::new("query", name)]);
}

pub(crate) fn overload(name: &'static str) {
    INSTRUMENTS.overload.add(1, &[KeyValue::new("query", name)]);
}

pub(crate) fn conflict(verb: &'static str) {
    INSTRUMENTS.conflicts.add(1, &[KeyValue::new("verb", verb)]);
}

pub(crate) fn purged(tasks: u64) {
    INSTRUMENTS.purged.add(tasks, &[]);
}

/// The names of budgets are those of the gateways' config.
pub(crate) fn spent(budget: &str, charged: Amount) {
    let label = [KeyValue::new("budget", budget.to_owned())];
    INSTRUMENTS.units.add(charged.units, &label);
    INSTRUMENTS.usd.add(charged.micro_usd as f64 / 1e6, &label);
}

/// Rows of the audit log were written; `None` if that failed.
pub(crate) fn audited(rows: Option<u64>) {
    let outcome = if rows.is_some() { "ok" } else { "error" };
    INSTRUMENTS.audited.add(rows.unwrap_or(1), &[KeyValue::new("outcome", outcome)]);
}

pub(crate) fn unsealed(oldest: Duration) {
    INSTRUMENTS.unsealed.record(oldest.as_secs_f64(), &[]);
}
