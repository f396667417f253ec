//! Every "no" that is a normal answer.

use std::time::Duration;

use crate::task::Ending;

/// A "no", with a stable name; `docs/REFUSALS.md` has a paragraph for each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such task, or somebody else's: one value, so that nobody can tell which.
    #[error("Task not found")]
    NotFound,
    /// The caller's own task, gone for good.
    #[error("Failed to retrieve task: Task has expired")]
    Expired,
    /// An ended task never changes.
    #[error("the task has already ended")]
    AlreadyEnded(Ending),
    /// The worker no longer holds the task.
    #[error("the task is no longer held by this worker")]
    Fenced,
    /// A key names one question for the life of its task.
    #[error("the key {0:?} has been used for another question")]
    KeyUsed(String),
    /// More questions than a task may ask.
    #[error("a task asks at most {} questions", crate::input::QUESTIONS_MAX)]
    TooManyQuestions,
    /// The question may not be shown, or its caller cannot be asked it.
    #[error("the question cannot be asked")]
    Unaskable,
    /// None of the answered questions is open: late, repeated and unknown answers change nothing.
    #[error("none of these questions waits for an answer")]
    NotAsked,
    /// The journal has as many entries, or bytes, as it may.
    #[error(
        "the journal of a task has at most {} entries and {} bytes",
        crate::limits::JOURNAL_ENTRIES_MAX,
        crate::limits::JOURNAL_BYTES_MAX
    )]
    JournalFull,
    /// Too many open tasks.
    #[error("too many open tasks ({limit} at most)")]
    TaskLimit {
        /// Whose tasks were counted.
        scope: LimitScope,
        /// The limit.
        limit: u32,
    },
    /// A check of the admission chain is against the call.
    #[error("{}", .0.message)]
    Denied(Denied),
}

/// What a check of the admission chain has against a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// Which check.
    pub by: Check,
    /// A sentence for people: what to do, and nothing of the rule's content.
    pub message: String,
    /// When the same call may be let in, where that is known.
    pub retry_after: Option<Duration>,
}

/// A check of the admission chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Check {
    /// An operator has switched the scope off.
    KillSwitch,
    /// Too many calls in too short a time.
    RateLimit,
    /// A Cedar policy.
    Policy,
    /// There is nothing left to spend.
    Budget,
    /// Arguments or a result hold data that may not pass.
    DataPolicy,
    /// A rule about the call's shape, or an external judge.
    Guardrail,
}

impl Check {
    /// All of them, in the order of the chain.
    pub const ALL: [Self; 6] =
        [Self::KillSwitch, Self::RateLimit, Self::Policy, Self::Budget, Self::DataPolicy, Self::Guardrail];

    /// Its stable name, as clients read it in `refused_by`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KillSwitch => "kill_switch",
            Self::RateLimit => "rate_limit",
            Self::Policy => "policy",
            Self::Budget => "budget",
            Self::DataPolicy => "data_policy",
            Self::Guardrail => "guardrail",
        }
    }

    /// Reads a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.name() == name)
    }
}

/// Whose tasks a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitScope {
    /// `mcp_task_max_open`
    Caller,
    /// `mcp_task_max_live`
    Tenant,
}

impl Refusal {
    /// The stable name, the same in every layer.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Expired => "expired",
            Self::AlreadyEnded(_) => "already_ended",
            Self::Fenced => "fenced",
            Self::KeyUsed(_) => "key_used",
            Self::TooManyQuestions => "too_many_questions",
            Self::Unaskable => "unaskable",
            Self::NotAsked => "not_asked",
            Self::JournalFull => "journal_full",
            Self::TaskLimit { scope: LimitScope::Caller, .. } => "task_limit_caller",
            Self::TaskLimit { scope: LimitScope::Tenant, .. } => "task_limit_tenant",
            Self::Denied(denied) => denied.by.name(),
        }
    }
}
