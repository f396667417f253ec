//! Generated types ⇄ core values, and the frames of each pipe; nowhere else.

use std::time::Duration;

use longhaul_core::{
    CallError, Caller, Check, Claimed, ClientCapabilities, Denied, Ending, Fence, Input, InputKey, InputRequest,
    InputResponse, InputState, Interruption, Lease, LeaseToken, LimitScope, LogLevel, LogMessage, NewTask, OnInterrupt,
    Outcome, Phase, Principal, Progress, PromptDef, Question, Refusal, ResourceDef, Retry, Target, Task, TaskId,
    TaskSupport, TemplateDef, TenantId, Timestamp, ToolDef, TraceContext, TtlWish, WorkerId, WorkerInfo,
};

use crate::budgets::{amount_from, amount_to, reserved_from, reserved_to};
use crate::pb;
use crate::pipe::{Reply, Request};
use crate::{Answers, Asked, Assignment, Claim, Directive, Error, Invocation, Line, Resume, SessionNote};

/// A frame lacks the named part, or it has another shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bad(pub(crate) &'static str);

pub(crate) type Read<T> = Result<T, Bad>;

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

fn trace_to(trace: TraceContext) -> pb::TraceContext {
    let TraceContext { traceparent, tracestate, baggage } = trace;
    pb::TraceContext { traceparent, tracestate, baggage }
}

fn trace_from(trace: Option<pb::TraceContext>) -> TraceContext {
    let pb::TraceContext { traceparent, tracestate, baggage } = trace.unwrap_or_default();
    TraceContext { traceparent, tracestate, baggage }
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
        trace: Some(trace_to(task.trace)),
        client: task.client.bits().into(),
        claimed: task.claimed.map(claimed_to),
        retry: Some(retry_to(task.retry)),
        reserved: task.reserved.map(reserved_to),
    }
}

fn retry_to(retry: Retry) -> pb::Retry {
    let on_interrupt = match retry.on_interrupt {
        OnInterrupt::Fail => pb::OnInterrupt::Fail,
        OnInterrupt::Requeue => pb::OnInterrupt::Requeue,
        OnInterrupt::Resume => pb::OnInterrupt::Resume,
    };
    pb::Retry { on_interrupt: on_interrupt.into(), max_attempts: retry.max_attempts }
}

fn retry_from(retry: Option<pb::Retry>) -> Read<Retry> {
    // Said by nobody before there were second attempts.
    let Some(retry) = retry else { return Ok(Retry::default()) };
    let on_interrupt = match pb::OnInterrupt::try_from(retry.on_interrupt).map_err(|_| Bad("on interrupt"))? {
        pb::OnInterrupt::Unspecified => return Err(Bad("on interrupt")),
        pb::OnInterrupt::Fail => OnInterrupt::Fail,
        pb::OnInterrupt::Requeue => OnInterrupt::Requeue,
        pb::OnInterrupt::Resume => OnInterrupt::Resume,
    };
    Ok(Retry { on_interrupt, max_attempts: retry.max_attempts })
}

pub(crate) fn claimed_to(claimed: Claimed) -> pb::Claimed {
    pb::Claimed { worker: Some(worker_id_to(&claimed.worker)), token: claimed.token.0 }
}

pub(crate) fn claimed_from(claimed: pb::Claimed) -> Read<Claimed> {
    Ok(Claimed { worker: worker_id_from(claimed.worker)?, token: LeaseToken(claimed.token) })
}

fn client_from(bits: u32) -> Read<ClientCapabilities> {
    Ok(ClientCapabilities::from_bits(u8::try_from(bits).map_err(|_| Bad("client"))?))
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
        trace: trace_from(task.trace),
        client: client_from(task.client)?,
        claimed: task.claimed.map(claimed_from).transpose()?,
        retry: retry_from(task.retry)?,
        reserved: task.reserved.map(reserved_from).transpose()?,
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
        client: task.client.bits().into(),
        inputs: task.inputs.into_iter().map(input_to).collect(),
        retry: Some(retry_to(task.retry)),
        reserved: task.reserved.map(reserved_to),
        spent: task.spent.map(amount_to),
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
        client: client_from(task.client)?,
        retry: retry_from(task.retry)?,
        inputs: task.inputs.into_iter().map(input_from).collect::<Read<_>>()?,
        reserved: task.reserved.map(reserved_from).transpose()?,
        spent: task.spent.map(amount_from),
    })
}

fn input_to(input: Input) -> pb::Input {
    match input.state {
        InputState::Open { question, until } => {
            pb::Input { key: input.key, question: Some(question_to(question)), until: until.as_micros() }
        }
        InputState::Closed => pb::Input { key: input.key, question: None, until: 0 },
    }
}

