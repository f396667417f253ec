//! What a server says of its own accord, and whose it is.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::input::QUESTIONS_MAX;
use longhaul_core::{ClientCapabilities, LogMessage, Principal, Progress, Question};
use reqwest::RequestBuilder;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::task::TaskTracker;

use super::Updated;
use crate::wire::{self, Era, INTERNAL_ERROR, Incoming, Listing, METHOD_NOT_FOUND};

/// News of one call that nobody has looked at yet: with more, a question is refused.
pub(crate) const NEWS_MAX: usize = 2 * QUESTIONS_MAX;
/// Of them, places that progress and log messages leave to questions.
const QUESTIONS_ROOM: usize = QUESTIONS_MAX;
/// Calls of one connection that were given up and have had no answer since, each by its id; of more, only that they are
/// there is known.
const GIVEN_UP_MAX: usize = 1000;
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
    /// Tells the server that nobody is asked, and why.
    pub(crate) fn refuse(&self, why: &str) {
        self.back.say(wire::refusal(&self.id, INTERNAL_ERROR, why));
    }

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
    /// Where changed lists are noted: by the connection that lists.
    pub(super) lists: Arc<Changes>,
    /// What the server is told that it may ask for.
    pub(super) client: ClientCapabilities,
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
            Incoming::Log(log) => match self.whose(call, false) {
                Ok(line) => tell(&line, News::Log(log)),
                Err(why) => tracing::debug!(upstream = %self.upstream, why, "a log message of the server's is dropped"),
            },
            Incoming::Asked { id, question } => self.ask(id, question, call, back),
            Incoming::Withdrawn { id } => match call {
                Some(call) => self.calls.get(call).into_iter().for_each(|line| withdraw(&line, &id)),
                None => self.calls.all().iter().for_each(|line| withdraw(line, &id)),
            },
            Incoming::Changed(listing) => self.lists.mark(Changes::of(listing)),
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
        if self.client == ClientCapabilities::default() {
            tracing::debug!(upstream = %self.upstream, "a question of the server's is refused: it was told of none");
            return back.say(wire::refusal(&id, METHOD_NOT_FOUND, "not supported"));
        }
        let refused = match self.whose(call, true) {
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

    fn whose(&self, call: Option<u64>, asks: bool) -> Result<mpsc::Sender<News>, &'static str> {
        match call {
            Some(call) => self.calls.get(call).ok_or("its call is over"),
            None => self.calls.only(asks),
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
    /// The calls that were given up and have had no answer since: for all we know, the server still works on them.
    given_up: HashSet<u64>,
    /// There are more of them than are kept.
    is_full: bool,
    callers: Callers,
    /// The server has asked something without a word of whose it was.
    has_asked: bool,
    is_retired: bool,
}

/// Whom the calls of a connection were for, since it began.
#[derive(Default)]
enum Callers {
    #[default]
    Nobody,
    One(Principal),
    Many,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, InFlight> {
        // Nothing panics with the lock held, and what it guards is whole at every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call, unless the connection has to be replaced first: its server asks without a word of whose question it
    /// is, and may still ask for a call that was given up. What it remembers of its caller is lost with it.
    #[must_use]
    pub(super) fn begin(&self, id: u64, caller: &Principal, line: mpsc::Sender<News>) -> bool {
        let mut calls = self.lock();
        calls.is_retired |= calls.has_asked && calls.running.is_empty() && calls.has_given_up();
        if calls.is_retired {
            return false;
        }
        match &calls.callers {
            Callers::Nobody => calls.callers = Callers::One(caller.clone()),
            Callers::One(one) if one == caller => {}
            Callers::One(_) | Callers::Many => calls.callers = Callers::Many,
        }
        calls.running.insert(id, line);
        true
    }

    pub(super) fn end(&self, id: u64, is_answered: bool) {
        let mut calls = self.lock();
        if calls.running.remove(&id).is_some() && !is_answered {
            if calls.given_up.len() < GIVEN_UP_MAX {
                calls.given_up.insert(id);
            } else {
                calls.is_full = true;
            }
        }
    }

    /// A call that nobody waits for has its answer: the server has done with it.
    pub(super) fn settle(&self, id: u64) {
        self.lock().given_up.remove(&id);
    }

    /// What names no call may be anybody's, even of another connection.
    pub(super) fn mix(&self) {
        self.lock().callers = Callers::Many;
    }

    fn get(&self, id: u64) -> Option<mpsc::Sender<News>> {
        self.lock().running.get(&id).cloned()
    }

    fn all(&self) -> Vec<mpsc::Sender<News>> {
        self.lock().running.values().cloned().collect()
    }

    /// The only call that something can belong to which does not say to which it does: the only one that runs, where none
    /// was given up, and all there ever were are of the same caller. Even then there is no newest among several: one
    /// credential may serve many people.
    fn only(&self, asks: bool) -> Result<mpsc::Sender<News>, &'static str> {
        let mut calls = self.lock();
        if matches!(calls.callers, Callers::Many) {
            return Err("several callers share the connection, and it does not say to whose call it belongs");
        }
        calls.has_asked |= asks && !calls.running.is_empty();
        let mut running = calls.running.values();
        match (running.next(), running.next(), calls.has_given_up()) {
            (None, ..) => Err("no call is running that it could belong to"),
            (Some(line), None, false) => Ok(line.clone()),
            (Some(_), None, true) => Err("a call was given up to which it may belong"),
            (Some(_), Some(_), _) => Err("several calls are running, and it does not say to which it belongs"),
        }
    }
}

impl InFlight {
    fn has_given_up(&self) -> bool {
        self.is_full || !self.given_up.is_empty()
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
    use longhaul_core::{Caller, TenantId};

    use super::*;

    fn line() -> (mpsc::Sender<News>, mpsc::Receiver<News>) {
        mpsc::channel(NEWS_MAX)
    }

    fn caller(name: &str) -> Principal {
        Principal { tenant: TenantId::new("t"), caller: Caller::Agent(name.into()) }
    }

    #[test]
    fn what_does_not_say_whose_it_is_belongs_to_the_only_call() {
        let calls = Calls::default();
        assert_eq!(calls.only(true).unwrap_err(), "no call is running that it could belong to");
        let ((one, _one), (two, _two)) = (line(), line());
        assert!(calls.begin(1, &caller("a"), one.clone()));
        assert!(calls.only(true).unwrap().same_channel(&one));
        assert!(calls.begin(2, &caller("a"), two.clone()));
        assert!(calls.only(true).unwrap_err().starts_with("several calls"));
        calls.end(2, true);
        assert!(calls.only(true).unwrap().same_channel(&one));
    }

    #[test]
    fn a_call_that_was_given_up_may_still_ask_until_it_is_answered() {
        let calls = Calls::default();
        let ((one, _one), (two, _two)) = (line(), line());
        assert!(calls.begin(1, &caller("a"), one));
        calls.end(1, false);
        assert!(calls.begin(2, &caller("a"), two.clone()));
        assert_eq!(calls.only(true).unwrap_err(), "a call was given up to which it may belong");
        calls.settle(1);
        assert!(calls.only(true).unwrap().same_channel(&two));
    }

    #[test]
    fn a_connection_whose_server_asks_is_replaced_before_the_call_after_one_that_was_given_up() {
        let calls = Calls::default();
        let begin = |id| calls.begin(id, &caller("a"), line().0);
        assert!(begin(1));
        calls.end(1, false);
        assert!(begin(2), "a server that never asks keeps what it knows");
        assert!(calls.only(true).is_err());
        assert!(begin(3), "not while another call runs");
        calls.end(2, true);
        calls.end(3, true);
        assert!(!begin(4));
        calls.settle(1);
        assert!(!begin(5), "it is as good as gone");
    }

    #[test]
    fn nothing_is_guessed_once_a_second_caller_was_there() {
        let calls = Calls::default();
        assert!(calls.begin(1, &caller("a"), line().0));
        calls.end(1, true);
        assert!(calls.begin(2, &caller("b"), line().0));
        assert!(calls.only(false).unwrap_err().starts_with("several callers"), "the first may have left work behind");
        let calls = Calls::default();
        calls.mix();
        assert!(calls.begin(1, &caller("a"), line().0));
        assert!(calls.only(false).unwrap_err().starts_with("several callers"));
    }

    #[test]
    fn of_too_many_calls_that_were_given_up_it_is_only_known_that_they_are_there() {
        let calls = Calls::default();
        let max = GIVEN_UP_MAX as u64;
        for id in 0..=max {
            assert!(calls.begin(id, &caller("a"), line().0));
            calls.end(id, false);
        }
        assert_eq!(calls.lock().given_up.len(), GIVEN_UP_MAX);
        (0..=max).for_each(|id| calls.settle(id));
        assert!(calls.begin(max + 1, &caller("a"), line().0));
        assert!(calls.only(true).is_err());
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
