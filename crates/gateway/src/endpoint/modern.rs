//! The era in which every request stands for itself: MCP 2026-07-28.

use http::StatusCode;
use longhaul_core::{Target, TaskSupport};
use longhaul_mcp::errors::{Denial, Rejection, code};
use longhaul_mcp::{Call, Dialect, Envelope, Features, Message, Request, RpcError, Wants, error_body, v2026};

use super::{Ask, Asked, Next, Post, observe};
use crate::Shared;
use crate::http::{Shown, accepted, json, unavailable};

const DIALECT: Dialect = Dialect::V2026_07_28;

/// Reads a message of this era: its headers and `_meta`, its method, what its sender can do, and its parameters.
pub(super) fn serve(post: Post<'_>, said: Message<'_>) -> Next {
    let shared = post.shared;
    match said {
        Message::Request { id, method, params } => {
            let headers = Shown(post.headers);
            let envelope = v2026::envelope(&headers, &method, &params);
            let Some(features) = shared.catalogue.features(DIALECT) else {
                return Next::Said(unavailable(Some(&id)));
            };
            let (envelope, request) = match envelope {
                Ok(envelope) => {
                    let request = v2026::read(&method, &params, &envelope, features).and_then(|request| {
                        check_tool(shared, &request, &envelope, features, &headers)?;
                        Ok(request)
                    });
                    (envelope, request)
                }
                Err(rejection) => (Envelope::default(), Err(rejection)),
            };
            let in_meta = envelope.trace.clone();
            let (operation, span, trace) = observe(&post, DIALECT, &method, request.as_ref().ok(), in_meta);
            let asked = Asked {
                shared: shared.clone(),
                principal: post.principal,
                dialect: DIALECT,
                session: None,
                envelope,
                id,
                accepts: post.accepts,
                trace,
                until: post.until,
            };
            Next::Ask(Box::new(Ask { asked, request, operation, span, permit: post.permit }))
        }
        // There is none that we wait for: a client that no longer wants an answer hangs up.
        Message::Notification { .. } => Next::Said(accepted()),
        Message::Response { .. } => {
            let message = "Invalid Request: a server of this version asks nothing that a response could answer";
            let error = RpcError::new(code::INVALID_REQUEST, message);
            Next::Said(json(StatusCode::BAD_REQUEST, error_body(None, &error)))
        }
    }
}

/// What a tool wants of its callers beyond its parameters. A tool that is not there is refused later, with the parameters.
fn check_tool(
    shared: &Shared,
    request: &Request,
    envelope: &Envelope,
    features: Features,
    headers: &Shown<'_>,
) -> Result<(), Rejection> {
    let Request::Call(Call { target: Target::Tool(name), arguments, wants, .. }) = request else { return Ok(()) };
    let offer = shared.catalogue.offer();
    let Some(tool) = offer.as_ref().and_then(|offer| offer.tool(name)) else { return Ok(()) };
    let needs_task = tool.task_support == TaskSupport::Required && features.tasks;
    if needs_task && *wants == Wants::Inline {
        return Err(Denial::TaskRequired.reject(DIALECT));
    }
    let missing = envelope.capabilities.missing(tool.needs);
    if !missing.is_empty() {
        return Err(Denial::MissingCapability(missing).reject(DIALECT));
    }
    tool.headers.check(headers, arguments)
}
