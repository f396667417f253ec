//! `tools/call`, `prompts/get`, `resources/read` and `completion/complete`: admitted, then a task, or a call that is
//! answered at once.

use std::sync::Arc;

use longhaul_bus::{Control, Hint};
use longhaul_core::{LimitScope, Outcome, Refusal, Retry, Target, Task, TaskId, TaskSupport, TtlWish};
use longhaul_mcp::{Call, Denial, Reply, Wants, outcome_status};
use longhaul_policy::{Admitted, Aim, Reservation, Source, Wish};
use longhaul_rpc::{Error, trace};
use tokio::sync::OwnedSemaphorePermit;
use tracing::field::display;

use crate::catalogue::{Offered, Worker};
use crate::endpoint::{Answer, Asked, No, ended, http_status};
use crate::metrics::Operation;
use crate::random;
use crate::verbs::inline::{self, Wanted};
use crate::verbs::unheard::Unheard;
use crate::verbs::unknown_outcome;
use crate::watch::Seen;

/// How a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At once.
    Inline { may_become_task: bool },
    /// With a task; or at once, if there is no room for the task and it need not be one.
    Task { ttl: TtlWish, or_inline: bool, retry: Retry },
}

/// Carries out a call; `share` is what its body takes of the memory for bodies, until nobody needs the arguments any more.
pub(crate) async fn call(
    asked: &Asked,
    call: Call,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    let shared = &asked.shared;
    let Call { target, arguments, wants, progress_token, retry, .. } = call;
    let offer = shared.catalogue.offer().ok_or(No::Unavailable)?;
    let way = match &target {
        Target::Tool(name) => {
            let has_tasks = shared.catalogue.features(asked.dialect).is_some_and(|features| features.tasks);
            // One that needs a task is not listed where there are none (in a session it says why, as it always did).
            let is_hidden =
                |tool: &&Offered| asked.dialect.is_modern() && !has_tasks && tool.task_support == TaskSupport::Required;
            let tool = offer.tool(name).filter(|tool| !is_hidden(tool));
            let tool = tool.ok_or_else(|| asked.deny(unknown(&target)))?;
            let missing = asked.envelope.capabilities.missing(tool.needs);
            if !missing.is_empty() {
                return Err(asked.deny(Denial::MissingCapability(missing)));
            }
            way(tool, wants).map_err(|denial| asked.deny(denial))?
        }
        Target::Prompt(_) | Target::Resource(_) | Target::CompletePrompt(_) | Target::CompleteTemplate(_) => {
            Way::Inline { may_become_task: false }
        }
    };
    let workers = shared.catalogue.workers_for(&target).ok_or_else(|| asked.deny(unknown(&target)))?;
    let wanted = Wanted {
        target: target.clone(),
        progress_token,
        may_become_task: matches!(way, Way::Inline { may_become_task: true }),
        // Only a client that goes away is asked which call it comes back to.
        digest: if asked.dialect.is_modern() { inline::digest(&target, &arguments) } else { [0; 32] },
    };
    let retry = retry.filter(|retry| retry.state.is_some());
    let aim = match way {
        _ if retry.is_some() => Aim::Resumed,
        Way::Inline { .. } => Aim::Answer,
        Way::Task { or_inline: true, .. } => Aim::Either,
        Way::Task { or_inline: false, .. } => Aim::Task,
    };
    let asks = longhaul_policy::Call { target, arguments, aim, source: Source::Client };
    let admitted = shared.chain.admit((*asked.principal).clone(), asks).await.map_err(|error| asked.failed(error))?;
    if let Some(retry) = retry {
        return inline::come_back(asked, admitted, wanted, retry, share, operation).await;
    }
    let (admitted, share) = match way {
        Way::Task { ttl, or_inline, retry } if admitted.may_be_task() => {
            match create(asked, admitted, ttl, or_inline, retry, &wanted, share).await? {
                Created::Task(answer) => return Ok(answer),
                Created::Full(admitted, share) => (admitted, share),
            }
        }
        Way::Task { .. } | Way::Inline { .. } => (admitted, share),
    };
    let workers = match workers.is_empty() {
        true => next_workers(asked, &wanted.target).await?,
        false => workers,
    };
    inline::begin(asked, workers, admitted, wanted, share, operation).await
}

/// How a call of a tool is answered (MCP 2025-11-25, basic/utilities/tasks, "Tool-Level Negotiation"; in 2026-07-28 it is
/// for us to say).
fn way(tool: &Offered, wants: Wants) -> Result<Way, Denial<'static>> {
    use TaskSupport::{Forbidden, Optional, Required};
    match (wants, tool.task_support) {
        (Wants::Inline, Required) => Err(Denial::TaskRequired),
        (Wants::Task(_), Forbidden) => Err(Denial::TaskForbidden),
        (Wants::Inline, Optional | Forbidden) | (Wants::Either, Forbidden) => {
            Ok(Way::Inline { may_become_task: false })
        }
        (Wants::Task(ttl), Optional | Required) => Ok(Way::Task { ttl, or_inline: false, retry: tool.retry }),
        (Wants::Either, Optional | Required) if tool.decides => Ok(Way::Inline { may_become_task: true }),
        (Wants::Either, Optional) => Ok(Way::Task { ttl: TtlWish::Unsaid, or_inline: true, retry: tool.retry }),
        (Wants::Either, Required) => Ok(Way::Task { ttl: TtlWish::Unsaid, or_inline: false, retry: tool.retry }),
    }
}

