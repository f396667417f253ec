//! What a function knows about the run it is in, and what it may say.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use longhaul_core::limits::{STATUS_MESSAGE_BYTES_MAX, cut};
use longhaul_core::{
    Amount, ClientCapabilities, Ending, Fence, LogLevel, LogMessage, Principal, Progress, Refusal, Target, Task,
    TaskId, Timestamp, TraceContext, WorkerId,
};
use longhaul_rpc::{CallEvent, Error, Report, Work};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::collect::TaskLine;
use crate::function::Function;
use crate::journal::{self, Journal};
use crate::line::{CallLine, Next};
use crate::part::Part;
use crate::resolve::Resolver;
use crate::seat::{Places, Seat};
use crate::updates::Resources;

/// The least time between two reports of one run, on the average: the newest status message and progress win.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Progress of a call that goes out as it comes before values are merged.
const PROGRESS_MAX: usize = 16;
/// Log messages of a call that were not sent yet; more are dropped.
const LOGS_MAX: usize = 100;
/// The largest log message, in bytes of JSON; larger ones are dropped.
const LOG_BYTES_MAX: usize = 64 * 1024;

/// A run: the same for a task and for a call that is not one.
///
/// Cheap to clone. What it says (`set_status_message`, `progress`, `log`) never waits for the network: the newest word
/// goes out about ten times a second, and the last one before the answer. When the run is over for any reason, each such
/// call says [`Ended`] instead of failing; with `?` the tool ends there.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<Run>, pub(crate) Option<Part>);

pub(crate) struct Run {
    pub(crate) means: Arc<Means>,
    /// What is run; `None` if the worker does not have it.
    pub(crate) function: Option<Arc<Function>>,
    target: Target,
    principal: Principal,
    client: Mutex<ClientCapabilities>,
    /// As the call came.
    trace: TraceContext,
    task: OnceLock<TaskHandle>,
    route: Mutex<Route>,
    pub(crate) seat: Seat,
    /// The keys of all its questions so far.
    pub(crate) keys: Mutex<HashSet<String>>,
    /// Those of former attempts at its task.
    pub(crate) former: HashSet<String>,
    pub(crate) journal: Journal,
    /// Whoever holds it may ask, or go on as a task.
    pub(crate) turn: tokio::sync::Mutex<()>,
    stop: CancellationToken,
    why: OnceLock<Stop>,
    words: Mutex<Words>,
    news: Notify,
    /// There is something to collect, or one more to wait for.
    pub(crate) answers: Notify,
    pub(crate) answered: AtomicBool,
    /// The function has returned.
    finished: CancellationToken,
}

/// What all runs of a worker have.
pub(crate) struct Means {
    pub(crate) work: Arc<dyn Work>,
    pub(crate) worker: WorkerId,
    pub(crate) resources: Resources,
    pub(crate) resolver: Arc<dyn Resolver>,
    /// How long a question waits, unless it says so itself.
    pub(crate) input_timeout: Duration,
    pub(crate) waiting: Arc<Places>,
}

/// The way to who wants the answer.
#[derive(Clone)]
pub(crate) enum Route {
    Task(Arc<TaskLine>),
    Call(Arc<CallLine>),
}

/// What the tool has said.
#[derive(Default)]
pub(crate) struct Words {
    status_message: Option<String>,
    /// The status message was not reported yet.
    unreported: bool,
    progress: Option<Progress>,
    /// Progress that was not sent yet, the newest last.
    pub(crate) steps: VecDeque<Progress>,
    pub(crate) logs: VecDeque<LogMessage>,
    logs_dropped: u64,
    /// What was used so far, by former attempts too.
    spent: Amount,
    /// It has grown since it was last said.
    unsaid_spend: bool,
}

/// When the next word may go out: so many at once, then one in a while.
pub(crate) struct Pace {
    burst: u32,
    /// When the last word would have gone out, had they all kept their distance.
    until: Instant,
}

