//! What each method does.

pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod discover;
pub(crate) mod get;
pub(crate) mod hello;
pub(crate) mod inline;
pub(crate) mod level;
pub(crate) mod listen;
pub(crate) mod page;
pub(crate) mod respond;
pub(crate) mod result;
pub(crate) mod subscribe;
pub(crate) mod tasks;
pub(crate) mod unheard;
pub(crate) mod update;

use longhaul_core::{Refusal, TaskId};
use longhaul_mcp::errors::{Denial, code};
use longhaul_mcp::{Reply, Request, RpcError, TaskRef};
use longhaul_rpc::Error;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tracing::field::display;

use crate::endpoint::{Answer, Asked, No};
use crate::metrics::Operation;

/// How long a cursor can be used.
const CURSOR_LIFE: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

/// Carries out a request. `share` is what its body takes of the memory for bodies, until nobody needs it any more. An
/// answer that goes on after this takes the operation, and ends it.
pub(crate) async fn serve(
    asked: &Asked,
    request: Request,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    match request {
        Request::Ping => Ok(asked.well(&Reply::Done)),
        Request::Discover => discover::discover(asked),
        Request::List { listing, cursor } => page::page(asked, listing, cursor.as_deref()),
        Request::Call(call) => call::call(asked, call, share, operation).await,
        Request::Subscribe { uri } => subscribe::subscribe(asked, uri).await,
        Request::Unsubscribe { uri } => subscribe::unsubscribe(asked, uri).await,
        Request::SetLevel(level) => level::set_level(asked, level).await,
        Request::Get(task) => get::get(asked, task).await,
        Request::Result(task) => result::result(asked, task, operation).await,
        Request::Tasks { cursor } => tasks::tasks(asked, cursor.as_deref()).await,
        Request::Cancel(task) => cancel::cancel(asked, task).await,
        Request::Update(update) => update::update(asked, update).await,
        Request::Listen(filter) => listen::listen(asked, filter, operation).await,
        // Answered before there was a session.
        Request::Hello(_) => Err(asked.fault()),
    }
}

/// The id of the task that a client named; what cannot be one is not found without a query.
fn named(task: TaskRef) -> Result<TaskId, Refusal> {
    let id = task.id.ok_or(Refusal::NotFound)?;
    tracing::Span::current().record("task.id", display(id));
    Ok(id)
}

/// Refuses a client of 2026-07-28 that has not declared the tasks extension and names anything but a task that it made in
/// a session: `tasks/get` and `tasks/cancel` go on for those (SEP-2663, "Compatibility").
async fn check_declared(asked: &Asked, task: TaskRef) -> Result<(), No> {
    if !asked.dialect.is_modern() || asked.envelope.tasks {
        return Ok(());
    }
    let found = match task.id {
        Some(id) => asked.shared.tasks.get(&asked.principal, id).await,
        None => Err(Refusal::NotFound.into()),
    };
    match found {
        Ok(task) if task.session.is_some() => Ok(()),
        Ok(_) | Err(Error::Refused(_)) => Err(asked.deny(Denial::TasksUndeclared)),
        Err(error) => Err(asked.failed(error)),
    }
}

/// The error when it is not known whether something was done to a task: to try again may do it twice.
fn unknown_outcome(id: TaskId, message: &'static str) -> No {
    let error = RpcError::with_data(code::INTERNAL, message, &json!({ "taskId": id.to_string() }));
    No::Denied(error.into())
}
