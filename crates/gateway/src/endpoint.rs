//! One request: who asks, in which session, what for; then its verb, and the answer on its way out.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use longhaul_bus::{Control, Hint};
use longhaul_core::{Outcome, Principal, Refusal};
use longhaul_mcp::errors::{Denial, code};
use longhaul_mcp::seal::{EventId, Session};
use longhaul_mcp::{
    Dialect, Message, Notification, Params, RequestId, RpcError, TraceContext, dialect, error_body, jsonrpc, sse, v2025,
};
use longhaul_rpc::{Error, trace};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument as _;
use tracing::field::{Empty, display};

use crate::Shared;
use crate::doors::Doors;
use crate::http::{
    Accepts, Read, accepted, discard, is_json, json, last, malformed, method_not_allowed, read, refuse, single,
    unauthenticated, unavailable,
};
use crate::in_flight::request_digest;
use crate::metrics::{Ended, Operation, method_label};
use crate::sessions::Tag;
use crate::stream::{self, EventIds, Frames};
use crate::{notify, verbs};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: &str = "mcp-protocol-version";
const LAST_EVENT: &str = "last-event-id";

/// The endpoint at one listener.
pub(crate) struct Edge {
    pub(crate) shared: Arc<Shared>,
    pub(crate) doors: Doors,
}

/// One request of a session.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) shared: Arc<Shared>,
    pub(crate) principal: Arc<Principal>,
    pub(crate) session: Session,
    pub(crate) tag: Tag,
    pub(crate) id: RequestId,
    pub(crate) accepts: Accepts,
    pub(crate) trace: TraceContext,
}

impl Asked {
    pub(crate) fn dialect(&self) -> Dialect {
        self.session.dialect
    }
}

/// What a verb answers.
pub(crate) enum Answer {
    /// One message, and how the operation ended.
    Message(Bytes, Ended),
    /// A stream, which answers for itself.
    Stream(Frames),
    /// Nothing: the client no longer wants to know.
    Nothing,
}

/// Why a verb has no answer.
#[derive(Debug)]
pub(crate) enum No {
    /// There is an error to tell.
    Denied(RpcError),
    /// Something that the answer needs cannot be reached.
    Unavailable,
}

impl From<Denial<'_>> for No {
    fn from(denial: Denial<'_>) -> Self {
        Self::Denied(denial.v2025())
    }
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> Self {
        Denial::from(refusal).into()
    }
}

impl From<Error> for No {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(refusal) => refusal.into(),
            Error::Unavailable(why) | Error::NotBegun(why) => {
                tracing::debug!(why, "a request could not be answered");
                Self::Unavailable
            }
            Error::Fault(why) => {
                tracing::error!(why, "a request failed");
                fault()
            }
        }
    }
}

/// A fault of ours, with the trace in which operators find it.
pub(crate) fn fault() -> No {
    let traceparent = trace::current();
    let trace_id = traceparent.as_deref().and_then(|text| text.split('-').nth(1));
    Denial::Fault { trace_id }.into()
}

/// Serves `/mcp`. The order of the checks is that of the wire reference: path, method, where the request came from,
/// who asks, what the body is, the message, its version, its session, its method, its parameters, admission.
pub(crate) async fn mcp(State(edge): State<Arc<Edge>>, request: Request<Body>) -> Response {
    let (parts, mut body) = request.into_parts();
    let response = route(&edge, &parts, &mut body).await;
    discard(&parts.headers, &mut body).await;
    response
}

async fn route(edge: &Edge, parts: &http::request::Parts, body: &mut Body) -> Response {
    let shared = &edge.shared;
    if !matches!(parts.method, Method::POST | Method::GET | Method::DELETE) {
        return method_not_allowed();
    }
    let Ok(permit) = shared.requests.clone().try_acquire_owned() else { return last(unavailable(None)) };
    if !edge.doors.admit(parts) {
        return refuse(StatusCode::FORBIDDEN, "This origin or host is not allowed here");
    }
    let principal = match shared.auth.principal(&parts.headers) {
        Ok(principal) => principal,
        Err(why) => return unauthenticated(why),
    };
    match parts.method {
        Method::POST => post(shared, principal, &parts.headers, body, permit).await,
        Method::GET => get(shared, principal, &parts.headers, permit).await,
        _ => delete(shared, principal, &parts.headers).await,
    }
}

