//! Rows and values: how a task lies in the tables.

use bytes::Bytes;
use longhaul_core::{
    Amount, BudgetKey, BudgetWindow, CallError, Change, ClientCapabilities, Ending, Input, InputState, Interruption,
    Lease, LeaseToken, LogLevel, OnInterrupt, Outcome, Phase, Principal, Progress, PromptDef, Question, Reserved,
    ResourceDef, Retry, Task, TaskSupport, TemplateDef, TenantId, Timestamp, ToolDef, TraceContext, WorkerId,
    WorkerInfo,
};
use longhaul_rpc::{Assignment, SessionNote};
use serde::{Deserialize, Serialize};
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{Fault, Stored};

/// The columns of [`task`], of the table called `$t` in the statement.
macro_rules! task_columns {
    ($t:literal) => {
        concat!(
            $t,
            ".id, ",
            $t,
            ".tenant, ",
            $t,
            ".owner, ",
            $t,
            ".tool, ",
            $t,
            ".phase, ",
            $t,
            ".ending, ",
            $t,
            ".version, ",
            $t,
            ".attempt, ",
            $t,
            ".worker_name, ",
            $t,
            ".worker_incarnation, ",
            $t,
            ".lease_token, ",
            $t,
            ".lease_until, ",
            $t,
            ".status_message, ",
            $t,
            ".progress, ",
            $t,
            ".progress_total, ",
            $t,
            ".progress_message, ",
            $t,
            ".progress_token, ",
            $t,
            ".session, ",
            $t,
            ".created_at, ",
            $t,
            ".updated_at, ",
            $t,
            ".ttl_ms, ",
            $t,
            ".client, ",
            $t,
            ".inputs, ",
            $t,
            ".on_interrupt, ",
            $t,
            ".max_attempts, ",
            $t,
            ".reserved, ",
            $t,
            ".spent_units, ",
            $t,
            ".spent_micro_usd"
        )
    };
}
pub(crate) use task_columns;

/// Their places in a row.
pub(crate) mod at {
    pub const ID: usize = 0;
    pub const TENANT: usize = 1;
    pub const OWNER: usize = 2;
    pub const TOOL: usize = 3;
    pub const PHASE: usize = 4;
    pub const ENDING: usize = 5;
    pub const VERSION: usize = 6;
    pub const ATTEMPT: usize = 7;
    pub const WORKER_NAME: usize = 8;
    pub const WORKER_INCARNATION: usize = 9;
    pub const LEASE_TOKEN: usize = 10;
    pub const LEASE_UNTIL: usize = 11;
    pub const STATUS_MESSAGE: usize = 12;
    pub const PROGRESS: usize = 13;
    pub const PROGRESS_TOTAL: usize = 14;
    pub const PROGRESS_MESSAGE: usize = 15;
    pub const PROGRESS_TOKEN: usize = 16;
    pub const SESSION: usize = 17;
    pub const CREATED_AT: usize = 18;
    pub const UPDATED_AT: usize = 19;
    pub const TTL_MS: usize = 20;
    pub const CLIENT: usize = 21;
    pub const INPUTS: usize = 22;
    pub const ON_INTERRUPT: usize = 23;
    pub const MAX_ATTEMPTS: usize = 24;
    pub const RESERVED: usize = 25;
    pub const SPENT_UNITS: usize = 26;
    pub const SPENT_MICRO_USD: usize = 27;
    /// What a statement selects beyond a task.
    pub const MORE: usize = 28;
}

/// A row of either engine.
pub(crate) trait TaskRow {
    fn text(&self, at: usize) -> Result<Option<String>, Fault>;
    fn blob(&self, at: usize) -> Result<Option<Bytes>, Fault>;
    fn long(&self, at: usize) -> Result<Option<i64>, Fault>;
    fn int(&self, at: usize) -> Result<Option<i32>, Fault>;
    fn short(&self, at: usize) -> Result<Option<i16>, Fault>;
    fn real(&self, at: usize) -> Result<Option<f64>, Fault>;
}

