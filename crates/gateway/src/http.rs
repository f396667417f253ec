//! HTTP on its way in and out: what can be said before a body is read.

use std::time::Duration;

use axum::body::Body;
use axum::body::HttpBody as _;
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, RETRY_AFTER, TRANSFER_ENCODING,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use longhaul_mcp::errors::{Denial, code};
use longhaul_mcp::{Dialect, Header, Headers, RequestId, RpcError, error_body};
use tokio::sync::OwnedSemaphorePermit;

use crate::Shared;
use crate::auth::Unauthenticated;

/// The most that is read of what was refused, and for how long.
const DISCARD_BYTES_MAX: usize = 16 * 1024 * 1024;
const DISCARD_MAX: Duration = Duration::from_secs(1);
/// After how many seconds a client that met an overload should try again.
const RETRY_AFTER_S: &str = "1";

/// A response whose body is one JSON-RPC message.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A refusal of what was sent, before it was read as a message.
pub(crate) fn refuse(status: StatusCode, message: &'static str) -> Response {
    json(status, error_body(None, &RpcError::new(code::INVALID_REQUEST, message)))
}

/// The answer to a method that `/mcp` does not know, or not in the era of the request.
pub(crate) fn method_not_allowed(is_modern: bool) -> Response {
    let allowed = if is_modern { "POST" } else { "GET, POST, DELETE" };
    with(refuse(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"), ALLOW, allowed)
}

/// The answer to a client that takes no answer in any form that there is.
pub(crate) fn not_acceptable() -> Response {
    refuse(StatusCode::NOT_ACCEPTABLE, "Accept must allow application/json or text/event-stream")
}

/// The answer to a caller that we do not know.
pub(crate) fn unauthenticated(why: Unauthenticated) -> Response {
    let mut response = refuse(StatusCode::UNAUTHORIZED, "A bearer token is needed");
    response.headers_mut().insert(WWW_AUTHENTICATE, why.challenge());
    response
}

/// The answer when something that the answer needs cannot be reached, or there is too much to do.
pub(crate) fn unavailable(id: Option<&RequestId>) -> Response {
    let body = error_body(id, &Denial::Unavailable.reject(Dialect::NEWEST).error);
    with(json(StatusCode::SERVICE_UNAVAILABLE, body), RETRY_AFTER, RETRY_AFTER_S)
}

/// Adds a header that makes the connection end with this response.
pub(crate) fn last(response: Response) -> Response {
    with(response, CONNECTION, "close")
}

fn with(mut response: Response, name: HeaderName, value: &'static str) -> Response {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// The value of a header that may be there once. `Err` if it is there more often, or not text.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

/// The headers of a request, as they are read for MCP.
pub(crate) struct Shown<'a>(pub(crate) &'a HeaderMap);

impl Headers for Shown<'_> {
    fn header(&self, name: &str) -> Header<'_> {
        match single(self.0, name) {
            Ok(None) => Header::Absent,
            Ok(Some(value)) => Header::One(value),
            Err(()) => Header::Bad,
        }
    }
}

/// The forms in which a client takes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accepts {
    pub(crate) json: bool,
    pub(crate) stream: bool,
}

impl Accepts {
    /// Reads `Accept`; without one, anything goes (RFC 9110, section 12.5.1).
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut accepts = Self { json: false, stream: false };
        let mut values = headers.get_all(ACCEPT).iter().peekable();
        if values.peek().is_none() {
            return Self { json: true, stream: true };
        }
        for range in values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let range = parts.next().unwrap_or_default().to_ascii_lowercase();
            let refused = parts.any(|part| {
                let weight = part.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
                weight.is_some_and(|(_, weight)| weight.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0))
            });
            if refused {
                continue;
            }
            accepts.json |= matches!(&*range, "application/json" | "application/*" | "*/*");
            accepts.stream |= matches!(&*range, "text/event-stream" | "text/*" | "*/*");
        }
        accepts
    }

    pub(crate) fn anything(self) -> bool {
        self.json || self.stream
    }
}

/// Whether a body is said to be JSON, and not packed.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let is_json = single(headers, CONTENT_TYPE.as_str()).ok().flatten().is_some_and(|value| {
        value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    });
    is_json && !headers.contains_key(CONTENT_ENCODING)
}

