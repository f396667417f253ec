//! A run, from the first worker that is asked to the last word.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, stream};
use http::StatusCode;
use longhaul_core::input::QUESTIONS_MAX;
use longhaul_core::{
    CallError, Claimed, ClientCapabilities, InputResponse, Outcome, Principal, Refusal, Retry, TaskId, TtlWish,
};
use longhaul_mcp::errors::{Denial, Rejection, code};
use longhaul_mcp::seal::RunQuestion;
use longhaul_mcp::{QuestionKind, Reply, error_body, outcome_status, v2025, v2026};
use longhaul_policy::{Becoming, Reservation, Wish};
use longhaul_rpc::{Answers, CallEvent, CallEvents, Calls as _, Error, Invocation, Resume, trace};
use tokio::sync::{oneshot, watch};

use super::feed::{End, Said};
use super::{Wanted, askable, line};
use crate::catalogue::Worker;
use crate::endpoint::{Asked, ended, http_status};
use crate::in_flight::{Entry, question_digest};
use crate::metrics::{Ended, Operation};
use crate::random;
use crate::verbs::call::hand_over;
use crate::verbs::unheard::Unheard;

/// How many workers are asked, as long as none has taken the call.
const WORKERS_MAX: usize = 2;

/// Where a run comes from.
pub(super) enum Start {
    /// It begins.
    Fresh { workers: Vec<Arc<Worker>>, invocation: Invocation },
    /// It is parked on a worker, and its client has come back.
    Again { worker: Arc<Worker>, resume: Resume },
}

/// Says whether anybody wants the answer.
pub(super) enum Interest {
    /// Until the client says otherwise.
    Session(Entry),
    /// As long as the request is there.
    Request(oneshot::Receiver<()>),
}

impl Interest {
    /// Waits until nobody does.
    async fn lost(&mut self) {
        match self {
            Self::Session(entry) => entry.cancelled().cancelled().await,
            // Nothing is heard before the run has ended.
            Self::Request(heard) => drop(heard.await),
        }
    }

    /// Whether the end was heard, once it is told. In a session it can be asked for later.
    async fn heard(self) -> bool {
        match self {
            Self::Session(_) => true,
            Self::Request(heard) => heard.await.is_ok(),
        }
    }
}

/// A call that runs.
pub(super) struct Run {
    asked: Asked,
    wanted: Wanted,
    /// Until it has become a task, or could not.
    becoming: Option<Becoming>,
    /// Settled by the outcome; a run that ends otherwise, or parks, is charged what it said it used.
    reservation: Reservation,
    tell: watch::Sender<Said>,
    interest: Interest,
    operation: Option<Operation>,
    highest: f64,
    /// The questions that wait for their answers.
    open: FuturesUnordered<BoxFuture<'static, Closed>>,
}

/// A question of a session that waits no more.
struct Closed {
    at: usize,
    /// It was not answered in time: the run, and the key.
    unanswered: Option<(String, String)>,
}

impl Run {
    pub(super) fn new(
        asked: Asked,
        wanted: Wanted,
        becoming: Becoming,
        tell: watch::Sender<Said>,
        interest: Interest,
        operation: Option<Operation>,
    ) -> Self {
        let (reservation, open) = (becoming.reservation().clone(), FuturesUnordered::new());
        let becoming = Some(becoming);
        Self { asked, wanted, becoming, reservation, tell, interest, operation, highest: f64::NEG_INFINITY, open }
    }

    /// Runs to the end; answers with the bytes that are kept of it.
    pub(super) async fn run(mut self, start: Start) -> usize {
        let end = self.until_over(start).await;
        // Whatever its end, nothing more is charged; its bytes may be kept for long.
        self.reservation.broken();
        if let Some(operation) = self.operation.take() {
            match &end {
                End::Message { how, .. } => operation.end(*how),
                End::Unavailable => operation.end(Ended::Error(code::INTERNAL)),
                End::Unwanted => drop(operation),
            }
        }
        let task = if let End::Message { task, .. } = &end { *task } else { None };
        let Self { asked, tell, interest, .. } = self;
        let mut bytes = 0;
        tell.send_modify(|said| bytes = said.end(end));
        if let Some(task) = task {
            let unheard = Unheard::new(&asked.shared, &asked.principal, task);
            if interest.heard().await {
                unheard.heard();
            }
        }
        bytes
    }

