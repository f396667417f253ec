//! A call that is answered at once: it runs on a worker, and its client waits.
//!
//! The run belongs to the gateway, not to the connection: a client that hangs up cancels nothing (MCP 2025-11-25,
//! basic/transports), and may come back to the same replica for the answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use longhaul_core::{CallError, Outcome};
use longhaul_mcp::errors::{Denial, code};
use longhaul_mcp::{Dialect, Reply, RequestId, error_body, sse, v2025};
use longhaul_rpc::client::CallsClient;
use longhaul_rpc::{CallEvent, CallEvents, Calls as _, Error, Invocation};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::endpoint::{Answer, Asked, No, ended};
use crate::metrics::{Ended, OpenStream, Operation};
use crate::stream::{EventIds, Frames, KeepAlive, Source, frames};
use crate::{Shared, random};

/// How many workers are asked, as long as none has taken the call.
const WORKERS_MAX: usize = 2;
/// Answers kept for clients that may come back, in bytes altogether; beyond that none are kept.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What is known of a run.
#[derive(Debug, Clone, Default)]
struct Progressed {
    /// The latest progress notification, and its number, from 1.
    progress: Option<(u64, Bytes)>,
    end: Option<End>,
}

#[derive(Debug, Clone)]
enum End {
    /// With this message.
    Message(Bytes, Ended),
    /// No worker could be reached, or all are full; none has begun.
    Unavailable,
    /// Its client no longer wanted it.
    Unwanted,
}

type News = watch::Receiver<Progressed>;

/// Runs a call and answers: as JSON if that is all the client takes or if it is over soon, else as a stream.
pub(crate) async fn call(
    asked: &Asked,
    workers: Vec<Arc<CallsClient>>,
    invocation: Invocation,
    progress_token: Option<Bytes>,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    let shared = &asked.shared;
    // Runs outlive their connections, so connections do not bound them.
    let permit = shared.calls.clone().try_acquire_owned().map_err(|_| No::Unavailable)?;
    let (tell, mut news) = watch::channel(Progressed::default());
    let stream = shared.runs.stream_id();
    let run = Run {
        give_up: shared.give_up.clone(),
        dialect: asked.dialect(),
        id: asked.id.clone(),
        progress_token,
        tell,
        operation: operation.take(),
    };
    let wanted = shared.in_flight.enter(asked.tag, &asked.id);
    let running = {
        let shared = shared.clone();
        async move {
            let unwanted = wanted.cancelled();
            let bytes = run.run(workers, invocation, unwanted).await;
            drop((wanted, permit, share));
            shared.runs.over(&shared, stream, bytes).await;
        }
    };
    shared.tracker.spawn(running.in_current_span());

    if asked.accepts.json {
        let worth_telling =
            news.wait_for(|state| state.end.is_some() || state.progress.is_some() && asked.accepts.stream);
        let patience = async {
            match asked.accepts.stream {
                true => tokio::time::sleep(shared.config.pace.stream_after).await,
                false => std::future::pending().await,
            }
        };
        let state = tokio::select! {
            biased;
            state = worth_telling => state.map(|state| state.clone()).unwrap_or_default(),
            () = patience => Progressed::default(),
        };
        match state.end {
            Some(End::Message(body, how)) => return Ok(Answer::Message(body, how)),
            Some(End::Unavailable) => return Err(No::Unavailable),
            Some(End::Unwanted) => return Ok(Answer::Nothing),
            None if !asked.accepts.stream => return Err(crate::endpoint::fault()),
            None => {}
        }
    }
    let holder = shared.runs.keep(asked, stream, &news);
    Ok(Answer::Stream(InlineStream::frames(asked, news, holder, ids(asked, stream), 0)))
}

/// Goes on with the stream of a run, if it is on this replica.
pub(crate) fn resume(asked: &Asked, stream: u64, seen: u64) -> Result<Frames, No> {
    match asked.shared.runs.take_over(asked, stream) {
        Some((news, holder)) => Ok(InlineStream::frames(asked, news, holder, ids(asked, stream), seen)),
        None if asked.shared.runs.is_ours(stream) => {
            let message = "The answer to this call is no longer kept";
            Err(No::Denied(longhaul_mcp::RpcError::new(code::INTERNAL, message)))
        }
        // Another replica may have it, and the client's next try may find that one.
        None => Err(No::Unavailable),
    }
}

