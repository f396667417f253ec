//! A task-store in memory, a worker that does what a test says, and gateways before them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use longhaul_bus::{Bus, Control as ControlHint, Hint, LocalBus};
use longhaul_core::{
    Caller, Change, Clock as _, Fence, Lease, LeaseToken, LimitScope, NewTask, Outcome, Principal, Progress, Refusal,
    Task, TaskId, TaskSupport, TenantId, TestClock, Timestamp, ToolDef, TtlLimits, WorkerId, WorkerInfo,
};
use longhaul_gateway::{Authenticator, Config, Credential, Gateway, Pace, Parts, Status};
use longhaul_mcp::seal::Keyring;
use longhaul_rpc::{
    CallEvent, CallEvents, Calls, Control, Error, Invocation, Links, Page, Position, Server, ServiceToken, TaskCount,
    Tasks,
};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{Client, within};

/// More than the buffers of a connection hold.
pub const RESULT_BYTES_MAX: usize = 32 << 20;

pub const ALICE: &str = "token-of-alice";
pub const BOB: &str = "token-of-bob";

pub fn alice() -> Principal {
    Principal { tenant: TenantId::new("acme"), caller: Caller::Agent("alice".into()) }
}

pub fn bob() -> Principal {
    Principal { tenant: TenantId::new("acme"), caller: Caller::Agent("bob".into()) }
}

pub fn text(text: &str) -> Outcome {
    let body = serde_json::json!({"content": [{"type": "text", "text": text}]}).to_string();
    Outcome::Result { is_error: false, body: body.into() }
}

/// Tasks in memory, changed by the verbs of core.
pub struct Store {
    pub clock: TestClock,
    pub bus: Arc<dyn Bus>,
    pub tasks: Mutex<HashMap<TaskId, (Task, Option<Outcome>)>>,
    pub created: Mutex<Vec<NewTask>>,
    pub workers: Mutex<Vec<WorkerInfo>>,
    pub ended: Mutex<Vec<String>>,
    pub reads: AtomicUsize,
    /// Fails, and nobody knows what was done.
    pub down: AtomicBool,
    /// Takes nothing on, and says so.
    pub full: AtomicBool,
    pub silent: AtomicBool,
    pub open_max: AtomicUsize,
    /// Creates wait until this is let go, if there is one.
    pub hold_creates: Mutex<Option<Arc<Notify>>>,
}

impl Store {
    fn up(&self) -> Result<(), Error> {
        if self.full.load(Ordering::SeqCst) {
            return Err(Error::NotBegun("full".into()));
        }
        if self.down.load(Ordering::SeqCst) { Err(Error::Unavailable("down".into())) } else { Ok(()) }
    }

    fn owned(&self, principal: &Principal, id: TaskId) -> Result<(Task, Option<Outcome>), Error> {
        self.up()?;
        let found = self.tasks.lock().unwrap().get(&id).filter(|(task, _)| task.owner == *principal).cloned();
        let (task, outcome) = found.ok_or(Refusal::NotFound)?;
        match task.expires_at() {
            Some(end) if end <= self.clock.now() => Err(Refusal::Expired.into()),
            Some(_) | None => Ok((task, outcome)),
        }
    }

    fn change(&self, id: TaskId, verb: impl FnOnce(Task) -> Result<Change, Refusal>) -> Result<Task, Error> {
        let mut tasks = self.tasks.lock().unwrap();
        let slot = tasks.get_mut(&id).unwrap();
        let change = verb(slot.0.clone())?;
        *slot = (change.task.clone(), change.outcome);
        drop(tasks);
        self.hint(id, change.task.version);
        Ok(change.task)
    }

    fn hint(&self, id: TaskId, version: u64) {
        if !self.silent.load(Ordering::SeqCst) {
            self.bus.publish(Hint::Task { id, version });
        }
    }

    fn fence(id: TaskId) -> Fence {
        Fence { id, attempt: 1, token: LeaseToken("t".into()) }
    }

    /// A worker takes a task.
    pub fn claim(&self, id: &str) {
        let worker = WorkerId { name: "w".into(), incarnation: "1".into() };
        let lease = Lease { worker, token: LeaseToken("t".into()), until: Timestamp::from_micros(i64::MAX) };
        self.change(id.parse().unwrap(), |task| task.claim(lease)).unwrap();
    }