fn input_from(input: pb::Input) -> Read<Input> {
    let state = match input.question {
        Some(question) => {
            InputState::Open { question: question_from(Some(question))?, until: Timestamp::from_micros(input.until) }
        }
        None => InputState::Closed,
    };
    Ok(Input { key: input.key, state })
}

fn question_to(question: Question) -> pb::Question {
    use pb::question::Kind;
    let kind = match question {
        Question::Form { message, schema } => Kind::Form(pb::FormQuestion { message, schema }),
        Question::Url { message, url } => Kind::Url(pb::UrlQuestion { message, url }),
        Question::Sample { params } => Kind::Sample(params),
        Question::Roots => Kind::Roots(pb::RootsQuestion {}),
    };
    pb::Question { kind: Some(kind) }
}

fn question_from(question: Option<pb::Question>) -> Read<Question> {
    use pb::question::Kind;
    Ok(match question.and_then(|question| question.kind).ok_or(Bad("question"))? {
        Kind::Form(pb::FormQuestion { message, schema }) => Question::Form { message, schema },
        Kind::Url(pb::UrlQuestion { message, url }) => Question::Url { message, url },
        Kind::Sample(params) => Question::Sample { params },
        Kind::Roots(pb::RootsQuestion {}) => Question::Roots,
    })
}

pub(crate) fn requests_to(requests: Vec<InputRequest>) -> Vec<pb::InputRequest> {
    let request = |InputRequest { key, question }| pb::InputRequest { key, question: Some(question_to(question)) };
    requests.into_iter().map(request).collect()
}

pub(crate) fn requests_from(requests: Vec<pb::InputRequest>) -> Read<Vec<InputRequest>> {
    let request = |pb::InputRequest { key, question }| Ok(InputRequest { key, question: question_from(question)? });
    requests.into_iter().map(request).collect()
}

fn response_to(response: InputResponse) -> pb::InputResponse {
    use pb::input_response::Kind;
    let kind = match response {
        InputResponse::Accept(content) => Kind::Accepted(pb::Accepted { content }),
        InputResponse::Decline => Kind::Declined(pb::Declined {}),
        InputResponse::Cancel => Kind::Cancelled(pb::Cancelled {}),
        InputResponse::Result(result) => Kind::Result(result),
    };
    pb::InputResponse { kind: Some(kind) }
}

fn response_from(response: Option<pb::InputResponse>) -> Read<InputResponse> {
    use pb::input_response::Kind;
    Ok(match response.and_then(|response| response.kind).ok_or(Bad("response"))? {
        Kind::Accepted(pb::Accepted { content }) => InputResponse::Accept(content),
        Kind::Declined(pb::Declined {}) => InputResponse::Decline,
        Kind::Cancelled(pb::Cancelled {}) => InputResponse::Cancel,
        Kind::Result(result) => InputResponse::Result(result),
    })
}

pub(crate) fn keyed_to(answers: Vec<(InputKey, InputResponse)>) -> Vec<pb::Answer> {
    let answer = |(key, response)| {
        let input = match key {
            InputKey::Named(key) => pb::answer::Input::Key(key),
            InputKey::Nth(nth) => pb::answer::Input::Nth(nth),
        };
        pb::Answer { input: Some(input), response: Some(response_to(response)) }
    };
    answers.into_iter().map(answer).collect()
}

pub(crate) fn keyed_from(answers: Vec<pb::Answer>) -> Read<Vec<(InputKey, InputResponse)>> {
    let answer = |answer: pb::Answer| {
        let key = match answer.input.ok_or(Bad("answer"))? {
            pb::answer::Input::Key(key) => InputKey::Named(key),
            pb::answer::Input::Nth(nth) => InputKey::Nth(nth),
        };
        Ok((key, response_from(answer.response)?))
    };
    answers.into_iter().map(answer).collect()
}

pub(crate) fn answers_to(answers: Answers) -> Vec<pb::Answer> {
    keyed_to(answers.into_iter().map(|(key, response)| (InputKey::Named(key), response)).collect())
}

pub(crate) fn answers_from(answers: Vec<pb::Answer>) -> Read<Answers> {
    let named = |(key, response)| match key {
        InputKey::Named(key) => Ok((key, response)),
        InputKey::Nth(_) => Err(Bad("answer")),
    };
    keyed_from(answers)?.into_iter().map(named).collect()
}

pub(crate) fn collected_to(answers: Vec<(u32, InputResponse)>) -> pb::Collected {
    let answers = answers.into_iter().map(|(nth, response)| (InputKey::Nth(nth), response)).collect();
    pb::Collected { answers: keyed_to(answers) }
}

