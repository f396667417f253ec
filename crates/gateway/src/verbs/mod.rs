//! What each method does.

pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod get;
pub(crate) mod hello;
pub(crate) mod inline;
pub(crate) mod list;
pub(crate) mod result;
pub(crate) mod tools;

use bytes::Bytes;
use longhaul_core::{Refusal, TaskId};
use longhaul_mcp::{Reply, TaskRef, v2025};
use tracing::field::display;

use crate::endpoint::Asked;

/// How long a cursor can be used.
const CURSOR_LIFE: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

/// Here.
pub(crate) fn ping(asked: &Asked) -> Bytes {
    v2025::write(asked.dialect(), &asked.id, &Reply::Pong)
}

/// The id of the task that a client named; what cannot be one is not found without a query.
fn named(task: TaskRef) -> Result<TaskId, Refusal> {
    let id = task.id.ok_or(Refusal::NotFound)?;
    tracing::Span::current().record("task.id", display(id));
    Ok(id)
}
