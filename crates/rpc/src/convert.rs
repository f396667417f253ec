//! Generated types ⇄ core values, and the frames of each pipe; nowhere else.

use std::time::Duration;

use longhaul_core::{
    CallError, Caller, Ending, Fence, Interruption, Lease, LeaseToken, LimitScope, NewTask, Outcome, Phase, Principal,
    Progress, Refusal, Task, TaskId, TaskSupport, TenantId, Timestamp, ToolDef, TtlWish, WorkerId, WorkerInfo,
};

use crate::pb;
use crate::pipe::{Reply, Request};
use crate::{Assignment, Claim, Directive, Error, Invocation};

/// A frame lacks the named part, or it has another shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bad(pub(crate) &'static str);

type Read<T> = Result<T, Bad>;

pub(crate) fn id_from(id: &str) -> Read<TaskId> {
    id.parse().map_err(|_| Bad("task id"))
}

pub(crate) fn principal_to(principal: &Principal) -> pb::Principal {
    let caller = match &principal.caller {
        Caller::Agent(agent) => pb::principal::Caller::Agent(agent.clone()),
        Caller::Person { app, person } => {
            pb::principal::Caller::Person(pb::Person { app: app.clone(), person: person.clone() })
        }
    };
    pb::Principal { tenant: principal.tenant.as_str().to_owned(), caller: Some(caller) }
}

pub(crate) fn principal_from(principal: Option<pb::Principal>) -> Read<Principal> {
    let principal = principal.ok_or(Bad("principal"))?;
    let caller = match principal.caller.ok_or(Bad("principal"))? {
        pb::principal::Caller::Agent(agent) => Caller::Agent(agent),
        pb::principal::Caller::Person(pb::Person { app, person }) => Caller::Person { app, person },
    };
    Ok(Principal { tenant: TenantId::new(principal.tenant), caller })
}

pub(crate) fn new_task_to(task: NewTask) -> pb::NewTask {
    use pb::ttl_wish::Wish;
    let ttl = match task.ttl {
        TtlWish::Unsaid => None,
        TtlWish::Ms(ms) => Some(Wish::Ms(ms)),
        TtlWish::Longest => Some(Wish::Longest(true)),
    };
    pb::NewTask {
        id: task.id.to_string(),
        owner: Some(principal_to(&task.owner)),
        tool: task.tool,
        arguments: task.arguments,
        ttl: ttl.map(|wish| pb::TtlWish { wish: Some(wish) }),
        progress_token: task.progress_token,
        session: task.session,
        traceparent: task.traceparent,
    }
}

pub(crate) fn new_task_from(task: pb::NewTask) -> Read<NewTask> {
    use pb::ttl_wish::Wish;
    Ok(NewTask {
        id: id_from(&task.id)?,
        owner: principal_from(task.owner)?,
        tool: task.tool,
        arguments: task.arguments,
        ttl: match task.ttl.and_then(|ttl| ttl.wish) {
            None => TtlWish::Unsaid,
            Some(Wish::Ms(ms)) => TtlWish::Ms(ms),
            Some(Wish::Longest(_)) => TtlWish::Longest,
        },
        progress_token: task.progress_token,
        session: task.session,
        traceparent: task.traceparent,
    })
}

pub(crate) fn task_to(task: Task) -> pb::Task {
    use pb::task::Phase as P;
    let phase = match task.phase {
        Phase::Queued => P::Queued(pb::Queued {}),
        Phase::Running(lease) => P::Running(pb::Lease {
            worker: Some(worker_id_to(&lease.worker)),
            token: lease.token.0,
            until: lease.until.as_micros(),
        }),
        Phase::Ended(ending) => P::Ended(ending_to(ending).into()),
    };
    pb::Task {
        id: task.id.to_string(),
        owner: Some(principal_to(&task.owner)),
        tool: task.tool,
        version: task.version,
        attempt: task.attempt,
        status_message: task.status_message,
        progress: task.progress.map(progress_to),
        progress_token: task.progress_token,
        session: task.session,
        created_at: task.created_at.as_micros(),
        updated_at: task.updated_at.as_micros(),
        ttl_ms: task.ttl_ms,
        phase: Some(phase),
    }
}

