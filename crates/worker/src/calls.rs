//! Calls that are not tasks: the same functions, for a caller who waits.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use longhaul_rpc::{CallEvent, CallEvents, Calls, Error, Invocation};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::answer::unknown_tool;
use crate::context::{Context, Ended, Listeners, Stop};
use crate::run::{Tasks, run};
use crate::tools::Tools;

/// Events of one call that its caller has not read yet; more wait.
const EVENTS_MAX: usize = 4;

/// Runs calls.
pub(crate) struct Inline {
    pub(crate) tools: Tools,
    /// One permit for each call at a time.
    pub(crate) open: Arc<Semaphore>,
    pub(crate) tasks: Tasks,
    /// Fires when the worker's time to drain is over.
    pub(crate) cut: CancellationToken,
    pub(crate) bytes_max: usize,
}

#[async_trait]
impl Calls for Inline {
    async fn invoke(&self, call: Invocation) -> Result<CallEvents, Error> {
        let permit = self.open.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Error::NotBegun("the worker takes no more calls at the moment".into()))?;
        let Some(tool) = self.tools.get(&call.tool) else {
            let outcome = CallEvent::Outcome(unknown_tool(&call.tool));
            return Ok(futures::stream::iter([Ok(outcome)]).boxed());
        };
        let span = tracing::info_span!(
            "run",
            otel.name = format!("run {}", call.tool),
            gen_ai.tool.name = call.tool,
            tenant.id = call.principal.tenant.as_str(),
        );
        let (events, answers) = mpsc::channel(EVENTS_MAX);
        let context = Context::of_call(&call.tool, &call.principal, tool.limit());
        let listeners = if call.progress { Listeners::Caller(events.clone()) } else { Listeners::Nobody };
        let (tasks, cut, bytes_max) = (self.tasks.clone(), self.cut.clone(), self.bytes_max);
        let running = async move {
            let stopping = async {
                tokio::select! {
                    () = events.closed() => context.stop(Stop::Ended(Ended::Stopped)),
                    () = cut.cancelled() => context.stop(Stop::Drained),
                }
                std::future::pending().await
            };
            let (outcome, remains) = tokio::select! {
                end = run(tool, &context, call.arguments, &listeners, &tasks, bytes_max) => end,
                never = stopping => never,
            };
            if let Some(outcome) = outcome {
                let _ = events.send(CallEvent::Outcome(outcome)).await;
            }
            drop((events, listeners));
            remains.end().await;
            drop(permit);
        };
        self.tasks.spawn(running.instrument(span)).detach();
        Ok(ReceiverStream::new(answers).map(Ok).boxed())
    }
}
