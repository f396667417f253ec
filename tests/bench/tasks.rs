//! What the load does: the MCP calls of the rows, each answer looked at.

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::client::{Ask, Session};

const ECHO: &str = r#""name":"echo","arguments":{"text":"hello"}"#;

/// The handle of a new task: 2025-11-25 has it in `task`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Created {
    InTask { task: Task },
    Flat(Task),
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

/// A task that has ended, as 2026-07-28 shows it.
#[derive(Deserialize)]
struct Ended {
    result: Echoed,
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

fn tools_call(tool: &str, params: String, tasks: bool) -> Ask {
    Ask { method: "tools/call", name: tool.to_owned(), params, tasks }
}

/// A call that is not a task.
pub async fn inline(session: &mut Session) -> Result<()> {
    hello(&session.call(&tools_call("echo", ECHO.to_owned(), false)).await?)
}

/// A call that becomes a task; its id.
pub async fn create(session: &mut Session) -> Result<String> {
    created(session, &tools_call("echo", format!(r#"{ECHO},"task":{{}}"#), true)).await
}

/// A task that goes on for so long.
pub async fn create_countdown(session: &mut Session, seconds: f64) -> Result<String> {
    let arguments = format!(r#"{{"seconds":{seconds:.6},"steps":1}}"#);
    let params = format!(r#""name":"countdown","arguments":{arguments},"task":{{}}"#);
    created(session, &tools_call("countdown", params, true)).await
}

/// A task of a tool without arguments.
pub async fn create_asking(session: &mut Session, tool: &str) -> Result<String> {
    created(session, &tools_call(tool, format!(r#""name":"{tool}","arguments":{{}},"task":{{}}"#), true)).await
}

/// A task from its creation until its result is here; its id.
pub async fn create_and_wait(session: &mut Session) -> Result<String> {
    let id = create(session).await?;
    if session.modern {
        let params = format!(r#""notifications":{{"taskIds":["{id}"]}}"#);
        let listen = Ask { method: "subscriptions/listen", name: id.clone(), params, tasks: true };
        let Ended { result } = session.last_news(&listen).await?;
        hello(&result)?;
    } else {
        hello(&session.call(&of_task("tasks/result", &id)).await?)?;
    }
    Ok(id)
}

/// A task's state, which must be `status`.
pub async fn get(session: &mut Session, id: &str, status: &str) -> Result<Task> {
    of_status(session.call(&of_task("tasks/get", id)).await?, id, status)
}

/// Cancels a task, in 2025-11-25.
pub async fn cancel(session: &mut Session, id: &str) -> Result<Task> {
    of_status(session.call(&of_task("tasks/cancel", id)).await?, id, "cancelled")
}

/// A request of a task.
pub fn of_task(method: &'static str, id: &str) -> Ask {
    Ask { method, name: id.to_owned(), params: format!(r#""taskId":"{id}""#), tasks: true }
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

async fn created(session: &mut Session, ask: &Ask) -> Result<String> {
    let (Created::InTask { task } | Created::Flat(task)) = session.call(ask).await?;
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