pub(crate) fn task_from(task: pb::Task) -> Read<Task> {
    use pb::task::Phase as P;
    let phase = match task.phase.ok_or(Bad("phase"))? {
        P::Queued(_) => Phase::Queued,
        P::Running(lease) => Phase::Running(Lease {
            worker: worker_id_from(lease.worker)?,
            token: LeaseToken(lease.token),
            until: Timestamp::from_micros(lease.until),
        }),
        P::Ended(ending) => Phase::Ended(ending_from(ending)?),
    };
    Ok(Task {
        id: id_from(&task.id)?,
        owner: principal_from(task.owner)?,
        tool: task.tool,
        phase,
        version: task.version,
        attempt: task.attempt,
        status_message: task.status_message,
        progress: task.progress.map(progress_from),
        progress_token: task.progress_token,
        session: task.session,
        created_at: Timestamp::from_micros(task.created_at),
        updated_at: Timestamp::from_micros(task.updated_at),
        ttl_ms: task.ttl_ms,
    })
}

fn ending_to(ending: Ending) -> pb::Ending {
    match ending {
        Ending::Result { is_error: false } => pb::Ending::Result,
        Ending::Result { is_error: true } => pb::Ending::ToolError,
        Ending::Error => pb::Ending::Error,
        Ending::Cancelled => pb::Ending::Cancelled,
        Ending::Interrupted(Interruption::WorkerLost) => pb::Ending::WorkerLost,
        Ending::Interrupted(Interruption::Drained) => pb::Ending::Drained,
        Ending::Interrupted(Interruption::Expired) => pb::Ending::Expired,
    }
}

fn ending_from(ending: i32) -> Read<Ending> {
    Ok(match pb::Ending::try_from(ending).map_err(|_| Bad("ending"))? {
        pb::Ending::Unspecified => return Err(Bad("ending")),
        pb::Ending::Result => Ending::Result { is_error: false },
        pb::Ending::ToolError => Ending::Result { is_error: true },
        pb::Ending::Error => Ending::Error,
        pb::Ending::Cancelled => Ending::Cancelled,
        pb::Ending::WorkerLost => Ending::Interrupted(Interruption::WorkerLost),
        pb::Ending::Drained => Ending::Interrupted(Interruption::Drained),
        pb::Ending::Expired => Ending::Interrupted(Interruption::Expired),
    })
}

pub(crate) fn outcome_to(outcome: Outcome) -> pb::Outcome {
    let ending = ending_to(outcome.ending()).into();
    match outcome {
        Outcome::Result { body, .. } => pb::Outcome { ending, result: body, error: None },
        Outcome::Error(CallError { code, message, data }) => {
            pb::Outcome { ending, result: bytes::Bytes::new(), error: Some(pb::CallError { code, message, data }) }
        }
        Outcome::Cancelled | Outcome::Interrupted(_) => {
            pb::Outcome { ending, result: bytes::Bytes::new(), error: None }
        }
    }
}

pub(crate) fn outcome_from(outcome: pb::Outcome) -> Read<Outcome> {
    Ok(match ending_from(outcome.ending)? {
        Ending::Result { is_error } => Outcome::Result { is_error, body: outcome.result },
        Ending::Error => {
            let pb::CallError { code, message, data } = outcome.error.ok_or(Bad("error"))?;
            Outcome::Error(CallError { code, message, data })
        }
        Ending::Cancelled => Outcome::Cancelled,
        Ending::Interrupted(why) => Outcome::Interrupted(why),
    })
}

pub(crate) fn progress_to(progress: Progress) -> pb::Progress {
    let Progress { progress, total, message } = progress;
    pb::Progress { progress, total, message }
}

pub(crate) fn progress_from(progress: pb::Progress) -> Progress {
    let pb::Progress { progress, total, message } = progress;
    Progress { progress, total, message }
}

pub(crate) fn worker_id_to(id: &WorkerId) -> pb::WorkerId {
    pb::WorkerId { name: id.name.clone(), incarnation: id.incarnation.clone() }
}

pub(crate) fn worker_id_from(id: Option<pb::WorkerId>) -> Read<WorkerId> {
    let pb::WorkerId { name, incarnation } = id.ok_or(Bad("worker"))?;
    Ok(WorkerId { name, incarnation })
}

