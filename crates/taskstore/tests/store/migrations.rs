//! What an earlier version has stored is there after a migration.

use std::str::FromStr as _;

use longhaul_core::{ClientCapabilities, TaskSupport, TenantId, Timestamp};
use longhaul_rpc::{AuditRange, Control as _, SessionNote, SessionPosition, Tasks as _, Work as _};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqlStr};

use crate::world::*;

fn first(sql: &'static str) -> Migrator {
    let sql = SqlStr::from_static(sql);
    Migrator::with_migrations(vec![Migration::new(1, "tasks".into(), MigrationType::Simple, sql, false)])
}

/// A queued and an ended task, a worker, two ended sessions, one of which would have expired long ago.
async fn fill(world: &World) {
    let owner = ann().owner();
    let (ids, arguments) = ([task_id(1), task_id(2)], world.blob("{}"));
    let later = i64::MAX / 2;
    for (id, phase, ending) in [(ids[0], "queued", "NULL"), (ids[1], "ended", "'cancelled'")] {
        world
            .execute_any(format!(
                "INSERT INTO tasks (id, tenant, owner, tool, arguments, phase, ending, created_at, updated_at)
                 VALUES ('{id}', 'acme', '{owner}', 'echo', {arguments}, '{phase}', {ending}, 1, 1)"
            ))
            .await;
    }
    let tools = world.blob(r#"[["echo",2,"{}"]]"#);
    let worker =
        format!("INSERT INTO workers (name, incarnation, tools, last_seen) VALUES ('w', '1', {tools}, {later})");
    let sessions = format!("INSERT INTO ended_sessions (session, expires_at) VALUES ('old', 1), ('s', {later})");
    let counters = format!(
        "INSERT INTO counters (tenant, owner, open, stored) VALUES ('acme', '', 1, 2), ('acme', '{owner}', 1, 2)"
    );
    world.execute_any(counters).await;
    world.execute_any(worker).await;
    world.execute_any(sessions).await;
    let line = format!(
        "INSERT INTO audit (at, event, task_id, version, tenant, owner, tool)
         VALUES (1, 'mcp.task.created', '{}', 1, 'acme', '{owner}', 'echo')",
        ids[0]
    );
    world.execute_any(line).await;
}

fn task_id(bits: u128) -> longhaul_core::TaskId {
    longhaul_core::TaskId::from_random(bits)
}

async fn look(world: &World) {
    let store = world.store().await;
    let queued = store.get(&ann(), task_id(1)).await.unwrap();
    assert_eq!((queued.client, queued.inputs.as_slice()), (ClientCapabilities::default(), &[][..]));
    assert!(store.get(&ann(), task_id(2)).await.unwrap().ending().is_some());
    let ended =
        SessionNote { session: "s".into(), ended: true, log_level: None, changed_at: Timestamp::from_micros(0) };
    assert_eq!(store.sessions(&SessionPosition::first()).await.unwrap(), [ended]);
    assert_eq!(store.seal().await.unwrap(), 1);
    let lines = AuditRange { tenant: TenantId::new("acme"), after: 0, since: None };
    let lines = store.audit_rows(lines).await.unwrap();
    assert_eq!((lines.len(), lines[0].entry.task.clone()), (1, Some(task_id(1).to_string())));
    let workers = store.tools().await.unwrap();
    let [one] = workers.as_slice() else { panic!("{workers:?}") };
    assert_eq!((one.tools.len(), one.prompts.len(), one.completes), (1, 0, false));
    let tool = &one.tools[0];
    assert_eq!((&*tool.name, tool.task_support, tool.decides), ("echo", TaskSupport::Required, false));
    assert_eq!(claim(&store, "t").await.task.id, task_id(1));
    let _attached = store.attach(worker_info(&worker("w"), &["echo"])).await.unwrap();
    assert_eq!(store.tools().await.unwrap(), [worker_info(&worker("w"), &["echo"])]);
}

#[tokio::test]
async fn an_sqlite_file_of_the_first_schema_is_brought_up_to_date() {
    let world = World::sqlite();
    let sqlite = SqliteConnectOptions::from_str(&world.url).unwrap().create_if_missing(true);
    let mut connection = sqlite.connect().await.unwrap();
    let schema = first(include_str!("../../../../migrations/sqlite/0001_tasks.sql"));
    schema.run_direct(None, &mut connection, false).await.unwrap();
    connection.close().await.unwrap();
    fill(&world).await;
    look(&world).await;
}

#[tokio::test]
async fn a_postgres_database_of_the_first_schema_is_refused_until_it_is_migrated() {
    let world = World::unmigrated_postgres().await;
    let mut connection = PgConnectOptions::from_str(&world.url).unwrap().connect().await.unwrap();
    let schema = first(include_str!("../../../../migrations/postgres/0001_tasks.sql"));
    schema.run_direct(None, &mut connection, false).await.unwrap();
    connection.close().await.unwrap();
    fill(&world).await;
    let build = longhaul_taskstore::TaskStore::build(world.config(), world.bus.clone(), keyring());
    let Err(error) = build.await else { panic!("an old schema") };
    assert!(error.to_string().contains("`longhaul migrate`"), "{error}");
    longhaul_taskstore::migrate(&world.url).await.unwrap();
    look(&world).await;
}