async fn post(
    shared: &Arc<Shared>,
    principal: Arc<Principal>,
    headers: &HeaderMap,
    body: &mut Body,
    permit: OwnedSemaphorePermit,
) -> Response {
    if !is_json(headers) {
        return last(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json"));
    }
    let accepts = Accepts::of(headers);
    if !accepts.anything() {
        return last(not_acceptable());
    }
    let read = match read(shared, headers, body).await {
        Ok(read) => read,
        Err(response) => return response,
    };
    let message = match jsonrpc::parse(&read.bytes) {
        Ok(message) => message,
        Err(wrong) => return malformed(headers, wrong.body()),
    };
    let id = match &message {
        Message::Request { id, .. } => Some(id.clone()),
        Message::Notification { .. } | Message::Response => None,
    };
    if let Err(error) = check_version(headers) {
        return json(StatusCode::BAD_REQUEST, error_body(id.as_ref(), &error));
    }
    if let Message::Request { id, method, params } = &message
        && method == "initialize"
    {
        // An old session in the header does not matter: this opens a new one (wire reference, R-25-055).
        return initialize(shared, &principal, id, params, accepts, permit);
    }
    let (session, tag) = match session(shared, &principal, headers) {
        Ok(session) => session,
        Err(why) => return why.response(id.as_ref()),
    };
    match message {
        Message::Request { id, method, params } => {
            let request = v2025::read(session.dialect, &method, &params, shared.config.tasks_enabled);
            let in_meta = v2025::trace(&params);
            let in_header = trace_header(headers);
            let method = method_label(&method);
            let mut operation = Operation::start(shared, method, session.dialect.version());
            let tool = match &request {
                Ok(longhaul_mcp::Request::Call(call)) => {
                    let offer = shared.catalogue.offer();
                    let known = offer.as_ref().and_then(|offer| offer.tool(&call.tool));
                    operation.tool(known.map(|tool| tool.name.clone()));
                    known.map(|tool| tool.name.clone())
                }
                _ => None,
            };
            let span = span(method, tool.as_deref(), &principal, session.dialect);
            let parent = in_meta.traceparent.as_deref().or(in_header.traceparent.as_deref());
            trace::set_parent(&span, parent);
            if in_meta.traceparent.is_some() {
                trace::link(&span, in_header.traceparent.as_deref());
            }
            let trace = if in_meta.traceparent.is_some() { in_meta } else { in_header };
            drop(params);
            let Read { bytes, share } = read;
            drop(bytes);
            let asked = Asked { shared: shared.clone(), principal, session, tag, id, accepts, trace };
            answer(asked, request, share, operation, permit).instrument(span).await
        }
        Message::Notification { method, params } => {
            if let Notification::Cancelled { request } = v2025::notification(&method, &params) {
                let request = request_digest(tag, &request);
                if !shared.in_flight.cancel(request) {
                    let request = format!("{request:032x}");
                    shared.bus.publish(Hint::Control(Control::RequestCancelled { request }));
                }
            }
            accepted()
        }
        // We have asked for nothing, so nothing can be the answer.
        Message::Response => {
            let error = RpcError::new(code::INVALID_PARAMS, "There is no such request to answer");
            json(StatusCode::BAD_REQUEST, error_body(None, &error))
        }
    }
}

fn initialize(
    shared: &Arc<Shared>,
    principal: &Principal,
    id: &RequestId,
    params: &Params<'_>,
    accepts: Accepts,
    permit: OwnedSemaphorePermit,
) -> Response {
    let operation = Operation::start(shared, "initialize", Dialect::NEWEST.version());
    match v2025::read(Dialect::NEWEST, "initialize", params, shared.config.tasks_enabled) {
        Ok(longhaul_mcp::Request::Hello(hello)) => {
            let (body, session) = verbs::hello::hello(shared, principal, id, &hello);
            operation.end(Ended::Well);
            let mut response = message(accepts, body, permit);
            if let Ok(session) = HeaderValue::try_from(session) {
                response.headers_mut().insert(SESSION, session);
            }
            response
        }
        Ok(_) => unavailable(Some(id)),
        Err(error) => {
            operation.end(Ended::Error(error.code));
            message(accepts, error_body(Some(id), &error), permit)
        }
    }
}

/// A response that carries one message, in the form that the client takes (wire reference, R-25-006).
fn message(accepts: Accepts, body: Bytes, permit: OwnedSemaphorePermit) -> Response {
    if accepts.json {
        return json(StatusCode::OK, body);
    }
    // Without an id there is nothing to come back for.
    let frame = sse::message(None, &body);
    stream::response(Box::pin(futures::stream::once(async move { frame })), permit)
}

async fn answer(
    asked: Asked,
    request: Result<longhaul_mcp::Request, RpcError>,
    share: Option<OwnedSemaphorePermit>,
    operation: Operation,
    permit: OwnedSemaphorePermit,
) -> Response {
    let mut operation = Some(operation);
    let answer = match request {
        Ok(request) => verb(&asked, request, share, &mut operation).await,
        Err(error) => Err(No::Denied(error)),
    };
    let end = |operation: Option<Operation>, how| {
        if let Some(operation) = operation {
            operation.end(how);
        }
    };
    match answer {
        Ok(Answer::Message(body, how)) => {
            end(operation, how);
            message(asked.accepts, body, permit)
        }
        Ok(Answer::Stream(frames)) => stream::response(frames, permit),
        // A client that takes streams gets one without a message; the others are told what a notification is told.
        Ok(Answer::Nothing) if asked.accepts.stream => stream::response(Box::pin(futures::stream::empty()), permit),
        Ok(Answer::Nothing) => accepted(),
        Err(No::Denied(error)) => {
            end(operation, Ended::Error(error.code));
            message(asked.accepts, error_body(Some(&asked.id), &error), permit)
        }
        Err(No::Unavailable) => {
            end(operation, Ended::Error(code::INTERNAL));
            unavailable(Some(&asked.id))
        }
    }
}

async fn verb(
    asked: &Asked,
    request: longhaul_mcp::Request,
    share: Option<OwnedSemaphorePermit>,
    operation: &mut Option<Operation>,
) -> Result<Answer, No> {
    use longhaul_mcp::Request;
    let body = match request {
        Request::Ping => verbs::ping(asked),
        Request::Tools { cursor } => verbs::tools::tools(asked, cursor.as_deref())?,
        Request::Call(call) => return verbs::call::call(asked, call, share, operation).await,
        Request::Get(task) => verbs::get::get(asked, task).await?,
        Request::Result(task) => return verbs::result::result(asked, task, operation).await,
        Request::List { cursor } => verbs::list::list(asked, cursor.as_deref()).await?,
        Request::Cancel(task) => verbs::cancel::cancel(asked, task).await?,
        // Answered before there was a session.
        Request::Hello(_) => return Err(fault()),
    };
    Ok(Answer::Message(body, Ended::Well))
}

/// How an operation with this outcome ended.
pub(crate) fn ended(outcome: &Outcome) -> Ended {
    match outcome {
        Outcome::Result { is_error: false, .. } => Ended::Well,
        Outcome::Result { is_error: true, .. } => Ended::ToolError,
        Outcome::Error(error) => Ended::Error(error.code),
        Outcome::Cancelled => Ended::Error(code::CANCELLED),
        Outcome::Interrupted(_) => Ended::Error(code::INTERNAL),
    }
}

async fn get(
    shared: &Arc<Shared>,
    principal: Arc<Principal>,
    headers: &HeaderMap,
    permit: OwnedSemaphorePermit,
) -> Response {
    if !Accepts::of(headers).stream {
        return not_acceptable();
    }
    if let Err(error) = check_version(headers) {
        return json(StatusCode::BAD_REQUEST, error_body(None, &error));
    }
    let (session, tag) = match session(shared, &principal, headers) {
        Ok(session) => session,
        Err(why) => return why.response(None),
    };
    let seen = match single(headers, LAST_EVENT) {
        Ok(None | Some("")) => None,
        Ok(Some(seen)) => {
            let seen = shared.open::<EventId>(&principal, seen).filter(|seen| seen.session == session.id);
            let Some(seen) = seen else {
                return refuse(StatusCode::BAD_REQUEST, "Last-Event-ID is not of this session");
            };
            Some(seen)
        }
        Err(()) => return refuse(StatusCode::BAD_REQUEST, "Last-Event-ID is not of this session"),
    };
    let frames = match seen {
        // To EventSource, and to the clients made after it, 204 means: do not come back.
        Some(EventId { seq: stream::OVER, .. }) => return StatusCode::NO_CONTENT.into_response(),
        Some(EventId { request: Some(id), stream, task, seq, .. }) => {
            let accepts = Accepts { json: false, stream: true };
            let trace = trace_header(headers);
            let asked = Asked { shared: shared.clone(), principal, session, tag, id, accepts, trace };
            let frames = match task {
                Some(task) if shared.config.tasks_enabled => verbs::result::resume(&asked, task, stream, seq).await,
                Some(_) => Err(Refusal::NotFound.into()),
                None => verbs::inline::resume(&asked, stream, seq),
            };
            match frames {
                Ok(frames) => frames,
                // The stream may answer the request that opened it, with an error too.
                Err(No::Denied(error)) => {
                    let body = error_body(Some(&asked.id), &error);
                    let mut ids = EventIds::new(shared, &asked.principal, &asked.session, stream, task, Some(asked.id));
                    let last = ids.last(&body);
                    Box::pin(futures::stream::once(async move { last }))
                }
                Err(No::Unavailable) => return unavailable(None),
            }
        }
        Some(EventId { request: None, .. }) | None => notify::open(shared, principal, session, tag),
    };
    stream::response(frames, permit)
}

async fn delete(shared: &Arc<Shared>, principal: Arc<Principal>, headers: &HeaderMap) -> Response {
    if let Err(error) = check_version(headers) {
        return json(StatusCode::BAD_REQUEST, error_body(None, &error));
    }
    let (session, tag) = match session(shared, &principal, headers) {
        Ok(session) => session,
        Err(why) => return why.response(None),
    };
    let ending = {
        let shared = shared.clone();
        async move {
            shared.sessions.end(&*shared.control, &session, tag).await?;
            shared.bus.publish(Hint::Control(Control::Sessions));
            shared.notifier.close_ended(&shared.sessions);
            Ok::<_, Error>(())
        }
    };
    match shared.see_through(ending).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(_) => unavailable(None),
    }
}

