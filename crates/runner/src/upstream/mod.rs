//! One upstream MCP server: connected to, listened to, and connected to again when it was lost.

mod child;
mod ears;
mod endpoint;
mod lines;
mod lists;
mod sessions;
mod sse;
mod watching;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use longhaul_core::limits::{MESSAGE_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, cut};
use longhaul_core::{CallError, ClientCapabilities, Principal, TraceContext};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Reach, Sharing, Speaks};
use crate::wire::{self, Answer, Discovered, Era, Hello, InputRequired, Meta, Modern, Request};
use child::Child;
use ears::{Calls, Changes, Ears};
use endpoint::Endpoint;
use sessions::{Held, Sessions};

pub(crate) use ears::{Asked, NEWS_MAX, News};
pub(crate) use lists::{LISTED_MAX, Offer};

/// The largest message that is taken from a server, however small a result must be: lists of tools are messages too.
const MESSAGE_BYTES_LEAST: usize = PAYLOAD_BYTES_MAX + MESSAGE_OVERHEAD_BYTES;
/// A server may install itself when it starts.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to say that it is of 2026-07-28; older ones need not answer at all.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// For each page of a list, and for what else is asked beside calls.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a call waits for a server that is being started again.
const RETURN_WAIT: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

const IS_STARTED: &str = "is being started";
const IS_SHUT_DOWN: &str = "is shut down";

/// Hears, by its URI upstream, of each resource that has changed.
pub(crate) type Updated = Arc<dyn Fn(&str) + Send + Sync>;

/// An upstream server.
pub(crate) struct Upstream {
    pub(crate) name: Arc<str>,
    reach: Reach,
    speaks: Speaks,
    /// The last server stopped when it was asked whether it is of 2026-07-28.
    is_shy: AtomicBool,
    /// The largest message that is taken from it.
    message_bytes_max: usize,
    /// The connection that lists what it offers. Calls go over it only where all callers may share one.
    link: watch::Sender<State>,
    /// What it was last found to speak.
    era: watch::Sender<Option<Era>>,
    /// What is to be listed again.
    lists: Arc<Changes>,
    is_shared: bool,
    sessions: Sessions,
    offer: watch::Sender<Arc<Offer>>,
    /// The resources that somebody watches, by their URIs upstream.
    watched: watch::Sender<BTreeSet<String>>,
    updated: Updated,
    tasks: TaskTracker,
}

#[derive(Clone)]
enum State {
    Up(Arc<Link>),
    /// Not there yet, or not for long.
    Starting,
    /// Not there, and why.
    Down(String),
}

/// A connection to a server that has introduced itself.
struct Link {
    carrier: Carrier,
    hello: Hello,
    purpose: Purpose,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To know what the server offers, and for all callers where they may share one.
    Offers,
    /// For the calls of one caller.
    Caller,
}

#[derive(Clone)]
enum Carrier {
    Child(Arc<Child>),
    Endpoint(Arc<Endpoint>),
}

/// Why a server gave no answer, as the rest of a sentence that begins with the server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Stopped,
    Unreachable,
    Silent,
    TooLarge,
    SessionLost,
    /// It does what MCP does not foresee.
    Odd(String),
}

/// On whose behalf a server is called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behalf<'a> {
    pub(crate) caller: &'a Principal,
    /// What they can be asked.
    pub(crate) client: ClientCapabilities,
    /// Whether they may want log messages.
    pub(crate) logs: bool,
    pub(crate) trace: Option<&'a TraceContext>,
}

/// What a call brought.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The text of its result.
    Result(Bytes),
    /// It is to be made again, with answers.
    Asks(InputRequired),
}

