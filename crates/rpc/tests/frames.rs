//! What is said on one side of the seam is what is heard on the other. Both sides of a test know what is said: a role that
//! hears something else panics, and its caller gets a fault.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use longhaul_core::audit::{Entry, Link, Record, Refused, RefusedBy, Sealed};
use longhaul_core::{
    Amount, BudgetKey, BudgetWindow, Caller, Check, Claimed, ClientCapabilities, Delta, Denied, Fence, Input, InputKey,
    InputRequest, InputResponse, InputState, Lease, LeaseToken, Limit, LogLevel, LogMessage, NewTask, OnInterrupt,
    Outcome, Phase, Principal, Progress, PromptDef, Question, Refusal, Reserved, ResourceDef, Retry, Scope, Target,
    Task, TaskId, TaskSupport, TemplateDef, TenantId, Timestamp, ToolDef, TraceContext, TtlWish, Window, WorkerId,
    WorkerInfo,
};
use longhaul_rpc::client::{CallsClient, ControlClient, TasksClient, WorkClient};
use longhaul_rpc::{
    Answers, Asked, Assignment, AuditChain, AuditRange, Batch, BudgetLease, BudgetReturn, BudgetState, BudgetWish,
    CallEvent, CallEvents, Calls, Changes, Claim, Control, CredentialChange, CredentialInfo, Directive, Directives,
    Error, Invocation, KeyDigest, Line, Links, NewCredential, Page, Position, Report, Resume, Server, ServiceToken,
    SessionNote, SessionPosition, Stopped, Switch, Switched, TaskCount, Tasks, Work,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const MINUTE: Duration = Duration::from_secs(60);
const LATER: Timestamp = Timestamp::from_micros(i64::MAX);
const RUN: &str = "0123456789abcdef";

fn json(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn id(bits: u128) -> TaskId {
    TaskId::from_random(bits)
}

fn who() -> Principal {
    Principal { tenant: TenantId::new("t"), caller: Caller::Person { app: "a".into(), person: "p".into() } }
}

fn client() -> ClientCapabilities {
    ClientCapabilities { elicitation_form: true, elicitation_url: false, sampling: true, roots: false }
}

fn claimed() -> Claimed {
    Claimed { worker: WorkerId { name: "w".into(), incarnation: "1".into() }, token: LeaseToken("born".into()) }
}

fn amount() -> Amount {
    Amount { units: 3, micro_usd: u64::MAX }
}

fn key() -> BudgetKey {
    BudgetKey { budget: "b".into(), tenant: "t".into(), holder: String::new() }
}

fn reserved() -> Reserved {
    let other = BudgetKey { holder: "person:1:a:1:p".into(), ..key() };
    let from = [(key(), 0), (other, 7)].map(|(key, at)| BudgetWindow { key, starts_at: Timestamp::from_micros(at) });
    Reserved { amount: amount(), from: from.into() }
}

fn limits() -> [Limit; 3] {
    [Limit::NOTHING, Limit { units: Some(100), micro_usd: None }, Limit { units: None, micro_usd: Some(u64::MAX) }]
}

fn wishes() -> Vec<BudgetWish> {
    let wish = |(window, limit)| BudgetWish {
        id: "i".into(),
        key: key(),
        window,
        limit,
        demand: Amount::ZERO,
        ahead: amount(),
    };
    Window::ALL.into_iter().zip(limits()).map(wish).collect()
}

fn leases() -> Vec<BudgetLease> {
    let [starts_at, ends_at, now] = [-1, 7, 5].map(Timestamp::from_micros);
    limits().map(|left| BudgetLease { starts_at, ends_at, now, granted: amount(), left }).into()
}

fn returns() -> Vec<BudgetReturn> {
    let back = |delta| BudgetReturn { id: "i".into(), from: reserved().from.remove(1), delta };
    [Delta { units: -1, micro_usd: i64::MAX }, Delta { units: 1, micro_usd: i64::MIN }].map(back).into()
}

fn states() -> Vec<BudgetState> {
    let [starts_at, ends_at] = [-1, 7].map(Timestamp::from_micros);
    limits().map(|limit| BudgetState { key: key(), starts_at, ends_at, limit, taken: amount() }).into()
}

fn fence() -> Fence {
    Fence { id: id(1), attempt: 7, token: LeaseToken("x".into()) }
}

fn questions() -> [Question; 4] {
    [
        Question::Form { message: "Which\0?".into(), schema: json(" {\"type\" : \"object\",\"n\":1e2} ") },
        Question::Url { message: "Look".into(), url: "https://longhaul.dev/é".into() },
        Question::Sample { params: json("{\"maxTokens\":123456789012345678901234567890}") },
        Question::Roots,
    ]
}

fn requests() -> Vec<InputRequest> {
    (0..).zip(questions()).map(|(at, question)| InputRequest { key: format!("k-{at}"), question }).collect()
}

fn responses() -> Vec<InputResponse> {
    vec![
        InputResponse::Accept(None),
        InputResponse::Accept(Some(Bytes::new())),
        InputResponse::Accept(Some(json(" {\"a\":1e2}"))),
        InputResponse::Decline,
        InputResponse::Cancel,
        InputResponse::Result(json("{\"roots\":[]}")),
    ]
}

fn keyed() -> Vec<(InputKey, InputResponse)> {
    let key = |at: u32| if at.is_multiple_of(2) { InputKey::Named(format!("k-{at}")) } else { InputKey::Nth(at) };
    (0..).map(key).zip(responses()).collect()
}

fn named() -> Answers {
    (0..).map(|at| format!("k-{at}")).zip(responses()).collect()
}

fn numbered() -> Vec<(u32, InputResponse)> {
    (1..).zip(responses()).collect()
}

fn new_task() -> NewTask {
    NewTask {
        id: id(1),
        owner: who(),
        tool: "t".into(),
        arguments: json("{}"),
        ttl: TtlWish::Ms(5),
        progress_token: None,
        session: None,
        trace: trace(),
        client: client(),
        retry: Retry { on_interrupt: OnInterrupt::Resume, max_attempts: 7 },
        claimed: Some(claimed()),
        reserved: Some(reserved()),
    }
}

fn task() -> Task {
    let open = questions().map(|question| InputState::Open { question, until: Timestamp::from_micros(-5) });
    let states = open.into_iter().chain([InputState::Closed]);
    let Claimed { worker, token } = claimed();
    Task {
        id: id(1),
        owner: who(),
        tool: "t".into(),
        phase: Phase::Running(Lease { worker, token, until: LATER }),
        version: 3,
        attempt: 1,
        status_message: None,
        progress: None,
        progress_token: None,
        session: None,
        created_at: Timestamp::from_micros(0),
        updated_at: Timestamp::from_micros(0),
        ttl_ms: Some(5),
        client: client(),
        retry: Retry { on_interrupt: OnInterrupt::Requeue, max_attempts: u32::MAX },
        inputs: (0..).zip(states).map(|(at, state)| Input { key: format!("k-{at}"), state }).collect(),
        reserved: Some(reserved()),
        spent: Some(amount()),
    }
}

fn worker() -> WorkerInfo {
    let tool = |decides| ToolDef {
        name: format!("t{decides}"),
        task_support: TaskSupport::Required,
        decides,
        needs: if decides { client() } else { ClientCapabilities::default() },
        retry: if decides { Retry::default() } else { Retry { on_interrupt: OnInterrupt::Resume, max_attempts: 0 } },
        definition: json("{\"x\":1e2}"),
    };
    WorkerInfo {
        id: claimed().worker,
        url: None,
        tools: vec![tool(true), tool(false)],
        prompts: vec![PromptDef { name: "p".into(), definition: json("{\"name\":\"p\"}") }],
        resources: vec![ResourceDef { uri: "demo://a".into(), definition: json("{ }") }],
        templates: vec![TemplateDef { uri_template: "demo://{b}".into(), definition: json("{}") }],
        completes: true,
    }
}

fn targets() -> [Target; 5] {
    [
        Target::Tool("n".into()),
        Target::Prompt("n".into()),
        Target::Resource("demo://a".into()),
        Target::CompletePrompt("n".into()),
        Target::CompleteTemplate("demo://{b}".into()),
    ]
}

fn trace() -> TraceContext {
    TraceContext::new(Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), Some("a=b"), Some("k=v"))
}

fn call(target: Target) -> Invocation {
    Invocation {
        principal: who(),
        target,
        arguments: json("{\"a\":1e2}"),
        client: client(),
        line: Line { progress: true, log: Some(LogLevel::Notice) },
        park: Some(MINUTE),
        may_become_task: true,
        trace: trace(),
    }
}

fn resume() -> Resume {
    Resume {
        principal: who(),
        run: RUN.into(),
        round: 2,
        answers: named(),
        client: client(),
        line: Line { progress: false, log: None },
    }
}

fn words() -> Vec<CallEvent> {
    vec![
        CallEvent::Progress(Progress { progress: 0.5, total: Some(1.0), message: Some("half".into()) }),
        CallEvent::Log(LogMessage { level: LogLevel::Emergency, logger: Some("l".into()), data: json("[1e2]") }),
        CallEvent::Log(LogMessage { level: LogLevel::Debug, logger: None, data: json("null") }),
        CallEvent::Asked(Asked { run: RUN.into(), round: 1, requests: requests() }),
        CallEvent::Withdrawn(vec!["k-0".into(), "k-3".into()]),
        CallEvent::Spent(amount()),
        CallEvent::Becoming { run: RUN.into(), claimed: claimed() },
    ]
}

fn done() -> CallEvent {
    CallEvent::Outcome(Outcome::Result { is_error: false, body: json("{}") })
}

fn events(words: Vec<CallEvent>) -> CallEvents {
    stream::iter(words).map(Ok).boxed()
}

fn refusals() -> Vec<Refusal> {
    let denied = |retry_after| move |by| Refusal::Denied(Denied { by, message: "no: \"é".into(), retry_after });
    let others = [
        Refusal::KeyUsed("k \"é".into()),
        Refusal::TooManyQuestions,
        Refusal::Unaskable,
        Refusal::NotAsked,
        Refusal::JournalFull,
    ];
    others
        .into_iter()
        .chain(Check::ALL.map(denied(None)))
        .chain(Check::ALL.map(denied(Some(Duration::from_millis(1)))))
        .collect()
}

/// All roles at once.
struct Roles;

fn silent<T>() -> Result<T, Error> {
    Err(Error::Fault("not asked for in these tests".into()))
}

#[async_trait]
impl Tasks for Roles {
    async fn create(&self, new: NewTask) -> Result<Task, Error> {
        assert_eq!(new, new_task());
        Ok(task())
    }
    async fn get(&self, _: &Principal, _: TaskId) -> Result<Task, Error> {
        silent()
    }
    async fn result(&self, _: &Principal, _: TaskId) -> Result<(Task, Option<Outcome>), Error> {
        silent()
    }
    async fn list(&self, _: &Principal, _: Option<Position>, _: u32) -> Result<Page, Error> {
        Ok(Page { tasks: vec![task(), Task { inputs: Vec::new(), ..task() }], more: false })
    }
    async fn cancel(&self, _: &Principal, _: TaskId) -> Result<Task, Error> {
        silent()
    }
    async fn respond(
        &self,
        principal: &Principal,
        of: TaskId,
        answers: Vec<(InputKey, InputResponse)>,
    ) -> Result<Task, Error> {
        assert_eq!((principal, of, answers), (&who(), id(1), keyed()));
        Ok(task())
    }
    async fn carry(
        &self,
        principal: &Principal,
        of: TaskId,
        stream: &str,
        age: Option<Duration>,
        lease: Duration,
    ) -> Result<bool, Error> {
        assert_eq!((principal, of, stream), (&who(), id(1), "s"));
        assert!((lease, age) == (MINUTE, Some(Duration::from_micros(7))) || lease.is_zero() && age.is_none());
        Ok(lease.is_zero())
    }
    async fn changed(&self, _: Vec<(TaskId, u64)>) -> Result<Vec<(TaskId, u64)>, Error> {
        silent()
    }
    async fn tools(&self) -> Result<Vec<WorkerInfo>, Error> {
        Ok(vec![worker()])
    }
    async fn count(&self) -> Result<TaskCount, Error> {
        silent()
    }
}

#[async_trait]
impl Work for Roles {
    async fn attach(&self, info: WorkerInfo) -> Result<Directives, Error> {
        assert_eq!(info, worker());
        Ok(stream::iter([Directive::Answered(id(1)), Directive::Stop(id(2))]).boxed())
    }
    async fn claim(&self, _: Claim) -> Result<Vec<Assignment>, Error> {
        Ok(vec![Assignment { task: task(), arguments: json("{}"), trace: trace() }])
    }
    async fn heartbeat(&self, _: &WorkerId, _: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error> {
        Ok(vec![Directive::Stop(id(1)), Directive::Answered(id(2))])
    }
    async fn report(&self, _: Fence, _: Report) -> Result<Task, Error> {
        silent()
    }
    /// So many seconds refuse so.
    async fn request_input(&self, of: Fence, asked: Vec<InputRequest>, timeout: Duration) -> Result<Task, Error> {
        assert_eq!((of, asked), (fence(), requests()));
        match refusals().get(timeout.as_secs() as usize) {
            Some(refusal) => Err(refusal.clone().into()),
            None => {
                assert_eq!(timeout, MINUTE);
                Ok(task())
            }
        }
    }
    async fn withdraw(&self, of: Fence, keys: Vec<String>) -> Result<Task, Error> {
        assert_eq!((of, keys), (fence(), vec!["k-0".into(), "k-1".into()]));
        Ok(task())
    }
    async fn collect(&self, of: Fence, have: Vec<u32>) -> Result<Vec<(u32, InputResponse)>, Error> {
        assert_eq!(of, fence());
        Ok(numbered().into_iter().filter(|(nth, _)| !have.contains(nth)).collect())
    }
    async fn spend(&self, of: Fence, total: Amount) -> Result<Task, Error> {
        assert_eq!((of, total), (fence(), amount()));
        Ok(task())
    }
    async fn record(&self, of: Fence, nth: u32, entry: Bytes) -> Result<(), Error> {
        assert_eq!((of, nth, entry), (fence(), 7, Bytes::from_static(b"\0\xff")));
        Ok(())
    }
    async fn journal(&self, of: Fence, after: u32) -> Result<Vec<Bytes>, Error> {
        assert_eq!((of, after), (fence(), 3));
        Ok(vec![Bytes::from_static(b"\0"), Bytes::new()])
    }
    async fn complete(&self, _: Fence, _: Outcome) -> Result<Task, Error> {
        silent()
    }
    async fn detach(&self, _: &WorkerId) -> Result<(), Error> {
        silent()
    }
}

#[async_trait]
impl Calls for Roles {
    async fn invoke(&self, invocation: Invocation) -> Result<CallEvents, Error> {
        assert!(targets().into_iter().any(|target| call(target) == invocation), "{invocation:?}");
        // A prompt's run is parked after its words, any other ends.
        let last = (!matches!(invocation.target, Target::Prompt(_))).then(done);
        Ok(events(words().into_iter().chain(last).collect()))
    }
    async fn resume(&self, resumed: Resume) -> Result<CallEvents, Error> {
        assert_eq!(resumed, resume());
        Ok(events(vec![done()]))
    }
    async fn respond(&self, principal: &Principal, run: &str, answers: Answers) -> Result<(), Error> {
        assert_eq!((principal, answers), (&who(), named()));
        if run == RUN { Ok(()) } else { Err(Refusal::NotFound.into()) }
    }
    async fn became(&self, run: &str, task_or_not: Option<Task>) -> Result<(), Error> {
        assert!(task_or_not.is_none_or(|it| it == task()));
        if run == RUN { Ok(()) } else { Err(Refusal::NotFound.into()) }
    }
    async fn watch(&self, uri: &str) -> Result<BoxStream<'static, Result<(), Error>>, Error> {
        match uri {
            "demo://a" => Ok(stream::iter([Ok(()), Ok(()), Ok(())]).boxed()),
            "demo://broken" => Ok(stream::iter([Ok(()), Err(Error::Unavailable("gone".into()))]).boxed()),
            _ => Err(Refusal::NotFound.into()),
        }
    }
}

#[async_trait]
impl Control for Roles {
    async fn end_session(&self, owner: &Principal, session: &str, expires_at: Timestamp) -> Result<bool, Error> {
        assert_eq!((owner, expires_at), (&who(), LATER));
        Ok(session == "s")
    }
    async fn set_log_level(
        &self,
        owner: &Principal,
        session: &str,
        level: LogLevel,
        expires_at: Timestamp,
    ) -> Result<bool, Error> {
        assert_eq!((owner, level, expires_at), (&who(), LogLevel::Alert, LATER));
        Ok(session == "s")
    }
    async fn sessions(&self, after: &SessionPosition) -> Result<Vec<SessionNote>, Error> {
        Ok(notes().into_iter().filter(|note| SessionPosition::from(note) > *after).collect())
    }
    async fn subscribe(
        &self,
        session: &str,
        uri: &str,
        subscribed: bool,
        expires_at: Timestamp,
    ) -> Result<bool, Error> {
        assert_eq!((session, uri, expires_at), ("s", "demo://é", LATER));
        Ok(subscribed)
    }
    async fn subscriptions(&self, session: &str) -> Result<Vec<String>, Error> {
        Ok(vec![session.to_owned(), "demo://é".to_owned()])
    }
    async fn record(&self, recorded: Batch) -> Result<(), Error> {
        assert_eq!(recorded, batch());
        Ok(())
    }
    async fn audit_chains(&self, after: Option<&TenantId>) -> Result<Vec<AuditChain>, Error> {
        Ok(if after == Some(&TenantId::new("a")) { Vec::new() } else { vec![chain()] })
    }
    async fn audit_rows(&self, range: AuditRange) -> Result<Vec<Sealed>, Error> {
        assert_eq!(range, AuditRange { tenant: TenantId::new(""), after: 7, since: Some(LATER) });
        Ok(sealed())
    }
    async fn create_credential(&self, new: NewCredential) -> Result<Option<CredentialInfo>, Error> {
        let has_room = new == new_credential(None);
        assert!(has_room || new == new_credential(Some(MINUTE)), "{new:?}");
        Ok(has_room.then(credential))
    }
    async fn rotate_credential(
        &self,
        id: &str,
        sha256: KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Result<Option<CredentialInfo>, Error> {
        assert_eq!((sha256, overlap, expires_in), ([9; 32], MINUTE, (id == "c").then_some(2 * MINUTE)));
        Ok((id == "c").then(credential))
    }
    async fn revoke_credential(&self, id: &str) -> Result<Option<CredentialInfo>, Error> {
        Ok((id == "c").then(credential))
    }
    async fn credentials(&self, tenant: Option<&str>, after: &str) -> Result<Vec<CredentialInfo>, Error> {
        assert_eq!(after, "b");
        Ok(vec![credential(); if tenant.is_some() { 1 } else { 2 }])
    }
    async fn credential_changes(&self, since: u64) -> Result<Changes<CredentialChange>, Error> {
        assert_eq!(since, u64::MAX);
        Ok(credential_changes())
    }
    async fn set_switch(&self, scope: &Scope, off: bool, why: &str) -> Result<Switched, Error> {
        let at = scopes().iter().position(|known| known == scope).unwrap();
        assert_eq!((off, why), (at != 1, "because é"));
        Ok([Switched::Changed, Switched::Same, Switched::Full][at])
    }
    async fn switch_changes(&self, since: u64) -> Result<Changes<Switch>, Error> {
        assert_eq!(since, 7);
        Ok(switch_changes())
    }
    async fn stop_running(&self, scope: &Scope) -> Result<Stopped, Error> {
        Ok(Stopped { stopped: 3, more: *scope == scopes()[2] })
    }
    async fn lease_budget(&self, said: Vec<BudgetWish>) -> Result<Vec<BudgetLease>, Error> {
        assert_eq!(said, wishes());
        Ok(leases())
    }
    async fn return_budget(&self, said: Vec<BudgetReturn>) -> Result<(), Error> {
        assert_eq!(said, returns());
        Ok(())
    }
    async fn budgets(&self, after: Option<BudgetKey>) -> Result<Vec<BudgetState>, Error> {
        Ok(states().into_iter().skip(usize::from(after == Some(key()))).collect())
    }
}

fn new_credential(expires_in: Option<Duration>) -> NewCredential {
    NewCredential { id: "c".into(), tenant: TenantId::new("t"), agent: "é".into(), sha256: [8; 32], expires_in }
}

fn credential() -> CredentialInfo {
    CredentialInfo {
        id: "c".into(),
        tenant: TenantId::new("t"),
        agent: "é".into(),
        created_at: Timestamp::from_micros(-1),
        expires_at: None,
        rotated_at: Some(Timestamp::from_micros(0)),
        former_until: Some(LATER),
        revoked_at: Some(Timestamp::from_micros(3)),
    }
}

fn credential_changes() -> Changes<CredentialChange> {
    let change =
        |number, keys| CredentialChange { number, id: "c".into(), tenant: TenantId::new("t"), agent: "a".into(), keys };
    let changes = vec![change(1, Vec::new()), change(u64::MAX, vec![([1; 32], None), ([2; 32], Some(LATER))])];
    Changes { changes, forgotten: 5 }
}

fn scopes() -> [Scope; 3] {
    [
        Scope::default(),
        Scope { tenant: Some(TenantId::new("")), tool: Some("t".into()), caller: Some(who().caller) },
        Scope { caller: Some(Caller::Agent("a".into())), ..Scope::default() },
    ]
}

fn switch_changes() -> Changes<Switch> {
    let changes = scopes().into_iter().zip([true, false, true]).zip(8..);
    let change = |((scope, off), number)| Switch { number, scope, off, why: "because é".into(), changed_at: LATER };
    Changes { changes: changes.map(change).collect(), forgotten: 0 }
}

fn batch() -> Batch {
    let checks = Check::ALL.into_iter().map(RefusedBy::Check);
    let refused = |by| {
        let (trace_id, ago) = (matches!(by, RefusedBy::TaskLimit).then(|| "t".into()), MINUTE);
        Record::Refused(Refused { principal: who(), called: "tool".into(), by, trace_id, times: 3, ago })
    };
    let records = checks.chain([RefusedBy::TaskLimit]).map(refused).chain([Record::Retrieved(id(1))]);
    Batch { id: u128::MAX - 1, records: records.collect() }
}

fn sealed() -> Vec<Sealed> {
    let bare = Entry {
        id: -1,
        at: LATER,
        event: "mcp.switch.changed".into(),
        tenant: TenantId::new(""),
        owner: None,
        tool: None,
        task: None,
        version: None,
        reason: None,
        subject: None,
        trace_id: None,
        times: 1,
    };
    let text = || Some("é".to_owned());
    let full = Entry {
        owner: text(),
        tool: text(),
        task: text(),
        version: Some(2),
        reason: text(),
        subject: text(),
        trace_id: text(),
        times: 7,
        ..bare.clone()
    };
    let first = Link::default().seal(bare, LATER);
    vec![first.clone(), first.link().seal(full, LATER)]
}

fn chain() -> AuditChain {
    AuditChain { tenant: TenantId::new(""), anchor: Link::default(), head: sealed()[1].link() }
}

fn notes() -> Vec<SessionNote> {
    let note =
        |session: &str, ended, log_level| SessionNote { session: session.into(), ended, log_level, changed_at: LATER };
    vec![note("a", true, None), note("b", false, Some(LogLevel::Warning))]
}

/// A server with all roles, and where it is.
fn serve() -> longhaul_rpc::client::Target {
    let (links, token) = (Links::default(), ServiceToken::new(["0123456789abcdef"]).unwrap());
    let server = Server::new(token.clone(), 1 << 20, CancellationToken::new());
    let (tasks, work, calls) = (Arc::new(Roles), Arc::new(Roles), Arc::new(Roles));
    let server = server.tasks(tasks).work(work).calls(calls).control(Arc::new(Roles));
    let listener = links.listen("all");
    TaskTracker::new().spawn(async move { server.serve(listener).await.unwrap() });
    longhaul_rpc::client::Target { links, urls: vec!["memory://all".into()], token, payload_bytes_max: 1 << 20 }
}

#[tokio::test]
async fn gateways_and_task_stores_mean_the_same_tasks_questions_and_answers() {
    let tasks = TasksClient::new(&serve()).unwrap();
    assert_eq!(tasks.create(new_task()).await.unwrap(), task());
    assert_eq!(tasks.respond(&who(), id(1), keyed()).await.unwrap(), task());
    assert!(!tasks.carry(&who(), id(1), "s", Some(Duration::from_micros(7)), MINUTE).await.unwrap());
    assert!(tasks.carry(&who(), id(1), "s", None, Duration::ZERO).await.unwrap());
    assert_eq!(tasks.tools().await.unwrap(), [worker()]);
    let page = tasks.list(&who(), None, 2).await.unwrap();
    assert_eq!(page.tasks, [task(), Task { inputs: Vec::new(), ..task() }]);
}

#[tokio::test]
async fn workers_and_task_stores_mean_the_same_questions_answers_and_directives() {
    let work = WorkClient::new(&serve()).unwrap();
    let directives = work.attach(worker()).await.unwrap();
    assert_eq!(directives.collect::<Vec<_>>().await, [Directive::Answered(id(1)), Directive::Stop(id(2))]);
    let beat = work.heartbeat(&claimed().worker, Vec::new()).await.unwrap();
    assert_eq!(beat, [Directive::Stop(id(1)), Directive::Answered(id(2))]);
    let claim = Claim {
        worker: claimed().worker,
        token: LeaseToken("x".into()),
        tools: vec!["t".into()],
        max: 1,
        wait: Duration::ZERO,
    };
    assert_eq!(work.claim(claim).await.unwrap()[0].task, task());
    assert_eq!(work.request_input(fence(), requests(), MINUTE).await.unwrap(), task());
    assert_eq!(work.withdraw(fence(), vec!["k-0".into(), "k-1".into()]).await.unwrap(), task());
    assert_eq!(work.collect(fence(), Vec::new()).await.unwrap(), numbered());
    assert_eq!(work.collect(fence(), vec![1, 2, 3, 5]).await.unwrap(), [numbered().remove(3), numbered().remove(5)]);
    assert_eq!(work.spend(fence(), amount()).await.unwrap(), task());
    work.record(fence(), 7, Bytes::from_static(b"\0\xff")).await.unwrap();
    assert_eq!(work.journal(fence(), 3).await.unwrap(), [Bytes::from_static(b"\0"), Bytes::new()]);
    for (seconds, expected) in (0..).zip(refusals()) {
        match work.request_input(fence(), requests(), Duration::from_secs(seconds)).await {
            Err(Error::Refused(refusal)) => assert_eq!(refusal, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn gateways_and_workers_mean_the_same_calls_words_and_answers() {
    let calls = CallsClient::new(&serve()).unwrap();
    for target in targets() {
        let is_parked = matches!(target, Target::Prompt(_));
        let heard: Vec<_> = calls.invoke(call(target)).await.unwrap().try_collect().await.unwrap();
        let last = (!is_parked).then(done);
        assert_eq!(heard, words().into_iter().chain(last).collect::<Vec<_>>());
    }
    let heard: Vec<_> = calls.resume(resume()).await.unwrap().try_collect().await.unwrap();
    assert_eq!(heard, [done()]);
    calls.respond(&who(), RUN, named()).await.unwrap();
    calls.became(RUN, Some(task())).await.unwrap();
    calls.became(RUN, None).await.unwrap();
    for refused in [calls.respond(&who(), "another", named()).await, calls.became("another", None).await] {
        assert!(matches!(refused, Err(Error::Refused(Refusal::NotFound))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_watched_resource_says_when_it_changes_until_there_is_no_more_to_say() {
    let calls = CallsClient::new(&serve()).unwrap();
    let updates: Vec<_> = calls.watch("demo://a").await.unwrap().try_collect().await.unwrap();
    assert_eq!(updates.len(), 3);
    let mut broken = calls.watch("demo://broken").await.unwrap();
    assert!(matches!(broken.next().await, Some(Ok(()))));
    assert!(matches!(broken.next().await, Some(Err(Error::Unavailable(_)))));
    assert!(broken.next().await.is_none());
    let unknown = calls.watch("demo://unknown").await.unwrap().next().await;
    assert!(matches!(unknown, Some(Err(Error::Refused(Refusal::NotFound)))), "{unknown:?}");
}

#[tokio::test]
async fn gateways_and_task_stores_mean_the_same_sessions() {
    let control = ControlClient::new(&serve()).unwrap();
    for (session, has_room) in [("s", true), ("one too many", false)] {
        assert_eq!(control.end_session(&who(), session, LATER).await.unwrap(), has_room);
        assert_eq!(control.set_log_level(&who(), session, LogLevel::Alert, LATER).await.unwrap(), has_room);
    }
    for (after, rest) in [(SessionPosition::first(), 0), (SessionPosition::since(LATER), 0), ((&notes()[0]).into(), 1)]
    {
        assert_eq!(control.sessions(&after).await.unwrap(), notes()[rest..]);
    }
    assert!(control.subscribe("s", "demo://é", true, LATER).await.unwrap());
    assert!(!control.subscribe("s", "demo://é", false, LATER).await.unwrap());
    assert_eq!(control.subscriptions("s").await.unwrap(), ["s", "demo://é"]);
}

#[tokio::test]
async fn operators_gateways_and_task_stores_mean_the_same_credentials() {
    let control = ControlClient::new(&serve()).unwrap();
    assert_eq!(control.create_credential(new_credential(None)).await.unwrap(), Some(credential()));
    assert_eq!(control.create_credential(new_credential(Some(MINUTE))).await.unwrap(), None);
    let rotated = control.rotate_credential("c", [9; 32], MINUTE, Some(2 * MINUTE)).await;
    assert_eq!(rotated.unwrap(), Some(credential()));
    assert_eq!(control.rotate_credential("d", [9; 32], MINUTE, None).await.unwrap(), None);
    assert_eq!(control.revoke_credential("c").await.unwrap(), Some(credential()));
    assert_eq!(control.revoke_credential("d").await.unwrap(), None);
    assert_eq!(control.credentials(Some("t"), "b").await.unwrap(), [credential()]);
    assert_eq!(control.credentials(None, "b").await.unwrap().len(), 2);
    assert_eq!(control.credential_changes(u64::MAX).await.unwrap(), credential_changes());
}

#[tokio::test]
async fn operators_gateways_and_task_stores_mean_the_same_switches() {
    let control = ControlClient::new(&serve()).unwrap();
    let set = [(true, Switched::Changed), (false, Switched::Same), (true, Switched::Full)];
    for (scope, (off, switched)) in scopes().iter().zip(set) {
        assert_eq!(control.set_switch(scope, off, "because é").await.unwrap(), switched);
    }
    assert_eq!(control.switch_changes(7).await.unwrap(), switch_changes());
    for (scope, more) in scopes().iter().zip([false, false, true]) {
        assert_eq!(control.stop_running(scope).await.unwrap(), Stopped { stopped: 3, more });
    }
}

#[tokio::test]
async fn gateways_and_task_stores_mean_the_same_budgets() {
    let control = ControlClient::new(&serve()).unwrap();
    assert_eq!(control.lease_budget(wishes()).await.unwrap(), leases());
    control.return_budget(returns()).await.unwrap();
    assert_eq!(control.budgets(None).await.unwrap(), states());
    assert_eq!(control.budgets(Some(key())).await.unwrap(), states()[1..]);
}

#[tokio::test]
async fn whoever_records_and_whoever_reads_mean_the_same_audit_log() {
    let control = ControlClient::new(&serve()).unwrap();
    control.record(batch()).await.unwrap();
    assert_eq!(control.audit_chains(None).await.unwrap(), [chain()]);
    assert_eq!(control.audit_chains(Some(&TenantId::new(""))).await.unwrap(), [chain()]);
    assert_eq!(control.audit_chains(Some(&TenantId::new("a"))).await.unwrap(), []);
    let range = AuditRange { tenant: TenantId::new(""), after: 7, since: Some(LATER) };
    assert_eq!(control.audit_rows(range).await.unwrap(), sealed());
}