fn ids(asked: &Asked, stream: u64) -> EventIds {
    let Asked { shared, principal, session, id, .. } = asked;
    EventIds::new(shared, principal, session, stream, None, Some(id.clone()))
}

/// A call that runs.
struct Run {
    give_up: CancellationToken,
    dialect: Dialect,
    id: RequestId,
    progress_token: Option<Bytes>,
    tell: watch::Sender<Progressed>,
    operation: Option<Operation>,
}

impl Run {
    /// Runs to the end; answers how large the answer is.
    async fn run(
        mut self,
        workers: Vec<Arc<CallsClient>>,
        invocation: Invocation,
        unwanted: CancellationToken,
    ) -> usize {
        let give_up = self.give_up.clone();
        let end = tokio::select! {
            biased;
            // Dropping the events tells the worker to stop.
            () = unwanted.cancelled() => End::Unwanted,
            end = self.until_over(&workers, invocation) => end,
            () = give_up.cancelled() => self.failed("The gateway shut down before the call ended"),
        };
        if let Some(operation) = self.operation.take() {
            match &end {
                End::Message(_, how) => operation.end(*how),
                End::Unavailable => operation.end(Ended::Error(code::INTERNAL)),
                End::Unwanted => drop(operation),
            }
        }
        let bytes = if let End::Message(body, _) = &end { body.len() } else { 0 };
        self.tell.send_modify(|state| state.end = Some(end));
        bytes
    }

    async fn until_over(&mut self, workers: &[Arc<CallsClient>], invocation: Invocation) -> End {
        let Some(mut events) = begin(workers, invocation).await else { return End::Unavailable };
        let (mut number, mut highest) = (0, f64::NEG_INFINITY);
        loop {
            match events.next().await {
                Some(Ok(CallEvent::Progress(progress))) => {
                    let frame = self.progress_token.as_ref().filter(|_| progress.progress > highest);
                    if let Some(frame) = frame.and_then(|token| v2025::notify::progress(token, &progress, None)) {
                        highest = progress.progress;
                        number += 1;
                        self.tell.send_modify(|state| state.progress = Some((number, frame)));
                    }
                }
                Some(Ok(CallEvent::Outcome(outcome))) => return self.over(&outcome),
                Some(Err(Error::Refused(refusal))) => {
                    let error = Denial::from(refusal).v2025();
                    return End::Message(error_body(Some(&self.id), &error), Ended::Error(error.code));
                }
                // It may have done its work or a part of it: only the client can know whether to try again.
                Some(Err(Error::Unavailable(why) | Error::NotBegun(why))) => {
                    tracing::warn!(why, "the worker of a call was lost");
                    return self.failed("The worker was lost before it answered");
                }
                Some(Err(Error::Fault(why))) => {
                    tracing::error!(why, "a call failed");
                    return self.failed("Internal error");
                }
                None => return self.failed("The worker was lost before it answered"),
            }
        }
    }

    fn over(&self, outcome: &Outcome) -> End {
        End::Message(v2025::write(self.dialect, &self.id, &Reply::CallOutcome(outcome)), ended(outcome))
    }

    fn failed(&self, message: &str) -> End {
        self.over(&Outcome::Error(CallError { code: code::INTERNAL, message: message.into(), data: None }))
    }
}

/// Hands the call to a worker. Only one that surely has not begun is passed over: it was never reached, or it is full and
/// says so before anything else. A connection that breaks tells nothing.
async fn begin(workers: &[Arc<CallsClient>], invocation: Invocation) -> Option<CallEvents> {
    for worker in workers.iter().take(WORKERS_MAX) {
        let (first, later) = match worker.invoke(invocation.clone()).await {
            Ok(mut events) => (events.next().await, events),
            Err(error) => (Some(Err(error)), stream::empty().boxed()),
        };
        if let Some(Err(Error::NotBegun(why))) = first {
            tracing::debug!(why, "a worker did not take a call");
            continue;
        }
        // The connection must outlive the call, even if its worker is no longer on offer.
        let worker = worker.clone();
        return Some(stream::iter(first).chain(later).map(move |event| (event, &worker).0).boxed());
    }
    None
}

/// The runs whose clients may come back for the answer.
pub(crate) struct Runs {
    /// Tells the streams of this process from those of other replicas.
    replica: u32,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    runs: HashMap<u64, KeptRun>,
    bytes: usize,
}

struct KeptRun {
    news: News,
    request: RequestId,
    /// Ends the stream that tells of the run now: each message goes on one stream only.
    holder: CancellationToken,
    /// The size of its answer, once there is one.
    bytes: usize,
}