/// Which era a request belongs to: so far there is only that of sessions, and the versions of any other are unknown.
fn check_version(headers: &HeaderMap) -> Result<(), RpcError> {
    match single(headers, VERSION) {
        Ok(version) => dialect::check_header(version),
        Err(()) => dialect::check_header(Some("")),
    }
}

/// Why a request belongs to no session.
enum NoSession {
    Missing,
    Unknown,
    /// It is not known yet which sessions have ended.
    NotYet,
}

impl NoSession {
    fn response(self, id: Option<&RequestId>) -> Response {
        let (status, message) = match self {
            Self::Missing => (StatusCode::BAD_REQUEST, "Mcp-Session-Id is needed: initialize first"),
            Self::Unknown => (StatusCode::NOT_FOUND, "There is no such session: initialize again"),
            Self::NotYet => return unavailable(id),
        };
        json(status, error_body(id, &RpcError::new(code::INVALID_REQUEST, message)))
    }
}

/// The session of a request. Another principal's is as unknown as a forged one.
fn session(shared: &Shared, principal: &Principal, headers: &HeaderMap) -> Result<(Session, Tag), NoSession> {
    let token = match single(headers, SESSION.as_str()) {
        Ok(Some(token)) => token,
        Ok(None) => return Err(NoSession::Missing),
        Err(()) => return Err(NoSession::Unknown),
    };
    let session: Session = shared.open(principal, token).ok_or(NoSession::Unknown)?;
    let tag = Tag::of(session.id);
    if !shared.sessions.loaded() {
        return Err(NoSession::NotYet);
    }
    if shared.sessions.has_ended(tag) { Err(NoSession::Unknown) } else { Ok((session, tag)) }
}

