//! What a request says of itself, and whether its headers say the same.

use longhaul_core::LogLevel;

use crate::dialect::{Dialect, SUPPORTED_VERSIONS, unsupported};
use crate::era::{Header, Headers};
use crate::errors::{Denial, Rejection, Status, TASKS_EXTENSION};
use crate::json::{self, Object};
use crate::jsonrpc::{Params, RpcError};
use crate::params::{self, invalid};
use crate::request::Envelope;
use crate::v2026::header::decoded;
use crate::v2026::{META_LOG_LEVEL, META_VERSION, VERSION_HEADER};

const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";

/// Reads what a request says of its sender, after the checks of headers and `_meta`, in the order of docs/PROTOCOL.md.
/// What fails them goes with HTTP 400.
pub fn envelope(headers: &dyn Headers, method: &str, params: &Params<'_>) -> Result<Envelope, Rejection> {
    let version = required(headers, VERSION_HEADER, "MCP-Protocol-Version must be there, once, and be text")?;
    let in_method = required(headers, METHOD_HEADER, "Mcp-Method must be there, once, and be text")?;
    let name = name(headers, method)?;

    if in_method != method {
        return Err(mismatch("Mcp-Method does not match the method"));
    }
    if let Some((source, said)) = name
        && params.get(source).and_then(json::string).is_none_or(|named| named != said)
    {
        return Err(mismatch("Mcp-Name does not match what the request names"));
    }

    let meta = params.get("_meta").ok_or_else(|| bad(invalid("_meta is required")))?;
    let meta = Object::read(meta.as_bytes()).ok_or_else(|| bad(invalid("_meta must be an object")))?;
    let version_in_meta = meta
        .get(META_VERSION)
        .and_then(json::string)
        .ok_or_else(|| bad(invalid("_meta must name the protocolVersion, a string")))?;
    let declared = meta
        .get(META_CAPABILITIES)
        .and_then(|declared| Object::read(declared.as_bytes()))
        .ok_or_else(|| bad(invalid("_meta must declare the clientCapabilities, an object")))?;

    if version != version_in_meta {
        return Err(mismatch("MCP-Protocol-Version does not match the protocolVersion in _meta"));
    }
    match Dialect::of_version(version) {
        Some(dialect) if dialect.is_modern() => {}
        // We speak it, but not like this.
        Some(_) => {
            let modern = [Dialect::V2026_07_28.version()];
            return Err(bad(unsupported(version, &modern, "This protocol version begins with initialize")));
        }
        None => return Err(bad(unsupported(version, &SUPPORTED_VERSIONS, "Unsupported protocol version"))),
    }

    let extensions = declared.get("extensions").and_then(|extensions| Object::read(extensions.as_bytes()));
    let client = meta.get(META_CLIENT).and_then(|client| Object::read(client.as_bytes()));
    Ok(Envelope {
        capabilities: params::capabilities(&declared),
        tasks: extensions.is_some_and(|names| names.get(TASKS_EXTENSION).is_some_and(json::is_object)),
        session_tasks: declared.get("tasks").is_some_and(json::is_object),
        // One that is unknown is refused with the parameters, once it is sure that the method is known.
        log_level: log_level(&meta).ok().flatten(),
        client: client.and_then(|client| params::client_name(&client)),
        trace: params::trace(&meta),
    })
}

/// From which level on the sender wants log messages of this request.
pub(super) fn log_level(meta: &Object<'_>) -> Result<Option<LogLevel>, RpcError> {
    let Some(level) = meta.get(META_LOG_LEVEL) else { return Ok(None) };
    let level = json::string(level).and_then(|name| LogLevel::from_name(&name));
    level.map(Some).ok_or_else(|| invalid("the logLevel in _meta is none of RFC 5424"))
}

/// What `Mcp-Name` says, and the parameter that it must match; `None` where it says nothing. Clients of tasks are known to
/// leave it out.
fn name(headers: &dyn Headers, method: &str) -> Result<Option<(&'static str, String)>, Rejection> {
    let (source, is_required) = match method {
        "tools/call" | "prompts/get" => ("name", true),
        "resources/read" => ("uri", true),
        "tasks/get" | "tasks/update" | "tasks/cancel" => ("taskId", false),
        _ => return Ok(None),
    };
    let malformed = "Mcp-Name must be there, once, and be text or its well-formed base64";
    match headers.header(NAME_HEADER).trimmed() {
        Header::Absent if !is_required => Ok(None),
        Header::One(value) => {
            let said = decoded(value).ok_or_else(|| mismatch(malformed))?;
            Ok(Some((source, said.into_owned())))
        }
        Header::Absent | Header::Bad => Err(mismatch(malformed)),
    }
}

fn required<'a>(headers: &'a dyn Headers, name: &str, message: &'static str) -> Result<&'a str, Rejection> {
    match headers.header(name).trimmed() {
        Header::One(value) => Ok(value),
        Header::Absent | Header::Bad => Err(mismatch(message)),
    }
}

