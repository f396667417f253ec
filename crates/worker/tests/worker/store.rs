//! A task-store in memory: the core's verbs, a record of all that was asked, and faults on demand.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use longhaul_core::{
    Amount, Caller, Change, Claimed, ClientCapabilities, Fence, InputKey, InputRequest, InputResponse, Lease,
    OnInterrupt, Outcome, Phase, Principal, Refusal, Retry, Task, TaskId, TenantId, Timestamp, TraceContext, WorkerId,
    WorkerInfo,
};
use longhaul_rpc::client::{CallsClient, Target};
use longhaul_rpc::{
    Assignment, Claim, Directive, Directives, Error, Invocation, Line, Links, Report, Server, ServiceToken, Work,
};
use longhaul_worker::{Config, Listening, Resolver, Worker};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// What a worker asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Attach(WorkerInfo),
    Claim(Claim),
    Heartbeat(Vec<(TaskId, u32)>),
    Report(TaskId, Report),
    Input(TaskId, Vec<InputRequest>, Duration),
    Withdraw(TaskId, Vec<String>),
    Collect(TaskId, Vec<u32>),
    Complete(Fence, Outcome),
    Detach,
}

/// Faults on demand.
#[derive(Debug, Default)]
pub struct Faults {
    /// Claims hand tasks over, but so many answers are lost.
    pub claim_answers_lost: u32,
    /// Handing over takes so long.
    pub claim_delay: Duration,
    /// Claims hand tasks over, but the answer takes for ever.
    pub claims_stall: bool,
    /// So many words about spending are not taken.
    pub spend_answers_lost: u32,
    /// Completions are stored, but so many answers are lost.
    pub complete_answers_lost: u32,
    /// Heartbeats are never answered.
    pub deaf: bool,
    /// Questions are stored, but so many answers are lost.
    pub input_answers_lost: u32,
    /// Directives are not sent on their own.
    pub mute: bool,
    /// Nor repeated in answers to heartbeats.
    pub forgetful: bool,
    /// So many entries are recorded without an answer.
    pub record_answers_lost: u32,
}

#[derive(Default)]
struct State {
    tasks: HashMap<TaskId, (Task, Bytes, Option<Outcome>)>,
    queue: Vec<TaskId>,
    /// What was answered and not collected.
    answers: HashMap<TaskId, Vec<(u32, InputResponse)>>,
    journals: HashMap<TaskId, Vec<Bytes>>,
    asked: Vec<(Instant, Asked)>,
    directives: Option<mpsc::UnboundedSender<Directive>>,
    faults: Faults,
}

#[derive(Default)]
pub struct Store {
    state: Mutex<State>,
    changed: Notify,
}

/// A plain call of a tool, by a client that stays on the line and can be asked anything.
pub fn call(tool: &str, arguments: &'static str) -> Invocation {
    Invocation {
        principal: principal(),
        target: longhaul_core::Target::Tool(tool.into()),
        arguments: arguments.into(),
        client: anything(),
        line: Line::default(),
        park: None,
        may_become_task: false,
        trace: TraceContext::default(),
    }
}

