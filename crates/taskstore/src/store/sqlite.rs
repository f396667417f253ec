//! The store on SQLite, for `longhaul dev`: one file, one writer.
//!
//! It answers as PostgreSQL does; with one writer at a time its statements may be small and many.

mod audit;
mod budgets;
mod control;

use std::collections::HashMap;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use longhaul_core::limits::JOURNAL_BYTES_MAX;
use longhaul_core::{Clock, Event, Fence, LimitScope, LogLevel, Phase, Task, TaskId, Timestamp, WorkerId, WorkerInfo};
use longhaul_rpc::{Assignment, Position, SessionNote, SessionPosition, TaskCount};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, SqlStr, Sqlite};
use tokio::sync::{Mutex, MutexGuard};

use super::budgets::{number, settlements};
use super::row::{self, TaskRow as _, at, task_columns, there};
use super::{
    Answer, Caps, Committed, Created, Fault, Found, Loaded, NewNote, NewRow, OUTCOME_BYTES_MAX, PhaseCount, Recorded,
    Retention, Store, Wanted, Wish, Write, micros,
};

/// How long a statement waits for another process that writes.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct SqliteStore {
    clock: Arc<dyn Clock>,
    writer: Mutex<SqliteConnection>,
    reader: Mutex<SqliteConnection>,
}

impl SqliteStore {
    /// Opens the file, creating and migrating it as needed.
    pub(crate) async fn open(url: &str, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let mut writer = connect(url).await?;
        let migration = |version, name: &'static str, sql| {
            Migration::new(version, name.into(), MigrationType::Simple, SqlStr::from_static(sql), false)
        };
        let migrations = vec![
            migration(1, "tasks", include_str!("../../../../migrations/sqlite/0001_tasks.sql")),
            migration(2, "inputs", include_str!("../../../../migrations/sqlite/0002_inputs.sql")),
            migration(3, "control", include_str!("../../../../migrations/sqlite/0003_control.sql")),
            migration(4, "budgets", include_str!("../../../../migrations/sqlite/0004_budgets.sql")),
            migration(5, "audit", include_str!("../../../../migrations/sqlite/0005_audit.sql")),
            migration(6, "attempts", include_str!("../../../../migrations/sqlite/0006_attempts.sql")),
            migration(7, "sessions", include_str!("../../../../migrations/sqlite/0007_sessions.sql")),
            migration(8, "carriers", include_str!("../../../../migrations/sqlite/0008_carriers.sql")),
            migration(9, "traces", include_str!("../../../../migrations/sqlite/0009_traces.sql")),
        ];
        let migrated = Migrator::with_migrations(migrations).run_direct(None, &mut writer, false).await;
        migrated.with_context(|| format!("{url}: the schema cannot be brought up to date"))?;
        Ok(Self { clock, reader: Mutex::new(connect(url).await?), writer: Mutex::new(writer) })
    }

    /// The time, with what tests have added to it.
    async fn now(&self, connection: &mut SqliteConnection) -> Answer<i64> {
        let offset = one(connection, sqlx::query("SELECT offset_us FROM longhaul_clock")).await?;
        Ok(self.clock.now().as_micros() + there(offset.long(0)?, "an offset")?)
    }

    /// The writer, inside a transaction.
    async fn begin(&self) -> Answer<Work<'_>> {
        let mut connection = self.writer.lock().await;
        // A transaction left open by a failure is of no use to anyone.
        let _ = sqlx::query("ROLLBACK").execute(&mut *connection).await;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await.map_err(|error| Fault::from(&error))?;
        let now = self.now(&mut connection).await?;
        Ok(Work { connection, now })
    }
}

/// A transaction at one moment.
struct Work<'a> {
    connection: MutexGuard<'a, SqliteConnection>,
    now: i64,
}

type Sql<'q> = Query<'q, Sqlite, SqliteArguments>;

impl Work<'_> {
    async fn all(&mut self, query: Sql<'_>) -> Answer<Vec<SqliteRow>> {
        all(&mut self.connection, query).await
    }

    /// The rows changed.
    async fn run(&mut self, query: Sql<'_>) -> Answer<u64> {
        let done = query.execute(&mut *self.connection).await.map_err(|error| Fault::from(&error))?;
        Ok(done.rows_affected())
    }

    async fn count(&mut self, tenant: &str, owner: &str, open: i64, stored: i64) -> Answer<()> {
        for owner in [owner, ""] {
            let query = sqlx::query(
                "INSERT INTO counters (tenant, owner, open, stored) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET open = open + ?3, stored = stored + ?4",
            );
            self.run(query.bind(tenant).bind(owner).bind(open).bind(stored)).await?;
        }
        Ok(())
    }

    async fn open(&mut self, tenant: &str, owner: &str) -> Answer<i64> {
        let query = sqlx::query("SELECT open FROM counters WHERE tenant = ?1 AND owner = ?2").bind(tenant).bind(owner);
        self.all(query).await?.first().map_or(Ok(0), |row| there(row.long(0)?, "a count"))
    }

    async fn commit<T>(mut self, answer: T) -> Answer<T> {
        self.run(sqlx::query("COMMIT")).await.map(|_| answer)
    }
}