    pub fn report(&self, id: &str, message: Option<&str>, progress: Option<f64>) {
        let id = id.parse().unwrap();
        let progress = progress.map(|progress| Progress { progress, total: Some(10.0), message: None });
        self.change(id, |task| task.report(&Self::fence(id), message.map(str::to_owned), progress)).unwrap();
    }

    pub fn complete(&self, id: &str, outcome: Outcome) {
        let id = id.parse().unwrap();
        self.change(id, |task| task.complete(&Self::fence(id), outcome)).unwrap();
    }

    /// Claims and completes.
    pub fn finish(&self, id: &str, outcome: Outcome) {
        self.claim(id);
        self.complete(id, outcome);
    }

    pub fn offer(&self, workers: Vec<WorkerInfo>) {
        *self.workers.lock().unwrap() = workers;
        self.bus.publish(Hint::Control(ControlHint::Tools));
    }
}

#[async_trait]
impl Tasks for Store {
    async fn create(&self, new: NewTask) -> Result<Task, Error> {
        let hold = self.hold_creates.lock().unwrap().clone();
        if let Some(hold) = hold {
            hold.notified().await;
        }
        self.up()?;
        let mut tasks = self.tasks.lock().unwrap();
        if tasks.len() >= self.open_max.load(Ordering::SeqCst) {
            return Err(Refusal::TaskLimit { scope: LimitScope::Caller, limit: 20 }.into());
        }
        self.created.lock().unwrap().push(new.clone());
        let now = self.clock.now();
        let task = Task {
            id: new.id,
            owner: new.owner,
            tool: new.tool,
            phase: longhaul_core::Phase::Queued,
            version: 1,
            attempt: 0,
            status_message: None,
            progress: None,
            progress_token: new.progress_token,
            session: new.session,
            created_at: now,
            updated_at: now,
            ttl_ms: TtlLimits::default().grant(new.ttl),
        };
        tasks.insert(task.id, (task.clone(), None));
        drop(tasks);
        self.hint(task.id, 1);
        Ok(task)
    }

    async fn get(&self, principal: &Principal, id: TaskId) -> Result<Task, Error> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(self.owned(principal, id)?.0)
    }

    async fn result(&self, principal: &Principal, id: TaskId) -> Result<(Task, Option<Outcome>), Error> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.owned(principal, id)
    }

    async fn list(&self, principal: &Principal, after: Option<Position>, limit: u32) -> Result<Page, Error> {
        self.up()?;
        let tasks = self.tasks.lock().unwrap();
        let mut all: Vec<_> =
            tasks.values().map(|(task, _)| task).filter(|task| task.owner == *principal).cloned().collect();
        drop(tasks);
        all.sort_by_key(|task| std::cmp::Reverse((task.created_at, task.id)));
        if let Some(after) = after {
            all.retain(|task| (task.created_at, task.id) < (after.created_at, after.id));
        }
        let more = all.len() > limit as usize;
        all.truncate(limit as usize);
        Ok(Page { tasks: all, more })
    }

    async fn cancel(&self, principal: &Principal, id: TaskId) -> Result<Task, Error> {
        self.owned(principal, id)?;
        self.change(id, Task::cancel)
    }

    async fn changed(&self, seen: Vec<(TaskId, u64)>) -> Result<Vec<(TaskId, u64)>, Error> {
        self.up()?;
        let tasks = self.tasks.lock().unwrap();
        let now = self.clock.now();
        Ok(seen
            .into_iter()
            .filter_map(|(id, version)| match tasks.get(&id) {
                Some((task, _)) if task.expires_at().is_some_and(|end| end <= now) => Some((id, u64::MAX)),
                Some((task, _)) => (task.version > version).then_some((id, task.version)),
                None => Some((id, u64::MAX)),
            })
            .collect())
    }

    async fn tools(&self) -> Result<Vec<WorkerInfo>, Error> {
        self.up()?;
        Ok(self.workers.lock().unwrap().clone())
    }

    async fn count(&self) -> Result<TaskCount, Error> {
        Ok(TaskCount::default())
    }
}

#[async_trait]
impl Control for Store {
    async fn end_session(&self, session: &str, _expires_at: Timestamp) -> Result<(), Error> {
        self.up()?;
        self.ended.lock().unwrap().push(session.to_owned());
        Ok(())
    }

