//! One upstream MCP server: connected to, listened to, and connected to again when it was lost.

mod child;
mod endpoint;
mod lines;
mod sse;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use longhaul_core::limits::{MESSAGE_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, cut};
use longhaul_core::{CallError, Progress};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Reach;
use crate::wire::{self, Answer, Listed};
use child::Child;
use endpoint::Endpoint;

/// The largest message that is taken from a server, however small a result must be: lists of tools are messages too.
const MESSAGE_BYTES_LEAST: usize = PAYLOAD_BYTES_MAX + MESSAGE_OVERHEAD_BYTES;
/// A server may install itself when it starts.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);
/// For each page of tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Pages of tools of one server.
const PAGES_MAX: usize = 100;
/// Tools of one server, and of all together: a worker has no more.
pub(crate) const TOOLS_MAX: usize = 1000;
/// How long a call waits for a server that is being started again.
const RETURN_WAIT: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// An upstream server.
pub(crate) struct Upstream {
    pub(crate) name: Arc<str>,
    reach: Reach,
    /// The largest message that is taken from it.
    message_bytes_max: usize,
    link: watch::Sender<State>,
    tools: watch::Sender<Arc<Vec<Listed>>>,
    tasks: TaskTracker,
}

#[derive(Clone)]
enum State {
    Up(Link),
    /// Not there, and why.
    Down(String),
}