fn not_acceptable() -> Response {
    refuse(StatusCode::NOT_ACCEPTABLE, "Accept must allow application/json or text/event-stream")
}

fn trace_header(headers: &HeaderMap) -> TraceContext {
    let text = |name| single(headers, name).ok().flatten();
    TraceContext::new(text("traceparent"), text("tracestate"), text("baggage"))
}

/// The span of a request, named as its method (OpenTelemetry semantic conventions for MCP). Requests that poll are of
/// interest to us only.
fn span(method: &'static str, tool: Option<&str>, principal: &Principal, dialect: Dialect) -> tracing::Span {
    macro_rules! request {
        ($level:expr) => {
            tracing::span!(
                $level,
                "request",
                otel.name = Empty,
                otel.kind = "server",
                mcp.method.name = method,
                mcp.protocol.version = dialect.version(),
                gen_ai.tool.name = tool,
                task.id = Empty,
                tenant.id = principal.tenant.as_str(),
            )
        };
    }
    let span = match method {
        "tools/call" | "tasks/cancel" => request!(tracing::Level::INFO),
        _ => request!(tracing::Level::DEBUG),
    };
    if !span.is_disabled() {
        match (method, tool) {
            ("tools/call", tool) => {
                span.record("otel.name", display(format_args!("{method} {}", tool.unwrap_or("_other"))))
            }
            _ => span.record("otel.name", method),
        };
    }
    span
}
