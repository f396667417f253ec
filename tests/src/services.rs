//! The private Postgres and Redis of a test run.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, postgres::PgConnectOptions};

/// What `make test` starts and names.
fn service(variable: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the tests' own, set by scripts/with-services")]
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run `make test`, which starts Postgres and Redis"))
}

/// A number that no other world of this run has.
fn number() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The URL of a new database with the present schema.
pub async fn database() -> String {
    let url = empty_database().await;
    longhaul_taskstore::migrate(&url).await.unwrap();
    url
}

/// The URL of a new database without a schema.
pub async fn empty_database() -> String {
    let server = service("LONGHAUL_TEST_POSTGRES");
    let name = format!("world_{}", number());
    let options: PgConnectOptions = server.parse().unwrap();
    let mut admin = options.connect().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.unwrap();
    admin.close().await.unwrap();
    let (server, _) = server.rsplit_once('/').unwrap();
    format!("{server}/{name}")
}

/// The URL of Redis, and a prefix that no other world uses.
pub fn redis() -> (String, String) {
    (service("LONGHAUL_TEST_REDIS"), format!("world_{}", number()))
}
