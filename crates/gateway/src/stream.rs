//! Answers that are streams of server-sent events.
//!
//! A stream is pulled by its connection: it makes the next frame when the last one has been taken, so that a slow
//! reader costs no more memory than a quick one, and what it could not take in time is skipped.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use longhaul_core::{Principal, TaskId};
use longhaul_mcp::seal::{EventId, Session};
use longhaul_mcp::{Dialect, RequestId, sse};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Shared;
use crate::endpoint::Asked;

/// How long a client waits before it comes back, in milliseconds.
pub(crate) const RETRY_MS: u64 = 1000;

const EVENT_STREAM: &str = "text/event-stream";

/// Seen so much, a client has seen everything.
pub(crate) const OVER: u64 = u64::MAX;

/// The frames of a stream.
pub(crate) type Frames = BoxStream<'static, Bytes>;

/// Something that makes one frame after another.
pub(crate) trait Source: Send + 'static {
    /// The next frame; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// The frames that a source makes.
pub(crate) fn frames(source: impl Source) -> Frames {
    futures::stream::unfold(source, async |mut source| source.next().await.map(|frame| (frame, source))).boxed()
}

/// The response that carries a stream; it counts as a request in flight until it ends.
pub(crate) fn response(frames: Frames, permit: OwnedSemaphorePermit) -> Response {
    let frames = frames.map(move |frame| {
        let _held = &permit;
        Ok::<_, Infallible>(frame)
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Else nginx holds the events back.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// A response whose stream, if it has one, ends with what it was opened with.
pub(crate) fn until(response: Response, ended: CancellationToken) -> Response {
    if response.headers().get(CONTENT_TYPE).is_none_or(|kind| kind != EVENT_STREAM) {
        return response;
    }
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(ended.cancelled_owned())))
}

/// Says when a quiet stream must show that it lives.
pub(crate) struct KeepAlive {
    every: Duration,
    due: Instant,
}

impl KeepAlive {
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, due: Instant::now() + every }
    }

    /// Waits until it is time, and gives what to send.
    pub(crate) async fn due(&mut self) -> Bytes {
        tokio::time::sleep_until(self.due).await;
        self.sent();
        sse::comment("ka")
    }

    /// Something was sent.
    pub(crate) fn sent(&mut self) {
        self.due = Instant::now() + self.every;
    }
}

/// Makes the event ids of one stream. With one of them, its client finds the way back, on any replica. In dialects whose
/// streams cannot be resumed there are none.
pub(crate) struct EventIds {
    shared: Arc<Shared>,
    principal: Arc<Principal>,
    dialect: Dialect,
    next: Option<EventId>,
}

impl EventIds {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        principal: &Arc<Principal>,
        session: &Session,
        stream: u64,
        task: Option<TaskId>,
        request: Option<RequestId>,
    ) -> Self {
        let next = EventId { session: session.id, stream, task, request, seq: 0, expires_at: session.expires_at };
        let dialect = session.dialect;
        let next = Some(next).filter(|_| dialect.has_priming());
        Self { shared: shared.clone(), principal: principal.clone(), dialect, next }
    }

    /// Those of the stream that answers a request.
    pub(crate) fn of(asked: &Asked, stream: u64, task: Option<TaskId>) -> Self {
        let Asked { shared, principal, dialect, session, id, .. } = asked;
        match session {
            Some((session, _)) => Self::new(shared, principal, session, stream, task, Some(id.clone())),
            None => Self { shared: shared.clone(), principal: principal.clone(), dialect: *dialect, next: None },
        }
    }

    /// Goes on after what the client has seen.
    pub(crate) fn after(mut self, seen: u64) -> Self {
        if let Some(next) = &mut self.next {
            next.seq = seen;
        }
        self
    }

    /// The id of an event after which the client has seen so much; none for clients that cannot come back.
    pub(crate) fn at(&mut self, seen: u64) -> Option<String> {
        let next = self.next.as_mut()?;
        next.seq = seen;
        Some(self.shared.seal(&self.principal, next))
    }

    /// An event without a message, with the id of the last one.
    fn empty(&self) -> Option<Bytes> {
        let id = self.shared.seal(&self.principal, self.next.as_ref()?);
        Some(sse::priming(&id, RETRY_MS))
    }

    /// The first frame of a stream.
    pub(crate) fn priming(&self) -> Bytes {
        self.empty().unwrap_or_else(|| sse::comment("ok"))
    }

    /// The last frame of a stream that ends before its time.
    pub(crate) fn come_back(&self) -> Bytes {
        let without_id = || match self.dialect {
            Dialect::V2025_06_18 | Dialect::V2025_11_25 => sse::retry(RETRY_MS),
            // There is no way back: the request is made again.
            Dialect::V2026_07_28 => sse::comment("over"),
        };
        self.empty().unwrap_or_else(without_id)
    }

    /// The last message of a stream. Its id says so: several clients come back whenever a stream ends with anything
    /// but a result, for ever, unless they are told that there is no more.
    pub(crate) fn last(&mut self, message: &[u8]) -> Bytes {
        sse::message(self.at(OVER).as_deref(), message)
    }

    /// The last frame of a stream whose client wants no answer.
    pub(crate) fn nothing_more(&mut self) -> Bytes {
        self.at(OVER).map_or_else(|| sse::comment("over"), |id| sse::priming(&id, RETRY_MS))
    }
}