    async fn until_over(&mut self, start: Start) -> End {
        let give_up = self.asked.shared.give_up.clone();
        let is_again = matches!(start, Start::Again { .. });
        let begun = tokio::select! {
            biased;
            () = self.interest.lost() => return End::Unwanted,
            begun = begin(start) => begun,
            () = give_up.cancelled() => return self.cut(),
        };
        let Some((worker, mut events)) = begun else { return End::Unavailable };
        loop {
            let event = tokio::select! {
                biased;
                // Dropping the events tells the worker to stop.
                () = self.interest.lost() => return End::Unwanted,
                Some(closed) = self.open.next() => {
                    self.close(&worker, closed).await;
                    continue;
                }
                event = events.next() => event,
                () = give_up.cancelled() => return self.cut(),
            };
            match event {
                Some(Ok(CallEvent::Progress(progress))) => {
                    let token = self.wanted.progress_token.as_ref().filter(|_| progress.progress > self.highest);
                    let frame = token.and_then(|token| match self.asked.dialect.is_modern() {
                        true => v2026::notify::progress(token, &progress),
                        false => v2025::notify::progress(token, &progress, None),
                    });
                    if let Some(frame) = frame {
                        self.highest = progress.progress;
                        self.tell.send_modify(|said| said.word(frame));
                    }
                }
                Some(Ok(CallEvent::Log(message))) => {
                    let is_wanted = line(&self.asked, &self.wanted).log.is_some_and(|least| message.level >= least);
                    let frame = match self.asked.dialect.is_modern() {
                        true => v2026::notify::log(&message),
                        false => v2025::notify::log(&message),
                    };
                    if let Some(frame) = frame.filter(|_| is_wanted) {
                        self.tell.send_modify(|said| said.word(frame));
                    }
                }
                Some(Ok(CallEvent::Asked(asked))) if self.asked.dialect.is_modern() => {
                    return self.input_required(&worker, &asked);
                }
                Some(Ok(CallEvent::Asked(asked))) => self.ask(&worker, asked).await,
                Some(Ok(CallEvent::Withdrawn(keys))) => self.withdraw(&keys),
                Some(Ok(CallEvent::Becoming { run, claimed })) => {
                    if let Some(end) = self.become_task(&worker, &run, claimed).await {
                        return end;
                    }
                }
                Some(Ok(CallEvent::Spent(total))) => self.reservation.spent(total),
                Some(Ok(CallEvent::Outcome(outcome))) => {
                    match &outcome {
                        Outcome::Result { .. } | Outcome::Error(_) => self.reservation.answered(),
                        Outcome::Cancelled | Outcome::Interrupted(_) => self.reservation.broken(),
                    }
                    return self.over(&outcome);
                }
                // The run was resumed before, or nobody came back in time.
                Some(Err(Error::Refused(Refusal::NotFound))) if is_again => return self.denied(&Denial::BadState),
                Some(Err(Error::Refused(refusal))) => return self.denied(&Denial::from(refusal)),
                // It may have done its work or a part of it: only the client can know whether to try again.
                Some(Err(Error::Unavailable(why) | Error::NotBegun(why))) => {
                    tracing::warn!(why, "the worker of a call was lost");
                    return self.failed("The worker was lost before it answered");
                }
                Some(Err(Error::Fault(why))) => {
                    tracing::error!(why, "a call failed");
                    return self.failed("Internal error");
                }
                None => return self.failed("The worker was lost before it answered"),
            }
        }
    }

