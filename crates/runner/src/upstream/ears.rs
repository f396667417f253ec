//! What a server says of its own accord, and whose it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::input::QUESTIONS_MAX;
use longhaul_core::{LogMessage, Progress, Question};
use reqwest::RequestBuilder;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::Updated;
use crate::wire::{self, Era, INTERNAL_ERROR, Incoming, Listing};

/// News of one call that nobody has looked at yet: with more, a question is refused.
pub(crate) const NEWS_MAX: usize = 2 * QUESTIONS_MAX;
/// Of them, places that progress and log messages leave to questions.
const QUESTIONS_ROOM: usize = QUESTIONS_MAX;
/// For how long a call that was given up counts as one that may still ask: the server may not have heard yet.
const GIVEN_UP_GRACE: Duration = Duration::from_secs(10);
/// For what has no answer: notifications, replies, the end of a session.
pub(super) const WORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Something that a server says during a call.
#[derive(Debug)]
pub(crate) enum News {
    Progress(Progress),
    Log(LogMessage),
    Asked(Asked),
    /// A question is no longer wanted; its id is JSON text.
    Withdrawn(Bytes),
}

/// A question of a server, to whoever calls.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The request's id, as JSON text.
    pub(crate) id: Bytes,
    pub(crate) question: Question,
    back: Back,
}

impl Asked {
    /// Sends the answer to the server: a message.
    pub(crate) async fn answer(&self, message: Bytes) {
        self.back.deliver(message).await;
    }
}

/// The way back to a server.
#[derive(Debug, Clone)]
pub(super) enum Back {
    Line(mpsc::Sender<Bytes>),
    /// A request of the session that is still to get its body.
    Post {
        request: Arc<RequestBuilder>,
        words: Arc<Semaphore>,
        tasks: TaskTracker,
    },
}

impl Back {
    /// Sends a message in its own time. One that the server does not take is lost.
    pub(super) fn say(&self, message: Bytes) {
        match self {
            // A server that does not even read cannot be told anything; its calls end by their time limits.
            Self::Line(outgoing) => drop(outgoing.try_send(message)),
            Self::Post { request, words, tasks } => {
                // More than that are the work of a server that asks without end.
                let Ok(permit) = words.clone().try_acquire_owned() else { return };
                let request = request.try_clone();
                tasks.spawn(async move {
                    post(request, message).await;
                    drop(permit);
                });
            }
        }
    }

    /// Sends a message.
    async fn deliver(&self, message: Bytes) {
        match self {
            Self::Line(outgoing) => drop(outgoing.send(message).await),
            Self::Post { request, .. } => post(request.try_clone(), message).await,
        }
    }
}

async fn post(request: Option<RequestBuilder>, message: Bytes) {
    let request = request.expect("invariant: a request without a body can be cloned");
    if let Err(error) = request.body(message).timeout(WORD_TIMEOUT).send().await {
        tracing::debug!(error = %error.without_url(), "a word to the upstream server was lost");
    }
}

/// Who hears what one connection's server says.
pub(super) struct Ears {
    pub(super) upstream: Arc<str>,
    pub(super) calls: Calls,
    pub(super) changes: Arc<Changes>,
    /// Told the URI, as upstream, of each resource that has changed.
    pub(super) updated: Updated,
    /// Known once the server has introduced itself.
    pub(super) era: OnceLock<Era>,
    /// The newest subscription that the server has confirmed.
    pub(super) confirmed: watch::Sender<u64>,
}