async fn connect(url: &str) -> anyhow::Result<SqliteConnection> {
    let options = SqliteConnectOptions::from_str(url).with_context(|| format!("{url} is not an SQLite URL"))?;
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // As durable as PostgreSQL: a commit has reached the disk when it is answered.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_MAX)
        .disable_statement_logging();
    options.connect().await.with_context(|| format!("{url} cannot be opened"))
}

async fn all(connection: &mut SqliteConnection, query: Sql<'_>) -> Answer<Vec<SqliteRow>> {
    query.fetch_all(connection).await.map_err(|error| Fault::from(&error))
}

async fn one(connection: &mut SqliteConnection, query: Sql<'_>) -> Answer<SqliteRow> {
    query.fetch_one(connection).await.map_err(|error| Fault::from(&error))
}

#[async_trait]
impl Store for SqliteStore {
    async fn create(&self, rows: &[NewRow], caps: Caps, lease: Duration) -> Answer<Vec<Created>> {
        let mut work = self.begin().await?;
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let (new, tenant) = (&row.new, row.new.owner.tenant.as_str());
            let known = sqlx::query("SELECT 1 FROM tasks WHERE id = ?1").bind(new.id.to_string());
            if !work.all(known).await?.is_empty() {
                answers.push(Created::Known);
                continue;
            }
            if caps.open > 0 && work.open(tenant, &row.owner).await? >= i64::from(caps.open) {
                answers.push(Created::Full(LimitScope::Caller));
                continue;
            }
            if caps.live > 0 && work.open(tenant, "").await? >= i64::from(caps.live) {
                answers.push(Created::Full(LimitScope::Tenant));
                continue;
            }
            let now = work.now;
            let (ttl, claimed) = (row.ttl_ms.map(|ms| ms as i64), new.claimed.as_ref());
            let insert = sqlx::query(
                // One that runs already is as if it had been claimed, in a place that no claim gives.
                "INSERT INTO tasks (id, tenant, owner, tool, arguments, ttl_ms, expires_at, progress_token, session, traceparent,
                   created_at, updated_at, client, on_interrupt, max_attempts, phase, attempt, worker_name, worker_incarnation,
                   lease_token, lease_slot, lease_until, claimed_at, tracestate, baggage, reserved)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7 + ?6 * 1000, ?8, ?9, ?10, ?7, ?7, ?11, ?16, ?17,
                   iif(?14 IS NULL, 'queued', 'running'),
                   ?14 IS NOT NULL, ?12, ?13, ?14, iif(?14 IS NULL, NULL, 0), iif(?14 IS NULL, NULL, ?7 + ?15),
                   iif(?14 IS NULL, NULL, ?7), ?18, ?19, ?20)",
            )
            .bind(new.id.to_string())
            .bind(tenant)
            .bind(&row.owner)
            .bind(&new.tool)
            .bind(&*new.arguments)
            .bind(ttl)
            .bind(now)
            .bind(new.progress_token.as_deref())
            .bind(new.session.as_deref())
            .bind(new.trace.traceparent.as_deref())
            .bind(i16::from(new.client.bits()))
            .bind(claimed.map(|claimed| &*claimed.worker.name))
            .bind(claimed.map(|claimed| &*claimed.worker.incarnation))
            .bind(claimed.map(|claimed| &*claimed.token.0))
            .bind(micros(lease))
            .bind(new.retry.on_interrupt.name())
            .bind(row::attempts(new.retry))
            .bind(new.trace.tracestate.as_deref())
            .bind(new.trace.baggage.as_deref())
            .bind(new.reserved.as_ref().map(row::reserved));
            work.run(insert).await?;
            work.run(audit(&new.id.to_string(), Event::Created.name(), now)).await?;
            work.count(tenant, &row.owner, 1, 1).await?;
            answers.push(Created::At(Timestamp::from_micros(now)));
        }
        work.commit(answers).await
    }

    async fn load(&self, wanted: &[Wanted]) -> Answer<Vec<Loaded>> {
        let mut reader = self.reader.lock().await;
        let now = Timestamp::from_micros(self.now(&mut reader).await?);
        let mut answers = Vec::with_capacity(wanted.len());
        for Wanted { id, outcome_for, whole } in wanted {
            let (tenant, owner) = outcome_for.clone().unzip();
            let query =
                sqlx::query(LOAD).bind(id.to_string()).bind(tenant).bind(owner).bind(*whole).bind(OUTCOME_BYTES_MAX);
            let row = one(&mut reader, query).await?;
            let outcome = row.int(at::MORE + 3)? == Some(1);
            let found = if row.text(at::ID)?.is_some() {
                Found::Task(Box::new(row::stored(&row, at::MORE, outcome)?))
            } else if let Some(tenant) = row.text(at::MORE + 4)? {
                let owner = there(row.text(at::MORE + 5)?, "owner")?;
                Found::Tombstone { tenant, owner, gone_at: row::moment(&row, at::MORE + 6)? }
            } else {
                Found::Nothing
            };
            answers.push(Loaded { now, found });
        }
        Ok(answers)
    }

    async fn commit(&self, writes: &[Write]) -> Answer<Vec<Option<Committed>>> {
        let mut work = self.begin().await?;
        let mut answers = Vec::with_capacity(writes.len());
        for Write { change, answers: given, held, overdue } in writes {
            let task = &change.task;
            let progress = task.progress.as_ref();
            let (result, code, message) = row::outcome(change.outcome.as_ref());
            let (attempt, token) = held.as_ref().map(|(attempt, token)| (*attempt as i32, &*token.0)).unzip();
            let update = sqlx::query(COMMIT)
                .bind(task.id.to_string())
                .bind(task.version as i64)
                .bind(row::phase(&task.phase))
                .bind(task.ending().map(row::ending))
                .bind(task.status_message.as_ref().map(String::as_bytes))
                .bind(progress.map(|progress| progress.progress))
                .bind(progress.and_then(|progress| progress.total))
                .bind(progress.and_then(|progress| progress.message.as_ref()).map(String::as_bytes))
                .bind(result)
                .bind(code)
                .bind(message)
                .bind(attempt)
                .bind(token)
                .bind(*overdue)
                .bind(work.now)
                .bind(row::inputs(change)?)
                .bind(task.input_until().map(Timestamp::as_micros))
                .bind(task.spent.map(|spent| number(spent.units)))
                .bind(task.spent.map(|spent| number(spent.micro_usd)));
            let Some(row) = work.all(update).await?.pop() else {
                answers.push(None);
                continue;
            };
            let updated_at = row::moment(&row, 0)?;
            if let Some(event) = change.event {
                work.run(audit(&task.id.to_string(), event.name(), updated_at.as_micros())).await?;
            }
            for (nth, sealed) in given {
                let insert = sqlx::query("INSERT INTO answers (task_id, nth, sealed) VALUES (?1, ?2, ?3)");
                work.run(insert.bind(task.id.to_string()).bind(*nth as i32).bind(&**sealed)).await?;
            }
            if !matches!(task.phase, Phase::Running(_)) {
                work.run(sqlx::query(FORGET).bind(task.id.to_string())).await?;
            }
            if task.ending().is_some() {
                work.run(sqlx::query(CLOSE).bind(task.id.to_string())).await?;
                for settlement in settlements(task) {
                    work.settle(settlement).await?;
                }
                work.count(task.owner.tenant.as_str(), &task.owner.owner(), -1, 0).await?;
            }
            answers.push(Some(Committed { updated_at, claimed_at: row.long(1)?.map(Timestamp::from_micros) }));
        }
        work.commit(answers).await
    }

    async fn claim(&self, wish: &Wish) -> Answer<Vec<Assignment>> {
        let mut work = self.begin().await?;
        let who = |query: Sql<'static>| {
            query.bind(wish.worker.name.clone()).bind(wish.worker.incarnation.clone()).bind(wish.token.0.clone())
        };
        let held = work.all(who(sqlx::query(HELD))).await?;
        if !held.is_empty() {
            let held = held.iter().map(row::assignment).collect::<Result<_, _>>()?;
            return work.commit(held).await;
        }
        let tools = serde_json::to_string(&wish.tools).map_err(|error| Fault::Failed(error.to_string()))?;
        let now = work.now;
        let queued = sqlx::query(QUEUED)
            .bind(tools)
            .bind(now)
            .bind(&wish.worker.name)
            .bind(&wish.worker.incarnation)
            .bind(i64::from(wish.max));
        let (mut slot, mut bytes) = (0, 0);
        for row in work.all(queued).await? {
            bytes += there(row.long(1)?, "a length")? as u64;
            if slot > 0 && bytes > wish.bytes_max {
                break;
            }
            slot += 1;
            let take = who(sqlx::query(TAKE)).bind(row.text(0)?).bind(slot).bind(now + micros(wish.lease)).bind(now);
            work.run(take).await?;
        }
        let taken = work.all(who(sqlx::query(HELD))).await?;
        let taken = taken.iter().map(row::assignment).collect::<Result<_, _>>()?;
        work.commit(taken).await
    }

    async fn queued(&self, _: &[String]) -> Answer<bool> {
        // Claims come one after the other: an empty one has seen all there is.
        Ok(false)
    }

    async fn heartbeat(
        &self,
        worker: &WorkerId,
        leases: &[(TaskId, u32)],
        lease: Duration,
    ) -> Answer<HashMap<TaskId, bool>> {
        let mut work = self.begin().await?;
        let now = work.now;
        let seen = sqlx::query("UPDATE workers SET last_seen = ?3 WHERE name = ?1 AND incarnation = ?2");
        work.run(seen.bind(&worker.name).bind(&worker.incarnation).bind(now)).await?;
        let mut held = HashMap::new();
        for (id, attempt) in leases {
            let renew = sqlx::query(
                "UPDATE tasks SET lease_until = ?5
                 WHERE id = ?1 AND attempt = ?2 AND phase = 'running' AND worker_name = ?3 AND worker_incarnation = ?4",
            );
            let renew = renew.bind(id.to_string()).bind(*attempt as i32).bind(&worker.name).bind(&worker.incarnation);
            if work.run(renew.bind(now + micros(lease))).await? > 0 {
                let waiting = sqlx::query("SELECT 1 FROM answers WHERE task_id = ?1 LIMIT 1").bind(id.to_string());
                held.insert(*id, !work.all(waiting).await?.is_empty());
            }
        }
        work.commit(held).await
    }

    async fn collect(&self, fence: &Fence, have: &[u32]) -> Answer<Option<Vec<(u32, Vec<u8>)>>> {
        let mut work = self.begin().await?;
        let id = fence.id.to_string();
        if work.all(held(fence)).await?.is_empty() {
            return work.commit(None).await;
        }
        for nth in have {
            let arrived = sqlx::query("DELETE FROM answers WHERE task_id = ?1 AND nth = ?2");
            work.run(arrived.bind(&id).bind(*nth as i32)).await?;
        }
        let rest = sqlx::query("SELECT nth, sealed FROM answers WHERE task_id = ?1 ORDER BY nth").bind(&id);
        let rest = work.all(rest).await?.iter().filter_map(row::answer).collect::<Result<_, _>>()?;
        work.commit(Some(rest)).await
    }

    async fn record(&self, fence: &Fence, nth: u32, sealed: &[u8]) -> Answer<Recorded> {
        let mut work = self.begin().await?;
        let id = fence.id.to_string();
        let is_held = !work.all(held(fence)).await?.is_empty();
        let present = sqlx::query("SELECT count(*), coalesce(sum(length(sealed)), 0) FROM journal WHERE task_id = ?1");
        let present = work.all(present.bind(&id)).await?.pop();
        let present = there(present, "a count")?;
        let (entries, bytes) = (there(present.long(0)?, "a count")?, there(present.long(1)?, "a sum")?);
        let fits = bytes + sealed.len() as i64 <= JOURNAL_BYTES_MAX as i64;
        let is_added = is_held && entries + 1 == i64::from(nth) && fits;
        if is_added {
            let insert = sqlx::query("INSERT INTO journal (task_id, nth, sealed) VALUES (?1, ?2, ?3)");
            work.run(insert.bind(&id).bind(nth as i32).bind(sealed)).await?;
        }
        work.commit(Recorded::of(is_held, is_added, entries, nth)).await
    }

    async fn journal(&self, fence: &Fence, after: u32, bytes_max: usize) -> Answer<Option<Vec<(u32, Vec<u8>)>>> {
        let mut reader = self.reader.lock().await;
        if all(&mut reader, held(fence)).await?.is_empty() {
            return Ok(None);
        }
        let entries = sqlx::query(
            "SELECT nth, sealed FROM (
               SELECT nth, sealed, sum(length(sealed)) OVER (ORDER BY nth) - length(sealed) AS before
               FROM journal WHERE task_id = ?1 AND nth > ?2
             ) WHERE before < ?3 ORDER BY nth",
        );
        let entries = entries.bind(fence.id.to_string()).bind(after as i32).bind(bytes_max as i64);
        all(&mut reader, entries).await?.iter().filter_map(row::answer).collect::<Result<_, _>>().map(Some)
    }

    async fn carry(&self, id: TaskId, stream: &str, age: Option<Duration>, lease: Duration) -> Answer<bool> {
        let mut work = self.begin().await?;
        let now = work.now;
        let query = |sql| sqlx::query(sql).bind(id.to_string()).bind(stream).bind(now);
        if lease.is_zero() {
            work.run(query(LEAVE_TO_NOBODY)).await?;
            work.run(query(LEAVE)).await?;
            return work.commit(true).await;
        }
        let opened = age.map_or(-1, |age| now.saturating_sub(micros(age)));
        let granted = work.all(query(CARRY).bind(now + micros(lease)).bind(opened)).await?.pop();
        let granted = granted.map_or(Ok(Some(0)), |row| row.long(0))?;
        work.commit(granted == Some(1)).await
    }

    async fn list(&self, tenant: &str, owner: &str, after: Option<Position>, limit: u32) -> Answer<Vec<Task>> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let query = sqlx::query(LIST)
            .bind(tenant)
            .bind(owner)
            .bind(after.map_or(i64::MAX, |after| after.created_at.as_micros()))
            .bind(after.map_or_else(String::new, |after| after.id.to_string()))
            .bind(i64::from(limit))
            .bind(now);
        all(&mut reader, query).await?.iter().map(row::task).collect()
    }

    async fn changed(&self, seen: &[(TaskId, u64)]) -> Answer<Vec<(TaskId, u64)>> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let mut changed = Vec::new();
        for (id, version) in seen {
            let query =
                sqlx::query("SELECT version FROM tasks WHERE id = ?1 AND (expires_at IS NULL OR expires_at > ?2)");
            let row = all(&mut reader, query.bind(id.to_string()).bind(now)).await?.pop();
            let present = match row {
                Some(row) => there(row.long(0)?, "version")? as u64,
                None => u64::MAX,
            };
            if present != *version {
                changed.push((*id, present));
            }
        }
        Ok(changed)
    }

    async fn count(&self) -> Answer<TaskCount> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let row = one(&mut reader, sqlx::query(COUNT).bind(now)).await?;
        let number = |at| Ok::<_, Fault>(there(row.long(at)?, "a count")?.max(0) as u64);
        Ok(TaskCount { stored: number(0)?, open: number(1)? })
    }

    async fn phases(&self) -> Answer<PhaseCount> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let row = one(&mut reader, sqlx::query(PHASES).bind(now)).await?;
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
        let mut work = self.begin().await?;
        let now = work.now;
        let query = sqlx::query(
            "INSERT OR REPLACE INTO workers (name, incarnation, url, tools, offers, last_seen) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .bind(&worker.id.name)
        .bind(&worker.id.incarnation)
        .bind(worker.url.as_deref())
        .bind(tools)
        .bind(offers)
        .bind(now);
        work.run(query).await?;
        work.commit(()).await
    }

    async fn orphans(&self, worker: &WorkerId, limit: u32) -> Answer<Vec<Task>> {
        let mut reader = self.reader.lock().await;
        let query = sqlx::query(ORPHANS).bind(&worker.name).bind(&worker.incarnation).bind(i64::from(limit));
        all(&mut reader, query).await?.iter().map(row::task).collect()
    }

    async fn detach(&self, worker: &WorkerId) -> Answer<()> {
        let mut work = self.begin().await?;
        let now = work.now;
        let query = sqlx::query(
            "UPDATE workers SET incarnation = '', url = NULL, last_seen = ?3 WHERE name = ?1 AND incarnation = ?2",
        );
        work.run(query.bind(&worker.name).bind(&worker.incarnation).bind(now)).await?;
        work.commit(()).await
    }

    async fn workers(&self, within: Duration) -> Answer<Vec<WorkerInfo>> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let query = sqlx::query(
            "SELECT name, incarnation, url, tools, offers FROM workers, sweeps
             WHERE last_seen > min(?1, coalesce(last_tick, ?1) + ?2 / 10) - ?2 OR ?1 < grace_until ORDER BY name",
        );
        let rows = all(&mut reader, query.bind(now).bind(micros(within))).await?;
        rows.iter().map(row::worker).collect()
    }

    async fn note_session(&self, note: &NewNote, max: usize) -> Answer<bool> {
        let mut work = self.begin().await?;
        let now = work.now;
        let query = sqlx::query(
            "INSERT INTO session_notes (session, ended, log_level, expires_at, tenant, owner, changed_at)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
             WHERE EXISTS (SELECT 1 FROM session_notes WHERE session = ?1)
               OR (SELECT count(*) FROM (SELECT 1 FROM session_notes WHERE tenant = ?5 AND owner = ?6 LIMIT ?8)) < ?8
             ON CONFLICT DO UPDATE SET ended = ended OR ?2, log_level = coalesce(?3, log_level),
               expires_at = max(expires_at, ?4), changed_at = max(changed_at, ?7)
             RETURNING 1",
        )
        .bind(&note.session)
        .bind(note.ended)
        .bind(note.log_level.map(LogLevel::name))
        .bind(note.expires_at.as_micros())
        .bind(&note.tenant)
        .bind(&note.owner)
        .bind(now)
        .bind(max as i64);
        let taken = !work.all(query).await?.is_empty();
        work.commit(taken).await
    }

    async fn sessions(&self, after: &SessionPosition, limit: usize) -> Answer<Vec<SessionNote>> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let query = sqlx::query(
            "SELECT session, ended, log_level, changed_at FROM session_notes
             WHERE (changed_at, session) > (?1, ?2) AND expires_at > ?3 ORDER BY changed_at, session LIMIT ?4",
        )
        .bind(after.changed_at.as_micros())
        .bind(&after.session)
        .bind(now)
        .bind(limit as i64);
        all(&mut reader, query).await?.iter().map(row::note).collect()
    }

    async fn subscribe(&self, session: &str, uri: &str, max: usize, expires_at: Timestamp) -> Answer<bool> {
        let mut work = self.begin().await?;
        let mine = sqlx::query("SELECT uri FROM subscriptions WHERE session = ?1").bind(session);
        let mine: Vec<_> = work.all(mine).await?.iter().map(|row| row.text(0)).collect::<Result<_, _>>()?;
        if mine.iter().flatten().any(|other| other == uri) {
            return work.commit(true).await;
        }
        if mine.len() >= max {
            return work.commit(false).await;
        }
        let add = sqlx::query(
            "INSERT INTO subscriptions (session, slot, uri, expires_at)
             SELECT ?1, coalesce(max(slot) + 1, 0), ?2, ?3 FROM subscriptions WHERE session = ?1",
        );
        work.run(add.bind(session).bind(uri).bind(expires_at.as_micros())).await?;
        work.commit(true).await
    }

    async fn unsubscribe(&self, session: &str, uri: &str) -> Answer<()> {
        let mut work = self.begin().await?;
        let remove = sqlx::query("DELETE FROM subscriptions WHERE session = ?1 AND uri = ?2");
        work.run(remove.bind(session).bind(uri)).await?;
        work.commit(()).await
    }

    async fn subscriptions(&self, session: &str) -> Answer<Vec<String>> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let query = sqlx::query("SELECT uri FROM subscriptions WHERE session = ?1 AND expires_at > ?2 ORDER BY uri");
        let rows = all(&mut reader, query.bind(session).bind(now)).await?;
        rows.iter().map(|row| there(row.text(0)?, "uri")).collect()
    }

    async fn tick(&self, gap: Duration, lease: Duration) -> Answer<bool> {
        let mut work = self.begin().await?;
        let now = work.now;
        let query = sqlx::query(
            "UPDATE sweeps SET last_tick = ?1, grace_until = CASE WHEN ?1 - last_tick > ?2 THEN ?1 + ?3 ELSE grace_until END
             RETURNING ?1 >= grace_until",
        );
        let judged = work.all(query.bind(now).bind(micros(gap)).bind(micros(lease))).await?;
        let judged = judged.first().map(|row| row.int(0)).transpose()?.flatten() == Some(1);
        work.commit(judged).await
    }

    async fn overdue(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)> {
        self.late(sqlx::query(OVERDUE), limit).await
    }

    async fn expired(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)> {
        self.late(sqlx::query(EXPIRED), limit).await
    }

    async fn unanswered(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)> {
        self.late(sqlx::query(UNANSWERED), limit).await
    }

    async fn purge(&self, limit: u32) -> Answer<u64> {
        let mut work = self.begin().await?;
        let (now, limit) = (work.now, i64::from(limit));
        let old = work.all(sqlx::query(OLD).bind(now).bind(limit)).await?;
        for row in &old {
            let (id, tenant, owner) = (row.text(0)?, there(row.text(1)?, "tenant")?, there(row.text(2)?, "owner")?);
            let bury = sqlx::query(
                "INSERT INTO tombstones (id, tenant, owner, gone_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
            );
            work.run(bury.bind(id.clone()).bind(tenant.clone()).bind(owner.clone()).bind(row.long(3)?)).await?;
            work.run(sqlx::query(FORGET).bind(id.clone())).await?;
            work.run(sqlx::query("DELETE FROM tasks WHERE id = ?1").bind(id)).await?;
            work.count(&tenant, &owner, 0, -1).await?;
        }
        work.commit(old.len() as u64).await
    }

    async fn prune(&self, retention: &Retention) -> Answer<bool> {
        let mut work = self.begin().await?;
        let (now, limit) = (work.now, i64::from(retention.rows_max));
        let before = |kept: Duration| now - micros(kept);
        let mut most = 0;
        for (query, moment) in [
            (sqlx::query(PRUNE_TOMBSTONES), before(retention.tombstones)),
            (sqlx::query(PRUNE_CARRIERS), now),
            (sqlx::query(PRUNE_NOTES), now),
            (sqlx::query(PRUNE_SUBSCRIPTIONS), now),
            (sqlx::query(PRUNE_WORKERS), before(retention.workers)),
            (sqlx::query(PRUNE_COUNTERS), 0),
        ] {
            most = work.run(query.bind(moment).bind(limit)).await?.max(most);
        }
        work.commit(most >= limit as u64).await
    }

    async fn advance_clock(&self, by: Duration) -> Answer<()> {
        let mut work = self.begin().await?;
        work.run(sqlx::query("UPDATE longhaul_clock SET offset_us = offset_us + ?1").bind(micros(by))).await?;
        work.run(sqlx::query("UPDATE sweeps SET last_tick = last_tick + ?1").bind(micros(by))).await?;
        work.commit(()).await
    }

    fn connections(&self) -> (u64, u64) {
        let used = u64::from(self.writer.try_lock().is_err()) + u64::from(self.reader.try_lock().is_err());
        (2 - used, used)
    }
}