    async fn ended_sessions(&self, after: &str) -> Result<Vec<String>, Error> {
        self.up()?;
        let mut ended = self.ended.lock().unwrap().clone();
        ended.retain(|session| session.as_str() > after);
        ended.sort();
        ended.truncate(longhaul_rpc::ENDED_SESSIONS_PAGE);
        Ok(ended)
    }
}

/// A worker. `echo` answers with its arguments; `wait` with what its script says.
#[derive(Default)]
pub struct Worker {
    pub calls: Mutex<Vec<Invocation>>,
    /// Takes no calls.
    pub full: AtomicBool,
    waiting: Mutex<Vec<Run>>,
    arrived: Notify,
}

/// A call in the hands of a test.
pub struct Run {
    pub say: mpsc::UnboundedSender<Result<CallEvent, Error>>,
    pub stopped: CancellationToken,
}

impl Run {
    pub fn progress(&self, progress: f64) {
        let progress = Progress { progress, total: None, message: None };
        self.say.send(Ok(CallEvent::Progress(progress))).unwrap();
    }

    pub fn end(&self, outcome: Outcome) {
        self.say.send(Ok(CallEvent::Outcome(outcome))).unwrap();
    }
}

impl Worker {
    /// The next `wait` call that arrives.
    pub async fn run(&self) -> Run {
        within("a call", async {
            loop {
                let arrived = self.arrived.notified();
                if let Some(run) = self.waiting.lock().unwrap().pop() {
                    return run;
                }
                arrived.await;
            }
        })
        .await
    }
}

#[async_trait]
impl Calls for Worker {
    async fn invoke(&self, call: Invocation) -> Result<CallEvents, Error> {
        self.calls.lock().unwrap().push(call.clone());
        if self.full.load(Ordering::SeqCst) {
            return Err(Error::NotBegun("full".into()));
        }
        if call.tool != "wait" {
            let arguments = String::from_utf8(call.arguments.to_vec()).unwrap();
            let is_error = call.tool == "fail";
            let content = r#"[{"type":"text","text":"ok"}]"#;
            let body = format!(r#"{{"content":{content},"structuredContent":{arguments},"isError":{is_error}}}"#);
            let outcome = Outcome::Result { is_error, body: body.into() };
            return Ok(futures::stream::once(async { Ok(CallEvent::Outcome(outcome)) }).boxed());
        }
        let (say, said) = mpsc::unbounded_channel();
        let stopped = CancellationToken::new();
        let guard = stopped.clone().drop_guard();
        self.waiting.lock().unwrap().push(Run { say, stopped });
        self.arrived.notify_waiters();
        let events =
            futures::stream::unfold((said, guard), async |(mut said, guard)| Some((said.recv().await?, (said, guard))));
        Ok(events.boxed())
    }
}

pub fn tool(name: &str, task_support: TaskSupport) -> ToolDef {
    let definition = serde_json::json!({"name": name, "description": "d", "inputSchema": {"type": "object"}});
    ToolDef { name: name.into(), task_support, definition: definition.to_string().into() }
}

pub fn worker_info(name: &str, url: Option<&str>, tools: Vec<ToolDef>) -> WorkerInfo {
    let id = WorkerId { name: name.into(), incarnation: "1".into() };
    WorkerInfo { id, url: url.map(str::to_owned), tools }
}

pub fn all_tools() -> Vec<ToolDef> {
    use TaskSupport::{Forbidden, Optional, Required};
    [("echo", Optional), ("wait", Optional), ("fail", Optional), ("never", Forbidden), ("always", Required)]
        .map(|(name, support)| tool(name, support))
        .into()
}

/// A gateway that runs.
pub struct Running {
    pub at: SocketAddr,
    pub status: Status,
    pub drain: CancellationToken,
    pub over: CancellationToken,
}

pub struct World {
    pub store: Arc<Store>,
    pub worker: Arc<Worker>,
    pub links: Links,
    pub token: ServiceToken,
    pub a: Running,
    pub b: Running,
    pub tasks: TaskTracker,
}

pub fn config() -> Config {
    let ms = Duration::from_millis;
    Config {
        tools_page: 3,
        result_bytes_max: RESULT_BYTES_MAX,
        result_wait: ms(300),
        drain_timeout: Duration::from_secs(3),
        pace: Pace {
            keep_alive: ms(100),
            stream_after: ms(50),
            write_stall: ms(500),
            first_request: ms(500),
            body: ms(500),
            floor: ms(200),
            floor_deaf: ms(50),
            tools: ms(100),
            sessions: ms(50),
            answer_kept: Duration::from_secs(5),
        },
        ..Config::default()
    }
}

impl World {
    pub async fn start() -> Self {
        Self::with(config(), Arc::new(LocalBus::new())).await
    }

