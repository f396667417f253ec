//! What browsers must be told before they let a page of a listed origin talk with us (the CORS protocol of the Fetch
//! standard). Nothing is said to other pages, and credentials are headers that a page sets itself: no cookie ever counts.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};

use crate::endpoint::Edge;

const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, DELETE");
/// The headers that a page may set.
const HEADERS: [&str; 11] = [
    "authorization",
    "content-type",
    "accept",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "mcp-method",
    "mcp-name",
    "traceparent",
    "tracestate",
    "baggage",
];
/// Those of 2026-07-28 that repeat arguments of tools.
const PARAM_HEADERS: &str = "mcp-param-";
/// The headers of an answer that a page may read.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("WWW-Authenticate, Mcp-Session-Id, MCP-Protocol-Version, Retry-After");
/// For how many seconds a browser need not ask again.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");

/// Answers what a browser asks beforehand, and lets pages of listed origins read what others are answered.
pub(crate) async fn cors(State(edge): State<Arc<Edge>>, request: Request<Body>, next: Next) -> Response {
    if !edge.doors.know_pages() {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let page = edge.doors.page(&parts).cloned();
    let is_preflight = parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if page.is_some() && is_preflight {
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed(&parts.headers));
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
        response
    } else {
        next.run(Request::from_parts(parts, body)).await
    };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_name(ORIGIN));
    if let Some(page) = page {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    response
}

/// The headers that a page may set: those that we know, and of those that it asks for what repeats an argument. A browser
/// wants to see each by name.
fn allowed(asked: &HeaderMap) -> HeaderValue {
    let asked = asked.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter().filter_map(|value| value.to_str().ok());
    let params = asked
        .flat_map(|names| names.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| name.starts_with(PARAM_HEADERS) && name.parse::<HeaderName>().is_ok());
    let names: Vec<_> = HEADERS.into_iter().map(str::to_owned).chain(params).collect();
    HeaderValue::try_from(names.join(", ")).expect("invariant: names of headers are visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_may_set_what_we_know_and_what_repeats_an_argument() {
        let mut asked = HeaderMap::new();
        asked.append(ACCESS_CONTROL_REQUEST_HEADERS, HeaderValue::from_static("Mcp-Param-Region, x-internal"));
        asked.append(
            ACCESS_CONTROL_REQUEST_HEADERS,
            HeaderValue::from_static("mcp-param-(c),mcp-param-a b,mcp-param-b"),
        );
        let allowed = allowed(&asked);
        assert_eq!(
            allowed.to_str().unwrap().strip_prefix(&HEADERS.join(", ")),
            Some(", mcp-param-region, mcp-param-b")
        );
    }
}