impl SqliteStore {
    async fn late(&self, query: Sql<'static>, limit: u32) -> Answer<(Timestamp, Vec<Task>)> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        let rows = all(&mut reader, query.bind(now).bind(i64::from(limit))).await?;
        Ok((Timestamp::from_micros(now), rows.iter().map(row::task).collect::<Result<_, _>>()?))
    }
}

/// Whether a task is held so.
fn held(fence: &Fence) -> Sql<'static> {
    sqlx::query("SELECT 1 FROM tasks WHERE id = ?1 AND attempt = ?2 AND lease_token = ?3 AND phase = 'running'")
        .bind(fence.id.to_string())
        .bind(fence.attempt as i32)
        .bind(fence.token.0.clone())
}

/// Records what a task has become.
fn audit(id: &str, event: &'static str, at: i64) -> Sql<'static> {
    sqlx::query(
        "INSERT INTO audit_inbox (at, event, task_id, version, tenant, owner, tool, reason, trace_id)
         SELECT ?3, ?2, id, version, tenant, owner, tool, ending, substr(traceparent, 4, 32) FROM tasks WHERE id = ?1",
    )
    .bind(id.to_owned())
    .bind(event)
    .bind(at)
}

const LOAD: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    ", CASE WHEN yours THEN t.result END, CASE WHEN yours THEN t.error_code END, CASE WHEN yours THEN t.error_message END,
  yours, g.tenant, g.owner, g.gone_at
FROM (SELECT ?1 AS id) w
LEFT JOIN (
  SELECT *, coalesce(tenant = ?2 AND owner = ?3 AND phase = 'ended', 0) AND (?4 OR coalesce(length(result), 0) <= ?5) AS yours
  FROM tasks
) t ON t.id = w.id
LEFT JOIN tombstones g ON g.id = w.id"
);

