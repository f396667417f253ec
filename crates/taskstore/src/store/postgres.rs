//! The store on PostgreSQL.
//!
//! Every method is one statement, hence one round trip and one transaction: there is no `BEGIN` that a broken connection
//! or a dropped future could leave open. READ COMMITTED is enough, because every change names the version it replaces.

mod audit;
mod budgets;
mod control;
mod link;
mod sql;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::limits::JOURNAL_BYTES_MAX;
use longhaul_core::{Fence, LimitScope, LogLevel, Task, TaskId, Timestamp, WorkerId, WorkerInfo};
use longhaul_rpc::{Assignment, Position, SessionNote, SessionPosition, TaskCount};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use self::link::Lane;
use super::budgets::settlements;
use super::row::{self, TaskRow as _, at, there};
use super::{
    Answer, Caps, Committed, Created, Fault, Found, Loaded, NewNote, NewRow, OUTCOME_BYTES_MAX, PhaseCount, Recorded,
    Retention, Store, Wanted, Wish, Write, micros,
};

pub(crate) use self::link::{check_durability, check_schema, migrate};

/// Connections of their own for heartbeats and sweeps, so that a flood of calls cannot make leases run out.
const PULSE_CONNECTIONS: u32 = 2;
/// Queued tasks looked at beyond those wanted, for those that another task-store is just taking.
const CLAIM_SPARE: i64 = 64;
/// Tenants looked at in one claim; chosen by chance, if there are more.
const CLAIM_TENANTS_MAX: i64 = 256;
/// Subscriptions of one session that may be begun at once and all find the same slot free.
const SUBSCRIBES_MAX: u32 = 16;

type Sql = Query<'static, sqlx::Postgres, PgArguments>;

/// See the module.
pub(crate) struct PostgresStore {
    calls: Lane,
    pulse: Lane,
}

impl PostgresStore {
    /// Connects on first use.
    pub(crate) fn new(url: &str, max_connections: u32) -> anyhow::Result<Self> {
        let calls = max_connections.saturating_sub(PULSE_CONNECTIONS).max(1);
        Ok(Self { calls: Lane::new(url, calls)?, pulse: Lane::new(url, PULSE_CONNECTIONS)? })
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn create(&self, rows: &[NewRow], caps: Caps, lease: Duration) -> Answer<Vec<Created>> {
        let answers = self.calls.all("create", create(rows, caps, lease)).await?;
        if !answers.iter().any(|row| verdict(row, 0).is_ok_and(|verdict| verdict == "uncounted")) {
            return answers.iter().map(created).collect();
        }
        // A caller's first task: its counters are missing. The rest of the batch was committed and is known now.
        let mut owners: Vec<_> =
            rows.iter().flat_map(|row| [(tenant(row), row.owner.clone()), (tenant(row), String::new())]).collect();
        owners.sort();
        owners.dedup();
        let (tenants, owners): (Vec<_>, Vec<_>) = owners.into_iter().unzip();
        self.calls.all("count_new", sqlx::query(sql::COUNT_NEW).bind(tenants).bind(owners)).await?;
        let missing: Vec<NewRow> = rows
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| verdict(answer, 0).is_ok_and(|verdict| verdict == "uncounted"))
            .map(|(row, _)| row.clone())
            .collect();
        let again = self.calls.all("create", create(&missing, caps, lease)).await?;
        let mut again = again.iter();
        answers
            .iter()
            .map(|answer| match verdict(answer, 0)?.as_str() {
                "uncounted" => created(there(again.next(), "an answer")?),
                _ => created(answer),
            })
            .collect()
    }

