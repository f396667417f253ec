//! A worker with wrapped servers, between a task-store of the test's and a gateway's client, over real gRPC in memory.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_core::{
    Amount, CallError, Caller, ClientCapabilities, Fence, Input, InputRequest, InputResponse, InputState, Lease,
    LogLevel, LogMessage, Outcome, Phase, Principal, Progress, Target, Task, TaskId, TenantId, Timestamp, ToolDef,
    TraceContext, WorkerId, WorkerInfo,
};
use longhaul_rpc::client::{self, CallsClient};
use longhaul_rpc::{
    Asked, Assignment, CallEvent, CallEvents, Calls as _, Claim, Directive, Directives, Error, Invocation, Line, Links,
    Report, Resume, Server, ServiceToken, Work,
};
use longhaul_runner::{Config, Runner};
use longhaul_worker::{Listening, Resolver, Tool, Worker};
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
    announced: watch::Sender<Option<WorkerInfo>>,
    queue: Mutex<VecDeque<Assignment>>,
    queued: Notify,
    words: Mutex<HashMap<TaskId, (Task, mpsc::UnboundedSender<Word>)>>,
    directives: Mutex<Vec<futures::channel::mpsc::UnboundedSender<Directive>>>,
    /// Answers to questions of tasks that the worker has not collected.
    answers: Mutex<HashMap<TaskId, Vec<(u32, InputResponse)>>>,
    journals: Mutex<HashMap<TaskId, Vec<Bytes>>>,
    recorded: Notify,
}

/// What a worker says of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Word {
    Report(Report),
    Input(Vec<InputRequest>),
    Outcome(Outcome),
}

