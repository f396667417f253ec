//! A session of its own for each caller. What a server with sessions asks need not say in which call; in a connection of one
//! caller it can at least not be somebody else's.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::Principal;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{
    Backoff, HELLO_TIMEOUT, IS_SHUT_DOWN, IS_STARTED, LIST_TIMEOUT, News, PAUSE_MAX, RETURN_WAIT, Seat, State, Upstream,
};

/// How long a call waits for its caller's session: a pause, the server's hello, and what it is told then.
const START_WAIT: Duration = HELLO_TIMEOUT.saturating_add(LIST_TIMEOUT).saturating_add(PAUSE_MAX);

/// The sessions with one server.
pub(super) struct Sessions {
    max: usize,
    /// How long one lasts without a call.
    idle: Duration,
    /// A session keeps its place until its process, if it has one, has left.
    places: Arc<Semaphore>,
    table: Mutex<Table>,
    /// There may be a place, or a session to end for one.
    freed: Notify,
    pub(super) closing: CancellationToken,
}

#[derive(Default)]
struct Table {
    open: HashMap<Principal, Entry>,
    /// Calls that wait for a place.
    waiting: usize,
    /// Sessions that are no longer open and have not left.
    leaving: usize,
}

struct Entry {
    session: Arc<Session>,
    calls: usize,
    /// When the last of them ended.
    since: Instant,
}

/// The session of one caller, which is started when it is wanted, as often as it takes.
struct Session {
    caller: Principal,
    state: watch::Sender<State>,
    wanted: Notify,
    closing: CancellationToken,
}

/// A session that a call uses. It does not end before this is dropped.
pub(super) struct Held {
    upstream: Arc<Upstream>,
    session: Arc<Session>,
}

/// Begins a call in its caller's session; the error is the rest of a sentence about the server.
pub(super) async fn begin(
    upstream: &Arc<Upstream>,
    id: u64,
    caller: &Principal,
    news: mpsc::Sender<News>,
) -> Result<Seat, String> {
    let held = hold(upstream, caller).await?;
    let mut states = held.session.state.subscribe();
    let starting = async {
        let mut has_waited = false;
        loop {
            let state = states.borrow_and_update().clone();
            match state {
                State::Up(link) if link.carrier.closed().is_cancelled() => {}
                State::Up(link) if link.ears().calls.begin(id, caller, news.clone()) => return Ok(link),
                State::Up(link) => {
                    tracing::debug!(upstream = %upstream.name, "a session is replaced: it may ask for a call that was given up");
                    link.carrier.closed().cancel();
                }
                // What came of an earlier call's attempt is not what will come of this one's.
                State::Down(why) if has_waited => return Err(why),
                State::Down(_) | State::Starting => {}
            }
            has_waited = true;
            states.changed().await.map_err(|_| IS_SHUT_DOWN)?;
        }
    };
    let link = timeout(START_WAIT, starting).await.unwrap_or_else(|_| Err(IS_STARTED.into()))?;
    Ok(Seat { link, _held: Some(held) })
}

/// Finds the caller's session, or a place for one.
async fn hold(upstream: &Arc<Upstream>, caller: &Principal) -> Result<Held, String> {
    let sessions = &upstream.sessions;
    if let Some(held) = sessions.try_hold(upstream, caller)? {
        return Ok(held);
    }
    let _waiting = sessions.wait();
    let finding = async {
        loop {
            let mut freed = pin!(sessions.freed.notified());
            freed.as_mut().enable();
            sessions.make_room();
            if let Some(held) = sessions.try_hold(upstream, caller)? {
                return Ok(held);
            }
            freed.await;
        }
    };
    let full = || Err(format!("has no session left: all {} are at work (sessions_max)", sessions.max));
    timeout(RETURN_WAIT, finding).await.unwrap_or_else(|_| full())
}

/// Keeps a caller's session until it has been idle for long enough, or somebody else needs its place.
async fn keep(upstream: Arc<Upstream>, session: Arc<Session>, place: OwnedSemaphorePermit) {
    let (sessions, name) = (&upstream.sessions, &upstream.name);
    let mut pauses = Backoff::new();
    while sessions.is_wanted(&session).await {
        session.state.send_replace(State::Starting);
        let (changes, tasks) = (Arc::default(), TaskTracker::new());
        match session.closing.run_until_cancelled(upstream.open(&changes, &tasks)).await {
            None => {}
            Some(Err(fault)) => {
                tracing::warn!(upstream = %name, "a caller's session cannot begin: the upstream server {fault}");
                session.state.send_replace(State::Down(fault.to_string()));
            }
            Some(Ok(link)) => {
                tracing::debug!(upstream = %name, "a caller's session has begun");
                session.state.send_replace(State::Up(link.clone()));
                let since = Instant::now();
                tokio::select! {
                    fault = upstream.watch(&link, &changes) => {
                        tracing::debug!(upstream = %name, "a caller's session is lost: the upstream server {fault}");
                    }
                    () = sessions.idle(&session) => {}
                    () = session.closing.cancelled() => {}
                }
                session.state.send_replace(State::Starting);
                link.goodbye().await;
                if since.elapsed() > PAUSE_MAX {
                    pauses = Backoff::new();
                }
            }
        }
        tasks.close();
        tasks.wait().await;
        session.closing.run_until_cancelled(pauses.wait()).await;
    }
    session.state.send_replace(State::Down(IS_SHUT_DOWN.into()));
    drop(place);
    sessions.left(&session);
}