impl<R: Row> TaskRow for R
where
    usize: ColumnIndex<R>,
    for<'r> &'r str: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> &'r [u8]: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i32: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i16: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> f64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn text(&self, at: usize) -> Result<Option<String>, Fault> {
        Ok(self.try_get::<Option<&str>, _>(at).map_err(odd)?.map(str::to_owned))
    }
    fn blob(&self, at: usize) -> Result<Option<Bytes>, Fault> {
        Ok(self.try_get::<Option<&[u8]>, _>(at).map_err(odd)?.map(Bytes::copy_from_slice))
    }
    fn long(&self, at: usize) -> Result<Option<i64>, Fault> {
        self.try_get(at).map_err(odd)
    }
    fn int(&self, at: usize) -> Result<Option<i32>, Fault> {
        self.try_get(at).map_err(odd)
    }
    fn short(&self, at: usize) -> Result<Option<i16>, Fault> {
        self.try_get(at).map_err(odd)
    }
    fn real(&self, at: usize) -> Result<Option<f64>, Fault> {
        self.try_get(at).map_err(odd)
    }
}

fn odd(error: sqlx::Error) -> Fault {
    Fault::Failed(format!("a row of another shape: {error}"))
}

/// A column that must be there.
pub(crate) fn there<T>(value: Option<T>, what: &str) -> Result<T, Fault> {
    value.ok_or_else(|| Fault::Failed(format!("a row without {what}")))
}

pub(crate) fn id<R: TaskRow>(row: &R, at: usize) -> Result<longhaul_core::TaskId, Fault> {
    there(row.text(at)?, "id")?.parse().map_err(|_| Fault::Failed("a row with an id of another shape".into()))
}

pub(crate) fn moment<R: TaskRow>(row: &R, at: usize) -> Result<Timestamp, Fault> {
    Ok(Timestamp::from_micros(there(row.long(at)?, "a moment")?))
}

/// The first [`at::MORE`] columns as a task.
pub(crate) fn task<R: TaskRow>(row: &R) -> Result<Task, Fault> {
    let owner = there(row.text(at::OWNER)?, "owner")?;
    let tenant = TenantId::new(there(row.text(at::TENANT)?, "tenant")?);
    let phase = match there(row.text(at::PHASE)?, "phase")?.as_str() {
        "queued" => Phase::Queued,
        "running" => Phase::Running(Lease {
            worker: WorkerId {
                name: there(row.text(at::WORKER_NAME)?, "worker_name")?,
                incarnation: there(row.text(at::WORKER_INCARNATION)?, "worker_incarnation")?,
            },
            token: LeaseToken(there(row.text(at::LEASE_TOKEN)?, "lease_token")?),
            until: moment(row, at::LEASE_UNTIL)?,
        }),
        _ => Phase::Ended(ending_from(&there(row.text(at::ENDING)?, "ending")?)?),
    };
    let progress = match row.real(at::PROGRESS)? {
        Some(progress) => Some(Progress {
            progress,
            total: row.real(at::PROGRESS_TOTAL)?,
            message: utf8(row.blob(at::PROGRESS_MESSAGE)?)?,
        }),
        None => None,
    };
    Ok(Task {
        id: id(row, at::ID)?,
        owner: there(Principal::from_owner(tenant, &owner), "an owner")?,
        tool: there(row.text(at::TOOL)?, "tool")?,
        phase,
        version: there(row.long(at::VERSION)?, "version")? as u64,
        attempt: there(row.int(at::ATTEMPT)?, "attempt")? as u32,
        status_message: utf8(row.blob(at::STATUS_MESSAGE)?)?,
        progress,
        progress_token: row.blob(at::PROGRESS_TOKEN)?,
        session: row.text(at::SESSION)?,
        created_at: moment(row, at::CREATED_AT)?,
        updated_at: moment(row, at::UPDATED_AT)?,
        ttl_ms: row.long(at::TTL_MS)?.map(|ms| ms as u64),
        client: ClientCapabilities::from_bits(there(row.short(at::CLIENT)?, "client")? as u8),
        retry: Retry {
            on_interrupt: OnInterrupt::from_name(&there(row.text(at::ON_INTERRUPT)?, "on_interrupt")?)
                .ok_or_else(|| Fault::Failed("an on_interrupt of another version".into()))?,
            max_attempts: there(row.int(at::MAX_ATTEMPTS)?, "max_attempts")? as u32,
        },
        inputs: match row.blob(at::INPUTS)? {
            Some(inputs) => inputs_from(&inputs)?,
            None => Vec::new(),
        },
        reserved: row.blob(at::RESERVED)?.map(|reserved| reserved_from(&reserved)).transpose()?,
        spent: match (row.long(at::SPENT_UNITS)?, row.long(at::SPENT_MICRO_USD)?) {
            (Some(units), Some(micro_usd)) => Some(Amount { units: units as u64, micro_usd: micro_usd as u64 }),
            (_, _) => None,
        },
    })
}

