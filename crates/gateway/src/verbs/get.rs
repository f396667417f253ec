//! `tasks/get`: how a task is; where the dialect tells both at once, what came of it too.

use longhaul_core::{ClientCapabilities, Task};
use longhaul_mcp::{Reply, TaskRef};

use crate::endpoint::{Answer, Asked, No};
use crate::verbs::{check_declared, named};

pub(crate) async fn get(asked: &Asked, task: TaskRef) -> Result<Answer, No> {
    check_declared(asked, task).await?;
    let shared = &asked.shared;
    let id = named(task).map_err(|refusal| asked.deny(refusal))?;
    shared.chain.poll(&asked.principal, id).map_err(|error| asked.failed(error))?;
    let read = if asked.dialect.is_modern() {
        shared.tasks.result(&asked.principal, id).await
    } else {
        shared.tasks.get(&asked.principal, id).await.map(|task| (task, None))
    };
    let (mut task, outcome) = read.map_err(|error| asked.failed(error))?;
    if asked.dialect.is_modern() {
        hide(&mut task, asked.envelope.capabilities);
    }
    let outcome = shared.show(&mut task, outcome.as_ref());
    if outcome.is_some() {
        shared.recorder.retrieved(id);
    }
    let poll_interval_ms = shared.config.poll_interval_ms;
    Ok(asked.well(&Reply::Task { task: &task, outcome: outcome.as_deref(), poll_interval_ms }))
}

/// Leaves out the questions that whoever looks has not said that it can be asked. The task still
/// waits for them, and says so.
pub(crate) fn hide(task: &mut Task, client: ClientCapabilities) {
    let is_hidden = task.open_inputs().any(|(_, _, question)| !client.can_answer(question));
    if is_hidden {
        task.client = client;
        task.status_message = Some("Waits for input that this client has not declared it can give".into());
    }
}
