//! The era of sessions: MCP 2025-11-25 and before.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use longhaul_bus::{Control, Hint};
use longhaul_core::{Principal, Refusal};
use longhaul_mcp::errors::{Rejection, code};
use longhaul_mcp::seal::{EventId, Session};
use longhaul_mcp::{Dialect, Envelope, Message, Notification, Params, RequestId, RpcError, dialect, error_body, v2025};
use longhaul_rpc::Error;
use tokio::sync::OwnedSemaphorePermit;

use super::{Ask, Asked, Next, No, Post, VERSION, id_of, message, observe, trace_header};
use crate::Shared;
use crate::http::{Accepts, accepted, json, not_acceptable, refuse, single, unavailable};
use crate::in_flight::request_digest;
use crate::metrics::{Ended, Operation};
use crate::sessions::Tag;
use crate::stream::{self, EventIds};
use crate::until::Until;
use crate::{notify, verbs};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: &str = "last-event-id";

/// Reads a message of this era: its version, its session, its method and parameters.
pub(super) async fn serve(post: Post<'_>, session: Result<(Session, Tag), NoSession>, said: Message<'_>) -> Next {
    let shared = post.shared;
    let id = id_of(&said);
    if let Err(error) = check_version(post.headers) {
        return Next::Said(json(StatusCode::BAD_REQUEST, error_body(id.as_ref(), &error)));
    }
    if let Message::Request { id, method, params } = &said
        && method == "initialize"
    {
        // An old session in the header does not matter: this opens a new one.
        return Next::Said(initialize(post, id, params));
    }
    let (session, tag) = match session {
        Ok(session) => session,
        Err(why) => return Next::Said(why.response(id.as_ref())),
    };
    match said {
        Message::Request { id, method, params } => {
            let Some(features) = shared.catalogue.features(session.dialect) else {
                return Next::Said(unavailable(Some(&id)));
            };
            let request = v2025::read(session.dialect, &method, &params, features).map_err(Rejection::from);
            let in_meta = v2025::trace(&params);
            let (operation, span, trace) =
                observe(&post, session.dialect, &method, request.as_ref().ok(), in_meta.clone());
            let envelope = Envelope {
                capabilities: session.capabilities,
                tasks: false,
                session_tasks: false,
                log_level: shared.sessions.log_level(tag),
                client: None,
                trace: in_meta,
            };
            let asked = Asked {
                shared: shared.clone(),
                principal: post.principal,
                dialect: session.dialect,
                session: Some((session, tag)),
                envelope,
                id,
                accepts: post.accepts,
                trace,
                until: post.until,
            };
            Next::Ask(Box::new(Ask { asked, request, operation, span, permit: post.permit }))
        }
        Message::Notification { method, params } => {
            if let Notification::Cancelled { request } = v2025::notification(&method, &params) {
                let request = request_digest(tag, &request);
                if !shared.in_flight.cancel(request) {
                    let request = format!("{request:032x}");
                    shared.bus.publish(Hint::Control(Control::RequestCancelled { request }));
                }
            }
            Next::Said(accepted())
        }
        Message::Response { id, answer } => {
            let answered = verbs::respond::respond(shared, &post.principal, id.as_ref(), answer).await;
            Next::Said(match answered {
                Ok(()) => accepted(),
                // Whose answer it was meant to be is not said: to us it is none.
                Err(No::Denied(Rejection { error, .. })) => json(StatusCode::BAD_REQUEST, error_body(None, &error)),
                Err(No::Unavailable) => unavailable(None),
            })
        }
    }
}

fn initialize(post: Post<'_>, id: &RequestId, params: &Params<'_>) -> Response {
    let Post { shared, principal, accepts, permit, .. } = post;
    let operation = Operation::start(shared, "initialize", Dialect::NEWEST.version());
    let Some(features) = shared.catalogue.features(Dialect::NEWEST) else { return unavailable(Some(id)) };
    let said = |body: Bytes, how, permit: OwnedSemaphorePermit| {
        operation.end(how);
        message(accepts, StatusCode::OK, body, permit)
    };
    match v2025::read(Dialect::NEWEST, "initialize", params, features) {
        Ok(longhaul_mcp::Request::Hello(hello)) => {
            let Some((body, session)) = verbs::hello::hello(shared, &principal, id, &hello) else {
                return unavailable(Some(id));
            };
            let mut response = said(body, Ended::Well, permit);
            if let Ok(session) = HeaderValue::try_from(session) {
                response.headers_mut().insert(SESSION, session);
            }
            response
        }
        Ok(_) => unavailable(Some(id)),
        Err(error) => said(error_body(Some(id), &error), Ended::Error(error.code), permit),
    }
}

/// Opens the stream of a session, or goes on with a stream that was lost.
pub(super) async fn get(
    shared: &Arc<Shared>,
    principal: Arc<Principal>,
    until: Until,
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
            let asked = Asked {
                shared: shared.clone(),
                principal,
                dialect: session.dialect,
                envelope: Envelope {
                    capabilities: session.capabilities,
                    log_level: shared.sessions.log_level(tag),
                    ..Envelope::default()
                },
                session: Some((session.clone(), tag)),
                id,
                accepts: Accepts { json: false, stream: true },
                trace: trace_header(headers),
                until,
            };
            let frames = match task {
                Some(task) if shared.config.tasks_legacy => verbs::result::resume(&asked, task, stream, seq).await,
                Some(_) => Err(asked.deny(Refusal::NotFound)),
                None => verbs::inline::resume(&asked, stream, seq),
            };
            match frames {
                Ok(frames) => frames,
                // The stream may answer the request that opened it, with an error too.
                Err(No::Denied(Rejection { error, .. })) => {
                    let body = error_body(Some(&asked.id), &error);
                    let mut ids = EventIds::new(shared, &asked.principal, &session, stream, task, Some(asked.id));
                    let last = ids.last(&body);
                    Box::pin(futures::stream::once(async move { last }))
                }
                Err(No::Unavailable) => return unavailable(None),
            }
        }
        Some(EventId { request: None, .. }) | None => notify::open(shared, principal, session, tag, until),
    };
    stream::response(frames, permit)
}

/// Ends a session.
pub(super) async fn delete(shared: &Arc<Shared>, principal: Arc<Principal>, headers: &HeaderMap) -> Response {
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
            let taken = shared.sessions.end(&*shared.control, &principal, &session, tag).await?;
            shared.bus.publish(Hint::Control(Control::Sessions));
            shared.notifier.close_ended(&shared.sessions);
            Ok::<_, Error>(taken)
        }
    };
    match shared.see_through(ending).await {
        Ok(true) => StatusCode::NO_CONTENT.into_response(),
        Ok(false) => json(StatusCode::TOO_MANY_REQUESTS, error_body(None, &verbs::level::too_many_sessions())),
        Err(_) => unavailable(None),
    }
}

/// The header need not be there: the session knows its version.
fn check_version(headers: &HeaderMap) -> Result<(), RpcError> {
    match single(headers, VERSION) {
        Ok(version) => dialect::check_header(version),
        Err(()) => dialect::check_header(Some("")),
    }
}

/// Why a request belongs to no session.
pub(super) enum NoSession {
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
pub(super) fn session(
    shared: &Shared,
    principal: &Principal,
    headers: &HeaderMap,
) -> Result<(Session, Tag), NoSession> {
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
