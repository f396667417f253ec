//! What may happen to a task: each verb takes the present task and answers with the next one, or a refusal.
//!
//! A verb says nothing of time: the store stamps `updated_at` with its own clock as it commits.

use crate::audit::Event;
use crate::limits::{STATUS_MESSAGE_BYTES_MAX, cut};
use crate::refusal::Refusal;
use crate::task::{Fence, Interruption, Lease, Outcome, Phase, Progress, Task};
use crate::time::Timestamp;

/// A task's next value. To be committed if the stored version is still `task.version - 1`.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The next value.
    pub task: Task,
    /// What the audit log records, in the same transaction.
    pub event: Option<Event>,
    /// What to store as outcome, when the task ends.
    pub outcome: Option<Outcome>,
}

impl Task {
    /// A worker takes it.
    pub fn claim(mut self, lease: Lease) -> Result<Change, Refusal> {
        match self.phase {
            Phase::Queued => {
                self.phase = Phase::Running(lease);
                self.attempt += 1;
                Ok(self.next(None))
            }
            Phase::Running(_) => Err(Refusal::Fenced),
            Phase::Ended(ending) => Err(Refusal::AlreadyEnded(ending)),
        }
    }

    /// Its worker says how it goes. What is `None` stays as it was; progress that does not rise is dropped.
    pub fn report(
        mut self,
        fence: &Fence,
        message: Option<String>,
        progress: Option<Progress>,
    ) -> Result<Change, Refusal> {
        self.held_under(fence)?;
        if let Some(message) = message {
            self.status_message = Some(cut(&message, STATUS_MESSAGE_BYTES_MAX).to_owned());
        }
        if let Some(mut progress) = progress
            && self.progress.as_ref().is_none_or(|former| progress.progress > former.progress)
        {
            progress.message = progress.message.map(|message| cut(&message, STATUS_MESSAGE_BYTES_MAX).to_owned());
            self.progress = Some(progress);
        }
        Ok(self.next(None))
    }

    /// Its worker is done.
    pub fn complete(self, fence: &Fence, outcome: Outcome) -> Result<Change, Refusal> {
        self.held_under(fence)?;
        Ok(self.end(outcome))
    }

    /// Its owner no longer wants it.
    pub fn cancel(self) -> Result<Change, Refusal> {
        self.open()?;
        Ok(self.end(Outcome::Cancelled))
    }

    /// Its lease ran out: nobody has heard of its worker.
    pub fn interrupt(self, now: Timestamp) -> Result<Change, Refusal> {
        self.open()?;
        match &self.phase {
            Phase::Running(lease) if lease.until <= now => Ok(self.end(Outcome::Interrupted(Interruption::WorkerLost))),
            Phase::Running(_) | Phase::Queued | Phase::Ended(_) => Err(Refusal::Fenced),
        }
    }

    /// Its time to live ran out before it was done.
    pub fn expire(self, now: Timestamp) -> Result<Change, Refusal> {
        self.open()?;
        match self.expires_at() {
            Some(end) if end <= now => Ok(self.end(Outcome::Interrupted(Interruption::Expired))),
            Some(_) | None => Err(Refusal::Fenced),
        }
    }

    fn open(&self) -> Result<(), Refusal> {
        match self.ending() {
            Some(ending) => Err(Refusal::AlreadyEnded(ending)),
            None => Ok(()),
        }
    }

    fn held_under(&self, fence: &Fence) -> Result<(), Refusal> {
        match &self.phase {
            Phase::Running(lease) if lease.token == fence.token && self.attempt == fence.attempt => Ok(()),
            Phase::Running(_) | Phase::Queued => Err(Refusal::Fenced),
            Phase::Ended(ending) => Err(Refusal::AlreadyEnded(*ending)),
        }
    }

    fn end(mut self, outcome: Outcome) -> Change {
        let ending = outcome.ending();
        // A failed task should say why (MCP 2025-11-25, basic/utilities/tasks, "Task Status").
        match &outcome {
            Outcome::Error(error) => {
                self.status_message = Some(cut(&error.message, STATUS_MESSAGE_BYTES_MAX).to_owned())
            }
            Outcome::Interrupted(why) => self.status_message = Some(why.sentence().to_owned()),
            // What it was doing when it was cancelled is no longer so.
            Outcome::Cancelled => self.status_message = Some("The task was cancelled".to_owned()),
            // The worker has said why, if the tool failed.
            Outcome::Result { .. } => {}
        }
        self.phase = Phase::Ended(ending);
        Change { outcome: Some(outcome), ..self.next(Some(Event::of(ending))) }
    }

