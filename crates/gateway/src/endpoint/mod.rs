//! One request: where it comes from, who asks, in which era; then its verb, and the answer on its way out.
//!
//! The order of the checks is that of docs/PROTOCOL.md: path, method, where the request came from, who asks, what the
//! body is, the message, its era; then those of its era ([`legacy`], [`modern`]), its method, its parameters, admission.

mod legacy;
mod modern;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use longhaul_core::{Outcome, Principal, Target};
use longhaul_mcp::era::{Era, era};
use longhaul_mcp::errors::{Denial, Rejection, Status, code};
use longhaul_mcp::seal::Session;
use longhaul_mcp::{Dialect, Envelope, Message, Reply, RequestId, TraceContext, error_body, jsonrpc, sse, write};
use longhaul_rpc::{Error, trace};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument as _;
use tracing::field::{Empty, display};

use crate::Shared;
use crate::doors::Doors;
use crate::http::{
    Accepts, Read, Shown, accepted, discard, is_json, json, last, malformed, method_not_allowed, not_acceptable, read,
    refuse, single, unavailable,
};
use crate::metrics::{Ended, Operation};
use crate::oauth::Identity;
use crate::sessions::Tag;
use crate::stream::{self, Frames};
use crate::until::Until;
use crate::verbs;
use crate::verbs::unheard::Unheard;

const VERSION: &str = "mcp-protocol-version";

/// The endpoint at one listener.
pub(crate) struct Edge {
    pub(crate) shared: Arc<Shared>,
    pub(crate) doors: Doors,
}

/// One request, of either era.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) shared: Arc<Shared>,
    pub(crate) principal: Arc<Principal>,
    pub(crate) dialect: Dialect,
    /// The session it belongs to, in the era that has sessions.
    pub(crate) session: Option<(Session, Tag)>,
    /// What is known of its sender: from the request itself, or from its session.
    pub(crate) envelope: Envelope,
    pub(crate) id: RequestId,
    pub(crate) accepts: Accepts,
    /// The trace it belongs to.
    pub(crate) trace: TraceContext,
    /// How long its streams may go on.
    pub(crate) until: Until,
}

impl Asked {
    /// The tag of its session.
    pub(crate) fn tag(&self) -> Option<Tag> {
        self.session.as_ref().map(|(_, tag)| *tag)
    }

    /// A reply as a body.
    pub(crate) fn write(&self, reply: &Reply<'_>) -> Bytes {
        write(self.dialect, &self.id, reply)
    }

    /// An answer that went well.
    pub(crate) fn well(&self, reply: &Reply<'_>) -> Answer {
        Answer::Message { status: StatusCode::OK, body: self.write(reply), how: Ended::Well }
    }

    /// A no, in the words of its dialect.
    pub(crate) fn deny<'a>(&self, denial: impl Into<Denial<'a>>) -> No {
        No::Denied(denial.into().reject(self.dialect))
    }

    /// What another role said instead of an answer.
    pub(crate) fn failed(&self, error: Error) -> No {
        match error {
            Error::Refused(refusal) => self.deny(refusal),
            Error::Unavailable(why) | Error::NotBegun(why) => {
                tracing::debug!(why, "a request could not be answered");
                No::Unavailable
            }
            Error::Fault(why) => {
                tracing::error!(why, "a request failed");
                self.fault()
            }
        }
    }

    /// A fault of ours, with the trace in which operators find it.
    pub(crate) fn fault(&self) -> No {
        let traceparent = trace::current();
        let trace_id = traceparent.as_deref().and_then(|text| text.split('-').nth(1));
        self.deny(Denial::Fault { trace_id })
    }
}

/// What a verb answers.
pub(crate) enum Answer {
    /// One message, and how the operation ended.
    Message { status: StatusCode, body: Bytes, how: Ended },
    /// A task that its caller must hear of.
    Handle { body: Bytes, task: Unheard },
    /// A stream, which answers for itself.
    Stream(Frames),
    /// Nothing: the client no longer wants to know.
    Nothing,
}

/// Why a verb has no answer.
#[derive(Debug)]
pub(crate) enum No {
    /// There is an error to tell.
    Denied(Rejection),
    /// Something that the answer needs cannot be reached.
    Unavailable,
}

impl From<Rejection> for No {
    fn from(rejection: Rejection) -> Self {
        Self::Denied(rejection)
    }
}

