//! `tasks/get`.

use bytes::Bytes;
use longhaul_mcp::{Reply, TaskRef, v2025};

use crate::endpoint::{Asked, No};
use crate::verbs::named;

pub(crate) async fn get(asked: &Asked, task: TaskRef) -> Result<Bytes, No> {
    let task = asked.shared.tasks.get(&asked.principal, named(task)?).await?;
    let reply = Reply::Task { task: &task, poll_interval_ms: asked.shared.config.poll_interval_ms };
    Ok(v2025::write(asked.dialect(), &asked.id, &reply))
}