impl Ears {
    /// Acts on what is no answer. `call` is the call on whose own stream it came.
    pub(super) fn hear(&self, said: Incoming, call: Option<u64>, back: &Back) {
        match said {
            Incoming::Progress { id, progress } => {
                if let Some(line) = self.calls.get(call.unwrap_or(id)) {
                    tell(&line, News::Progress(progress));
                }
            }
            Incoming::Log(log) => match self.whose(call) {
                Ok(line) => tell(&line, News::Log(log)),
                Err(why) => tracing::debug!(upstream = %self.upstream, why, "a log message of the server's is dropped"),
            },
            Incoming::Asked { id, question } => self.ask(id, question, call, back),
            Incoming::Withdrawn { id } => match call {
                Some(call) => self.calls.get(call).into_iter().for_each(|line| withdraw(&line, &id)),
                None => self.calls.all().iter().for_each(|line| withdraw(line, &id)),
            },
            Incoming::Changed(listing) => self.changes.mark(Changes::of(listing)),
            Incoming::Updated(uri) => (self.updated)(&uri),
            Incoming::Confirmed { id } => drop(self.confirmed.send_if_modified(|newest| {
                let is_newer = *newest < id;
                *newest = id.max(*newest);
                is_newer
            })),
            Incoming::Request { reply } => {
                if self.may_ask() {
                    back.say(reply);
                }
            }
            Incoming::Answer { .. } | Incoming::Other => {}
        }
    }

    fn ask(&self, id: Bytes, question: Question, call: Option<u64>, back: &Back) {
        if !self.may_ask() {
            tracing::debug!(upstream = %self.upstream, "a request of the server's is ignored: its revision has none");
            return;
        }
        let refused = match self.whose(call) {
            Ok(line) => match line.try_send(News::Asked(Asked { id: id.clone(), question, back: back.clone() })) {
                Ok(()) => return,
                Err(_) => "too many questions at once",
            },
            Err(why) => why,
        };
        tracing::debug!(upstream = %self.upstream, why = refused, "a question of the server's is refused");
        back.say(wire::refusal(&id, INTERNAL_ERROR, refused));
    }

    /// Whether the server's revision has requests to clients.
    fn may_ask(&self) -> bool {
        self.era.get() != Some(&Era::Modern)
    }

    fn whose(&self, call: Option<u64>) -> Result<mpsc::Sender<News>, &'static str> {
        match call {
            Some(call) => self.calls.get(call).ok_or("its call is over"),
            None => self.calls.only(),
        }
    }
}

/// Passes news on, unless the call has so many that nobody needs more.
fn tell(line: &mpsc::Sender<News>, news: News) {
    if line.capacity() > QUESTIONS_ROOM {
        let _ = line.try_send(news);
    }
}

fn withdraw(line: &mpsc::Sender<News>, id: &Bytes) {
    // If there is no room, the question stays, and its answer will not be wanted.
    let _ = line.try_send(News::Withdrawn(id.clone()));
}

/// The calls in flight of one connection. There are no more than the worker runs at once.
#[derive(Default)]
pub(super) struct Calls(Mutex<InFlight>);

#[derive(Default)]
struct InFlight {
    running: HashMap<u64, mpsc::Sender<News>>,
    /// When the calls were given up that the server may not know to be.
    given_up: Vec<Instant>,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, InFlight> {
        // Nothing panics with the lock held, and what it guards is whole at every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, id: u64, line: mpsc::Sender<News>) {
        self.lock().running.insert(id, line);
    }

    pub(super) fn end(&self, id: u64, is_answered: bool) {
        let mut calls = self.lock();
        calls.given_up.retain(|at| at.elapsed() < GIVEN_UP_GRACE);
        if calls.running.remove(&id).is_some() && !is_answered {
            calls.given_up.push(Instant::now());
        }
    }

    fn get(&self, id: u64) -> Option<mpsc::Sender<News>> {
        self.lock().running.get(&id).cloned()
    }

    fn all(&self) -> Vec<mpsc::Sender<News>> {
        self.lock().running.values().cloned().collect()
    }