/// Names with their addresses; others have none.
#[derive(Debug)]
pub struct Names(pub Vec<(&'static str, Vec<IpAddr>)>);

#[async_trait]
impl Resolver for Names {
    async fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        let found = self.0.iter().find(|(name, _)| *name == host);
        found.map(|(_, addresses)| addresses.clone()).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }
}

/// Yes, with a content.
pub fn yes(content: &'static str) -> InputResponse {
    InputResponse::Accept(Some(Bytes::from_static(content.as_bytes())))
}

/// A client that can be asked anything.
pub fn anything() -> ClientCapabilities {
    ClientCapabilities { elicitation_form: true, elicitation_url: true, sampling: true, roots: true }
}

pub fn principal() -> Principal {
    Principal { tenant: TenantId::new("acme"), caller: Caller::Agent("a".into()) }
}

impl Store {
    fn locked<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let answer = with(&mut self.state.lock().unwrap());
        self.changed.notify_waiters();
        answer
    }

    pub fn faults(&self, set: impl FnOnce(&mut Faults)) {
        self.locked(|state| set(&mut state.faults));
    }

    /// Queues a task.
    pub fn create(&self, tool: &str, arguments: &str) -> TaskId {
        self.create_for(anything(), tool, arguments)
    }

    /// Queues a task of a client that can be asked so much.
    pub fn create_for(&self, client: ClientCapabilities, tool: &str, arguments: &str) -> TaskId {
        self.locked(|state| {
            let id = TaskId::from_random(state.tasks.len() as u128 + 1);
            let task = Task {
                id,
                owner: principal(),
                tool: tool.into(),
                phase: Phase::Queued,
                version: 1,
                attempt: 0,
                status_message: None,
                progress: None,
                progress_token: None,
                session: None,
                created_at: Timestamp::from_micros(0),
                updated_at: Timestamp::from_micros(0),
                ttl_ms: Some(1000),
                client,
                retry: Retry::default(),
                inputs: Vec::new(),
                reserved: None,
                spent: None,
            };
            state.tasks.insert(id, (task, Bytes::copy_from_slice(arguments.as_bytes()), None));
            state.queue.push(id);
            id
        })
    }

    /// Queues a task that is handed out again when its worker is lost.
    pub fn create_again(&self, tool: &str, policy: OnInterrupt) -> TaskId {
        let id = self.create(tool, "{}");
        self.locked(|state| {
            state.tasks.get_mut(&id).unwrap().0.retry = Retry { on_interrupt: policy, max_attempts: 3 }
        });
        id
    }

    /// Takes a task from its worker, as if that had not been heard of for a lease, and queues it again.
    pub fn lose(&self, id: TaskId) {
        self.locked(|state| {
            let change = state.tasks[&id].0.clone().interrupt(Timestamp::from_micros(i64::MAX)).unwrap();
            state.commit(change);
            state.queue.push(id);
            state.direct(Directive::Stop(id));
        });
    }

    /// Creates a task for a call that has begun already.
    pub fn adopt(&self, tool: &str, claimed: Claimed) -> Task {
        let id = self.create(tool, "{}");
        self.locked(|state| {
            state.queue.retain(|queued| *queued != id);
            let Claimed { worker, token } = claimed;
            let lease = Lease { worker, token, until: Timestamp::from_micros(i64::MAX) };
            let change = state.tasks[&id].0.clone().claim(lease).unwrap();
            state.commit(change)
        })
    }

    /// Cancels a task, and tells its worker.
    pub fn cancel(&self, id: TaskId) {
        self.locked(|state| {
            let change = state.tasks[&id].0.clone().cancel().unwrap();
            state.commit(change);
            state.direct(Directive::Stop(id));
        });
    }

    /// Answers questions of a task, and tells its worker.
    pub fn respond(&self, id: TaskId, answers: &[(&str, InputResponse)]) {
        let answers =
            answers.iter().map(|(key, response)| (InputKey::Named((*key).into()), response.clone())).collect();
        self.locked(|state| {
            let change = state.tasks[&id].0.clone().respond(answers).unwrap();
            state.commit(change);
            state.direct(Directive::Answered(id));
        });
    }

    /// Declines what is not answered by then, and tells the worker.
    pub fn lapse(&self, id: TaskId, now: Timestamp) {
        self.locked(|state| {
            let change = state.tasks[&id].0.clone().lapse(now).unwrap();
            state.commit(change);
            state.direct(Directive::Answered(id));
        });
    }

    /// Waits until a task asks so many things.
    pub async fn asking(&self, id: TaskId, count: usize) {
        self.until(|store| (store.task(id).open_inputs().count() == count).then_some(())).await;
    }

    /// How many answers were not collected, or not deleted yet.
    pub fn uncollected(&self, id: TaskId) -> usize {
        self.locked_quietly(|state| state.answers.get(&id).map_or(0, Vec::len))
    }

    pub fn task(&self, id: TaskId) -> Task {
        self.locked_quietly(|state| state.tasks[&id].0.clone())
    }

    pub fn asked(&self) -> Vec<(Instant, Asked)> {
        self.locked_quietly(|state| state.asked.clone())
    }

    /// How many completions were asked for.
    pub fn completions(&self) -> usize {
        self.asked().iter().filter(|(_, asked)| matches!(asked, Asked::Complete(..))).count()
    }

    /// Waits until the store looks like that.
    pub async fn until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        let wait = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if let Some(found) = look(self) {
                    return found;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(1000), wait).await.expect("the store never looked like that")
    }

    /// Waits for a task's outcome.
    pub async fn outcome(&self, id: TaskId) -> Outcome {
        self.until(|store| store.locked_quietly(|state| state.tasks[&id].2.clone())).await
    }

    /// Waits until a task runs.
    pub async fn running(&self, id: TaskId) {
        self.until(|store| {
            store.locked_quietly(|state| matches!(state.tasks[&id].0.phase, Phase::Running(_)).then_some(()))
        })
        .await;
    }

    /// Waits until something was asked `times` times.
    pub async fn heard(&self, times: usize, which: impl Fn(&Asked) -> bool) -> (Instant, Asked) {
        self.until(|store| {
            store.locked_quietly(|state| state.asked.iter().filter(|(_, asked)| which(asked)).nth(times - 1).cloned())
        })
        .await
    }

    /// Looking is no change.
    fn locked_quietly<T>(&self, with: impl FnOnce(&State) -> T) -> T {
        with(&self.state.lock().unwrap())
    }

    async fn take(&self, claim: &Claim) -> Vec<Assignment> {
        let delay = self.locked_quietly(|state| state.faults.claim_delay);
        if !delay.is_zero() && !claim.wait.is_zero() {
            self.until(|store| store.locked_quietly(|state| (!state.queue.is_empty()).then_some(()))).await;
            tokio::time::sleep(delay).await;
        }
        let wait = self.until(|store| {
            let taken = store.state.lock().unwrap().hand_over(claim);
            (!taken.is_empty()).then_some(taken)
        });
        tokio::time::timeout(claim.wait, wait).await.unwrap_or_default()
    }

    fn record(&self, asked: Asked) {
        self.locked(|state| state.asked.push((Instant::now(), asked)));
    }
}

