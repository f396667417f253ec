//! A server that is reached over Streamable HTTP (MCP 2025-11-25, basic/transports).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use longhaul_core::Progress;
use reqwest::{Client, RequestBuilder, Response, Url, redirect};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Fault;
use super::sse::Events;
use crate::wire::{self, Answer, Hello, Incoming};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const EITHER: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a silent connection is probed: a call may wait for hours on one.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// For what has no answer: notifications, replies, the end of a session.
const WORD_TIMEOUT: Duration = Duration::from_secs(5);
/// Notifications and replies on their way at once.
const WORDS_MAX: usize = 64;
/// The longest session id that is taken.
const SESSION_ID_BYTES_MAX: usize = 1024;

/// An endpoint, and our session with it.
pub(super) struct Endpoint {
    client: Client,
    url: Url,
    headers: HeaderMap,
    message_bytes_max: usize,
    session: Mutex<Session>,
    /// Held while a new session is made, so that many calls that lost theirs make one.
    renewing: tokio::sync::Mutex<()>,
    renewed: Notify,
    changed: Arc<Notify>,
    tasks: TaskTracker,
    words: Arc<Semaphore>,
    /// Cancelled when the server is given up.
    pub(super) closed: CancellationToken,
}

#[derive(Clone, Default)]
struct Session {
    /// Counts the sessions with this endpoint.
    number: u64,
    /// What each request says of it.
    headers: HeaderMap,
}

impl Endpoint {
    /// An endpoint, not yet spoken to. `changed` is told when its tools are no longer what they were.
    pub(super) fn new(
        url: &Url,
        headers: &HeaderMap,
        message_bytes_max: usize,
        changed: Arc<Notify>,
        tasks: &TaskTracker,
    ) -> Result<Self, Fault> {
        // Redirects would carry the configured headers to somebody else.
        let client = Client::builder().redirect(redirect::Policy::none()).connect_timeout(CONNECT_TIMEOUT);
        let client = client.tcp_keepalive(KEEPALIVE).build().map_err(|error| Fault::stopped(&error))?;
        Ok(Self {
            client,
            url: url.clone(),
            headers: headers.clone(),
            message_bytes_max,
            session: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
            renewed: Notify::new(),
            changed,
            tasks: tasks.clone(),
            words: Arc::new(Semaphore::new(WORDS_MAX)),
            closed: CancellationToken::new(),
        })
    }

    /// Starts a session.
    pub(super) async fn hello(&self, id: u64) -> Result<Hello, Fault> {
        let _renewing = self.renewing.lock().await;
        self.start(id).await
    }

