//! Which stream carries the questions of a task (MCP 2025-11-25).
//!
//! A message goes on one stream only (basic/transports, "Multiple Connections"), so whoever wants to ask makes a claim in
//! the task-store, which runs out unless it is renewed: streams that wait for the task's result come first, the newest of a
//! replica before the others; the stream of a session asks if none of them does. When the one that carries is gone, the
//! next asks the same questions again, under the same ids. A stream that waits for the result and was opened since takes
//! them over, since its client most likely opened it because the other one is of no use to it; a client that still reads
//! that one hears that the questions are withdrawn there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::{ClientCapabilities, Principal, Task, TaskId};
use longhaul_mcp::v2025;
use longhaul_rpc::Error;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::{Shared, random};

/// The streams of this replica that wait for results and can ask.
#[derive(Default)]
pub(crate) struct Carriers {
    waiting: Mutex<HashMap<TaskId, Vec<Waiting>>>,
}

struct Waiting {
    stream: Arc<str>,
    client: ClientCapabilities,
}

impl Carriers {
    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Vec<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest stream that waits for the result of a task and can ask any of its open questions.
    fn newest(&self, task: &Task) -> Option<Arc<str>> {
        let waiting = self.lock();
        let can_ask =
            |waiting: &&Waiting| task.open_inputs().any(|(_, _, question)| waiting.client.can_answer(question));
        waiting.get(&task.id)?.iter().rfind(can_ask).map(|waiting| waiting.stream.clone())
    }

    fn enter(&self, task: TaskId, stream: &Arc<str>, client: ClientCapabilities) {
        self.lock().entry(task).or_default().push(Waiting { stream: stream.clone(), client });
    }

    fn leave(&self, task: TaskId, stream: &Arc<str>) {
        let mut waiting = self.lock();
        if let Some(streams) = waiting.get_mut(&task) {
            streams.retain(|waiting| waiting.stream != *stream);
            if streams.is_empty() {
                waiting.remove(&task);
            }
        }
    }
}

/// What a stream is for, beside carrying questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It waits for the task's result.
    Result,
    /// It is a session's; of the session that created the task, or of another of the same caller.
    Session { is_creator: bool },
}

/// One stream that may come to carry the questions of one task.
pub(crate) struct Carrier {
    shared: Arc<Shared>,
    principal: Arc<Principal>,
    task: TaskId,
    client: ClientCapabilities,
    kind: Kind,
    stream: Arc<str>,
    opened: Instant,
    /// Until when it is the one that carries, if it is.
    held: Option<Instant>,
    /// It has asked to carry in vain: perhaps the one that carries is to give way to it.
    waits: bool,
    /// What it has asked, by number, and does not know to be closed.
    asked: Vec<u32>,
    /// When to look at the claim again, while there is something to ask.
    due: Option<Instant>,
    runtime: Handle,
}

