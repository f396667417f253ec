//! What we ask of a server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use longhaul_core::{ClientCapabilities, TraceContext};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::json;
use serde_json::value::RawValue;

use super::{Listing, MODERN_VERSION, Outgoing, message, raw};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// What marks a header's value as Base64 (MCP 2026-07-28, basic/transports/streamable-http, "Value Encoding").
const ENCODED: (&str, &str) = ("=?base64?", "?=");

/// A request, before it has an id: it may be sent more than once.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: &'static str,
    /// What it names, where intermediaries may want to know.
    name: Option<String>,
    params: Vec<(&'static str, Box<RawValue>)>,
    /// Arguments that go into headers too.
    mirrored: HeaderMap,
}

/// What a request says beside its parameters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meta<'a> {
    /// Whether progress is wanted; the request's id is its token.
    pub(crate) progress: bool,
    pub(crate) trace: Option<&'a TraceContext>,
    /// Where there is no session, everything that one would know.
    pub(crate) modern: Option<Modern>,
}

/// What each request of 2026-07-28 says of the client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Modern {
    /// What it can be asked.
    pub(crate) client: ClientCapabilities,
    /// Whether it wants log messages.
    pub(crate) logs: bool,
}

/// What an argument belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reference<'a> {
    Prompt(&'a str),
    Template(&'a str),
}

/// What a subscription is to bring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Listen {
    pub(crate) lists: Vec<Listing>,
    /// The URIs of resources.
    pub(crate) resources: Vec<String>,
}

impl Request {
    /// `tools/call`; `None` if the arguments are no JSON.
    pub(crate) fn tool(name: &str, arguments: &[u8], mirrored: HeaderMap) -> Option<Self> {
        let params = vec![("name", raw(name)), ("arguments", json_text(arguments)?)];
        Some(Self { method: "tools/call", name: Some(name.to_owned()), params, mirrored })
    }

    /// `prompts/get`; `None` if the arguments are no JSON.
    pub(crate) fn prompt(name: &str, arguments: &[u8]) -> Option<Self> {
        let params = vec![("name", raw(name)), ("arguments", json_text(arguments)?)];
        Some(Self { name: Some(name.to_owned()), ..Self::new("prompts/get", params) })
    }

    /// `resources/read`
    pub(crate) fn resource(uri: &str) -> Self {
        Self { name: Some(uri.to_owned()), ..Self::new("resources/read", vec![("uri", raw(uri))]) }
    }

    /// `completion/complete`; the argument and the context are JSON text. `None` if they are no JSON.
    pub(crate) fn complete(reference: Reference<'_>, argument: &[u8], context: Option<&[u8]>) -> Option<Self> {
        let reference = match reference {
            Reference::Prompt(name) => json!({ "type": "ref/prompt", "name": name }),
            Reference::Template(uri) => json!({ "type": "ref/resource", "uri": uri }),
        };
        let mut params = vec![("ref", raw(&reference)), ("argument", json_text(argument)?)];
        if let Some(context) = context {
            params.push(("context", json_text(context)?));
        }
        Some(Self::new("completion/complete", params))
    }

    /// `tools/list` and the like
    pub(crate) fn list(listing: Listing, cursor: Option<&str>) -> Self {
        Self::new(listing.method(), cursor.map(|cursor| ("cursor", raw(cursor))).into_iter().collect())
    }

    /// `resources/subscribe`, of sessions
    pub(crate) fn subscribe(uri: &str) -> Self {
        Self::new("resources/subscribe", vec![("uri", raw(uri))])
    }

    /// `resources/unsubscribe`, of sessions
    pub(crate) fn unsubscribe(uri: &str) -> Self {
        Self::new("resources/unsubscribe", vec![("uri", raw(uri))])
    }

    /// `logging/setLevel`, of sessions: everything, for each caller says which part of it they want.
    pub(crate) fn log_everything() -> Self {
        Self::new("logging/setLevel", vec![("level", raw("debug"))])
    }

    /// `server/discover`, without sessions
    pub(crate) fn discover() -> Self {
        Self::new("server/discover", Vec::new())
    }

    /// `subscriptions/listen`, without sessions
    pub(crate) fn listen(to: &Listen) -> Self {
        let mut filter = serde_json::Map::new();
        for list in &to.lists {
            filter.insert(list.filter().into(), true.into());
        }
        if !to.resources.is_empty() {
            filter.insert("resourceSubscriptions".into(), json!(to.resources));
        }
        Self::new("subscriptions/listen", vec![("notifications", raw(&filter))])
    }

    fn new(method: &'static str, params: Vec<(&'static str, Box<RawValue>)>) -> Self {
        Self { method, name: None, params, mirrored: HeaderMap::new() }
    }

    /// The same once more, with what the server asked for (MCP 2026-07-28, basic/patterns/mrtr).
    pub(crate) fn answered(mut self, answers: &[(String, Box<RawValue>)], state: Option<Box<RawValue>>) -> Self {
        self.params.retain(|(member, _)| !matches!(*member, "inputResponses" | "requestState"));
        if !answers.is_empty() {
            self.params.push(("inputResponses", raw(&Members(answers))));
        }
        self.params.extend(state.map(|state| ("requestState", state)));
        self
    }

    pub(crate) fn method(&self) -> &'static str {
        self.method
    }

    /// The message.
    pub(crate) fn write(&self, id: u64, meta: Meta<'_>) -> Bytes {
        let id = RawValue::from_string(id.to_string()).expect("invariant: an integer is JSON");
        let mut params = self.params.clone();
        let meta = about(&id, meta);
        if !meta.is_empty() {
            params.push(("_meta", raw(&Members(&meta))));
        }
        let params = Members(&params);
        message(&Outgoing::<'_, _, ()> {
            id: Some(&id),
            method: Some(self.method),
            params: Some(&params),
            ..Outgoing::new()
        })
    }

    /// The headers that say the same as the body, without sessions.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = self.mirrored.clone();
        headers.insert(METHOD, HeaderValue::from_static(self.method));
        if let Some(name) = &self.name {
            headers.insert(NAME, header_value(name));
        }
        headers
    }
}