    async fn load(&self, wanted: &[Wanted]) -> Answer<Vec<Loaded>> {
        let ids: Vec<_> = wanted.iter().map(|wanted| wanted.id.to_string()).collect();
        let (tenants, owners): (Vec<_>, Vec<_>) =
            wanted.iter().map(|wanted| wanted.outcome_for.clone().unzip()).unzip();
        let whole: Vec<_> = wanted.iter().map(|wanted| wanted.whole).collect();
        let load = sqlx::query(sql::LOAD).bind(ids).bind(tenants).bind(owners).bind(whole).bind(OUTCOME_BYTES_MAX);
        let rows = self.calls.all("load", load).await?;
        rows.iter()
            .map(|row| {
                let outcome = row.int(at::MORE + 3)? == Some(1);
                let found = if row.text(at::ID)?.is_some() {
                    Found::Task(Box::new(row::stored(row, at::MORE, outcome)?))
                } else if let Some(tenant) = row.text(at::MORE + 5)? {
                    let owner = there(row.text(at::MORE + 6)?, "owner")?;
                    Found::Tombstone { tenant, owner, gone_at: row::moment(row, at::MORE + 7)? }
                } else {
                    Found::Nothing
                };
                Ok(Loaded { now: row::moment(row, at::MORE + 4)?, found })
            })
            .collect()
    }

    async fn commit(&self, writes: &[Write]) -> Answer<Vec<Option<Committed>>> {
        let rows = self.calls.all("commit", commit(writes)?).await?;
        let mut committed = vec![None; writes.len()];
        for row in &rows {
            let place = there(row.long(0)?, "a place")? as usize - 1;
            let moments =
                Committed { updated_at: row::moment(row, 1)?, claimed_at: row.long(2)?.map(Timestamp::from_micros) };
            *there(committed.get_mut(place), "its place")? = Some(moments);
        }
        Ok(committed)
    }

    async fn claim(&self, wish: &Wish) -> Answer<Vec<Assignment>> {
        let query = || {
            sqlx::query(sql::CLAIM)
                .bind(wish.worker.name.clone())
                .bind(wish.worker.incarnation.clone())
                .bind(wish.token.0.clone())
                .bind(wish.tools.clone())
                .bind(i64::from(wish.max))
                .bind(CLAIM_SPARE)
                .bind(CLAIM_TENANTS_MAX)
                .bind(i64::try_from(wish.bytes_max).unwrap_or(i64::MAX))
                .bind(micros(wish.lease))
        };
        let rows = match self.calls.all("claim", query()).await {
            // Another copy of this claim was faster: what it took is there now.
            Err(Fault::Taken(_)) => self.calls.all("claim", query()).await?,
            rows => rows?,
        };
        rows.iter().map(row::assignment).collect()
    }

    async fn queued(&self, tools: &[String]) -> Answer<bool> {
        Ok(self.calls.one("queued", sqlx::query(sql::QUEUED).bind(tools.to_vec())).await?.int(0)? == Some(1))
    }

    async fn heartbeat(
        &self,
        worker: &WorkerId,
        leases: &[(TaskId, u32)],
        lease: Duration,
    ) -> Answer<HashMap<TaskId, bool>> {
        let ids: Vec<_> = leases.iter().map(|(id, _)| id.to_string()).collect();
        let attempts: Vec<_> = leases.iter().map(|(_, attempt)| *attempt as i32).collect();
        let query = sqlx::query(sql::HEARTBEAT)
            .bind(worker.name.clone())
            .bind(worker.incarnation.clone())
            .bind(ids)
            .bind(attempts)
            .bind(micros(lease));
        let rows = self.pulse.all("heartbeat", query).await?;
        rows.iter().map(|row| Ok((row::id(row, 0)?, row.int(1)?.is_some()))).collect()
    }

    async fn collect(&self, fence: &Fence, have: &[u32]) -> Answer<Option<Vec<(u32, Vec<u8>)>>> {
        let query = sqlx::query(sql::COLLECT)
            .bind(fence.id.to_string())
            .bind(fence.attempt as i32)
            .bind(fence.token.0.clone())
            .bind(have.iter().map(|nth| *nth as i32).collect::<Vec<_>>());
        let rows = self.calls.all("collect", query).await?;
        // A task without answers is a row without an answer.
        Ok(if rows.is_empty() { None } else { Some(rows.iter().filter_map(row::answer).collect::<Result<_, _>>()?) })
    }