/// A task, its token, and its outcome from the three columns at `outcome` if `wanted` says so.
pub(crate) fn stored<R: TaskRow>(row: &R, outcome: usize, wanted: bool) -> Result<Stored, Fault> {
    let task = task(row)?;
    let token = row.text(at::LEASE_TOKEN)?.map(LeaseToken);
    let outcome = match task.ending() {
        Some(ending) if wanted => {
            let (body, code) = (row.blob(outcome)?, row.int(outcome + 1)?);
            Some(outcome_from(ending, body, code, row.blob(outcome + 2)?)?)
        }
        Some(_) | None => None,
    };
    Ok(Stored { task, token, outcome })
}

/// A task with `arguments`, `traceparent`, `tracestate` and `baggage` after it.
pub(crate) fn assignment<R: TaskRow>(row: &R) -> Result<Assignment, Fault> {
    Ok(Assignment {
        task: task(row)?,
        arguments: there(row.blob(at::MORE)?, "arguments")?,
        trace: TraceContext {
            traceparent: row.text(at::MORE + 1)?,
            tracestate: row.text(at::MORE + 2)?,
            baggage: row.text(at::MORE + 3)?,
        },
    })
}

/// `name, incarnation, url, tools, offers` as a worker.
pub(crate) fn worker<R: TaskRow>(row: &R) -> Result<WorkerInfo, Fault> {
    let offers = row.blob(4)?.map(|offers| json_from(&offers)).transpose()?.unwrap_or_default();
    let StoredOffers { prompts, resources, templates, completes } = offers;
    let tools: Vec<StoredTool> = json_from(&there(row.blob(3)?, "tools")?)?;
    Ok(WorkerInfo {
        id: WorkerId { name: there(row.text(0)?, "name")?, incarnation: there(row.text(1)?, "incarnation")? },
        url: row.text(2)?,
        tools: tools.into_iter().map(tool_from).collect(),
        prompts: each(prompts, |(name, definition)| PromptDef { name, definition: definition.into() }),
        resources: each(resources, |(uri, definition)| ResourceDef { uri, definition: definition.into() }),
        templates: each(templates, |(uri_template, definition)| TemplateDef {
            uri_template,
            definition: definition.into(),
        }),
        completes,
    })
}

/// `nth, sealed` as an answer, if there is one.
pub(crate) fn answer<R: TaskRow>(row: &R) -> Option<Result<(u32, Vec<u8>), Fault>> {
    let read = |nth: i32| Ok((nth as u32, there(row.blob(1)?, "an answer")?.into()));
    row.int(0).transpose().map(|nth| nth.and_then(read))
}

/// `session, ended, log_level, changed_at` as what is known of a session.
pub(crate) fn note<R: TaskRow>(row: &R) -> Result<SessionNote, Fault> {
    let level =
        |name: String| LogLevel::from_name(&name).ok_or_else(|| Fault::Failed("a log level of another version".into()));
    Ok(SessionNote {
        session: there(row.text(0)?, "session")?,
        ended: there(row.int(1)?, "ended")? == 1,
        log_level: row.text(2)?.map(level).transpose()?,
        changed_at: moment(row, 3)?,
    })
}

fn each<T, U>(list: Vec<T>, as_one: impl Fn(T) -> U) -> Vec<U> {
    list.into_iter().map(as_one).collect()
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(value).map_err(|error| Fault::Failed(error.to_string()))
}

/// Says where the JSON went wrong, but nothing of what is in it.
fn json_from<T: for<'r> Deserialize<'r>>(column: &[u8]) -> Result<T, Fault> {
    let odd = |error: serde_json::Error| format!("JSON of another shape, in column {}", error.column());
    serde_json::from_slice(column).map_err(|error| Fault::Failed(odd(error)))
}

fn text(bytes: &[u8], what: &str) -> Result<String, Fault> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Fault::Failed(format!("{what} is not UTF-8")))
}

fn utf8(bytes: Option<Bytes>) -> Result<Option<String>, Fault> {
    bytes
        .map(|bytes| String::from_utf8(bytes.into()))
        .transpose()
        .map_err(|_| Fault::Failed("text is not UTF-8".into()))
}