pub(crate) fn worker_to(worker: WorkerInfo) -> pb::Worker {
    let support = |support| match support {
        TaskSupport::Forbidden => pb::TaskSupport::Forbidden,
        TaskSupport::Optional => pb::TaskSupport::Optional,
        TaskSupport::Required => pb::TaskSupport::Required,
    };
    let tool = |tool: ToolDef| pb::Tool {
        name: tool.name,
        task_support: support(tool.task_support).into(),
        definition: tool.definition,
    };
    pb::Worker {
        id: Some(worker_id_to(&worker.id)),
        url: worker.url,
        tools: worker.tools.into_iter().map(tool).collect(),
    }
}

pub(crate) fn worker_from(worker: pb::Worker) -> Read<WorkerInfo> {
    let tool = |tool: pb::Tool| {
        Ok(ToolDef {
            name: tool.name,
            task_support: match pb::TaskSupport::try_from(tool.task_support).map_err(|_| Bad("task support"))? {
                pb::TaskSupport::Unspecified => return Err(Bad("task support")),
                pb::TaskSupport::Forbidden => TaskSupport::Forbidden,
                pb::TaskSupport::Optional => TaskSupport::Optional,
                pb::TaskSupport::Required => TaskSupport::Required,
            },
            definition: tool.definition,
        })
    };
    Ok(WorkerInfo {
        id: worker_id_from(worker.id)?,
        url: worker.url,
        tools: worker.tools.into_iter().map(tool).collect::<Read<_>>()?,
    })
}

pub(crate) fn fence_to(fence: Fence) -> pb::Fence {
    pb::Fence { id: fence.id.to_string(), attempt: fence.attempt, token: fence.token.0 }
}

pub(crate) fn fence_from(fence: Option<pb::Fence>) -> Read<Fence> {
    let fence = fence.ok_or(Bad("fence"))?;
    Ok(Fence { id: id_from(&fence.id)?, attempt: fence.attempt, token: LeaseToken(fence.token) })
}

pub(crate) fn claim_to(claim: Claim) -> pb::Claim {
    pb::Claim {
        worker: Some(worker_id_to(&claim.worker)),
        token: claim.token.0,
        tools: claim.tools,
        max: claim.max,
        wait_ms: u32::try_from(claim.wait.as_millis()).unwrap_or(u32::MAX),
    }
}

pub(crate) fn claim_from(claim: pb::Claim) -> Read<Claim> {
    Ok(Claim {
        worker: worker_id_from(claim.worker)?,
        token: LeaseToken(claim.token),
        tools: claim.tools,
        max: claim.max,
        wait: Duration::from_millis(claim.wait_ms.into()),
    })
}

pub(crate) fn assignment_to(assignment: Assignment) -> pb::Assignment {
    let Assignment { task, arguments, traceparent } = assignment;
    pb::Assignment { task: Some(task_to(task)), arguments, traceparent }
}

pub(crate) fn assignment_from(assignment: pb::Assignment) -> Read<Assignment> {
    let pb::Assignment { task, arguments, traceparent } = assignment;
    Ok(Assignment { task: task_from(task.ok_or(Bad("task"))?)?, arguments, traceparent })
}

pub(crate) fn directive_to(directive: Directive) -> pb::Directive {
    match directive {
        Directive::Stop(id) => pb::Directive { stop: id.to_string() },
    }
}

pub(crate) fn directive_from(directive: pb::Directive) -> Read<Directive> {
    Ok(Directive::Stop(id_from(&directive.stop)?))
}

pub(crate) fn invocation_to(call: Invocation) -> pb::Invocation {
    let Invocation { principal, tool, arguments, progress } = call;
    pb::Invocation { principal: Some(principal_to(&principal)), tool, arguments, progress }
}

pub(crate) fn invocation_from(call: pb::Invocation) -> Read<Invocation> {
    let pb::Invocation { principal, tool, arguments, progress } = call;
    Ok(Invocation { principal: principal_from(principal)?, tool, arguments, progress })
}

pub(crate) fn seen_to(seen: Vec<(TaskId, u64)>) -> pb::SeenTasks {
    pb::SeenTasks { seen: seen.into_iter().map(|(id, version)| pb::SeenTask { id: id.to_string(), version }).collect() }
}