    async fn start(&self, id: u64) -> Result<Hello, Fault> {
        let none = Session::default();
        let response = self.post(&none, wire::hello(id)).await?;
        let session_id = response.headers().get(SESSION).cloned();
        let result = self.answer(id, &none, response, None).await?.map_err(|error| Fault::refused(&error))?;
        let hello = wire::read_hello(&result).map_err(Fault::Odd)?;
        let mut headers = HeaderMap::new();
        if let Some(mut session_id) = session_id {
            if session_id.len() > SESSION_ID_BYTES_MAX {
                return Err(Fault::Odd("gives too long a session id".into()));
            }
            session_id.set_sensitive(true);
            headers.insert(SESSION, session_id);
        }
        let version = HeaderValue::try_from(&*hello.version).expect("invariant: a version that we know is ASCII");
        headers.insert(VERSION, version);
        let session = Session { number: self.session().number + 1, headers };
        self.say(&session, wire::initialized()).await?;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
        Ok(hello)
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn request(
        &self,
        id: u64,
        body: Bytes,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Answer, Fault> {
        let session = self.session();
        let response = self.post(&session, body.clone()).await?;
        match self.answer(id, &session, response, progress.as_ref()).await {
            // The server has not looked at the request, so that it may be sent again; once is enough.
            Err(Fault::SessionLost) => {
                self.renew(session.number).await?;
                let session = self.session();
                let response = self.post(&session, body).await?;
                self.answer(id, &session, response, progress.as_ref()).await
            }
            other => other,
        }
    }

    /// Makes a new session in place of the lost one, unless somebody has.
    async fn renew(&self, lost: u64) -> Result<(), Fault> {
        let _renewing = self.renewing.lock().await;
        if self.session().number == lost {
            tracing::info!(host = self.url.host_str(), "the upstream server no longer knows the session");
            self.start(super::next_id()).await?;
            self.renewed.notify_one();
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Sends a notification or a reply, in its own time.
    pub(super) fn notify(&self, body: Bytes) {
        // More than that are the work of a server that asks without end.
        let Ok(permit) = self.words.clone().try_acquire_owned() else { return };
        let request = self.builder(&self.session(), body).timeout(WORD_TIMEOUT);
        self.tasks.spawn(async move {
            if let Err(error) = request.send().await {
                tracing::debug!(error = %error.without_url(), "a word to the upstream server was lost");
            }
            drop(permit);
        });
    }

    /// Listens to what the server says of its own accord, until the server is given up.
    pub(super) async fn listen(self: Arc<Self>) {
        let mut pauses = super::Backoff::new();
        let closed = self.closed.clone();
        let listening = async {
            loop {
                let session = self.session();
                match self.hear(&session).await {
                    // Not in this session, at least.
                    Ok(Heard::Declined(status)) => {
                        if status != StatusCode::METHOD_NOT_ALLOWED {
                            self.changed.notify_one();
                        }
                        self.renewed.notified().await;
                    }
                    Ok(Heard::Ended) => {}
                    Err(error) => tracing::debug!(%error, "the upstream server's stream broke"),
                }
                pauses.wait().await;
                // What changed while nobody listened is found by looking.
                self.changed.notify_one();
            }
        };
        closed.run_until_cancelled(listening).await;
    }

    /// Ends the session.
    pub(super) async fn close(&self) {
        let session = self.session();
        if session.headers.contains_key(SESSION) {
            let request = self.client.delete(self.url.clone()).headers(self.headers.clone());
            // It would end by itself some day.
            let _ = request.headers(session.headers).timeout(WORD_TIMEOUT).send().await;
        }
    }

    fn session(&self) -> Session {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn builder(&self, session: &Session, body: Bytes) -> RequestBuilder {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).headers(session.headers.clone());
        request.header(ACCEPT, EITHER).header(CONTENT_TYPE, JSON).body(body)
    }

    async fn post(&self, session: &Session, body: Bytes) -> Result<Response, Fault> {
        self.builder(session, body).send().await.map_err(|error| {
            if error.is_connect() {
                // It may be away for longer: look.
                self.changed.notify_one();
                Fault::Unreachable
            } else {
                Fault::stopped(&error)
            }
        })
    }

    /// Sends what has no answer.
    async fn say(&self, session: &Session, body: Bytes) -> Result<(), Fault> {
        let response = timeout(WORD_TIMEOUT, self.post(session, body)).await.map_err(|_| Fault::Silent)??;
        if response.status().is_success() { Ok(()) } else { Err(Fault::status(response.status())) }
    }

    /// Reads the answer to request `id` out of a response, and what comes before it.
    async fn answer(
        &self,
        id: u64,
        session: &Session,
        mut response: Response,
        progress: Option<&mpsc::Sender<Progress>>,
    ) -> Result<Answer, Fault> {
        let status = response.status();
        if status.is_success() && is_event_stream(&response) {
            let mut events = Events::new(self.message_bytes_max);
            while let Some(chunk) = response.chunk().await.map_err(|error| Fault::stopped(&error))? {
                events.push(&chunk);
                while let Some(data) = events.next().map_err(|_| Fault::TooLarge)? {
                    match self.take(&data, progress) {
                        Some((answered, answer)) if answered == Some(id) => return Ok(answer),
                        _ => {}
                    }
                }
            }
            return Err(Fault::Stopped);
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| Fault::stopped(&error))? {
            if body.len() + chunk.len() > self.message_bytes_max {
                return Err(Fault::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        match wire::read(&body.freeze()) {
            Some(Incoming::Answer { id: answered, answer }) if answered == Some(id) => Ok(answer),
            // The specification says 404 for a session that is gone, many servers say 400.
            _ if matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST)
                && session.headers.contains_key(SESSION) =>
            {
                Err(Fault::SessionLost)
            }
            // A request that was not even read is answered without an id.
            Some(Incoming::Answer { id: None, answer: Err(error) }) => Ok(Err(error)),
            _ if !status.is_success() => Err(Fault::status(status)),
            _ => Err(Fault::Odd("gives no answer that MCP knows".into())),
        }
    }

    /// Acts on a message; an answer is handed back.
    fn take(&self, data: &Bytes, progress: Option<&mpsc::Sender<Progress>>) -> Option<(Option<u64>, Answer)> {
        match wire::read(data)? {
            Incoming::Answer { id, answer } => return Some((id, answer)),
            Incoming::Progress { progress: news, .. } => {
                // A full queue means that the call is busy with newer news than anybody needs.
                let _ = progress.map(|sender| sender.try_send(news));
            }
            Incoming::ToolsChanged => self.changed.notify_one(),
            Incoming::Request { reply } => self.notify(reply),
            Incoming::Other => {}
        }
        None
    }

    async fn hear(&self, session: &Session) -> Result<Heard, Fault> {
        let request = self.client.get(self.url.clone()).headers(self.headers.clone()).headers(session.headers.clone());
        let mut response = request.header(ACCEPT, EVENTS).send().await.map_err(|error| Fault::stopped(&error))?;
        let status = response.status();
        if status.is_client_error() || status.is_success() && !is_event_stream(&response) {
            return Ok(Heard::Declined(status));
        }
        if !status.is_success() {
            return Err(Fault::status(status));
        }
        let mut events = Events::new(self.message_bytes_max);
        while let Some(chunk) = response.chunk().await.map_err(|error| Fault::stopped(&error))? {
            events.push(&chunk);
            while let Some(data) = events.next().map_err(|_| Fault::TooLarge)? {
                self.take(&data, None);
            }
        }
        Ok(Heard::Ended)
    }
}

/// What came of listening.
enum Heard {
    Declined(StatusCode),
    Ended,
}

fn is_event_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}
