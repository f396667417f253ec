//! What a tool's function knows about the run it is in, and what it may say.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use longhaul_core::limits::{STATUS_MESSAGE_BYTES_MAX, cut};
use longhaul_core::{Ending, Fence, Principal, Progress, Refusal, Task, TaskId, Timestamp};
use longhaul_rpc::{CallEvent, Error, Report, Work};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The least time between two reports of one run: the newest status message and progress win.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A run: the same for a task and for a call that is not one.
///
/// Cheap to clone. What it says (`set_status_message`, `progress`) never waits for the network: the newest word goes
/// out at most ten times a second, and the last one before the answer. When the run is over for any reason, each such
/// call says [`Ended`] instead of failing; with `?` the tool ends there.
#[derive(Clone)]
pub struct Context(Arc<Run>);

struct Run {
    tool: String,
    principal: Principal,
    task: Option<TaskHandle>,
    deadline: Option<Instant>,
    stop: CancellationToken,
    why: OnceLock<Stop>,
    words: Mutex<Words>,
    news: Notify,
    /// The tool's function has returned.
    finished: CancellationToken,
}

/// What the tool has said.
#[derive(Default)]
struct Words {
    status_message: Option<String>,
    progress: Option<f64>,
    /// Not sent yet.
    pending: Report,
}

/// Why a run was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Nobody wants its answer.
    Ended(Ended),
    /// The worker shuts down.
    Drained,
    /// It took too long.
    TimedOut,
}

/// The task that a run works for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskHandle {
    /// The task.
    pub id: TaskId,
    /// Which attempt at it this is, from 1: with the id, a fence for systems outside.
    pub attempt: u32,
    /// When it was created, by the task-store's clock.
    pub created_at: Timestamp,
    /// When it ends whatever happens, by the task-store's clock; `None` is never.
    pub expires_at: Option<Timestamp>,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It may go on.
    Working,
    /// It is over: whatever it does or answers now, nobody will hear.
    Ended(Ended),
}

/// The run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Ended {
    /// The task has ended like this.
    #[error("the task has already ended")]
    Already(Ending),
    /// The task's time to live ran out.
    #[error("the task has expired")]
    Expired,
    /// The run was told to stop: its task was cancelled or is no longer this worker's, its caller has gone, its time
    /// ran out, or the worker shuts down.
    #[error("the run was stopped")]
    Stopped,
}

impl Context {
    pub(crate) fn of_task(task: &Task, limit: Option<Duration>) -> Self {
        let handle = TaskHandle {
            id: task.id,
            attempt: task.attempt,
            created_at: task.created_at,
            expires_at: task.expires_at(),
        };
        let words = Words {
            status_message: task.status_message.clone(),
            progress: task.progress.as_ref().map(|progress| progress.progress),
            ..Words::default()
        };
        Self::new(&task.tool, &task.owner, Some(handle), limit, words)
    }

    pub(crate) fn of_call(tool: &str, principal: &Principal, limit: Option<Duration>) -> Self {
        Self::new(tool, principal, None, limit, Words::default())
    }

    fn new(tool: &str, principal: &Principal, task: Option<TaskHandle>, limit: Option<Duration>, words: Words) -> Self {
        Self(Arc::new(Run {
            tool: tool.to_owned(),
            principal: principal.clone(),
            task,
            // A limit beyond the clock's range is none.
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            stop: CancellationToken::new(),
            why: OnceLock::new(),
            words: Mutex::new(words),
            news: Notify::new(),
            finished: CancellationToken::new(),
        }))
    }

    /// The task's id; `None` for a call that is not a task.
    pub fn task_id(&self) -> Option<TaskId> {
        self.0.task.map(|task| task.id)
    }

    /// The task, if this call is one: the client decides that. A tool with optional task support may ask here whether
    /// to do the long thing, or to answer at once because someone waits on an open connection.
    pub fn as_task(&self) -> Option<&TaskHandle> {
        self.0.task.as_ref()
    }

