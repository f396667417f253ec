//! The client's half of MCP 2025-11-25, as far as wrapping a server needs it: bytes in, values out.
//!
//! What an upstream server says about its tools and results is cut out of its messages as text and never parsed, so
//! that unknown members, the order of keys and the digits of numbers stay as they came.

use std::borrow::Cow;

use bytes::Bytes;
use longhaul_core::{CallError, Progress};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The revision that is offered.
pub(crate) const VERSION: &str = "2025-11-25";
/// Those that a server may choose; for tools they are the same.
const VERSIONS: [&str; 4] = [VERSION, "2025-06-18", "2025-03-26", "2024-11-05"];

/// JSON-RPC's code for a fault on the server's side.
pub(crate) const INTERNAL_ERROR: i32 = -32603;
const METHOD_NOT_FOUND: i32 = -32601;

/// How a request was answered: with the text of its result, or an error.
pub(crate) type Answer = Result<Bytes, CallError>;

/// A message from a server.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    /// An answer to one of our requests; an error need not say to which.
    Answer { id: Option<u64>, answer: Answer },
    /// How far a call is.
    Progress { id: u64, progress: Progress },
    /// The list of tools is no longer what it was.
    ToolsChanged,
    /// A request of the server's, and what it is answered.
    Request { reply: Bytes },
    /// Nothing to us.
    Other,
}

/// What a server says of itself.
#[derive(Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) version: String,
    pub(crate) has_tools: bool,
}

/// A page of tools, and where the next one starts.
pub(crate) struct Page {
    pub(crate) tools: Vec<Bytes>,
    pub(crate) next: Option<String>,
}

/// A tool on a page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Listed {
    /// Its name upstream.
    pub(crate) name: String,
    /// The whole of it, as it came.
    pub(crate) definition: Bytes,
    /// It can only be called as a task, of the upstream server.
    pub(crate) needs_task: bool,
}

/// `initialize`
pub(crate) fn hello(id: u64) -> Bytes {
    let info = serde_json::json!({ "name": "longhaul", "version": env!("CARGO_PKG_VERSION") });
    let params = serde_json::json!({ "protocolVersion": VERSION, "capabilities": {}, "clientInfo": info });
    request(id, "initialize", &params)
}

/// `notifications/initialized`
pub(crate) fn initialized() -> Bytes {
    message(&Outgoing { method: Some("notifications/initialized"), ..Outgoing::new() })
}

/// `tools/list`
pub(crate) fn list(id: u64, cursor: Option<&str>) -> Bytes {
    #[derive(Serialize)]
    struct Params<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<&'a str>,
    }
    request(id, "tools/list", &Params { cursor })
}

/// `tools/call`, whose progress token is its id; `None` if the arguments are no JSON.
pub(crate) fn call(id: u64, tool: &str, arguments: &[u8], traceparent: Option<&str>) -> Option<Bytes> {
    #[derive(Serialize)]
    struct Params<'a> {
        name: &'a str,
        arguments: &'a RawValue,
        _meta: Meta<'a>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta<'a> {
        progress_token: u64,
        // SEP-414 spells it without capitals.
        #[serde(skip_serializing_if = "Option::is_none")]
        traceparent: Option<&'a str>,
    }
    let arguments = serde_json::from_slice(arguments).ok()?;
    let meta = Meta { progress_token: id, traceparent };
    Some(request(id, "tools/call", &Params { name: tool, arguments, _meta: meta }))
}

/// `notifications/cancelled`
pub(crate) fn cancelled(id: u64) -> Bytes {
    let params = serde_json::json!({ "requestId": id, "reason": "no longer wanted" });
    message(&Outgoing { method: Some("notifications/cancelled"), params: Some(&params), ..Outgoing::new() })
}

