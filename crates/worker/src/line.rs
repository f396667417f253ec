//! The line to the caller of a run that is not a task: what it is told and asked, and what comes back. A run can be
//! parked: its caller has hung up with the questions, and may come back with the answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::{
    Amount, Claimed, InputRequest, InputResponse, LeaseToken, LogLevel, Outcome, Question, Refusal, input,
};
use longhaul_rpc::{Answers, Asked, CallEvent, Line, Resume};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::{Context, Ended, Pace, Stop, Words};
use crate::seat::Waiter;

/// The longest time that a run waits parked for its caller to come back.
const PARK_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long a run that is to go on as a task waits for that after its caller has hung up: somebody may have made the task.
const BECOMING_GRACE: Duration = Duration::from_secs(10);

/// Runs that callers can speak of, by names that cannot be guessed.
#[derive(Default)]
pub(crate) struct Runs(Mutex<HashMap<String, Context>>);

impl Runs {
    fn locked(&self) -> MutexGuard<'_, HashMap<String, Context>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, run: &str) -> Option<Context> {
        self.locked().get(run).cloned()
    }
}

/// The line of one run.
pub(crate) struct CallLine {
    /// How long the run waits parked each time it asks; `None` if its caller stays on the line.
    park: Option<Duration>,
    /// What the call was made with, in bytes.
    argument_bytes: usize,
    runs: Arc<Runs>,
    state: Mutex<State>,
    /// The caller has come or gone.
    changed: Notify,
    /// No question is open any more.
    settled: Notify,
}

struct State {
    /// The run's name, once it needs one.
    run: Option<String>,
    caller: Caller,
    line: Line,
    may_become_task: bool,
    /// How often it has asked.
    round: u32,
    open: Vec<Open>,
    /// The keys of questions that the caller was asked and need not answer any more.
    withdrawn: Vec<String>,
    becoming: Option<Becoming>,
    /// The run is over.
    left: bool,
    /// What its callers were told that it has used, and former ones were.
    spent: Amount,
    spent_before: Amount,
}

enum Caller {
    Here(mpsc::Sender<CallEvent>),
    /// It may come back.
    Away {
        until: Instant,
    },
    /// The run is a task now.
    Gone,
}

struct Open {
    key: String,
    question: Question,
    until: Instant,
    answer: oneshot::Sender<InputResponse>,
    /// The caller has been asked, and still knows.
    told: bool,
}

/// A run that is to go on as a task.
struct Becoming {
    claimed: Claimed,
    /// When its caller was told, hence before the lease began.
    told: Option<Instant>,
    /// Dropped when it is decided.
    _decided: oneshot::Sender<()>,
}

/// What to do next for the caller.
pub(crate) enum Next {
    Say(mpsc::Sender<CallEvent>, CallEvent),
    Wait(Instant),
    Nothing,
}

/// An open question of a run; dropped, it is withdrawn.
pub(crate) struct Waiting {
    line: Arc<CallLine>,
    context: Context,
    key: String,
    until: Instant,
    answer: oneshot::Receiver<InputResponse>,
}