impl State {
    fn commit(&mut self, change: Change) -> Task {
        let entry = self.tasks.get_mut(&change.task.id).unwrap();
        entry.0 = change.task.clone();
        entry.2 = change.outcome.or(entry.2.take());
        let answers = self.answers.entry(change.task.id).or_default();
        answers.extend(change.responses);
        if !matches!(change.task.phase, Phase::Running(_)) {
            answers.clear();
        }
        change.task
    }

    fn direct(&self, directive: Directive) {
        if let (Some(directives), false) = (&self.directives, self.faults.mute) {
            let _ = directives.send(directive);
        }
    }

    fn hand_over(&mut self, claim: &Claim) -> Vec<Assignment> {
        let held = |task: &Task| matches!(&task.phase, Phase::Running(lease) if lease.token == claim.token);
        let assigned = |(task, arguments, _): &(Task, Bytes, Option<Outcome>)| Assignment {
            task: task.clone(),
            arguments: arguments.clone(),
            trace: TraceContext::default(),
        };
        let again: Vec<_> = self.tasks.values().filter(|entry| held(&entry.0)).map(assigned).collect();
        if !again.is_empty() {
            return again;
        }
        let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.queue).into_iter().partition(|id| {
            matches!(self.tasks[id].0.phase, Phase::Queued) && claim.tools.contains(&self.tasks[id].0.tool)
        });
        let (taken, more) = taken.split_at(taken.len().min(claim.max as usize));
        self.queue = [more, &left].concat();
        for id in taken {
            let lease = Lease {
                worker: claim.worker.clone(),
                token: claim.token.clone(),
                until: Timestamp::from_micros(i64::MAX),
            };
            let change = self.tasks[id].0.clone().claim(lease).unwrap();
            self.commit(change);
        }
        taken.iter().map(|id| assigned(&self.tasks[id])).collect()
    }
}

