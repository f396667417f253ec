//! Connections to PostgreSQL.

use std::str::FromStr as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use sqlx::migrate::{Migrate as _, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqlStr};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::metrics;
use crate::store::{Answer, Fault};

/// How long a statement may take before its connection is given up and its outcome is unknown. The server gives up
/// earlier, by `statement_timeout`, unless it is frozen, cut off, or waits for a standby.
const STATEMENT_MAX: Duration = Duration::from_secs(5);

/// Some connections for one kind of statements.
///
/// Not sqlx's pool: that one can hand back a connection inside an open transaction (a dropped future in 0.9.0), pings the
/// server before and after each use, and waits for a server that does not answer.
pub(super) struct Lane {
    options: PgConnectOptions,
    idle: Mutex<Vec<PgConnection>>,
    free: Semaphore,
    size: u32,
}

impl Lane {
    pub(super) fn new(url: &str, size: u32) -> anyhow::Result<Self> {
        let free = Semaphore::new(size as usize);
        Ok(Self { options: options(url)?, idle: Mutex::new(Vec::new()), free, size })
    }

    /// All rows of one statement.
    pub(super) async fn all(
        &self,
        name: &'static str,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> Answer<Vec<PgRow>> {
        self.with(name, async |connection| query.fetch_all(connection).await).await
    }

    /// The only row of one statement.
    pub(super) async fn one(&self, name: &'static str, query: Query<'_, sqlx::Postgres, PgArguments>) -> Answer<PgRow> {
        self.with(name, async |connection| query.fetch_one(connection).await).await
    }

    async fn with<T, W>(&self, name: &'static str, work: W) -> Answer<T>
    where
        W: AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let start = Instant::now();
        let statement = async {
            let _free = self.free.acquire().await;
            let idle = self.idle().pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => connect(&self.options).await?,
            };
            let answer = work(&mut connection).await;
            if answer.as_ref().err().is_none_or(|error| !matches!(Fault::from(error), Fault::Unknown(_))) {
                self.idle().push(connection);
            }
            answer
        };
        let answer = match tokio::time::timeout(STATEMENT_MAX, statement).await {
            Ok(answer) => answer.map_err(|error| Fault::from(&error)),
            Err(_) => Err(Fault::Unknown(format!("no answer to {name} within {STATEMENT_MAX:?}"))),
        };
        if let Err(Fault::Unknown(_)) = answer {
            // What broke one connection has probably broken its neighbours.
            self.idle().clear();
        }
        metrics::query(name, start.elapsed());
        answer
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Idle ones, and those in use.
    pub(super) fn connections(&self) -> (u64, u64) {
        (self.idle().len() as u64, u64::from(self.size) - self.free.available_permits() as u64)
    }
}

fn options(url: &str) -> anyhow::Result<PgConnectOptions> {
    let options = PgConnectOptions::from_str(url).context("the database URL is not a PostgreSQL URL")?;
    Ok(options.application_name("longhaul").disable_statement_logging().options([
        ("statement_timeout", "3s"),
        ("lock_timeout", "1s"),
        ("idle_in_transaction_session_timeout", "5s"),
        ("tcp_keepalives_idle", "10"),
        ("tcp_keepalives_interval", "3"),
        ("tcp_keepalives_count", "3"),
        // A plan made while the tables were small must not stay: one way for every size, by index, planned once.
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("jit", "off"),
    ]))
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = options.connect().await?;
    let standby: bool = sqlx::query("SELECT pg_is_in_recovery()").fetch_one(&mut connection).await?.try_get(0)?;
    if standby {
        return Err(sqlx::Error::Configuration("the server is a standby".into()));
    }
    Ok(connection)
}

/// Refuses a server that may lose what it has committed.
pub(crate) async fn check_durability(url: &str) -> anyhow::Result<()> {
    let mut connection = connect_for(url, "the durability check").await?;
    for setting in ["synchronous_commit", "fsync", "full_page_writes"] {
        let value: String =
            sqlx::query("SELECT current_setting($1)").bind(setting).fetch_one(&mut connection).await?.try_get(0)?;
        anyhow::ensure!(
            value != "off",
            "PostgreSQL runs with {setting} = off and would lose acknowledged tasks in a crash: switch it on, or allow it \
             with allow_unsafe_durability for a database whose loss does not matter"
        );
    }
    Ok(())
}

async fn connect_for(url: &str, what: &str) -> anyhow::Result<PgConnection> {
    let connect = async { anyhow::Ok(connect(&options(url)?).await?) };
    let connection = tokio::time::timeout(STATEMENT_MAX, connect).await;
    connection
        .unwrap_or_else(|_| anyhow::bail!("no answer"))
        .with_context(|| format!("{what}: PostgreSQL cannot be reached"))
}

fn migrator() -> Migrator {
    let migration = |version, name: &'static str, sql| {
        Migration::new(version, name.into(), MigrationType::Simple, SqlStr::from_static(sql), false)
    };
    Migrator::with_migrations(vec![
        migration(1, "tasks", include_str!("../../../../../migrations/postgres/0001_tasks.sql")),
        migration(2, "inputs", include_str!("../../../../../migrations/postgres/0002_inputs.sql")),
        migration(3, "control", include_str!("../../../../../migrations/postgres/0003_control.sql")),
        migration(4, "budgets", include_str!("../../../../../migrations/postgres/0004_budgets.sql")),
        migration(5, "audit", include_str!("../../../../../migrations/postgres/0005_audit.sql")),
        migration(6, "attempts", include_str!("../../../../../migrations/postgres/0006_attempts.sql")),
        migration(7, "sessions", include_str!("../../../../../migrations/postgres/0007_sessions.sql")),
        migration(8, "carriers", include_str!("../../../../../migrations/postgres/0008_carriers.sql")),
        migration(9, "traces", include_str!("../../../../../migrations/postgres/0009_traces.sql")),
    ])
}

/// Brings the schema up to date; several at once wait for each other.
pub(crate) async fn migrate(url: &str) -> anyhow::Result<()> {
    // Not with the options of the service: a migration may take longer than a statement of its.
    let options = PgConnectOptions::from_str(url).context("the database URL is not a PostgreSQL URL")?;
    let mut connection =
        options.application_name("longhaul migrate").connect().await.context("PostgreSQL cannot be reached")?;
    migrator().run_direct(None, &mut connection, false).await.context("the migration failed")?;
    connection.close().await.context("the migration's connection broke as it was closed")
}

/// Refuses a schema that this version does not know.
pub(crate) async fn check_schema(url: &str) -> anyhow::Result<()> {
    let mut connection = connect_for(url, "the schema check").await?;
    let known: Vec<i64> = migrator().iter().map(|migration| migration.version).collect();
    let there: bool = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut connection)
        .await?
        .try_get(0)?;
    let applied = match there {
        true => connection.list_applied_migrations("_sqlx_migrations").await?,
        false => Vec::new(),
    };
    let applied: Vec<i64> = applied.iter().map(|migration| migration.version).collect();
    anyhow::ensure!(
        known.iter().all(|version| applied.contains(version)),
        "the database's schema is older than this version of longhaul: run `longhaul migrate` first"
    );
    Ok(())
}