/// The workers of what has none at the moment: a restart of the only one is over soon.
async fn next_workers(asked: &Asked, target: &Target) -> Result<Vec<Arc<Worker>>, No> {
    let shared = &asked.shared;
    let next = shared.catalogue.next_workers_for(target, shared.config.pace.worker_wait);
    let workers = shared.drain.run_until_cancelled(next).await.unwrap_or_default();
    if workers.is_empty() { Err(No::Unavailable) } else { Ok(workers) }
}

/// What a call for something that is not there hears.
fn unknown(target: &Target) -> Denial<'_> {
    match target {
        Target::Tool(name) => Denial::UnknownTool(name),
        Target::Prompt(name) | Target::CompletePrompt(name) => Denial::UnknownPrompt(name),
        Target::Resource(uri) | Target::CompleteTemplate(uri) => Denial::UnknownResource(uri),
    }
}

/// What came of the wish for a task.
enum Created {
    Task(Answer),
    /// There is no room for one, and the call may be answered at once.
    Full(Admitted, Option<OwnedSemaphorePermit>),
}

async fn create(
    asked: &Asked,
    admitted: Admitted,
    ttl: TtlWish,
    or_inline: bool,
    retry: Retry,
    wanted: &Wanted,
    share: Option<OwnedSemaphorePermit>,
) -> Result<Created, No> {
    let Asked { shared, principal, dialect, .. } = asked;
    let id = TaskId::from_random(u128::from_be_bytes(random()));
    tracing::Span::current().record("task.id", display(id));
    let session = asked.tag();
    let wish = Wish {
        ttl,
        // Since 2026-07-28 tasks have no progress notifications.
        progress_token: wanted.progress_token.clone().filter(|_| !dialect.is_modern()),
        session: session.map(|session| session.to_string()),
        trace: asked.trace.within(trace::current()),
        client: asked.envelope.capabilities,
        retry,
    };
    let (task, admitted) = admitted.task_or_call(id, wish).ok_or_else(|| asked.fault())?;
    let reservation = admitted.reservation().clone();
    let creating = {
        let (shared, principal, is_modern) = (shared.clone(), principal.clone(), dialect.is_modern());
        async move {
            let created = shared.tasks.create(task).await;
            hand_over(&reservation, &created);
            let created = created.map(|task| {
                if let Some(session) = session {
                    shared.notifier.created(session, id);
                    shared.bus.publish(Hint::Control(Control::SessionTask { session: session.to_string(), id }));
                }
                // If nobody waits for this any more, nobody will ever hear of the task.
                (task, is_modern.then(|| Unheard::new(&shared, &principal, id)))
            });
            Ok((created, share))
        }
    };
    let (created, share) = shared.see_through(creating).await.map_err(|error| asked.failed(error))?;
    match created {
        Ok((task, None)) => Ok(Created::Task(asked.well(&created_reply(asked, &task)))),
        Ok((task, Some(unheard))) => {
            drop(share);
            match ended_soon(asked, id).await {
                Some(outcome) => {
                    // It stays as any other task; its caller has no need to hear of it.
                    unheard.heard();
                    let released = shared.release(principal, &wanted.target, &outcome);
                    let outcome = released.map_err(|denied| asked.deny(Refusal::Denied(denied)))?;
                    shared.recorder.retrieved(id);
                    let body = asked.write(&Reply::CallOutcome { target: &wanted.target, outcome: &outcome });
                    let status = http_status(outcome_status(*dialect, &outcome));
                    Ok(Created::Task(Answer::Message { status, body, how: ended(&outcome) }))
                }
                None => {
                    let body = asked.write(&created_reply(asked, &task));
                    Ok(Created::Task(Answer::Handle { body, task: unheard }))
                }
            }
        }
        Err(Error::Refused(Refusal::TaskLimit { scope: LimitScope::Tenant, .. })) if or_inline => {
            Ok(Created::Full(admitted, share))
        }
        // It may have been stored, so to try again may do the work twice.
        Err(Error::Unavailable(why)) => {
            tracing::warn!(why, "it is not known whether a task was created");
            let message =
                "It is not known whether the task was created: look for it with tasks/get before trying again";
            Err(unknown_outcome(id, message))
        }
        Err(error) => {
            if matches!(error, Error::Refused(Refusal::TaskLimit { .. })) {
                shared.metrics.refused("task_limit");
                shared.recorder.full(principal, &wanted.target, trace::current().as_deref());
            }
            Err(asked.failed(error))
        }
    }
}

/// A task that was stored, or may have been, settles what was set aside for it.
pub(super) fn hand_over(reservation: &Reservation, created: &Result<Task, Error>) {
    match created {
        Ok(_) | Err(Error::Unavailable(_) | Error::Fault(_)) => reservation.handed_over(),
        Err(Error::Refused(_) | Error::NotBegun(_)) => {}
    }
}

fn created_reply<'a>(asked: &Asked, task: &'a Task) -> Reply<'a> {
    Reply::Created { task, poll_interval_ms: asked.shared.config.poll_interval_ms }
}

/// What came of a new task, if it ends so soon that its caller is better off with its outcome.
async fn ended_soon(asked: &Asked, id: TaskId) -> Option<Arc<Outcome>> {
    let Asked { shared, principal, .. } = asked;
    if shared.config.task_shortcut.is_zero() {
        return None;
    }
    let waiting = async {
        let (mut watch, mut seen) = shared.watches.open(principal, id, true).await.ok()?;
        loop {
            match seen {
                Seen::Task { outcome: Some(outcome), .. } => return Some(outcome),
                // Its caller must hear of the task to answer it.
                Seen::Task { task, outcome: None } if task.is_asking() => return None,
                Seen::Task { .. } => seen = watch.next().await,
                Seen::Gone(_) => return None,
            }
        }
    };
    tokio::time::timeout(shared.config.task_shortcut, waiting).await.ok().flatten()
}