fn mismatch(what: &'static str) -> Rejection {
    Denial::BadHeader(what).reject(Dialect::V2026_07_28)
}

fn bad(error: RpcError) -> Rejection {
    Rejection { status: Status::BadRequest, error }
}

#[cfg(test)]
mod tests {
    use longhaul_core::ClientCapabilities;
    use serde_json::Value;

    use super::*;
    use crate::era::tests::Given;
    use crate::jsonrpc::{Message, parse};
    use crate::request::TraceContext;

    /// The envelope of a request whose params have these members besides a good `_meta`, with these headers besides good
    /// ones of version and method.
    fn read(method: &str, members: &str, meta: &str, headers: &[(&str, Option<&str>)]) -> Result<Envelope, Rejection> {
        let meta = format!(
            r#""_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}}{meta}}}"#
        );
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{members}{meta}}}}}"#);
        let mut given = vec![("mcp-protocol-version", Some("2026-07-28")), ("mcp-method", Some(method))];
        given.retain(|(name, _)| headers.iter().all(|(other, _)| other != name));
        given.extend_from_slice(headers);
        with(&body, &given)
    }

    fn with(body: &str, headers: &[(&str, Option<&str>)]) -> Result<Envelope, Rejection> {
        let Ok(Message::Request { method, params, .. }) = parse(body.as_bytes()) else { panic!("{body}") };
        envelope(&Given(headers.to_vec()), &method, &params)
    }

    fn code(result: Result<Envelope, Rejection>) -> Option<i32> {
        result.err().map(|rejection| {
            assert_eq!(rejection.status, Status::BadRequest);
            rejection.error.code
        })
    }

    #[test]
    fn standard_headers_are_compared_letter_by_letter_without_the_space_around_them() {
        for (header, value, expected) in [
            ("mcp-method", Some("server/discover"), None),
            ("mcp-method", Some(" \tserver/discover\t "), None),
            ("mcp-method", Some("SERVER/DISCOVER"), Some(-32020)),
            ("mcp-method", Some(""), Some(-32020)),
            ("mcp-method", Some("=?base64?c2VydmVyL2Rpc2NvdmVy?="), Some(-32020)),
            ("mcp-method", None, Some(-32020)),
            ("mcp-protocol-version", Some(" 2026-07-28"), None),
            ("mcp-protocol-version", Some("2026-7-28"), Some(-32020)),
            ("mcp-protocol-version", None, Some(-32020)),
            // Of no meaning to this method.
            ("mcp-name", Some("anything"), None),
            ("mcp-name", Some("=?base64?!?="), None),
            ("mcp-name", None, None),
        ] {
            assert_eq!(code(read("server/discover", "", "", &[(header, value)])), expected, "{header}: {value:?}");
        }
        let twice = [("mcp-method", Some("server/discover")); 2];
        assert_eq!(code(read("server/discover", "", "", &twice)), Some(-32020));
    }

    #[test]
    fn the_name_header_says_what_the_request_names() {
        let ok = None;
        let no = Some(-32020);
        for (method, members, header, expected) in [
            ("tools/call", r#""name":"foo","#, Some("foo"), ok),
            ("tools/call", r#""name":"foo","#, Some("  foo "), ok),
            ("tools/call", r#""name":"f\u006fo","#, Some("foo"), ok),
            ("tools/call", r#""name":"my-tool_name","#, Some("my-tool_name"), ok),
            ("tools/call", r#""name":"bar","#, Some("foo"), no),
            ("tools/call", r#""name":"Foo","#, Some("foo"), no),
            ("tools/call", r#""name":7,"#, Some("7"), no),
            ("tools/call", r#""uri":"foo","#, Some("foo"), no),
            ("tools/call", r#""name":"foo","#, None, no),
            ("tools/call", r#""name":"","#, Some(""), ok),
            ("prompts/get", r#""name":"foo","#, Some("foo"), ok),
            ("prompts/get", r#""name":"foo","#, None, no),
            ("resources/read", r#""uri":"file:///a%20b?c=1","#, Some("file:///a%20b?c=1"), ok),
            ("resources/read", r#""uri":"a:b","#, Some("a:c"), no),
            ("resources/read", r#""uri":"a:b","#, None, no),
            ("tools/call", r#""name":"Hello","#, Some("=?base64?SGVsbG8=?="), ok),
            ("tools/call", r#""name":"Hello, 世界","#, Some("=?base64?SGVsbG8sIOS4lueVjA==?="), ok),
            ("tools/call", r#""name":" a ","#, Some("=?base64?IGEg?="), ok),
            ("tools/call", r#""name":"Hello","#, Some("=?base64?SGVsbG8?="), no),
            ("tools/call", r#""name":"Hello","#, Some("=?base64?SGVs!!!bG8=?="), no),
            ("tools/call", r#""name":"SGVsbG8=","#, Some("SGVsbG8="), ok),
            ("tools/call", r#""name":"=?base64?SGVsbG8=","#, Some("=?base64?SGVsbG8="), ok),
            ("tools/call", r#""name":"=?BASE64?SGVsbG8=?=","#, Some("=?BASE64?SGVsbG8=?="), ok),
            ("tools/call", r#""name":"Hello","#, Some("=?BASE64?SGVsbG8=?="), no),
            ("tools/call", r#""name":"Région","#, Some("Région"), no),
            // Clients of tasks leave it out (A-11).
            ("tasks/get", r#""taskId":"t","#, Some("t"), ok),
            ("tasks/get", r#""taskId":"t","#, None, ok),
            ("tasks/get", r#""taskId":"t","#, Some("u"), no),
            ("tasks/update", r#""taskId":"t","#, None, ok),
            ("tasks/update", r#""taskId":"t","#, Some("u"), no),
            ("tasks/cancel", r#""taskId":"t","#, None, ok),
            ("tasks/cancel", r#""taskId":"t","#, Some(""), no),
            ("completion/complete", r#""name":"foo","#, Some("bar"), ok),
        ] {
            let header = header.map(|value| ("mcp-name", Some(value)));
            assert_eq!(code(read(method, members, "", header.as_slice())), expected, "{method} {members} {header:?}");
        }
        let bad = [("mcp-name", None)];
        assert_eq!(code(read("tasks/get", r#""taskId":"t","#, "", &bad)), no, "there, but no text");
    }

    #[test]
    fn a_version_that_we_do_not_speak_like_this_is_answered_with_those_that_we_do() {
        let answer = |version: &str| {
            let meta = format!(
                r#""io.modelcontextprotocol/protocolVersion":"{version}","io.modelcontextprotocol/clientCapabilities":{{}}"#
            );
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"_meta":{{{meta}}}}}}}"#);
            let headers = [("mcp-protocol-version", Some(version)), ("mcp-method", Some("ping"))];
            let error = with(&body, &headers).unwrap_err().error;
            assert_eq!(error.code, -32022);
            let data: Value = serde_json::from_slice(&error.data.unwrap()).unwrap();
            assert_eq!(data["requested"], version);
            (data["supported"].clone(), error.message)
        };
        let (supported, _) = answer("2031-01-01");
        assert_eq!(supported, serde_json::json!(SUPPORTED_VERSIONS));
        for version in ["2025-11-25", "2025-06-18"] {
            let (supported, message) = answer(version);
            assert_eq!(supported, serde_json::json!(["2026-07-28"]), "only what can be asked like this");
            assert!(message.contains("initialize"));
        }
    }

    #[test]
    fn an_envelope_says_what_its_sender_can_do() {
        let envelope = |meta: &str| read("server/discover", "", meta, &[]).unwrap();
        assert_eq!(envelope(""), Envelope::default());
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let said = format!(
            r#","io.modelcontextprotocol/clientInfo":{{"name":"cli","version":"4"}},"io.modelcontextprotocol/logLevel":"info","traceparent":"{parent}""#
        );
        let expected = Envelope {
            client: Some("cli".into()),
            log_level: Some(LogLevel::Info),
            trace: TraceContext::new(Some(parent), None, None),
            ..Envelope::default()
        };
        assert_eq!(envelope(&said), expected);
        for ignored in [r#","io.modelcontextprotocol/clientInfo":7"#, r#","io.modelcontextprotocol/logLevel":"loud""#] {
            assert_eq!(envelope(ignored), Envelope::default());
        }

        let declared = |capabilities: &str| {
            let meta = format!(
                r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{capabilities}"#
            );
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"_meta":{{{meta}}}}}}}"#);
            let headers = [("mcp-protocol-version", Some("2026-07-28")), ("mcp-method", Some("ping"))];
            let envelope = with(&body, &headers).unwrap();
            assert_eq!(envelope.session_tasks, capabilities.contains(r#""tasks":{"list""#));
            (envelope.capabilities.bits(), envelope.tasks)
        };
        let form = ClientCapabilities { elicitation_form: true, ..ClientCapabilities::default() }.bits();
        for (capabilities, expected) in [
            ("{}", (0, false)),
            (r#"{"elicitation":{}}"#, (form, false)),
            (r#"{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}"#, (15, false)),
            (r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#, (0, true)),
            (r#"{"extensions":{"io.modelcontextprotocol/tasks":{"x":1},"y":{}}}"#, (0, true)),
            (r#"{"extensions":{"io.modelcontextprotocol/tasks":true}}"#, (0, false)),
            (r#"{"extensions":["io.modelcontextprotocol/tasks"]}"#, (0, false)),
            // That of 2025-11-25 is another.
            (r#"{"tasks":{"list":{},"cancel":{}}}"#, (0, false)),
        ] {
            assert_eq!(declared(capabilities), expected, "{capabilities}");
        }
    }
}