    pub async fn with(config: Config, bus: Arc<dyn Bus>) -> Self {
        let store = Arc::new(Store {
            clock: TestClock::at(Timestamp::from_micros(1_764_500_000_000_000)),
            bus: bus.clone(),
            tasks: Mutex::default(),
            created: Mutex::default(),
            workers: Mutex::default(),
            ended: Mutex::default(),
            reads: AtomicUsize::new(0),
            down: AtomicBool::new(false),
            full: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            open_max: AtomicUsize::new(usize::MAX),
            hold_creates: Mutex::default(),
        });
        let (worker, links) = (Arc::new(Worker::default()), Links::default());
        let token = ServiceToken::new(["a-service-token-of-tests"]).unwrap();
        let tasks = TaskTracker::new();
        serve_worker(&tasks, &links, &token, "w", worker.clone());
        *store.workers.lock().unwrap() = vec![worker_info("w", Some("memory://w"), all_tools())];
        let a = start(&tasks, &config, &store, &bus, &links, &token).await;
        let b = start(&tasks, &config, &store, &bus, &links, &token).await;
        Self { store, worker, links, token, a, b, tasks }
    }

    /// A client of the first gateway.
    pub async fn alice(&self) -> Client {
        Client::hello(self.a.at, ALICE).await
    }

    pub async fn bob(&self) -> Client {
        Client::hello(self.a.at, BOB).await
    }
}

/// Serves a worker until the token fires; then its connections end, whatever they carry.
pub fn serve_worker(
    tasks: &TaskTracker,
    links: &Links,
    token: &ServiceToken,
    name: &str,
    worker: Arc<dyn Calls>,
) -> CancellationToken {
    let stop = CancellationToken::new();
    let server = Server::new(token.clone(), RESULT_BYTES_MAX, stop.clone()).calls(worker);
    tasks.spawn(server.serve(links.listen(name)));
    stop
}

pub fn parts(
    store: &Arc<Store>,
    bus: &Arc<dyn Bus>,
    links: &Links,
    token: &ServiceToken,
    auth: Authenticator,
) -> Parts {
    struct StoreClock(Arc<Store>);
    impl longhaul_core::Clock for StoreClock {
        fn now(&self) -> Timestamp {
            self.0.clock.now()
        }
    }
    Parts {
        tasks: store.clone(),
        control: store.clone(),
        bus: bus.clone(),
        links: links.clone(),
        token: token.clone(),
        keyring: Arc::new(ArcSwap::from_pointee(Keyring::new(&[7; 32], &[]))),
        auth,
        clock: Arc::new(StoreClock(store.clone())),
    }
}

async fn start(
    tasks: &TaskTracker,
    config: &Config,
    store: &Arc<Store>,
    bus: &Arc<dyn Bus>,
    links: &Links,
    token: &ServiceToken,
) -> Running {
    let credential =
        |token: &str, principal| Credential { sha256: Sha256::digest(token).into(), principal: Arc::new(principal) };
    let auth = Authenticator::Bearer([credential(ALICE, alice()), credential(BOB, bob())].into());
    let gateway = Gateway::build(config.clone(), parts(store, bus, links, token, auth));
    let status = gateway.status();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (drain, over) = (CancellationToken::new(), CancellationToken::new());
    let done = over.clone().drop_guard();
    let draining = drain.clone();
    tasks.spawn(async move {
        let _done = done;
        gateway.run(listener, draining).await.unwrap();
    });
    until("the gateway is ready", || status.is_ready()).await;
    Running { at, status, drain, over }
}

/// Waits until something is so.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    within(what, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Raw JSON of a result with `bytes` characters of text.
pub fn big(bytes: usize) -> Outcome {
    let body = format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(bytes));
    Outcome::Result { is_error: false, body: Bytes::from(body) }
}
