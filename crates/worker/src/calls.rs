//! Calls that are not tasks, or not yet: the same functions, for a caller who waits.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use longhaul_core::{Fence, Phase, Principal, Refusal, Target, Task};
use longhaul_rpc::{Answers, CallEvent, CallEvents, Calls, Error, Invocation, Resume};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::answer::unknown;
use crate::closing::Closing;
use crate::context::{Called, Context, Means, Route};
use crate::leases::{Held, Leases};
use crate::line::{CallLine, Runs};
use crate::run::{Tasks, run};
use crate::seat::Seat;
use crate::tools::Tools;

/// Events of one call that its caller has not read yet; more wait.
const EVENTS_MAX: usize = 4;

/// Runs calls.
pub(crate) struct Inline {
    pub(crate) tools: Tools,
    pub(crate) means: Arc<Means>,
    /// One permit for each call that runs at a time.
    pub(crate) open: Arc<Semaphore>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) tasks: Tasks,
    /// Fires when the worker's time to drain is over.
    pub(crate) cut: CancellationToken,
    pub(crate) bytes_max: usize,
    pub(crate) leases: Arc<Leases>,
    pub(crate) closing: Arc<Closing>,
}

/// A run that is over is one of those nobody can speak of.
struct Leaving(Arc<CallLine>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Inline {
    /// The run of that name, if it is this principal's and still a call.
    fn find(&self, run: &str, principal: Option<&Principal>) -> Result<(Context, Arc<CallLine>), Refusal> {
        let context = self.runs.get(run).ok_or(Refusal::NotFound)?;
        match context.route() {
            Route::Call(line) if principal.is_none_or(|principal| principal == context.principal()) => {
                Ok((context, line))
            }
            Route::Call(_) | Route::Task(_) => Err(Refusal::NotFound),
        }
    }
}

#[async_trait]
impl Calls for Inline {
    async fn invoke(&self, call: Invocation) -> Result<CallEvents, Error> {
        let Invocation { principal, target, arguments, client, line, park, may_become_task, trace } = call;
        let token_of_run = self.tasks.runs.token();
        if self.tasks.runs.is_closed() {
            return Err(Error::NotBegun("the worker is about to end".into()));
        }
        let permit = self.open.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Error::NotBegun("the worker takes no more calls at the moment".into()))?;
        let Some((function, variables)) = self.tools.get(&target) else {
            let outcome = CallEvent::Outcome(unknown(&target));
            return Ok(futures::stream::iter([Ok(outcome)]).boxed());
        };
        let span = tracing::info_span!(
            "run",
            otel.name = format!("run {}", target.name()),
            gen_ai.tool.name = matches!(target, Target::Tool(_)).then(|| target.name()),
            tenant.id = principal.tenant.as_str(),
        );
        let (events, answers) = mpsc::channel(EVENTS_MAX);
        let seat = Seat::new(self.open.clone(), None, function.timeout);
        seat.sit(permit);
        let line = CallLine::new(self.runs.clone(), events, line, park, may_become_task, arguments.len());
        let means = self.means.clone();
        let context =
            Context::of_call(means, function.clone(), Called { target, principal, client, trace }, line, seat);
        let Route::Call(line) = context.route() else { return Err(Error::Fault("a call is a task already".into())) };
        let arguments = variables.unwrap_or(arguments);
        let (tasks, cut, bytes_max) = (self.tasks.clone(), self.cut.clone(), self.bytes_max);
        let (leases, closing) = (self.leases.clone(), self.closing.clone());
        let running = async move {
            let leaving = Leaving(line.clone());
            let stopping = async {
                line.supervise(&context, &cut).await;
                std::future::pending().await
            };
            let (outcome, remains) = tokio::select! {
                end = run(function, &context, arguments, &tasks, bytes_max) => end,
                never = stopping => never,
            };
            line.decided().await;
            if let Some(fence) = context.fence() {
                // Whoever let go of it has ended it.
                if let Some(held) = leases.held(&fence) {
                    closing.close(&held, outcome, Some(remains)).await;
                } else {
                    remains.end().await;
                }
            } else {
                if let Some(outcome) = outcome {
                    line.last(&context, outcome, &cut).await;
                }
                drop(leaving);
                remains.end().await;
            }
            context.0.seat.free();
            drop(token_of_run);
        };
        self.tasks.spawn(running.instrument(span)).detach();
        Ok(ReceiverStream::new(answers).map(Ok).boxed())
    }

    async fn resume(&self, resume: Resume) -> Result<CallEvents, Error> {
        let (context, line) = self.find(&resume.run, Some(&resume.principal))?;
        let (events, answers) = mpsc::channel(EVENTS_MAX);
        line.resume(&context, events, resume)?;
        Ok(ReceiverStream::new(answers).map(Ok).boxed())
    }

    async fn respond(&self, principal: &Principal, run: &str, answers: Answers) -> Result<(), Error> {
        let (_, line) = self.find(run, Some(principal))?;
        Ok(line.respond(answers)?)
    }

    async fn became(&self, run: &str, task: Option<Task>) -> Result<(), Error> {
        let Some(task) = task else { return Ok(self.find(run, None)?.1.stays()?) };
        let Some(context) = self.runs.get(run) else { return Err(Refusal::NotFound.into()) };
        let line = match context.route() {
            Route::Call(line) => line,
            // Said again.
            Route::Task(_) if context.task_id() == Some(task.id) => return Ok(()),
            Route::Task(_) => return Err(Refusal::NotFound.into()),
        };
        let (claimed, told) = line.becoming().ok_or(Refusal::NotFound)?;
        match &task.phase {
            Phase::Running(lease) if lease.token == claimed.token && lease.worker == claimed.worker => {}
            Phase::Ended(_) => {}
            Phase::Running(_) | Phase::Queued => return Err(Error::Fault("the task is not this run's".into())),
        }
        let fence = Fence { id: task.id, attempt: task.attempt, token: claimed.token };
        if self.leases.add(Held::new(fence.clone(), context.clone(), told)) {
            context.turn_into(&task, fence);
        }
        if let Phase::Ended(ending) = task.phase {
            context.refused(&Refusal::AlreadyEnded(ending));
        }
        line.hang_up();
        Ok(())
    }

    async fn watch(&self, uri: &str) -> Result<BoxStream<'static, Result<(), Error>>, Error> {
        if self.tools.get(&Target::Resource(uri.to_owned())).is_none() {
            return Err(Refusal::NotFound.into());
        }
        self.means.resources.watch(uri)
    }
}
