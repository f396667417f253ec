//! The whole system in this process, wired by the same `compose` as the real roles.
//!
//! Two gateways in any case. Embedded: SQLite, one task-store and the in-process bus, as `longhaul dev`. Cluster: Postgres
//! and Redis, two task-stores, and a bus of its own for each role.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_bus::{Bus, DeafBus, LocalBus, RedisBus};
use longhaul_cli::callers::callers;
use longhaul_cli::compose::{Running, Site};
use longhaul_cli::config::{Config, CredentialConfig};
use longhaul_core::{LogLevel, TaskSupport};
use longhaul_mcp::seal::Keyring;
use longhaul_rpc::{Links, ServiceToken};
use longhaul_taskstore::TaskStore;
use longhaul_worker::{Answer, Ask, Context, Failure, Listening, NoArguments, Offer, Response, Tool};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{Client, PATIENCE};
use crate::database::Database;
use crate::services;

/// An agent of tenant `acme`.
pub const ALICE: &str = "key-of-alice";
/// Another agent of the same tenant.
pub const BOB: &str = "key-of-bob";
/// An agent of another tenant, named as alice.
pub const EVE: &str = "key-of-eve";

/// How the roles are wired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// SQLite and the in-process bus.
    Embedded,
    /// Postgres and Redis.
    Cluster,
    /// Postgres, and a bus that drops everything.
    Deaf,
}

/// A running system.
pub struct World {
    /// The config it runs with.
    pub config: Arc<Config>,
    links: Links,
    token: ServiceToken,
    database: SecretString,
    wiring: Wiring,
    redis: Option<(String, String)>,
    local: Arc<dyn Bus>,
    /// `/mcp` of each gateway.
    pub urls: Vec<String>,
    stores: Mutex<Vec<TaskStore>>,
    /// What the `hold` tool does.
    pub gate: Gate,
    roles: Mutex<Vec<Role>>,
    _folder: tempfile::TempDir,
}

struct Role {
    name: String,
    drain: CancellationToken,
    crash: CancellationToken,
    /// Whether it ended well; a crash counts as well.
    ended: JoinHandle<()>,
}

/// Controls the `hold` tool: it starts, says so, and waits until it is let go or cancelled.
#[derive(Clone)]
pub struct Gate {
    open: watch::Sender<bool>,
    started: mpsc::UnboundedSender<String>,
    starts: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>>,
    stopped: mpsc::UnboundedSender<String>,
    stops: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>>,
}

impl Default for Gate {
    fn default() -> Self {
        let ((started, starts), (stopped, stops)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (starts, stops) = (Arc::new(tokio::sync::Mutex::new(starts)), Arc::new(tokio::sync::Mutex::new(stops)));
        Self { open: watch::Sender::new(false), started, starts, stopped, stops }
    }
}

impl Gate {
    /// Lets all runs go, present and later ones.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Holds later runs again.
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    /// Waits until another run has started; gives its task's id, empty for a call that is not a task.
    pub async fn started(&self) -> String {
        tokio::time::timeout(PATIENCE, async { self.starts.lock().await.recv().await }).await.unwrap().unwrap()
    }

    /// Another run that has started already, if any.
    pub async fn try_started(&self) -> Option<String> {
        self.starts.lock().await.try_recv().ok()
    }

    /// Waits until another run was told to stop; gives its task's id, empty for a call that is not a task.
    pub async fn stopped(&self) -> String {
        tokio::time::timeout(PATIENCE, async { self.stops.lock().await.recv().await }).await.unwrap().unwrap()
    }

