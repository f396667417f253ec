//! How clients find out where to get a token (RFC 9728).

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::StatusCode;
use serde_json::json;
use url::{Position, Url};

use super::ResourceServer;
use super::jwks::is_loopback;
use crate::http::json as json_response;

/// The path of the endpoint.
const ENDPOINT: &str = "/mcp";
/// Where the metadata of a resource is, before the path of the resource.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The endpoint's one name as a resource (RFC 8707): clients ask for tokens for it.
pub(super) fn resource(public_url: &str) -> Option<String> {
    let url = Url::parse(public_url).ok()?;
    let is_safe = url.scheme() == "https" || url.scheme() == "http" && is_loopback(&url);
    let is_origin = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    (is_safe && is_origin).then(|| format!("{}{ENDPOINT}", &url[..Position::BeforePath]))
}

/// Where the metadata of a resource is.
pub(super) fn url(resource: &str) -> String {
    format!("{}{WELL_KNOWN}{ENDPOINT}", resource.strip_suffix(ENDPOINT).unwrap_or(resource))
}

/// The metadata.
pub(super) fn document<'a>(resource: &str, issuers: impl Iterator<Item = &'a str>, scopes: &[String]) -> Bytes {
    let document = json!({
        "resource": resource,
        "authorization_servers": issuers.collect::<Vec<_>>(),
        "scopes_supported": scopes,
        "bearer_methods_supported": ["header"],
        "resource_name": "Longhaul",
    });
    document.to_string().into()
}

/// Serves the metadata to anybody who asks, at the paths at which clients look.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(server: &Arc<ResourceServer>) -> Router<S> {
    let document = server.metadata.clone();
    let serve = move || {
        let document = document.clone();
        async move { json_response(StatusCode::OK, document) }
    };
    let of_endpoint = format!("{WELL_KNOWN}{ENDPOINT}");
    Router::new().route(WELL_KNOWN, get(serve.clone())).route(&of_endpoint, get(serve))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_has_one_spelling() {
        for (public_url, name) in [
            ("https://mcp.example", "https://mcp.example/mcp"),
            ("HTTPS://MCP.Example:443/", "https://mcp.example/mcp"),
            ("https://mcp.example:8443", "https://mcp.example:8443/mcp"),
            ("http://localhost:8080", "http://localhost:8080/mcp"),
        ] {
            assert_eq!(resource(public_url).as_deref(), Some(name));
        }
        for bad in [
            "mcp.example",
            "http://mcp.example",
            "https://mcp.example/x",
            "https://mcp.example/?a",
            "https://u@mcp.example",
        ] {
            assert_eq!(resource(bad), None, "{bad}");
        }
        assert_eq!(url("https://mcp.example/mcp"), "https://mcp.example/.well-known/oauth-protected-resource/mcp");
    }
}
