//! The benchmark: the release binary's roles as processes, on a real and durable Postgres and a real Redis, beside
//! floors that do the same work alone. It fails if an answer is wrong or a process dies; it asserts no speed.
//!
//! `scripts/bench` runs it; `USAGE` says what it takes.

mod answers;
mod chain;
mod client;
mod floor;
mod floors;
mod measure;
mod processes;
mod redis;
mod report;
mod roles;
mod rows;
mod sql;
mod tasks;
mod waiting;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::floors::Floors;
use crate::processes::Meter;
use crate::report::Machine;
use crate::roles::Roles;
use crate::rows::{Plan, Product};

// The product's allocator, so that the floors' memory and speed compare.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "longhaul-bench --postgres URL --redis URL [--postgres-pid PID] [--redis-pid PID]
    [--longhaul FILE]   the product's binary; without it only the floors are measured
    [--out FILE]        where the JSON goes (target/bench/latest.json)
    [--seconds 2] [--rounds 3] [--clients 1,16,64] [--prefill 5000] [--waiters 2000] [--slots 256]
    [--only TEXT]       only rows whose names contain it, and no waiting streams";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["floor-axum", hop] => as_a_role(floor::axum(hop.to_owned())),
        ["floor-tonic"] => as_a_role(floor::tonic()),
        _ => Options::read(&words).and_then(bench),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The floors' processes have the same runtime as the product's.
fn as_a_role(serve: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve)
}

struct Options {
    postgres: String,
    redis: String,
    longhaul: Option<PathBuf>,
    out: PathBuf,
    plan: Plan,
    waiters: usize,
    slots: usize,
    /// Postgres and Redis, as far as their ids are known.
    services: Vec<Meter>,
}

impl Options {
    fn read(words: &[String]) -> Result<Self> {
        let mut given = HashMap::new();
        for pair in words.chunks(2) {
            match pair {
                [name, value] if name.starts_with("--") => given.insert(&name[2..], value.as_str()),
                _ => bail!("usage: {USAGE}"),
            };
        }
        let mut take = |name: &str, default: &str| given.remove(name).unwrap_or(default).to_owned();
        let text = [take("postgres", ""), take("redis", ""), take("longhaul", ""), take("only", "")];
        let out = PathBuf::from(take("out", "target/bench/latest.json"));
        let mut number = |name: &str, default: &str| {
            let value = take(name, default);
            value.parse::<usize>().with_context(|| format!("--{name} {value}"))
        };
        let services = [("postgres-pid", "postgres", true), ("redis-pid", "redis", false)]
            .into_iter()
            .map(|(option, name, family)| Ok(Meter { name, pid: u32::try_from(number(option, "0")?)?, family }))
            .filter(|meter: &Result<Meter>| meter.as_ref().map_or(true, |meter| meter.pid != 0))
            .collect::<Result<_>>()?;
        let [seconds, rounds, prefill, waiters, slots] = [
            number("seconds", "2")?,
            number("rounds", "3")?,
            number("prefill", "5000")?,
            number("waiters", "2000")?,
            number("slots", "256")?,
        ];
        let clients: Vec<usize> = take("clients", "1,16,64")
            .split(',')
            .map(|count| count.parse().with_context(|| format!("--clients {count}")))
            .collect::<Result<_>>()?;
        let [postgres, redis, longhaul, only] = text;
        let whole = rounds > 0 && prefill > 0 && clients.iter().all(|count| *count > 0);
        if !given.is_empty() || postgres.is_empty() || redis.is_empty() || !whole {
            bail!("usage: {USAGE}");
        }
        Ok(Self {
            postgres,
            redis,
            longhaul: (!longhaul.is_empty()).then(|| longhaul.into()),
            out,
            plan: Plan { length: Duration::from_secs(seconds as u64), rounds, clients, only, prefill },
            waiters,
            slots,
            services,
        })
    }
}

/// The load comes from one thread: that leaves the most to what is measured.
fn bench(options: Options) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        // Whatever ends first, dropping the rest ends the processes.
        tokio::select! {
            done = Box::pin(measured(options)) => done,
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    })
}

async fn measured(options: Options) -> Result<()> {
    let Options { postgres, redis, longhaul, out, plan, waiters, slots, services } = options;
    let server = sql::connect(postgres.parse()?, 1).await?;
    let mut machine =
        Machine { postgres: sql::durable_version(&server).await?, redis: redis::ask(&redis).await?, longhaul: None };
    let folder = tempfile::tempdir()?;
    let mut floors = Floors::start(folder.path()).await?;
    // Memory first: later, processes keep what they needed at their busiest.
    let connection_bytes = waiting::idle_connection_bytes(&floors.axum, floors.address, waiters).await?;
    floors.connect(&postgres, plan.prefill as u64, plan.callers()).await?;
    let Some(longhaul) = longhaul else {
        let rows = rows::all(&plan, &mut floors, None, &[]).await?;
        return report::write(&out, &machine, &rows, None, None, connection_bytes);
    };
    machine.longhaul = Some(version(&longhaul).await?);
    let mut waiting = None;
    if plan.only.is_empty() && waiters > 0 {
        let database = sql::database(&postgres, "longhaul_bench_waiting").await?;
        let mut roles = Roles::start(&longhaul, &database, &redis, waiters + slots).await?;
        waiting = Some(waiting::run(&mut roles, &server, waiters).await?);
        roles.stop().await?;
        eprintln!("{waiters} waiting streams: done");
    }
    let database = sql::database(&postgres, "longhaul_bench").await?;
    let mut roles = Roles::start(&longhaul, &database, &redis, slots).await?;
    let myself = Meter { name: "client", pid: std::process::id(), family: false };
    let meters: Vec<_> = roles.meters().into_iter().chain(services).chain([myself]).collect();
    let answers = answers::run(&mut roles, &mut machine.redis, &mut floors.sql[0], &plan).await?;
    let product = Product::prepare(&mut roles, &plan).await?;
    sql::analyze(&sql::connect(database.parse()?, 1).await?).await?;
    eprintln!("{} tasks stored: done", plan.prefill);
    let mut rows = rows::all(&plan, &mut floors, Some(product), &meters).await?;
    rows.extend(chain::all(&plan, &mut roles, &longhaul).await?);
    roles.stop().await?;
    report::write(&out, &machine, &rows, waiting.as_ref(), answers.as_ref(), connection_bytes)
}

async fn version(binary: &Path) -> Result<String> {
    let output = Command::new(binary).arg("--version").env_clear().output().await?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