    /// A tool of this name that waits for the gate.
    pub fn tool(&self, name: &str) -> Tool {
        let gate = self.clone();
        let run = move |context: Context, _: bytes::Bytes| {
            let gate = gate.clone();
            async move {
                let id = context.task_id().map(|id| id.to_string()).unwrap_or_default();
                gate.started.send(id.clone()).unwrap();
                let mut open = gate.open.subscribe();
                tokio::select! {
                    _ = open.wait_for(|open| *open) => Ok::<_, Failure>(Answer::text("let go")),
                    () = context.cancelled() => {
                        gate.stopped.send(id).unwrap();
                        Err(Failure::tool("stopped"))
                    }
                }
            }
        };
        Tool::raw(&br#"{"description": "Waits.", "inputSchema": {"type": "object"}}"#[..], run).name(name)
    }
}

/// A form or a URL.
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Odd {
    form: Option<Value>,
    url: Option<String>,
}

/// What every worker of a world offers beside the demo tools.
fn tools(gate: &Gate) -> Vec<Tool> {
    let raw = |name: &str, answer: fn(Value) -> String| {
        let run = move |_: Context, arguments: bytes::Bytes| async move {
            Answer::raw(answer(serde_json::from_slice(&arguments)?))
        };
        Tool::raw(&br#"{"description": "For tests.", "inputSchema": {"type": "object"}}"#[..], run).name(name)
    };
    let mirror = |_: Context, arguments: bytes::Bytes| async move {
        let arguments = std::str::from_utf8(&arguments)?;
        Answer::raw(format!(r#"{{"content":[],"structuredContent":{arguments}}}"#))
    };
    let described = |tool: Tool| tool.description("For tests.");
    let many = async |context: Context, _: NoArguments| {
        let text =
            json!({"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}, "required": ["text"]});
        let asks = ["name", "colour"].map(|key| Ask::form(format!("Your {key}?"), text.clone()).key(key));
        let mut told = Vec::new();
        for response in context.request_inputs(asks).await? {
            told.push(match response {
                Response::Accept(content) => content.parse::<Value>()?["text"].as_str().unwrap_or_default().to_owned(),
                Response::Decline => "(declined)".to_owned(),
                Response::Cancel => "(cancelled)".to_owned(),
                Response::Result(_) => "(a result)".to_owned(),
            });
        }
        Ok(Answer::text(told.join(" ")))
    };
    let odd = async |context: Context, Odd { form, url }: Odd| {
        let ask = match (form, url) {
            (Some(form), _) => Ask::form("Please", form),
            (None, url) => Ask::url("Please open this", url.unwrap_or_default()),
        };
        let response = context.request_input(ask).await?;
        Ok(Answer::text(if response == Response::Decline { "declined" } else { "answered" }))
    };
    let grow = {
        let gate = gate.clone();
        move |context: Context, _: NoArguments| {
            let gate = gate.clone();
            async move {
                let name = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
                let name = context.request_input(Ask::form("Who are you?", name).key("name")).await?;
                let Some(name) = name.accepted() else { return Err(Failure::tool("declined")) };
                let name = name.parse::<Value>()?["name"].as_str().unwrap_or_default().to_owned();
                let task = context.become_task().await?;
                let id = task.map(|task| task.id.to_string()).unwrap_or_default();
                gate.started.send(id).unwrap();
                let _ = gate.open.subscribe().wait_for(|open| *open).await;
                Ok(Answer::text(format!("welcome, {name}")))
            }
        }
    };
    let give_up = {
        let gate = gate.clone();
        move |context: Context, _: NoArguments| {
            let gate = gate.clone();
            async move {
                let text = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
                let ask = |key: &str| Ask::form(format!("The {key}?"), text.clone()).key(key);
                let mut open = gate.open.subscribe();
                tokio::select! {
                    response = context.request_input(ask("first")) => drop(response?),
                    _ = open.wait_for(|open| *open) => {}
                }
                let last = context.request_input(ask("second")).await?;
                let Some(last) = last.accepted() else { return Err(Failure::tool("declined")) };
                Ok(Answer::text(last.parse::<Value>()?["text"].as_str().unwrap_or_default()))
            }
        }
    };
    let log = async |context: Context, _: NoArguments| {
        for (level, words) in [(LogLevel::Debug, "aside"), (LogLevel::Info, "news"), (LogLevel::Error, "trouble")] {
            context.log(level, Some("test"), words).await?;
        }
        Ok(Answer::text("logged"))
    };
    vec![
        gate.tool("hold"),
        // Asks two questions at once.
        described(Tool::new("ask-many", many)),
        // Asks what it is told to.
        described(Tool::new("ask-odd", odd)),
        // Asks, and then goes on as a task if it may.
        described(Tool::new("grow", grow)).decides(),
        // Asks one thing, gives up on it when the gate opens, and asks another.
        described(Tool::new("give-up", give_up)),
        described(Tool::new("log", log)),
        // Says that a resource has changed.
        described(Tool::new("touch", async |context: Context, _: NoArguments| {
            context.resources().updated("demo://welcome");
            Ok(Answer::text("touched"))
        })),
        // Answers with its arguments as they came, once.
        Tool::raw(&br#"{"description": "A mirror.", "inputSchema": {"type": "object"}}"#[..], mirror).name("mirror"),
        // Answers with so many bytes of text.
        raw("blob", |arguments| {
            let text = "x".repeat(arguments["bytes"].as_u64().unwrap_or_default() as usize);
            format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#)
        }),
        // Tells the trace that its run belongs to.
        raw("trace", |_| {
            let trace = longhaul_rpc::trace::current().unwrap_or_default();
            format!(r#"{{"content":[{{"type":"text","text":"{trace}"}}]}}"#)
        }),
        raw("task-only", |_| r#"{"content":[]}"#.into()).task_support(TaskSupport::Required),
        raw("call-only", |_| r#"{"content":[]}"#.into()).task_support(TaskSupport::Forbidden),
    ]
}

impl World {
    /// Starts a system with the default config.
    pub async fn start(wiring: Wiring) -> Self {
        Self::start_with(wiring, |_| {}).await
    }

    /// Starts a system with a changed config, and waits until both gateways offer its tools.
    pub async fn start_with(wiring: Wiring, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stores: &[&str] = if wiring == Wiring::Embedded { &["store-1"] } else { &["store-1", "store-2"] };
        let mut config = Config {
            taskstore_urls: stores.iter().map(|name| format!("memory://{name}")).collect(),
            ..Config::default()
        };
        config.taskstore.allow_unsafe_durability = true;
        config.taskstore.database_max_connections = 4;
        config.runner.demo_tools = true;
        config.gateway.credentials = credentials();
        change(&mut config);
        let database = match wiring {
            Wiring::Embedded => format!("sqlite:{}", folder.path().join("longhaul.db").display()),
            Wiring::Cluster | Wiring::Deaf => services::database().await,
        };
        let mut world = Self {
            config: Arc::new(config),
            links: Links::default(),
            token: ServiceToken::new(["a-token-for-the-tests"]).unwrap(),
            database: database.into(),
            wiring,
            redis: (wiring == Wiring::Cluster).then(services::redis),
            local: Arc::new(LocalBus::new()),
            urls: Vec::new(),
            stores: Mutex::default(),
            gate: Gate::default(),
            roles: Mutex::default(),
            _folder: folder,
        };
        for name in stores {
            world.start_store(name).await;
        }
        world.start_worker("worker-1").await;
        for at in 1..=2 {
            let url = world.start_gateway(&format!("gateway-{at}")).await;
            world.urls.push(url);
        }
        world
    }

    fn site(&self) -> Site {
        let bus = match (self.wiring, &self.redis) {
            (Wiring::Cluster, Some((url, prefix))) => Arc::new(RedisBus::connect(url, prefix).unwrap()),
            (Wiring::Deaf, _) => Arc::new(DeafBus::new()) as Arc<dyn Bus>,
            (Wiring::Embedded, _) | (Wiring::Cluster, None) => self.local.clone(),
        };
        Site { config: self.config.clone(), links: self.links.clone(), token: self.token.clone(), bus }
    }

    fn run(&self, name: &str, drain: CancellationToken, running: Running) {
        let crash = CancellationToken::new();
        let crashed = crash.clone();
        let ended = TaskTracker::new().spawn(async move {
            if let Some(ended) = crashed.run_until_cancelled(running).await {
                ended.unwrap();
            }
        });
        self.roles.lock().unwrap().push(Role { name: name.to_owned(), drain, crash, ended });
    }

    /// Starts a task-store.
    pub async fn start_store(&self, name: &str) {
        let drain = CancellationToken::new();
        let listener = self.links.listen(name);
        let (store, running) = self.site().taskstore(&self.database, keyring(), listener, drain.clone()).await.unwrap();
        self.stores.lock().unwrap().push(store);
        self.run(name, drain, running);
    }

    /// Starts a worker with the tools of every worker; returns once it is attached.
    pub async fn start_worker(&self, name: &str) {
        self.start_worker_with(name, Vec::new()).await;
    }

    /// Starts a worker that has `more` tools; returns once it is attached.
    pub async fn start_worker_with(&self, name: &str, more: Vec<Tool>) {
        self.start_worker_offering(name, more.into_iter().map(Offer::from).collect()).await;
    }

    /// Starts a worker that offers `more`; returns once it is attached.
    pub async fn start_worker_offering(&self, name: &str, more: Vec<Offer>) {
        let drain = CancellationToken::new();
        let listening = Listening { listener: self.links.listen(name), advertise_url: format!("memory://{name}") };
        let mut site = self.site();
        let mut config = (*self.config).clone();
        config.runner.name = Some(name.to_owned());
        site.config = Arc::new(config);
        let tools = tools(&self.gate).into_iter().map(Offer::from).chain(more).collect();
        let (mut attached, running) = site.runner(tools, listening, drain.clone()).unwrap();
        self.run(name, drain, running);
        tokio::time::timeout(PATIENCE, attached.wait_for(|attached| *attached)).await.unwrap().unwrap();
    }

    /// Starts another worker; returns once every gateway knows it.
    pub async fn add_worker(&self, name: &str) {
        // A tool that no other worker has shows that it is known.
        self.start_worker_with(name, vec![self.gate.tool(name)]).await;
        for client in self.clients(ALICE).await {
            let known = async {
                while !client.ok("tools/list", json!({})).await.to_string().contains(&format!("{name:?}")) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(PATIENCE, known).await.unwrap();
        }
    }

    /// Starts a gateway; returns its URL once it offers tools.
    pub async fn start_gateway(&self, name: &str) -> String {
        let drain = CancellationToken::new();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let auth = callers(&self.config).unwrap();
        let (status, running) = self.site().gateway(auth, keyring(), listener, drain.clone()).unwrap();
        self.run(name, drain, running);
        tokio::time::timeout(PATIENCE, status.offering()).await.unwrap();
        url
    }

    fn take(&self, name: &str) -> Vec<Role> {
        self.roles.lock().unwrap().extract_if(.., |role| role.name.starts_with(name)).collect()
    }

    /// Tells the roles whose names start so to end, and waits until they have.
    pub async fn end(&self, name: &str) {
        let ending = self.take(name);
        ending.iter().for_each(|role| role.drain.cancel());
        for Role { name, ended, .. } in ending {
            let ended = tokio::time::timeout(PATIENCE, ended).await;
            ended.unwrap_or_else(|_| panic!("{name} does not end")).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Drops the roles whose names start so where they stand: they say no goodbye.
    pub async fn crash(&self, name: &str) {
        let crashing = self.take(name);
        assert!(!crashing.is_empty(), "there is no {name}");
        for Role { crash, ended, .. } in crashing {
            crash.cancel();
            ended.await.unwrap();
        }
    }

    /// A connection of the test's own to the database.
    pub async fn database(&self) -> Database {
        Database::connect(self.database.expose_secret()).await
    }

    /// A client of each gateway, with a session of its own.
    pub async fn clients(&self, token: &str) -> [Client; 2] {
        let one = Client::connect(&self.urls[0], Some(token)).await;
        let other = Client::connect(&self.urls[1], Some(token)).await;
        [one, other]
    }

    /// A client of the first gateway.
    pub async fn client(&self, token: &str) -> Client {
        Client::connect(&self.urls[0], Some(token)).await
    }

    /// A task-store, for what operators say to it.
    pub fn operator(&self) -> TaskStore {
        self.stores.lock().unwrap()[0].clone()
    }

    /// Moves the database's clock on.
    pub async fn advance(&self, by: Duration) {
        let store = self.stores.lock().unwrap()[0].clone();
        store.advance_clock(by).await.unwrap();
    }

    /// Deletes what has expired, as is done once a minute.
    pub async fn purge(&self) {
        let store = self.stores.lock().unwrap()[0].clone();
        store.purge().await.unwrap();
    }

    /// Ends everything, and fails if a role did not end well or left a contradiction in the database.
    pub async fn stop(self) {
        self.gate.open();
        // Each before what it needs.
        for role in ["gateway", "worker", "store"] {
            self.end(role).await;
        }
        self.database().await.check().await;
    }
}

/// The keys of every role that has some.
fn keyring() -> Keyring {
    Keyring::new(&[7; 32], &[])
}

/// The callers' credentials, as the config has them.
pub fn credentials() -> Vec<CredentialConfig> {
    // `printf %s KEY | sha256sum`
    let of = |sha256: &str, tenant: &str, agent: &str| CredentialConfig {
        sha256: sha256.into(),
        tenant: tenant.into(),
        agent: Some(agent.into()),
        app: None,
        person: None,
    };
    vec![
        of("d16a80956c32f3f5fb979bea408abac8c3eef6c54ecb234279e337146cf87b47", "acme", "alice"),
        of("808a1d81b5de08d72083995df738947d519d230a20c236003268f0f4b65ee475", "acme", "bob"),
        of("c8fab31a2dfb22d9ca0982ba68eaa017a4b1c0d9d1c1f5a973b486833c855c98", "evil", "alice"),
    ]
}