    /// The MCP method that was called.
    pub fn method(&self) -> &'static str {
        "tools/call"
    }

    /// The tool's name.
    pub fn tool(&self) -> &str {
        &self.0.tool
    }

    /// Whose call it is.
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// When the tool's own time limit ends the run; `None` is never.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// Where the run stands.
    pub fn status(&self) -> Status {
        match self.alive() {
            Ok(()) => Status::Working,
            Err(ended) => Status::Ended(ended),
        }
    }

    /// The status message, as last set.
    pub fn status_message(&self) -> Option<String> {
        self.words().status_message.clone()
    }

    /// Sets the sentence that the task's owner reads meanwhile; cut at 1 KiB. A call that is not a task has no reader.
    pub async fn set_status_message(&self, message: impl Into<String>) -> Result<(), Ended> {
        let message = short(message.into());
        self.say(move |words| {
            words.pending.status_message = Some(message.clone());
            words.status_message = Some(message);
        })
        .await
    }

    /// Says how far the work is. `progress` must rise: a value that does not is dropped.
    pub async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) -> Result<(), Ended> {
        let message = message.map(|message| short(message.to_owned()));
        self.say(move |words| {
            if progress.is_finite() && words.progress.is_none_or(|former| progress > former) {
                words.progress = Some(progress);
                let total = total.filter(|total| total.is_finite());
                words.pending.progress = Some(Progress { progress, total, message });
            }
        })
        .await
    }

    /// The W3C `traceparent` of the present span, to hand on to what the tool calls.
    pub fn traceparent(&self) -> Option<String> {
        longhaul_rpc::trace::current()
    }

    /// Whether the run was told to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.stop.is_cancelled()
    }

    /// Waits until the run is told to stop. A few seconds later it is stopped in any case.
    pub async fn cancelled(&self) {
        self.0.stop.cancelled().await;
    }

    async fn say(&self, change: impl FnOnce(&mut Words)) -> Result<(), Ended> {
        // A loop that does nothing but speak must still let others run, and be stopped.
        tokio::task::consume_budget().await;
        self.alive()?;
        change(&mut self.words());
        self.0.news.notify_one();
        Ok(())
    }

    fn alive(&self) -> Result<(), Ended> {
        match self.0.why.get() {
            Some(Stop::Ended(ended)) => Err(*ended),
            Some(Stop::Drained | Stop::TimedOut) => Err(Ended::Stopped),
            None if self.0.finished.is_cancelled() => Err(Ended::Stopped),
            None => Ok(()),
        }
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the run to stop; the first reason counts.
    pub(crate) fn stop(&self, why: Stop) {
        if self.0.why.set(why).is_ok() {
            self.0.stop.cancel();
        }
    }

    /// Waits until the run is told to stop, and why.
    pub(crate) async fn stopped(&self) -> Stop {
        self.0.stop.cancelled().await;
        *self.0.why.get().expect("invariant: the reason is set before the token")
    }

    /// The function has returned: nothing it left behind may speak for it.
    pub(crate) fn finish(&self) {
        self.0.finished.cancel();
    }

    /// Passes on what the tool says until it has finished or was told to stop. Nothing said before
    /// [`finish`](Self::finish) is left out.
    pub(crate) async fn pass_on(&self, to: &Listeners) {
        self.0.stop.run_until_cancelled(self.pass_all(to)).await;
    }

    async fn pass_all(&self, to: &Listeners) {
        let finished = &self.0.finished;
        loop {
            finished.run_until_cancelled(self.0.news.notified()).await;
            // Asked before taking the last word, or that could be missed.
            let over = finished.is_cancelled();
            let report = std::mem::take(&mut self.words().pending);
            if report != Report::default() {
                match to.hear(report.clone()).await {
                    Ok(()) => {}
                    Err(Error::Refused(refusal)) => return self.stop(Stop::Ended(ended(&refusal))),
                    Err(error) => {
                        tracing::debug!(%error, "a report was not taken");
                        self.take_back(report);
                    }
                }
            }
            if over {
                return;
            }
            finished.run_until_cancelled(tokio::time::sleep(REPORT_EVERY)).await;
        }
    }

    /// What could not be sent is sent later, unless there is newer word.
    fn take_back(&self, report: Report) {
        let mut words = self.words();
        let pending = &mut words.pending;
        pending.status_message = pending.status_message.take().or(report.status_message);
        pending.progress = pending.progress.take().or(report.progress);
        drop(words);
        self.0.news.notify_one();
    }
}