    /// The only call that something can belong to which does not say to which it does.
    fn only(&self) -> Result<mpsc::Sender<News>, &'static str> {
        let mut calls = self.lock();
        calls.given_up.retain(|at| at.elapsed() < GIVEN_UP_GRACE);
        let mut running = calls.running.values();
        match (running.next(), running.next(), calls.given_up.is_empty()) {
            (Some(line), None, true) => Ok(line.clone()),
            (None, ..) => Err("no call is running that it could belong to"),
            _ => Err("several calls are running, and it does not say to which it belongs"),
        }
    }
}

/// What is no longer what it was, until somebody has looked.
#[derive(Default)]
pub(super) struct Changes {
    pending: AtomicU8,
    bell: Notify,
}

impl Changes {
    /// There is a new session: what the former one knew of us is lost.
    pub(super) const SESSION: u8 = 1;
    /// Somebody watches a resource, or no longer does.
    pub(super) const WATCHED: u8 = 2;
    /// Nobody listened for a while: any resource may have changed.
    pub(super) const MISSED: u8 = 4;
    /// All lists.
    pub(super) const LISTS: u8 = 0b11_1000;

    /// The bit of a list. Resources and their templates change together.
    pub(super) const fn of(listing: Listing) -> u8 {
        match listing {
            Listing::Tools => 1 << 3,
            Listing::Prompts => 1 << 4,
            Listing::Resources | Listing::Templates => 1 << 5,
        }
    }

    pub(super) fn mark(&self, changes: u8) {
        self.pending.fetch_or(changes, Ordering::AcqRel);
        self.bell.notify_one();
    }

    /// Waits for changes.
    pub(super) async fn next(&self) -> u8 {
        loop {
            match self.pending.swap(0, Ordering::AcqRel) {
                0 => self.bell.notified().await,
                changes => return changes,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> (mpsc::Sender<News>, mpsc::Receiver<News>) {
        mpsc::channel(NEWS_MAX)
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_say_whose_it_is_belongs_to_the_only_call() {
        let calls = Calls::default();
        assert_eq!(calls.only().unwrap_err(), "no call is running that it could belong to");
        let ((one, _one), (two, _two)) = (line(), line());
        calls.begin(1, one.clone());
        assert!(calls.only().unwrap().same_channel(&one));
        calls.begin(2, two.clone());
        assert!(calls.only().unwrap_err().starts_with("several"));
        calls.end(2, true);
        assert!(calls.only().unwrap().same_channel(&one));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_given_up_may_still_ask_for_a_while() {
        let calls = Calls::default();
        let ((one, _one), (two, _two)) = (line(), line());
        calls.begin(1, one);
        calls.end(1, false);
        calls.begin(2, two.clone());
        assert!(calls.only().unwrap_err().starts_with("several"), "its question must not reach somebody else");
        tokio::time::advance(GIVEN_UP_GRACE).await;
        assert!(calls.only().unwrap().same_channel(&two));
    }

    #[tokio::test]
    async fn talk_leaves_room_for_questions() {
        let (line, mut heard) = line();
        for step in 0..2 * NEWS_MAX {
            tell(&line, News::Progress(Progress { progress: step as f64, total: None, message: None }));
        }
        for _ in 0..QUESTIONS_ROOM {
            withdraw(&line, &Bytes::from_static(b"1"));
        }
        drop(line);
        let mut questions = 0;
        while let Some(news) = heard.recv().await {
            questions += usize::from(matches!(news, News::Withdrawn(_)));
        }
        assert_eq!(questions, QUESTIONS_ROOM);
    }

    #[tokio::test]
    async fn changes_are_kept_until_somebody_looks() {
        let changes = Changes::default();
        changes.mark(Changes::of(Listing::Tools));
        changes.mark(Changes::of(Listing::Templates));
        assert_eq!(changes.next().await, 0b10_1000);
        let next = std::pin::pin!(changes.next());
        assert!(futures::poll!(next).is_pending());
        assert_eq!(Listing::ALL.into_iter().fold(0, |all, listing| all | Changes::of(listing)), Changes::LISTS);
    }
}