pub(crate) fn seen_from(seen: pb::SeenTasks) -> Read<Vec<(TaskId, u64)>> {
    seen.seen.into_iter().map(|seen| Ok((id_from(&seen.id)?, seen.version))).collect()
}

pub(crate) fn refusal_to(refusal: &Refusal) -> pb::Refusal {
    let (ending, limit) = match refusal {
        Refusal::AlreadyEnded(ending) => (Some(ending_to(*ending).into()), None),
        Refusal::TaskLimit { limit, .. } => (None, Some(u64::from(*limit))),
        Refusal::NotFound | Refusal::Expired | Refusal::Fenced => (None, None),
    };
    pb::Refusal { name: refusal.name().to_owned(), ending, limit }
}

pub(crate) fn refusal_from(refusal: pb::Refusal) -> Read<Refusal> {
    let limit = |scope| {
        let limit = refusal.limit.and_then(|limit| u32::try_from(limit).ok()).ok_or(Bad("limit"))?;
        Ok(Refusal::TaskLimit { scope, limit })
    };
    match refusal.name.as_str() {
        "not_found" => Ok(Refusal::NotFound),
        "expired" => Ok(Refusal::Expired),
        "fenced" => Ok(Refusal::Fenced),
        "already_ended" => Ok(Refusal::AlreadyEnded(ending_from(refusal.ending.ok_or(Bad("ending"))?)?)),
        "task_limit_caller" => limit(LimitScope::Caller),
        "task_limit_tenant" => limit(LimitScope::Tenant),
        _ => Err(Bad("refusal")),
    }
}

pub(crate) fn fault_from(fault: pb::Fault) -> Error {
    match fault {
        pb::Fault { not_begun: true, message, .. } => Error::NotBegun(message),
        pb::Fault { retry: true, message, .. } => Error::Unavailable(message),
        pb::Fault { message, .. } => Error::Fault(message),
    }
}

/// The frames of each pipe differ in their types alone; a trait cannot read a generated field, so this writes it thrice.
macro_rules! frames {
    ($request:ident, $verbs:ident, $cancel:ident, $reply:ident, $answers:ident) => {
        impl Request for pb::$request {
            type Verb = pb::$verbs::Verb;

            fn new(id: u64, verb: Self::Verb) -> Self {
                Self { id, traceparent: crate::trace::current(), verb: Some(verb) }
            }

            fn cancel(id: u64) -> Self {
                Self { id, traceparent: None, verb: Some(pb::$verbs::Verb::CancelRequest(pb::$cancel {})) }
            }

            fn id(&self) -> u64 {
                self.id
            }

            fn into_verb(self) -> Option<(Self::Verb, Option<String>)> {
                match self.verb {
                    None | Some(pb::$verbs::Verb::CancelRequest(_)) => None,
                    Some(verb) => Some((verb, self.traceparent)),
                }
            }
        }

        impl Reply for pb::$reply {
            type Answer = pb::$answers::Answer;

            fn new(id: u64, answer: Self::Answer) -> Self {
                Self { id, answer: Some(answer) }
            }

            fn fault(fault: pb::Fault) -> Self::Answer {
                pb::$answers::Answer::Fault(fault)
            }

            fn as_fault(answer: &mut Self::Answer) -> Option<&mut pb::Fault> {
                if let pb::$answers::Answer::Fault(fault) = answer { Some(fault) } else { None }
            }

            fn into_answer(self) -> (u64, Option<Self::Answer>) {
                (self.id, self.answer)
            }
        }

        impl From<Error> for pb::$answers::Answer {
            fn from(error: Error) -> Self {
                let (message, retry, not_begun) = match error {
                    Error::Refused(refusal) => return Self::Refusal(refusal_to(&refusal)),
                    Error::Unavailable(message) => (message, true, false),
                    Error::NotBegun(message) => (message, true, true),
                    Error::Fault(message) => (message, false, false),
                };
                Self::Fault(pb::Fault { retry, message, not_begun })
            }
        }
    };
}

frames!(TasksRequest, tasks_request, CancelRequest, TasksReply, tasks_reply);
frames!(WorkRequest, work_request, StopWaiting, WorkReply, work_reply);
frames!(CallsRequest, calls_request, AbandonCall, CallsReply, calls_reply);
