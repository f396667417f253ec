//! `tools/call`: admitted, then a task, or a call that is answered at once.

use longhaul_bus::{Control, Hint};
use longhaul_core::{Refusal, TaskId, TaskSupport, TtlWish};
use longhaul_mcp::errors::code;
use longhaul_mcp::{Call, Denial, Reply, RpcError, Wants, v2025};
use longhaul_policy::{Admitted, Wish};
use longhaul_rpc::{Error, trace};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tracing::field::display;

use crate::endpoint::{Answer, Asked, No};
use crate::metrics::{Ended, Operation};
use crate::random;
use crate::verbs::inline;

/// Carries out a call; `share` is what its body takes of the memory for bodies, until nobody needs the arguments any more.
pub(crate) async fn call(
    asked: &Asked,
    call: Call,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    let shared = &asked.shared;
    let offer = shared.catalogue.offer().ok_or(No::Unavailable)?;
    let tool = offer.tool(&call.tool).ok_or(Denial::UnknownTool(&call.tool))?;
    match (call.wants, tool.task_support) {
        (Wants::Inline, TaskSupport::Required) => return Err(Denial::TaskRequired.into()),
        (Wants::Task(_), TaskSupport::Forbidden) => return Err(Denial::TaskForbidden.into()),
        (Wants::Inline, TaskSupport::Forbidden | TaskSupport::Optional)
        | (Wants::Task(_), TaskSupport::Optional | TaskSupport::Required) => {}
    }
    let Call { tool: name, arguments, wants, progress_token, .. } = call;
    let wanted = longhaul_policy::Call { tool: name, arguments };
    let admitted = shared.chain.admit((*asked.principal).clone(), wanted)?;
    match wants {
        Wants::Inline => {
            let invocation = admitted.invocation(progress_token.is_some());
            inline::call(asked, shared.catalogue.workers(tool), invocation, progress_token, share, operation).await
        }
        Wants::Task(ttl) => create(asked, admitted, ttl, progress_token, share).await,
    }
}

async fn create(
    asked: &Asked,
    admitted: Admitted,
    ttl: TtlWish,
    progress_token: Option<bytes::Bytes>,
    share: Option<OwnedSemaphorePermit>,
) -> Result<Answer, No> {
    let shared = asked.shared.clone();
    let id = TaskId::from_random(u128::from_be_bytes(random()));
    tracing::Span::current().record("task.id", display(id));
    let session = asked.tag;
    let wish = Wish {
        ttl,
        progress_token,
        session: Some(session.to_string()),
        traceparent: trace::current().or_else(|| asked.trace.traceparent.clone()),
    };
    let task = admitted.new_task(id, wish);
    let creating = {
        let shared = shared.clone();
        async move {
            let task = shared.tasks.create(task).await;
            drop(share);
            let task = task?;
            shared.notifier.created(session, id);
            shared.bus.publish(Hint::Control(Control::SessionTask { session: session.to_string(), id }));
            Ok::<_, Error>(task)
        }
    };
    let task = shared.see_through(creating).await.map_err(|error| match error {
        // It may have been stored, so to try again may do the work twice.
        Error::Unavailable(why) => {
            tracing::warn!(why, "it is not known whether a task was created");
            let message = "It is not known whether the task was created: look for it in tasks/list before trying again";
            No::Denied(RpcError::with_data(code::INTERNAL, message, &json!({ "taskId": id.to_string() })))
        }
        error => {
            if matches!(error, Error::Refused(Refusal::TaskLimit { .. })) {
                shared.metrics.refused("task_limit");
            }
            error.into()
        }
    })?;
    let reply = Reply::Created { task: &task, poll_interval_ms: shared.config.poll_interval_ms };
    Ok(Answer::Message(v2025::write(asked.dialect(), &asked.id, &reply), Ended::Well))
}