/// How an ending is spelt in a row.
pub(crate) const fn ending(ending: Ending) -> &'static str {
    match ending {
        Ending::Result { is_error: false } => "result",
        Ending::Result { is_error: true } => "tool_error",
        Ending::Error => "error",
        Ending::Cancelled => "cancelled",
        Ending::Interrupted(Interruption::WorkerLost) => "worker_lost",
        Ending::Interrupted(Interruption::Drained) => "drained",
        Ending::Interrupted(Interruption::Expired) => "expired",
    }
}

fn ending_from(text: &str) -> Result<Ending, Fault> {
    Ok(match text {
        "result" => Ending::Result { is_error: false },
        "tool_error" => Ending::Result { is_error: true },
        "error" => Ending::Error,
        "cancelled" => Ending::Cancelled,
        "worker_lost" => Ending::Interrupted(Interruption::WorkerLost),
        "drained" => Ending::Interrupted(Interruption::Drained),
        "expired" => Ending::Interrupted(Interruption::Expired),
        _ => return Err(Fault::Failed("an ending of another version".into())),
    })
}

/// How often a task is handed out, as a column.
pub(crate) fn attempts(retry: Retry) -> i32 {
    i32::try_from(retry.max_attempts).unwrap_or(i32::MAX)
}

/// How a phase is spelt in a row.
pub(crate) const fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Queued => "queued",
        Phase::Running(_) => "running",
        Phase::Ended(_) => "ended",
    }
}

/// An outcome as columns: result or error data, error code, error message.
pub(crate) fn outcome(outcome: Option<&Outcome>) -> (Option<&[u8]>, Option<i32>, Option<&[u8]>) {
    match outcome {
        Some(Outcome::Result { body, .. }) => (Some(body), None, None),
        Some(Outcome::Error(error)) => (error.data.as_deref(), Some(error.code), Some(error.message.as_bytes())),
        Some(Outcome::Cancelled | Outcome::Interrupted(_)) | None => (None, None, None),
    }
}