/// The HTTP status that MCP demands for a response.
pub(crate) fn http_status(status: Status) -> StatusCode {
    match status {
        Status::Ok => StatusCode::OK,
        Status::BadRequest => StatusCode::BAD_REQUEST,
        Status::NotFound => StatusCode::NOT_FOUND,
    }
}

/// Serves `/mcp`.
pub(crate) async fn mcp(State(edge): State<Arc<Edge>>, request: Request<Body>) -> Response {
    let (parts, mut body) = request.into_parts();
    let response = route(&edge, &parts, &mut body).await;
    discard(&parts.headers, &mut body).await;
    response
}

async fn route(edge: &Edge, parts: &http::request::Parts, body: &mut Body) -> Response {
    let shared = &edge.shared;
    let is_modern = single(&parts.headers, VERSION)
        .is_ok_and(|version| version.and_then(Dialect::of_version).is_some_and(Dialect::is_modern));
    match parts.method {
        Method::POST => {}
        // There is nothing to open and nothing to end without sessions.
        Method::GET | Method::DELETE if !is_modern => {}
        _ => return method_not_allowed(is_modern),
    }
    let Ok(permit) = shared.requests.clone().try_acquire_owned() else { return last(unavailable(None)) };
    if !edge.doors.admit(parts) {
        return refuse(StatusCode::FORBIDDEN, "This origin or host is not allowed here");
    }
    if !shared.can_judge() {
        return last(unavailable(None));
    }
    let now = shared.clock.now();
    let identity = match shared.auth.identify(&parts.headers, &shared.credentials, now).await {
        Ok(identity) => identity,
        Err(response) => return response,
    };
    let (until, ended) = (identity.until(&shared.drain, now), identity.ended.clone());
    let response = match parts.method {
        Method::POST => post(shared, &identity, until, &parts.headers, body, permit).await,
        Method::GET => legacy::get(shared, identity.principal, until, &parts.headers, permit).await,
        _ => legacy::delete(shared, identity.principal, &parts.headers).await,
    };
    match ended {
        Some(ended) => stream::until(response, ended),
        None => response,
    }
}

/// What a POST brings, and what answers it.
struct Post<'a> {
    shared: &'a Arc<Shared>,
    principal: Arc<Principal>,
    until: Until,
    headers: &'a HeaderMap,
    accepts: Accepts,
    /// Holds its place among the requests in flight.
    permit: OwnedSemaphorePermit,
}

/// What follows from a message.
enum Next {
    /// It is answered.
    Said(Response),
    /// It is a request.
    Ask(Box<Ask>),
}

/// A request that was read, with what is wrong with it if it is not well formed.
struct Ask {
    asked: Asked,
    request: Result<longhaul_mcp::Request, Rejection>,
    operation: Operation,
    span: tracing::Span,
    permit: OwnedSemaphorePermit,
}

async fn post(
    shared: &Arc<Shared>,
    identity: &Identity,
    until: Until,
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
    let Read { bytes, share } = match read(shared, headers, body).await {
        Ok(read) => read,
        Err(response) => return response,
    };
    let message = match jsonrpc::parse(&bytes) {
        Ok(message) => message,
        Err(wrong) => return malformed(headers, wrong.body()),
    };
    let principal = identity.principal.clone();
    let session = legacy::session(shared, &principal, headers);
    let post = Post { shared, principal, until, headers, accepts, permit };
    let next = match era(&message, &Shown(headers), session.is_ok()) {
        Era::Sessions => legacy::serve(post, session, message).await,
        Era::Modern => modern::serve(post, message),
    };
    // What is needed of it has been copied, and may be needed for long.
    drop(bytes);
    match next {
        Next::Said(response) => response,
        Next::Ask(ask) => {
            if let Some(response) = lacks_scope(identity, &ask) {
                ask.operation.end(Ended::Error(code::INVALID_REQUEST));
                return response;
            }
            let span = ask.span.clone();
            answer(*ask, share).instrument(span).await
        }
    }
}

/// The answer to a call of a tool that its caller's token is not good for.
fn lacks_scope(identity: &Identity, ask: &Ask) -> Option<Response> {
    match &ask.request {
        Ok(longhaul_mcp::Request::Call(longhaul_mcp::Call { target: Target::Tool(tool), .. })) => {
            ask.asked.shared.auth.lacks(identity, tool, &ask.asked.id)
        }
        Ok(_) | Err(_) => None,
    }
}

