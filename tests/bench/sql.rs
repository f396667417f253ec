//! The floor under the task-store: the SQL of a create, a completion and a read, one row at a time, straight through
//! sqlx. Each is one statement with its audit row in it, so that Postgres gets its best chance.

use anyhow::{Context, Result, ensure};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, Row};

/// More connections make Postgres slower, not faster: callers beyond these queue in the pool.
const CONNECTIONS_MAX: u32 = 16;
const ARGUMENTS: &[u8] = br#"{"message":"hello"}"#;
const RESULT: &[u8] = br#"{"content":[{"type":"text","text":"hello"}]}"#;

const SCHEMA: &str = "
create table task (
    id text primary key,
    tenant text not null,
    owner text not null,
    tool text not null,
    arguments bytea not null,
    phase smallint not null,
    version bigint not null,
    attempt int not null default 0,
    result bytea,
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null default clock_timestamp() + interval '1 hour'
);
create index on task (tenant, owner, created_at desc, id desc);
create index on task (created_at) where phase = 0;
create table audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    event text not null,
    task text not null,
    version bigint not null,
    tenant text not null,
    owner text not null,
    tool text not null
)";

const INSERT: &str = "
with t as (
    insert into task (id, tenant, owner, tool, arguments, phase, version)
    values ($1, 'bench', 'agent:bench', 'echo', $2, 0, 1)
    returning id, version, tenant, owner, tool
)
insert into audit (event, task, version, tenant, owner, tool)
select 'mcp.task.created', id, version, tenant, owner, tool from t";

const COMPLETE: &str = "
with t as (
    update task set phase = 2, version = version + 1, result = $2, updated_at = clock_timestamp()
    where id = $1 and version = 1
    returning id, version, tenant, owner, tool
)
insert into audit (event, task, version, tenant, owner, tool)
select 'mcp.task.completed', id, version, tenant, owner, tool from t";

const SELECT: &str = "
select id, tenant, owner, tool, phase, version, attempt, result, created_at::text, updated_at::text, expires_at::text
from task where id = $1";

/// A new database on the server at `url`, which is `postgres://…/DATABASE`; its own URL.
pub async fn database(url: &str, name: &str) -> Result<String> {
    let server = connect(url.parse().context("--postgres")?, 1).await?;
    server.execute(AssertSqlSafe(format!("create database {name}"))).await?;
    server.close().await;
    let (server, _) = url.rsplit_once('/').context("--postgres names no database")?;
    Ok(format!("{server}/{name}"))
}

/// A pool that spends no round trip on checking its connections.
pub async fn connect(options: PgConnectOptions, connections: u32) -> Result<PgPool> {
    let pool = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    Ok(pool.connect_with(options).await?)
}

/// What Postgres says of itself; an error unless a commit waits for the disk.
pub async fn durable_version(pool: &PgPool) -> Result<String> {
    let text = |row: sqlx::postgres::PgRow| row.try_get::<String, _>(0);
    for setting in ["show fsync", "show synchronous_commit", "show full_page_writes"] {
        let value = text(pool.fetch_one(setting).await?)?;
        ensure!(value == "on", "{setting}: {value}; without durable commits the figures mean nothing");
    }
    Ok(text(pool.fetch_one("show server_version").await?)?)
}

/// After a bulk of inserts, the plans of an empty table must go.
pub async fn analyze(pool: &PgPool) -> Result<()> {
    pool.execute("analyze").await?;
    Ok(())
}

/// One caller of the floor's database.
#[derive(Clone)]
pub struct Caller {
    pool: PgPool,
    /// Which caller this is; its ids are no other's.
    number: u64,
    inserted: u64,
}

/// The floor's database with `rows` tasks in it, and as many callers as wanted.
pub async fn callers(url: &str, rows: u64, count: u64) -> Result<Vec<Caller>> {
    let pool = connect(database(url, "longhaul_bench_floor").await?.parse()?, CONNECTIONS_MAX).await?;
    pool.execute(SCHEMA).await?;
    let mut callers: Vec<_> = (0..count).map(|number| Caller { pool: pool.clone(), number, inserted: 0 }).collect();
    let each = rows.div_ceil(count);
    futures::future::try_join_all(callers.iter_mut().map(|caller| async move {
        for _ in 0..each {
            caller.insert_and_complete().await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    analyze(&pool).await?;
    Ok(callers)
}

impl Caller {
    /// A create.
    pub async fn insert(&mut self) -> Result<()> {
        self.inserted += 1;
        self.write(INSERT, self.inserted, ARGUMENTS).await
    }

    /// A create and its completion.
    pub async fn insert_and_complete(&mut self) -> Result<()> {
        self.insert().await?;
        self.write(COMPLETE, self.inserted, RESULT).await
    }

    /// A create, its completion, and a read of the result.
    pub async fn whole_task(&mut self) -> Result<()> {
        self.insert_and_complete().await?;
        self.read(self.inserted).await
    }

    /// A read of one of this caller's tasks.
    pub async fn select(&mut self, turn: u64) -> Result<()> {
        self.read(1 + mixed(turn) % self.inserted).await
    }

    async fn write(&self, statement: &'static str, nth: u64, payload: &'static [u8]) -> Result<()> {
        let done = sqlx::query(statement).bind(id(self.number, nth)).bind(payload).execute(&self.pool).await?;
        ensure!(done.rows_affected() == 1, "{} rows of one were written", done.rows_affected());
        Ok(())
    }

    async fn read(&self, nth: u64) -> Result<()> {
        let id = id(self.number, nth);
        let row = sqlx::query(SELECT).bind(&id).fetch_one(&self.pool).await?;
        ensure!(row.try_get::<&str, _>("id")? == id, "another row was read");
        Ok(())
    }
}

/// As random as a task id, and always the same for the same task.
fn id(caller: u64, nth: u64) -> String {
    let high = mixed(caller.wrapping_mul(1 << 32) ^ nth);
    let bits = (u128::from(high) << 64) | u128::from(mixed(high));
    (0..26).map(|place| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[(bits >> (place * 5)) as usize & 31])).collect()
}

/// SplitMix64's last step: every number its own, none near its neighbour's.
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