const COMMIT: &str = "
UPDATE tasks SET phase = ?3, ending = ?4, version = ?2, status_message = ?5, progress = ?6, progress_total = ?7,
  progress_message = ?8, result = ?9, error_code = ?10, error_message = ?11, updated_at = max(updated_at, ?15),
  inputs = coalesce(?16, inputs), input_until = ?17, spent_units = ?18, spent_micro_usd = ?19
WHERE id = ?1 AND version = ?2 - 1 AND phase <> 'ended'
  AND (?13 IS NULL OR (lease_token = ?13 AND attempt = ?12)) AND (NOT ?14 OR lease_until <= ?15)
RETURNING updated_at, claimed_at";

// As the engine for clusters does it. ?3 is now, ?4 until when, ?5 when the stream was opened.
const CARRY: &str = "
INSERT INTO carriers AS c (task_id, stream, until, since) VALUES (?1, ?2, ?4, iif(?5 < 0, 0, ?3))
ON CONFLICT DO UPDATE SET
  stream = iif(c.until <= ?3, ?2, c.stream),
  until = CASE
    WHEN c.until <= ?3 THEN ?4
    WHEN c.stream <> ?2 THEN c.until
    WHEN c.heir <> ?2 AND c.heir_until > ?3 THEN ?3
    ELSE max(c.until, ?4)
  END,
  since = iif(c.until <= ?3, excluded.since, c.since),
  heir = CASE WHEN c.until <= ?3 THEN NULL WHEN c.stream <> ?2 THEN ?2 ELSE c.heir END,
  heir_opened = iif(c.until > ?3 AND c.stream <> ?2, ?5, c.heir_opened),
  heir_until = iif(c.until > ?3 AND c.stream <> ?2, ?4, c.heir_until)
