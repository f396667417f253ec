//! How a run asks: what may not be asked counts as declined; while it waits it holds no slot.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use longhaul_core::input::{self, Objection, QUESTIONS_MAX};
use longhaul_core::{InputRequest, InputResponse, Question};

use crate::ask::{Ask, InputError, Response};
use crate::context::{Context, Route};
use crate::resolve::leads_to_public;
use crate::seat::Waiter;
use crate::{collect, line};

/// A question that is asked.
struct Wanted {
    /// Which of the questions it is.
    at: usize,
    /// What its author calls it.
    name: String,
    request: InputRequest,
    timeout: Duration,
}

/// Why a question is not asked.
struct No {
    /// For the log.
    kind: &'static str,
    /// It may quote the question, so only the task's owner reads it.
    why: String,
}

impl No {
    fn new(kind: &'static str, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }
}

impl From<Objection> for No {
    fn from(objection: Objection) -> Self {
        let kind = match objection {
            Objection::Form(_) => "form",
            Objection::Secret(_) => "secret",
            Objection::Url(_) => "url",
            Objection::TooLarge => "size",
        };
        Self::new(kind, objection.to_string())
    }
}

enum Waiting {
    Task(collect::Waiting),
    Call(line::Waiting),
}

impl Waiting {
    async fn response(&mut self) -> Option<InputResponse> {
        match self {
            Self::Task(waiting) => waiting.response().await,
            Self::Call(waiting) => waiting.response().await,
        }
    }
}

impl Context {
    /// Asks the caller, and waits for its response: the same in a task and in a call that is none.
    ///
    /// The run may wait for long. Meanwhile it takes no slot, and the tool's time limit stands still. What the caller
    /// cannot be asked, what must not be shown to people, and what is not answered in time counts as declined.
    ///
    /// Dropped before it is answered (in a `select!`, by a timeout), the question is withdrawn: its client need not answer any
    /// more, and its key stays used.
    pub async fn request_input(&self, ask: Ask) -> Result<Response, InputError> {
        self.request_inputs([ask]).await?.pop().ok_or(InputError::Ended)
    }

    /// Asks several things at once, and waits until all have their responses, which come in the order of the questions.
    pub async fn request_inputs(&self, asks: impl IntoIterator<Item = Ask>) -> Result<Vec<Response>, InputError> {
        let wanted = self.name_all(asks.into_iter().map(|ask| self.of_part(ask)).collect())?;
        // One box: an author's future should not be as large as all of this.
        let asking = Box::pin(self.ask_all(wanted));
        tokio::select! {
            responses = asking => responses,
            _ = self.over() => Err(InputError::Ended),
        }
    }

    /// Gives each question its key, or none.
    fn name_all(&self, asks: Vec<Ask>) -> Result<Vec<Wanted>, InputError> {
        self.alive().map_err(|_| InputError::Ended)?;
        let mut keys = self.0.keys.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if keys.len() + asks.len() > QUESTIONS_MAX {
            return Err(InputError::TooMany);
        }
        let mut taken = keys.clone();
        let mut wanted = Vec::with_capacity(asks.len());
        // Authors' own first: a default one gives way.
        for key in asks.iter().filter_map(|ask| ask.key.as_ref()) {
            if !input::is_key(key) {
                return Err(InputError::Invalid(format!("{key:?} is no key")));
            }
            if !taken.insert(self.wire_key(key)) {
                return Err(InputError::KeyUsed(key.clone()));
            }
        }
        for (at, Ask { question, key, timeout }) in asks.into_iter().enumerate() {
            let question = question.map_err(InputError::Invalid)?;
            if self.as_task().is_some() && is_for_the_client(&question) {
                return Err(InputError::Unsupported);
            }
            let (name, key) = match key {
                Some(name) => (name.clone(), self.wire_key(&name)),
                None => {
                    let free = (1..).map(|nth| format!("q-{nth}")).find(|key| !taken.contains(key)).unwrap_or_default();
                    taken.insert(free.clone());
                    (free.clone(), free)
                }
            };
            let timeout = timeout.unwrap_or(self.0.means.input_timeout);
            wanted.push(Wanted { at, name, request: InputRequest { key, question }, timeout });
        }
        *keys = taken;
        Ok(wanted)
    }

    /// The key that clients see. One that a former attempt has used is good for no other question, even the same.
    fn wire_key(&self, key: &str) -> String {
        match self.as_task() {
            Some(task) if self.0.former.contains(key) => format!("{key}.{}", task.attempt),
            Some(_) | None => key.to_owned(),
        }
    }