impl Pace {
    fn new(burst: usize) -> Self {
        Self { burst: u32::try_from(burst).unwrap_or(u32::MAX), until: Instant::now() }
    }

    /// Takes a turn, and says whether the next one is free too; else when there is one.
    pub(crate) fn take(&mut self, now: Instant) -> Result<bool, Instant> {
        let ahead = REPORT_EVERY * (self.burst - 1);
        if self.until.saturating_duration_since(now) > ahead {
            return Err(self.until - ahead);
        }
        self.until = self.until.max(now) + REPORT_EVERY;
        Ok(self.until.saturating_duration_since(now) <= ahead)
    }
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

impl TaskHandle {
    fn of(task: &Task) -> Self {
        Self { id: task.id, attempt: task.attempt, created_at: task.created_at, expires_at: task.expires_at() }
    }
}

/// What is called, and by whom.
pub(crate) struct Called {
    pub(crate) target: Target,
    pub(crate) principal: Principal,
    /// What the caller can be asked.
    pub(crate) client: ClientCapabilities,
    /// The trace that it belongs to.
    pub(crate) trace: TraceContext,
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
    /// A run of a task.
    pub(crate) fn of_task(
        means: Arc<Means>,
        function: Option<Arc<Function>>,
        task: &Task,
        trace: TraceContext,
        fence: Fence,
        seat: Seat,
    ) -> Self {
        let route = Route::Task(Arc::new(TaskLine::new(fence)));
        let called = Called {
            target: Target::Tool(task.tool.clone()),
            principal: task.owner.clone(),
            client: task.client,
            trace,
        };
        let mut run = Run::new(means, function, called, route, seat);
        run.task = OnceLock::from(TaskHandle::of(task));
        run.former = task.inputs.iter().map(|input| input.key.clone()).collect();
        run.keys = Mutex::new(run.former.clone());
        run.journal = journal::of(task);
        run.words = Mutex::new(Words {
            status_message: task.status_message.clone(),
            progress: task.progress.clone(),
            spent: task.spent.unwrap_or_default(),
            ..Words::default()
        });
        Self(Arc::new(run), None)
    }

    /// A run of a call that is not a task.
    pub(crate) fn of_call(
        means: Arc<Means>,
        function: Arc<Function>,
        called: Called,
        line: CallLine,
        seat: Seat,
    ) -> Self {
        let route = Route::Call(Arc::new(line));
        Self(Arc::new(Run::new(means, Some(function), called, route, seat)), None)
    }

    /// The task's id; `None` for a call that is not a task.
    pub fn task_id(&self) -> Option<TaskId> {
        self.as_task().map(|task| task.id)
    }

    /// The task, if this call is one, or has become one: the client decides that, or leaves it to the tool
    /// ([`become_task`](Self::become_task)). A tool with optional task support may ask here whether to do the long
    /// thing, or to answer at once because someone waits on an open connection.
    pub fn as_task(&self) -> Option<&TaskHandle> {
        self.0.task.get()
    }

    /// The MCP method that was called.
    pub fn method(&self) -> &'static str {
        self.0.target.method()
    }

    /// The name of what was called; of a resource, its URI.
    pub fn tool(&self) -> &str {
        match &self.1 {
            None => self.0.target.name(),
            Some(part) => &part.tool,
        }
    }

    /// Whose call it is.
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// What the caller can be asked. Another question counts as declined.
    pub fn client(&self) -> ClientCapabilities {
        *self.0.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the tool's own time limit ends the run; `None` is never, or not while it waits for its caller.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.seat.deadline()
    }

    /// How long the run has worked so far, without the time it waited for its caller's answers.
    pub fn worked(&self) -> Duration {
        self.0.seat.worked()
    }

    /// Waits until the run has [worked](Self::worked) for so long.
    pub async fn until_worked(&self, whole: Duration) {
        self.0.seat.until_worked(whole).await;
    }

