//! `tasks/result`: waits until the task ends, and tells what came of it.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_core::{Outcome, Refusal, TaskId};
use longhaul_mcp::{Denial, Reply, TaskRef, error_body, v2025};
use longhaul_rpc::Error;

use crate::endpoint::{Answer, Asked, No, ended};
use crate::in_flight::Entry;
use crate::metrics::{Ended, OpenStream, Operation};
use crate::random;
use crate::stream::{EventIds, Frames, KeepAlive, Source, frames};
use crate::verbs::named;
use crate::watch::{Seen, Watch};

pub(crate) async fn result(asked: &Asked, task: TaskRef, operation: &mut Option<Operation>) -> Result<Answer, No> {
    let mut wait = Wait::begin(asked, named(task)?).await?;
    let over = wait.is_over();
    if asked.accepts.stream && !(over && asked.accepts.json) {
        let ids = wait.ids(u64::from_be_bytes(random()));
        return Ok(Answer::Stream(wait.stream(ids, operation.take())));
    }
    let shared = &asked.shared;
    let unwanted = wait.wanted.cancelled();
    tokio::select! {
        biased;
        outcome = wait.outcome() => {
            let outcome = outcome?;
            Ok(Answer::Message(wait.body(&outcome), ended(&outcome)))
        }
        () = unwanted.cancelled() => Ok(Answer::Nothing),
        // Such a caller is outside the specification, which knows no answer but the last (wire reference, D-02).
        () = async {
            tokio::select! {
                () = tokio::time::sleep(shared.config.result_wait) => {}
                () = shared.drain.cancelled() => {}
            }
        } => {
            let task = shared.tasks.get(&asked.principal, wait.task).await?;
            Err(Denial::WaitLapsed { task: &task, poll_interval_ms: shared.config.poll_interval_ms }.into())
        }
    }
}

/// Goes on with a stream that its client lost, on whatever replica it began.
pub(crate) async fn resume(asked: &Asked, task: TaskId, stream: u64, seen: u64) -> Result<Frames, No> {
    let wait = Wait::begin(asked, task).await?;
    let ids = wait.ids(stream).after(seen);
    Ok(wait.stream(ids, None))
}

/// One client that waits for one task.
struct Wait {
    asked: Asked,
    task: TaskId,
    watch: Watch,
    latest: Seen,
    wanted: Entry,
}

impl Wait {
    async fn begin(asked: &Asked, task: TaskId) -> Result<Self, No> {
        let wanted = asked.shared.in_flight.enter(asked.tag, &asked.id);
        let (watch, latest) = asked.shared.watches.open(&asked.principal, task, true).await?;
        Ok(Self { asked: asked.clone(), task, watch, latest, wanted })
    }

    fn is_over(&self) -> bool {
        match &self.latest {
            Seen::Task { outcome, .. } => outcome.is_some(),
            Seen::Gone(_) => true,
        }
    }

    /// The outcome, once there is one. May be dropped and called again.
    async fn outcome(&mut self) -> Result<Arc<Outcome>, Refusal> {
        let shared = &self.asked.shared;
        loop {
            match &self.latest {
                Seen::Gone(refusal) => return Err(refusal.clone()),
                Seen::Task { outcome: Some(outcome), .. } => return Ok(outcome.clone()),
                Seen::Task { task, outcome: None } if task.ending().is_none() => self.latest = self.watch.next().await,
                // Somebody else's read saw the end, but did not ask for the outcome.
                Seen::Task { .. } => match shared.tasks.result(&self.asked.principal, self.task).await {
                    Ok((task, Some(outcome))) => {
                        self.latest = Seen::Task { task: Arc::new(task), outcome: Some(Arc::new(outcome)) };
                    }
                    Err(Error::Refused(refusal)) => self.latest = Seen::Gone(refusal),
                    Ok((_, None)) | Err(_) => tokio::time::sleep(shared.config.pace.floor_deaf).await,
                },
            }
        }
    }

    fn body(&self, outcome: &Outcome) -> Bytes {
        v2025::write(self.asked.dialect(), &self.asked.id, &Reply::TaskOutcome { task: self.task, outcome })
    }

    fn ids(&self, stream: u64) -> EventIds {
        let Asked { shared, principal, session, id, .. } = &self.asked;
        EventIds::new(shared, principal, session, stream, Some(self.task), Some(id.clone()))
    }

    fn stream(self, ids: EventIds, operation: Option<Operation>) -> Frames {
        let shared = &self.asked.shared;
        let keep_alive = KeepAlive::new(shared.config.pace.keep_alive);
        let open = OpenStream::new(shared, "result");
        frames(ResultStream { wait: self, ids, keep_alive, operation, step: Step::Begin, _open: open })
    }
}

enum Step {
    Begin,
    Wait,
    Done,
}

struct ResultStream {
    wait: Wait,
    ids: EventIds,
    keep_alive: KeepAlive,
    operation: Option<Operation>,
    step: Step,
    _open: OpenStream,
}

impl Source for ResultStream {
    async fn next(&mut self) -> Option<Bytes> {
        match self.step {
            Step::Begin => {
                self.step = Step::Wait;
                return Some(self.ids.priming());
            }
            Step::Wait => {}
            Step::Done => return None,
        }
        let drain = self.wait.asked.shared.drain.clone();
        let unwanted = self.wait.wanted.cancelled();
        let frame = tokio::select! {
            biased;
            outcome = self.wait.outcome() => {
                let (body, how) = match outcome {
                    Ok(outcome) => (self.wait.body(&outcome), ended(&outcome)),
                    Err(refusal) => {
                        let error = Denial::from(refusal).v2025();
                        (error_body(Some(&self.wait.asked.id), &error), Ended::Error(error.code))
                    }
                };
                if let Some(operation) = self.operation.take() {
                    operation.end(how);
                }
                Some(self.ids.last(&body))
            }
            // No answer is wanted any more; the task goes on.
            () = unwanted.cancelled() => Some(self.ids.nothing_more()),
            () = drain.cancelled() => Some(self.ids.come_back()),
            comment = self.keep_alive.due() => return Some(comment),
        };
        self.step = Step::Done;
        frame
    }
}