/// Reads a message; `None` if it is none.
pub(crate) fn read(bytes: &Bytes) -> Option<Incoming> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow, default)]
        id: Option<&'a RawValue>,
        #[serde(borrow, default)]
        method: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        params: Option<&'a RawValue>,
        #[serde(borrow, default)]
        result: Option<&'a RawValue>,
        #[serde(borrow, default)]
        error: Option<&'a RawValue>,
    }
    let Envelope { id, method, params, result, error } = serde_json::from_slice(bytes).ok()?;
    let our_id = id.and_then(|id| id.get().parse().ok());
    Some(match (method.as_deref(), result, error) {
        (None, Some(result), None) => {
            Incoming::Answer { id: our_id, answer: Ok(bytes.slice_ref(result.get().as_bytes())) }
        }
        (None, None, Some(error)) => Incoming::Answer { id: our_id, answer: Err(read_error(bytes, error)) },
        (None, ..) => return None,
        (Some(method), ..) => match (id, method) {
            (Some(id), "ping") => Incoming::Request { reply: reply(id, Ok(())) },
            (Some(id), _) => Incoming::Request { reply: reply(id, Err("not supported")) },
            (None, "notifications/progress") => params.and_then(read_progress).unwrap_or(Incoming::Other),
            (None, "notifications/tools/list_changed") => Incoming::ToolsChanged,
            (None, _) => Incoming::Other,
        },
    })
}

/// Reads the result of `initialize`; the error is a sentence about the server.
pub(crate) fn read_hello(result: &[u8]) -> Result<Hello, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        protocol_version: String,
        #[serde(borrow)]
        capabilities: Capabilities<'a>,
    }
    #[derive(Deserialize)]
    struct Capabilities<'a> {
        #[serde(borrow, default)]
        tools: Option<&'a RawValue>,
    }
    let hello: Members<'_> = serde_json::from_slice(result).map_err(|_| "does not introduce itself as MCP asks")?;
    if !VERSIONS.contains(&&*hello.protocol_version) {
        let version = longhaul_core::limits::cut(&hello.protocol_version, 32);
        return Err(format!("speaks MCP {version:?}, which we do not"));
    }
    Ok(Hello { version: hello.protocol_version, has_tools: hello.capabilities.tools.is_some() })
}

/// Reads the result of `tools/list`.
pub(crate) fn read_page(result: &Bytes) -> Option<Page> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        #[serde(borrow)]
        tools: Vec<&'a RawValue>,
        #[serde(default)]
        next_cursor: Option<String>,
    }
    let page: Members<'_> = serde_json::from_slice(result).ok()?;
    let tools = page.tools.iter().map(|tool| result.slice_ref(tool.get().as_bytes())).collect();
    Some(Page { tools, next: page.next_cursor })
}

/// Reads a tool.
pub(crate) fn read_tool(definition: Bytes) -> Option<Listed> {
    #[derive(Deserialize)]
    struct Members<'a> {
        name: String,
        #[serde(borrow, default)]
        execution: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Execution {
        task_support: String,
    }
    let Members { name, execution } = serde_json::from_slice(&definition).ok()?;
    let execution = execution.and_then(|execution| serde_json::from_str::<Execution>(execution.get()).ok());
    let needs_task = execution.is_some_and(|execution| execution.task_support == "required");
    Some(Listed { name, definition, needs_task })
}