/// A connection.
#[derive(Clone)]
enum Link {
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

impl Upstream {
    pub(crate) fn new(name: &str, reach: Reach, max_result_bytes: usize) -> Self {
        Self {
            name: name.into(),
            reach,
            message_bytes_max: max_result_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES).max(MESSAGE_BYTES_LEAST),
            link: watch::Sender::new(State::Down("is being started".into())),
            tools: watch::Sender::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// The tools that it last listed; they stay while it is away.
    pub(crate) fn tools(&self) -> watch::Receiver<Arc<Vec<Listed>>> {
        self.tools.subscribe()
    }

    /// Why it is not there, if it is not.
    pub(crate) fn missing(&self) -> Option<String> {
        match &*self.link.borrow() {
            State::Up(_) => None,
            State::Down(why) => Some(why.clone()),
        }
    }

    /// Keeps the connection until `drain` fires, then ends the server.
    pub(crate) async fn run(&self, drain: &CancellationToken) {
        let mut pauses = Backoff::new();
        while !drain.is_cancelled() {
            let changed = Arc::new(Notify::new());
            let connected = drain.run_until_cancelled(self.connect(&changed)).await;
            let why = match connected {
                None => break,
                Some(Ok(link)) => {
                    tracing::info!(upstream = %self.name, tools = self.tools.borrow().len(), "the upstream server is there");
                    self.link.send_replace(State::Up(link.clone()));
                    let since = Instant::now();
                    let why = drain.run_until_cancelled(self.watch(&link, &changed)).await;
                    // One that stops as soon as it is up must not be started twenty times a second.
                    if since.elapsed() > PAUSE_MAX {
                        pauses = Backoff::new();
                    }
                    let Some(why) = why else {
                        self.link.send_replace(State::Down("is shut down".into()));
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
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Calls a tool. Dropping the future tells the server to stop.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: &[u8],
        traceparent: Option<&str>,
        progress: mpsc::Sender<Progress>,
    ) -> Answer {
        let link = self.up().await.map_err(|why| self.error(&why))?;
        let id = next_id();
        let Some(body) = wire::call(id, tool, arguments, traceparent) else {
            return Err(CallError {
                code: -32602,
                message: "Invalid params: arguments are no JSON".into(),
                data: None,
            });
        };
        let mut pending = Pending { link: &link, id, is_answered: false };
        let answer = link.request(id, body, Some(progress)).await;
        pending.is_answered = answer.is_ok();
        answer.unwrap_or_else(|fault| Err(self.error(&fault)))
    }

    fn down(&self, why: String) {
        let is_news = !matches!(&*self.link.borrow(), State::Down(former) if *former == why);
        if is_news {
            tracing::warn!(upstream = %self.name, "the upstream server {why}; its own words: --set log=longhaul_runner=debug");
        }
        self.link.send_replace(State::Down(why));
    }

    /// The connection, now or soon.
    async fn up(&self) -> Result<Link, String> {
        let mut states = self.link.subscribe();
        // The state is looked at again, for waiting may have ended for want of time.
        let _ = timeout(RETURN_WAIT, states.wait_for(|state| matches!(state, State::Up(_)))).await;
        match &*states.borrow() {
            State::Up(link) => Ok(link.clone()),
            State::Down(why) => Err(why.clone()),
        }
    }

    fn error(&self, why: &impl fmt::Display) -> CallError {
        let message = format!("the upstream server {} {why}", self.name);
        CallError { code: wire::INTERNAL_ERROR, message, data: None }
    }

    async fn connect(&self, changed: &Arc<Notify>) -> Result<Link, Fault> {
        let (link, hello) = match &self.reach {
            Reach::Command { argv, env, cwd } => {
                let name = self.name.clone();
                let child =
                    Child::start(name, argv, env, cwd.as_deref(), self.message_bytes_max, changed.clone(), &self.tasks);
                let child = child.map_err(|error| Fault::Odd(format!("cannot be started: {error}")))?;
                // If this future is dropped or fails, the server goes with it.
                let guard = child.closed.clone().drop_guard();
                let hello = timeout(HELLO_TIMEOUT, child.hello(next_id())).await.map_err(|_| Fault::Silent)??;
                guard.disarm();
                (Link::Child(Arc::new(child)), hello)
            }
            Reach::Url { url, headers } => {
                let endpoint =
                    Arc::new(Endpoint::new(url, headers, self.message_bytes_max, changed.clone(), &self.tasks)?);
                let hello = timeout(HELLO_TIMEOUT, endpoint.hello(next_id())).await.map_err(|_| Fault::Silent)??;
                (Link::Endpoint(endpoint), hello)
            }
        };
        let guard = link.closed().clone().drop_guard();
        if hello.has_tools {
            self.list(&link).await?;
        } else {
            tracing::warn!(upstream = %self.name, "the upstream server has no tools");
            self.tools.send_replace(Arc::default());
        }
        if let Link::Endpoint(endpoint) = &link {
            self.tasks.spawn(endpoint.clone().listen());
        }
        guard.disarm();
        Ok(link)
    }

    /// Follows changes until the server is lost.
    async fn watch(&self, link: &Link, changed: &Notify) -> Fault {
        loop {
            tokio::select! {
                () = link.closed().cancelled() => return Fault::Stopped,
                () = changed.notified() => {}
            }
            match self.list(link).await {
                Ok(()) => tracing::debug!(upstream = %self.name, "the upstream server's tools were listed again"),
                Err(Fault::Unreachable) => {
                    link.closed().cancel();
                    return Fault::Unreachable;
                }
                // Some servers answer nothing while they work; the tools stay as they were.
                Err(fault) => tracing::warn!(upstream = %self.name, "cannot list tools: the upstream server {fault}"),
            }
        }
    }

    /// Lists the tools and makes them known.
    async fn list(&self, link: &Link) -> Result<(), Fault> {
        let mut tools = Vec::new();
        let mut cursor: Option<String> = None;
        let mut names = HashSet::new();
        for _ in 0..PAGES_MAX {
            let id = next_id();
            let answer = timeout(LIST_TIMEOUT, link.request(id, wire::list(id, cursor.as_deref()), None)).await;
            let result = answer.map_err(|_| Fault::Silent)??.map_err(|error| Fault::refused(&error))?;
            let page = wire::read_page(&result).ok_or_else(|| Fault::Odd("lists no tools that MCP knows".into()))?;
            for tool in page.tools {
                match wire::read_tool(tool) {
                    None => tracing::warn!(upstream = %self.name, "a tool without a name is left out"),
                    Some(tool) if !names.insert(tool.name.clone()) => {
                        tracing::warn!(upstream = %self.name, tool = tool.name, "a tool listed twice is left out once");
                    }
                    Some(tool) => tools.push(tool),
                }
            }
            cursor = page.next;
            if cursor.is_none() || tools.len() > TOOLS_MAX {
                break;
            }
        }
        if cursor.is_some() || tools.len() > TOOLS_MAX {
            tracing::warn!(upstream = %self.name, TOOLS_MAX, PAGES_MAX, "too many tools: the last ones are left out");
            tools.truncate(TOOLS_MAX);
        }
        self.tools.send_if_modified(|former| {
            let is_new = **former != tools;
            if is_new {
                *former = Arc::new(tools);
            }
            is_new
        });
        Ok(())
    }
}

impl Link {
    async fn request(&self, id: u64, body: Bytes, progress: Option<mpsc::Sender<Progress>>) -> Result<Answer, Fault> {
        match self {
            Self::Child(child) => child.request(id, body, progress).await,
            Self::Endpoint(endpoint) => endpoint.request(id, body, progress).await,
        }
    }

    fn closed(&self) -> &CancellationToken {
        match self {
            Self::Child(child) => &child.closed,
            Self::Endpoint(endpoint) => &endpoint.closed,
        }
    }

    async fn goodbye(&self) {
        self.closed().cancel();
        if let Self::Endpoint(endpoint) = self {
            endpoint.close().await;
        }
    }
}

/// A call without an answer. When it is dropped, the server is told that nobody wants one.
struct Pending<'a> {
    link: &'a Link,
    id: u64,
    is_answered: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        match self.link {
            Link::Child(child) => child.forget(self.id),
            Link::Endpoint(endpoint) => endpoint.notify(wire::cancelled(self.id)),
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