    /// The worker's resources, to say that one has changed.
    pub fn resources(&self) -> &Resources {
        &self.0.means.resources
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
        let mut message = message.into();
        if let Some(part) = &self.1 {
            message = format!("{}: {message}", part.tool);
        }
        let message = short(message);
        self.say(move |words| {
            words.status_message = Some(message);
            words.unreported = true;
        })
        .await
    }

    /// Says how far the work is. `progress` must rise: a value that does not is dropped.
    pub async fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) -> Result<(), Ended> {
        let message = message.map(|message| short(message.to_owned()));
        // How far a part is says nothing of the whole.
        let is_whole = self.1.is_none();
        self.say(move |words| {
            if is_whole
                && progress.is_finite()
                && words.progress.as_ref().is_none_or(|former| progress > former.progress)
            {
                let total = total.filter(|total| total.is_finite());
                let step = Progress { progress, total, message };
                words.progress = Some(step.clone());
                if words.steps.len() == PROGRESS_MAX {
                    words.steps.pop_back();
                }
                words.steps.push_back(step);
            }
        })
        .await
    }

    /// Writes to the caller's log, if it asked for messages of this level: `data` is any JSON. A task has no such reader.
    pub async fn log<T: Serialize + ?Sized>(
        &self,
        level: LogLevel,
        logger: Option<&str>,
        data: &T,
    ) -> Result<(), Ended> {
        let wanted = match self.route() {
            Route::Call(line) => line.hears(level),
            Route::Task(_) => false,
        };
        let data = wanted.then(|| serde_json::to_vec(data)).transpose();
        self.say(move |words| {
            let data = match data {
                Ok(None) => return,
                Ok(Some(data)) if data.len() <= LOG_BYTES_MAX && words.logs.len() < LOGS_MAX => data,
                Ok(Some(_)) | Err(_) => return words.logs_dropped += 1,
            };
            words.logs.push_back(LogMessage { level, logger: logger.map(str::to_owned), data: data.into() });
        })
        .await
    }

    /// Says that so much more was used, for the budgets of the caller: what was said is charged in the end, also if the run
    /// is stopped. Of a run that says nothing the price of its tool is charged if it answers.
    pub async fn spend(&self, more: Amount) -> Result<(), Ended> {
        self.say(move |words| {
            words.spent = words.spent.plus(more);
            words.unsaid_spend = true;
        })
        .await
    }

    /// Goes on as a task, if the caller can have one: it then hears of the task at once, and may go away. In a task that
    /// is the task itself. `None` if it has to stay a call; it then just goes on. A tool that
    /// [`decides`](crate::Tool::decides) calls this once it knows that it will take long, after its questions.
    pub async fn become_task(&self) -> Result<Option<TaskHandle>, Ended> {
        let becoming = async {
            let _turn = self.0.turn.lock().await;
            self.alive()?;
            if let (Route::Call(line), None) = (self.route(), self.as_task()) {
                line.become_task(self).await;
            }
            Ok(self.as_task().copied())
        };
        tokio::select! {
            became = becoming => became,
            ended = self.over() => Err(ended),
        }
    }

    /// The W3C `traceparent` of the present span, to hand on to what the tool calls; where no spans are recorded, that of
    /// the call itself.
    pub fn traceparent(&self) -> Option<String> {
        self.trace().traceparent
    }

    /// The same, with the call's `tracestate` and `baggage`.
    pub fn trace(&self) -> TraceContext {
        self.0.trace.within(longhaul_rpc::trace::current())
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

    pub(crate) fn alive(&self) -> Result<(), Ended> {
        match self.0.why.get() {
            Some(Stop::Ended(ended)) => Err(*ended),
            Some(Stop::Drained | Stop::TimedOut) => Err(Ended::Stopped),
            None if self.0.finished.is_cancelled() => Err(Ended::Stopped),
            None => Ok(()),
        }
    }

    /// Waits until the run is over, one way or the other.
    pub(crate) async fn over(&self) -> Ended {
        tokio::select! {
            () = self.0.stop.cancelled() => {}
            () = self.0.finished.cancelled() => {}
        }
        self.alive().err().unwrap_or(Ended::Stopped)
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn route(&self) -> Route {
        self.0.route.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is held of its task, if it is one.
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self.route() {
            Route::Task(line) => Some(line.fence.clone()),
            Route::Call(_) => None,
        }
    }

    pub(crate) fn set_client(&self, client: ClientCapabilities) {
        *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
    }

    /// From now on it is a task: what it said last is said there too.
    pub(crate) fn turn_into(&self, task: &Task, fence: Fence) {
        self.set_client(task.client);
        let charged = match self.route() {
            Route::Call(line) => line.spent_before(),
            Route::Task(_) => Amount::ZERO,
        };
        let mut words = self.words();
        words.spent = words.spent.minus(charged);
        words.unreported = words.status_message.is_some();
        words.unsaid_spend = words.spent != Amount::ZERO;
        words.steps = words.progress.iter().cloned().collect();
        *self.0.route.lock().unwrap_or_else(PoisonError::into_inner) = Route::Task(Arc::new(TaskLine::new(fence)));
        drop(words);
        if let Some(journal) = journal::of(task).into_inner() {
            let _ = self.0.journal.set(journal);
        }
        let _ = self.0.task.set(TaskHandle::of(task));
        self.0.answers.notify_one();
        self.heed();
    }

    /// There is something to pass on.
    pub(crate) fn heed(&self) {
        self.0.news.notify_one();
    }

    /// There are answers to collect.
    pub(crate) fn answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
        self.0.answers.notify_one();
    }

    /// Tells the run to stop; the first reason counts.
    pub(crate) fn stop(&self, why: Stop) {
        if self.0.why.set(why).is_ok() {
            self.0.stop.cancel();
        }
    }

    /// Tells the run to stop, because of a refusal.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.stop(Stop::Ended(match refusal {
            Refusal::AlreadyEnded(ending) => Ended::Already(*ending),
            Refusal::Expired | Refusal::NotFound => Ended::Expired,
            Refusal::Fenced
            | Refusal::KeyUsed(_)
            | Refusal::TooManyQuestions
            | Refusal::Unaskable
            | Refusal::NotAsked
            | Refusal::JournalFull
            | Refusal::TaskLimit { .. }
            | Refusal::Denied(_) => Ended::Stopped,
        }));
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
    pub(crate) async fn pass_on(&self) {
        self.0.stop.run_until_cancelled(self.pass_all()).await;
        let dropped = self.words().logs_dropped;
        if dropped > 0 {
            tracing::warn!(
                name = self.tool(),
                dropped,
                "log messages were dropped: too many, too large or without JSON"
            );
        }
    }

    async fn pass_all(&self) {
        let finished = &self.0.finished;
        let (mut reports, mut steps) = (Pace::new(1), Pace::new(PROGRESS_MAX));
        loop {
            finished.run_until_cancelled(self.0.news.notified()).await;
            loop {
                // Asked before taking the last word, or that could be missed.
                let over = finished.is_cancelled();
                let wait = match self.route() {
                    Route::Task(_) => self.report(&mut reports, over).await,
                    Route::Call(line) => self.tell(&line, &mut steps, over).await,
                };
                match wait {
                    None if over => return,
                    None => break,
                    Some(until) => {
                        tokio::select! {
                            () = tokio::time::sleep_until(until) => {}
                            () = self.0.news.notified() => {}
                            () = finished.cancelled() => {}
                        }
                    }
                }
            }
        }
    }

    /// Tells a caller all that there is to tell; or says how long to wait.
    async fn tell(&self, line: &CallLine, pace: &mut Pace, over: bool) -> Option<Instant> {
        loop {
            let next = line.next(&mut self.words(), pace, over);
            match next {
                Next::Say(to, word) => {
                    let asks_to_park = matches!(word, CallEvent::Asked(_)) && line.parks();
                    // A caller that has gone is noticed by the call itself, unless it is parked.
                    if to.send(word).await.is_err() && asks_to_park {
                        self.stop(Stop::Ended(Ended::Stopped));
                    }
                }
                Next::Wait(until) => return Some(until),
                Next::Nothing => return None,
            }
        }
    }

    /// Reports to the task-store; or says how long to wait.
    async fn report(&self, pace: &mut Pace, over: bool) -> Option<Instant> {
        let (report, spend) = {
            let mut words = self.words();
            // Nobody reads a task's log.
            words.logs.clear();
            if !words.unreported && words.steps.is_empty() && !words.unsaid_spend {
                return None;
            }
            if let (Err(until), false) = (pace.take(Instant::now()), over) {
                return Some(until);
            }
            let progress = words.steps.pop_back();
            words.steps.clear();
            let status_message = std::mem::take(&mut words.unreported).then(|| words.status_message.clone()).flatten();
            (Report { status_message, progress }, words.take_spend())
        };
        let Route::Task(line) = self.route() else { return None };
        if let Some(total) = spend
            && let Err(error) = self.0.means.work.spend(line.fence.clone(), total).await
        {
            tracing::debug!(%error, "what was spent was not taken");
            if let Error::Refused(refusal) = error {
                self.refused(&refusal);
                return None;
            }
            // It is said again with the next word, or with the outcome.
            self.words().unsaid_spend = true;
        }
        if report == Report::default() {
            return None;
        }
        match self.0.means.work.report(line.fence.clone(), report.clone()).await {
            Ok(_) => None,
            Err(Error::Refused(refusal)) => {
                self.refused(&refusal);
                None
            }
            Err(error) => {
                tracing::debug!(%error, "a report was not taken");
                // What could not be sent is sent later, unless there is newer word.
                let mut words = self.words();
                words.unreported |= report.status_message.is_some();
                if words.steps.is_empty() {
                    words.steps.extend(report.progress);
                }
                drop(words);
                (!over).then(|| Instant::now() + REPORT_EVERY)
            }
        }
    }
}