impl Upstream {
    pub(crate) fn new(
        name: &str,
        reach: Reach,
        speaks: Speaks,
        sharing: Sharing,
        max_result_bytes: usize,
        updated: Updated,
    ) -> Self {
        Self {
            name: name.into(),
            reach,
            speaks,
            is_shy: AtomicBool::new(false),
            message_bytes_max: max_result_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES).max(MESSAGE_BYTES_LEAST),
            link: watch::Sender::new(State::Starting),
            era: watch::Sender::default(),
            lists: Arc::default(),
            is_shared: sharing.is_shared,
            sessions: Sessions::new(sharing.sessions_max, sharing.idle),
            offer: watch::Sender::default(),
            watched: watch::Sender::default(),
            updated,
            tasks: TaskTracker::new(),
        }
    }

    /// What it last offered; that stays while it is away.
    pub(crate) fn offer(&self) -> watch::Receiver<Arc<Offer>> {
        self.offer.subscribe()
    }

    /// Why it is not there, if it is not.
    pub(crate) fn missing(&self) -> Option<String> {
        match &*self.link.borrow() {
            State::Up(_) => None,
            State::Starting => Some(IS_STARTED.into()),
            State::Down(why) => Some(why.clone()),
        }
    }

    /// How many callers have a session of their own.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.open()
    }

    /// Keeps the connection until `drain` fires, then ends the server.
    pub(crate) async fn run(&self, drain: &CancellationToken) {
        let mut pauses = Backoff::new();
        // If this future is dropped, they end too.
        let _sessions = self.sessions.closing.clone().drop_guard();
        while !drain.is_cancelled() {
            let connected = drain.run_until_cancelled(self.connect()).await;
            let why = match connected {
                None => break,
                Some(Ok(link)) => {
                    let (offer, version) = (self.offer.borrow().clone(), &link.hello.version);
                    tracing::info!(upstream = %self.name, version, %offer, "the upstream server is there");
                    self.era.send_replace(Some(link.hello.era));
                    self.link.send_replace(State::Up(link.clone()));
                    let since = Instant::now();
                    let why = drain.run_until_cancelled(self.watch(&link, &self.lists)).await;
                    // One that stops as soon as it is up must not be started twenty times a second.
                    if since.elapsed() > PAUSE_MAX {
                        pauses = Backoff::new();
                    }
                    let Some(why) = why else {
                        self.sessions.closing.cancel();
                        self.link.send_replace(State::Down(IS_SHUT_DOWN.into()));
                        link.goodbye().await;
                        break;
                    };
                    why
                }
                Some(Err(fault)) => fault,
            };
            self.down(why.to_string());
            drain.run_until_cancelled(pauses.wait()).await;
        }
        self.sessions.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Makes a call; `news` hears what the server says meanwhile. Dropping the future tells the server to stop.
    pub(crate) async fn call(
        self: &Arc<Self>,
        request: &Request,
        behalf: Behalf<'_>,
        news: mpsc::Sender<News>,
    ) -> Result<Reply, CallError> {
        let id = next_id();
        let Seat { link, _held } = self.begin(id, behalf.caller, news).await.map_err(|why| self.error(&why))?;
        let logs = behalf.logs && link.hello.abilities.logging;
        let modern = (link.hello.era == Era::Modern).then_some(Modern { client: behalf.client, logs });
        let meta = Meta { progress: true, trace: behalf.trace, modern };
        let mut pending = Pending { link: &link, id, is_answered: false };
        let answer = link.request(id, request, meta).await;
        pending.is_answered = match (&answer, &link.carrier) {
            (Ok(_), _) | (Err(Fault::TooLarge), Carrier::Child(_)) => true,
            (Err(_), _) => false,
        };
        match (answer, link.hello.era) {
            (Ok(Ok(result)), Era::Sessions) => Ok(Reply::Result(result)),
            (Ok(Ok(result)), Era::Modern) => match wire::input_required(&result) {
                Ok(None) => Ok(Reply::Result(result)),
                Ok(Some(asks)) => Ok(Reply::Asks(asks)),
                Err(why) => Err(self.error(&why)),
            },
            (Ok(Err(error)), Era::Modern) if wire::is_between_us(error.code) => {
                // What it says of its tools' headers may have changed.
                link.ears().lists.mark(Changes::LISTS);
                Err(self.error(&Fault::refused(&error)))
            }
            (Ok(Err(error)), _) => Err(error),
            (Err(fault), _) => Err(self.error(&fault)),
        }
    }

    /// An error of ours, about the server: `why` is the rest of a sentence that begins with it.
    pub(crate) fn error(&self, why: &impl fmt::Display) -> CallError {
        let message = format!("the upstream server {} {why}", self.name);
        CallError { code: wire::INTERNAL_ERROR, message, data: None }
    }

    /// Finds a connection for a call and announces the call there.
    async fn begin(self: &Arc<Self>, id: u64, caller: &Principal, news: mpsc::Sender<News>) -> Result<Seat, String> {
        let mut era = *self.era.borrow();
        if self.is_shared || era != Some(Era::Sessions) {
            let link = self.up().await?;
            era = Some(link.hello.era);
            // One that all callers share is asked nothing for want of a word whose it is: it never has to be replaced.
            if (self.is_shared || era == Some(Era::Modern)) && link.ears().calls.begin(id, caller, news.clone()) {
                return Ok(Seat { link, _held: None });
            }
        }
        sessions::begin(self, id, caller, news).await
    }

    fn down(&self, why: String) {
        let is_news = !matches!(&*self.link.borrow(), State::Down(former) if *former == why);
        if is_news {
            tracing::warn!(upstream = %self.name, "the upstream server {why}; its own words: --set log=longhaul_runner=debug");
        }
        self.link.send_replace(State::Down(why));
    }

    /// The connection, now or soon.
    async fn up(&self) -> Result<Arc<Link>, String> {
        let mut states = self.link.subscribe();
        // The state is looked at again, for waiting may have ended for want of time.
        let _ = timeout(RETURN_WAIT, states.wait_for(|state| matches!(state, State::Up(_)))).await;
        match &*states.borrow() {
            State::Up(link) => Ok(link.clone()),
            State::Starting => Err(IS_STARTED.into()),
            State::Down(why) => Err(why.clone()),
        }
    }

    /// Somebody whom the server can be spoken to through; it has not been spoken to.
    fn reach(&self, purpose: Purpose, changes: &Arc<Changes>, tasks: &TaskTracker) -> Result<Carrier, Fault> {
        let ears = Arc::new(Ears {
            upstream: self.name.clone(),
            calls: Calls::default(),
            changes: changes.clone(),
            lists: self.lists.clone(),
            // The connection that lists has no calls. Some servers offer more to those who can be asked.
            client: if self.is_shared { ClientCapabilities::default() } else { wire::PROMISED },
            updated: self.updated.clone(),
            era: OnceLock::new(),
            confirmed: watch::Sender::default(),
        });
        if purpose == Purpose::Caller {
            let _ = ears.era.set(Era::Sessions);
        }
        Ok(match &self.reach {
            Reach::Command { argv, env, cwd } => {
                let child = Child::start(ears, argv, env, cwd.as_deref(), self.message_bytes_max, tasks);
                Carrier::Child(Arc::new(child.map_err(|error| Fault::Odd(format!("cannot be started: {error}")))?))
            }
            Reach::Url { url, headers } => {
                Carrier::Endpoint(Arc::new(Endpoint::new(url, headers, self.message_bytes_max, ears, tasks)?))
            }
        })
    }

    /// Connects to know what the server offers.
    async fn connect(&self) -> Result<Arc<Link>, Fault> {
        let carrier = self.reach(Purpose::Offers, &self.lists, &self.tasks)?;
        // If this future is dropped or fails, the server goes with it.
        let guard = carrier.closed().clone().drop_guard();
        let hello = self.meet(&carrier).await?;
        let _ = carrier.ears().era.set(hello.era);
        let link = Arc::new(Link { carrier, hello, purpose: Purpose::Offers });
        self.set_up(&link).await;
        self.list(&link, Changes::LISTS).await?;
        match (&link.carrier, link.hello.era) {
            (Carrier::Endpoint(endpoint), Era::Sessions) => drop(self.tasks.spawn(endpoint.clone().listen())),
            (Carrier::Child(_), Era::Sessions) => {}
            (Carrier::Endpoint(_) | Carrier::Child(_), Era::Modern) => {
                drop(self.tasks.spawn(watching::listen(link.clone(), self.watched.subscribe())));
            }
        }
        guard.disarm();
        Ok(link)
    }

    /// Connects for the calls of one caller, to a server that has sessions.
    async fn open(&self, changes: &Arc<Changes>, tasks: &TaskTracker) -> Result<Arc<Link>, Fault> {
        let carrier = self.reach(Purpose::Caller, changes, tasks)?;
        let guard = carrier.closed().clone().drop_guard();
        let hello = timeout(HELLO_TIMEOUT, carrier.initialize()).await.unwrap_or(Err(Fault::Silent))?;
        let link = Arc::new(Link { carrier, hello, purpose: Purpose::Caller });
        self.set_up(&link).await;
        match &link.carrier {
            Carrier::Endpoint(endpoint) if endpoint.has_session() => drop(tasks.spawn(endpoint.clone().listen())),
            // The connection that lists hears what is said to all.
            Carrier::Endpoint(_) | Carrier::Child(_) => {}
        }
        guard.disarm();
        Ok(link)
    }

    /// Learns which MCP the server speaks.
    async fn meet(&self, carrier: &Carrier) -> Result<Hello, Fault> {
        let asks = match self.speaks {
            Speaks::Auto => !self.is_shy.load(Ordering::Relaxed),
            Speaks::Sessions => false,
            Speaks::Modern => true,
        };
        if asks {
            let found = timeout(PROBE_TIMEOUT, carrier.discover()).await.unwrap_or(Err(Fault::Silent));
            match found {
                Ok(Discovered::Modern(hello)) => return Ok(hello),
                Ok(Discovered::Foreign(why)) => return Err(Fault::Odd(why)),
                Err(Fault::Unreachable) => return Err(Fault::Unreachable),
                Err(fault) if self.speaks == Speaks::Modern => return Err(fault),
                Ok(Discovered::Sessions) if self.speaks == Speaks::Modern => {
                    return Err(Fault::Odd(format!("does not speak MCP {}", wire::MODERN_VERSION)));
                }
                // Some servers stop when they are spoken to in a way that they do not know.
                Err(Fault::Stopped) if matches!(carrier, Carrier::Child(_)) => {
                    self.is_shy.store(true, Ordering::Relaxed);
                    return Err(Fault::Stopped);
                }
                Ok(Discovered::Sessions) | Err(_) => {}
            }
        }
        let hello = timeout(HELLO_TIMEOUT, carrier.initialize()).await.unwrap_or(Err(Fault::Silent));
        if hello.is_err() {
            self.is_shy.store(false, Ordering::Relaxed);
        }
        hello
    }

    /// Tells a server in a new session what it has to know.
    async fn set_up(&self, link: &Link) {
        if link.hello.era == Era::Sessions && link.hello.abilities.logging {
            self.ask(link, &Request::log_everything()).await;
        }
    }

    /// Asks for something that the server may refuse.
    async fn ask(&self, link: &Link, request: &Request) -> bool {
        let answer = timeout(LIST_TIMEOUT, link.request(next_id(), request, link.own_meta())).await;
        let why = match answer.unwrap_or(Err(Fault::Silent)) {
            Ok(Ok(_)) => return true,
            Ok(Err(error)) => Fault::refused(&error),
            Err(fault) => fault,
        };
        tracing::warn!(upstream = %self.name, method = request.method(), "the upstream server {why}");
        false
    }

    /// Follows changes until the server is lost.
    async fn watch(&self, link: &Link, changes: &Changes) -> Fault {
        let mut watched = self.watched.subscribe();
        let mut subscribed = BTreeSet::new();
        // What the resources of all are, and that they may have changed while it was away, is for one connection to say.
        let (mut pending, heeded) = match link.purpose {
            Purpose::Offers => (Changes::WATCHED | Changes::MISSED, u8::MAX),
            Purpose::Caller => (Changes::WATCHED, Changes::WATCHED | Changes::SESSION),
        };
        loop {
            if pending & Changes::SESSION != 0 {
                subscribed.clear();
                self.set_up(link).await;
            }
            if pending & (Changes::SESSION | Changes::WATCHED) != 0 {
                let wanted = watched.borrow_and_update().clone();
                self.subscribe(link, &wanted, &mut subscribed).await;
            }
            if link.purpose == Purpose::Offers && pending & (Changes::SESSION | Changes::MISSED) != 0 {
                watched.borrow().iter().for_each(|uri| (self.updated)(uri));
            }
            if pending & Changes::LISTS != 0 {
                match self.list(link, pending).await {
                    Ok(()) => {
                        tracing::debug!(upstream = %self.name, "what the upstream server offers was listed again")
                    }
                    Err(Fault::Unreachable) => {
                        link.carrier.closed().cancel();
                        return Fault::Unreachable;
                    }
                    // Some servers answer nothing while they work; what they offer stays as it was.
                    Err(fault) => tracing::warn!(upstream = %self.name, "cannot list: the upstream server {fault}"),
                }
            }
            pending = tokio::select! {
                () = link.carrier.closed().cancelled() => return Fault::Stopped,
                changes = changes.next() => changes & heeded,
                _ = watched.changed() => Changes::WATCHED,
            };
        }
    }
}