impl CallLine {
    pub(crate) fn new(
        runs: Arc<Runs>,
        events: mpsc::Sender<CallEvent>,
        line: Line,
        park: Option<Duration>,
        may_become_task: bool,
        argument_bytes: usize,
    ) -> Self {
        let state = State {
            run: None,
            caller: Caller::Here(events),
            line,
            may_become_task,
            round: 0,
            open: Vec::new(),
            withdrawn: Vec::new(),
            becoming: None,
            left: false,
            spent: Amount::ZERO,
            spent_before: Amount::ZERO,
        };
        Self {
            park: park.map(|park| park.min(PARK_MAX)),
            argument_bytes,
            runs,
            state: Mutex::new(state),
            changed: Notify::new(),
            settled: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its former callers were told that it has used.
    pub(crate) fn spent_before(&self) -> Amount {
        self.state().spent_before
    }

    /// Whether its caller hangs up when it is asked something.
    pub(crate) fn parks(&self) -> bool {
        self.park.is_some()
    }

    /// What it keeps in memory while it waits for the answers to such questions, in bytes.
    pub(crate) fn bytes<'a>(&self, questions: impl Iterator<Item = &'a Question>) -> usize {
        self.argument_bytes + questions.map(Question::bytes).sum::<usize>()
    }

    /// Whether the caller wants log messages of this level.
    pub(crate) fn hears(&self, level: LogLevel) -> bool {
        self.state().line.log.is_some_and(|least| least <= level)
    }

    /// What to say next. Once the run is `over`, it asks no more.
    pub(crate) fn next(&self, words: &mut Words, pace: &mut Pace, over: bool) -> Next {
        let now = Instant::now();
        let mut state = self.state();
        let state = &mut *state;
        let Caller::Here(events) = &state.caller else { return Next::Nothing };
        let events = events.clone();
        while let Some(log) = words.logs.pop_front() {
            if state.line.log.is_some_and(|least| least <= log.level) {
                return Next::Say(events, CallEvent::Log(log));
            }
        }
        // Its end withdraws all that is left.
        if !over && !state.withdrawn.is_empty() {
            return Next::Say(events, CallEvent::Withdrawn(std::mem::take(&mut state.withdrawn)));
        }
        if let Some(spent) = words.take_spend() {
            state.spent = spent;
            return Next::Say(events, CallEvent::Spent(spent.minus(state.spent_before)));
        }
        let asks = !over && state.open.iter().any(|open| !open.told);
        let becoming = state.becoming.as_mut().filter(|becoming| !over && becoming.told.is_none());
        if !state.line.progress {
            words.steps.clear();
        }
        if !words.steps.is_empty() {
            let step = match pace.take(now) {
                Ok(true) => words.steps.pop_front(),
                Ok(false) => words.steps.drain(..).next_back(),
                // What comes now is not to be held up.
                Err(_) if over || asks || becoming.is_some() => words.steps.drain(..).next_back(),
                Err(until) => return Next::Wait(until),
            };
            return step.map_or(Next::Nothing, |step| Next::Say(events, CallEvent::Progress(step)));
        }
        let Some(run) = state.run.clone() else { return Next::Nothing };
        if asks {
            state.round += 1;
            let untold = state.open.iter_mut().filter(|open| !open.told).map(|open| {
                open.told = true;
                InputRequest { key: open.key.clone(), question: open.question.clone() }
            });
            let asked = Asked { run, round: state.round, requests: untold.collect() };
            // Before it is sent: the caller may hang up as soon as it has it.
            if let Some(park) = self.park {
                state.caller = Caller::Away { until: now + park };
                self.changed.notify_one();
            }
            return Next::Say(events, CallEvent::Asked(asked));
        }
        if let Some(becoming) = becoming {
            becoming.told = Some(now);
            return Next::Say(events, CallEvent::Becoming { run, claimed: becoming.claimed.clone() });
        }
        Next::Nothing
    }

    /// Asks the caller.
    pub(crate) fn ask(
        self: &Arc<Self>,
        context: &Context,
        requests: Vec<(InputRequest, Duration)>,
    ) -> Result<Vec<Waiting>, crate::Error> {
        let now = Instant::now();
        let mut state = self.state();
        self.name(&mut state, context)?;
        let ask = |(InputRequest { key, question }, timeout): (_, Duration)| {
            let until = now.checked_add(timeout).unwrap_or(now + PARK_MAX);
            let (send, answer) = oneshot::channel();
            state.open.push(Open { key: Clone::clone(&key), question, until, answer: send, told: false });
            Waiting { line: self.clone(), context: context.clone(), key, until, answer }
        };
        let waiting = requests.into_iter().map(ask).collect();
        drop(state);
        context.heed();
        Ok(waiting)
    }

    /// Gives the run a name, under which its caller finds it.
    fn name(&self, state: &mut State, context: &Context) -> Result<(), crate::Error> {
        if state.run.is_none() && !state.left {
            let run = crate::random()?;
            self.runs.locked().insert(run.clone(), context.clone());
            state.run = Some(run);
        }
        Ok(())
    }

    /// The caller, on the line, answers.
    pub(crate) fn respond(&self, answers: Answers) -> Result<(), Refusal> {
        let mut state = self.state();
        match state.caller {
            Caller::Here(_) if !state.left => state.deliver(answers),
            Caller::Here(_) | Caller::Away { .. } | Caller::Gone => return Err(Refusal::NotFound),
        }
        self.settle(&state);
        Ok(())
    }

    /// The caller comes back to a parked run.
    pub(crate) fn resume(
        &self,
        context: &Context,
        events: mpsc::Sender<CallEvent>,
        resume: Resume,
    ) -> Result<(), Refusal> {
        let now = Instant::now();
        let mut state = self.state();
        if !matches!(state.caller, Caller::Away { .. }) || state.round != resume.round {
            return Err(Refusal::NotFound);
        }
        context.set_client(resume.client);
        (state.caller, state.line) = (Caller::Here(events), resume.line);
        // Each caller's request is charged by itself.
        state.spent_before = state.spent;
        let has_spent = state.spent != Amount::ZERO;
        // Too late while nobody was there to hear of it.
        let late = state.open.extract_if(.., |open| open.until <= now);
        late.for_each(|open| drop(open.answer.send(InputResponse::Decline)));
        state.deliver(resume.answers);
        // It may have come back as another client.
        let unaskable = state.open.extract_if(.., |open| !resume.client.can_answer(&open.question));
        unaskable.for_each(|open| drop(open.answer.send(InputResponse::Decline)));
        state.open.iter_mut().for_each(|open| open.told = false);
        self.settle(&state);
        drop(state);
        if has_spent {
            context.say_spend();
        }
        self.changed.notify_one();
        context.heed();
        Ok(())
    }

    fn settle(&self, state: &State) {
        if state.open.is_empty() {
            self.settled.notify_one();
        }
    }

    /// Says that the run is to go on as a task, and waits until it does or cannot.
    pub(crate) async fn become_task(&self, context: &Context) {
        let decided = loop {
            match self.begin_to_become(context) {
                Ok(Some(decided)) => break decided,
                // First its questions.
                Ok(None) => self.settled.notified().await,
                Err(Refused) => return,
            }
        };
        context.heed();
        // It is dropped, not sent.
        let _ = decided.await;
    }

    fn begin_to_become(&self, context: &Context) -> Result<Option<oneshot::Receiver<()>>, Refused> {
        let mut state = self.state();
        if !state.may_become_task {
            return Err(Refused);
        }
        if !state.open.is_empty() {
            return Ok(None);
        }
        let token = self.name(&mut state, context).and_then(|()| crate::random());
        let token = token.map_err(|error| {
            tracing::error!(%error, "a call stays a call");
            Refused
        })?;
        let claimed = Claimed { worker: context.0.means.worker.clone(), token: LeaseToken(token) };
        let (_decided, decided) = oneshot::channel();
        match &mut state.becoming {
            // Somebody wanted it before, and waits no more.
            Some(becoming) => becoming._decided = _decided,
            none => *none = Some(Becoming { claimed, told: None, _decided }),
        }
        Ok(Some(decided))
    }

    /// The run cannot become a task.
    pub(crate) fn stays(&self) -> Result<(), Refusal> {
        let mut state = self.state();
        state.may_become_task = false;
        self.changed.notify_one();
        state.becoming.take().map(drop).ok_or(Refusal::NotFound)
    }

    /// Waits until it is decided whether the run is a task, in case it did not wait for that itself.
    pub(crate) async fn decided(&self) {
        let deciding = async {
            while self.becoming().is_some() {
                self.changed.notified().await;
            }
        };
        // If it takes longer, nobody is at it any more.
        let _ = tokio::time::timeout(BECOMING_GRACE, deciding).await;
    }

    /// In whose hands the task is to be that the run waits for, and when its caller was told.
    pub(crate) fn becoming(&self) -> Option<(Claimed, Instant)> {
        let state = self.state();
        let becoming = state.becoming.as_ref()?;
        Some((becoming.claimed.clone(), becoming.told?))
    }

    /// The run is a task now: its caller hears of that, no more of the run.
    pub(crate) fn hang_up(&self) {
        let mut state = self.state();
        (state.caller, state.becoming) = (Caller::Gone, None);
        // Whoever might answer has gone.
        state.open.drain(..).for_each(|open| drop(open.answer.send(InputResponse::Decline)));
        self.changed.notify_one();
    }

    /// Tells the run to stop when its caller has gone for good, or `cut` fires.
    pub(crate) async fn supervise(&self, context: &Context, cut: &CancellationToken) {
        let watch = async {
            loop {
                let (here, until) = match &self.state().caller {
                    Caller::Here(events) => (Some(events.clone()), None),
                    Caller::Away { until } => (None, Some(*until)),
                    Caller::Gone => (None, None),
                };
                let lost = async {
                    match (here, until) {
                        (Some(events), _) => events.closed().await,
                        (None, Some(until)) => tokio::time::sleep_until(until).await,
                        (None, None) => std::future::pending().await,
                    }
                    if self.becoming().is_some() {
                        tokio::time::sleep(BECOMING_GRACE).await;
                    }
                };
                tokio::select! {
                    biased;
                    () = self.changed.notified() => {}
                    () = lost => return,
                }
            }
        };
        tokio::select! {
            () = watch => context.stop(Stop::Ended(Ended::Stopped)),
            () = cut.cancelled() => context.stop(Stop::Drained),
        }
    }

    /// Says how the run ended. A parked run waits for its caller once more, unless it was told to stop.
    pub(crate) async fn last(&self, context: &Context, outcome: Outcome, cut: &CancellationToken) {
        let mut place = None;
        loop {
            let until = match &self.state().caller {
                Caller::Here(events) => Err(events.clone()),
                Caller::Away { until } => Ok(*until),
                Caller::Gone => return,
            };
            match until {
                Err(events) => {
                    let _ = events.send(CallEvent::Outcome(outcome)).await;
                    return;
                }
                Ok(_) if context.is_cancelled() => return,
                Ok(until) => {
                    if place.is_none() {
                        let waiter = Waiter { principal: context.principal(), call_bytes: Some(weight(&outcome)) };
                        match context.0.means.waiting.take(waiter) {
                            Ok(taken) => place = Some(taken),
                            Err(full) => return full.log(context.principal(), "an answer is dropped"),
                        }
                    }
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = tokio::time::sleep_until(until) => return,
                        () = cut.cancelled() => return,
                    }
                }
            }
        }
    }