/// The id of a request.
fn id_of(message: &Message<'_>) -> Option<RequestId> {
    match message {
        Message::Request { id, .. } => Some(id.clone()),
        Message::Notification { .. } | Message::Response { .. } => None,
    }
}

/// Answers a request. `share` is what its body takes of the memory for bodies.
async fn answer(ask: Ask, share: Option<OwnedSemaphorePermit>) -> Response {
    let Ask { asked, request, operation, permit, .. } = ask;
    let mut operation = Some(operation);
    let answer = match request {
        Ok(request) => verbs::serve(&asked, request, share, &mut operation).await,
        Err(rejection) => Err(rejection.into()),
    };
    let end = |operation: Option<Operation>, how| {
        if let Some(operation) = operation {
            operation.end(how);
        }
    };
    match answer {
        Ok(Answer::Message { status, body, how }) => {
            end(operation, how);
            message(asked.accepts, status, body, permit)
        }
        Ok(Answer::Handle { body, task }) => {
            end(operation, Ended::Well);
            let response = message(asked.accepts, StatusCode::OK, body, permit);
            response.map(|body| task.heard_with(body))
        }
        Ok(Answer::Stream(frames)) => stream::response(frames, permit),
        // A client that takes streams gets one without a message; the others are told what a notification is told.
        Ok(Answer::Nothing) if asked.accepts.stream => stream::response(Box::pin(futures::stream::empty()), permit),
        Ok(Answer::Nothing) => accepted(),
        Err(No::Denied(Rejection { status, error })) => {
            end(operation, Ended::Error(error.code));
            message(asked.accepts, http_status(status), error_body(Some(&asked.id), &error), permit)
        }
        Err(No::Unavailable) => {
            end(operation, Ended::Error(code::INTERNAL));
            unavailable(Some(&asked.id))
        }
    }
}

/// A response that carries one message, in the form that the client takes. What is not 200 is
/// JSON in any case: no client reads a stream from it.
fn message(accepts: Accepts, status: StatusCode, body: Bytes, permit: OwnedSemaphorePermit) -> Response {
    if accepts.json || status != StatusCode::OK {
        return json(status, body);
    }
    // Without an id there is nothing to come back for.
    let frame = sse::message(None, &body);
    stream::response(Box::pin(futures::stream::once(async move { frame })), permit)
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

fn trace_header(headers: &HeaderMap) -> TraceContext {
    let text = |name| single(headers, name).ok().flatten();
    // Lists may come in several headers (RFC 9110, section 5.3).
    let list = |name| -> Option<String> {
        let lines: Result<Vec<_>, _> = headers.get_all(name).iter().map(|line| line.to_str()).collect();
        lines.ok().filter(|lines| !lines.is_empty()).map(|lines| lines.join(","))
    };
    TraceContext::new(text("traceparent"), list("tracestate").as_deref(), list("baggage").as_deref())
}

/// Begins to time a request, and to trace it: below the trace that its `_meta` names, else that of its headers, which is
/// linked if they are two. Answers with the trace it belongs to.
fn observe(
    post: &Post<'_>,
    dialect: Dialect,
    method: &str,
    request: Option<&longhaul_mcp::Request>,
    in_meta: TraceContext,
) -> (Operation, tracing::Span, TraceContext) {
    let in_header = trace_header(post.headers);
    let method = crate::metrics::method_label(method);
    let mut operation = Operation::start(post.shared, method, dialect.version());
    let tool = match request {
        Some(longhaul_mcp::Request::Call(longhaul_mcp::Call { target: Target::Tool(name), .. })) => {
            let offer = post.shared.catalogue.offer();
            let known = offer.as_ref().and_then(|offer| offer.tool(name)).map(|tool| tool.name.clone());
            operation.tool(known.clone());
            known
        }
        _ => None,
    };
    let span = span(method, tool.as_deref(), &post.principal, dialect);
    trace::set_parent(&span, in_meta.traceparent.as_deref().or(in_header.traceparent.as_deref()));
    if in_meta.traceparent.is_some() {
        trace::link(&span, in_header.traceparent.as_deref());
    }
    let baggage = in_meta.baggage.clone().or_else(|| in_header.baggage.clone());
    let trace = if in_meta.traceparent.is_some() { in_meta } else { in_header };
    (operation, span, TraceContext { baggage, ..trace })
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
        "tools/call" | "prompts/get" | "resources/read" | "tasks/cancel" | "tasks/update" => {
            request!(tracing::Level::INFO)
        }
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
