//! `tasks/result`: waits until the task ends, and tells what came of it. A stream may carry the task's questions meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use longhaul_core::{Outcome, Refusal, Target, Task, TaskId};
use longhaul_mcp::{Denial, Reply, TaskRef, error_body, sse};
use longhaul_rpc::Error;
use tokio::time::Instant;

use crate::carry::{Carrier, Kind};
use crate::endpoint::{Answer, Asked, No, ended};
use crate::in_flight::{Entry, stream_digest};
use crate::metrics::{Ended, OpenStream, Operation};
use crate::random;
use crate::sessions::Tag;
use crate::stream::{EventIds, Frames, KeepAlive, Source, frames};
use crate::verbs::named;
use crate::watch::{Seen, Watch};

pub(crate) async fn result(asked: &Asked, task: TaskRef, operation: &mut Option<Operation>) -> Result<Answer, No> {
    let id = named(task).map_err(|refusal| asked.deny(refusal))?;
    asked.shared.chain.poll(&asked.principal, id).map_err(|error| asked.failed(error))?;
    let mut wait = Wait::begin(asked, id).await?;
    let over = wait.is_over();
    if asked.accepts.stream && !(over && asked.accepts.json) {
        let stream = u64::from_be_bytes(random());
        let ids = EventIds::of(asked, stream, Some(id));
        return Ok(Answer::Stream(wait.stream(stream, ids, operation.take())));
    }
    let shared = &asked.shared;
    let unwanted = wait.wanted.cancelled();
    tokio::select! {
        biased;
        outcome = wait.released() => {
            let outcome = outcome.map_err(|refusal| asked.deny(refusal))?;
            Ok(Answer::Message { status: StatusCode::OK, body: wait.body(&outcome), how: ended(&outcome) })
        }
        () = unwanted.cancelled() => Ok(Answer::Nothing),
        // Such a caller is outside the specification, which knows no answer but the last.
        () = async {
            tokio::select! {
                () = tokio::time::sleep(shared.config.result_wait) => {}
                () = asked.until.clone().over() => {}
            }
        } => {
            let task = shared.tasks.get(&asked.principal, wait.task).await.map_err(|error| asked.failed(error))?;
            Err(asked.deny(Denial::WaitLapsed { task: &task, poll_interval_ms: shared.config.poll_interval_ms }))
        }
    }
}

/// Goes on with a stream that its client lost, on whatever replica it began.
pub(crate) async fn resume(asked: &Asked, task: TaskId, stream: u64, seen: u64) -> Result<Frames, No> {
    let wait = Wait::begin(asked, task).await?;
    let ids = EventIds::of(asked, stream, Some(task)).after(seen);
    // What is left of the lost one must neither answer too nor keep the questions.
    asked.shared.in_flight.cancel(stream_digest(wait.tag, stream));
    Ok(wait.stream(stream, ids, None))
}

/// One client that waits for one task.
struct Wait {
    asked: Asked,
    task: TaskId,
    watch: Watch,
    latest: Seen,
    tag: Tag,
    wanted: Entry,
}

impl Wait {
    async fn begin(asked: &Asked, task: TaskId) -> Result<Self, No> {
        let tag = asked.tag().ok_or_else(|| asked.fault())?;
        let wanted = asked.shared.in_flight.enter(tag, &asked.id);
        let opened = asked.shared.watches.open(&asked.principal, task, true).await;
        let (watch, latest) = opened.map_err(|error| asked.failed(error))?;
        Ok(Self { asked: asked.clone(), task, watch, latest, tag, wanted })
    }

    fn is_over(&self) -> bool {
        match &self.latest {
            Seen::Task { outcome, .. } => outcome.is_some(),
            Seen::Gone(_) => true,
        }
    }

    /// The outcome, once there is one. May be dropped and called again.
    async fn outcome(&mut self) -> Result<Arc<Outcome>, Refusal> {
        loop {
            match &self.latest {
                Seen::Gone(refusal) => return Err(refusal.clone()),
                Seen::Task { outcome: Some(outcome), .. } => return Ok(outcome.clone()),
                Seen::Task { outcome: None, .. } => self.change().await,
            }
        }
    }

    /// What its owner may see of the outcome, once there is one. May be dropped and called again.
    async fn released(&mut self) -> Result<Arc<Outcome>, Refusal> {
        let outcome = self.outcome().await?;
        let Some(task) = self.seen() else { return Ok(outcome) };
        let released = self.asked.shared.chain.release(&task.owner, &Target::Tool(task.tool.clone()), &outcome);
        Ok(released.map_err(Refusal::Denied)?.map_or(outcome, Arc::new))
    }

