//! A server that is reached over Streamable HTTP (MCP 2025-11-25, basic/transports; MCP 2026-07-28,
//! basic/transports/streamable-http).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use reqwest::{Client, RequestBuilder, Response, Url, redirect};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Fault;
use super::ears::{Back, Changes, Ears, WORD_TIMEOUT};
use super::sse::Events;
use crate::wire::{self, Answer, Hello, Incoming};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const EITHER: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a silent connection is probed: a call may wait for hours on one.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How often in a row a stream that was lost is asked for again in vain.
const RESUMES_MAX: u32 = 5;
/// The longest pause before that; some servers would rather be left alone for longer.
const RESUME_PAUSE_MAX: Duration = Duration::from_secs(60);
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
    pub(super) ears: Arc<Ears>,
    tasks: TaskTracker,
    words: Arc<Semaphore>,
    /// Cancelled when the server is given up.
    pub(super) closed: CancellationToken,
}

#[derive(Clone, Default)]
struct Session {
    /// Counts the sessions with this endpoint; 0 is none.
    number: u64,
    /// What each request says of it.
    headers: HeaderMap,
}

impl Endpoint {
    /// An endpoint, not yet spoken to.
    pub(super) fn new(
        url: &Url,
        headers: &HeaderMap,
        message_bytes_max: usize,
        ears: Arc<Ears>,
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
            ears,
            tasks: tasks.clone(),
            words: Arc::new(Semaphore::new(WORDS_MAX)),
            closed: CancellationToken::new(),
        })
    }

    /// Starts a session.
    pub(super) async fn initialize(&self, id: u64) -> Result<Hello, Fault> {
        let _renewing = self.renewing.lock().await;
        self.start(id).await
    }

    async fn start(&self, id: u64) -> Result<Hello, Fault> {
        let none = Session::default();
        let response = self.post(&none, wire::initialize(id, self.ears.client)).await?;
        let session_id = response.headers().get(SESSION).cloned();
        let result = self.answer(id, &none, response).await?.map_err(|error| Fault::refused(&error))?;
        let hello = wire::read_hello(&result).map_err(Fault::Odd)?;
        let mut headers = HeaderMap::new();
        if let Some(mut session_id) = session_id {
            if session_id.len() > SESSION_ID_BYTES_MAX {
                return Err(Fault::Odd("gives too long a session id".into()));
            }
            session_id.set_sensitive(true);
            headers.insert(SESSION, session_id);
        } else {
            // What it says on a stream of its own, it says to no session: to whoever listens.
            self.ears.calls.mix();
        }
        let version = HeaderValue::try_from(&*hello.version).expect("invariant: a version that we know is ASCII");
        headers.insert(VERSION, version);
        let session = Session { number: self.session().number + 1, headers };
        self.say(&session, wire::initialized()).await?;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
        Ok(hello)
    }

    /// Sends a request in the session and waits for its answer.
    pub(super) async fn request(&self, id: u64, body: Bytes) -> Result<Answer, Fault> {
        let session = self.session();
        let response = self.post(&session, body.clone()).await?;
        match self.answer(id, &session, response).await {
            // The server has not looked at the request, so that it may be sent again; once is enough.
            Err(Fault::SessionLost) => {
                self.renew(session.number).await?;
                let session = self.session();
                let response = self.post(&session, body).await?;
                self.answer(id, &session, response).await
            }
            other => other,
        }
    }

    /// Sends a request of 2026-07-28 and waits for its answer; its headers say everything that a session would.
    pub(super) async fn request_alone(&self, id: u64, body: Bytes, mut headers: HeaderMap) -> Result<Answer, Fault> {
        headers.insert(VERSION, HeaderValue::from_static(wire::MODERN_VERSION));
        let alone = Session { number: 0, headers };
        let response = self.post(&alone, body).await?;
        self.answer(id, &alone, response).await
    }

    /// Makes a new session in place of the lost one, unless somebody has.
    async fn renew(&self, lost: u64) -> Result<(), Fault> {
        let _renewing = self.renewing.lock().await;
        if self.session().number == lost {
            tracing::info!(host = self.url.host_str(), "the upstream server no longer knows the session");
            self.start(super::next_id()).await?;
            self.renewed.notify_one();
            self.ears.changes.mark(Changes::SESSION | Changes::LISTS);
        }
        Ok(())
    }

    /// Sends a notification, in its own time.
    pub(super) fn notify(&self, body: Bytes) {
        self.back(&self.session()).say(body);
    }

    /// The way back to the server, in a session.
    fn back(&self, session: &Session) -> Back {
        let request = Arc::new(self.builder(session));
        Back::Post { request, words: self.words.clone(), tasks: self.tasks.clone() }
    }

    /// Listens to what the server says of its own accord in its session, until the server is given up.
    pub(super) async fn listen(self: Arc<Self>) {
        let mut pauses = super::Backoff::new();
        let closed = self.closed.clone();
        let listening = async {
            loop {
                let session = self.session();
                let since = Instant::now();
                match self.hear(&session).await {
                    // Not in this session, at least.
                    Ok(Heard::Declined(status)) => {
                        if status != StatusCode::METHOD_NOT_ALLOWED {
                            self.ears.changes.mark(Changes::LISTS);
                        }
                        self.renewed.notified().await;
                    }
                    Ok(Heard::Ended) => {}
                    Err(error) => tracing::debug!(%error, "the upstream server's stream broke"),
                }
                // One that ends as soon as it is there brings no news either way.
                let missed = if since.elapsed() > super::PAUSE_MAX { Changes::MISSED } else { 0 };
                pauses.wait().await;
                // What changed while nobody listened is found by looking.
                self.ears.changes.mark(missed | Changes::LISTS);
            }
        };
        closed.run_until_cancelled(listening).await;
    }

    /// Ends the session.
    pub(super) async fn close(&self) {
        let session = self.session();
        if self.has_session() {
            let request = self.client.delete(self.url.clone()).headers(self.headers.clone());
            // It would end by itself some day.
            let _ = request.headers(session.headers).timeout(WORD_TIMEOUT).send().await;
        }
    }

    /// Whether the server has given us a session of our own.
    pub(super) fn has_session(&self) -> bool {
        self.session().headers.contains_key(SESSION)
    }

    fn session(&self) -> Session {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn builder(&self, session: &Session) -> RequestBuilder {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).headers(session.headers.clone());
        request.header(ACCEPT, EITHER).header(CONTENT_TYPE, JSON)
    }

    async fn post(&self, session: &Session, body: Bytes) -> Result<Response, Fault> {
        let request = self.builder(session).body(body);
        request.send().await.map_err(|error| {
            if error.is_connect() {
                // It may be away for longer: look.
                self.ears.lists.mark(Changes::LISTS);
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
    async fn answer(&self, id: u64, session: &Session, mut response: Response) -> Result<Answer, Fault> {
        let status = response.status();
        if status.is_success() && is_event_stream(&response) {
            let back = self.back(session);
            let mut events = Events::new(self.message_bytes_max);
            loop {
                match self.hear_answer(id, &mut events, &back, response).await {
                    // A server may end a stream long before it has the answer, to be asked for it.
                    Err(Fault::Stopped) => response = self.resume(session, &events).await?,
                    other => return other,
                }
                events.restart();
            }
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

    async fn hear_answer(
        &self,
        id: u64,
        events: &mut Events,
        back: &Back,
        mut response: Response,
    ) -> Result<Answer, Fault> {
        while let Some(chunk) = response.chunk().await.map_err(|error| Fault::stopped(&error))? {
            events.push(&chunk);
            while let Some(data) = events.next().map_err(|_| Fault::TooLarge)? {
                match wire::read(&data) {
                    Some(Incoming::Answer { id: answered, answer }) if answered == Some(id) => return Ok(answer),
                    Some(said) => self.ears.hear(said, Some(id), back),
                    None => tracing::debug!(bytes = data.len(), "an event that is no message"),
                }
            }
        }
        Err(Fault::Stopped)
    }

    /// Takes up a session's stream that ended without its answer (MCP 2025-11-25, basic/transports, "Resumability and
    /// Redelivery"). 2026-07-28 has no such thing.
    async fn resume(&self, session: &Session, events: &Events) -> Result<Response, Fault> {
        let last = events.last_id().filter(|_| session.number > 0).ok_or(Fault::Stopped)?;
        let last = HeaderValue::from_bytes(last).map_err(|_| Fault::Stopped)?;
        let wish = events.retry().unwrap_or_default().min(RESUME_PAUSE_MAX);
        let mut pauses = super::Backoff::new();
        for _ in 0..RESUMES_MAX {
            tokio::join!(tokio::time::sleep(wish), pauses.wait());
            let request = self.get(session).header(LAST_EVENT_ID, &last);
            match request.send().await {
                Ok(response) if response.status().is_success() && is_event_stream(&response) => return Ok(response),
                Ok(response) if !response.status().is_server_error() => break,
                Ok(_) => {}
                Err(error) => tracing::debug!(error = %error.without_url(), "a stream cannot be taken up yet"),
            }
        }
        Err(Fault::Stopped)
    }

    /// A request for a stream of the session.
    fn get(&self, session: &Session) -> RequestBuilder {
        let request = self.client.get(self.url.clone()).headers(self.headers.clone()).headers(session.headers.clone());
        request.header(ACCEPT, EVENTS)
    }

    async fn hear(&self, session: &Session) -> Result<Heard, Fault> {
        let mut response = self.get(session).send().await.map_err(|error| Fault::stopped(&error))?;
        let status = response.status();
        if status.is_client_error() || status.is_success() && !is_event_stream(&response) {
            return Ok(Heard::Declined(status));
        }
        if !status.is_success() {
            return Err(Fault::status(status));
        }
        let back = self.back(session);
        let mut events = Events::new(self.message_bytes_max);
        while let Some(chunk) = response.chunk().await.map_err(|error| Fault::stopped(&error))? {
            events.push(&chunk);
            while let Some(data) = events.next().map_err(|_| Fault::TooLarge)? {
                if let Some(said) = wire::read(&data) {
                    self.ears.hear(said, None, &back);
                }
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