/// The members of `_meta`.
fn about(id: &RawValue, meta: Meta<'_>) -> Vec<(&'static str, Box<RawValue>)> {
    let mut members = Vec::new();
    if let Some(Modern { client, logs }) = meta.modern {
        let info = json!({ "name": "longhaul", "version": env!("CARGO_PKG_VERSION") });
        members.push(("io.modelcontextprotocol/protocolVersion", raw(MODERN_VERSION)));
        members.push(("io.modelcontextprotocol/clientInfo", raw(&info)));
        members.push(("io.modelcontextprotocol/clientCapabilities", raw(&capabilities(client))));
        if logs {
            members.push(("io.modelcontextprotocol/logLevel", raw("debug")));
        }
    }
    if meta.progress {
        members.push(("progressToken", id.to_owned()));
    }
    // SEP-414 spells it without capitals.
    if let Some(TraceContext { traceparent, tracestate, baggage }) = meta.trace {
        let named = [("traceparent", traceparent), ("tracestate", tracestate), ("baggage", baggage)];
        members.extend(named.into_iter().filter_map(|(member, text)| Some((member, raw(text.as_ref()?)))));
    }
    members
}

/// `ClientCapabilities`, of both eras.
pub(super) fn capabilities(client: ClientCapabilities) -> serde_json::Value {
    let mut members = serde_json::Map::new();
    if client.elicitation_form || client.elicitation_url {
        let mut modes = serde_json::Map::new();
        for (mode, is_there) in [("form", client.elicitation_form), ("url", client.elicitation_url)] {
            if is_there {
                modes.insert(mode.into(), json!({}));
            }
        }
        members.insert("elicitation".into(), modes.into());
    }
    for (member, is_there) in [("sampling", client.sampling), ("roots", client.roots)] {
        if is_there {
            members.insert(member.into(), json!({}));
        }
    }
    members.into()
}

/// Text as the value of a header that intermediaries may read.
pub(super) fn header_value(text: &str) -> HeaderValue {
    let is_plain = text.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
        && text.trim_matches([' ', '\t']).len() == text.len()
        && !(text.starts_with(ENCODED.0) && text.ends_with(ENCODED.1));
    let encoded = || format!("{}{}{}", ENCODED.0, STANDARD.encode(text), ENCODED.1);
    let value = if is_plain { HeaderValue::from_str(text) } else { HeaderValue::from_str(&encoded()) };
    value.expect("invariant: visible ASCII is a header's value")
}

fn json_text(json: &[u8]) -> Option<Box<RawValue>> {
    serde_json::from_slice(json).ok()
}

/// Members of an object, in their order.
struct Members<'a, K>(&'a [(K, Box<RawValue>)]);

impl<K: Serialize> Serialize for Members<'_, K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (member, value) in self.0 {
            map.serialize_entry(member, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sent_as_they_came_on_one_line() {
        let trace = TraceContext {
            traceparent: Some("00-1".into()),
            tracestate: Some("a=b".into()),
            baggage: Some("k=v".into()),
        };
        let meta = Meta { progress: true, trace: Some(&trace), modern: None };
        let arguments = b"{\n \"n\": 123456789012345678901234567890,\r\n \"z\": 1e2 }";
        let sent = Request::tool("t", arguments, HeaderMap::new()).unwrap().write(3, meta);
        let expected = concat!(
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"t","arguments":{  "n": 123456789012345678901234567890,   "z": 1e2 },"#,
            r#""_meta":{"progressToken":3,"traceparent":"00-1","tracestate":"a=b","baggage":"k=v"}}}"#
        );
        assert_eq!(sent, expected);
        assert!(Request::tool("t", b"{} , {}", HeaderMap::new()).is_none());
    }

    #[test]
    fn a_request_without_a_session_says_everything_itself() {
        let client = ClientCapabilities { elicitation_url: true, roots: true, ..ClientCapabilities::default() };
        let meta = Meta { modern: Some(Modern { client, logs: true }), ..Meta::default() };
        let request = Request::resource("a://é");
        let sent: serde_json::Value = serde_json::from_slice(&request.write(3, meta)).unwrap();
        assert_eq!(
            sent["params"],
            json!({ "uri": "a://é", "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": { "name": "longhaul", "version": env!("CARGO_PKG_VERSION") },
                "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "url": {} }, "roots": {} },
                "io.modelcontextprotocol/logLevel": "debug",
            } })
        );
        let headers = request.headers();
        assert_eq!(headers["mcp-method"], "resources/read");
        assert_eq!(headers["mcp-name"], "=?base64?YTovL8Op?=");
    }

    #[test]
    fn a_retry_carries_answers_and_the_state_as_it_came() {
        let state = RawValue::from_string(r#""a\u002db""#.into()).unwrap();
        let answer = RawValue::from_string(r#"{"action":"accept","content":{"n":1e2}}"#.into()).unwrap();
        let first = Request::tool("t", b"{}", HeaderMap::new()).unwrap();
        let again = first.answered(&[("k".into(), answer)], Some(state)).write(4, Meta::default());
        let expected = r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"t","arguments":{},"inputResponses":{"k":{"action":"accept","content":{"n":1e2}}},"requestState":"a\u002db"}}"#;
        assert_eq!(again, expected);
    }

    #[test]
    fn header_values_are_plain_where_they_can_be() {
        for (text, value) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(header_value(text), value);
        }
    }
}