    fn over(&self, outcome: &Outcome) -> End {
        let Asked { shared, principal, .. } = &self.asked;
        match shared.release(principal, &self.wanted.target, outcome) {
            Ok(outcome) => self.told(&outcome),
            Err(denied) => self.denied(&Refusal::Denied(denied).into()),
        }
    }

    fn told(&self, outcome: &Outcome) -> End {
        let body = self.asked.write(&Reply::CallOutcome { target: &self.wanted.target, outcome });
        let status = http_status(outcome_status(self.asked.dialect, outcome));
        End::Message { status, body, how: ended(outcome), task: None }
    }

    fn failed(&self, message: &str) -> End {
        self.told(&Outcome::Error(CallError { code: code::INTERNAL, message: message.into(), data: None }))
    }

    fn cut(&self) -> End {
        self.failed("The gateway shut down before the call ended")
    }

    pub(super) fn denied(&self, denial: &Denial<'_>) -> End {
        let Rejection { status, error } = denial.reject(self.asked.dialect);
        let body = error_body(Some(&self.asked.id), &error);
        End::Message { status: http_status(status), body, how: Ended::Error(error.code), task: None }
    }

    /// Asks the client of a session, on the stream of its call.
    async fn ask(&mut self, worker: &Worker, asked: longhaul_rpc::Asked) {
        let Asked { shared, principal, session: Some((session, _)), .. } = &self.asked else { return };
        let client = self.askable();
        let mut declined = Vec::new();
        for request in asked.requests {
            if self.tell.borrow().has_asked(&request.key) {
                continue;
            }
            if !client.can_answer(&request.question) || self.tell.borrow().questions() >= QUESTIONS_MAX {
                declined.push((request.key, InputResponse::Decline));
                continue;
            }
            let question = RunQuestion {
                worker: worker.id.clone(),
                run: asked.run.clone(),
                key: request.key.clone(),
                kind: QuestionKind::of(&request.question),
                expires_at: session.expires_at,
            };
            let id = shared.seal(principal, &question);
            let frame = v2025::ask(&id, &request.question, None);
            let entry = shared.in_flight.enter_as(question_digest(&id));
            shared.metrics.asked("call_stream");
            let mut at = 0;
            self.tell.send_modify(|said| at = said.question(request.key.clone(), id, frame));
            let (run, patience) = (asked.run.clone(), shared.config.input_timeout);
            self.open.push(Box::pin(async move {
                let answered = tokio::time::timeout(patience, entry.cancelled().cancelled_owned()).await;
                Closed { at, unanswered: answered.err().map(|_| (run, request.key)) }
            }));
        }
        if !declined.is_empty() {
            decline(worker, principal, &asked.run, declined).await;
        }
    }

    /// The run has given up on questions that its client was asked.
    fn withdraw(&mut self, keys: &[String]) {
        let mut ids = Vec::new();
        self.tell.send_modify(|said| ids = said.give_up(keys));
        for id in ids {
            // Nobody waits for its answer here either.
            self.asked.shared.in_flight.cancel(question_digest(&id));
        }
    }

    async fn close(&mut self, worker: &Worker, closed: Closed) {
        let Closed { at, unanswered } = closed;
        match unanswered {
            None => self.tell.send_modify(|said| said.answered(at)),
            Some((run, key)) => {
                self.tell.send_modify(|said| said.withdraw(at));
                decline(worker, &self.asked.principal, &run, vec![(key, InputResponse::Decline)]).await;
            }
        }
    }

