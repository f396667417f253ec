//! What gateways ask of workers: calls that are not tasks, or not yet.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use longhaul_core::{
    Amount, Claimed, ClientCapabilities, InputRequest, InputResponse, LogLevel, LogMessage, Outcome, Principal,
    Progress, Target, Task, TraceContext,
};

use crate::Error;

/// A worker, as a gateway sees it.
#[async_trait]
pub trait Calls: Send + Sync {
    /// Begins a run. Dropping the events abandons the call, and the run is told to stop, unless it is parked or has become
    /// a task.
    async fn invoke(&self, call: Invocation) -> Result<CallEvents, Error>;
    /// Goes on with a parked run; questions that stay unanswered are asked again. A run that is not there, another
    /// principal's, or in another round is refused as not found.
    async fn resume(&self, resume: Resume) -> Result<CallEvents, Error>;
    /// Answers questions of a run whose caller is on the line; late, repeated and unknown answers change nothing. A run
    /// that is not there or another principal's is refused as not found.
    async fn respond(&self, principal: &Principal, run: &str, answers: Answers) -> Result<(), Error>;
    /// Tells a run, after [`CallEvent::Becoming`], that it goes on as this task, or that it cannot.
    async fn became(&self, run: &str, task: Option<Task>) -> Result<(), Error>;
    /// Says whenever a resource has changed, until dropped. The first item comes at once.
    async fn watch(&self, uri: &str) -> Result<BoxStream<'static, Result<(), Error>>, Error>;
}

/// Answers by the keys of their questions.
pub type Answers = Vec<(String, InputResponse)>;

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Invocation {
    /// Whose call it is.
    pub principal: Principal,
    /// What is called.
    pub target: Target,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
    /// What the caller can be asked.
    pub client: ClientCapabilities,
    /// What the caller wants to hear meanwhile.
    pub line: Line,
    /// How long the run, once it asks, waits parked for its caller to come back; `None` if the caller stays on the line.
    pub park: Option<Duration>,
    /// Whether the run may go on as a task.
    pub may_become_task: bool,
    /// The trace that the call belongs to.
    pub trace: TraceContext,
}

/// What a caller wants to hear while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Line {
    /// How far the run is.
    pub progress: bool,
    /// Log messages from this level on.
    pub log: Option<LogLevel>,
}

/// A caller that comes back to a parked run.
#[derive(Debug, Clone, PartialEq)]
pub struct Resume {
    /// Who comes back.
    pub principal: Principal,
    /// To which run.
    pub run: String,
    /// In which round: how often the run had asked.
    pub round: u32,
    /// What its questions are answered.
    pub answers: Answers,
    /// What the caller can be asked from now on.
    pub client: ClientCapabilities,
    /// What the caller wants to hear meanwhile.
    pub line: Line,
}

/// What a call brings: words, then an outcome, unless the run is parked or goes on as a task. An error means that the worker is gone.
pub type CallEvents = BoxStream<'static, Result<CallEvent, Error>>;

/// One word from a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallEvent {
    /// How far it is.
    Progress(Progress),
    /// Something for the caller's log.
    Log(LogMessage),
    /// It asks. The last word of a run that is parked; others go on once they are answered.
    Asked(Asked),
    /// It no longer wants the answers to these questions, by their keys: their time is over, or the tool has given up on
    /// them. Not said of a run that is parked.
    Withdrawn(Vec<String>),
    /// It wants to go on as a task, and waits for [`Calls::became`].
    Becoming {
        /// The run, for [`Calls::became`].
        run: String,
        /// In whose hands the task is to be created.
        claimed: Claimed,
    },
    /// What it has used so far, all in all.
    Spent(Amount),
    /// The last word.
    Outcome(Outcome),
}

/// The questions of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The run, by a name that cannot be guessed.
    pub run: String,
    /// How often it has asked, from 1.
    pub round: u32,
    /// What waits for an answer.
    pub requests: Vec<InputRequest>,
}
