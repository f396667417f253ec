//! `tasks/cancel`: the task is cancelled before the answer; its work stops as soon as it can.

use bytes::Bytes;
use longhaul_mcp::{Reply, TaskRef, v2025};

use crate::endpoint::{Asked, No};
use crate::verbs::named;

pub(crate) async fn cancel(asked: &Asked, task: TaskRef) -> Result<Bytes, No> {
    let (shared, principal, id) = (asked.shared.clone(), asked.principal.clone(), named(task)?);
    let tasks = shared.tasks.clone();
    // Once asked for, it happens, even if the client hangs up meanwhile.
    let task = shared.see_through(async move { tasks.cancel(&principal, id).await }).await?;
    let reply = Reply::Task { task: &task, poll_interval_ms: shared.config.poll_interval_ms };
    Ok(v2025::write(asked.dialect(), &asked.id, &reply))
}
