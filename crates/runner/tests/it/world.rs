//! A worker with wrapped servers, between a task-store of the test's and a gateway's client, over real gRPC in memory.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_core::{
    Caller, Fence, Lease, Outcome, Phase, Principal, Progress, Task, TaskId, TenantId, Timestamp, ToolDef, WorkerId,
    WorkerInfo,
};
use longhaul_rpc::client::{CallsClient, Target};
use longhaul_rpc::{
    Assignment, CallEvent, CallEvents, Calls as _, Claim, Directive, Directives, Error, Invocation, Links, Report,
    Server, ServiceToken, Work,
};
use longhaul_runner::{Config, Runner, UpstreamConfig};
use longhaul_worker::{Listening, Worker};
use serde_json::Value;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// For everything that must happen: nothing here takes nearly as long.
pub const SOON: Duration = Duration::from_secs(40);

pub struct World {
    pub runner: Arc<Runner>,
    store: Arc<Store>,
    calls: CallsClient,
    /// In the order in which they end.
    roles: Vec<(CancellationToken, tokio::task::JoinHandle<()>)>,
    tasks: TaskTracker,
}

/// A task-store that hands out what the test queues.
#[derive(Default)]
struct Store {
    announced: watch::Sender<Vec<ToolDef>>,
    queue: Mutex<VecDeque<Assignment>>,
    queued: Notify,
    words: Mutex<HashMap<TaskId, (Task, mpsc::UnboundedSender<Word>)>>,
    directives: Mutex<Vec<futures::channel::mpsc::UnboundedSender<Directive>>>,
}

/// What a worker says of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Word {
    Report(Report),
    Outcome(Outcome),
}

#[async_trait]
impl Work for Store {
    async fn attach(&self, worker: WorkerInfo) -> Result<Directives, Error> {
        let (sender, directives) = futures::channel::mpsc::unbounded();
        self.directives.lock().unwrap().push(sender);
        self.announced.send_replace(worker.tools);
        Ok(directives.boxed())
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Assignment>, Error> {
        let next = async {
            loop {
                let queued = self.queued.notified();
                if let Some(mut assignment) = self.queue.lock().unwrap().pop_front() {
                    let until = Timestamp::from_micros(i64::MAX / 2);
                    assignment.task.phase =
                        Phase::Running(Lease { worker: claim.worker.clone(), token: claim.token.clone(), until });
                    return assignment;
                }
                queued.await;
            }
        };
        Ok(timeout(claim.wait, next).await.into_iter().collect())
    }

    async fn heartbeat(&self, _: &WorkerId, _: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error> {
        Ok(Vec::new())
    }

    async fn report(&self, fence: Fence, report: Report) -> Result<Task, Error> {
        Ok(self.say(fence, Word::Report(report)))
    }

    async fn complete(&self, fence: Fence, outcome: Outcome) -> Result<Task, Error> {
        Ok(self.say(fence, Word::Outcome(outcome)))
    }

    async fn detach(&self, _: &WorkerId) -> Result<(), Error> {
        Ok(())
    }
}

impl Store {
    fn say(&self, fence: Fence, word: Word) -> Task {
        let words = self.words.lock().unwrap();
        let (task, sender) = &words[&fence.id];
        let _ = sender.send(word);
        task.clone()
    }
}

fn principal() -> Principal {
    Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) }
}

impl World {
    /// Starts a worker whose upstream servers are the given ones, as JSON.
    pub async fn start(upstreams: &[Value]) -> Self {
        Self::start_with(upstreams, PAYLOAD_BYTES_MAX).await
    }

    /// Starts one whose tools may answer with `max_result_bytes`.
    pub async fn start_with(upstreams: &[Value], max_result_bytes: usize) -> Self {
        let read = |json: &Value| serde_json::from_value::<UpstreamConfig>(json.clone()).unwrap();
        let config = Config { upstreams: upstreams.iter().map(read).collect(), max_result_bytes };
        let (links, token) = (Links::default(), ServiceToken::new(["service-token-of-the-test"]).unwrap());
        let target = |url: &str| Target {
            links: links.clone(),
            urls: vec![url.to_owned()],
            token: token.clone(),
            payload_bytes_max: max_result_bytes.max(PAYLOAD_BYTES_MAX),
        };
        let drains = [(); 3].map(|()| CancellationToken::new());
        let [drain_worker, drain_runner, drain_store] = drains.clone();
        let tasks = TaskTracker::new();

        let store = Arc::new(Store::default());
        let server = Server::new(token.clone(), PAYLOAD_BYTES_MAX, drain_store).work(store.clone());
        let listener = links.listen("store");
        let server = tasks.spawn(async move { server.serve(listener).await.unwrap() });

        let mut worker_config = longhaul_worker::Config::new(target("memory://store"));
        let listener = links.listen("worker");
        worker_config.calls = Some(Listening { listener, advertise_url: "memory://worker".into() });
        worker_config.max_result_bytes = max_result_bytes;
        let worker = Worker::new(worker_config);
        let runner = Runner::build(&config, |name| std::env::var_os(name), worker.tools(), Vec::new()).unwrap();
        let runner = Arc::new(runner);
        let worker = tasks.spawn(async move { worker.run(drain_worker).await.unwrap() });
        let running = runner.clone();
        let servers = tasks.spawn(async move { running.run(drain_runner).await });
        let roles = drains.into_iter().zip([worker, servers, server]).collect();
        let calls = CallsClient::new(&target("memory://worker")).unwrap();
        Self { runner, store, calls, roles, tasks }
    }