impl Context {
    /// What was used so far, if the task-store does not know it yet.
    pub(crate) fn unsaid_spend(&self) -> Option<Amount> {
        let words = self.words();
        words.unsaid_spend.then_some(words.spent)
    }

    /// Another caller is to hear of it.
    pub(crate) fn say_spend(&self) {
        self.words().unsaid_spend = true;
    }

    /// The task-store knows it now.
    pub(crate) fn said_spend(&self) {
        self.words().unsaid_spend = false;
    }
}

impl Words {
    /// What was used so far, if that was not said.
    pub(crate) fn take_spend(&mut self) -> Option<Amount> {
        std::mem::take(&mut self.unsaid_spend).then_some(self.spent)
    }
}

impl Run {
    fn new(means: Arc<Means>, function: Option<Arc<Function>>, called: Called, route: Route, seat: Seat) -> Self {
        let Called { target, principal, client, trace } = called;
        Self {
            means,
            function,
            target,
            principal,
            client: Mutex::new(client),
            trace,
            task: OnceLock::new(),
            route: Mutex::new(route),
            seat,
            keys: Mutex::default(),
            former: HashSet::new(),
            journal: Journal::new(),
            turn: tokio::sync::Mutex::new(()),
            stop: CancellationToken::new(),
            why: OnceLock::new(),
            words: Mutex::default(),
            news: Notify::new(),
            answers: Notify::new(),
            answered: AtomicBool::new(false),
            finished: CancellationToken::new(),
        }
    }
}

fn short(text: String) -> String {
    match cut(&text, STATUS_MESSAGE_BYTES_MAX) {
        whole if whole.len() == text.len() => text,
        part => part.to_owned(),
    }
}
