//! A task-store in memory, a worker that does what a test says, and gateways before them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use longhaul_bus::{Bus, Control as ControlHint, Hint, LocalBus};
use longhaul_core::audit::Sealed;
use longhaul_core::{
    Amount, BudgetKey, Caller, Change, ClientCapabilities, Clock as _, Fence, InputKey, InputRequest, InputResponse,
    Lease, LeaseToken, LimitScope, LogLevel, LogMessage, NewTask, Outcome, Phase, Principal, Progress, PromptDef,
    Question, Refusal, ResourceDef, Scope, Target, Task, TaskId, TaskSupport, TemplateDef, TenantId, TestClock,
    Timestamp, ToolDef, TraceContext, TtlLimits, WorkerId, WorkerInfo,
};
use longhaul_gateway::{Authenticator, Config, Credential, Gateway, Pace, Parts, Status};
use longhaul_mcp::seal::Keyring;
use longhaul_policy::budget::{BudgetRules, Budgets};
use longhaul_policy::{Checks, Recorder};
use longhaul_rpc::{
    Answers, Asked, AuditChain, AuditRange, Batch, BudgetLease, BudgetReturn, BudgetState, BudgetWish, CallEvent,
    CallEvents, Calls, Changes, Control, CredentialChange, CredentialInfo, Error, Invocation, KeyDigest, Links,
    NewCredential, Page, Position, Resume, SESSIONS_PAGE, SUBSCRIPTIONS_MAX, Server, ServiceToken, SessionNote,
    SessionPosition, Stopped, Switch, Switched, TaskCount, Tasks,
};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{Client, within};
use crate::modern::Modern;

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
    /// What is known of sessions, and whose they are.
    pub notes: Mutex<HashMap<String, (Principal, SessionNote)>>,
    pub notes_max: AtomicUsize,
    pub subscriptions: Mutex<HashMap<String, Vec<String>>>,
    /// What is leased of budgets; there is one window.
    pub taken: Mutex<BTreeMap<BudgetKey, Amount>>,
    /// What the gateways charge.
    pub rules: BudgetRules,
    /// What the audit log was told.
    pub recorded: Mutex<Vec<Batch>>,
    /// Answers that were taken, and to which question of which task.
    pub answers: Mutex<Vec<(TaskId, u32, InputResponse)>>,
    /// Which stream carries the questions of a task, and until when.
    pub carried: Mutex<HashMap<TaskId, (String, Instant)>>,
    /// Since when, if they wait for results.
    since: Mutex<HashMap<(TaskId, String), Option<Instant>>>,
    /// To which stream, opened then, the one that carries gives way.
    heirs: Mutex<HashMap<TaskId, (String, Instant)>>,
    pub reads: AtomicUsize,
    /// The last change of each.
    pub credentials: Mutex<Vec<CredentialChange>>,
    pub switches: Mutex<Vec<Switch>>,
    /// Fails, and nobody knows what was done.
    pub down: AtomicBool,
    /// Takes nothing on, and says so.
    pub full: AtomicBool,
    pub silent: AtomicBool,
    pub open_max: AtomicUsize,
    pub live_max: AtomicUsize,
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

    fn note(&self, owner: &Principal, session: &str, write: impl FnOnce(&mut SessionNote)) -> Result<bool, Error> {
        self.up()?;
        let mut notes = self.notes.lock().unwrap();
        let others = notes.iter().filter(|(other, (whose, _))| whose == owner && *other != session).count();
        if others >= self.notes_max.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let changed_at = self.clock.now();
        let none = SessionNote { session: session.to_owned(), ended: false, log_level: None, changed_at };
        let (_, note) = notes.entry(session.to_owned()).or_insert_with(|| (owner.clone(), none));
        write(note);
        note.changed_at = changed_at;
        Ok(true)
    }

    fn change(&self, id: TaskId, verb: impl FnOnce(Task) -> Result<Change, Refusal>) -> Result<Task, Error> {
        let mut tasks = self.tasks.lock().unwrap();
        let slot = tasks.get_mut(&id).unwrap();
        let change = verb(slot.0.clone())?;
        *slot = (change.task.clone(), change.outcome);
        self.answers.lock().unwrap().extend(change.responses.into_iter().map(|(nth, response)| (id, nth, response)));
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

    /// Its worker asks these questions.
    pub fn ask(&self, id: &str, questions: &[(&str, Question)]) {
        let id = id.parse().unwrap();
        let request =
            |(key, question): &(&str, Question)| InputRequest { key: (*key).into(), question: question.clone() };
        let (requests, until) = (questions.iter().map(request).collect(), Timestamp::from_micros(i64::MAX));
        self.change(id, |task| task.request_input(&Self::fence(id), requests, until)).unwrap();
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

    /// A credential has these keys now.
    pub fn credential(&self, id: &str, principal: &Principal, keys: &[(&str, Option<Timestamp>)]) {
        let Caller::Agent(agent) = principal.caller.clone() else { panic!("an agent's") };
        let mut all = self.credentials.lock().unwrap();
        let number = all.iter().map(|change| change.number).max().unwrap_or_default() + 1;
        all.retain(|change| change.id != id);
        let keys = keys.iter().map(|(key, until)| (Sha256::digest(key).into(), *until)).collect();
        all.push(CredentialChange { number, id: id.into(), tenant: principal.tenant.clone(), agent, keys });
        drop(all);
        self.bus.publish(Hint::Control(ControlHint::Credentials));
    }

    /// A scope is switched off, or on.
    pub fn switch(&self, scope: Scope, off: bool, why: &str) {
        let mut all = self.switches.lock().unwrap();
        let number = all.iter().map(|switch| switch.number).max().unwrap_or_default() + 1;
        all.retain(|switch| switch.scope != scope);
        all.push(Switch { number, scope, off, why: why.into(), changed_at: self.clock.now() });
        drop(all);
        self.bus.publish(Hint::Control(ControlHint::Switches));
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
        if tasks.len() >= self.live_max.load(Ordering::SeqCst) {
            return Err(Refusal::TaskLimit { scope: LimitScope::Tenant, limit: 1000 }.into());
        }
        self.created.lock().unwrap().push(new.clone());
        let now = self.clock.now();
        let until = Timestamp::from_micros(i64::MAX);
        let lease = new.claimed.map(|claimed| Lease { worker: claimed.worker, token: claimed.token, until });
        let task = Task {
            id: new.id,
            owner: new.owner,
            tool: new.tool,
            version: 1,
            attempt: u32::from(lease.is_some()),
            phase: lease.map_or(Phase::Queued, Phase::Running),
            status_message: None,
            progress: None,
            progress_token: new.progress_token,
            session: new.session,
            created_at: now,
            updated_at: now,
            ttl_ms: TtlLimits::default().grant(new.ttl),
            client: new.client,
            retry: longhaul_core::Retry::default(),
            inputs: Vec::new(),
            reserved: None,
            spent: None,
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

    async fn respond(
        &self,
        principal: &Principal,
        id: TaskId,
        answers: Vec<(InputKey, InputResponse)>,
    ) -> Result<Task, Error> {
        let (task, _) = self.owned(principal, id)?;
        match self.change(id, |task| task.respond(answers)) {
            Err(Error::Refused(Refusal::NotAsked)) => Ok(task),
            other => other,
        }
    }

    async fn carry(
        &self,
        principal: &Principal,
        id: TaskId,
        stream: &str,
        age: Option<Duration>,
        lease: Duration,
    ) -> Result<bool, Error> {
        self.owned(principal, id)?;
        let now = Instant::now();
        let (mut carried, mut heirs) = (self.carried.lock().unwrap(), self.heirs.lock().unwrap());
        let opened = age.map(|age| now - age);
        let heir = heirs.get(&id).filter(|(by, _)| by != stream).map(|(_, opened)| *opened);
        match carried.get(&id).filter(|(_, until)| *until > now) {
            Some((by, _)) if by != stream => {
                // A test that takes the claim itself says not since when: it is as if it had long had it.
                let since = self.since.lock().unwrap().get(&(id, by.clone())).copied();
                let is_newer = since.is_none_or(|since| opened > since) && opened > heir && !lease.is_zero();
                if let Some(opened) = opened.filter(|_| is_newer) {
                    heirs.insert(id, (stream.to_owned(), opened));
                }
                return Ok(false);
            }
            Some(_) if heir.is_some() => drop(carried.remove(&id)),
            None if heir > opened => return Ok(false),
            _ if lease.is_zero() => drop(carried.remove(&id)),
            held => {
                if held.is_none() {
                    self.since.lock().unwrap().insert((id, stream.to_owned()), age.map(|_| now));
                    heirs.remove(&id);
                }
                carried.insert(id, (stream.to_owned(), now + lease));
                return Ok(true);
            }
        }
        Ok(lease.is_zero())
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
    async fn end_session(&self, owner: &Principal, session: &str, _expires_at: Timestamp) -> Result<bool, Error> {
        self.note(owner, session, |note| note.ended = true)
    }

    async fn set_log_level(
        &self,
        owner: &Principal,
        session: &str,
        level: LogLevel,
        _expires_at: Timestamp,
    ) -> Result<bool, Error> {
        self.note(owner, session, |note| note.log_level = Some(level))
    }

    async fn sessions(&self, after: &SessionPosition) -> Result<Vec<SessionNote>, Error> {
        self.up()?;
        let mut notes: Vec<_> = self.notes.lock().unwrap().values().map(|(_, note)| note.clone()).collect();
        notes.sort_by_key(|note| SessionPosition::from(note));
        Ok(notes.into_iter().filter(|note| SessionPosition::from(note) > *after).take(SESSIONS_PAGE).collect())
    }

    async fn subscribe(
        &self,
        session: &str,
        uri: &str,
        subscribed: bool,
        _expires_at: Timestamp,
    ) -> Result<bool, Error> {
        self.up()?;
        let mut all = self.subscriptions.lock().unwrap();
        let uris = all.entry(session.to_owned()).or_default();
        uris.retain(|other| other != uri);
        let has_room = uris.len() < SUBSCRIPTIONS_MAX;
        if subscribed && has_room {
            uris.push(uri.to_owned());
        }
        Ok(!subscribed || has_room)
    }

    async fn lease_budget(&self, wishes: Vec<BudgetWish>) -> Result<Vec<BudgetLease>, Error> {
        self.up()?;
        let (now, mut taken) = (self.clock.now(), self.taken.lock().unwrap());
        Ok(wishes
            .into_iter()
            .map(|BudgetWish { key, window, limit, demand, ahead, .. }| {
                let ((starts_at, ends_at), taken) = (window.around(now), taken.entry(key).or_default());
                let granted = limit.without(*taken).share(demand, ahead);
                *taken = taken.plus(granted);
                BudgetLease { starts_at, ends_at, now, granted, left: limit.without(*taken) }
            })
            .collect())
    }

    async fn return_budget(&self, returns: Vec<BudgetReturn>) -> Result<(), Error> {
        self.up()?;
        let mut taken = self.taken.lock().unwrap();
        for BudgetReturn { from, delta, .. } in returns {
            let taken = taken.get_mut(&from.key).unwrap();
            taken.units = taken.units.checked_add_signed(delta.units).unwrap();
            taken.micro_usd = taken.micro_usd.checked_add_signed(delta.micro_usd).unwrap();
        }
        Ok(())
    }

    async fn budgets(&self, _: Option<BudgetKey>) -> Result<Vec<BudgetState>, Error> {
        Err(Error::Fault("a gateway has no use for it".into()))
    }

    async fn subscriptions(&self, session: &str) -> Result<Vec<String>, Error> {
        self.up()?;
        Ok(self.subscriptions.lock().unwrap().get(session).cloned().unwrap_or_default())
    }

    async fn create_credential(&self, _: NewCredential) -> Result<Option<CredentialInfo>, Error> {
        Err(Error::Fault("a gateway creates none".into()))
    }

    async fn rotate_credential(
        &self,
        _: &str,
        _: KeyDigest,
        _: Duration,
        _: Option<Duration>,
    ) -> Result<Option<CredentialInfo>, Error> {
        Err(Error::Fault("a gateway rotates none".into()))
    }

    async fn revoke_credential(&self, _: &str) -> Result<Option<CredentialInfo>, Error> {
        Err(Error::Fault("a gateway revokes none".into()))
    }

    async fn credentials(&self, _: Option<&str>, _: &str) -> Result<Vec<CredentialInfo>, Error> {
        Err(Error::Fault("a gateway lists none".into()))
    }

    async fn credential_changes(&self, since: u64) -> Result<Changes<CredentialChange>, Error> {
        self.up()?;
        let all = self.credentials.lock().unwrap();
        let changes = all.iter().filter(|change| change.number > since).cloned().collect();
        Ok(Changes { changes, forgotten: 0 })
    }

    async fn set_switch(&self, _: &Scope, _: bool, _: &str) -> Result<Switched, Error> {
        Err(Error::Fault("a gateway sets none".into()))
    }

    async fn switch_changes(&self, since: u64) -> Result<Changes<Switch>, Error> {
        self.up()?;
        let all = self.switches.lock().unwrap();
        let changes = all.iter().filter(|switch| switch.number > since).cloned().collect();
        Ok(Changes { changes, forgotten: 0 })
    }

    async fn stop_running(&self, _: &Scope) -> Result<Stopped, Error> {
        Err(Error::Fault("a gateway stops none".into()))
    }

    async fn record(&self, batch: Batch) -> Result<(), Error> {
        self.up()?;
        let mut recorded = self.recorded.lock().unwrap();
        if !recorded.iter().any(|other| other.id == batch.id) {
            recorded.push(batch);
        }
        Ok(())
    }

    async fn audit_chains(&self, _from: Option<&TenantId>) -> Result<Vec<AuditChain>, Error> {
        unreachable!("a gateway does not read the audit log")
    }

    async fn audit_rows(&self, _range: AuditRange) -> Result<Vec<Sealed>, Error> {
        unreachable!("a gateway does not read the audit log")
    }
}

/// A worker. What has `wait` in its name does what a test says; any other tool answers with its arguments.
#[derive(Default)]
pub struct Worker {
    pub calls: Mutex<Vec<Invocation>>,
    pub resumes: Mutex<Vec<Resume>>,
    /// What runs that are on the line were answered.
    pub responses: Mutex<Vec<(String, Answers)>>,
    /// What runs that wanted to be tasks were told.
    pub became: Mutex<Vec<(String, Option<Task>)>>,
    /// Says that it does not know of a run that became a task.
    pub forgets: AtomicBool,
    /// Takes no calls.
    pub full: AtomicBool,
    waiting: Mutex<Vec<Run>>,
    /// Runs that have asked: whose they are, and how often.
    asking: Arc<Mutex<HashMap<String, (Principal, u32)>>>,
    watching: Mutex<HashMap<String, Vec<mpsc::UnboundedSender<()>>>>,
    arrived: Notify,
}

/// A call in the hands of a test.
pub struct Run {
    pub call: Invocation,
    pub say: mpsc::UnboundedSender<Result<CallEvent, Error>>,
    pub stopped: CancellationToken,
    asking: Arc<Mutex<HashMap<String, (Principal, u32)>>>,
}

impl Run {
    pub fn progress(&self, progress: f64) {
        let progress = Progress { progress, total: None, message: None };
        self.say.send(Ok(CallEvent::Progress(progress))).unwrap();
    }

    pub fn log(&self, level: LogLevel, data: &str) {
        let message = LogMessage { level, logger: None, data: data.to_owned().into() };
        self.say.send(Ok(CallEvent::Log(message))).unwrap();
    }

    pub fn end(&self, outcome: Outcome) {
        self.say.send(Ok(CallEvent::Outcome(outcome))).unwrap();
    }

    /// Asks for the first or the next time. To be parked, the run is dropped after that.
    pub fn ask(&self, run: &str, round: u32, questions: &[(&str, Question)]) {
        self.asking.lock().unwrap().insert(run.to_owned(), (self.call.principal.clone(), round));
        let request =
            |(key, question): &(&str, Question)| InputRequest { key: (*key).into(), question: question.clone() };
        let requests = questions.iter().map(request).collect();
        self.say.send(Ok(CallEvent::Asked(Asked { run: run.into(), round, requests }))).unwrap();
    }
}

impl Worker {
    /// The next `wait` call that arrives, or comes back.
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

    fn scripted(&self, call: Invocation) -> CallEvents {
        let (say, said) = mpsc::unbounded_channel();
        let stopped = CancellationToken::new();
        let guard = stopped.clone().drop_guard();
        self.waiting.lock().unwrap().push(Run { call, say, stopped, asking: self.asking.clone() });
        self.arrived.notify_waiters();
        futures::stream::unfold((said, guard), async |(mut said, guard)| Some((said.recv().await?, (said, guard))))
            .boxed()
    }

    /// How many watch a resource.
    pub fn watchers(&self, uri: &str) -> usize {
        let mut watching = self.watching.lock().unwrap();
        let Some(watchers) = watching.get_mut(uri) else { return 0 };
        watchers.retain(|watcher| !watcher.is_closed());
        watchers.len()
    }

    /// A resource changes.
    pub fn update(&self, uri: &str) {
        for watcher in self.watching.lock().unwrap().get(uri).into_iter().flatten() {
            // Who no longer watches does not hear.
            let _ = watcher.send(());
        }
    }

    /// All watches end, as when a worker restarts.
    pub fn end_watches(&self) {
        self.watching.lock().unwrap().clear();
    }
}

#[async_trait]
impl Calls for Worker {
    async fn invoke(&self, call: Invocation) -> Result<CallEvents, Error> {
        self.calls.lock().unwrap().push(call.clone());
        if self.full.load(Ordering::SeqCst) {
            return Err(Error::NotBegun("full".into()));
        }
        if call.target.name().contains("wait") {
            return Ok(self.scripted(call));
        }
        let arguments = String::from_utf8(call.arguments.to_vec()).unwrap();
        let outcome = match &call.target {
            Target::Tool(name) => {
                let is_error = name == "fail";
                let content = r#"[{"type":"text","text":"ok"}]"#;
                let body = format!(r#"{{"content":{content},"structuredContent":{arguments},"isError":{is_error}}}"#);
                Outcome::Result { is_error, body: body.into() }
            }
            Target::Prompt(_) => {
                let body = format!(
                    r#"{{"messages":[{{"role":"user","content":{{"type":"text","text":{}}}}}]}}"#,
                    serde_json::Value::String(arguments)
                );
                Outcome::Result { is_error: false, body: body.into() }
            }
            Target::Resource(uri) if uri.ends_with("missing") => {
                let data = serde_json::json!({"uri": uri}).to_string();
                let (code, message) = (-32002, "Resource not found".into());
                Outcome::Error(longhaul_core::CallError { code, message, data: Some(data.into()) })
            }
            Target::Resource(uri) => {
                let body = serde_json::json!({"contents": [{"uri": uri, "text": "t"}]}).to_string();
                Outcome::Result { is_error: false, body: body.into() }
            }
            Target::CompletePrompt(_) | Target::CompleteTemplate(_) => {
                let body = r#"{"completion":{"values":["paris"],"hasMore":false}}"#;
                Outcome::Result { is_error: false, body: body.into() }
            }
        };
        Ok(futures::stream::once(async { Ok(CallEvent::Outcome(outcome)) }).boxed())
    }

    async fn resume(&self, resume: Resume) -> Result<CallEvents, Error> {
        self.resumes.lock().unwrap().push(resume.clone());
        let known = self.asking.lock().unwrap().remove(&resume.run);
        let Resume { principal, round, client, line, .. } = resume;
        if known != Some((principal.clone(), round)) {
            return Err(Refusal::NotFound.into());
        }
        let (target, arguments) = (Target::Tool("wait".into()), Bytes::from_static(b"{}"));
        let (park, may_become_task) = (Some(Duration::ZERO), false);
        let trace = TraceContext::default();
        let call = Invocation { principal, target, arguments, client, line, park, may_become_task, trace };
        Ok(self.scripted(call))
    }

    async fn respond(&self, principal: &Principal, run: &str, answers: Answers) -> Result<(), Error> {
        if self.asking.lock().unwrap().get(run).is_none_or(|(owner, _)| owner != principal) {
            return Err(Refusal::NotFound.into());
        }
        self.responses.lock().unwrap().push((run.to_owned(), answers));
        Ok(())
    }

    async fn became(&self, run: &str, task: Option<Task>) -> Result<(), Error> {
        if self.forgets.load(Ordering::SeqCst) {
            return Err(Refusal::NotFound.into());
        }
        self.became.lock().unwrap().push((run.to_owned(), task));
        Ok(())
    }

    async fn watch(&self, uri: &str) -> Result<BoxStream<'static, Result<(), Error>>, Error> {
        let (tell, mut told) = mpsc::unbounded_channel();
        tell.send(()).unwrap();
        self.watching.lock().unwrap().entry(uri.to_owned()).or_default().push(tell);
        Ok(futures::stream::poll_fn(move |cx| told.poll_recv(cx).map(|item| item.map(Ok))).boxed())
    }
}

pub fn tool(name: &str, task_support: TaskSupport) -> ToolDef {
    let definition = serde_json::json!({"name": name, "description": "d", "inputSchema": {"type": "object"}});
    ToolDef {
        name: name.into(),
        task_support,
        decides: false,
        retry: longhaul_core::Retry::default(),
        needs: ClientCapabilities::default(),
        definition: definition.to_string().into(),
    }
}

pub fn form(field: &str) -> Question {
    let schema = serde_json::json!({"type": "object", "properties": {field: {"type": "string"}}, "required": [field]});
    Question::Form { message: format!("Which {field}?"), schema: schema.to_string().into() }
}

/// All that a client can be asked.
pub fn askable() -> ClientCapabilities {
    ClientCapabilities { elicitation_form: true, elicitation_url: true, sampling: true, roots: true }
}

pub fn worker_info(name: &str, url: Option<&str>, tools: Vec<ToolDef>) -> WorkerInfo {
    let id = WorkerId { name: name.into(), incarnation: "1".into() };
    WorkerInfo {
        id,
        url: url.map(str::to_owned),
        tools,
        prompts: Vec::new(),
        resources: Vec::new(),
        templates: Vec::new(),
        completes: false,
    }
}

/// The worker of a world, with prompts, resources and templates.
pub fn with_everything() -> WorkerInfo {
    let prompt = |name: &str| PromptDef {
        name: name.into(),
        definition: serde_json::json!({"name": name, "arguments": [{"name": "city"}]}).to_string().into(),
    };
    let resource = |uri: &str| ResourceDef {
        uri: uri.into(),
        definition: serde_json::json!({"uri": uri, "name": uri}).to_string().into(),
    };
    let template = |uri: &str| TemplateDef {
        uri_template: uri.into(),
        definition: serde_json::json!({"uriTemplate": uri, "name": uri}).to_string().into(),
    };
    WorkerInfo {
        prompts: ["greet", "wait"].map(prompt).into(),
        resources: ["test://one", "test://two", "test://wait"].map(resource).into(),
        templates: vec![template("test://of/{id}")],
        completes: true,
        ..worker_info("w", Some("memory://w"), all_tools())
    }
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
            store_away: ms(400),
            answer_kept: Duration::from_secs(5),
            worker_wait: ms(300),
            watch_again: ms(50),
            carry: ms(1000),
            carry_again: ms(300),
            carry_grace: ms(200),
        },
        ..Config::default()
    }
}

impl World {
    pub async fn start() -> Self {
        Self::with(config(), Arc::new(LocalBus::new())).await
    }

    pub async fn with(config: Config, bus: Arc<dyn Bus>) -> Self {
        Self::with_budgets(config, bus, BudgetRules::default()).await
    }

    pub async fn with_budgets(config: Config, bus: Arc<dyn Bus>, rules: BudgetRules) -> Self {
        let store = Arc::new(Store {
            clock: TestClock::at(Timestamp::from_micros(1_764_500_000_000_000)),
            bus: bus.clone(),
            tasks: Mutex::default(),
            created: Mutex::default(),
            workers: Mutex::default(),
            notes: Mutex::default(),
            notes_max: AtomicUsize::new(usize::MAX),
            subscriptions: Mutex::default(),
            taken: Mutex::default(),
            rules,
            recorded: Mutex::default(),
            answers: Mutex::default(),
            carried: Mutex::default(),
            since: Mutex::default(),
            heirs: Mutex::default(),
            credentials: Mutex::default(),
            switches: Mutex::default(),
            reads: AtomicUsize::new(0),
            down: AtomicBool::new(false),
            full: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            open_max: AtomicUsize::new(usize::MAX),
            live_max: AtomicUsize::new(usize::MAX),
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

    /// A client of 2026-07-28, of the first gateway.
    pub fn modern(&self) -> Modern {
        Modern::new(self.a.at, ALICE)
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
        budgets: (!store.rules.rules.is_empty()).then(|| Budgets::new(store.rules.clone(), store.clone()).unwrap()),
        clock: Arc::new(StoreClock(store.clone())),
        checks: Checks::default(),
        recorder: Arc::new(Recorder::new()),
    }
}

/// Those who show a key of ours.
pub fn keys() -> Authenticator {
    let credential =
        |token: &str, principal| Credential { sha256: Sha256::digest(token).into(), principal: Arc::new(principal) };
    Authenticator::Bearer([credential(ALICE, alice()), credential(BOB, bob())].into())
}

async fn start(
    tasks: &TaskTracker,
    config: &Config,
    store: &Arc<Store>,
    bus: &Arc<dyn Bus>,
    links: &Links,
    token: &ServiceToken,
) -> Running {
    let gateway = Gateway::build(config.clone(), parts(store, bus, links, token, keys()));
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
