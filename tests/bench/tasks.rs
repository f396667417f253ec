//! What the load does: the MCP calls of the rows, each answer looked at.

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::client::Session;

const ECHO: &str = r#""method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}"#;
const CREATE_ECHO: &str = r#""method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"},"task":{}}}"#;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    task: Task,
}

/// A task as `tasks/get` shows it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    task_id: String,
    status: String,
    status_message: Option<String>,
    /// When it ended, if it did.
    pub last_updated_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Echoed {
    structured_content: Text,
}

/// A text block of a result.
#[derive(Deserialize)]
struct Text {
    text: String,
}

#[derive(Deserialize)]
struct Content {
    content: Vec<Text>,
}

/// A call that is not a task.
pub async fn inline(session: &mut Session) -> Result<()> {
    hello(&session.call(ECHO).await?)
}

/// A call that becomes a task; its id.
pub async fn create(session: &mut Session) -> Result<String> {
    created(session, CREATE_ECHO).await
}

/// A task that goes on for so long.
pub async fn create_countdown(session: &mut Session, seconds: f64) -> Result<String> {
    let arguments = format!(r#"{{"seconds":{seconds:.6},"steps":1}}"#);
    let rest =
        format!(r#""method":"tools/call","params":{{"name":"countdown","arguments":{arguments},"task":{{}}}}}}"#);
    created(session, &rest).await
}

/// A task from its creation until its result is here; its id.
pub async fn create_and_wait(session: &mut Session) -> Result<String> {
    let id = create(session).await?;
    hello(&session.call(&of_task("result", &id)).await?)?;
    Ok(id)
}

/// A task's state, which must be `status`.
pub async fn get(session: &mut Session, id: &str, status: &str) -> Result<Task> {
    of_status(session.call(&of_task("get", id)).await?, id, status)
}

/// Cancels a task.
pub async fn cancel(session: &mut Session, id: &str) -> Result<Task> {
    of_status(session.call(&of_task("cancel", id)).await?, id, "cancelled")
}

/// The part of a `tasks/…` request after its id.
pub fn of_task(verb: &str, id: &str) -> String {
    format!(r#""method":"tasks/{verb}","params":{{"taskId":"{id}"}}}}"#)
}

/// Whether a countdown came to its end.
#[derive(Deserialize)]
#[serde(from = "Content")]
pub struct CountedDown(pub bool);

impl From<Content> for CountedDown {
    fn from(Content { content }: Content) -> Self {
        Self(content.iter().any(|block| block.text.starts_with("counted down")))
    }
}

async fn created(session: &mut Session, rest: &str) -> Result<String> {
    let Created { task } = session.call(rest).await?;
    ensure!(task.status == "working", "a new task is {}", task.status);
    Ok(task.task_id)
}

fn of_status(task: Task, id: &str, status: &str) -> Result<Task> {
    let Task { task_id, status: actual, status_message: why, .. } = &task;
    ensure!(task_id == id && actual == status, "{id} is not {status}: {task_id} is {actual}, {why:?}");
    Ok(task)
}

fn hello(result: &Echoed) -> Result<()> {
    let text = &result.structured_content.text;
    ensure!(text == "hello", "echo answered {text:?}");
    Ok(())
}
