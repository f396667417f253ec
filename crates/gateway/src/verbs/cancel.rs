//! `tasks/cancel`: the task is cancelled before the answer; its work stops as soon as it can.

use longhaul_core::Refusal;
use longhaul_mcp::{Reply, TaskRef};
use longhaul_rpc::Error;

use crate::endpoint::{Answer, Asked, No};
use crate::verbs::{check_declared, named, unknown_outcome};

pub(crate) async fn cancel(asked: &Asked, task: TaskRef) -> Result<Answer, No> {
    check_declared(asked, task).await?;
    let id = named(task).map_err(|refusal| asked.deny(refusal))?;
    let (shared, principal) = (asked.shared.clone(), asked.principal.clone());
    let tasks = shared.tasks.clone();
    // Once asked for, it happens, even if the client hangs up meanwhile.
    let cancelled = shared.see_through(async move { tasks.cancel(&principal, id).await }).await;
    match cancelled {
        Ok(task) => {
            let poll_interval_ms = shared.config.poll_interval_ms;
            Ok(asked.well(&Reply::Cancelled { task: &task, poll_interval_ms }))
        }
        // There it is no error to come too late.
        Err(Error::Refused(Refusal::AlreadyEnded(_))) if asked.dialect.is_modern() => Ok(asked.well(&Reply::Done)),
        Err(Error::Unavailable(why)) => {
            tracing::warn!(why, "it is not known whether a task was cancelled");
            let message =
                "It is not known whether the task was cancelled: look at it with tasks/get before trying again";
            Err(unknown_outcome(id, message))
        }
        Err(error) => Err(asked.failed(error)),
    }
}