    fn next(mut self, event: Option<Event>) -> Change {
        self.version += 1;
        Change { task: self, event, outcome: None }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::id::{LeaseToken, TaskId, TenantId, WorkerId};
    use crate::principal::{Caller, Principal};
    use crate::task::{CallError, Ending};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn lease(token: &str) -> Lease {
        Lease {
            worker: WorkerId { name: "w".into(), incarnation: "1".into() },
            token: LeaseToken(token.into()),
            until: NOW,
        }
    }

    fn fence(attempt: u32, token: &str) -> Fence {
        Fence { id: TaskId::from_random(1), attempt, token: LeaseToken(token.into()) }
    }

    fn task(phase: Phase) -> Task {
        Task {
            id: TaskId::from_random(1),
            owner: Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) },
            tool: "echo".into(),
            attempt: u32::from(!matches!(phase, Phase::Queued)),
            phase,
            version: 3,
            status_message: None,
            progress: None,
            progress_token: None,
            session: None,
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
            ttl_ms: Some(1000),
        }
    }

    fn done() -> Outcome {
        Outcome::Result { is_error: false, body: Bytes::from_static(b"{}") }
    }

    /// Every verb from every phase: where it leads, or why not.
    #[test]
    fn nothing_is_possible_by_accident() {
        let ended = Ending::Result { is_error: true };
        let over = || Err(Refusal::AlreadyEnded(ended));
        let phases = [Phase::Queued, Phase::Running(lease("x")), Phase::Ended(ended)];
        type Verb = fn(Task) -> Result<Change, Refusal>;
        type Answers = [Result<&'static str, Refusal>; 3];
        let table: [(&str, Verb, Answers); 9] = [
            ("claim", |t| t.claim(lease("y")), [Ok("running"), Err(Refusal::Fenced), over()]),
            (
                "report",
                |t| t.report(&fence(1, "x"), Some("hm".into()), None),
                [Err(Refusal::Fenced), Ok("running"), over()],
            ),
            ("complete", |t| t.complete(&fence(1, "x"), done()), [Err(Refusal::Fenced), Ok("ended"), over()]),
            (
                "complete of another attempt",
                |t| t.complete(&fence(2, "x"), done()),
                [Err(Refusal::Fenced), Err(Refusal::Fenced), over()],
            ),
            (
                "complete under another token",
                |t| t.complete(&fence(1, "z"), done()),
                [Err(Refusal::Fenced), Err(Refusal::Fenced), over()],
            ),
            ("cancel", Task::cancel, [Ok("ended"), Ok("ended"), over()]),
            ("interrupt", |t| t.interrupt(NOW), [Err(Refusal::Fenced), Ok("ended"), over()]),
            (
                "interrupt too early",
                |t| t.interrupt(Timestamp::from_micros(0)),
                [Err(Refusal::Fenced), Err(Refusal::Fenced), over()],
            ),
            ("expire", |t| t.expire(NOW), [Ok("ended"), Ok("ended"), over()]),
        ];
        for (name, verb, answers) in table {
            for (phase, answer) in phases.iter().zip(answers) {
                let before = task(phase.clone());
                let got = verb(before.clone());
                match (got, answer) {
                    (Err(refusal), Err(expected)) => assert_eq!(refusal, expected, "{name} from {phase:?}"),
                    (Ok(change), Ok(expected)) => {
                        let after = match change.task.phase {
                            Phase::Queued => "queued",
                            Phase::Running(_) => "running",
                            Phase::Ended(_) => "ended",
                        };
                        assert_eq!(after, expected, "{name} from {phase:?}");
                        assert_eq!(change.task.version, before.version + 1);
                        assert_eq!(change.outcome.is_some(), after == "ended");
                        assert_eq!(change.event.is_some(), after == "ended");
                    }
                    (got, expected) => panic!("{name} from {phase:?}: {got:?}, not {expected:?}"),
                }
            }
        }
    }

    #[test]
    fn a_task_without_end_never_expires() {
        let mut task = task(Phase::Queued);
        task.ttl_ms = None;
        assert_eq!(task.expire(Timestamp::from_micros(i64::MAX)), Err(Refusal::Fenced));
    }

    #[test]
    fn progress_only_rises_and_messages_are_cut() {
        let progress = |value| Some(Progress { progress: value, total: None, message: Some("é".repeat(1000)) });
        let task = task(Phase::Running(lease("x")));
        let task = task.report(&fence(1, "x"), Some("é".repeat(1000)), progress(2.0)).unwrap().task;
        assert_eq!(task.status_message.as_ref().unwrap().len(), STATUS_MESSAGE_BYTES_MAX);
        assert_eq!(task.progress.as_ref().unwrap().message.as_ref().unwrap().len(), STATUS_MESSAGE_BYTES_MAX);
        for not_higher in [1.0, 2.0, f64::NAN] {
            let after = task.clone().report(&fence(1, "x"), None, progress(not_higher)).unwrap().task;
            assert_eq!(after.progress, task.progress);
            assert_eq!(after.status_message, task.status_message);
        }
    }

    #[test]
    fn a_failed_task_says_why() {
        let error = CallError { code: -32000, message: "no".into(), data: None };
        let task = task(Phase::Running(lease("x")));
        let failed = task.clone().complete(&fence(1, "x"), Outcome::Error(error)).unwrap();
        assert_eq!(failed.task.status_message.as_deref(), Some("no"));
        assert_eq!(failed.event, Some(Event::Failed));
        let lost = task.interrupt(NOW).unwrap();
        assert!(lost.task.status_message.unwrap().contains("interrupted"));
    }
}
