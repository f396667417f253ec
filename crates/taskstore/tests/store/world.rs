//! A database of its own for each test, and short ways to say things to a task-store.

use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use longhaul_bus::{Bus, LocalBus};
use longhaul_core::{
    Caller, ClientCapabilities, Fence, InputRequest, InputResponse, LeaseToken, NewTask, Outcome, Phase, Principal,
    PromptDef, Question, ResourceDef, Task, TaskId, TaskSupport, TemplateDef, TenantId, ToolDef, TraceContext, TtlWish,
    WorkerId, WorkerInfo,
};
use longhaul_rpc::{Assignment, Claim, Tasks as _, Work as _};
use longhaul_seal::{KEY_BYTES, Keyring};
use longhaul_taskstore::{Config, TaskStore};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

/// Long, so that a slow test machine does not look like a silent worker.
pub const LEASE: Duration = Duration::from_secs(300);

static NEXT: AtomicU64 = AtomicU64::new(1);

pub struct World {
    pub url: String,
    pub bus: Arc<dyn Bus>,
    /// Of all its task-stores.
    pub keyring: Arc<ArcSwap<Keyring>>,
    folder: Option<tempfile::TempDir>,
}

impl World {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("longhaul.db").display());
        Self { url, bus: Arc::new(LocalBus::new()), keyring: keyring(), folder: Some(folder) }
    }

    pub async fn postgres() -> Self {
        let world = Self::unmigrated_postgres().await;
        longhaul_taskstore::migrate(&world.url).await.unwrap();
        world
    }

    /// On a database without a schema.
    pub async fn unmigrated_postgres() -> Self {
        let url = Self::empty_postgres().await;
        Self { url, bus: Arc::new(LocalBus::new()), keyring: keyring(), folder: None }
    }

    /// A database without a schema.
    pub async fn empty_postgres() -> String {
        #[expect(clippy::disallowed_methods, reason = "the one place where the tests learn of their server")]
        let server = std::env::var("LONGHAUL_TEST_POSTGRES");
        let server = server.expect("run `make test`, which starts Postgres and Redis");
        let name = format!("store_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let server = PgConnectOptions::from_str(&server).unwrap();
        let mut admin = server.connect().await.unwrap();
        sqlx::query(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}"))).execute(&mut admin).await.unwrap();
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.unwrap();
        admin.close().await.unwrap();
        server.database(&name).to_url_lossy().into()
    }

    pub fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    pub fn config(&self) -> Config {
        Config {
            database_url: self.url.clone(),
            max_connections: 8,
            allow_unsafe_durability: true,
            lease: LEASE,
            ..Config::default()
        }
    }

    pub async fn store(&self) -> TaskStore {
        self.store_with(|_| {}).await
    }

    pub async fn store_with(&self, change: impl FnOnce(&mut Config)) -> TaskStore {
        let mut config = self.config();
        change(&mut config);
        TaskStore::build(config, self.bus.clone(), self.keyring.clone()).await.unwrap()
    }

    /// Past the task-store: the one text column of a query.
    pub async fn texts(&self, sql: &'static str) -> Vec<String> {
        if self.is_postgres() {
            let mut connection = PgConnectOptions::from_str(&self.url).unwrap().connect().await.unwrap();
            let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        } else {
            let mut connection = self.sqlite_connection().await;
            let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }

    /// Past the task-store: the rows changed, or the database's complaint.
    pub async fn execute(&self, sql: &'static str) -> Result<u64, String> {
        if self.is_postgres() {
            let mut connection = PgConnectOptions::from_str(&self.url).unwrap().connect().await.unwrap();
            let done = sqlx::query(sql).execute(&mut connection).await;
            done.map(|done| done.rows_affected()).map_err(|error| error.to_string())
        } else {
            let mut connection = self.sqlite_connection().await;
            let done = sqlx::query(sql).execute(&mut connection).await;
            done.map(|done| done.rows_affected()).map_err(|error| error.to_string())
        }
    }

    /// All that is stored, blobs as they are or in hex.
    pub async fn dump(&self) -> Vec<u8> {
        let Some(folder) = &self.folder else {
            let mut connection = PgConnectOptions::from_str(&self.url).unwrap().connect().await.unwrap();
            let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'";
            let tables = sqlx::query(tables).fetch_all(&mut connection).await.unwrap();
            let mut dump = Vec::new();
            for table in &tables {
                let rows = format!("SELECT t::text FROM {} t", table.get::<String, _>(0));
                for row in sqlx::query(AssertSqlSafe(rows)).fetch_all(&mut connection).await.unwrap() {
                    dump.extend_from_slice(row.get::<String, _>(0).as_bytes());
                }
            }
            return dump;
        };
        let files = std::fs::read_dir(folder.path()).unwrap();
        files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }

    /// A statement for the server that cannot be a literal.
    pub async fn execute_owned(&self, sql: String) {
        let mut connection = PgConnectOptions::from_str(&self.url).unwrap().connect().await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }

    /// A literal of bytes.
    pub fn blob(&self, text: &str) -> String {
        if self.is_postgres() { format!("'{text}'::bytea") } else { format!("CAST('{text}' AS BLOB)") }
    }

    /// A statement that both engines understand.
    pub async fn execute_any(&self, sql: String) {
        if self.is_postgres() {
            return self.execute_owned(sql).await;
        }
        let mut connection = self.sqlite_connection().await;
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }

    async fn sqlite_connection(&self) -> sqlx::SqliteConnection {
        sqlx::sqlite::SqliteConnectOptions::from_str(&self.url).unwrap().connect().await.unwrap()
    }
}

pub fn keyring() -> Arc<ArcSwap<Keyring>> {
    Arc::new(ArcSwap::from_pointee(Keyring::new(&[1; KEY_BYTES], &[])))
}

/// Ends every other connection to the database, again and again.
pub async fn kill_connections(url: &str) {
    let mut monkey = PgConnectOptions::from_str(url).unwrap().connect().await.unwrap();
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        sqlx::query(kill).execute(&mut monkey).await.unwrap();
    }
}

