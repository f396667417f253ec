//! Many open tasks with a `tasks/result` stream waiting for each: what a waiter costs, and how late it hears.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt, iter};
use sqlx::Row;
use sqlx::postgres::PgPool;

use crate::client::{Http, Session};
use crate::floors::ECHO_BODY;
use crate::measure::{micros, percentiles};
use crate::processes::Process;
use crate::roles::{KEY, Roles};
use crate::tasks::{self, CountedDown};

/// Tasks end one after another at this rate, the first of them after `FIRST_END`: until then all streams must be open.
const ENDS_PER_SECOND: f64 = 500.0;
const FIRST_END: Duration = Duration::from_secs(20);
/// Opened at the same time, so that no backlog of a listener overflows.
const OPENING_MAX: usize = 32;
/// Calls before the first look at the memory.
const WARM_UP_CALLS: usize = 200;
/// Buffers of what was just done are gone after it.
const SETTLE: Duration = Duration::from_secs(1);

/// What was measured. Bytes are of resident memory, of gateway and task-store together.
pub struct Waiting {
    /// How many tasks and streams.
    pub waiters: usize,
    /// For an open task for which nobody waits.
    pub open_task_bytes: u64,
    /// For a connection, its session and its waiting stream.
    pub waiter_bytes: u64,
    /// From the completion's time in the database, which is rounded down to a millisecond, until the answer was here.
    pub late_p50_us: u64,
    /// Likewise, but for one of a hundred.
    pub late_p99_us: u64,
    /// From the moment when the tool should have returned, until the answer was here.
    pub after_due_p50_us: u64,
    /// Likewise, but for one of a hundred.
    pub after_due_p99_us: u64,
}

/// Runs the stage on roles that have done nothing yet and have a slot for each task.
pub async fn run(roles: &mut Roles, clock: &PgPool, waiters: usize) -> Result<Waiting> {
    let mut sessions = open_sessions(roles.address, OPENING_MAX).await?;
    for turn in 0..WARM_UP_CALLS {
        let session = &mut sessions[turn % OPENING_MAX];
        tasks::inline(session).await?;
        tasks::create_and_wait(session).await?;
    }
    tokio::time::sleep(SETTLE).await;
    let idle = resident(roles)?;

    let start = Instant::now();
    let due = |nth: usize| FIRST_END + Duration::from_secs_f64(nth as f64 / ENDS_PER_SECOND);
    let creating = sessions.iter_mut().enumerate().map(|(first, session)| async move {
        let mut ids = Vec::new();
        for nth in (first..waiters).step_by(OPENING_MAX) {
            let seconds = due(nth).saturating_sub(start.elapsed()).as_secs_f64();
            ids.push((nth, tasks::create_countdown(session, seconds).await?));
        }
        anyhow::Ok(ids)
    });
    let ids = futures::future::try_join_all(creating).await?.concat();
    tokio::time::sleep(SETTLE).await;
    let with_tasks = resident(roles)?;

    let address = roles.address;
    let opened: Vec<_> = iter(&ids)
        .map(|(nth, id)| async move {
            let mut session = Session::open(address, KEY).await?;
            let (request, response) = session.ask(&tasks::of_task("tasks/result", id)).await?;
            anyhow::Ok((*nth, session, request, response))
        })
        .buffer_unordered(OPENING_MAX)
        .try_collect()
        .await?;
    tokio::time::sleep(SETTLE).await;
    ensure!(start.elapsed() < FIRST_END, "{waiters} streams were not open after {FIRST_END:?}");
    roles.check()?;
    let with_streams = resident(roles)?;

    let (asked, reading) = (Instant::now(), now_us(clock));
    let now = reading.await?;
    // The clock was read somewhere within that round trip.
    let epoch = (asked + asked.elapsed() / 2, now);
    let waiting = opened.into_iter().map(|(nth, mut session, request, response)| async move {
        let CountedDown(whole) = session.answer(request, response).await?;
        ensure!(whole, "a countdown was cut short");
        anyhow::Ok((nth, session.arrived))
    });
    let limit = due(waiters) + FIRST_END;
    let mut arrived = tokio::time::timeout(limit, futures::future::try_join_all(waiting))
        .await
        .context("a stream got no answer")??;
    arrived.sort_unstable();

    let mut after_due: Vec<_> =
        arrived.iter().map(|(nth, at)| micros(at.saturating_duration_since(start + due(*nth)))).collect();
    let mut ended = Vec::with_capacity(waiters);
    for (nth, id) in &ids {
        ended.push((*nth, tasks::get(&mut sessions[0], id, "completed").await?.last_updated_at));
    }
    ended.sort_unstable();
    let ended = epoch_us(clock, ended.into_iter().map(|(_, at)| at).collect()).await?;
    let mut late: Vec<_> = arrived
        .iter()
        .zip(ended)
        .map(|((_, at), ended)| (epoch.1 + micros(at.saturating_duration_since(epoch.0))).saturating_sub(ended))
        .collect();
    let [late_p50_us, late_p99_us] = percentiles(&mut late, [50, 99]);
    let [after_due_p50_us, after_due_p99_us] = percentiles(&mut after_due, [50, 99]);
    let each = |more: u64, less: u64| more.saturating_sub(less) / waiters as u64;
    Ok(Waiting {
        waiters,
        open_task_bytes: each(with_tasks, idle),
        waiter_bytes: each(with_streams, with_tasks),
        late_p50_us,
        late_p99_us,
        after_due_p50_us,
        after_due_p99_us,
    })
}