pub(crate) fn collected_from(collected: pb::Collected) -> Read<Vec<(u32, InputResponse)>> {
    let numbered = |(key, response)| match key {
        InputKey::Nth(nth) => Ok((nth, response)),
        InputKey::Named(_) => Err(Bad("answer")),
    };
    keyed_from(collected.answers)?.into_iter().map(numbered).collect()
}

pub(crate) fn level_from(name: &str) -> Read<LogLevel> {
    LogLevel::from_name(name).ok_or(Bad("log level"))
}

pub(crate) fn log_to(log: LogMessage) -> pb::LogMessage {
    pb::LogMessage { level: log.level.name().to_owned(), logger: log.logger, data: log.data }
}

pub(crate) fn log_from(log: pb::LogMessage) -> Read<LogMessage> {
    Ok(LogMessage { level: level_from(&log.level)?, logger: log.logger, data: log.data })
}

pub(crate) fn asked_to(asked: Asked) -> pb::Asked {
    pb::Asked { run: asked.run, round: asked.round, requests: requests_to(asked.requests) }
}

pub(crate) fn asked_from(asked: pb::Asked) -> Read<Asked> {
    Ok(Asked { run: asked.run, round: asked.round, requests: requests_from(asked.requests)? })
}

fn line_to(line: Line) -> pb::Line {
    pb::Line { progress: line.progress, log_level: line.log.map(|level| level.name().to_owned()) }
}

fn line_from(line: Option<pb::Line>) -> Read<Line> {
    let pb::Line { progress, log_level } = line.unwrap_or_default();
    Ok(Line { progress, log: log_level.as_deref().map(level_from).transpose()? })
}

pub(crate) fn resume_to(resume: Resume) -> pb::Resume {
    let Resume { principal, run, round, answers, client, line } = resume;
    pb::Resume {
        principal: Some(principal_to(&principal)),
        run,
        answers: answers_to(answers),
        line: Some(line_to(line)),
        round,
        client: client.bits().into(),
    }
}

pub(crate) fn resume_from(resume: pb::Resume) -> Read<Resume> {
    Ok(Resume {
        principal: principal_from(resume.principal)?,
        run: resume.run,
        round: resume.round,
        answers: answers_from(resume.answers)?,
        client: client_from(resume.client)?,
        line: line_from(resume.line)?,
    })
}

pub(crate) fn notes_to(notes: Vec<SessionNote>) -> Vec<pb::SessionNote> {
    let note = |SessionNote { session, ended, log_level, changed_at }| pb::SessionNote {
        session,
        ended,
        log_level: log_level.map(|level: LogLevel| level.name().to_owned()),
        changed_at: changed_at.as_micros(),
    };
    notes.into_iter().map(note).collect()
}

