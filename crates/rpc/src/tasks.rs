//! What gateways ask of the task-store.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::{InputKey, InputResponse, NewTask, Outcome, Principal, Task, TaskId, Timestamp, WorkerInfo};

use crate::Error;

/// The task-store, as a gateway sees it. Every verb may be repeated without harm.
#[async_trait]
pub trait Tasks: Send + Sync {
    /// Stores a task; answers once it is committed. The same task again is the same create.
    async fn create(&self, task: NewTask) -> Result<Task, Error>;
    /// A task of `principal`.
    async fn get(&self, principal: &Principal, id: TaskId) -> Result<Task, Error>;
    /// A task of `principal` and, once it has ended, its outcome.
    async fn result(&self, principal: &Principal, id: TaskId) -> Result<(Task, Option<Outcome>), Error>;
    /// The tasks of `principal` that have not expired, newest first: at most `limit`, strictly after `after`.
    async fn list(&self, principal: &Principal, after: Option<Position>, limit: u32) -> Result<Page, Error>;
    /// Ends a task of `principal` as cancelled; committed before the answer.
    async fn cancel(&self, principal: &Principal, id: TaskId) -> Result<Task, Error>;
    /// Answers questions of a task of `principal`; committed before the answer. Late, repeated and unknown answers change
    /// nothing; one that does not fit its question counts as a decline.
    async fn respond(
        &self,
        principal: &Principal,
        id: TaskId,
        answers: Vec<(InputKey, InputResponse)>,
    ) -> Result<Task, Error>;
    /// Makes `stream` the one that carries the questions of a task of `principal` for so long, or longer; false if another
    /// one is. Zero lets go. A stream that waits for the task's result says how old it is: if it was opened after the one that
    /// carries had begun, that one gives way to it, and is told so by a false of its own when it asks next. So does one that
    /// waits for no result.
    async fn carry(
        &self,
        principal: &Principal,
        id: TaskId,
        stream: &str,
        age: Option<Duration>,
        lease: Duration,
    ) -> Result<bool, Error>;
    /// Of the tasks `seen` at these versions, those that have moved on, with their present version. A task that is
    /// gone or expired is reported with version [`u64::MAX`].
    async fn changed(&self, seen: Vec<(TaskId, u64)>) -> Result<Vec<(TaskId, u64)>, Error>;
    /// The live workers and their tools.
    async fn tools(&self) -> Result<Vec<WorkerInfo>, Error>;
    /// How many tasks are stored.
    async fn count(&self) -> Result<TaskCount, Error>;
}

/// A place in a list: lists go by creation time, ties by id, both descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The creation time of the last task seen.
    pub created_at: Timestamp,
    /// Its id.
    pub id: TaskId,
}

/// A piece of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Whether there are more after them.
    pub more: bool,
}

/// How many tasks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskCount {
    /// Stored ones, ended ones included, expired ones not.
    pub stored: u64,
    /// Those that have not ended.
    pub open: u64,
}
