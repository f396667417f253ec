//! A call that is answered at once: it runs on a worker, and its client waits.
//!
//! In a session the run belongs to the gateway, not to the connection: a client that hangs up cancels nothing (MCP
//! 2025-11-25, basic/transports), and may come back to the same replica for the answer. Since 2026-07-28 the run belongs to
//! its request, and ends with it (basic/patterns/cancellation).

mod feed;
mod kept;
mod mrtr;
mod run;
mod stream;

use std::sync::Arc;

use bytes::Bytes;
use longhaul_core::{ClientCapabilities, LogLevel, Target, WorkerId};
use longhaul_mcp::Retry;
use longhaul_policy::{Admitted, Becoming, How};
use longhaul_rpc::{Error, Line, trace};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tracing::Instrument as _;

use crate::Shared;
use crate::catalogue::Worker;
use crate::endpoint::{Answer, Asked, No};
use crate::metrics::Operation;
use crate::verbs::unheard::Unheard;
use feed::{End, Listener, Said};
use run::{Interest, Run, Start};

pub(crate) use kept::Runs;
pub(crate) use mrtr::digest;
pub(crate) use stream::resume;

/// From which level on a session hears log messages that has not said (MCP 2025-11-25, server/utilities/logging).
const UNSAID_LOG_LEVEL: LogLevel = LogLevel::Info;

/// What is wanted of a run, beside what it is to do.
pub(crate) struct Wanted {
    /// What is called.
    pub(crate) target: Target,
    /// Under which token its client hears of progress: a JSON string or integer.
    pub(crate) progress_token: Option<Bytes>,
    /// Whether it may go on as a task.
    pub(crate) may_become_task: bool,
    /// What tells the call from other calls ([`digest`]).
    pub(crate) digest: [u8; 32],
}

/// Begins a run and answers: as JSON if that is all its client takes or if it is over soon, else as a stream. `share` is
/// what its body takes of the memory for bodies, until nobody needs the arguments any more.
pub(crate) async fn begin(
    asked: &Asked,
    workers: Vec<Arc<Worker>>,
    admitted: Admitted,
    wanted: Wanted,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    let how = How {
        client: askable(asked, &wanted),
        line: line(asked, &wanted),
        park: asked.dialect.is_modern().then_some(asked.shared.config.input_timeout),
        may_become_task: wanted.may_become_task,
        trace: asked.trace.within(trace::current()),
    };
    let (invocation, becoming) = admitted.invocation(how);
    go(asked, Start::Fresh { workers, invocation }, becoming, wanted, share, operation).await
}

/// Goes on with a run whose client comes back with what it was asked. One that does not say to which run makes a fresh call.
pub(crate) async fn come_back(
    asked: &Asked,
    admitted: Admitted,
    wanted: Wanted,
    retry: Retry,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    let Some(state) = retry.state else {
        let workers = asked.shared.catalogue.workers_for(&wanted.target).ok_or(No::Unavailable)?;
        return begin(asked, workers, admitted, wanted, share, operation).await;
    };
    let start = mrtr::again(asked, &wanted, &state, &retry.responses).await?;
    go(asked, start, admitted.resumed(), wanted, share, operation).await
}

/// What the client can be asked in the answer to this request. In a session a question is a message on a stream; since
/// 2026-07-28 it is an answer, which a completion cannot be (basic/patterns/mrtr).
fn askable(asked: &Asked, wanted: &Wanted) -> ClientCapabilities {
    let is_completion = matches!(wanted.target, Target::CompletePrompt(_) | Target::CompleteTemplate(_));
    if !is_completion && (asked.dialect.is_modern() || asked.accepts.stream) {
        asked.envelope.capabilities
    } else {
        ClientCapabilities::default()
    }
}

/// What the client hears meanwhile, if it takes anything but the answer.
fn line(asked: &Asked, wanted: &Wanted) -> Line {
    let hears = asked.accepts.stream;
    let least = asked.envelope.log_level.or(asked.session.as_ref().map(|_| UNSAID_LOG_LEVEL));
    Line { progress: hears && wanted.progress_token.is_some(), log: least.filter(|_| hears) }
}

/// The worker that a token names. One that has just come may not be known here yet.
pub(super) async fn worker(shared: &Shared, id: &WorkerId) -> Result<Option<Arc<Worker>>, Error> {
    if let Some(worker) = shared.catalogue.worker(id) {
        return Ok(Some(worker));
    }
    shared.catalogue.refresh(&*shared.tasks).await?;
    Ok(shared.catalogue.worker(id))
}

async fn go(
    asked: &Asked,
    start: Start,
    becoming: Becoming,
    wanted: Wanted,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    let shared = &asked.shared;
    // Runs may outlive their connections, so connections do not bound them.
    let permit = shared.calls.clone().try_acquire_owned().map_err(|_| No::Unavailable)?;
    let (tell, news) = watch::channel(Said::default());
    let (interest, heard) = match asked.tag() {
        Some(tag) => (Interest::Session(shared.in_flight.enter(tag, &asked.id)), None),
        None => {
            let (heard, hears) = oneshot::channel();
            (Interest::Request(hears), Some(heard))
        }
    };
    let mut listener = Listener::new(news, 0, heard);
    let stream = shared.runs.stream_id();
    let run = Run::new(asked.clone(), wanted, becoming, tell, interest, operation.take());
    let running = {
        let shared = shared.clone();
        async move {
            let bytes = run.run(start).await;
            drop((permit, share));
            shared.runs.over(&shared, stream, bytes).await;
        }
    };
    shared.tracker.spawn(running.in_current_span());

    if asked.accepts.json {
        let patience = async {
            match asked.accepts.stream {
                true => tokio::time::sleep(shared.config.pace.stream_after).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = listener.wait(asked.accepts.stream) => {}
            () = patience => {}
        }
        if !(asked.accepts.stream && listener.has_words())
            && let Some(end) = listener.end()
        {
            return answer(asked, end);
        }
        if !asked.accepts.stream {
            return Err(asked.fault());
        }
    }
    Ok(Answer::Stream(stream::open(asked, listener, stream)))
}

/// The answer of a run that has nothing else to tell.
fn answer(asked: &Asked, end: End) -> Result<Answer, No> {
    match end {
        End::Message { body, task: Some(task), .. } => {
            Ok(Answer::Handle { body, task: Unheard::new(&asked.shared, &asked.principal, task) })
        }
        End::Message { status, body, how, task: None } => Ok(Answer::Message { status, body, how }),
        End::Unavailable => Err(No::Unavailable),
        End::Unwanted => Ok(Answer::Nothing),
    }
}