WHERE iif(c.stream = ?2 AND c.until > ?3, 1, (c.until <= ?3 OR ?5 > c.since)
  AND NOT coalesce(c.heir <> ?2 AND c.heir_until > ?3 AND c.heir_opened > ?5, 0))
RETURNING stream = ?2 AND until > ?3";

const LEAVE_TO_NOBODY: &str =
    "DELETE FROM carriers WHERE task_id = ?1 AND stream = ?2 AND NOT coalesce(heir <> ?2 AND heir_until > ?3, 0)";
const LEAVE: &str = "
UPDATE carriers SET until = iif(stream = ?2, min(until, ?3), until), heir = nullif(heir, ?2)
WHERE task_id = ?1 AND (stream = ?2 OR heir = ?2)";

const FORGET: &str = "DELETE FROM answers WHERE task_id = ?1";
const CLOSE: &str = "DELETE FROM journal WHERE task_id = ?1";

const HELD: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    ", t.arguments, t.traceparent, t.tracestate, t.baggage FROM tasks t
WHERE t.phase = 'running' AND t.worker_name = ?1 AND t.worker_incarnation = ?2 AND t.lease_token = ?3 ORDER BY t.lease_slot"
);

// The oldest, one tenant after the other; nothing for a process that was replaced by a newer one of its name.
const QUEUED: &str = "
SELECT id, length(arguments) FROM (
  SELECT id, arguments, created_at, row_number() OVER (PARTITION BY tenant ORDER BY created_at, id) AS turn FROM tasks
  WHERE phase = 'queued' AND tool IN (SELECT value FROM json_each(?1)) AND (expires_at IS NULL OR expires_at > ?2)
)
WHERE NOT EXISTS (SELECT 1 FROM workers WHERE name = ?3 AND incarnation <> ?4)
ORDER BY turn, created_at, id LIMIT ?5";