impl Runs {
    pub(crate) fn new() -> Self {
        Self { replica: u32::from_be_bytes(random()), kept: Mutex::default() }
    }

    fn stream_id(&self) -> u64 {
        u64::from(self.replica) << 32 | u64::from(u32::from_be_bytes(random()))
    }

    fn is_ours(&self, stream: u64) -> bool {
        stream >> 32 == u64::from(self.replica)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a run whose client was given an event id, and says when another stream has taken it over.
    fn keep(&self, asked: &Asked, stream: u64, news: &News) -> CancellationToken {
        let holder = CancellationToken::new();
        let mut kept = self.lock();
        // One that is over already is no longer waited for by anything that would forget it.
        if asked.dialect().has_priming() && news.borrow().end.is_none() {
            let run = KeptRun { news: news.clone(), request: asked.id.clone(), holder: holder.clone(), bytes: 0 };
            kept.runs.insert(stream, run);
        }
        holder
    }

    fn take_over(&self, asked: &Asked, stream: u64) -> Option<(News, CancellationToken)> {
        let mut kept = self.lock();
        let run = kept.runs.get_mut(&stream).filter(|run| run.request == asked.id)?;
        let holder = CancellationToken::new();
        std::mem::replace(&mut run.holder, holder.clone()).cancel();
        Some((run.news.clone(), holder))
    }

    /// A run is over: keeps its answer for a while, if there is room.
    async fn over(&self, shared: &Shared, stream: u64, bytes: usize) {
        {
            let mut kept = self.lock();
            let has_room = kept.bytes + bytes <= KEPT_BYTES_MAX;
            match kept.runs.get_mut(&stream) {
                None => return,
                Some(run) if has_room => {
                    run.bytes = bytes;
                    kept.bytes += bytes;
                }
                Some(_) => {
                    kept.runs.remove(&stream);
                    return;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(shared.config.pace.answer_kept) => {}
            () = shared.drain.cancelled() => {}
        }
        let mut kept = self.lock();
        if let Some(run) = kept.runs.remove(&stream) {
            kept.bytes -= run.bytes;
        }
    }
}

struct InlineStream {
    id: RequestId,
    news: News,
    told: u64,
    holder: CancellationToken,
    ids: EventIds,
    keep_alive: KeepAlive,
    step: Step,
    _open: OpenStream,
}

enum Step {
    Begin,
    Run,
    Done,
}

impl InlineStream {
    fn frames(asked: &Asked, mut news: News, holder: CancellationToken, ids: EventIds, told: u64) -> Frames {
        // Whatever is there already is news to this stream.
        news.mark_changed();
        let open = OpenStream::new(&asked.shared, "call");
        let keep_alive = KeepAlive::new(asked.shared.config.pace.keep_alive);
        let ids = ids.after(told);
        frames(Self { id: asked.id.clone(), news, told, holder, ids, keep_alive, step: Step::Begin, _open: open })
    }
}

impl Source for InlineStream {
    async fn next(&mut self) -> Option<Bytes> {
        match self.step {
            Step::Begin => {
                self.step = Step::Run;
                return Some(self.ids.priming());
            }
            Step::Run => {}
            Step::Done => return None,
        }
        loop {
            let state = tokio::select! {
                biased;
                () = self.holder.cancelled() => {
                    self.step = Step::Done;
                    return Some(sse::comment("another stream goes on from here"));
                }
                state = self.news.wait_for(|state| {
                    state.end.is_some() || state.progress.as_ref().is_some_and(|(number, _)| *number > self.told)
                }) => state.map(|state| state.clone()).ok(),
                comment = self.keep_alive.due() => return Some(comment),
            };
            // The run tells how it ended before it lets go.
            let Some(state) = state else {
                self.step = Step::Done;
                return None;
            };
            self.keep_alive.sent();
            if let Some((number, frame)) = state.progress
                && number > self.told
            {
                self.told = number;
                return Some(sse::message(self.ids.at(number).as_deref(), &frame));
            }
            if let Some(end) = state.end {
                self.step = Step::Done;
                return Some(match end {
                    End::Message(body, _) => self.ids.last(&body),
                    End::Unavailable => self.ids.last(&error_body(Some(&self.id), &Denial::Unavailable.v2025())),
                    End::Unwanted => self.ids.nothing_more(),
                });
            }
        }
    }
}