/// Runs beside the test.
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio_util::task::TaskTracker::new().spawn(work)
}

pub fn id() -> TaskId {
    // Unlike one another over the whole range, as random ones are; the odd factor makes it a bijection.
    TaskId::from_random(
        u128::from(NEXT.fetch_add(1, Ordering::Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
    )
}

pub fn agent(tenant: &str, name: &str) -> Principal {
    Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(name.into()) }
}

pub fn ann() -> Principal {
    agent("acme", "ann")
}

pub fn new_task(owner: &Principal) -> NewTask {
    NewTask {
        id: id(),
        owner: owner.clone(),
        tool: "echo".into(),
        arguments: Bytes::from_static(b"{}"),
        ttl: TtlWish::Unsaid,
        progress_token: None,
        session: None,
        trace: TraceContext::default(),
        client: ClientCapabilities { elicitation_form: true, elicitation_url: true, ..Default::default() },
        retry: longhaul_core::Retry::default(),
        claimed: None,
        reserved: None,
    }
}

pub fn worker(name: &str) -> WorkerId {
    WorkerId { name: name.into(), incarnation: "1".into() }
}

pub fn worker_info(id: &WorkerId, tools: &[&str]) -> WorkerInfo {
    let tool = |name: &&str| ToolDef {
        name: (*name).into(),
        task_support: TaskSupport::Required,
        decides: true,
        needs: ClientCapabilities { roots: true, ..Default::default() },
        retry: longhaul_core::Retry { on_interrupt: longhaul_core::OnInterrupt::Resume, max_attempts: 5 },
        definition: format!(r#"{{"name":"{name}","x":1e2}}"#).into(),
    };
    let json = |text: &'static str| Bytes::from_static(text.as_bytes());
    WorkerInfo {
        id: id.clone(),
        url: Some("memory://w".into()),
        tools: tools.iter().map(tool).collect(),
        prompts: vec![PromptDef { name: "greet".into(), definition: json("{\"name\" : \"greet\"}") }],
        resources: vec![ResourceDef { uri: "demo://a".into(), definition: json("{\"size\":1e2}") }],
        templates: vec![TemplateDef { uri_template: "demo://{b}".into(), definition: json("{\"nul\":\"\\u0000\"}") }],
        completes: true,
    }
}

pub fn wish(worker: &WorkerId, token: &str, max: u32) -> Claim {
    let tools = vec!["echo".into()];
    Claim { worker: worker.clone(), token: LeaseToken(token.into()), tools, max, wait: Duration::ZERO }
}

/// Claims one task that must be there.
pub async fn claim(store: &TaskStore, token: &str) -> Assignment {
    let mut tasks = store.claim(wish(&worker("w"), token, 1)).await.unwrap();
    assert_eq!(tasks.len(), 1);
    tasks.remove(0)
}

pub fn fence(task: &Task) -> Fence {
    let Phase::Running(lease) = &task.phase else { panic!("{task:?} does not run") };
    Fence { id: task.id, attempt: task.attempt, token: lease.token.clone() }
}

pub fn done(body: &'static str) -> Outcome {
    Outcome::Result { is_error: false, body: Bytes::from_static(body.as_bytes()) }
}

/// Creates a task and hands it out.
pub async fn running(store: &TaskStore, owner: &Principal) -> Task {
    let id = store.create(new_task(owner)).await.unwrap().id;
    let held = claim(store, &id.to_string()).await.task;
    assert_eq!(held.id, id);
    held
}

pub fn form(key: &str, message: &str) -> InputRequest {
    let schema = Bytes::from_static(br#" {"type":"object", "properties":{"colour":{"type":"string"}}}"#);
    InputRequest { key: key.into(), question: Question::Form { message: message.into(), schema } }
}

pub fn colour(colour: &str) -> InputResponse {
    InputResponse::Accept(Some(format!("{{\"colour\":  \"{colour}\"}}").into()))
}
