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
    /// Connects.
    pub async fn connect(url: &str) -> Self {
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

    /// The one number that a query answers.
    pub async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
            Self::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
        }
    }

    /// Fails unless the tables agree with one another: counters with tasks, the audit log with both.
    pub async fn check(&mut self) {
        const SQL: &str = "
            SELECT 'counter', c.tenant || ' ' || c.owner, c.open, c.stored FROM counted c WHERE
                c.open <> (SELECT count(*) FROM tasks t
                    WHERE t.tenant = c.tenant AND c.owner IN (t.owner, '') AND t.phase <> 'ended')
                OR c.stored <> (SELECT count(*) FROM tasks t WHERE t.tenant = c.tenant AND c.owner IN (t.owner, ''))
            UNION ALL SELECT 'uncounted', t.tenant || ' ' || t.owner, 0, 0 FROM tasks t WHERE NOT EXISTS
                (SELECT 1 FROM counters c WHERE c.tenant = t.tenant AND c.owner = t.owner)
            UNION ALL SELECT 'audit', t.id || ' ' || t.phase, t.version, 0 FROM tasks t WHERE
                (SELECT count(*) FROM audit a WHERE a.task_id = t.id AND a.event = 'mcp.task.created') <> 1
                OR (SELECT count(*) FROM audit a WHERE a.task_id = t.id
                    AND a.event NOT IN ('mcp.task.created', 'mcp.task.input_required', 'mcp.task.input_answered',
                        'mcp.task.retrieved'))
                    <> CASE WHEN t.phase = 'ended' THEN 1 ELSE 0 END
                OR EXISTS (SELECT 1 FROM audit a WHERE a.task_id = t.id AND a.event NOT LIKE 'mcp.task.input%'
                    AND a.version <> CASE WHEN a.event = 'mcp.task.created' THEN 1 ELSE t.version END)
                OR EXISTS (SELECT 1 FROM audit a WHERE a.task_id = t.id AND a.event LIKE 'mcp.task.input%'
                    AND (a.version < 2 OR a.version > t.version))
            UNION ALL SELECT 'ended twice', a.task_id, count(*), 0 FROM audit a
                WHERE a.event LIKE 'mcp.task.%' AND a.event NOT LIKE 'mcp.task.input%' AND a.event <> 'mcp.task.retrieved'
                GROUP BY a.task_id HAVING count(*) > 2
            UNION ALL SELECT 'retrieved twice, or while it was open', a.task_id, count(*), 0 FROM audit a
                WHERE a.event = 'mcp.task.retrieved' GROUP BY a.task_id
                HAVING count(*) > 1 OR NOT EXISTS (SELECT 1 FROM audit e WHERE e.task_id = a.task_id
                    AND e.event IN ('mcp.task.completed', 'mcp.task.failed', 'mcp.task.cancelled'))
            UNION ALL SELECT 'answer without a task', a.task_id, a.nth, 0 FROM answers a WHERE NOT EXISTS
                (SELECT 1 FROM tasks t WHERE t.id = a.task_id AND t.phase <> 'ended')";
        // In Postgres what has ended is counted apart until the next create.
        const POSTGRES: &str = "WITH counted AS (SELECT c.tenant, c.owner,
            (c.open + coalesce(sum(e.open), 0))::bigint AS open, (c.stored + coalesce(sum(e.stored), 0))::bigint AS stored
            FROM counters c LEFT JOIN endings e USING (tenant, owner) GROUP BY c.tenant, c.owner)";
        const SQLITE: &str = "WITH counted AS (SELECT * FROM counters)";
        let sql = |counted| AssertSqlSafe(format!("{counted} {SQL}"));
        let wrong: Vec<(String, String, i64, i64)> = match self {
            Self::Postgres(connection) => sqlx::query_as(sql(POSTGRES)).fetch_all(connection).await.unwrap(),
            Self::Sqlite(connection) => sqlx::query_as(sql(SQLITE)).fetch_all(connection).await.unwrap(),
        };
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    /// Whether `needle` stands anywhere in it, in any column of any table.
    pub async fn contains(&mut self, needle: &str) -> bool {
        let hex: String = needle.bytes().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Postgres(connection) => {
                let tables: Vec<String> =
                    sqlx::query_scalar("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
                        .fetch_all(&mut *connection)
                        .await
                        .unwrap();
                assert!(tables.len() > 3, "{tables:?}");
                for table in tables {
                    // A row as text has its bytes in hex.
                    let sql = format!(r#"SELECT count(*) FROM "{table}" t WHERE t::text LIKE $1 OR t::text LIKE $2"#);
                    let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
                    let query = query.bind(format!("%{needle}%")).bind(format!("%{hex}%"));
                    if query.fetch_one(&mut *connection).await.unwrap() > 0 {
                        return true;
                    }
                }
            }
            Self::Sqlite(connection) => {
                let columns: Vec<(String, String)> = sqlx::query_as(
                    "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'",
                )
                .fetch_all(&mut *connection)
                .await
                .unwrap();
                assert!(columns.len() > 10, "{columns:?}");
                for (table, column) in columns {
                    let sql = format!(
                        r#"SELECT count(*) FROM "{table}" WHERE instr(CAST("{column}" AS BLOB), CAST(?1 AS BLOB)) > 0"#
                    );
                    let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql)).bind(needle);
                    if query.fetch_one(&mut *connection).await.unwrap() > 0 {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// What the audit log has of operators' decisions, in the order of writing.
    pub async fn decisions(&mut self) -> Vec<String> {
        const SQL: &str = "SELECT event || ' ' || tenant || ' ' || subject || ' ' || coalesce(reason, '-') FROM audit
            WHERE event LIKE 'mcp.credential.%' OR event = 'mcp.switch.changed' ORDER BY id";
        match self {
            Self::Postgres(connection) => sqlx::query_scalar(SQL).fetch_all(connection).await.unwrap(),
            Self::Sqlite(connection) => sqlx::query_scalar(SQL).fetch_all(connection).await.unwrap(),
        }
    }

    /// What the audit log has of changes of tasks, in the order of writing.
    pub async fn audit(&mut self) -> Vec<Audited> {
        const SQL: &str =
            "SELECT event, task_id, version, event || ' ' || task_id || ' ' || tenant || ' ' || owner || ' ' || tool
            || ' ' || coalesce(reason, '-') || ' ' || coalesce(trace_id, '-') FROM audit
            WHERE event LIKE 'mcp.task.%' AND event <> 'mcp.task.retrieved' ORDER BY id";
        let rows: Vec<(String, String, i64, String)> = match self {
            Self::Postgres(connection) => sqlx::query_as(SQL).fetch_all(connection).await.unwrap(),
            Self::Sqlite(connection) => sqlx::query_as(SQL).fetch_all(connection).await.unwrap(),
        };
        rows.into_iter().map(|(event, task, version, text)| Audited { event, task, version, text }).collect()
    }
}
