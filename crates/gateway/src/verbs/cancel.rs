//! `tasks/cancel`: the task is cancelled before the answer; its work stops as soon as it can.

use bytes::Bytes;
use longhaul_mcp::errors::code;
use longhaul_mcp::{Reply, RpcError, TaskRef, v2025};
use longhaul_rpc::Error;
use serde_json::json;

use crate::endpoint::{Asked, No};
use crate::verbs::named;

pub(crate) async fn cancel(asked: &Asked, task: TaskRef) -> Result<Bytes, No> {
    let (shared, principal, id) = (asked.shared.clone(), asked.principal.clone(), named(task)?);
    let tasks = shared.tasks.clone();
    // Once asked for, it happens, even if the client hangs up meanwhile.
    let cancelled = shared.see_through(async move { tasks.cancel(&principal, id).await }).await;
    let task = cancelled.map_err(|error| match error {
        Error::Unavailable(why) => {
            tracing::warn!(why, "it is not known whether a task was cancelled");
            let message =
                "It is not known whether the task was cancelled: look at it with tasks/get before trying again";
            No::Denied(RpcError::with_data(code::INTERNAL, message, &json!({ "taskId": id.to_string() })))
        }
        error => error.into(),
    })?;
    let reply = Reply::Task { task: &task, poll_interval_ms: shared.config.poll_interval_ms };
    Ok(v2025::write(asked.dialect(), &asked.id, &reply))
}