    /// Waits until the task, which is not over, is seen to have changed. May be dropped and called again.
    async fn change(&mut self) {
        let shared = &self.asked.shared;
        match &self.latest {
            Seen::Task { task, outcome: None } if task.ending().is_some() => {
                // Somebody else's read saw the end, but did not ask for the outcome.
                match shared.tasks.result(&self.asked.principal, self.task).await {
                    Ok((task, Some(outcome))) => {
                        self.latest = Seen::Task { task: Arc::new(task), outcome: Some(Arc::new(outcome)) };
                    }
                    Err(Error::Refused(refusal)) => self.latest = Seen::Gone(refusal),
                    Ok((_, None)) | Err(_) => tokio::time::sleep(shared.config.pace.floor_deaf).await,
                }
            }
            Seen::Task { .. } | Seen::Gone(_) => self.latest = self.watch.next().await,
        }
    }

    /// The task, if it is there.
    fn seen(&self) -> Option<Arc<Task>> {
        match &self.latest {
            Seen::Task { task, .. } => Some(task.clone()),
            Seen::Gone(_) => None,
        }
    }

    fn body(&self, outcome: &Outcome) -> Bytes {
        self.asked.shared.recorder.retrieved(self.task);
        self.asked.write(&Reply::TaskOutcome { task: self.task, outcome })
    }

    fn stream(self, stream: u64, ids: EventIds, operation: Option<Operation>) -> Frames {
        let Asked { shared, principal, envelope, .. } = &self.asked;
        let keep_alive = KeepAlive::new(shared.config.pace.keep_alive);
        let open = OpenStream::new(shared, "result");
        let carrier = Carrier::new(shared, principal, self.task, envelope.capabilities, Kind::Result);
        let resumed = shared.in_flight.enter_as(stream_digest(self.tag, stream));
        let (queue, step) = (VecDeque::new(), Step::Begin);
        frames(ResultStream { wait: self, carrier, queue, ids, resumed, keep_alive, operation, step, _open: open })
    }
}

enum Step {
    Begin,
    Look,
    Wait,
    Done,
}

struct ResultStream {
    wait: Wait,
    carrier: Carrier,
    /// What follows from one look at the task.
    queue: VecDeque<Bytes>,
    ids: EventIds,
    /// Fires when its client goes on with it on another connection.
    resumed: Entry,
    keep_alive: KeepAlive,
    operation: Option<Operation>,
    step: Step,
    _open: OpenStream,
}

impl Source for ResultStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.step {
                Step::Begin => {
                    self.step = Step::Look;
                    return Some(self.ids.priming());
                }
                Step::Look => {
                    self.step = Step::Wait;
                    self.look().await;
                }
                Step::Wait | Step::Done => {}
            }
            if let Some(frame) = self.queue.pop_front() {
                self.keep_alive.sent();
                return Some(frame);
            }
            if let Step::Done = self.step {
                return None;
            }
            if self.wait.is_over() {
                self.end().await;
                continue;
            }
            let (over, unwanted) = (self.wait.asked.until.clone().over(), self.wait.wanted.cancelled());
            let (due, resumed) = (self.carrier.due(), self.resumed.cancelled());
            tokio::select! {
                biased;
                () = resumed.cancelled() => {
                    self.step = Step::Done;
                    return Some(sse::comment("another stream goes on from here"));
                }
                () = self.wait.change() => self.look().await,
                // No answer is wanted any more; the task goes on.
                () = unwanted.cancelled() => {
                    self.step = Step::Done;
                    return Some(self.ids.nothing_more());
                }
                () = over => {
                    self.step = Step::Done;
                    return Some(self.ids.come_back());
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.look().await,
                comment = self.keep_alive.due() => return Some(comment),
            }
        }
    }
}

impl ResultStream {
    /// Asks what there is to ask.
    async fn look(&mut self) {
        if let Some(task) = self.wait.seen() {
            let frames = self.carrier.look(&task).await;
            self.queue.extend(frames.iter().map(|frame| sse::message(None, frame)));
        }
    }

    /// Tells what came of the task.
    async fn end(&mut self) {
        self.step = Step::Done;
        self.queue.extend(self.carrier.close().iter().map(|frame| sse::message(None, frame)));
        let (body, how) = match self.wait.released().await {
            Ok(outcome) => (self.wait.body(&outcome), ended(&outcome)),
            Err(refusal) => {
                let error = Denial::from(refusal).reject(self.wait.asked.dialect).error;
                (error_body(Some(&self.wait.asked.id), &error), Ended::Error(error.code))
            }
        };
        if let Some(operation) = self.operation.take() {
            operation.end(how);
        }
        self.queue.push_back(self.ids.last(&body));
    }
}