impl Link {
    /// Sends a request and waits for its answer.
    async fn request(&self, id: u64, request: &Request, meta: Meta<'_>) -> Result<Answer, Fault> {
        self.carrier.request(id, request, meta, self.hello.era).await
    }

    /// What is said with requests of our own, for nobody.
    fn own_meta(&self) -> Meta<'static> {
        Meta { modern: (self.hello.era == Era::Modern).then(Modern::default), ..Meta::default() }
    }

    fn ears(&self) -> &Ears {
        self.carrier.ears()
    }

    /// Gives up a request; `false` if it has been answered.
    fn forget(&self, id: u64) -> bool {
        match (&self.carrier, self.hello.era) {
            (Carrier::Child(child), _) => return child.forget(id),
            (Carrier::Endpoint(endpoint), Era::Sessions) => endpoint.notify(wire::cancelled(id)),
            // The end of its response says so.
            (Carrier::Endpoint(_), Era::Modern) => {}
        }
        true
    }

    async fn goodbye(&self) {
        self.carrier.closed().cancel();
        if let Carrier::Endpoint(endpoint) = &self.carrier {
            endpoint.close().await;
        }
    }
}

impl Carrier {
    async fn request(&self, id: u64, request: &Request, meta: Meta<'_>, era: Era) -> Result<Answer, Fault> {
        let body = request.write(id, meta);
        match (self, era) {
            (Self::Child(child), _) => child.request(id, body).await,
            (Self::Endpoint(endpoint), Era::Sessions) => endpoint.request(id, body).await,
            (Self::Endpoint(endpoint), Era::Modern) => endpoint.request_alone(id, body, request.headers()).await,
        }
    }

