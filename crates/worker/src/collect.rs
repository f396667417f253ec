//! The line to the owner of a task: questions go to the task-store, answers are collected there.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::{Fence, InputRequest, InputResponse, InputState, Refusal, Task};
use longhaul_rpc::Error;
use tokio::sync::oneshot;

use crate::ask::InputError;
use crate::backoff::Backoff;
use crate::context::{Context, Route};

/// How often answers are looked for while some are waited for, whatever is heard.
const COLLECT_EVERY: Duration = Duration::from_secs(10);

/// The line of one task.
pub(crate) struct TaskLine {
    pub(crate) fence: Fence,
    state: Mutex<State>,
    /// Whoever holds it withdraws questions.
    withdrawing: tokio::sync::Mutex<()>,
}

/// By the numbers of the questions, from 1; at most [`QUESTIONS_MAX`](longhaul_core::input::QUESTIONS_MAX).
#[derive(Default)]
struct State {
    open: HashMap<u32, oneshot::Sender<InputResponse>>,
    /// Collected before it was known who waits for them, or given up.
    early: HashMap<u32, InputResponse>,
    /// The keys of questions that are to be withdrawn.
    given_up: Vec<String>,
}

/// An open question of a task; dropped, it is withdrawn.
pub(crate) struct Waiting {
    line: Arc<TaskLine>,
    context: Context,
    key: String,
    nth: u32,
    answer: oneshot::Receiver<InputResponse>,
}

/// Questions that are on their way to the task-store; dropped, they are withdrawn, whether they arrive or not.
struct Asking<'a> {
    line: &'a TaskLine,
    context: &'a Context,
    keys: Vec<String>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.line.give_up(self.context, std::mem::take(&mut self.keys));
    }
}

impl TaskLine {
    pub(crate) fn new(fence: Fence) -> Self {
        Self { fence, state: Mutex::default(), withdrawing: tokio::sync::Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the owner. An answer that was lost is asked for again, for as long as the run goes on.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        context: &Context,
        requests: Vec<InputRequest>,
        timeout: Duration,
    ) -> Result<Vec<Waiting>, InputError> {
        // A client should not be shown both what is over and what comes after it.
        self.withdraw(context).await;
        let mut backoff = Backoff::default();
        let keys = requests.iter().map(|request| request.key.clone()).collect();
        let mut asking = Asking { line: self, context, keys };
        let answer = loop {
            let asked = self.request(context, &requests, timeout).await;
            match asked {
                Ok(task) => break Ok(task),
                Err(Error::Refused(Refusal::KeyUsed(key))) => break Err(InputError::KeyUsed(key)),
                Err(Error::Refused(Refusal::TooManyQuestions)) => break Err(InputError::TooMany),
                Err(Error::Refused(refusal @ Refusal::Unaskable)) => {
                    break Err(InputError::Invalid(refusal.to_string()));
                }
                Err(Error::Refused(refusal)) => {
                    context.refused(&refusal);
                    break Err(InputError::Ended);
                }
                Err(Error::Fault(why)) => break Err(InputError::Invalid(why)),
                Err(error @ (Error::Unavailable(_) | Error::NotBegun(_))) => {
                    tracing::warn!(%error, "a question was not taken");
                    backoff.wait().await;
                }
            }
        };
        // It is known what came of it.
        asking.keys.clear();
        let task = answer?;
        requests.iter().map(|request| self.wait(context, &task, &request.key)).collect()
    }

    async fn request(&self, context: &Context, requests: &[InputRequest], timeout: Duration) -> Result<Task, Error> {
        context.0.means.work.request_input(self.fence.clone(), requests.to_vec(), timeout).await
    }

    fn wait(self: &Arc<Self>, context: &Context, task: &Task, key: &str) -> Result<Waiting, InputError> {
        let missing = || InputError::Invalid("the task-store has lost it".into());
        let (nth, input) = (1..).zip(&task.inputs).find(|(_, input)| input.key == key).ok_or_else(missing)?;
        let (send, answer) = oneshot::channel();
        let mut state = self.state();
        match state.early.remove(&nth) {
            Some(response) => drop(send.send(response)),
            None => drop(state.open.insert(nth, send)),
        }
        drop(state);
        match input.state {
            InputState::Open { .. } => context.0.answers.notify_one(),
            // Answered already: that it is was perhaps said before anyone listened.
            InputState::Closed => context.answered(),
        }
        Ok(Waiting { line: self.clone(), context: context.clone(), key: key.to_owned(), nth, answer })
    }

    /// Nobody waits for the answers to these questions any more.
    fn give_up(&self, context: &Context, keys: Vec<String>) {
        if !keys.is_empty() {
            self.state().given_up.extend(keys);
            context.0.answers.notify_one();
        }
    }

    /// Withdraws what is given up. May be dropped and called again.
    async fn withdraw(&self, context: &Context) {
        let _turn = self.withdrawing.lock().await;
        let keys = self.state().given_up.clone();
        if keys.is_empty() {
            return;
        }
        let mut backoff = Backoff::default();
        loop {
            match context.0.means.work.withdraw(self.fence.clone(), keys.clone()).await {
                Ok(_) => break,
                Err(Error::Refused(refusal)) => return context.refused(&refusal),
                Err(Error::Fault(error)) => {
                    tracing::error!(error, "questions could not be withdrawn");
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, "questions were not withdrawn");
                    backoff.wait().await;
                }
            }
        }
        self.state().given_up.drain(..keys.len());
    }

    /// Collects what there is, and has it deleted.
    async fn collect(&self, context: &Context) {
        let mut have = Vec::new();
        let mut backoff = Backoff::default();
        loop {
            match context.0.means.work.collect(self.fence.clone(), have.clone()).await {
                Ok(mut answers) => {
                    // Those that were to be deleted are not new.
                    answers.retain(|(nth, _)| !have.contains(nth));
                    if answers.is_empty() {
                        return;
                    }
                    have = answers.iter().map(|(nth, _)| *nth).collect();
                    let mut state = self.state();
                    for (nth, response) in answers {
                        let left = match state.open.remove(&nth) {
                            Some(waiting) => waiting.send(response).err(),
                            None => Some(response),
                        };
                        state.early.extend(left.map(|response| (nth, response)));
                    }
                }
                Err(Error::Refused(refusal)) => return context.refused(&refusal),
                Err(Error::Fault(error)) => return tracing::error!(error, "answers could not be collected"),
                Err(error) => {
                    tracing::warn!(%error, "answers were not collected");
                    backoff.wait().await;
                }
            }
        }
    }
}

impl Context {
    /// Collects answers and withdraws questions, until the run is over.
    pub(crate) async fn attend(&self) {
        let attending = async {
            loop {
                let route = self.route();
                let heard = self.0.answers.notified();
                let Route::Task(line) = route else {
                    heard.await;
                    continue;
                };
                line.withdraw(self).await;
                let waits = !line.state().open.is_empty();
                let looks = match waits {
                    true => tokio::time::timeout(COLLECT_EVERY, heard).await.is_err(),
                    false => {
                        heard.await;
                        false
                    }
                };
                if self.0.answered.swap(false, Ordering::Relaxed) || looks {
                    line.collect(self).await;
                }
            }
        };
        tokio::select! {
            never = attending => never,
            _ = self.over() => {}
        }
    }
}

impl Waiting {
    /// The response, or `None` if there will be none.
    pub(crate) async fn response(&mut self) -> Option<InputResponse> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let was_open = self.line.state().open.remove(&self.nth).is_some();
        if was_open {
            self.line.give_up(&self.context, vec![std::mem::take(&mut self.key)]);
        }
    }
}