#[async_trait]
impl Work for Store {
    async fn attach(&self, worker: WorkerInfo) -> Result<Directives, Error> {
        let (sender, directives) = futures::channel::mpsc::unbounded();
        self.directives.lock().unwrap().push(sender);
        self.announced.send_replace(Some(worker));
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

    async fn spend(&self, _: Fence, _: Amount) -> Result<Task, Error> {
        Err(Error::Fault("upstream servers spend nothing".into()))
    }

    async fn request_input(&self, fence: Fence, requests: Vec<InputRequest>, _: Duration) -> Result<Task, Error> {
        let mut task = self.say(fence.clone(), Word::Input(requests.clone()));
        let until = Timestamp::from_micros(i64::MAX / 2);
        for InputRequest { key, question } in requests {
            task.inputs.push(Input { key, state: InputState::Open { question, until } });
        }
        self.words.lock().unwrap().get_mut(&fence.id).unwrap().0 = task.clone();
        Ok(task)
    }

    async fn withdraw(&self, fence: Fence, _: Vec<String>) -> Result<Task, Error> {
        Ok(self.words.lock().unwrap()[&fence.id].0.clone())
    }

    async fn collect(&self, fence: Fence, have: Vec<u32>) -> Result<Vec<(u32, InputResponse)>, Error> {
        let mut answers = self.answers.lock().unwrap();
        let answers = answers.entry(fence.id).or_default();
        answers.retain(|(nth, _)| !have.contains(nth));
        Ok(answers.clone())
    }

    async fn record(&self, fence: Fence, nth: u32, entry: Bytes) -> Result<(), Error> {
        let mut journals = self.journals.lock().unwrap();
        let journal = journals.entry(fence.id).or_default();
        assert_eq!(journal.len() as u32 + 1, nth);
        journal.push(entry);
        self.recorded.notify_waiters();
        Ok(())
    }

    async fn journal(&self, fence: Fence, after: u32) -> Result<Vec<Bytes>, Error> {
        let journals = self.journals.lock().unwrap();
        Ok(journals.get(&fence.id).map(|journal| journal[after as usize..].to_vec()).unwrap_or_default())
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

pub fn principal() -> Principal {
    somebody("t")
}

/// An agent of some tenant.
pub fn somebody(tenant: &str) -> Principal {
    Principal { tenant: TenantId::new(tenant), caller: Caller::Agent("a".into()) }
}

/// Of the trace of all calls that are not tasks.
pub const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A client that can be asked anything.
pub const ANYTHING: ClientCapabilities =
    ClientCapabilities { elicitation_form: true, elicitation_url: true, sampling: true, roots: true };

/// Every name is public.
#[derive(Debug)]
struct Public;

#[async_trait]
impl Resolver for Public {
    async fn resolve(&self, _: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
        Ok(vec![std::net::Ipv4Addr::new(93, 184, 215, 14).into()])
    }
}

impl World {
    /// Starts a worker whose upstream servers are the given ones, as JSON.
    pub async fn start(upstreams: &[Value]) -> Self {
        Self::start_with(upstreams, PAYLOAD_BYTES_MAX).await
    }

    /// Starts one whose tools may answer with `max_result_bytes`.
    pub async fn start_with(upstreams: &[Value], max_result_bytes: usize) -> Self {
        let config = Config { upstreams: read(upstreams), max_result_bytes, ..Config::default() };
        Self::run(config, Vec::new()).await
    }

    /// Starts one that has agents, and tools of its own.
    pub async fn with_agents(providers: &[Value], agents: &[Value], own: Vec<Tool>) -> Self {
        let config = Config { providers: read(providers), agents: read(agents), ..Config::default() };
        Self::run(config, own).await
    }

    async fn run(config: Config, own: Vec<Tool>) -> Self {
        let max_result_bytes = config.max_result_bytes;
        let (links, token) = (Links::default(), ServiceToken::new(["service-token-of-the-test"]).unwrap());
        let target = |url: &str| client::Target {
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
        worker_config.resolver = Arc::new(Public);
        let worker = Worker::new(worker_config);
        let runner = Runner::build(&config, |name| std::env::var_os(name), &worker, own, Arc::default()).unwrap();
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
        self.announced(|worker| worker.tools.iter().find(|tool| tool.name == name).cloned()).await
    }

    /// Waits until what is announced has something.
    pub async fn announced<T>(&self, find: impl Fn(&WorkerInfo) -> Option<T>) -> T {
        let mut announced = self.store.announced.subscribe();
        let search = async {
            loop {
                if let Some(found) = announced.borrow_and_update().as_ref().and_then(&find) {
                    return found;
                }
                announced.changed().await.unwrap();
            }
        };
        timeout(SOON, search).await.expect("it is announced")
    }

    /// The names of all announced tools.
    pub fn names(&self) -> Vec<String> {
        self.store.announced.borrow().iter().flat_map(|worker| &worker.tools).map(|tool| tool.name.clone()).collect()
    }

    /// Makes a call that is not a task, for a client that can be asked anything and hears everything.
    pub async fn invoke(&self, target: Target, arguments: &str) -> Call {
        self.invoke_for(ANYTHING, None, target, arguments).await
    }

    /// Makes a call that is not a task.
    pub async fn invoke_for(
        &self,
        client: ClientCapabilities,
        park: Option<Duration>,
        target: Target,
        arguments: &str,
    ) -> Call {
        self.invoke_as(principal(), client, park, target, arguments).await
    }

    /// Makes a call that is not a task, for somebody.
    pub async fn invoke_as(
        &self,
        principal: Principal,
        client: ClientCapabilities,
        park: Option<Duration>,
        target: Target,
        arguments: &str,
    ) -> Call {
        let call = Invocation {
            principal,
            target,
            arguments: Bytes::copy_from_slice(arguments.as_bytes()),
            client,
            line: Line { progress: true, log: Some(LogLevel::Debug) },
            park,
            may_become_task: false,
            trace: TraceContext::new(Some(TRACEPARENT), Some("a=b"), Some("k=v")),
        };
        Call { events: self.calls.invoke(call).await.unwrap(), progress: Vec::new(), logs: Vec::new() }
    }

    /// Answers the questions of a call whose client is on the line.
    pub async fn respond(&self, run: &str, answers: Vec<(String, InputResponse)>) {
        self.try_respond(run, answers).await.unwrap();
    }

    /// The same, where nobody may wait for it.
    pub async fn try_respond(&self, run: &str, answers: Vec<(String, InputResponse)>) -> Result<(), Error> {
        self.respond_as(&principal(), run, answers).await
    }

    /// The same, for somebody.
    pub async fn respond_as(
        &self,
        principal: &Principal,
        run: &str,
        answers: Vec<(String, InputResponse)>,
    ) -> Result<(), Error> {
        self.calls.respond(principal, run, answers).await
    }

    /// Goes on with a parked call.
    pub async fn resume(&self, asked: &Asked, answers: Vec<(String, InputResponse)>) -> Call {
        let resume = Resume {
            principal: principal(),
            run: asked.run.clone(),
            round: asked.round,
            answers,
            client: ANYTHING,
            line: Line::default(),
        };
        Call { events: self.calls.resume(resume).await.unwrap(), progress: Vec::new(), logs: Vec::new() }
    }

    /// Watches a resource.
    pub async fn watch(&self, uri: &str) -> BoxStream<'static, Result<(), Error>> {
        self.calls.watch(uri).await.unwrap()
    }

    /// Calls a tool, not as a task, for a client that can be asked anything.
    pub async fn ask(&self, tool: &str, arguments: &str) -> Call {
        self.invoke(Target::Tool(tool.into()), arguments).await
    }

    /// Calls a tool, not as a task, for a client that cannot be asked.
    pub async fn begin(&self, tool: &str, arguments: &str) -> Call {
        self.invoke_for(ClientCapabilities::default(), None, Target::Tool(tool.into()), arguments).await
    }

    /// Calls a tool, not as a task, up to its outcome.
    pub async fn call(&self, tool: &str, arguments: &str) -> (Vec<Progress>, Outcome) {
        finish(self.begin(tool, arguments).await).await
    }

    /// Calls a tool whose result is one text.
    pub async fn text(&self, tool: &str, arguments: &str) -> String {
        text(&self.call(tool, arguments).await.1)
    }

    /// The result of anything that must have one, as it came.
    pub async fn result(&self, target: Target, arguments: &str) -> String {
        result(&self.invoke(target, arguments).await.outcome().await)
    }

    /// Calls a tool as a task.
    pub fn task(&self, id: u128, tool: &str, arguments: &str) -> mpsc::UnboundedReceiver<Word> {
        self.attempt(id, 1, tool, arguments)
    }

    /// Hands a task out for the n-th time.
    pub fn attempt(&self, id: u128, attempt: u32, tool: &str, arguments: &str) -> mpsc::UnboundedReceiver<Word> {
        let now = Timestamp::from_micros(0);
        let task = Task {
            id: TaskId::from_random(id),
            owner: principal(),
            tool: tool.into(),
            phase: Phase::Queued,
            version: 1,
            attempt,
            status_message: None,
            progress: None,
            progress_token: None,
            session: None,
            created_at: now,
            updated_at: now,
            ttl_ms: None,
            client: ANYTHING,
            retry: self.announced_retry(tool),
            inputs: Vec::new(),
            reserved: None,
            spent: None,
        };
        let (sender, words) = mpsc::unbounded_channel();
        self.store.words.lock().unwrap().insert(task.id, (task.clone(), sender));
        let arguments = Bytes::copy_from_slice(arguments.as_bytes());
        self.store.queue.lock().unwrap().push_back(Assignment { task, arguments, trace: TraceContext::default() });
        self.store.queued.notify_one();
        words
    }

    fn announced_retry(&self, tool: &str) -> longhaul_core::Retry {
        let announced = self.store.announced.borrow();
        let known = announced.iter().flat_map(|worker| &worker.tools).find(|known| known.name == tool);
        known.map(|known| known.retry).unwrap_or_default()
    }

    /// What has been recorded of a task.
    pub fn journal(&self, id: u128) -> Vec<Bytes> {
        self.store.journals.lock().unwrap().get(&TaskId::from_random(id)).cloned().unwrap_or_default()
    }

    /// Waits until so many entries have been recorded of a task.
    pub async fn recorded(&self, id: u128, entries: usize) {
        let wait = async {
            loop {
                let recorded = self.store.recorded.notified();
                if self.journal(id).len() >= entries {
                    return;
                }
                recorded.await;
            }
        };
        timeout(SOON, wait).await.expect("it is recorded");
    }

    /// Answers the n-th question of a task.
    pub fn answer(&self, id: u128, nth: u32, answer: InputResponse) {
        let id = TaskId::from_random(id);
        self.store.answers.lock().unwrap().entry(id).or_default().push((nth, answer));
        for directives in &*self.store.directives.lock().unwrap() {
            let _ = directives.unbounded_send(Directive::Answered(id));
        }
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

/// A call that is not a task, and what was heard of it besides.
pub struct Call {
    events: CallEvents,
    pub progress: Vec<Progress>,
    pub logs: Vec<LogMessage>,
}

impl Call {
    /// The next word, if there is one.
    pub async fn next(&mut self) -> Option<CallEvent> {
        timeout(SOON, self.events.next()).await.expect("the call goes on").map(Result::unwrap)
    }

    /// Whether nothing more has been heard.
    pub fn is_silent(&mut self) -> bool {
        let next = self.events.next();
        futures::FutureExt::now_or_never(next).is_none()
    }

    /// What the call asks next.
    pub async fn asked(&mut self) -> Asked {
        match self.word().await {
            CallEvent::Asked(asked) => asked,
            other => panic!("{other:?}"),
        }
    }

    /// How the call ended.
    pub async fn outcome(&mut self) -> Outcome {
        match self.word().await {
            CallEvent::Outcome(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the call is over, whatever comes of it.
    pub async fn over(&mut self) {
        self.outcome().await;
    }

    /// The next word that is neither progress nor a log message.
    async fn word(&mut self) -> CallEvent {
        loop {
            match self.next().await.expect("an outcome") {
                CallEvent::Progress(progress) => self.progress.push(progress),
                CallEvent::Log(log) => self.logs.push(log),
                // A question that is asked no longer: if that is told before the outcome.
                CallEvent::Withdrawn(_) => {}
                other => return other,
            }
        }
    }
}

/// Config entries, written as JSON.
fn read<T: serde::de::DeserializeOwned>(entries: &[Value]) -> Vec<T> {
    entries.iter().map(|json| serde_json::from_value(json.clone()).unwrap()).collect()
}

/// The progress of a call, and its outcome.
pub async fn finish(mut call: Call) -> (Vec<Progress>, Outcome) {
    let outcome = call.outcome().await;
    (call.progress, outcome)
}

/// Yes, with the content of a form.
pub fn yes(content: &str) -> InputResponse {
    InputResponse::Accept(Some(Bytes::copy_from_slice(content.as_bytes())))
}

/// The result, as it came.
pub fn result(outcome: &Outcome) -> String {
    let Outcome::Result { is_error: false, body } = outcome else { panic!("{outcome:?}") };
    String::from_utf8(body.to_vec()).unwrap()
}

/// The next word about a task.
pub async fn word(words: &mut mpsc::UnboundedReceiver<Word>) -> Word {
    timeout(SOON, words.recv()).await.expect("a word about the task").expect("a word about the task")
}

/// The text of a result's only block.
pub fn text(outcome: &Outcome) -> String {
    let result: Value = serde_json::from_str(&result(outcome)).unwrap();
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

/// The code and message of an error.
pub fn error(outcome: &Outcome) -> (i32, &str) {
    let Outcome::Error(CallError { code, message, .. }) = outcome else { panic!("{outcome:?}") };
    (*code, message)
}

/// Waits until something is so that nobody announces.
pub async fn until(is_so: impl Fn() -> bool) {
    let looking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, looking).await.expect("it is so");
}

/// Whether a process runs. One that nobody has fetched from the dead does not.
pub fn lives(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// The test's server.
pub fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/upstream.py")
}