    async fn record(&self, fence: &Fence, nth: u32, sealed: &[u8]) -> Answer<Recorded> {
        let query = sqlx::query(sql::RECORD)
            .bind(fence.id.to_string())
            .bind(fence.attempt as i32)
            .bind(fence.token.0.clone())
            .bind(nth as i32)
            .bind(sealed.to_vec())
            .bind(JOURNAL_BYTES_MAX as i64);
        let row = self.calls.one("record", query).await?;
        let present = there(row.long(1)?, "a count")?;
        Ok(Recorded::of(row.int(0)? == Some(1), row.int(2)? == Some(1), present, nth))
    }

    async fn journal(&self, fence: &Fence, after: u32, bytes_max: usize) -> Answer<Option<Vec<(u32, Vec<u8>)>>> {
        let query = sqlx::query(sql::JOURNAL)
            .bind(fence.id.to_string())
            .bind(fence.attempt as i32)
            .bind(fence.token.0.clone())
            .bind(after as i32)
            .bind(bytes_max as i64);
        let rows = self.calls.all("journal", query).await?;
        // A task without entries is a row without an entry.
        Ok(if rows.is_empty() { None } else { Some(rows.iter().filter_map(row::answer).collect::<Result<_, _>>()?) })
    }

    async fn carry(&self, id: TaskId, stream: &str, age: Option<Duration>, lease: Duration) -> Answer<bool> {
        let query = |sql| sqlx::query(sql).bind(id.to_string()).bind(stream.to_owned());
        if lease.is_zero() {
            return self.calls.all("let_go", query(sql::LET_GO)).await.map(|_| true);
        }
        let carry = query(sql::CARRY).bind(micros(lease)).bind(age.map(micros));
        let granted = self.calls.all("carry", carry).await?.pop().map(|row| row.long(0)).transpose()?;
        Ok(granted == Some(Some(1)))
    }

    async fn list(&self, tenant: &str, owner: &str, after: Option<Position>, limit: u32) -> Answer<Vec<Task>> {
        let query = sqlx::query(sql::LIST)
            .bind(tenant.to_owned())
            .bind(owner.to_owned())
            .bind(after.map_or(i64::MAX, |after| after.created_at.as_micros()))
            .bind(after.map_or_else(String::new, |after| after.id.to_string()))
            .bind(i64::from(limit));
        self.calls.all("list", query).await?.iter().map(row::task).collect()
    }

    async fn changed(&self, seen: &[(TaskId, u64)]) -> Answer<Vec<(TaskId, u64)>> {
        let ids: Vec<_> = seen.iter().map(|(id, _)| id.to_string()).collect();
        let versions: Vec<_> = seen.iter().map(|(_, version)| *version as i64).collect();
        let rows = self.calls.all("changed", sqlx::query(sql::CHANGED).bind(ids).bind(versions)).await?;
        rows.iter().map(|row| Ok((row::id(row, 0)?, row.long(1)?.map_or(u64::MAX, |version| version as u64)))).collect()
    }

    async fn count(&self) -> Answer<TaskCount> {
        let row = self.calls.one("count", sqlx::query(sql::COUNT)).await?;
        let number = |at| Ok::<_, Fault>(there(row.long(at)?, "a count")?.max(0) as u64);
        Ok(TaskCount { stored: number(0)?, open: number(1)? })
    }

    async fn phases(&self) -> Answer<PhaseCount> {
        let row = self.pulse.one("phases", sqlx::query(sql::PHASES)).await?;
        let number = |at| Ok::<_, Fault>(row.long(at)?.unwrap_or(0).max(0) as u64);
        Ok(PhaseCount {
            queued: number(0)?,
            running: number(1)?,
            oldest_queued: Duration::from_micros(number(2)?),
            oldest_running: Duration::from_micros(number(3)?),
        })
    }

    async fn attach(&self, worker: &WorkerInfo) -> Answer<()> {
        let (tools, offers) = row::offers(worker)?;
        let query = sqlx::query(sql::ATTACH)
            .bind(worker.id.name.clone())
            .bind(worker.id.incarnation.clone())
            .bind(worker.url.clone())
            .bind(tools)
            .bind(offers);
        self.pulse.all("attach", query).await.map(drop)
    }

