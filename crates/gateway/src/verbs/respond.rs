//! A response to one of our requests: a client of a session answers a question, to whatever replica it likes (MCP
//! 2025-11-25, client/elicitation). The id says whose question it is; whoever else shows it is nobody.

use std::sync::Arc;

use longhaul_bus::{Control, Hint};
use longhaul_core::{InputKey, InputResponse, Principal, Refusal, Target, TaskId};
use longhaul_mcp::errors::code;
use longhaul_mcp::seal::RunQuestion;
use longhaul_mcp::{Denial, Dialect, QuestionKind, RequestId, RpcError, Unanswered, input_response, v2025};
use longhaul_rpc::{Calls as _, Error};

use crate::Shared;
use crate::endpoint::No;
use crate::in_flight::question_digest;
use crate::verbs::inline;

/// Takes an answer: the result of our request as JSON, or that the client answered with an error. A late or repeated one
/// changes nothing.
pub(crate) async fn respond(
    shared: &Arc<Shared>,
    principal: &Arc<Principal>,
    id: Option<&RequestId>,
    answer: Result<&str, Unanswered>,
) -> Result<(), No> {
    let id = id.and_then(RequestId::as_text).ok_or_else(unknown)?;
    if let Some((task, nth)) = v2025::parse_task_question_id(id).filter(|_| shared.config.tasks_legacy) {
        let response = match answer {
            // The question has gone to another stream, where the same client may be about to answer it.
            Err(Unanswered::Cancelled) => None,
            // Nothing else is asked inside a task.
            answer => Some(read(QuestionKind::Elicitation, answer)?),
        };
        return of_task(shared, principal, task, nth, response).await;
    }
    let question: RunQuestion = shared.open(principal, id).ok_or_else(unknown)?;
    let response = read(question.kind, answer)?;
    of_run(shared, principal, id, question, response).await
}

/// A client that answers with an error cannot, or will not, be asked.
fn read(kind: QuestionKind, answer: Result<&str, Unanswered>) -> Result<InputResponse, No> {
    let Ok(result) = answer else { return Ok(InputResponse::Decline) };
    input_response(kind, result).ok_or_else(|| no("The result is no answer to the request"))
}

async fn of_task(
    shared: &Arc<Shared>,
    principal: &Arc<Principal>,
    id: TaskId,
    nth: u32,
    response: Option<InputResponse>,
) -> Result<(), No> {
    if shared.chain.judges_answers() {
        match shared.tasks.get(principal, id).await {
            Ok(task) => shared.chain.answer(principal, &Target::Tool(task.tool)).map_err(refused)?,
            // Whoever may not know of the task hears what everybody hears.
            Err(Error::Refused(_)) => {}
            Err(error) => return Err(unavailable(error)),
        }
    }
    let (tasks, owner) = (shared.tasks.clone(), principal.clone());
    // May be repeated: the first answer to a question counts.
    let answers = response.map(|response| (InputKey::Nth(nth), response)).into_iter().collect();
    let mut task = shared.see_through(async move { tasks.respond(&owner, id, answers).await }).await;
    if let Err(Error::Refused(Refusal::AlreadyEnded(_) | Refusal::NotAsked)) = task {
        task = shared.tasks.get(principal, id).await;
    }
    match task {
        // A question that was never asked has no answer.
        Ok(task) if nth as usize > task.inputs.len() => Err(unknown()),
        Ok(_) | Err(Error::Refused(Refusal::Expired)) => Ok(()),
        Err(Error::Refused(_)) => Err(unknown()),
        Err(error) => Err(unavailable(error)),
    }
}

async fn of_run(
    shared: &Arc<Shared>,
    principal: &Arc<Principal>,
    id: &str,
    question: RunQuestion,
    response: InputResponse,
) -> Result<(), No> {
    // A worker that is gone has taken its runs with it: the answer comes too late.
    let Some(worker) = inline::worker(shared, &question.worker).await.map_err(unavailable)? else { return Ok(()) };
    let owner = principal.clone();
    let responding = async move { worker.client.respond(&owner, &question.run, vec![(question.key, response)]).await };
    match shared.see_through(responding).await {
        Ok(()) | Err(Error::Refused(_)) => {}
        Err(error) => return Err(unavailable(error)),
    }
    // The stream that carried it need not carry it again, wherever it is.
    let request = question_digest(id);
    if !shared.in_flight.cancel(request) {
        let request = format!("{request:032x}");
        shared.bus.publish(Hint::Control(Control::RequestCancelled { request }));
    }
    Ok(())
}

/// Another caller's question, like one that was never asked.
fn unknown() -> No {
    no("There is no such request to answer")
}

fn no(message: &'static str) -> No {
    No::Denied(RpcError::new(code::INVALID_PARAMS, message).into())
}

fn refused(error: Error) -> No {
    match error {
        Error::Refused(refusal) => No::Denied(Denial::from(refusal).reject(Dialect::V2025_11_25)),
        error => unavailable(error),
    }
}

fn unavailable(error: Error) -> No {
    tracing::debug!(%error, "an answer could not be handed on");
    No::Unavailable
}