    /// The run wants to go on as a task. `None` if it goes on as a call.
    async fn become_task(&mut self, worker: &Worker, run: &str, claimed: Claimed) -> Option<End> {
        let Asked { shared, principal, .. } = &self.asked;
        let id = TaskId::from_random(u128::from_be_bytes(random()));
        let wish = Wish {
            ttl: TtlWish::Unsaid,
            // Since 2026-07-28 tasks have no progress notifications.
            progress_token: self.wanted.progress_token.clone().filter(|_| !self.asked.dialect.is_modern()),
            session: self.asked.tag().map(|tag| tag.to_string()),
            trace: self.asked.trace.within(trace::current()),
            client: self.asked.envelope.capabilities,
            // It has a past that nobody else could go on from.
            retry: Retry::default(),
        };
        let becoming = self.becoming.take().filter(|_| self.wanted.may_become_task);
        let refused = becoming.as_ref().and_then(|becoming| shared.chain.create(becoming).err());
        let created = match (refused, becoming.and_then(|becoming| becoming.new_task(id, wish, claimed))) {
            (None, Some(task)) => {
                let created = shared.tasks.create(task).await;
                hand_over(&self.reservation, &created);
                created
            }
            (None, None) => Err(Error::NotBegun("nobody asked for a task".into())),
            // No task has been stored.
            (Some(Error::Unavailable(why) | Error::Fault(why)), _) => Err(Error::NotBegun(why)),
            (Some(refusal), _) => Err(refusal),
        };
        let task = match created {
            Ok(task) => task,
            Err(error) => {
                tracing::debug!(%error, "a call goes on without a task");
                if let Error::Unavailable(_) | Error::Fault(_) = error {
                    // It may have been stored, and nobody would ever hear of it.
                    drop(Unheard::new(shared, principal, id));
                }
                if let Err(error) = worker.client.became(run, None).await {
                    tracing::debug!(%error, "a worker does not know that its call is no task");
                }
                return None;
            }
        };
        let unheard = Unheard::new(shared, principal, id);
        if let Err(error) = worker.client.became(run, Some(task.clone())).await {
            tracing::warn!(task.id = %id, %error, "a call could not go on as a task");
            return Some(self.failed("The call could not go on as a task"));
        }
        // From here on it is for the end to be heard.
        unheard.heard();
        tracing::Span::current().record("task.id", tracing::field::display(id));
        let reply = Reply::Created { task: &task, poll_interval_ms: shared.config.poll_interval_ms };
        let body = self.asked.write(&reply);
        Some(End::Message { status: StatusCode::OK, body, how: Ended::Well, task: Some(id) })
    }

    pub(super) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// What its client can be asked.
    pub(super) fn askable(&self) -> ClientCapabilities {
        askable(&self.asked, &self.wanted)
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.wanted.digest
    }
}

/// Answers for a client that cannot be asked, or has not answered.
async fn decline(worker: &Worker, principal: &Principal, run: &str, answers: Answers) {
    if let Err(error) = worker.client.respond(principal, run, answers).await {
        // If the worker is gone, the events say so next.
        tracing::debug!(%error, "a question could not be declined");
    }
}

/// Hands the run to a worker. Only one that surely has not begun is passed over: it was never reached, or it is full and
/// says so before anything else. A connection that breaks tells nothing.
async fn begin(start: Start) -> Option<(Arc<Worker>, CallEvents)> {
    match start {
        Start::Fresh { workers, invocation } => {
            for worker in workers.into_iter().take(WORKERS_MAX) {
                if let Some(events) = begun(worker.client.invoke(invocation.clone()).await).await {
                    return Some((worker, events));
                }
            }
            None
        }
        Start::Again { worker, resume } => {
            let events = begun(worker.client.resume(resume).await).await?;
            Some((worker, events))
        }
    }
}

/// The events, unless the first says that nothing has begun.
async fn begun(opened: Result<CallEvents, Error>) -> Option<CallEvents> {
    let (first, later) = match opened {
        Ok(mut events) => (events.next().await, events),
        Err(error) => (Some(Err(error)), stream::empty().boxed()),
    };
    if let Some(Err(Error::NotBegun(why))) = first {
        tracing::debug!(why, "a worker did not take a call");
        return None;
    }
    Some(stream::iter(first).chain(later).boxed())
}
