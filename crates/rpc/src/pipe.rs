//! One long-lived two-way stream that carries many requests at once.
//!
//! A unary call for each request costs four times the CPU (docs/decisions/2026-11-30-pipes.md). Each request keeps its
//! own id, answer and cancellation; a broken pipe fails the requests on it, never the next ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::{Status, Streaming};

use crate::Error;
use crate::pb::Fault;

/// Requests written but not yet sent on one pipe; more wait.
const OUTGOING_MAX: usize = 1024;
/// Requests that one pipe's server works on at a time; more wait.
const IN_FLIGHT_MAX: usize = 4096;
/// Replies of one request that its caller has not read yet; with more, the request is given up.
const REPLIES_MAX: usize = 1024;
/// How long a request may take in all, over every try.
pub(crate) const DEADLINE: Duration = Duration::from_secs(8);
/// How long one try may take before another server is asked.
const TRY: Duration = Duration::from_millis(5500);
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// A request frame.
pub(crate) trait Request: Send + 'static {
    type Verb: Clone + Send + Sync + 'static;
    fn new(id: u64, verb: Self::Verb) -> Self;
    /// Tells the server that nobody waits for request `id` any more.
    fn cancel(id: u64) -> Self;
    fn id(&self) -> u64;
    /// `None` is a cancel.
    fn into_verb(self) -> Option<(Self::Verb, Option<String>)>;
}

/// A reply frame.
pub(crate) trait Reply: Send + 'static {
    type Answer: Send + 'static;
    fn new(id: u64, answer: Self::Answer) -> Self;
    fn fault(fault: Fault) -> Self::Answer;
    fn as_fault(answer: &mut Self::Answer) -> Option<&mut Fault>;
    fn into_answer(self) -> (u64, Option<Self::Answer>);
}

/// Opens a stream: gives it the requests, gets the replies.
pub(crate) type Open<Q, R> =
    Box<dyn Fn(ReceiverStream<Q>) -> BoxFuture<'static, Result<Streaming<R>, Status>> + Send + Sync>;

type Waiting<R> = HashMap<u64, mpsc::Sender<<R as Reply>::Answer>>;

/// What a pipe's users and its driver share.
struct Shared<Q, R: Reply> {
    next_id: AtomicU64,
    /// `None` while the pipe is down.
    live: Mutex<Option<(mpsc::Sender<Q>, Waiting<R>)>>,
    up: watch::Sender<bool>,
    /// A request was not answered in time, and nothing was heard since: others are asked first.
    silent: AtomicBool,
}

impl<Q: Request, R: Reply> Shared<Q, R> {
    /// Adds a waiter, if the pipe is up.
    fn enter(&self) -> Option<(u64, mpsc::Sender<Q>, mpsc::Receiver<R::Answer>)> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answers) = mpsc::channel(REPLIES_MAX);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let (out, waiting) = live.as_mut()?;
        waiting.insert(id, answer);
        Some((id, out.clone(), answers))
    }

    /// Removes a waiter; true if it was still there.
    fn leave(&self, id: u64) -> bool {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.as_mut().is_some_and(|(_, waiting)| waiting.remove(&id).is_some())
    }

    fn deliver(&self, id: u64, answer: R::Answer) {
        self.silent.store(false, Ordering::Relaxed);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, waiting)) = live.as_mut()
            && let Some(waiter) = waiting.get(&id)
            && waiter.try_send(answer).is_err()
        {
            waiting.remove(&id);
        }
    }

    fn set(&self, live: Option<(mpsc::Sender<Q>, Waiting<R>)>) {
        let up = live.is_some();
        self.silent.store(false, Ordering::Relaxed);
        // The former waiters are dropped here: each sees its channel close.
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
        self.up.send_replace(up);
    }
}

/// One request's replies. Dropped early, it tells the server to stop.
pub(crate) struct Answers<Q: Request, R: Reply> {
    id: u64,
    shared: Arc<Shared<Q, R>>,
    out: mpsc::Sender<Q>,
    answers: mpsc::Receiver<R::Answer>,
}

impl<Q: Request, R: Reply> Answers<Q, R> {
    /// The next reply; `None` once the pipe broke.
    pub(crate) async fn next(&mut self) -> Option<R::Answer> {
        self.answers.recv().await
    }

    /// No more replies are expected.
    pub(crate) fn done(&self) {
        self.shared.leave(self.id);
    }
}