const TAKE: &str = "
UPDATE tasks SET phase = 'running', attempt = attempt + 1, version = version + 1, worker_name = ?1, worker_incarnation = ?2,
  lease_token = ?3, lease_slot = ?5, lease_until = ?6, claimed_at = ?7, updated_at = max(updated_at, ?7)
WHERE id = ?4";

const LIST: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    " FROM tasks t
WHERE t.tenant = ?1 AND t.owner = ?2 AND (t.created_at, t.id) < (?3, ?4) AND (t.expires_at IS NULL OR t.expires_at > ?6)
ORDER BY t.created_at DESC, t.id DESC LIMIT ?5"
);

const COUNT: &str = "
SELECT coalesce(sum(stored), 0) - (SELECT count(*) FROM tasks WHERE phase = 'ended' AND expires_at <= ?1)
    - (SELECT count(*) FROM tasks WHERE phase <> 'ended' AND expires_at <= ?1),
  coalesce(sum(open), 0) - (SELECT count(*) FROM tasks WHERE phase <> 'ended' AND expires_at <= ?1)
FROM counters WHERE owner = ''";

const PHASES: &str = "
SELECT count(*) FILTER (WHERE phase = 'queued'), count(*) FILTER (WHERE phase = 'running'),
  ?1 - min(created_at) FILTER (WHERE phase = 'queued'), ?1 - min(claimed_at) FILTER (WHERE phase = 'running')