pub(crate) fn notes_from(notes: Vec<pb::SessionNote>) -> Read<Vec<SessionNote>> {
    let note = |pb::SessionNote { session, ended, log_level, changed_at }| {
        let log_level = log_level.as_deref().map(level_from).transpose()?;
        Ok(SessionNote { session, ended, log_level, changed_at: Timestamp::from_micros(changed_at) })
    };
    notes.into_iter().map(note).collect()
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
        decides: tool.decides,
        needs: tool.needs.bits().into(),
        retry: Some(retry_to(tool.retry)),
    };
    let prompt = |PromptDef { name, definition }| pb::Prompt { name, definition };
    let resource = |ResourceDef { uri, definition }| pb::Resource { uri, definition };
    let template = |TemplateDef { uri_template, definition }| pb::ResourceTemplate { uri_template, definition };
    pb::Worker {
        id: Some(worker_id_to(&worker.id)),
        url: worker.url,
        tools: worker.tools.into_iter().map(tool).collect(),
        prompts: worker.prompts.into_iter().map(prompt).collect(),
        resources: worker.resources.into_iter().map(resource).collect(),
        templates: worker.templates.into_iter().map(template).collect(),
        completes: worker.completes,
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
            decides: tool.decides,
            needs: client_from(tool.needs)?,
            retry: retry_from(tool.retry)?,
        })
    };
    let prompt = |pb::Prompt { name, definition }| PromptDef { name, definition };
    let resource = |pb::Resource { uri, definition }| ResourceDef { uri, definition };
    let template = |pb::ResourceTemplate { uri_template, definition }| TemplateDef { uri_template, definition };
    Ok(WorkerInfo {
        id: worker_id_from(worker.id)?,
        url: worker.url,
        tools: worker.tools.into_iter().map(tool).collect::<Read<_>>()?,
        prompts: worker.prompts.into_iter().map(prompt).collect(),
        resources: worker.resources.into_iter().map(resource).collect(),
        templates: worker.templates.into_iter().map(template).collect(),
        completes: worker.completes,
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
    let Assignment { task, arguments, trace } = assignment;
    pb::Assignment { task: Some(task_to(task)), arguments, trace: Some(trace_to(trace)) }
}

pub(crate) fn assignment_from(assignment: pb::Assignment) -> Read<Assignment> {
    let pb::Assignment { task, arguments, trace } = assignment;
    Ok(Assignment { task: task_from(task.ok_or(Bad("task"))?)?, arguments, trace: trace_from(trace) })
}

pub(crate) fn directive_to(directive: Directive) -> pb::Directive {
    use pb::directive::What;
    let what = match directive {
        Directive::Stop(id) => What::Stop(id.to_string()),
        Directive::Answered(id) => What::Answered(id.to_string()),
    };
    pb::Directive { what: Some(what) }
}

pub(crate) fn directive_from(directive: pb::Directive) -> Read<Directive> {
    use pb::directive::What;
    Ok(match directive.what.ok_or(Bad("directive"))? {
        What::Stop(id) => Directive::Stop(id_from(&id)?),
        What::Answered(id) => Directive::Answered(id_from(&id)?),
    })
}

pub(crate) fn invocation_to(call: Invocation) -> pb::Invocation {
    use pb::target::Kind;
    let kind = match call.target {
        Target::Tool(name) => Kind::Tool(name),
        Target::Prompt(name) => Kind::Prompt(name),
        Target::Resource(uri) => Kind::Resource(uri),
        Target::CompletePrompt(name) => Kind::CompletePrompt(name),
        Target::CompleteTemplate(template) => Kind::CompleteTemplate(template),
    };
    pb::Invocation {
        principal: Some(principal_to(&call.principal)),
        target: Some(pb::Target { kind: Some(kind) }),
        arguments: call.arguments,
        client: call.client.bits().into(),
        line: Some(line_to(call.line)),
        park_ms: call.park.map(|park| u64::try_from(park.as_millis()).unwrap_or(u64::MAX)),
        may_become_task: call.may_become_task,
        trace: Some(trace_to(call.trace)),
    }
}

pub(crate) fn invocation_from(call: pb::Invocation) -> Read<Invocation> {
    use pb::target::Kind;
    let target = match call.target.and_then(|target| target.kind).ok_or(Bad("target"))? {
        Kind::Tool(name) => Target::Tool(name),
        Kind::Prompt(name) => Target::Prompt(name),
        Kind::Resource(uri) => Target::Resource(uri),
        Kind::CompletePrompt(name) => Target::CompletePrompt(name),
        Kind::CompleteTemplate(template) => Target::CompleteTemplate(template),
    };
    Ok(Invocation {
        principal: principal_from(call.principal)?,
        target,
        arguments: call.arguments,
        client: client_from(call.client)?,
        line: line_from(call.line)?,
        park: call.park_ms.map(Duration::from_millis),
        may_become_task: call.may_become_task,
        trace: trace_from(call.trace),
    })
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
        Refusal::NotFound
        | Refusal::Expired
        | Refusal::Fenced
        | Refusal::KeyUsed(_)
        | Refusal::TooManyQuestions
        | Refusal::Unaskable
        | Refusal::NotAsked
        | Refusal::JournalFull
        | Refusal::Denied(_) => (None, None),
    };
    let key = if let Refusal::KeyUsed(key) = refusal { Some(key.clone()) } else { None };
    let (message, retry_after_ms) = match refusal {
        Refusal::Denied(Denied { message, retry_after, .. }) => {
            let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            (Some(message.clone()), retry_after.map(ms))
        }
        _ => (None, None),
    };
    pb::Refusal { name: refusal.name().to_owned(), ending, limit, key, message, retry_after_ms }
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
        "key_used" => Ok(Refusal::KeyUsed(refusal.key.ok_or(Bad("key"))?)),
        "too_many_questions" => Ok(Refusal::TooManyQuestions),
        "unaskable" => Ok(Refusal::Unaskable),
        "not_asked" => Ok(Refusal::NotAsked),
        "journal_full" => Ok(Refusal::JournalFull),
        "already_ended" => Ok(Refusal::AlreadyEnded(ending_from(refusal.ending.ok_or(Bad("ending"))?)?)),
        "task_limit_caller" => limit(LimitScope::Caller),
        "task_limit_tenant" => limit(LimitScope::Tenant),
        name => {
            let by = Check::from_name(name).ok_or(Bad("refusal"))?;
            let message = refusal.message.ok_or(Bad("message"))?;
            Ok(Refusal::Denied(Denied { by, message, retry_after: refusal.retry_after_ms.map(Duration::from_millis) }))
        }
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