/// A body, and its share of the memory for bodies.
pub(crate) struct Read {
    pub(crate) bytes: Bytes,
    pub(crate) share: Option<OwnedSemaphorePermit>,
}

/// Reads a body: not more than allowed, not longer than allowed, not beyond the memory for bodies.
pub(crate) async fn read(shared: &Shared, headers: &HeaderMap, body: &mut Body) -> Result<Read, Response> {
    let too_large = || last(refuse(StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"));
    let max = shared.config.request_bytes_max;
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > max as u64) {
        return Err(too_large());
    }
    let reading = async {
        let mut share: Option<OwnedSemaphorePermit> = None;
        let mut first = Bytes::new();
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let broken = |_| last(refuse(StatusCode::BAD_REQUEST, "The body is not whole"));
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if first.len().max(whole.len()) + data.len() > max {
                return Err(too_large());
            }
            // A frame is far smaller than 4 GiB; were it not, there would be no room for it either.
            let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let permit = shared.bodies.clone().try_acquire_many_owned(bytes).map_err(|_| last(unavailable(None)))?;
            match &mut share {
                Some(share) => share.merge(permit),
                None => share = Some(permit),
            }
            if first.is_empty() && whole.is_empty() {
                first = data;
            } else {
                if whole.is_empty() {
                    whole.extend_from_slice(&std::mem::take(&mut first));
                }
                whole.extend_from_slice(&data);
            }
        }
        let bytes = if whole.is_empty() { first } else { whole.freeze() };
        Ok(Read { bytes, share })
    };
    match tokio::time::timeout(shared.config.pace.body, reading).await {
        Ok(read) => read,
        Err(_) => Err(last(refuse(StatusCode::REQUEST_TIMEOUT, "The body took too long"))),
    }
}

/// Reads on for a while what was refused unread: a connection that is closed with bytes waiting is reset, and its client
/// may lose the answer. One that waits for "100 Continue" has sent nothing.
pub(crate) async fn discard(headers: &HeaderMap, body: &mut Body) {
    if body.is_end_stream() || headers.contains_key(EXPECT) {
        return;
    }
    let reading = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > DISCARD_BYTES_MAX {
                break;
            }
        }
    };
    // Whoever sends more, or more slowly, may lose the answer.
    let _ = tokio::time::timeout(DISCARD_MAX, reading).await;
}

/// The answer to a body that is no message. Where its length was in doubt, the connection ends: what follows on it may
/// be a part of the same attempt (RFC 9112, section 11.2).
pub(crate) fn malformed(headers: &HeaderMap, body: Bytes) -> Response {
    let response = json(StatusCode::BAD_REQUEST, body);
    if headers.contains_key(TRANSFER_ENCODING) { last(response) } else { response }
}

/// The answer to what needs no answer.
pub(crate) fn accepted() -> Response {
    StatusCode::ACCEPTED.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn accept_names_the_forms_that_a_client_takes() {
        for (values, json, stream) in [
            (&[][..], true, true),
            (&["application/json, text/event-stream"], true, true),
            (&["application/json", "text/event-stream"], true, true),
            (&["*/*"], true, true),
            (&["TEXT/Event-Stream"], false, true),
            (&["application/json;q=0.5"], true, false),
            (&["application/json, text/event-stream;q=0"], true, false),
            (&["application/*"], true, false),
            (&["text/html"], false, false),
            (&[""], false, false),
        ] {
            assert_eq!(Accepts::of(&headers(ACCEPT, values)), Accepts { json, stream }, "{values:?}");
        }
    }

    #[test]
    fn only_plain_json_is_read() {
        for (values, good) in [
            (&["application/json"][..], true),
            (&["application/json; charset=utf-8"], true),
            (&["Application/JSON"], true),
            (&[], false),
            (&["text/plain"], false),
            (&["application/jsonp"], false),
            (&["application/json", "application/json"], false),
        ] {
            assert_eq!(is_json(&headers(CONTENT_TYPE, values)), good, "{values:?}");
        }
        let mut packed = headers(CONTENT_TYPE, &["application/json"]);
        packed.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(!is_json(&packed));
    }
}