impl Carrier {
    /// For a stream whose client can be asked so much.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        principal: &Arc<Principal>,
        task: TaskId,
        client: ClientCapabilities,
        kind: Kind,
    ) -> Self {
        let stream: Arc<str> = format!("{:032x}", u128::from_be_bytes(random())).into();
        if kind == Kind::Result {
            shared.carriers.enter(task, &stream, client);
        }
        Self {
            shared: shared.clone(),
            principal: principal.clone(),
            task,
            client,
            kind,
            stream,
            opened: Instant::now(),
            held: None,
            waits: false,
            asked: Vec::new(),
            due: None,
            runtime: Handle::current(),
        }
    }

    /// Looks at the task as it is now; gives what its stream is to send.
    pub(crate) async fn look(&mut self, task: &Task) -> Vec<Bytes> {
        let mut frames = self.withdraw(|nth| task.open_inputs().any(|(open, _, _)| open == nth));
        let client = self.client;
        let questions: Vec<_> = task.open_inputs().filter(|(_, _, question)| client.can_answer(question)).collect();
        if questions.is_empty() {
            self.due = None;
            if self.held.take().is_some() && task.ending().is_none() {
                self.let_go().await;
            }
            return frames;
        }
        let now = Instant::now();
        if *self.due.get_or_insert(now + self.grace()) <= now {
            frames.extend(self.claim(task).await);
        }
        if self.held.is_some_and(|until| Instant::now() < until) {
            for (nth, _, question) in questions {
                if !self.asked.contains(&nth) {
                    self.asked.push(nth);
                    self.shared.metrics.asked(self.carrier());
                    let id = v2025::task_question_id(self.task, nth);
                    frames.push(v2025::ask(&id, question, Some(self.task)));
                }
            }
        }
        frames
    }

    /// Nothing more is asked; gives what the stream is to send.
    pub(crate) fn close(&mut self) -> Vec<Bytes> {
        self.withdraw(|_| false)
    }

    /// When to [`look`](Self::look) again although nothing has changed.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// How long it leaves the questions to others.
    fn grace(&self) -> Duration {
        let grace = self.shared.config.pace.carry_grace;
        match self.kind {
            Kind::Result => Duration::ZERO,
            Kind::Session { is_creator: true } => grace,
            Kind::Session { is_creator: false } => 2 * grace,
        }
    }

    const fn carrier(&self) -> &'static str {
        match self.kind {
            Kind::Result => "result_stream",
            Kind::Session { .. } => "get_stream",
        }
    }

    /// How old it is, if it waits for the task's result.
    fn age(&self) -> Option<Duration> {
        match self.kind {
            Kind::Result => Some(self.opened.elapsed()),
            Kind::Session { .. } => None,
        }
    }

    /// When to look at the claim next. A new stream does so more often: another one may be about to give way to it.
    fn again(&self) -> Duration {
        let pace = self.shared.config.pace;
        let is_new = self.age().is_some_and(|age| age < pace.carry);
        if is_new && self.held.is_none() { pace.carry_again / 4 } else { pace.carry_again }
    }

    /// Claims, or renews the claim; gives what that costs.
    async fn claim(&mut self, task: &Task) -> Vec<Bytes> {
        let pace = self.shared.config.pace;
        let now = Instant::now();
        self.due = Some(now + self.again());
        let is_first = match (self.shared.carriers.newest(task), self.kind) {
            (Some(newest), Kind::Result) => newest == self.stream,
            (Some(_), Kind::Session { .. }) => false,
            (None, _) => true,
        };
        // One that carries goes on: its client has the questions before it.
        if self.held.is_none() && !is_first {
            return Vec::new();
        }
        // Held from here on: if the stream is dropped meanwhile, what may be granted is let go.
        let before = self.held.replace(now + pace.carry);
        match self.shared.tasks.carry(&self.principal, self.task, &self.stream, self.age(), pace.carry).await {
            Ok(true) => (self.due, self.waits) = (Some(now + pace.carry_again), false),
            // A newer stream asks, or the claim ran out and another one does.
            Ok(false) => {
                (self.held, self.waits) = (None, true);
                self.due = Some(now + self.again());
                return self.close();
            }
            // The watch on the task says why.
            Err(Error::Refused(_)) => self.held = None,
            Err(error) => {
                tracing::debug!(task.id = %self.task, %error, "a stream could not claim the questions of a task");
                self.held = before;
            }
        }
        Vec::new()
    }

    /// Tells the client that what it was asked here is of no interest any more, but for what is still open.
    fn withdraw(&mut self, is_open: impl Fn(u32) -> bool) -> Vec<Bytes> {
        let task = self.task;
        let closed = self.asked.extract_if(.., |nth| !is_open(*nth));
        closed.map(|nth| v2025::notify::cancelled(&v2025::task_question_id(task, nth))).collect()
    }

    /// Before a new claim of its own, lest the one end the other.
    async fn let_go(&self) {
        if let Err(error) =
            self.shared.tasks.carry(&self.principal, self.task, &self.stream, None, Duration::ZERO).await
        {
            tracing::debug!(task.id = %self.task, %error, "a claim to the questions of a task will have to run out");
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if self.kind == Kind::Result {
            self.shared.carriers.leave(self.task, &self.stream);
        }
        if self.held.is_none() && !self.waits {
            return;
        }
        let (shared, principal) = (self.shared.clone(), self.principal.clone());
        let (task, stream) = (self.task, self.stream.clone());
        let tracker = shared.tracker.clone();
        let letting_go = async move {
            // Else it runs out.
            let _ = shared.tasks.carry(&principal, task, &stream, None, Duration::ZERO).await;
        };
        tracker.spawn_on(letting_go, &self.runtime);
    }
}