    /// Asks whether the server is of 2026-07-28.
    async fn discover(&self) -> Result<Discovered, Fault> {
        let meta = Meta { modern: Some(Modern::default()), ..Meta::default() };
        let answer = self.request(next_id(), &Request::discover(), meta, Era::Modern).await?;
        Ok(wire::read_discovered(&answer))
    }

    async fn initialize(&self) -> Result<Hello, Fault> {
        match self {
            Self::Child(child) => child.initialize(next_id()).await,
            Self::Endpoint(endpoint) => endpoint.initialize(next_id()).await,
        }
    }

    fn closed(&self) -> &CancellationToken {
        match self {
            Self::Child(child) => &child.closed,
            Self::Endpoint(endpoint) => &endpoint.closed,
        }
    }

    fn ears(&self) -> &Ears {
        match self {
            Self::Child(child) => &child.ears,
            Self::Endpoint(endpoint) => &endpoint.ears,
        }
    }
}

/// A connection for a call.
struct Seat {
    link: Arc<Link>,
    /// The caller's session stays while this is held.
    _held: Option<Held>,
}

/// A call without an answer. When it is dropped, the server is told that nobody wants one.
struct Pending<'a> {
    link: &'a Link,
    id: u64,
    is_answered: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let calls = &self.link.ears().calls;
        calls.end(self.id, self.is_answered);
        if !self.is_answered && !self.link.forget(self.id) {
            calls.settle(self.id);
        }
    }
}

impl Fault {
    /// A connection that broke. What the library says may name the URL, so it stays in our log.
    fn stopped(error: &reqwest::Error) -> Self {
        tracing::debug!(?error, "the connection to the upstream server broke");
        Self::Stopped
    }

    fn status(status: StatusCode) -> Self {
        Self::Odd(format!("answers with HTTP status {}", status.as_u16()))
    }

    fn refused(error: &CallError) -> Self {
        Self::Odd(format!("refuses: {} ({})", cut(&error.message, 200), error.code))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "stopped",
            Self::Unreachable => "cannot be reached",
            Self::Silent => "does not answer",
            Self::TooLarge => "sent too large an answer",
            Self::SessionLost => "does not keep its sessions",
            Self::Odd(what) => what,
        })
    }
}

/// Pauses that grow.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Self(PAUSE_MIN)
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSE_MAX);
    }
}

/// An id that no other request of this process has.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