/// Who hears of a run.
pub(crate) enum Listeners {
    /// The task-store.
    Task(Arc<dyn Work>, Fence),
    /// The caller.
    Caller(mpsc::Sender<CallEvent>),
    /// Nobody asked to.
    Nobody,
}

impl Listeners {
    async fn hear(&self, report: Report) -> Result<(), Error> {
        match (self, report.progress) {
            (Self::Task(work, fence), progress) => {
                work.report(fence.clone(), Report { status_message: report.status_message, progress }).await.map(drop)
            }
            (Self::Caller(events), Some(progress)) => {
                // A caller that has gone is noticed by the call itself.
                let _ = events.send(CallEvent::Progress(progress)).await;
                Ok(())
            }
            (Self::Caller(_) | Self::Nobody, _) => Ok(()),
        }
    }
}

/// What a refusal says about the run.
fn ended(refusal: &Refusal) -> Ended {
    match refusal {
        Refusal::AlreadyEnded(ending) => Ended::Already(*ending),
        Refusal::Expired | Refusal::NotFound => Ended::Expired,
        Refusal::Fenced | Refusal::TaskLimit { .. } => Ended::Stopped,
    }
}

fn short(text: String) -> String {
    match cut(&text, STATUS_MESSAGE_BYTES_MAX) {
        whole if whole.len() == text.len() => text,
        part => part.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Caller, TenantId};

    use super::*;

    fn call() -> Context {
        let principal = Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) };
        Context::of_call("echo", &principal, Some(Duration::from_secs(5)))
    }

    async fn heard(mut events: mpsc::Receiver<CallEvent>) -> Vec<f64> {
        let mut all = Vec::new();
        while let Some(CallEvent::Progress(progress)) = events.recv().await {
            all.push(progress.progress);
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn progress_rises_and_is_passed_on_at_most_ten_times_a_second() {
        let context = call();
        let (events, all) = mpsc::channel(64);
        let listeners = Listeners::Caller(events);
        let talk = async {
            for step in 0..1000 {
                context.progress(f64::from(step), None, None).await.unwrap();
                context.progress(f64::from(step - 1), None, None).await.unwrap();
                context.progress(f64::NAN, None, None).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            context.finish();
        };
        tokio::join!(talk, context.pass_on(&listeners));
        drop(listeners);
        let all = heard(all).await;
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        assert!((10..=12).contains(&all.len()), "{all:?}");
        assert_eq!(
            (all.first(), all.last()),
            (Some(&0.0), Some(&999.0)),
            "the first goes at once, the last is not lost"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_over_says_so_instead_of_failing() {
        let context = call();
        assert_eq!(context.status(), Status::Working);
        assert_eq!(context.deadline(), Some(Instant::now() + Duration::from_secs(5)));
        assert_eq!((context.task_id(), context.as_task(), context.method()), (None, None, "tools/call"));
        context.set_status_message("é".repeat(1000)).await.unwrap();
        assert_eq!(context.status_message().unwrap().len(), STATUS_MESSAGE_BYTES_MAX);
        let late = context.clone();
        context.stop(Stop::Ended(Ended::Expired));
        context.stop(Stop::Drained);
        late.cancelled().await;
        assert!(late.is_cancelled());
        assert_eq!(late.progress(1.0, None, None).await, Err(Ended::Expired));
        assert_eq!(late.set_status_message("x").await, Err(Ended::Expired));
        assert_eq!(late.status(), Status::Ended(Ended::Expired));
        let done = call();
        done.finish();
        assert_eq!(done.progress(1.0, None, None).await, Err(Ended::Stopped));
        assert!(!done.is_cancelled());
    }
}
