//! One run of an author's function: with a time limit, apart from everything else, and stopped when it must.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::{Interruption, Outcome};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::Instrument as _;

use crate::answer::{Answer, Failure, internal_error, outcome};
use crate::context::{Context, Stop};
use crate::function::Function;

/// How long a run that was told to stop may take to clean up.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(5);

/// The worker's own set of tasks: all of them end when the worker does.
#[derive(Clone)]
pub(crate) struct Tasks {
    pub(crate) tracker: TaskTracker,
    /// One token for each run, whether it works or waits: what drain waits for. Closed, there are to be no more.
    pub(crate) runs: TaskTracker,
    /// Fires when the worker is gone.
    pub(crate) gone: CancellationToken,
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self { tracker: TaskTracker::new(), runs: TaskTracker::new(), gone: CancellationToken::new() }
    }

    /// Spawns a future that ends, with `None`, when the worker is gone.
    pub(crate) fn spawn<F>(&self, future: F) -> AbortOnDropHandle<Option<F::Output>>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        AbortOnDropHandle::new(self.tracker.spawn(self.gone.clone().run_until_cancelled_owned(future)))
    }
}

/// What is left of a run that has its outcome: its function may still be cleaning up.
pub(crate) struct Remains {
    function: AbortOnDropHandle<Option<Option<Result<Answer, Failure>>>>,
    hook: Option<AbortOnDropHandle<Option<()>>>,
    callee: Arc<Function>,
}

/// Runs a function until it has answered, or need not any more (`None`). Passes on what it says and asks meanwhile.
pub(crate) async fn run(
    callee: Arc<Function>,
    context: &Context,
    arguments: Bytes,
    tasks: &Tasks,
    bytes_max: usize,
) -> (Option<Outcome>, Remains) {
    // A task of its own: a panic ends it alone, and one that never yields holds up nobody who waits for it here.
    let function = {
        let (callee, context) = (callee.clone(), context.clone());
        async move {
            let answer = callee.run(context.clone(), arguments).await;
            // What comes after the word to stop is no answer to the call.
            (!context.is_cancelled()).then_some(answer)
        }
        .in_current_span()
    };
    let mut function = tasks.spawn(function);
    let ending = async {
        let ending = tokio::select! {
            biased;
            end = &mut function => match end {
                Ok(Some(Some(answer))) => (Some(outcome(answer, bytes_max)), false),
                Err(error) if error.is_panic() => {
                    tracing::error!("the tool panicked");
                    (Some(internal_error("the tool panicked")), false)
                }
                Ok(Some(None)) => (unanswered(context.stopped().await, &callee), true),
                // The worker is gone.
                Ok(None) | Err(_) => (None, false),
            },
            why = context.stopped() => (unanswered(why, &callee), true),
            () = context.0.seat.run_out() => {
                context.stop(Stop::TimedOut);
                (unanswered(Stop::TimedOut, &callee), true)
            }
        };
        context.finish();
        ending
    };
    let ((outcome, stopped), (), ()) = tokio::join!(ending, context.pass_on(), context.attend());
    let hook = stopped.then(|| {
        let (callee, context) = (callee.clone(), context.clone());
        tasks.spawn(async move { callee.cancelled(context).await }.in_current_span())
    });
    (outcome, Remains { function, hook, callee })
}

fn unanswered(why: Stop, callee: &Function) -> Option<Outcome> {
    match why {
        Stop::Ended(_) => None,
        Stop::Drained => Some(Outcome::Interrupted(Interruption::Drained)),
        Stop::TimedOut => {
            let seconds = callee.timeout.unwrap_or_default().as_secs_f64();
            Some(internal_error(format!("timed out after {seconds} s")))
        }
    }
}

impl Remains {
    /// Lets a stopped run clean up for a while, then ends it.
    pub(crate) async fn end(self) {
        let Some(mut hook) = self.hook else { return };
        let mut function = self.function;
        let both = async {
            if (&mut hook).await.is_err_and(|error| error.is_panic()) {
                tracing::error!(name = self.callee.name, "the tool's on_cancel panicked");
            }
            // Finished ones answer at once; what they answer no longer matters.
            if !function.is_finished() {
                let _ = (&mut function).await;
            }
        };
        if tokio::time::timeout(STOP_GRACE, both).await.is_err() {
            tracing::warn!(name = self.callee.name, "a run that was told to stop was ended by force");
        }
    }
}