fn lost<T>() -> Result<T, Error> {
    Err(Error::Unavailable("the answer was lost".into()))
}

#[async_trait]
impl Work for Store {
    async fn attach(&self, worker: WorkerInfo) -> Result<Directives, Error> {
        self.record(Asked::Attach(worker));
        let (send, receive) = mpsc::unbounded_channel();
        self.locked(|state| state.directives = Some(send));
        Ok(UnboundedReceiverStream::new(receive).boxed())
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Assignment>, Error> {
        self.record(Asked::Claim(claim.clone()));
        let taken = self.take(&claim).await;
        let (stall, lose) = self.locked(|state| {
            let lose = !taken.is_empty() && state.faults.claim_answers_lost > 0;
            state.faults.claim_answers_lost -= u32::from(lose);
            (state.faults.claims_stall && !claim.wait.is_zero() && !taken.is_empty(), lose)
        });
        if stall {
            std::future::pending::<()>().await;
        }
        if lose { lost() } else { Ok(taken) }
    }

    async fn heartbeat(&self, _: &WorkerId, leases: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error> {
        if self.locked_quietly(|state| state.faults.deaf) {
            std::future::pending::<()>().await;
        }
        self.record(Asked::Heartbeat(leases.clone()));
        let directive = |(id, attempt)| {
            self.locked_quietly(|state| {
                let task = &state.tasks[&id].0;
                if task.attempt != attempt || !matches!(task.phase, Phase::Running(_)) {
                    return Some(Directive::Stop(id));
                }
                let answered = !state.faults.forgetful && state.answers.get(&id).is_some_and(|left| !left.is_empty());
                answered.then_some(Directive::Answered(id))
            })
        };
        Ok(leases.into_iter().filter_map(directive).collect())
    }

    async fn request_input(&self, fence: Fence, requests: Vec<InputRequest>, timeout: Duration) -> Result<Task, Error> {
        self.record(Asked::Input(fence.id, requests.clone(), timeout));
        self.locked(|state| {
            let task = state.tasks[&fence.id].0.clone();
            let task = if task.has_asked(&requests) && task.ending().is_none() {
                task
            } else {
                let until = Timestamp::from_micros(0).plus(timeout);
                state.commit(task.request_input(&fence, requests, until)?)
            };
            if state.faults.input_answers_lost > 0 {
                state.faults.input_answers_lost -= 1;
                return lost();
            }
            Ok(task)
        })
    }

    async fn withdraw(&self, fence: Fence, keys: Vec<String>) -> Result<Task, Error> {
        self.record(Asked::Withdraw(fence.id, keys.clone()));
        self.locked(|state| {
            let task = state.tasks[&fence.id].0.clone();
            match task.clone().withdraw(&fence, &keys) {
                Err(Refusal::NotAsked) => Ok(task),
                change => Ok(state.commit(change?)),
            }
        })
    }

    async fn collect(&self, fence: Fence, have: Vec<u32>) -> Result<Vec<(u32, InputResponse)>, Error> {
        self.record(Asked::Collect(fence.id, have.clone()));
        self.locked(|state| {
            let task = &state.tasks[&fence.id].0;
            if let Some(ending) = task.ending() {
                return Err(Refusal::AlreadyEnded(ending).into());
            }
            if !matches!(&task.phase, Phase::Running(lease) if lease.token == fence.token) {
                return Err(Refusal::Fenced.into());
            }
            let left = state.answers.entry(fence.id).or_default();
            left.retain(|(nth, _)| !have.contains(nth));
            Ok(left.clone())
        })
    }

    async fn record(&self, fence: Fence, nth: u32, entry: Bytes) -> Result<(), Error> {
        self.locked(|state| {
            state.tasks[&fence.id].0.held_under(&fence)?;
            let journal = state.journals.entry(fence.id).or_default();
            if journal.len() as u32 + 1 == nth {
                journal.push(entry);
            }
            if state.faults.record_answers_lost > 0 {
                state.faults.record_answers_lost -= 1;
                return lost();
            }
            Ok(())
        })
    }

    async fn journal(&self, fence: Fence, after: u32) -> Result<Vec<Bytes>, Error> {
        self.locked_quietly(|state| {
            state.tasks[&fence.id].0.held_under(&fence)?;
            let journal = state.journals.get(&fence.id).map(Vec::as_slice).unwrap_or_default();
            // In pages of two.
            Ok(journal[after as usize..].iter().take(2).cloned().collect())
        })
    }

    async fn report(&self, fence: Fence, report: Report) -> Result<Task, Error> {
        self.record(Asked::Report(fence.id, report.clone()));
        self.locked(|state| {
            let change = state.tasks[&fence.id].0.clone().report(&fence, report.status_message, report.progress)?;
            Ok(state.commit(change))
        })
    }

    async fn spend(&self, fence: Fence, total: Amount) -> Result<Task, Error> {
        self.locked(|state| {
            if state.faults.spend_answers_lost > 0 {
                state.faults.spend_answers_lost -= 1;
                return lost();
            }
            let change = state.tasks[&fence.id].0.clone().spend(&fence, total)?;
            Ok(state.commit(change))
        })
    }

    async fn complete(&self, fence: Fence, outcome: Outcome) -> Result<Task, Error> {
        self.record(Asked::Complete(fence.clone(), outcome.clone()));
        self.locked(|state| {
            let (task, _, stored) = &state.tasks[&fence.id];
            let task = match task.clone().complete(&fence, outcome.clone()) {
                Ok(change) => state.commit(change),
                Err(Refusal::AlreadyEnded(_)) if stored.as_ref() == Some(&outcome) => task.clone(),
                Err(refusal) => return Err(refusal.into()),
            };
            if state.faults.complete_answers_lost > 0 {
                state.faults.complete_answers_lost -= 1;
                return lost();
            }
            Ok(task)
        })
    }

    async fn detach(&self, _: &WorkerId) -> Result<(), Error> {
        self.record(Asked::Detach);
        Ok(())
    }
}

/// A store behind its gRPC server, and a worker with it.
pub struct World {
    pub store: Arc<Store>,
    links: Links,
    server: Mutex<Option<DropGuard>>,
    gateways: Mutex<Vec<Arc<CallsClient>>>,
    tasks: TaskTracker,
    pub drain: CancellationToken,
}

impl World {
    pub fn new() -> Self {
        let world = Self {
            store: Arc::default(),
            links: Links::default(),
            server: Mutex::default(),
            gateways: Mutex::default(),
            tasks: TaskTracker::new(),
            drain: CancellationToken::new(),
        };
        world.serve();
        world
    }

    /// Starts the store's server, instead of the one before.
    pub fn serve(&self) {
        let stop = CancellationToken::new();
        let listener = self.links.listen("store");
        let server = Server::new(self.target("store").token, PAYLOAD_BYTES_MAX, stop.clone()).work(self.store.clone());
        self.tasks.spawn(server.serve(listener));
        *self.server.lock().unwrap() = Some(stop.drop_guard());
    }

    /// The store is away.
    pub fn stop_serving(&self) {
        *self.server.lock().unwrap() = None;
    }

    pub fn target(&self, name: &str) -> Target {
        Target {
            links: self.links.clone(),
            urls: vec![format!("memory://{name}")],
            token: ServiceToken::new(["0123456789abcdef"]).unwrap(),
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        }
    }

    pub fn config(&self) -> Config {
        let listening = Listening { listener: self.links.listen("worker"), advertise_url: "memory://worker".into() };
        Config { name: Some("w".into()), calls: Some(listening), ..Config::new(self.target("store")) }
    }

    /// Runs a worker.
    pub fn run(&self, worker: Worker) -> JoinHandle<Result<(), longhaul_worker::Error>> {
        self.tasks.spawn(worker.run(self.drain.clone()))
    }

    /// A gateway's way to the worker: a connection of its own, for as long as the world lasts.
    pub fn calls(&self) -> Arc<CallsClient> {
        let calls = Arc::new(CallsClient::new(&self.target("worker")).unwrap());
        self.gateways.lock().unwrap().push(calls.clone());
        calls
    }
}
