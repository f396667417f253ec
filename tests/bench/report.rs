//! The table, and the same as JSON.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::answers::{self, Answers};
use crate::redis::Redis;
use crate::rows::Row;
use crate::waiting::Waiting;

/// The machine and the versions of what ran on it.
pub struct Machine {
    /// Of Postgres.
    pub postgres: String,
    /// Redis.
    pub redis: Redis,
    /// Of the product.
    pub longhaul: Option<String>,
}

/// Prints all that was measured and writes it to `out`.
pub fn write(
    out: &Path,
    machine: &Machine,
    rows: &[Row],
    waiting: Option<&Waiting>,
    answers: Option<&Answers>,
    connection_bytes: Option<u64>,
) -> Result<()> {
    println!(
        "\n{:<30} {:>7} {:>9} {:>9} {:>9} {:>9} {:>6}  CPU µs an operation",
        "", "clients", "per s", "p50 µs", "p99 µs", "floor", "ratio"
    );
    for row in rows {
        let number =
            |value: Option<f64>, decimals: usize| value.map(|value| format!("{value:.decimals$}")).unwrap_or_default();
        let costs: Vec<_> = row.cpu_us.iter().map(|(name, cost)| format!("{name} {cost:.0}")).collect();
        println!(
            "{:<30} {:>7} {:>9.0} {:>9} {:>9} {:>9} {:>6}  {}",
            row.name,
            row.clients,
            row.rate,
            row.p50_us,
            row.p99_us,
            number(row.floor, 0),
            number(row.ratio, 2),
            costs.join(", ")
        );
    }
    if let Some(connection_bytes) = connection_bytes {
        println!("\nan idle connection of a bare axum server: {connection_bytes} bytes");
    }
    let waiting = waiting.zip(connection_bytes).map(|(waiting, connection_bytes)| {
        let ratio = waiting.waiter_bytes as f64 / connection_bytes.max(1) as f64;
        println!(
            "{} open tasks: {} bytes each; with a waiting stream for each {} bytes more ({ratio:.2} idle connections)\n\
             the answer after the completion: p50 {} µs, p99 {} µs; after the tool's time was up: p50 {} µs, p99 {} µs; \
             a Redis round trip: p50 {} µs, p99 {} µs",
            waiting.waiters,
            waiting.open_task_bytes,
            waiting.waiter_bytes,
            waiting.late_p50_us,
            waiting.late_p99_us,
            waiting.after_due_p50_us,
            waiting.after_due_p99_us,
            machine.redis.ping_p50_us,
            machine.redis.ping_p99_us,
        );
        json!({
            "waiters": waiting.waiters,
            "open_task_bytes": waiting.open_task_bytes,
            "waiter_bytes": waiting.waiter_bytes,
            "late_p50_us": waiting.late_p50_us,
            "late_p99_us": waiting.late_p99_us,
            "after_due_p50_us": waiting.after_due_p50_us,
            "after_due_p99_us": waiting.after_due_p99_us,
            "redis_p50_us": machine.redis.ping_p50_us,
            "redis_p99_us": machine.redis.ping_p99_us,
            "idle_axum_connection_bytes": connection_bytes,
            "ratio": ratio,
        })
    });
    let answers = answers.map(|answers| {
        let [ratio, sent_ratio] = answers.ratios();
        println!(
            "{}: p50 {} µs; from the sending of the answer p50 {} µs, p99 {} µs; a commit and a Redis round trip: p50 {} µs, \
             p99 {} µs; ratio {ratio:.2}, from the sending {sent_ratio:.2}",
            answers::NAME,
            answers.accepted_p50_us,
            answers.sent_p50_us,
            answers.sent_p99_us,
            answers.floor_p50_us,
            answers.floor_p99_us,
        );
        json!({
            "accepted_p50_us": answers.accepted_p50_us,
            "sent_p50_us": answers.sent_p50_us,
            "sent_p99_us": answers.sent_p99_us,
            "floor_p50_us": answers.floor_p50_us,
            "floor_p99_us": answers.floor_p99_us,
            "ratio": ratio,
            "sent_ratio": sent_ratio,
        })
    });
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.trim_start_matches([' ', '\t', ':']).to_owned()));
    let machine = json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "processor": processor,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "postgres": machine.postgres,
        "redis": machine.redis.version,
        "longhaul": machine.longhaul,
    });
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder)?;
    }
    let whole = json!({ "machine": machine, "rows": rows, "waiting": waiting, "answers": answers });
    fs::write(out, serde_json::to_string_pretty(&whole)?)?;
    println!("\n{}", out.display());
    Ok(())
}