    async fn orphans(&self, worker: &WorkerId, limit: u32) -> Answer<Vec<Task>> {
        let query =
            sqlx::query(sql::ORPHANS).bind(worker.name.clone()).bind(worker.incarnation.clone()).bind(i64::from(limit));
        self.pulse.all("orphans", query).await?.iter().map(row::task).collect()
    }

    async fn detach(&self, worker: &WorkerId) -> Answer<()> {
        let query = sqlx::query(sql::DETACH).bind(worker.name.clone()).bind(worker.incarnation.clone());
        self.pulse.all("detach", query).await.map(drop)
    }

    async fn workers(&self, within: Duration) -> Answer<Vec<WorkerInfo>> {
        let rows = self.calls.all("workers", sqlx::query(sql::WORKERS).bind(micros(within))).await?;
        rows.iter().map(row::worker).collect()
    }

    async fn note_session(&self, note: &NewNote, max: usize) -> Answer<bool> {
        let query = sqlx::query(sql::NOTE_SESSION)
            .bind(note.session.clone())
            .bind(note.ended)
            .bind(note.log_level.map(LogLevel::name))
            .bind(note.expires_at.as_micros())
            .bind(note.tenant.clone())
            .bind(note.owner.clone())
            .bind(max as i64);
        Ok(!self.calls.all("note_session", query).await?.is_empty())
    }

    async fn sessions(&self, after: &SessionPosition, limit: usize) -> Answer<Vec<SessionNote>> {
        let query = sqlx::query(sql::SESSIONS)
            .bind(after.changed_at.as_micros())
            .bind(after.session.clone())
            .bind(limit as i64);
        self.calls.all("sessions", query).await?.iter().map(row::note).collect()
    }

    async fn subscribe(&self, session: &str, uri: &str, max: usize, expires_at: Timestamp) -> Answer<bool> {
        let mut tries = 0;
        loop {
            let query = sqlx::query(sql::SUBSCRIBE)
                .bind(session.to_owned())
                .bind(uri.to_owned())
                .bind(max as i32)
                .bind(expires_at.as_micros());
            match self.calls.one("subscribe", query).await {
                Err(Fault::Taken(_)) if tries < SUBSCRIBES_MAX => tries += 1,
                row => return Ok(row?.int(0)? == Some(1)),
            }
        }
    }

    async fn unsubscribe(&self, session: &str, uri: &str) -> Answer<()> {
        let query = sqlx::query("DELETE FROM subscriptions WHERE session = $1 AND uri = $2");
        self.calls.all("unsubscribe", query.bind(session.to_owned()).bind(uri.to_owned())).await.map(drop)
    }

    async fn subscriptions(&self, session: &str) -> Answer<Vec<String>> {
        let query = sqlx::query(sql::SUBSCRIPTIONS).bind(session.to_owned());
        self.calls.all("subscriptions", query).await?.iter().map(|row| there(row.text(0)?, "uri")).collect()
    }

    async fn tick(&self, gap: Duration, lease: Duration) -> Answer<bool> {
        let row = self.pulse.one("tick", sqlx::query(sql::TICK).bind(micros(gap)).bind(micros(lease))).await?;
        Ok(row.int(0)? == Some(1))
    }

    async fn overdue(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)> {
        timed(self.pulse.all("overdue", sqlx::query(sql::OVERDUE).bind(i64::from(limit))).await?)
    }

    async fn expired(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)> {
        timed(self.pulse.all("expired", sqlx::query(sql::EXPIRED).bind(i64::from(limit))).await?)
    }

    async fn unanswered(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)> {
        timed(self.pulse.all("unanswered", sqlx::query(sql::UNANSWERED).bind(i64::from(limit))).await?)
    }

    async fn purge(&self, limit: u32) -> Answer<u64> {
        let row = self.pulse.one("purge", sqlx::query(sql::PURGE).bind(i64::from(limit))).await?;
        Ok(there(row.long(0)?, "a count")? as u64)
    }