fn outcome_from(
    ending: Ending,
    body: Option<Bytes>,
    code: Option<i32>,
    message: Option<Bytes>,
) -> Result<Outcome, Fault> {
    Ok(match ending {
        Ending::Result { is_error } => Outcome::Result { is_error, body: there(body, "result")? },
        Ending::Error => Outcome::Error(CallError {
            code: there(code, "error_code")?,
            message: utf8(message)?.unwrap_or_default(),
            data: body,
        }),
        Ending::Cancelled => Outcome::Cancelled,
        Ending::Interrupted(why) => Outcome::Interrupted(why),
    })
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredInput {
    /// Key, deadline, question.
    Open(String, i64, StoredQuestion),
    /// Key.
    Closed(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredQuestion {
    /// Message, schema.
    Form(String, String),
    /// Message, URL.
    Url(String, String),
    Sample(String),
    Roots,
}

/// The questions of a task as one column; `None` leaves what is stored, so that a report moves none of their bytes.
pub(crate) fn inputs(change: &Change) -> Result<Option<Vec<u8>>, Fault> {
    if !change.moves_inputs || change.task.inputs.is_empty() {
        return Ok(None);
    }
    let question = |question: &Question| {
        Ok::<_, Fault>(match question {
            Question::Form { message, schema } => StoredQuestion::Form(message.clone(), text(schema, "a form")?),
            Question::Url { message, url } => StoredQuestion::Url(message.clone(), url.clone()),
            Question::Sample { params } => StoredQuestion::Sample(text(params, "a question")?),
            Question::Roots => StoredQuestion::Roots,
        })
    };
    let stored = change.task.inputs.iter().map(|Input { key, state }| {
        Ok(match state {
            InputState::Open { question: asked, until } => {
                StoredInput::Open(key.clone(), until.as_micros(), question(asked)?)
            }
            InputState::Closed => StoredInput::Closed(key.clone()),
        })
    });
    json(&stored.collect::<Result<Vec<_>, Fault>>()?).map(Some)
}

/// Reads what [`inputs`] wrote.
fn inputs_from(column: &[u8]) -> Result<Vec<Input>, Fault> {
    let question = |question| match question {
        StoredQuestion::Form(message, schema) => Question::Form { message, schema: schema.into() },
        StoredQuestion::Url(message, url) => Question::Url { message, url },
        StoredQuestion::Sample(params) => Question::Sample { params: params.into() },
        StoredQuestion::Roots => Question::Roots,
    };
    Ok(each(json_from::<Vec<_>>(column)?, |input| match input {
        StoredInput::Open(key, until, asked) => {
            Input { key, state: InputState::Open { question: question(asked), until: Timestamp::from_micros(until) } }
        }
        StoredInput::Closed(key) => Input { key, state: InputState::Closed },
    }))
}

/// Budget, tenant, holder, start of the window.
#[derive(Serialize, Deserialize)]
struct StoredWindow(String, String, String, i64);

/// Units, micro-USD, and of which budgets.
#[derive(Serialize, Deserialize)]
struct StoredReserved(u64, u64, Vec<StoredWindow>);

/// What a task has set aside, as one column.
pub(crate) fn reserved(reserved: &Reserved) -> Vec<u8> {
    let window = |BudgetWindow { key, starts_at }: &BudgetWindow| {
        StoredWindow(key.budget.clone(), key.tenant.clone(), key.holder.clone(), starts_at.as_micros())
    };
    let Reserved { amount, from } = reserved;
    let stored = StoredReserved(amount.units, amount.micro_usd, from.iter().map(window).collect());
    serde_json::to_vec(&stored).expect("invariant: texts and numbers are JSON")
}

/// Reads what [`reserved`] wrote.
fn reserved_from(column: &[u8]) -> Result<Reserved, Fault> {
    let StoredReserved(units, micro_usd, from) = json_from(column)?;
    let window = |StoredWindow(budget, tenant, holder, starts_at)| BudgetWindow {
        key: BudgetKey { budget, tenant, holder },
        starts_at: Timestamp::from_micros(starts_at),
    };
    Ok(Reserved { amount: Amount { units, micro_usd }, from: each(from, window) })
}

/// A row of an earlier version lacks the last ones.
#[derive(Serialize, Deserialize)]
struct StoredTool(
    String,
    u8,
    String,
    #[serde(default)] bool,
    #[serde(default)] u8,
    /// What an interruption does, and how often its tasks are handed out.
    #[serde(default)]
    Option<(String, u32)>,
);

/// What a worker offers beside tools; a row of an earlier version has none of it.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredOffers {
    prompts: Vec<(String, String)>,
    resources: Vec<(String, String)>,
    templates: Vec<(String, String)>,
    completes: bool,
}

/// What a worker offers as two columns: `tools, offers`.
pub(crate) fn offers(worker: &WorkerInfo) -> Result<(Vec<u8>, Option<Vec<u8>>), Fault> {
    let WorkerInfo { tools, prompts, resources, templates, completes, .. } = worker;
    let pair =
        |name: &str, definition: &[u8]| Ok::<_, Fault>((name.to_owned(), text(definition, &format!("{name:?}"))?));
    let tools = tools.iter().map(|tool| {
        let support = match tool.task_support {
            TaskSupport::Forbidden => 0,
            TaskSupport::Optional => 1,
            TaskSupport::Required => 2,
        };
        let (name, definition) = pair(&tool.name, &tool.definition)?;
        let retry = (tool.retry.on_interrupt.name().to_owned(), tool.retry.max_attempts);
        Ok(StoredTool(name, support, definition, tool.decides, tool.needs.bits(), Some(retry)))
    });
    let offers = StoredOffers {
        prompts: prompts.iter().map(|one| pair(&one.name, &one.definition)).collect::<Result<_, _>>()?,
        resources: resources.iter().map(|one| pair(&one.uri, &one.definition)).collect::<Result<_, _>>()?,
        templates: templates.iter().map(|one| pair(&one.uri_template, &one.definition)).collect::<Result<_, _>>()?,
        completes: *completes,
    };
    let has_more = !(prompts.is_empty() && resources.is_empty() && templates.is_empty()) || *completes;
    let offers = if has_more { Some(json(&offers)?) } else { None };
    Ok((json(&tools.collect::<Result<Vec<_>, Fault>>()?)?, offers))
}

fn tool_from(StoredTool(name, support, definition, decides, needs, retry): StoredTool) -> ToolDef {
    let retry = retry.and_then(|(policy, max_attempts)| {
        Some(Retry { on_interrupt: OnInterrupt::from_name(&policy)?, max_attempts })
    });
    ToolDef {
        name,
        task_support: match support {
            0 => TaskSupport::Forbidden,
            1 => TaskSupport::Optional,
            _ => TaskSupport::Required,
        },
        decides,
        needs: ClientCapabilities::from_bits(needs),
        retry: retry.unwrap_or_default(),
        definition: definition.into(),
    }
}
