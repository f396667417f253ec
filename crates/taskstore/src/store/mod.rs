//! What the task-store asks of a database engine. An engine decides nothing: core verbs do.

pub(crate) mod audit;
pub(crate) mod budgets;
pub(crate) mod control;
pub(crate) mod postgres;
pub(crate) mod row;
pub(crate) mod sqlite;

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::{
    Fence, LeaseToken, LimitScope, LogLevel, NewTask, Outcome, Task, TaskId, Timestamp, WorkerId, WorkerInfo,
};
use longhaul_rpc::{Assignment, Position, SessionNote, SessionPosition, TaskCount};
use tokio::time::Instant;

/// How often a statement with unknown outcome is said again.
const TRIES_MAX: u32 = 5;
/// How long it is said again; gRPC's deadline is 8 s.
const TRYING_MAX: Duration = Duration::from_secs(5);
/// The pause before the second try; doubled before each further one.
const PAUSE: Duration = Duration::from_millis(25);

/// Why a statement has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Fault {
    /// The database could not be reached or was busy. Whether the statement took effect is unknown.
    #[error("the database does not answer: {0}")]
    Unknown(String),
    /// The database refused the statement; it had no effect.
    #[error("the database refused: {0}")]
    Failed(String),
    /// Somebody else has just written the same; it had no effect.
    #[error("somebody else was faster: {0}")]
    Taken(String),
}

impl From<Fault> for longhaul_rpc::Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unknown(_) => Self::Unavailable(fault.to_string()),
            Fault::Failed(_) | Fault::Taken(_) => Self::Fault(fault.to_string()),
        }
    }
}

impl From<&sqlx::Error> for Fault {
    fn from(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                // The message of a constraint quotes no values; the detail would.
                let why = format!("{code} {}", database.message());
                match passing(&code) {
                    true => Self::Unknown(why),
                    false if database.is_unique_violation() => Self::Taken(why),
                    false => Self::Failed(why),
                }
            }
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_)
            | sqlx::Error::RowNotFound => Self::Failed(error.to_string()),
            _ => Self::Unknown(error.to_string()),
        }
    }
}

/// Whether an error of this code may not come again: PostgreSQL's classes (transaction rollback, lock not available,
/// operator intervention, connection, insufficient resources such as a full disk, system error, internal error,
/// read-only), and SQLite's primary codes BUSY, LOCKED, NOMEM, IOERR, FULL and CANTOPEN.
fn passing(code: &str) -> bool {
    const CLASSES: [&str; 8] = ["40", "55P03", "57", "08", "53", "58", "XX", "25006"];
    const SQLITE: [u32; 6] = [5, 6, 7, 10, 13, 14];
    match code.len() {
        5 => CLASSES.iter().any(|class| code.starts_with(class)),
        // An extended code has its primary one in the lowest byte.
        _ => code.parse::<u32>().is_ok_and(|code| SQLITE.contains(&(code & 255))),
    }
}

/// Says a statement, the same again while its outcome is unknown. Every statement may be repeated without harm.
pub(crate) async fn insist<T, F>(statement: impl FnMut() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    insist_counted(statement).await.map(|(answer, _)| answer)
}

/// As [`insist`]; answers too whether the statement was repeated, so that it may have found its own work done.
pub(crate) async fn insist_counted<T, F>(mut statement: impl FnMut() -> F) -> Result<(T, bool), Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    let start = Instant::now();
    let mut pause = PAUSE;
    for tries in 1.. {
        match statement().await {
            Err(Fault::Unknown(why)) if tries < TRIES_MAX && start.elapsed() < TRYING_MAX => {
                tracing::warn!(why, tries, "a statement is repeated");
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            answer => return answer.map(|answer| (answer, tries > 1)),
        }
    }
    unreachable!("invariant: the last try returns")
}

/// A task to insert, with what was granted.
#[derive(Debug, Clone)]
pub(crate) struct NewRow {
    pub new: NewTask,
    /// [`longhaul_core::Principal::owner`] of the owner.
    pub owner: String,
    pub ttl_ms: Option<u64>,
}

/// The most open tasks; 0 is no limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub open: u32,
    pub live: u32,
}

/// What became of a [`NewRow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    At(Timestamp),
    /// A task of this id is there already.
    Known,
    Full(LimitScope),
}

/// What is to be remembered of a session.
#[derive(Debug, Clone)]
pub(crate) struct NewNote {
    pub session: String,
    pub tenant: String,
    /// [`longhaul_core::Principal::owner`] of its owner.
    pub owner: String,
    pub ended: bool,
    pub log_level: Option<LogLevel>,
    pub expires_at: Timestamp,
}