    async fn prune(&self, retention: &Retention) -> Answer<bool> {
        let folded = self.pulse.one("fold", sqlx::query(sql::FOLD).bind(i64::from(retention.rows_max))).await?;
        let folded = there(folded.long(0)?, "a count")?;
        let query = sqlx::query(sql::PRUNE)
            .bind(micros(retention.tombstones))
            .bind(micros(retention.workers))
            .bind(i64::from(retention.rows_max));
        let row = self.pulse.one("prune", query).await?;
        Ok(there(row.long(0)?, "a count")?.max(folded) >= i64::from(retention.rows_max))
    }

    async fn advance_clock(&self, by: Duration) -> Answer<()> {
        let query = sqlx::query(
            "WITH moved AS (UPDATE longhaul_clock SET offset_us = offset_us + $1)
             UPDATE sweeps SET last_tick = last_tick + $1",
        );
        self.pulse.all("advance_clock", query.bind(micros(by))).await.map(drop)
    }

    fn connections(&self) -> (u64, u64) {
        let (one, two) = (self.calls.connections(), self.pulse.connections());
        (one.0 + two.0, one.1 + two.1)
    }
}

fn tenant(row: &NewRow) -> String {
    row.new.owner.tenant.as_str().to_owned()
}

fn verdict(row: &PgRow, at: usize) -> Result<String, Fault> {
    there(row.text(at)?, "a verdict")
}

fn created(row: &PgRow) -> Result<Created, Fault> {
    Ok(match verdict(row, 0)?.as_str() {
        "created" => Created::At(row::moment(row, 1)?),
        "known" => Created::Known,
        "caller" => Created::Full(LimitScope::Caller),
        "tenant" => Created::Full(LimitScope::Tenant),
        // Its counters were pruned between being made and being locked: as good as a lost connection.
        _ => return Err(Fault::Unknown("the counters moved".into())),
    })
}

fn timed(rows: Vec<PgRow>) -> Answer<(Timestamp, Vec<Task>)> {
    let now = rows.first().map_or(Ok(Timestamp::from_micros(0)), |row| row::moment(row, at::MORE))?;
    Ok((now, rows.iter().map(row::task).collect::<Result<_, _>>()?))
}

fn create(rows: &[NewRow], caps: Caps, lease: Duration) -> Sql {
    let many = rows.len();
    let (mut ids, mut tenants, mut owners, mut tools) =
        (Vec::with_capacity(many), Vec::with_capacity(many), Vec::with_capacity(many), Vec::with_capacity(many));
    let (mut arguments, mut ttls, mut tokens) =
        (Vec::with_capacity(many), Vec::with_capacity(many), Vec::with_capacity(many));
    let (mut sessions, mut parents) = (Vec::with_capacity(many), Vec::with_capacity(many));
    let claimed = || rows.iter().map(|row| row.new.claimed.as_ref());
    for row in rows {
        ids.push(row.new.id.to_string());
        tenants.push(row.new.owner.tenant.as_str());
        owners.push(&*row.owner);
        tools.push(&*row.new.tool);
        arguments.push(&*row.new.arguments);
        ttls.push(row.ttl_ms.map(|ms| ms as i64));
        tokens.push(row.new.progress_token.as_deref());
        sessions.push(row.new.session.as_deref());
        parents.push(row.new.trace.traceparent.as_deref());
    }
    sqlx::query(sql::CREATE)
        .bind(ids)
        .bind(tenants)
        .bind(owners)
        .bind(tools)
        .bind(arguments)
        .bind(ttls)
        .bind(tokens)
        .bind(sessions)
        .bind(parents)
        .bind(i64::from(caps.open))
        .bind(i64::from(caps.live))
        .bind(longhaul_core::Event::Created.name())
        .bind(rows.iter().map(|row| i16::from(row.new.client.bits())).collect::<Vec<_>>())
        .bind(claimed().map(|claimed| claimed.map(|claimed| &*claimed.worker.name)).collect::<Vec<_>>())
        .bind(claimed().map(|claimed| claimed.map(|claimed| &*claimed.worker.incarnation)).collect::<Vec<_>>())
        .bind(claimed().map(|claimed| claimed.map(|claimed| &*claimed.token.0)).collect::<Vec<_>>())
        .bind(micros(lease))
        .bind(rows.iter().map(|row| row.new.retry.on_interrupt.name()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row::attempts(row.new.retry)).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.new.trace.tracestate.as_deref()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.new.trace.baggage.as_deref()).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.new.reserved.as_ref().map(row::reserved)).collect::<Vec<_>>())
}

