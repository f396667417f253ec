//! `tasks/update`: answers to the questions of a task (MCP 2026-07-28).

use std::collections::HashMap;

use bytes::Bytes;
use longhaul_core::{InputKey, Refusal, Target};
use longhaul_mcp::errors::code;
use longhaul_mcp::{QuestionKind, Reply, RpcError, Update, input_response};
use longhaul_rpc::Error;

use crate::endpoint::{Answer, Asked, No};
use crate::verbs::named;

pub(crate) async fn update(asked: &Asked, update: Update) -> Result<Answer, No> {
    let shared = &asked.shared;
    let id = named(update.task).map_err(|refusal| asked.deny(refusal))?;
    let task = shared.tasks.get(&asked.principal, id).await.map_err(|error| asked.failed(error))?;
    let target = Target::Tool(task.tool.clone());
    shared.chain.answer(&asked.principal, &target).map_err(|error| asked.failed(error))?;
    let open: HashMap<_, _> = task.open_inputs().map(|(_, key, question)| (key, QuestionKind::of(question))).collect();
    let mut answers = Vec::new();
    for (key, response) in update.responses {
        // What is not asked, or no longer, is ignored, whatever it looks like.
        let Some(kind) = open.get(&*key) else { continue };
        let response = read(*kind, &response).ok_or_else(|| malformed(&key))?;
        answers.push((InputKey::Named(key), response));
    }
    if !answers.is_empty() {
        let (tasks, principal) = (shared.tasks.clone(), asked.principal.clone());
        // May be repeated: the first answer to a question counts.
        match shared.see_through(async move { tasks.respond(&principal, id, answers).await }).await {
            // It has ended, or was answered elsewhere, meanwhile.
            Ok(_) | Err(Error::Refused(Refusal::AlreadyEnded(_) | Refusal::NotAsked)) => {}
            Err(error) => return Err(asked.failed(error)),
        }
    }
    Ok(asked.well(&Reply::Done))
}

fn read(kind: QuestionKind, response: &Bytes) -> Option<longhaul_core::InputResponse> {
    input_response(kind, std::str::from_utf8(response).ok()?)
}

/// No answer at all, and so none of those that came with it counts.
fn malformed(key: &str) -> No {
    let message = format!("Invalid params: inputResponses[{key:?}] is no answer to what was asked");
    No::Denied(RpcError::new(code::INVALID_PARAMS, message).into())
}
