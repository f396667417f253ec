//! The database of a world, as its operator sees it.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

/// A connection to the one engine or the other.
pub enum Database {
    /// PostgreSQL.
    Postgres(PgConnection),
    /// SQLite.
    Sqlite(SqliteConnection),
}

/// A row of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    /// The event's name.
    pub event: String,
    /// The task's id.
    pub task: String,
    /// The task's version after the event.
    pub version: i64,
    /// All of the row's text.
    pub text: String,
}

impl Database {
    pub(crate) async fn connect(url: &str) -> Self {
        if url.starts_with("sqlite:") {
            Self::Sqlite(url.parse::<SqliteConnectOptions>().unwrap().connect().await.unwrap())
        } else {
            Self::Postgres(url.parse::<PgConnectOptions>().unwrap().connect().await.unwrap())
        }
    }

    /// Runs statements.
    pub async fn execute(&mut self, sql: &str) {
        let query = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self {
            Self::Postgres(connection) => drop(query.execute(connection).await.unwrap()),
            Self::Sqlite(connection) => drop(query.execute(connection).await.unwrap()),
        }
    }

    /// The audit log, in the order of writing.
    pub async fn audit(&mut self) -> Vec<Audited> {
        const SQL: &str = "SELECT event, task_id, version, event || ' ' || task_id || ' ' || tenant || ' ' || owner || ' ' || tool
            || ' ' || coalesce(reason, '-') || ' ' || coalesce(trace_id, '-') FROM audit ORDER BY id";
        let rows: Vec<(String, String, i64, String)> = match self {
            Self::Postgres(connection) => sqlx::query_as(SQL).fetch_all(connection).await.unwrap(),
            Self::Sqlite(connection) => sqlx::query_as(SQL).fetch_all(connection).await.unwrap(),
        };
        rows.into_iter().map(|(event, task, version, text)| Audited { event, task, version, text }).collect()
    }
}