/// The id in an answer that is too long to be read, from its first and last bytes. It is found only where it must be
/// the answer's own: as the first member, but for the version, or as the last.
pub(crate) fn id_of_oversized(head: &[u8], tail: &[u8]) -> Option<u64> {
    const JSONRPC: &str = r#""jsonrpc":"2.0""#;
    let bare = |bytes: &[u8]| -> String {
        String::from_utf8_lossy(bytes).chars().filter(|character| !character.is_ascii_whitespace()).collect()
    };
    let number = |text: &str, starts: fn(&str) -> Option<&str>| starts(text).and_then(|digits| digits.parse().ok());
    let (head, tail) = (bare(head), bare(tail));
    let first = head.strip_prefix('{').and_then(|head| {
        let head = head.strip_prefix(JSONRPC).and_then(|rest| rest.strip_prefix(',')).unwrap_or(head);
        number(head, |head| Some(head.strip_prefix(r#""id":"#)?.split_once(',')?.0))
    });
    first.or_else(|| {
        let tail = tail.strip_suffix('}')?;
        let tail = tail.strip_suffix(JSONRPC).and_then(|rest| rest.strip_suffix(',')).unwrap_or(tail);
        number(tail, |tail| Some(tail.rsplit_once(r#","id":"#)?.1))
    })
}

#[derive(Serialize)]
struct Outgoing<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a P>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<serde_json::Value>,
}

impl Outgoing<'_, serde_json::Value> {
    fn new() -> Self {
        Self { jsonrpc: "2.0", id: None, method: None, params: None, result: None, error: None }
    }
}

fn request(id: u64, method: &str, params: &impl Serialize) -> Bytes {
    let id = RawValue::from_string(id.to_string()).expect("invariant: an integer is JSON");
    message(&Outgoing {
        jsonrpc: "2.0",
        id: Some(&id),
        method: Some(method),
        params: Some(params),
        result: None,
        error: None,
    })
}

fn reply(id: &RawValue, answer: Result<(), &str>) -> Bytes {
    let error = |sentence| serde_json::json!({ "code": METHOD_NOT_FOUND, "message": sentence });
    message(&Outgoing {
        id: Some(id),
        result: answer.is_ok().then(|| serde_json::json!({})),
        error: answer.err().map(error),
        ..Outgoing::new()
    })
}

/// The text of a message, on one line: over standard input a line break ends it. Where JSON has one, it is space.
fn message(message: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(message).expect("invariant: our own values have string keys and go to memory");
    for byte in &mut text {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    text.into()
}

fn read_error(bytes: &Bytes, error: &RawValue) -> CallError {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow)]
        code: &'a RawValue,
        #[serde(default)]
        message: String,
        #[serde(borrow, default)]
        data: Option<&'a RawValue>,
    }
    match serde_json::from_str::<Members<'_>>(error.get()) {
        Ok(Members { code, message, data }) => CallError {
            code: code.get().parse().unwrap_or(INTERNAL_ERROR),
            message,
            data: data.map(|data| bytes.slice_ref(data.get().as_bytes())),
        },
        Err(_) => {
            CallError { code: INTERNAL_ERROR, message: "the upstream server failed in its own way".into(), data: None }
        }
    }
}

fn read_progress(params: &RawValue) -> Option<Incoming> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        #[serde(borrow)]
        progress_token: &'a RawValue,
        progress: f64,
        #[serde(default)]
        total: Option<f64>,
        #[serde(default)]
        message: Option<String>,
    }
    let Members { progress_token, progress, total, message } = serde_json::from_str(params.get()).ok()?;
    let id = progress_token.get().parse().ok()?;
    Some(Incoming::Progress { id, progress: Progress { progress, total, message } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_errors_keep_every_byte() {
        let result = r#"{ "content":[], "z":1e2, "a":-0, "n":123456789012345678901234567890, "x":{"y":[1.10]} }"#;
        let text = format!(r#"{{"jsonrpc":"2.0","result":{result},"id":7}}"#);
        let Some(Incoming::Answer { id, answer }) = read(&text.into()) else { panic!() };
        assert_eq!((id, answer), (Some(7), Ok(Bytes::from(result))));

        let data = r#"{"n":123456789012345678901234567890}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":-5,"message":"no","data":{data},"more":1}}}}"#);
        let Some(Incoming::Answer { answer: Err(error), .. }) = read(&text.into()) else { panic!() };
        assert_eq!(error, CallError { code: -5, message: "no".into(), data: Some(data.into()) });
    }

    #[test]
    fn a_page_of_tools_is_cut_into_their_texts() {
        let tool = r#"{ "title":"T", "name" : "a\u002db" ,"inputSchema":{"type":"object","maximum":1e2,"x-n":-0}, "new":1.0 }"#;
        let page = read_page(&format!(r#"{{"tools":[ {tool} , 1],"nextCursor":"n","more":0}}"#).into()).unwrap();
        assert_eq!(page.tools, [tool, "1"]);
        assert_eq!(page.next.as_deref(), Some("n"));

        let listed = read_tool(page.tools[0].clone()).unwrap();
        assert_eq!(listed, Listed { name: "a-b".into(), definition: tool.into(), needs_task: false });
        assert!(read_tool(r#"{"name":"a","execution":{"taskSupport":"required"}}"#.into()).unwrap().needs_task);
        for bad in ["1", r#"{"title":"a"}"#, r#"{"name":1}"#, "[]", r#"{"name":"a","name":"b"}"#] {
            assert_eq!(read_tool(bad.into()), None);
        }
    }

    #[test]
    fn arguments_are_sent_as_they_came_on_one_line() {
        let sent = call(3, "t", b"{\n \"n\": 123456789012345678901234567890,\r\n \"z\": 1e2 }", Some("00-1")).unwrap();
        let expected = concat!(
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"t","arguments":{  "n": 123456789012345678901234567890,   "z": 1e2 },"#,
            r#""_meta":{"progressToken":3,"traceparent":"00-1"}}}"#
        );
        assert_eq!(sent, expected);
        assert_eq!(call(3, "t", b"{} , {}", None), None);
    }

    #[test]
    fn a_servers_requests_are_declined_and_its_pings_answered() {
        for (asked, replied) in [
            (r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#, r#"{"jsonrpc":"2.0","id":"p","result":{}}"#),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"roots/list","params":{}}"#,
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"not supported"}}"#,
            ),
        ] {
            assert_eq!(read(&asked.into()), Some(Incoming::Request { reply: replied.into() }));
        }
    }

    #[test]
    fn other_messages_do_no_harm() {
        let method = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
        assert_eq!(read(&method("notifications/tools/list_changed").into()), Some(Incoming::ToolsChanged));
        for odd in ["notifications/message", "notifications/progress", "x"] {
            assert_eq!(read(&method(odd).into()), Some(Incoming::Other));
        }
        for bad in ["", "starting…", "[]", "{}", r#"{"id":1}"#, r#"{"id":1,"result":{},"error":{}}"#] {
            assert_eq!(read(&bad.into()), None, "{bad}");
        }
    }

    #[test]
    fn only_the_answers_own_id_is_taken_from_its_ends() {
        for (head, tail, id) in [
            (r#"{"jsonrpc": "2.0", "id": 12, "result": {"#, "aaa\"}}", Some(12)),
            (r#"{"id":12,"result""#, "aaa\"}}", Some(12)),
            (r#"{"result":{"content":["#, r#"aaa"},"jsonrpc":"2.0","id":12}"#, Some(12)),
            (r#"{"result":{"content":["#, r#"aaa"},"id":12,"jsonrpc":"2.0"}"#, Some(12)),
            (r#"{"result":{"content":["#, r#"aaa","id":12}}"#, None),
            (r#"{"result":{"id":12,"#, "aaa\"}}", None),
            (r#"{"id":"12","result":{"#, r#"aaa"}}"#, None),
        ] {
            assert_eq!(id_of_oversized(head.as_bytes(), tail.as_bytes()), id, "{head} … {tail}");
        }
    }

    #[test]
    fn a_server_of_another_age_is_refused_by_name() {
        let hello = |version: &str| {
            read_hello(format!(r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{}}}}}}"#).as_bytes())
        };
        assert_eq!(hello("2025-06-18"), Ok(Hello { version: "2025-06-18".into(), has_tools: true }));
        assert!(hello("1999-01-01").unwrap_err().contains("1999-01-01"));
    }
}