fn commit(writes: &[Write]) -> Answer<Sql> {
    let tasks = || writes.iter().map(|write| &write.change.task);
    let progress = |task: &Task| task.progress.clone();
    let message = |text: Option<String>| text.map(String::into_bytes);
    let (mut results, mut codes, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    for write in writes {
        let (result, code, message) = row::outcome(write.change.outcome.as_ref());
        results.push(result);
        codes.push(code);
        messages.push(message);
    }
    let held = || writes.iter().map(|write| write.held.as_ref());
    let (mut answered, mut numbers, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for write in writes {
        for (nth, sealed) in &write.answers {
            answered.push(write.change.task.id.to_string());
            numbers.push(*nth as i32);
            answers.push(&**sealed);
        }
    }
    let spent = |of: fn(longhaul_core::Amount) -> u64| {
        tasks().map(|task| task.spent.map(|spent| super::budgets::number(of(spent)))).collect::<Vec<_>>()
    };
    let settled = || tasks().flat_map(|task| settlements(task).map(move |settlement| (task, settlement)));
    let query = sqlx::query(sql::COMMIT)
        .bind(tasks().map(|task| task.id.to_string()).collect::<Vec<_>>())
        .bind(tasks().map(|task| task.version as i64).collect::<Vec<_>>())
        .bind(tasks().map(|task| row::phase(&task.phase)).collect::<Vec<_>>())
        .bind(tasks().map(|task| task.ending().map(row::ending)).collect::<Vec<_>>())
        .bind(tasks().map(|task| message(task.status_message.clone())).collect::<Vec<_>>())
        .bind(tasks().map(|task| progress(task).map(|progress| progress.progress)).collect::<Vec<_>>())
        .bind(tasks().map(|task| progress(task).and_then(|progress| progress.total)).collect::<Vec<_>>())
        .bind(tasks().map(|task| progress(task).and_then(|progress| message(progress.message))).collect::<Vec<_>>())
        .bind(results)
        .bind(codes)
        .bind(messages)
        .bind(held().map(|held| held.map(|(attempt, _)| *attempt as i32)).collect::<Vec<_>>())
        .bind(held().map(|held| held.map(|(_, token)| &*token.0)).collect::<Vec<_>>())
        .bind(writes.iter().map(|write| write.overdue).collect::<Vec<_>>())
        .bind(writes.iter().map(|write| write.change.event.map(|event| event.name())).collect::<Vec<_>>())
        .bind(writes.iter().map(|write| row::inputs(&write.change)).collect::<Result<Vec<_>, _>>()?)
        .bind(tasks().map(|task| task.input_until().map(Timestamp::as_micros)).collect::<Vec<_>>())
        .bind(answered)
        .bind(numbers)
        .bind(answers)
        .bind(spent(|spent| spent.units))
        .bind(spent(|spent| spent.micro_usd))
        .bind(settled().map(|(task, _)| task.id.to_string()).collect::<Vec<_>>())
        .bind(settled().map(|(_, one)| one.key.budget.clone()).collect::<Vec<_>>())
        .bind(settled().map(|(_, one)| one.key.tenant.clone()).collect::<Vec<_>>())
        .bind(settled().map(|(_, one)| one.key.holder.clone()).collect::<Vec<_>>())
        .bind(settled().map(|(_, one)| one.starts_at.as_micros()).collect::<Vec<_>>())
        .bind(settled().map(|(_, one)| one.delta.units).collect::<Vec<_>>())
        .bind(settled().map(|(_, one)| one.delta.micro_usd).collect::<Vec<_>>());
    Ok(query)
}