impl<Q: Request, R: Reply> Drop for Answers<Q, R> {
    fn drop(&mut self) {
        if self.shared.leave(self.id) {
            // With the queue full, the pipe is about to be given up anyway.
            let _ = self.out.try_send(Q::cancel(self.id));
        }
    }
}

/// Pipes to several replicas of one role.
pub(crate) struct Pipes<Q: Request, R: Reply> {
    pipes: Vec<Arc<Shared<Q, R>>>,
    next: AtomicUsize,
    /// Whether to stay with one replica for as long as it answers.
    pinned: bool,
    _stop: DropGuard,
}

impl<Q: Request, R: Reply> Pipes<Q, R> {
    pub(crate) fn new(opens: Vec<Open<Q, R>>, pinned: bool) -> Self {
        let stop = CancellationToken::new();
        let drivers = TaskTracker::new();
        let pipes = opens
            .into_iter()
            .map(|open| {
                let shared = Arc::new(Shared {
                    next_id: AtomicU64::new(1),
                    live: Mutex::new(None),
                    up: watch::Sender::new(false),
                    silent: AtomicBool::new(false),
                });
                let driver = drive(open, shared.clone());
                drivers.spawn(stop.clone().run_until_cancelled_owned(driver));
                shared
            })
            .collect();
        Self { pipes, next: AtomicUsize::new(0), pinned, _stop: stop.drop_guard() }
    }

    /// Whether any replica can be reached at this moment.
    pub(crate) fn up(&self) -> bool {
        self.pipes.iter().any(|pipe| *pipe.up.borrow())
    }

    /// Sends a request and gives its replies, from the first replica that is up.
    pub(crate) async fn open(&self, verb: Q::Verb) -> Result<Answers<Q, R>, Error> {
        self.open_until(verb, Instant::now() + DEADLINE).await
    }

    async fn open_until(&self, verb: Q::Verb, deadline: Instant) -> Result<Answers<Q, R>, Error> {
        let down = || Error::NotBegun("no replica can be reached".into());
        tokio::time::timeout_at(deadline, async {
            loop {
                let start = match self.pinned {
                    true => self.next.load(Ordering::Relaxed),
                    false => self.next.fetch_add(1, Ordering::Relaxed),
                };
                let mut changes: Vec<_> = self.pipes.iter().map(|pipe| pipe.up.subscribe()).collect();
                let turns = (0..self.pipes.len()).map(|at| start.wrapping_add(at) % self.pipes.len());
                for (silent, at) in turns.clone().map(|at| (false, at)).chain(turns.map(|at| (true, at))) {
                    let shared = &self.pipes[at];
                    if shared.silent.load(Ordering::Relaxed) != silent {
                        continue;
                    }
                    let Some((id, out, answers)) = shared.enter() else { continue };
                    let answers = Answers { id, shared: shared.clone(), out, answers };
                    if answers.out.send(Q::new(id, verb.clone())).await.is_ok() {
                        if self.pinned {
                            self.next.store(at, Ordering::Relaxed);
                        }
                        return answers;
                    }
                }
                // Every pipe is down: wait until one is up.
                let ups = changes.iter_mut().map(|up| up.wait_for(|up| *up).map(|_| ()).boxed());
                futures::future::select_all(ups).await;
            }
        })
        .await
        .map_err(|_| down())
    }

    /// Sends a request with one reply, and again elsewhere after a fault that allows it.
    pub(crate) async fn call(&self, verb: Q::Verb) -> Result<R::Answer, Error> {
        let deadline = Instant::now() + DEADLINE;
        let mut pause = RECONNECT_MIN;
        // An earlier try may have been carried out.
        let mut in_doubt = false;
        loop {
            let mut answers = match self.open_until(verb.clone(), deadline).await {
                Err(Error::NotBegun(why)) if in_doubt => return Err(Error::Unavailable(why)),
                answers => answers?,
            };
            let answer = tokio::time::timeout_at(deadline.min(Instant::now() + TRY), answers.next()).await;
            let last = Instant::now() + pause >= deadline;
            let mut not_begun = false;
            match answer {
                Ok(Some(mut answer)) => {
                    let fault = R::as_fault(&mut answer).filter(|fault| fault.retry);
                    not_begun = fault.as_ref().is_some_and(|fault| fault.not_begun);
                    let retry = fault.map(|fault| fault.not_begun &= !in_doubt).is_some();
                    if last || !retry {
                        answers.done();
                        return Ok(answer);
                    }
                }
                Ok(None) if !last => {}
                Ok(None) => return Err(Error::Unavailable("the connection broke".into())),
                // Silent, perhaps frozen: another replica may do better.
                Err(_) if !last => answers.shared.silent.store(true, Ordering::Relaxed),
                Err(_) => return Err(Error::Unavailable("no answer in time".into())),
            }
            in_doubt |= !not_begun;
            drop(answers);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_MAX);
        }
    }
}