    /// Waits until a tool is announced, and returns its definition.
    pub async fn tool(&self, name: &str) -> ToolDef {
        self.announced(|tools| tools.iter().find(|tool| tool.name == name).cloned()).await
    }

    /// Waits until what is announced has something.
    pub async fn announced<T>(&self, find: impl Fn(&[ToolDef]) -> Option<T>) -> T {
        let mut announced = self.store.announced.subscribe();
        let search = async {
            loop {
                if let Some(found) = find(&announced.borrow_and_update()) {
                    return found;
                }
                announced.changed().await.unwrap();
            }
        };
        timeout(SOON, search).await.expect("the tools are announced")
    }

    /// The names of all announced tools.
    pub fn names(&self) -> Vec<String> {
        self.store.announced.borrow().iter().map(|tool| tool.name.clone()).collect()
    }

    /// Calls a tool, not as a task.
    pub async fn begin(&self, tool: &str, arguments: &str) -> CallEvents {
        let arguments = Bytes::copy_from_slice(arguments.as_bytes());
        let call = Invocation { principal: principal(), tool: tool.into(), arguments, progress: true };
        self.calls.invoke(call).await.unwrap()
    }

    /// Calls a tool, not as a task, up to its outcome.
    pub async fn call(&self, tool: &str, arguments: &str) -> (Vec<Progress>, Outcome) {
        finish(self.begin(tool, arguments).await).await
    }

    /// Calls a tool whose result is one text.
    pub async fn text(&self, tool: &str, arguments: &str) -> String {
        text(&self.call(tool, arguments).await.1)
    }

    /// Calls a tool as a task.
    pub fn task(&self, id: u128, tool: &str, arguments: &str) -> mpsc::UnboundedReceiver<Word> {
        let now = Timestamp::from_micros(0);
        let task = Task {
            id: TaskId::from_random(id),
            owner: principal(),
            tool: tool.into(),
            phase: Phase::Queued,
            version: 1,
            attempt: 1,
            status_message: None,
            progress: None,
            progress_token: None,
            session: None,
            created_at: now,
            updated_at: now,
            ttl_ms: None,
        };
        let (sender, words) = mpsc::unbounded_channel();
        self.store.words.lock().unwrap().insert(task.id, (task.clone(), sender));
        let arguments = Bytes::copy_from_slice(arguments.as_bytes());
        self.store.queue.lock().unwrap().push_back(Assignment { task, arguments, traceparent: None });
        self.store.queued.notify_one();
        words
    }

    /// Tells the worker to stop a task.
    pub fn stop(&self, id: u128) {
        for directives in &*self.store.directives.lock().unwrap() {
            let _ = directives.unbounded_send(Directive::Stop(TaskId::from_random(id)));
        }
    }

    /// Drains the worker, then the servers, then the task-store.
    pub async fn end(self) {
        drop(self.calls);
        for (drain, role) in self.roles {
            drain.cancel();
            timeout(SOON, role).await.expect("everything ends").expect("without a panic");
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The events of a call up to its outcome.
pub async fn finish(mut events: CallEvents) -> (Vec<Progress>, Outcome) {
    let mut news = Vec::new();
    loop {
        match timeout(SOON, events.next()).await.expect("the call goes on").expect("an outcome").unwrap() {
            CallEvent::Progress(progress) => news.push(progress),
            CallEvent::Outcome(outcome) => return (news, outcome),
        }
    }
}

/// The next word about a task.
pub async fn word(words: &mut mpsc::UnboundedReceiver<Word>) -> Word {
    timeout(SOON, words.recv()).await.expect("a word about the task").expect("a word about the task")
}

/// The text of a result's only block.
pub fn text(outcome: &Outcome) -> String {
    let Outcome::Result { is_error: false, body } = outcome else { panic!("{outcome:?}") };
    let result: Value = serde_json::from_slice(body).unwrap();
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

/// The code and message of an error.
pub fn error(outcome: &Outcome) -> (i32, &str) {
    let Outcome::Error(error) = outcome else { panic!("{outcome:?}") };
    (error.code, &error.message)
}

/// The test's server.
pub fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/upstream.py")
}