/// A task to read.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub id: TaskId,
    /// Read the outcome too, if the task has ended and belongs to this tenant and owner.
    pub outcome_for: Option<(String, String)>,
    /// However large it is; else one of more than [`OUTCOME_BYTES_MAX`] is left out.
    pub whole: bool,
}

/// The largest outcome that is read along with others.
pub(crate) const OUTCOME_BYTES_MAX: i64 = 64 * 1024;

/// What was read.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    /// The database's clock.
    pub now: Timestamp,
    pub found: Found,
}

#[derive(Debug, Clone)]
pub(crate) enum Found {
    Task(Box<Stored>),
    /// Purged, but remembered.
    Tombstone {
        tenant: String,
        owner: String,
        gone_at: Timestamp,
    },
    Nothing,
}

/// A stored task.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub task: Task,
    /// Under which claim it is held, or was when it ended.
    pub token: Option<LeaseToken>,
    pub outcome: Option<Outcome>,
}

/// A change to commit.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    /// Its responses are in `answers`.
    pub change: longhaul_core::Change,
    /// The number of each question that it answers, and the sealed answer.
    pub answers: Vec<(u32, Vec<u8>)>,
    /// Only if the task is held under this attempt and token.
    pub held: Option<(u32, LeaseToken)>,
    /// Only if the lease has run out: a heartbeat may have renewed it since it was read.
    pub overdue: bool,
}

/// A committed change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub updated_at: Timestamp,
    /// When the task was last handed out.
    pub claimed_at: Option<Timestamp>,
}

/// What became of a journal entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// It is there, and was perhaps there before.
    There,
    /// Its place is not the next one.
    Gap,
    Full,
    /// The task is not held so.
    NotHeld,
}

impl Recorded {
    /// From what a statement saw: whether the task was held, whether the entry was added, how many were there before.
    pub(crate) fn of(held: bool, added: bool, present: i64, nth: u32) -> Self {
        match (held, added) {
            (false, _) => Self::NotHeld,
            (true, true) => Self::There,
            (true, false) if present >= i64::from(nth) => Self::There,
            (true, false) if present + 1 == i64::from(nth) => Self::Full,
            (true, false) => Self::Gap,
        }
    }
}

/// A claim of queued tasks.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub worker: WorkerId,
    pub token: LeaseToken,
    pub tools: Vec<String>,
    pub max: u32,
    pub lease: Duration,
    /// The most bytes of arguments together; a single task may have more.
    pub bytes_max: u64,
}

/// How many tasks are in a phase, and since when the oldest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PhaseCount {
    pub queued: u64,
    pub running: u64,
    pub oldest_queued: Duration,
    pub oldest_running: Duration,
}

/// How long things are kept that no task's time to live governs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    pub tombstones: Duration,
    pub workers: Duration,
    /// Rows of each kind to delete at once.
    pub rows_max: u32,
}

pub(crate) type Answer<T> = Result<T, Fault>;

/// A database engine. Every method is one transaction, and may be repeated without harm.
#[async_trait]
pub(crate) trait Store: audit::AuditStore + budgets::BudgetStore + control::ControlStore + Send + Sync {
    /// Inserts tasks within the caps, with their audit rows, those that run already under this lease; one answer per row,
    /// in order.
    async fn create(&self, rows: &[NewRow], caps: Caps, lease: Duration) -> Answer<Vec<Created>>;
    /// Reads tasks; one answer per wish, in order.
    async fn load(&self, wanted: &[Wanted]) -> Answer<Vec<Loaded>>;
    /// Commits each change whose task is still at the version before it, with its audit row and answers; `None` if it is
    /// not. An ending deletes the task's answers. No two are of the same task.
    async fn commit(&self, writes: &[Write]) -> Answer<Vec<Option<Committed>>>;
    /// Hands out queued tasks, or again those already handed out under the same token.
    async fn claim(&self, wish: &Wish) -> Answer<Vec<Assignment>>;
    /// Whether there are tasks to hand out, perhaps just being taken.
    async fn queued(&self, tools: &[String]) -> Answer<bool>;
    /// Renews leases; answers which of them the worker still holds, and whether answers wait for it.
    async fn heartbeat(
        &self,
        worker: &WorkerId,
        leases: &[(TaskId, u32)],
        lease: Duration,
    ) -> Answer<HashMap<TaskId, bool>>;
    /// Deletes the answers that have arrived; answers with the others, by number, or `None` if the task is not held so.
    async fn collect(&self, fence: &Fence, have: &[u32]) -> Answer<Option<Vec<(u32, Vec<u8>)>>>;
    /// Adds a journal entry after those that are there, within [`JOURNAL_BYTES_MAX`](longhaul_core::limits::JOURNAL_BYTES_MAX).
    async fn record(&self, fence: &Fence, nth: u32, sealed: &[u8]) -> Answer<Recorded>;
    /// Journal entries after the first `after`, by number, at least one and up to so many bytes; `None` if the task is not
    /// held so.
    async fn journal(&self, fence: &Fence, after: u32, bytes_max: usize) -> Answer<Option<Vec<(u32, Vec<u8>)>>>;
    /// Makes a stream carry a task's questions for so long, unless another one does; zero lets go. Answers whether. One that
    /// waits for the result, of this age, is the next if it came after the one that carries, which gives way at its next word.
    async fn carry(&self, id: TaskId, stream: &str, age: Option<Duration>, lease: Duration) -> Answer<bool>;
    /// Tasks of an owner that have not expired, newest first.
    async fn list(&self, tenant: &str, owner: &str, after: Option<Position>, limit: u32) -> Answer<Vec<Task>>;
    /// Those that are no longer at the version seen; gone ones at [`u64::MAX`].
    async fn changed(&self, seen: &[(TaskId, u64)]) -> Answer<Vec<(TaskId, u64)>>;
    async fn count(&self) -> Answer<TaskCount>;
    async fn phases(&self) -> Answer<PhaseCount>;

