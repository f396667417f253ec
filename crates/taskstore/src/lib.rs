//! Keep tasks; run the sweeps.
//!
//! [`TaskStore::build`] opens the database of a [`Config`]; the value is what gateways and workers talk to
//! ([`longhaul_rpc::Tasks`], [`longhaul_rpc::Work`], [`longhaul_rpc::Control`]); [`TaskStore::run`] runs its sweeps.
//!
//! Every verb is the same measure: read, let core decide, commit if the version still fits, publish a hint. Statements are
//! shared by the requests that arrive together ([`batch`]). Nothing here judges a task; see `longhaul_core::verbs`.

#![warn(missing_docs)]

mod answers;
mod audit;
mod batch;
mod budgets;
mod clock;
mod control;
mod hints;
mod leases;
mod metrics;
mod ops;
mod queue;
mod store;
mod sweeps;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use longhaul_bus::Bus;
use longhaul_core::TtlLimits;
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_seal::Keyring;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use crate::clock::SystemClock;

use crate::batch::Batcher;
use crate::hints::Hints;
use crate::queue::Queue;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use crate::store::{Caps, Committed, Created, Loaded, NewRow, Store, Wanted, Write, insist, insist_counted};

/// Statements of one kind in flight at once.
const CREATE_WRITERS: usize = 1;
const COMMIT_WRITERS: usize = 2;
const LOAD_READERS: usize = 3;
const CLAIMS_MAX: usize = 4;

/// How the task-store keeps tasks.
#[derive(Debug, Clone)]
pub struct Config {
    /// `postgres://…`, or `sqlite:FILE`.
    pub database_url: String,
    /// Connections to PostgreSQL; more than 16 make it slower, not faster.
    pub max_connections: u32,
    /// Serve although PostgreSQL may lose committed tasks in a crash: for tests.
    pub allow_unsafe_durability: bool,
    /// How long tasks are kept.
    pub ttl: TtlLimits,
    /// Open tasks of one caller; 0 is no limit (`mcp_task_max_open`).
    pub max_open: u32,
    /// Open tasks of one tenant; 0 is no limit (`mcp_task_max_live`).
    pub max_live: u32,
    /// The largest result kept, in bytes; a task with a larger one ends as failed (`task_max_result_bytes`).
    pub max_result_bytes: usize,
    /// How long a worker may be silent before its tasks are interrupted. The sweeps look 30 times as often, so that tests
    /// can scale everything down together.
    pub lease: Duration,
    /// How long the owner of an expired task hears that it has expired, rather than that there is no such task.
    pub tombstone: Duration,
    /// How long audit rows are kept, and no shorter than any task; 0 is for ever. In PostgreSQL they go month by month.
    pub audit_retention_days: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            database_url: "sqlite:.longhaul/longhaul.db".into(),
            max_connections: 12,
            allow_unsafe_durability: false,
            ttl: TtlLimits::default(),
            max_open: 20,
            max_live: 1000,
            max_result_bytes: PAYLOAD_BYTES_MAX,
            lease: Duration::from_secs(30),
            tombstone: Duration::from_secs(3600),
            audit_retention_days: 365,
        }
    }
}

impl Config {
    /// How often leases and times to live are looked at.
    fn sweep(&self) -> Duration {
        self.lease / 30
    }
}

/// The task-store of one process. Clones are the same one.
#[derive(Clone)]
pub struct TaskStore {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    store: Arc<dyn Store>,
    hints: Arc<Hints>,
    /// Seals answers.
    keyring: Arc<ArcSwap<Keyring>>,
    creates: Batcher<NewRow, Created>,
    loads: Arc<Batcher<Wanted, Loaded>>,
    /// What was committed, and whether the statement was repeated.
    commits: Batcher<Write, (Option<Committed>, bool)>,
    claims: Arc<Semaphore>,
    /// Work that must outlive a dropped request.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Claims that wait for a task end.
    closing: CancellationToken,
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres:") || url.starts_with("postgresql:")
}

/// Whether a database URL is of a kind that we know, wherever it leads.
pub fn check_url(url: &str) -> anyhow::Result<()> {
    let is_known = is_postgres(url) || url.starts_with("sqlite:");
    anyhow::ensure!(is_known, "the database URL must begin with postgres: or sqlite:");
    Ok(())
}

/// Brings the schema of the PostgreSQL database at `url` up to date. (SQLite is migrated when it is opened.)
pub async fn migrate(url: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        is_postgres(url),
        "only a PostgreSQL database is migrated; an SQLite file is brought up to date when it is opened"
    );
    store::postgres::migrate(url).await
}