/// What an idle connection costs a bare axum server that has answered one request on it.
pub async fn idle_connection_bytes(axum: &Process, address: SocketAddr, connections: usize) -> Result<Option<u64>> {
    let mut first = Http::open(address, "/echo").await?;
    for _ in 0..WARM_UP_CALLS {
        first.echo(ECHO_BODY).await?;
    }
    let before = axum.resident()?;
    let open: Vec<_> = iter(0..connections)
        .map(|_| async move {
            let mut connection = Http::open(address, "/echo").await?;
            connection.echo(ECHO_BODY).await?;
            anyhow::Ok(connection)
        })
        .buffer_unordered(OPENING_MAX)
        .try_collect()
        .await?;
    tokio::time::sleep(SETTLE).await;
    let after = axum.resident()?;
    drop(open);
    Ok(after.saturating_sub(before).checked_div(connections as u64))
}

/// So many sessions on connections of their own.
pub async fn open_sessions(address: SocketAddr, count: usize) -> Result<Vec<Session>> {
    iter(0..count).map(|_| Session::open(address, KEY)).buffer_unordered(OPENING_MAX).try_collect().await
}

/// So many callers of 2026-07-28 on connections of their own.
pub async fn connect_modern(address: SocketAddr, count: usize) -> Result<Vec<Session>> {
    iter(0..count).map(|_| Session::modern(address, KEY)).buffer_unordered(OPENING_MAX).try_collect().await
}

fn resident(roles: &Roles) -> Result<u64> {
    Ok(roles.gateway.resident()? + roles.taskstore.resident()?)
}

async fn now_us(clock: &PgPool) -> Result<u64> {
    let row = sqlx::query("select (extract(epoch from clock_timestamp()) * 1e6)::bigint").fetch_one(clock).await?;
    Ok(u64::try_from(row.try_get::<i64, _>(0)?)?)
}

async fn epoch_us(clock: &PgPool, moments: Vec<String>) -> Result<Vec<u64>> {
    let rows = sqlx::query(
        "select (extract(epoch from moment::timestamptz) * 1e6)::bigint
         from unnest($1::text[]) with ordinality as all_moments (moment, nth) order by nth",
    )
    .bind(moments)
    .fetch_all(clock)
    .await?;
    rows.iter().map(|row| Ok(u64::try_from(row.try_get::<i64, _>(0)?)?)).collect()
}