impl Sessions {
    pub(super) fn new(max: usize, idle: Duration) -> Self {
        Self {
            max,
            idle,
            places: Arc::new(Semaphore::new(max)),
            table: Mutex::default(),
            freed: Notify::new(),
            closing: CancellationToken::new(),
        }
    }

    /// How many there are, with those that are about to leave.
    pub(super) fn open(&self) -> usize {
        self.max - self.places.available_permits()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics with the lock held, and the table is whole at every step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller's session, or a new one if there is a place.
    fn try_hold(&self, upstream: &Arc<Upstream>, caller: &Principal) -> Result<Option<Held>, String> {
        if self.closing.is_cancelled() {
            return Err(IS_SHUT_DOWN.into());
        }
        let mut table = self.lock();
        let session = match table.open.get_mut(caller) {
            Some(entry) => {
                entry.calls += 1;
                entry.session.wanted.notify_one();
                entry.session.clone()
            }
            None => {
                let Ok(place) = self.places.clone().try_acquire_owned() else { return Ok(None) };
                let session = Arc::new(Session {
                    caller: caller.clone(),
                    state: watch::Sender::new(State::Starting),
                    wanted: Notify::new(),
                    closing: self.closing.child_token(),
                });
                let entry = Entry { session: session.clone(), calls: 1, since: Instant::now() };
                table.open.insert(caller.clone(), entry);
                upstream.tasks.spawn(keep(upstream.clone(), session.clone(), place));
                session
            }
        };
        Ok(Some(Held { upstream: upstream.clone(), session }))
    }

    /// Ends the session that has been idle for longest, unless enough are leaving for all who wait.
    fn make_room(&self) {
        let mut table = self.lock();
        if table.leaving >= table.waiting || self.places.available_permits() > 0 {
            return;
        }
        let idle = table.open.values().filter(|entry| entry.calls == 0);
        if let Some(session) = idle.min_by_key(|entry| entry.since).map(|entry| entry.session.clone()) {
            table.end(&session);
        }
    }

    fn wait(&self) -> Waiting<'_> {
        self.lock().waiting += 1;
        Waiting(self)
    }

    /// Waits until a call wants the session; `false` if it is to end.
    async fn is_wanted(&self, session: &Arc<Session>) -> bool {
        loop {
            if session.closing.is_cancelled() {
                return false;
            }
            if self.lock().entry(session).is_some_and(|entry| entry.calls > 0) {
                return true;
            }
            tokio::select! {
                () = session.wanted.notified() => {}
                () = self.idle(session) => {}
                () = session.closing.cancelled() => {}
            }
        }
    }

    /// Waits until the session has been idle for long enough, at most for twice as long, and ends it.
    async fn idle(&self, session: &Arc<Session>) {
        loop {
            let left = {
                let mut table = self.lock();
                let left = match table.entry(session) {
                    Some(Entry { calls: 0, since, .. }) => self.idle.saturating_sub(since.elapsed()),
                    Some(_) => self.idle,
                    None => return,
                };
                if left.is_zero() {
                    return table.end(session);
                }
                left
            };
            tokio::time::sleep(left).await;
        }
    }

    /// The session is gone, and so is its process; its place is free.
    fn left(&self, session: &Arc<Session>) {
        let mut table = self.lock();
        if table.entry(session).is_some() {
            // All end.
            table.open.remove(&session.caller);
        } else {
            table.leaving -= 1;
        }
        self.freed.notify_waiters();
    }
}

impl Table {
    fn entry(&mut self, session: &Arc<Session>) -> Option<&mut Entry> {
        self.open.get_mut(&session.caller).filter(|entry| Arc::ptr_eq(&entry.session, session))
    }

    fn end(&mut self, session: &Arc<Session>) {
        self.open.remove(&session.caller);
        self.leaving += 1;
        session.closing.cancel();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let sessions = &self.upstream.sessions;
        let mut table = sessions.lock();
        if let Some(entry) = table.entry(&self.session) {
            entry.calls -= 1;
            entry.since = Instant::now();
        }
        if table.waiting > 0 {
            sessions.freed.notify_waiters();
        }
    }
}

/// A call that waits for a place.
struct Waiting<'a>(&'a Sessions);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}