    /// The run is over: nobody can speak of it any more.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.left = true;
        state.open.clear();
        state.becoming = None;
        // Whoever reads its events has heard all.
        state.caller = Caller::Gone;
        if let Some(run) = state.run.take() {
            drop(self.runs.locked().remove(&run));
        }
    }
}

fn weight(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Result { body, .. } => body.len(),
        Outcome::Error(error) => error.message.len() + error.data.as_ref().map_or(0, Bytes::len),
        Outcome::Cancelled | Outcome::Interrupted(_) => 0,
    }
}

/// The run stays a call.
struct Refused;

impl State {
    fn deliver(&mut self, answers: Answers) {
        for (key, response) in answers {
            if let Some(at) = self.open.iter().position(|open| open.key == key) {
                let open = self.open.remove(at);
                // Whoever asked may be gone.
                let _ = open.answer.send(input::fit(&open.question, response));
            }
        }
    }
}

impl Waiting {
    /// The response, or `None` if there will be none. Without one in time it is a decline; while nobody is on the line,
    /// that has to wait.
    pub(crate) async fn response(&mut self) -> Option<InputResponse> {
        if let Ok(response) = tokio::time::timeout_at(self.until, &mut self.answer).await {
            return response.ok();
        }
        if self.lapses() {
            return Some(InputResponse::Decline);
        }
        (&mut self.answer).await.ok()
    }

    fn lapses(&self) -> bool {
        let mut state = self.line.state();
        !matches!(state.caller, Caller::Away { .. }) && self.withdraw(&mut state)
    }

    /// The answer is not wanted any more; false if it has come. A caller that stays on the line hears of it.
    fn withdraw(&self, state: &mut State) -> bool {
        let Some(at) = state.open.iter().position(|open| open.key == self.key) else { return false };
        let open = state.open.remove(at);
        if open.told && !self.line.parks() {
            state.withdrawn.push(open.key);
            self.context.heed();
        }
        self.line.settle(state);
        true
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.withdraw(&mut self.line.state());
    }
}