    /// Stores a worker and its tools in place of any of the same name.
    async fn attach(&self, worker: &WorkerInfo) -> Answer<()>;
    /// Running tasks of other incarnations of this worker.
    async fn orphans(&self, worker: &WorkerId, limit: u32) -> Answer<Vec<Task>>;
    /// The worker has gone; what it offers is still known, as long as that of one that is not heard of.
    async fn detach(&self, worker: &WorkerId) -> Answer<()>;
    /// The workers heard of within this time, by name.
    async fn workers(&self, within: Duration) -> Answer<Vec<WorkerInfo>>;

    /// Adds to what is known of a session: an end stays, and the last level counts. False if something is known of so many
    /// other sessions of its owner.
    async fn note_session(&self, note: &NewNote, max: usize) -> Answer<bool>;
    async fn sessions(&self, after: &SessionPosition, limit: usize) -> Answer<Vec<SessionNote>>;
    /// False if the session has so many already.
    async fn subscribe(&self, session: &str, uri: &str, max: usize, expires_at: Timestamp) -> Answer<bool>;
    async fn unsubscribe(&self, session: &str, uri: &str) -> Answer<()>;
    async fn subscriptions(&self, session: &str) -> Answer<Vec<String>>;

    /// Notes that somebody looks for overdue leases; if nobody did for longer than `gap`, every lease gets `lease` more.
    /// Answers whether leases may be judged now.
    async fn tick(&self, gap: Duration, lease: Duration) -> Answer<bool>;
    /// Running tasks whose lease has run out, with the time.
    async fn overdue(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)>;
    /// Open tasks whose time to live has run out, with the time.
    async fn expired(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)>;
    /// Tasks with an open question whose time has run out, with the time.
    async fn unanswered(&self, limit: u32) -> Answer<(Timestamp, Vec<Task>)>;
    /// Turns ended tasks whose time to live has run out into tombstones; answers how many.
    async fn purge(&self, limit: u32) -> Answer<u64>;
    /// Forgets what is past its retention; answers whether there may be more.
    async fn prune(&self, retention: &Retention) -> Answer<bool>;

    /// Moves the clock on, as if the sweeps had run all the while. For tests.
    async fn advance_clock(&self, by: Duration) -> Answer<()>;
    /// Connections: idle and in use.
    fn connections(&self) -> (u64, u64);
}

/// Micros of a duration, as the engines take it.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 2)
}

/// Bytes that a payload weighs in a batch.
pub(crate) fn weight(outcome: Option<&Outcome>) -> usize {
    let data = |data: &Option<Bytes>| data.as_ref().map_or(0, Bytes::len);
    match outcome {
        Some(Outcome::Result { body, .. }) => body.len(),
        Some(Outcome::Error(error)) => error.message.len() + data(&error.data),
        Some(Outcome::Cancelled | Outcome::Interrupted(_)) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::passing;

    #[test]
    fn what_passes_by_itself_is_tried_again_and_a_bug_is_not() {
        for code in [
            "40001", "40P01", "55P03", "57014", "57P03", "08006", "53100", "53200", "53300", "58030", "XX000", "25006",
            "5", "6", "13", "517", "778",
        ] {
            assert!(passing(code), "{code}");
        }
        for code in ["22P05", "23505", "42P01", "54001", "55000", "P0001", "1", "19", "2067", "", "x"] {
            assert!(!passing(code), "{code}");
        }
    }
}
