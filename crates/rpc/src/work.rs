//! What workers ask of the task-store.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use longhaul_core::{
    Amount, Fence, InputRequest, InputResponse, LeaseToken, Outcome, Progress, Task, TaskId, TraceContext, WorkerId,
    WorkerInfo,
};

use crate::Error;

/// The task-store, as a worker sees it. Every verb may be repeated without harm.
#[async_trait]
pub trait Work: Send + Sync {
    /// Announces a worker and its tools, and ends the tasks that its former incarnation held as interrupted.
    /// Directives arrive until the connection breaks; then attach again.
    async fn attach(&self, worker: WorkerInfo) -> Result<Directives, Error>;
    /// Takes up to `max` queued tasks, waiting up to `wait` for a first one. The same token gets the same tasks again.
    async fn claim(&self, claim: Claim) -> Result<Vec<Assignment>, Error>;
    /// Renews the leases of all tasks that the worker runs (id and attempt); answers which of them to stop.
    async fn heartbeat(&self, worker: &WorkerId, leases: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error>;
    /// Sets a task's status message or progress. Answers with the task as it is now.
    async fn report(&self, fence: Fence, report: Report) -> Result<Task, Error>;
    /// Says what a task has used so far, all attempts together, for its budgets to be charged with in the end.
    async fn spend(&self, fence: Fence, total: Amount) -> Result<Task, Error>;
    /// Asks a task's owner. The same questions again change nothing; without an answer in time they count as declined.
    async fn request_input(&self, fence: Fence, requests: Vec<InputRequest>, timeout: Duration) -> Result<Task, Error>;
    /// Closes questions of a task without an answer, by their keys, which stay used. One that is closed already stays so; one
    /// that was not asked yet never will be, whatever request that asks it is still under way.
    async fn withdraw(&self, fence: Fence, keys: Vec<String>) -> Result<Task, Error>;
    /// What a task was answered and is still kept: the number of the question, from 1, and its answer. Those of `have`
    /// have arrived and are deleted first.
    async fn collect(&self, fence: Fence, have: Vec<u32>) -> Result<Vec<(u32, InputResponse)>, Error>;
    /// Adds an entry to a task's journal, as its `nth` from 1: it is kept until the task ends, for whoever goes on with it.
    /// Answers once it is committed.
    async fn record(&self, fence: Fence, nth: u32, entry: Bytes) -> Result<(), Error>;
    /// A page of a task's journal: the entries after the first `after`, in order; empty after the last one.
    async fn journal(&self, fence: Fence, after: u32) -> Result<Vec<Bytes>, Error>;
    /// Ends a task, or hands it back to be handed out again ([`Retry`](longhaul_core::Retry)). Answers once it is committed; a repeated completion of the same attempt is no error.
    async fn complete(&self, fence: Fence, outcome: Outcome) -> Result<Task, Error>;
    /// Says goodbye: no more calls will be taken.
    async fn detach(&self, worker: &WorkerId) -> Result<(), Error>;
}

/// What the task-store tells a worker; a hint, repeated in each heartbeat's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Directive {
    /// Stop the run of this task: it has ended, or is no longer this worker's.
    Stop(TaskId),
    /// Collect what this task was answered.
    Answered(TaskId),
}

/// Directives as they come, until the connection breaks.
pub type Directives = BoxStream<'static, Directive>;

/// A wish for tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who asks.
    pub worker: WorkerId,
    /// Random for each claim.
    pub token: LeaseToken,
    /// The tools it runs.
    pub tools: Vec<String>,
    /// The most it takes.
    pub max: u32,
    /// How long to wait for a first one.
    pub wait: Duration,
}

/// A task in a worker's hands.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The task; its phase is running, under the claim's token.
    pub task: Task,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
    /// The trace it belongs to.
    pub trace: TraceContext,
}

/// How it goes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// A sentence for people; `None` leaves the former one.
    pub status_message: Option<String>,
    /// How far; `None` leaves it as it was.
    pub progress: Option<Progress>,
}