/// Keeps one pipe connected.
async fn drive<Q: Request, R: Reply>(open: Open<Q, R>, shared: Arc<Shared<Q, R>>) {
    let mut pause = RECONNECT_MIN;
    loop {
        let (out, requests) = mpsc::channel(OUTGOING_MAX);
        let opened = tokio::time::timeout(CONNECT_MAX, open(ReceiverStream::new(requests))).await;
        if let Ok(Err(status)) = &opened
            && matches!(status.code(), tonic::Code::Unauthenticated | tonic::Code::PermissionDenied)
        {
            // Not one of those that pass by themselves.
            tracing::error!(message = status.message(), "another role refuses our service credential");
            pause = RECONNECT_MAX;
        }
        if let Ok(Ok(mut replies)) = opened {
            pause = RECONNECT_MIN;
            shared.set(Some((out, HashMap::new())));
            while let Some(Ok(reply)) = replies.next().await {
                if let (id, Some(answer)) = reply.into_answer() {
                    shared.deliver(id, answer);
                }
            }
            shared.set(None);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_MAX);
    }
}

/// Where a server's verb puts its replies.
pub(crate) struct Replies<R: Reply> {
    id: u64,
    out: mpsc::Sender<Result<R, Status>>,
    /// Fires when nobody waits any more, or the server ends.
    pub(crate) cancelled: CancellationToken,
    /// Fires when the server ends.
    pub(crate) drain: CancellationToken,
}

impl<R: Reply> Replies<R> {
    /// Sends a reply; false if nobody is there.
    pub(crate) async fn send(&self, answer: R::Answer) -> bool {
        self.out.send(Ok(R::new(self.id, answer))).await.is_ok()
    }
}

/// Serves one pipe: `verb` works on each request, many at a time.
pub(crate) fn serve<Q, R, F>(
    mut requests: Streaming<Q>,
    tasks: &TaskTracker,
    drain: CancellationToken,
    verb: F,
) -> impl Stream<Item = Result<R, Status>> + Send + 'static
where
    Q: Request,
    R: Reply,
    F: Fn(Q::Verb, Option<String>, Replies<R>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
{
    let (out, replies) = mpsc::channel(OUTGOING_MAX);
    let workers = tasks.clone();
    tasks.spawn(async move {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let all = CancellationToken::new();
        // Whatever ends this loop, the requests still in flight hear that nobody waits.
        let _gone = all.clone().drop_guard();
        let running: Arc<Mutex<HashMap<u64, CancellationToken>>> = Arc::default();
        loop {
            let request = tokio::select! {
                request = requests.next() => request,
                () = drain.cancelled() => None,
            };
            let Some(Ok(request)) = request else { break };
            let id = request.id();
            let Some((wanted, traceparent)) = request.into_verb() else {
                if let Some(cancelled) = running.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
                    cancelled.cancel();
                }
                continue;
            };
            let Ok(permit) = permits.clone().acquire_owned().await else { break };
            let cancelled = all.child_token();
            running.lock().unwrap_or_else(PoisonError::into_inner).insert(id, cancelled.clone());
            let work = verb(wanted, traceparent, Replies { id, out: out.clone(), cancelled, drain: drain.clone() });
            let (running, out) = (running.clone(), out.clone());
            workers.spawn(async move {
                if std::panic::AssertUnwindSafe(work).catch_unwind().await.is_err() {
                    let fault = Fault { message: "a bug: the verb panicked".into(), ..Fault::default() };
                    let _ = out.send(Ok(R::new(id, R::fault(fault)))).await;
                }
                running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                drop(permit);
            });
        }
        if drain.is_cancelled() {
            // Requests that were read get their answers; new ones go to another replica. A long wait is cut short.
            all.cancel();
            let _ = permits.acquire_many(IN_FLIGHT_MAX as u32).await;
        }
    });
    ReceiverStream::new(replies)
}