impl TaskStore {
    /// Opens the database, or says in a sentence why it cannot. The keyring, the same for all replicas, seals answers for
    /// as long as they wait for their worker.
    pub async fn build(config: Config, bus: Arc<dyn Bus>, keyring: Arc<ArcSwap<Keyring>>) -> anyhow::Result<Self> {
        let url = &config.database_url;
        check_url(url)?;
        let store: Arc<dyn Store> = if is_postgres(url) {
            if !config.allow_unsafe_durability {
                store::postgres::check_durability(url).await?;
            }
            store::postgres::check_schema(url).await?;
            Arc::new(PostgresStore::new(url, config.max_connections)?)
        } else {
            Arc::new(SqliteStore::open(url, Arc::new(SystemClock)).await?)
        };
        let hints = Arc::new(Hints { bus, queue: Queue::default(), leases: leases::Leases::default() });
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (caps, lease) = (Caps { open: config.max_open, live: config.max_live }, config.lease);
        let creates = {
            let (store, hints) = (store.clone(), hints.clone());
            Batcher::start(
                "create",
                CREATE_WRITERS,
                &tasks,
                &stop,
                Arc::new(move |rows: Arc<[NewRow]>| {
                    let (store, hints) = (store.clone(), hints.clone());
                    Box::pin(async move {
                        let created = insist(|| store.create(&rows, caps, lease)).await?;
                        for (row, created) in rows.iter().zip(&created) {
                            if let Created::At(_) = created {
                                metrics::created(&row.new.tool);
                                hints.created(&row.new);
                            }
                        }
                        Ok(created)
                    })
                }),
            )
        };
        let commits = {
            let (store, hints) = (store.clone(), hints.clone());
            Batcher::start(
                "commit",
                COMMIT_WRITERS,
                &tasks,
                &stop,
                Arc::new(move |writes: Arc<[Write]>| {
                    let (store, hints) = (store.clone(), hints.clone());
                    Box::pin(async move {
                        let (committed, repeated) = insist_counted(|| store.commit(&writes)).await?;
                        for (write, committed) in writes.iter().zip(&committed) {
                            if let Some(committed) = committed {
                                ops::committed(write, committed, &hints);
                            }
                        }
                        Ok(committed.into_iter().map(|committed| (committed, repeated)).collect())
                    })
                }),
            )
        };
        let loads = {
            let store = store.clone();
            Arc::new(Batcher::start(
                "load",
                LOAD_READERS,
                &tasks,
                &stop,
                Arc::new(move |wanted: Arc<[Wanted]>| {
                    let store = store.clone();
                    Box::pin(async move { insist(|| store.load(&wanted)).await })
                }),
            ))
        };
        let (listener, looks, heard) = (hints.clone(), loads.clone(), hints.bus.subscribe());
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move { listener.listen(heard, &looks).await }));
        let claims = Arc::new(Semaphore::new(CLAIMS_MAX));
        let closing = stop.child_token();
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                store,
                hints,
                keyring,
                creates,
                loads,
                commits,
                claims,
                tasks,
                stop,
                closing,
            }),
        })
    }

    /// Runs the sweeps until `drain` fires, then finishes what was begun. To be drained after the server that offers this
    /// task-store, because from then on every request is answered as unavailable.
    pub async fn run(&self, drain: CancellationToken) {
        let (period, drain) = (self.inner.config.sweep(), &drain);
        tokio::join!(
            drain.run_until_cancelled(sweeps::every(period, "interrupt", || self.interrupt())),
            drain.run_until_cancelled(sweeps::every(period, "expire", || self.expire())),
            drain.run_until_cancelled(sweeps::every(period, "lapse", || self.lapse())),
            drain.run_until_cancelled(sweeps::every(sweeps::PURGE_EVERY, "purge", || self.purge())),
            drain.run_until_cancelled(sweeps::every(audit::SEAL_EVERY, "seal", || self.seal_quietly())),
            drain.run_until_cancelled(sweeps::every(sweeps::GAUGES_EVERY, "gauge", || self.gauge())),
        );
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// Lets claims end that wait for a task: the server that offers this task-store is about to end.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    /// Whether the database answers.
    pub async fn ready(&self) -> bool {
        self.inner.store.changed(&[]).await.is_ok()
    }

    /// Moves the database's clock on, for every replica that uses it, as if the sweeps had run all the while. For tests.
    pub async fn advance_clock(&self, by: Duration) -> Result<(), longhaul_rpc::Error> {
        // Not repeated: a second time would move it twice as far.
        Ok(self.inner.store.advance_clock(by).await?)
    }
}