FROM tasks WHERE phase <> 'ended'";

const ORPHANS: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    " FROM tasks t WHERE t.phase = 'running' AND t.worker_name = ?1 AND t.worker_incarnation <> ?2 LIMIT ?3"
);

const OVERDUE: &str =
    concat!("SELECT ", task_columns!("t"), " FROM tasks t WHERE t.phase = 'running' AND t.lease_until <= ?1 LIMIT ?2");

const EXPIRED: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    " FROM tasks t WHERE t.phase <> 'ended' AND t.expires_at <= ?1 ORDER BY t.expires_at LIMIT ?2"
);

const UNANSWERED: &str =
    concat!("SELECT ", task_columns!("t"), " FROM tasks t WHERE t.input_until <= ?1 ORDER BY t.input_until LIMIT ?2");

const OLD: &str = "
SELECT id, tenant, owner, expires_at FROM tasks WHERE phase = 'ended' AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2";

const PRUNE_TOMBSTONES: &str =
    "DELETE FROM tombstones WHERE id IN (SELECT id FROM tombstones WHERE gone_at <= ?1 LIMIT ?2)";
const PRUNE_CARRIERS: &str =
    "DELETE FROM carriers WHERE task_id IN (SELECT task_id FROM carriers WHERE until <= ?1 LIMIT ?2)";
const PRUNE_NOTES: &str =
    "DELETE FROM session_notes WHERE session IN (SELECT session FROM session_notes WHERE expires_at <= ?1 LIMIT ?2)";
const PRUNE_SUBSCRIPTIONS: &str = "DELETE FROM subscriptions WHERE (session, slot) IN (SELECT session, slot FROM subscriptions WHERE expires_at <= ?1 LIMIT ?2)";
const PRUNE_WORKERS: &str =
    "DELETE FROM workers WHERE name IN (SELECT name FROM workers WHERE last_seen <= ?1 LIMIT ?2)";
const PRUNE_COUNTERS: &str = "DELETE FROM counters WHERE (tenant, owner) IN (SELECT tenant, owner FROM counters WHERE open <= ?1 AND stored <= ?1 LIMIT ?2)";
