//! The task.

use std::time::Duration;

use bytes::Bytes;

use crate::budget::{Amount, Delta, Done, Reserved, charge};
use crate::client::ClientCapabilities;
use crate::id::{LeaseToken, TaskId, WorkerId};
use crate::input::{Input, InputRequest, InputState, Question};
use crate::principal::Principal;
use crate::time::Timestamp;

/// A durable tool call, without its payloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// To whom it belongs; to anyone else it does not exist.
    pub owner: Principal,
    /// The tool it calls.
    pub tool: String,
    /// Where it stands.
    pub phase: Phase,
    /// Raised by one with every visible change; starts at 1.
    pub version: u64,
    /// How often it was handed to a worker.
    pub attempt: u32,
    /// A sentence for people.
    pub status_message: Option<String>,
    /// How far the work is.
    pub progress: Option<Progress>,
    /// The progress token of the creating call: a JSON string or integer.
    pub progress_token: Option<Bytes>,
    /// The tag of the 2025-11-25 session that created it, for choosing the stream of its notifications.
    pub session: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed visibly.
    pub updated_at: Timestamp,
    /// How long it is kept from its creation, in milliseconds; `None` is for ever.
    pub ttl_ms: Option<u64>,
    /// What its creator can be asked.
    pub client: ClientCapabilities,
    /// Whether it is handed out again when its worker is lost.
    pub retry: Retry,
    /// All questions it ever asked, in order: at most [`QUESTIONS_MAX`](crate::input::QUESTIONS_MAX).
    pub inputs: Vec<Input>,
    /// What its budgets have set aside for it.
    pub reserved: Option<Reserved>,
    /// What its runs say that they have used so far.
    pub spent: Option<Amount>,
}

impl Task {
    /// When it is gone, if ever.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.ttl_ms.map(|ttl| self.created_at.plus(Duration::from_millis(ttl)))
    }

    /// How it ended, if it has.
    pub fn ending(&self) -> Option<Ending> {
        match self.phase {
            Phase::Ended(ending) => Some(ending),
            Phase::Queued | Phase::Running(_) => None,
        }
    }

    /// Once it has ended, what each of its budgets is charged for it.
    pub fn charged(&self) -> Option<Amount> {
        let reserved = self.reserved.as_ref()?;
        let done = match self.ending()? {
            Ending::Result { .. } | Ending::Error => Done::Answered,
            Ending::Cancelled | Ending::Interrupted(_) => Done::Broken,
        };
        Some(charge(reserved.amount, self.spent, done))
    }

    /// Once it has ended, what has to be added to what was taken for it from each of its budgets.
    pub fn settlement(&self) -> Option<Delta> {
        Some(self.charged()?.less(self.reserved.as_ref()?.amount))
    }

    /// The questions that wait for an answer: their number from 1, key and content.
    pub fn open_inputs(&self) -> impl Iterator<Item = (u32, &str, &Question)> {
        (1..).zip(&self.inputs).filter_map(|(nth, input)| match &input.state {
            InputState::Open { question, .. } => Some((nth, input.key.as_str(), question)),
            InputState::Closed => None,
        })
    }

    /// Whether it waits for its owner.
    pub fn is_asking(&self) -> bool {
        self.open_inputs().next().is_some()
    }

    /// When the next open question counts as declined.
    pub fn input_until(&self) -> Option<Timestamp> {
        let until = |input: &Input| match input.state {
            InputState::Open { until, .. } => Some(until),
            InputState::Closed => None,
        };
        self.inputs.iter().filter_map(until).min()
    }

    /// Whether it has asked all of this already, so that the same request again changes nothing. A closed question is
    /// known by its key alone.
    pub fn has_asked(&self, requests: &[InputRequest]) -> bool {
        requests.iter().all(|request| {
            self.inputs.iter().any(|input| {
                input.key == request.key
                    && match &input.state {
                        InputState::Open { question, .. } => *question == request.question,
                        InputState::Closed => true,
                    }
            })
        })
    }
}

/// Where a task stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Waits for a worker.
    Queued,
    /// A worker runs it.
    Running(Lease),
    /// Over; never changes again.
    Ended(Ending),
}

/// What becomes of a task whose worker is lost, or ends before the task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnInterrupt {
    /// It ends as interrupted.
    #[default]
    Fail,
    /// Another worker begins anew: for tools whose operator says that they may run twice.
    Requeue,
    /// Another worker goes on from the journal.
    Resume,
}

impl OnInterrupt {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fail, Self::Requeue, Self::Resume];

    /// Its stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Requeue => "requeue",
            Self::Resume => "resume",
        }
    }

    /// Reads a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// Whether, and how often, a task is handed out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Retry {
    /// What an interruption does.
    pub on_interrupt: OnInterrupt,
    /// How often it is handed out at most, so that a task that kills its workers does not kill them all.
    pub max_attempts: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self { on_interrupt: OnInterrupt::Fail, max_attempts: 3 }
    }
}

/// The right to run a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// Who holds it.
    pub worker: WorkerId,
    /// The claim it came from.
    pub token: LeaseToken,
    /// When it runs out, unless a heartbeat renews it.
    pub until: Timestamp,
}

/// How a task ended, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The tool answered.
    Result {
        /// The tool said that it failed (`isError`).
        is_error: bool,
    },
    /// The call failed with a JSON-RPC error.
    Error,
    /// The owner cancelled it.
    Cancelled,
    /// It could not be finished.
    Interrupted(Interruption),
}

/// Why a task could not be finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Interruption {
    /// Its worker was not heard of for the length of a lease.
    WorkerLost,
    /// Its worker shut down before it was done.
    Drained,
    /// Its time to live ran out.
    Expired,
}

impl Interruption {
    /// The sentence that its owner reads.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::WorkerLost => "Task interrupted: its worker stopped responding",
            Self::Drained => "Task interrupted: its worker shut down",
            Self::Expired => "Task interrupted: its time to live ran out",
        }
    }

    /// What happened, for a task that is not over by it.
    pub(crate) const fn cause(self) -> &'static str {
        match self {
            Self::WorkerLost => "Its worker stopped responding",
            Self::Drained => "Its worker shut down",
            Self::Expired => "Its time to live ran out",
        }
    }
}

/// How a call ended, with its payload.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The tool answered.
    Result {
        /// Whether the result carries `isError: true`.
        is_error: bool,
        /// The JSON of the `tools/call` result, as it came.
        body: Bytes,
    },
    /// A JSON-RPC error.
    Error(CallError),
    /// Cancelled.
    Cancelled,
    /// Could not be finished.
    Interrupted(Interruption),
}

impl Outcome {
    /// The outcome without its payload.
    pub fn ending(&self) -> Ending {
        match self {
            Self::Result { is_error, .. } => Ending::Result { is_error: *is_error },
            Self::Error(_) => Ending::Error,
            Self::Cancelled => Ending::Cancelled,
            Self::Interrupted(why) => Ending::Interrupted(*why),
        }
    }
}

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq)]
pub struct CallError {
    /// The code.
    pub code: i32,
    /// One short sentence.
    pub message: String,
    /// Any JSON, as it came.
    pub data: Option<Bytes>,
}

/// How far the work is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Strictly rises.
    pub progress: f64,
    /// What it rises to, if known.
    pub total: Option<f64>,
    /// A sentence for people.
    pub message: Option<String>,
}

/// What proves that a worker still holds a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The task.
    pub id: TaskId,
    /// The attempt it was handed out as.
    pub attempt: u32,
    /// The claim it was handed out in.
    pub token: LeaseToken,
}
