//! The seam itself: a fake role behind a real server, reached through a real client.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use longhaul_core::{
    Caller, ClientCapabilities, InputKey, InputResponse, NewTask, Outcome, Phase, Principal, Progress, Refusal, Target,
    Task, TaskId, TaskSupport, TenantId, Timestamp, ToolDef, TraceContext, TtlWish, WorkerId, WorkerInfo,
};
use longhaul_rpc::client::{CallsClient, TasksClient};
use longhaul_rpc::{
    Answers, CallEvent, CallEvents, Calls, Error, Invocation, Line, Links, Page, Position, Resume, Server,
    ServiceToken, TaskCount, Tasks,
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const PAYLOAD_MAX: usize = 1 << 20;

fn who() -> Principal {
    Principal { tenant: TenantId::new("t"), caller: Caller::Person { app: "a".into(), person: "p".into() } }
}

fn new_task(id: u128, arguments: Bytes) -> NewTask {
    NewTask {
        id: TaskId::from_random(id),
        owner: who(),
        tool: "echo".into(),
        arguments,
        ttl: TtlWish::Longest,
        progress_token: Some(Bytes::from_static(b"7")),
        session: Some("s".into()),
        trace: TraceContext::default(),
        client: ClientCapabilities::default(),
        retry: longhaul_core::Retry::default(),
        claimed: None,
        reserved: None,
    }
}

/// Answers creates with the task, refuses one id, and holds `get` until told.
#[derive(Default)]
struct Fake {
    creates: AtomicUsize,
    gate: Notify,
}

#[async_trait]
impl Tasks for Fake {
    async fn create(&self, task: NewTask) -> Result<Task, Error> {
        match self.creates.fetch_add(1, Ordering::SeqCst) {
            _ if task.id == TaskId::from_random(13) => return Err(Refusal::NotFound.into()),
            0 if task.id == TaskId::from_random(14) => return Err(Error::Unavailable("just now".into())),
            _ if task.id == TaskId::from_random(15) => panic!("a bug"),
            0 if task.id == TaskId::from_random(16) => return Err(Error::Unavailable("who knows".into())),
            _ if [16, 17].map(TaskId::from_random).contains(&task.id) => return Err(Error::NotBegun("full".into())),
            _ => {}
        }
        Ok(Task {
            id: task.id,
            owner: task.owner,
            tool: task.tool,
            phase: Phase::Queued,
            version: 1,
            attempt: 0,
            status_message: Some(format!("{} bytes", task.arguments.len())),
            progress: None,
            progress_token: task.progress_token,
            session: task.session,
            created_at: Timestamp::from_micros(-1),
            updated_at: Timestamp::from_micros(i64::MAX),
            ttl_ms: None,
            client: task.client,
            retry: longhaul_core::Retry::default(),
            inputs: Vec::new(),
            reserved: None,
            spent: None,
        })
    }

    async fn get(&self, _: &Principal, _: TaskId) -> Result<Task, Error> {
        self.gate.notified().await;
        Err(Refusal::Expired.into())
    }

    async fn result(&self, _: &Principal, _: TaskId) -> Result<(Task, Option<Outcome>), Error> {
        Err(Refusal::NotFound.into())
    }

    async fn list(&self, _: &Principal, _: Option<Position>, _: u32) -> Result<Page, Error> {
        Ok(Page { tasks: Vec::new(), more: true })
    }

    async fn cancel(&self, _: &Principal, _: TaskId) -> Result<Task, Error> {
        Err(Refusal::NotFound.into())
    }

    async fn respond(&self, _: &Principal, _: TaskId, _: Vec<(InputKey, InputResponse)>) -> Result<Task, Error> {
        Err(Refusal::NotFound.into())
    }

    async fn carry(&self, _: &Principal, _: TaskId, _: &str, _: Option<Duration>, _: Duration) -> Result<bool, Error> {
        Err(Refusal::NotFound.into())
    }

    async fn changed(&self, seen: Vec<(TaskId, u64)>) -> Result<Vec<(TaskId, u64)>, Error> {
        Ok(seen)
    }

    async fn tools(&self) -> Result<Vec<WorkerInfo>, Error> {
        Ok((0..4).map(worker_of_3_mib).collect())
    }

    async fn count(&self) -> Result<TaskCount, Error> {
        Ok(TaskCount { stored: 2, open: 1 })
    }
}

/// Sends one progress event, then waits for ever; counts the runs that were dropped.
struct Endless {
    dropped: Arc<Semaphore>,
}

struct CountDrop(Arc<Semaphore>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

#[async_trait]
impl Calls for Endless {
    async fn invoke(&self, _: Invocation) -> Result<CallEvents, Error> {
        let guard = CountDrop(self.dropped.clone());
        let first = CallEvent::Progress(Progress { progress: 1.0, total: None, message: None });
        let never = stream::pending().map(move |event: CallEvent| {
            let _ = &guard;
            event
        });
        Ok(stream::once(async { first }).chain(never).map(Ok).boxed())
    }

    async fn resume(&self, _: Resume) -> Result<CallEvents, Error> {
        Err(Refusal::NotFound.into())
    }

    async fn respond(&self, _: &Principal, _: &str, _: Answers) -> Result<(), Error> {
        Err(Refusal::NotFound.into())
    }

    async fn became(&self, _: &str, _: Option<Task>) -> Result<(), Error> {
        Err(Refusal::NotFound.into())
    }

    async fn watch(&self, _: &str) -> Result<BoxStream<'static, Result<(), Error>>, Error> {
        Err(Refusal::NotFound.into())
    }
}

fn worker_of_3_mib(number: u32) -> WorkerInfo {
    let definition = Bytes::from(vec![b' '; 3 << 20]);
    WorkerInfo {
        id: WorkerId { name: number.to_string(), incarnation: "i".into() },
        url: None,
        tools: vec![ToolDef {
            name: "t".into(),
            task_support: TaskSupport::Optional,
            decides: false,
            needs: ClientCapabilities::default(),
            retry: longhaul_core::Retry::default(),
            definition,
        }],
        prompts: Vec::new(),
        resources: Vec::new(),
        templates: Vec::new(),
        completes: false,
    }
}

struct Rig {
    links: Links,
    token: ServiceToken,
    tasks: TaskTracker,
}

impl Rig {
    fn new() -> Self {
        Self {
            links: Links::default(),
            token: ServiceToken::new(["0123456789abcdef"]).unwrap(),
            tasks: TaskTracker::new(),
        }
    }

    fn serve(&self, name: &str, build: impl FnOnce(Server) -> Server) -> CancellationToken {
        let drain = CancellationToken::new();
        let server = build(Server::new(self.token.clone(), PAYLOAD_MAX, drain.clone()));
        let listener = self.links.listen(name);
        self.tasks.spawn(async move { server.serve(listener).await.unwrap() });
        drain
    }

    fn target(&self, names: &[&str]) -> longhaul_rpc::client::Target {
        longhaul_rpc::client::Target {
            links: self.links.clone(),
            urls: names.iter().map(|name| format!("memory://{name}")).collect(),
            token: self.token.clone(),
            payload_bytes_max: PAYLOAD_MAX,
        }
    }
}

#[tokio::test]
async fn answers_refusals_and_bugs_each_come_back_to_their_own_request() {
    let rig = Rig::new();
    rig.serve("store", |server| server.tasks(Arc::new(Fake::default())));
    let client = TasksClient::new(&rig.target(&["store"])).unwrap();
    let bytes = Bytes::from(vec![0u8; PAYLOAD_MAX]);
    let (good, refused, bug) = tokio::join!(
        client.create(new_task(1, bytes)),
        client.create(new_task(13, Bytes::new())),
        client.create(new_task(15, Bytes::new())),
    );
    let good = good.unwrap();
    assert_eq!(good.id, TaskId::from_random(1));
    assert_eq!(good.owner, who());
    assert_eq!(good.status_message.as_deref(), Some("1048576 bytes"));
    assert_eq!(good.progress_token.as_deref(), Some(&b"7"[..]));
    assert!(matches!(refused, Err(Error::Refused(Refusal::NotFound))));
    assert!(matches!(bug, Err(Error::Fault(_))), "{bug:?}");
    assert_eq!(client.count().await.unwrap(), TaskCount { stored: 2, open: 1 });
}

#[tokio::test]
async fn many_workers_may_have_more_tools_than_a_message_holds() {
    let rig = Rig::new();
    rig.serve("store", |server| server.tasks(Arc::new(Fake::default())));
    let client = TasksClient::new(&rig.target(&["store"])).unwrap();
    assert_eq!(client.tools().await.unwrap(), (0..4).map(worker_of_3_mib).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_unavailable_is_asked_again() {
    let rig = Rig::new();
    let fake = Arc::new(Fake::default());
    rig.serve("store", |server| server.tasks(fake.clone()));
    let client = TasksClient::new(&rig.target(&["store"])).unwrap();
    assert_eq!(client.create(new_task(14, Bytes::new())).await.unwrap().id, TaskId::from_random(14));
    assert_eq!(fake.creates.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_request_waits_for_a_server_and_moves_to_another_replica() {
    let rig = Rig::new();
    let client = Arc::new(TasksClient::new(&rig.target(&["one", "two"])).unwrap());
    assert!(!client.up());
    let early = tokio::join!(client.count(), async {
        tokio::task::yield_now().await;
        rig.serve("one", |server| server.tasks(Arc::new(Fake::default())))
    });
    assert_eq!(early.0.unwrap().stored, 2);
    early.1.cancel();
    rig.serve("two", |server| server.tasks(Arc::new(Fake::default())));
    for _ in 0..20 {
        assert_eq!(client.count().await.unwrap().stored, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_replica_holds_up_one_request_and_the_next_ones_go_elsewhere() {
    let rig = Rig::new();
    let (silent, other) = (Arc::new(Fake::default()), Arc::new(Fake::default()));
    for (name, fake) in [("one", &silent), ("two", &other)] {
        rig.serve(name, |server| server.tasks(fake.clone()));
    }
    let client = TasksClient::new(&rig.target(&["one", "two"])).unwrap();
    let mut creates = 0;
    while silent.creates.load(Ordering::SeqCst) == 0 || other.creates.load(Ordering::SeqCst) == 0 {
        creates += 1;
        client.create(new_task(100 + creates, Bytes::new())).await.unwrap();
    }
    let begun = tokio::time::Instant::now();
    for id in 0..6 {
        other.gate.notify_one();
        let answer = client.get(&who(), TaskId::from_random(id)).await;
        assert!(matches!(answer, Err(Error::Refused(Refusal::Expired))), "{answer:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // Heard of again, it has its turn again.
    silent.gate.notify_one();
    let before = silent.creates.load(Ordering::SeqCst);
    for id in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        client.create(new_task(200 + id, Bytes::new())).await.unwrap();
    }
    assert!(silent.creates.load(Ordering::SeqCst) > before);
}

#[tokio::test]
async fn a_request_has_surely_not_begun_only_if_no_try_of_it_may_have() {
    let rig = Rig::new();
    for (id, surely) in [(16, false), (17, true)] {
        let name = format!("store-{id}");
        let fake = Arc::new(Fake::default());
        rig.serve(&name, |server| server.tasks(fake.clone()));
        let client = TasksClient::new(&rig.target(&[&name])).unwrap();
        client.count().await.unwrap();
        tokio::time::pause();
        let answer = client.create(new_task(id, Bytes::new())).await;
        tokio::time::resume();
        assert!(fake.creates.load(Ordering::SeqCst) > 1, "it was not tried again");
        match answer {
            Err(Error::NotBegun(_)) => assert!(surely),
            Err(Error::Unavailable(_)) => assert!(!surely),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_draining_server_answers_what_it_has_read() {
    let rig = Rig::new();
    let fake = Arc::new(Fake::default());
    let drain = rig.serve("store", |server| server.tasks(fake.clone()));
    let client = TasksClient::new(&rig.target(&["store"])).unwrap();
    client.count().await.unwrap();
    let principal = who();
    let (answer, ()) = tokio::join!(client.get(&principal, TaskId::from_random(1)), async {
        // The second request on the same pipe is answered after the first was read.
        client.count().await.unwrap();
        drain.cancel();
        fake.gate.notify_one();
    });
    assert!(matches!(answer, Err(Error::Refused(Refusal::Expired))), "{answer:?}");
    rig.tasks.close();
    tokio::time::timeout(Duration::from_secs(10), rig.tasks.wait()).await.unwrap();
}

#[tokio::test]
async fn without_the_service_credential_nothing_is_served() {
    let rig = Rig::new();
    rig.serve("store", |server| server.tasks(Arc::new(Fake::default())));
    let mut target = rig.target(&["store"]);
    target.token = ServiceToken::new(["another-token-of-16"]).unwrap();
    let client = TasksClient::new(&target).unwrap();
    tokio::time::pause();
    assert!(matches!(client.count().await, Err(Error::NotBegun(_))));
    for short in ["", "short", "0123456789abcde\n0"] {
        assert!(ServiceToken::new([short]).is_err(), "{short:?}");
    }
}

#[tokio::test]
async fn a_dropped_call_stops_its_run_and_no_other() {
    let rig = Rig::new();
    let dropped = Arc::new(Semaphore::new(0));
    rig.serve("worker", |server| server.calls(Arc::new(Endless { dropped: dropped.clone() })));
    let client = CallsClient::new(&rig.target(&["worker"])).unwrap();
    let call = || Invocation {
        principal: who(),
        target: Target::Tool("t".into()),
        arguments: Bytes::new(),
        client: ClientCapabilities::default(),
        line: Line { progress: true, log: None },
        park: None,
        may_become_task: false,
        trace: TraceContext::default(),
    };
    let mut one = client.invoke(call()).await.unwrap();
    let mut other = client.invoke(call()).await.unwrap();
    for events in [&mut one, &mut other] {
        assert!(matches!(events.next().await, Some(Ok(CallEvent::Progress(_)))));
    }
    drop(one);
    dropped.acquire().await.unwrap().forget();
    assert_eq!(dropped.available_permits(), 0);
    drop(other);
    dropped.acquire().await.unwrap().forget();
}