    async fn ask_all(&self, wanted: Vec<Wanted>) -> Result<Vec<Response>, InputError> {
        let mut responses = vec![Response::Decline; wanted.len()];
        let keys: Vec<_> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
        let objections = join_all(wanted.iter().map(|wanted| self.objection(&wanted.request.question))).await;
        let mut askable = Vec::with_capacity(wanted.len());
        for (wanted, objection) in wanted.into_iter().zip(objections) {
            match objection {
                None => askable.push(wanted),
                Some(objection) => self.decline(&wanted.request.key, objection).await?,
            }
        }
        let call_bytes = match self.route() {
            Route::Call(line) => Some(line.bytes(askable.iter().map(|wanted| &wanted.request.question))),
            Route::Task(_) => None,
        };
        let waiter = Waiter { principal: self.principal(), call_bytes };
        let away = match askable.is_empty() {
            true => Ok(None),
            false => self.0.seat.leave(&self.0.means.waiting, waiter).map(Some),
        };
        if let Err(full) = &away {
            full.log(self.principal(), "a question counts as declined");
            for wanted in askable.drain(..) {
                self.decline(&wanted.request.key, No::new("full", "too many runs wait for answers")).await?;
            }
        }
        let mut is_open = vec![false; responses.len()];
        askable.iter().for_each(|wanted| is_open[wanted.at] = true);
        for at in (0..responses.len()).filter(|at| !is_open[*at]) {
            self.hear(&keys[at], &responses[at]).await;
        }
        let waiting = self.put(askable).await?;
        let waits = waiting.into_iter().map(|(at, mut waiting)| async move { (at, waiting.response().await) });
        let mut waits: FuturesUnordered<_> = waits.collect();
        while let Some((at, response)) = waits.next().await {
            responses[at] = response.ok_or(InputError::Ended)?.into();
            self.hear(&keys[at], &responses[at]).await;
        }
        drop(waits);
        if let Ok(Some(away)) = away {
            away.back().await;
        }
        Ok(responses)
    }

    /// Puts the questions to whoever wants the answer of this run.
    async fn put(&self, wanted: Vec<Wanted>) -> Result<Vec<(usize, Waiting)>, InputError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let turn = self.0.turn.lock().await;
        let route = self.route();
        if let Route::Call(line) = route {
            let ats: Vec<_> = wanted.iter().map(|wanted| wanted.at).collect();
            let requests = wanted.into_iter().map(|wanted| (wanted.request, wanted.timeout)).collect();
            let waiting = line.ask(self, requests).map_err(|error| InputError::Invalid(error.to_string()))?;
            return Ok(ats.into_iter().zip(waiting.into_iter().map(Waiting::Call)).collect());
        }
        drop(turn);
        let Route::Task(line) = route else { return Ok(Vec::new()) };
        // It may have become one since.
        if wanted.iter().any(|wanted| is_for_the_client(&wanted.request.question)) {
            return Err(InputError::Unsupported);
        }
        let mut waiting = Vec::with_capacity(wanted.len());
        // The task-store takes one time for all.
        for same in wanted.chunk_by(|one, next| one.timeout == next.timeout) {
            let requests = same.iter().map(|wanted| wanted.request.clone()).collect();
            let more = line.ask(self, requests, same[0].timeout).await?;
            waiting.extend(same.iter().map(|wanted| wanted.at).zip(more.into_iter().map(Waiting::Task)));
        }
        Ok(waiting)
    }

    /// Why it cannot be asked.
    async fn objection(&self, question: &Question) -> Option<No> {
        if let Err(objection) = input::vet(question) {
            return Some(objection.into());
        }
        if !self.client().can_answer(question) {
            let what = match question {
                Question::Form { .. } => "to fill in a form",
                Question::Url { .. } => "to open a page",
                Question::Sample { .. } => "for its model",
                Question::Roots => "for its roots",
            };
            return Some(No::new("client", format!("the client cannot be asked {what}")));
        }
        let Question::Url { url, .. } = question else { return None };
        let leads = leads_to_public(&*self.0.means.resolver, url).await;
        leads.err().map(|why| Objection::Url(why).into())
    }

    /// The question is not asked.
    async fn decline(&self, key: &str, No { kind, why }: No) -> Result<(), InputError> {
        tracing::debug!(key, because = kind, "a question was not asked, and counts as declined");
        self.set_status_message(why).await.map_err(|_| InputError::Ended)
    }

    async fn hear(&self, key: &str, response: &Response) {
        if let (Some(function), None) = (&self.0.function, &self.1) {
            function.answered(self.clone(), key, response).await;
        }
    }
}

/// Whether it is a question to the client itself, not to a person.
fn is_for_the_client(question: &Question) -> bool {
    match question {
        Question::Sample { .. } | Question::Roots => true,
        Question::Form { .. } | Question::Url { .. } => false,
    }
}
