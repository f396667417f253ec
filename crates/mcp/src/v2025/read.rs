//! Methods and their parameters into neutral requests. Unknown members are ignored everywhere: real clients repeat
//! some where they do not belong.

use std::borrow::Cow;

use bytes::Bytes;
use longhaul_core::TtlWish;
use longhaul_core::limits::{PROGRESS_TOKEN_BYTES_MAX, TOOL_NAME_BYTES_MAX, cut};

use crate::dialect::Dialect;
use crate::errors::{Denial, code};
use crate::json::{self, Object};
use crate::jsonrpc::{Params, RequestId, RpcError};
use crate::request::{Call, ClientCapabilities, Hello, Notification, Request, TaskRef, TraceContext, Wants};

/// The longest client name kept, in bytes.
const CLIENT_NAME_BYTES_MAX: usize = 128;

/// Reads a request. Where tasks are off, or the dialect does not know them, `tasks/*` are unknown methods and
/// `params.task` is ignored (MCP 2025-11-25, basic/utilities/tasks, "Task Support and Handling").
pub fn read(dialect: Dialect, method: &str, params: &Params<'_>, tasks_enabled: bool) -> Result<Request, RpcError> {
    let tasks = tasks_enabled && dialect.has_tasks();
    match method {
        "initialize" => hello(params).map(Request::Hello),
        "ping" => Ok(Request::Ping),
        "tools/list" => Ok(Request::Tools { cursor: cursor(params)? }),
        "tools/call" => call(params, tasks).map(Request::Call),
        "tasks/get" if tasks => Ok(Request::Get(task_ref(params)?)),
        "tasks/result" if tasks => Ok(Request::Result(task_ref(params)?)),
        "tasks/list" if tasks => Ok(Request::List { cursor: cursor(params)? }),
        "tasks/cancel" if tasks => Ok(Request::Cancel(task_ref(params)?)),
        _ => Err(RpcError::new(code::METHOD_NOT_FOUND, "Method not found")),
    }
}

/// Reads a notification. None can be refused.
pub fn notification(method: &str, params: &Params<'_>) -> Notification {
    match method {
        "notifications/initialized" => Notification::Initialized,
        "notifications/cancelled" => match params.get("requestId").and_then(RequestId::from_json) {
            Some(request) => Notification::Cancelled { request },
            None => Notification::Other,
        },
        _ => Notification::Other,
    }
}

/// The trace context in the `_meta` of any request (SEP-414).
pub fn trace(params: &Params<'_>) -> TraceContext {
    params.get("_meta").and_then(|meta| Object::read(meta.as_bytes())).map(|meta| trace_in(&meta)).unwrap_or_default()
}

fn hello(params: &Params<'_>) -> Result<Hello, RpcError> {
    let version = params
        .get("protocolVersion")
        .and_then(json::string)
        .ok_or_else(|| invalid("protocolVersion must be a string"))?;
    let capabilities = object(params, "capabilities")?;
    let client = object(params, "clientInfo")?;
    let client = client.get("name").and_then(json::string);
    Ok(Hello {
        version: version.into_owned(),
        capabilities: capabilities_in(&capabilities),
        client: client.map(|name| cut(&name, CLIENT_NAME_BYTES_MAX).to_owned()),
    })
}

fn capabilities_in(declared: &Object<'_>) -> ClientCapabilities {
    let elicitation = declared.get("elicitation").and_then(|value| Object::read(value.as_bytes()));
    let mode = |name| elicitation.as_ref().is_some_and(|modes| modes.get(name).is_some());
    ClientCapabilities {
        // `elicitation: {}` means forms only (MCP 2025-11-25, client/elicitation, "Capabilities").
        elicitation_form: mode("form") || elicitation.as_ref().is_some_and(|modes| modes.fields.is_empty()),
        elicitation_url: mode("url"),
        sampling: declared.get("sampling").is_some_and(json::is_object),
        roots: declared.get("roots").is_some_and(json::is_object),
    }
}

fn call(params: &Params<'_>, tasks: bool) -> Result<Call, RpcError> {
    let tool = params.get("name").and_then(json::string).ok_or_else(|| invalid("name must be a string"))?;
    if tool.len() > TOOL_NAME_BYTES_MAX {
        return Err(Denial::UnknownTool(cut(&tool, TOOL_NAME_BYTES_MAX)).v2025());
    }
    let arguments = match params.get("arguments") {
        None => Bytes::from_static(b"{}"),
        Some(arguments) if json::is_object(arguments) => Bytes::copy_from_slice(arguments.as_bytes()),
        Some(_) => return Err(invalid("arguments must be an object")),
    };
    let wants = match params.get("task") {
        Some(_) if tasks => Wants::Task(ttl(&object(params, "task")?)?),
        Some(_) | None => Wants::Inline,
    };
    let meta = object(params, "_meta")?;
    Ok(Call {
        tool: tool.into_owned(),
        arguments,
        wants,
        progress_token: progress_token(&meta)?,
        trace: trace_in(&meta),
    })
}

/// A whole number of milliseconds, however it is written; more than a machine can count is as long as it can.
fn ttl(task: &Object<'_>) -> Result<TtlWish, RpcError> {
    let refused = || invalid("task.ttl must be a whole number of milliseconds, or null");
    match task.get("ttl") {
        None => Ok(TtlWish::Unsaid),
        Some("null") => Ok(TtlWish::Longest),
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(TtlWish::Ms(number.parse().unwrap_or(u64::MAX)))
        }
        Some(other) => match other.parse::<f64>() {
            Ok(ms) if ms >= 0.0 && ms.fract() == 0.0 => Ok(TtlWish::Ms(ms as u64)),
            Ok(_) | Err(_) => Err(refused()),
        },
    }
}

fn progress_token(meta: &Object<'_>) -> Result<Option<Bytes>, RpcError> {
    match meta.get("progressToken") {
        None => Ok(None),
        Some(token) if token.len() > PROGRESS_TOKEN_BYTES_MAX => Err(invalid("_meta.progressToken is too long")),
        Some(token) if token.starts_with('"') || json::is_integer(token) => {
            Ok(Some(Bytes::copy_from_slice(token.as_bytes())))
        }
        Some(_) => Err(invalid("_meta.progressToken must be a string or an integer")),
    }
}

fn trace_in(meta: &Object<'_>) -> TraceContext {
    let text = |name| meta.get(name).and_then(json::string);
    TraceContext::new(text("traceparent").as_deref(), text("tracestate").as_deref(), text("baggage").as_deref())
}

fn task_ref(params: &Params<'_>) -> Result<TaskRef, RpcError> {
    let id = params.get("taskId").and_then(json::string).ok_or_else(|| invalid("taskId must be a string"))?;
    Ok(TaskRef { id: id.parse().ok() })
}

fn cursor(params: &Params<'_>) -> Result<Option<String>, RpcError> {
    match params.get("cursor").map(json::string) {
        None => Ok(None),
        Some(Some(cursor)) if cursor.len() <= crate::seal::TOKEN_BYTES_MAX => Ok(Some(cursor.into_owned())),
        Some(_) => Err(Denial::BadCursor.v2025()),
    }
}

/// An object in `params`; an empty one if it is absent.
fn object<'a>(params: &Params<'a>, name: &'static str) -> Result<Object<'a>, RpcError> {
    let text = params.get(name).unwrap_or("{}");
    Object::read(text.as_bytes()).ok_or_else(|| invalid(format!("{name} must be an object")))
}

fn invalid(what: impl Into<Cow<'static, str>>) -> RpcError {
    RpcError::new(code::INVALID_PARAMS, format!("Invalid params: {}", what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::{Message, parse};

    const NEW: Dialect = Dialect::V2025_11_25;
    const OLD: Dialect = Dialect::V2025_06_18;

    /// Runs `check` on the params of a message.
    fn with_params<T>(params: &str, check: impl FnOnce(&Params<'_>) -> T) -> T {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
        match parse(body.as_bytes()).unwrap() {
            Message::Notification { params, .. } => check(&params),
            other => panic!("{other:?}"),
        }
    }

    fn read_in(dialect: Dialect, tasks: bool, method: &str, params: &str) -> Result<Request, RpcError> {
        with_params(params, |params| read(dialect, method, params, tasks))
    }

    fn call_of(params: &str) -> Result<Call, RpcError> {
        match read_in(NEW, true, "tools/call", params)? {
            Request::Call(call) => Ok(call),
            other => panic!("{other:?}"),
        }
    }

    fn refused(method: &str, params: &str) -> (i32, String) {
        let error = read_in(NEW, true, method, params).unwrap_err();
        (error.code, error.message.into_owned())
    }

    #[test]
    fn where_tasks_are_off_their_methods_are_unknown_and_the_wish_for_one_is_ignored() {
        let id = TaskRef { id: Some(longhaul_core::TaskId::from_random(0)) };
        let params = r#"{"taskId":"aaaaaaaaaaaaaaaaaaaaaaaaaa","task":{"ttl":1}}"#;
        for (method, request) in [
            ("tasks/get", Request::Get(id)),
            ("tasks/result", Request::Result(id)),
            ("tasks/list", Request::List { cursor: None }),
            ("tasks/cancel", Request::Cancel(id)),
        ] {
            assert_eq!(read_in(NEW, true, method, params), Ok(request));
            for (dialect, tasks) in [(NEW, false), (OLD, true), (OLD, false)] {
                assert_eq!(read_in(dialect, tasks, method, params).unwrap_err().code, -32601, "{method}");
            }
        }
        for task in [r#"{"ttl":5}"#, "7", r#"{"ttl":"nonsense"}"#] {
            let params = format!(r#"{{"name":"x","task":{task}}}"#);
            for (dialect, tasks) in [(NEW, false), (OLD, true), (OLD, false)] {
                match read_in(dialect, tasks, "tools/call", &params) {
                    Ok(Request::Call(call)) => assert_eq!(call.wants, Wants::Inline),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_method_of_no_one_is_unknown() {
        for method in [
            "",
            "tasks/destroy",
            "Tools/List",
            "tasks/update",
            "logging/setLevel",
            "server/discover",
            "notifications/initialized",
        ] {
            assert_eq!(refused(method, "{}"), (-32601, "Method not found".to_owned()), "{method}");
        }
    }

    #[test]
    fn a_time_to_live_is_a_whole_number_of_milliseconds_or_null() {
        for (task, wish) in [
            ("{}", TtlWish::Unsaid),
            (r#"{"x":[]}"#, TtlWish::Unsaid),
            (r#"{"ttl":null}"#, TtlWish::Longest),
            (r#"{"ttl":0}"#, TtlWish::Ms(0)),
            (r#"{"ttl":-0}"#, TtlWish::Ms(0)),
            (r#"{"ttl":900000}"#, TtlWish::Ms(900_000)),
            (r#"{"ttl":900000.0}"#, TtlWish::Ms(900_000)),
            (r#"{"ttl":9e5}"#, TtlWish::Ms(900_000)),
            (r#"{"ttl":1e18}"#, TtlWish::Ms(1_000_000_000_000_000_000)),
            (r#"{"ttl":1e300}"#, TtlWish::Ms(u64::MAX)),
            (r#"{"ttl":99999999999999999999999}"#, TtlWish::Ms(u64::MAX)),
        ] {
            let call = call_of(&format!(r#"{{"name":"x","task":{task}}}"#)).unwrap();
            assert_eq!(call.wants, Wants::Task(wish), "{task}");
        }
        for bad in [
            r#"{"ttl":-1}"#,
            r#"{"ttl":1.5}"#,
            r#"{"ttl":"60000"}"#,
            r#"{"ttl":true}"#,
            r#"{"ttl":[]}"#,
            r#"{"ttl":{}}"#,
            r#"{"ttl":"NaN"}"#,
            r#"{"ttl":-1e18}"#,
            "null",
            "7",
            "[]",
            r#""x""#,
            "true",
        ] {
            assert_eq!(refused("tools/call", &format!(r#"{{"name":"x","task":{bad}}}"#)).0, -32602, "{bad}");
        }
    }

    #[test]
    fn arguments_are_kept_as_they_came() {
        let written = r#"{ "z":1e2,"a":123456789012345678901234567890,"\u0062":"x\u0000y", "n":-0 }"#;
        let call = call_of(&format!(r#"{{"arguments": {written} ,"name":"x"}}"#)).unwrap();
        assert_eq!(call.arguments, written);
        assert_eq!(call.wants, Wants::Inline);
        assert_eq!(call_of(r#"{"name":"x"}"#).unwrap().arguments, "{}");
        for bad in ["null", "[]", "7", r#""{}""#] {
            assert_eq!(refused("tools/call", &format!(r#"{{"name":"x","arguments":{bad}}}"#)).0, -32602, "{bad}");
        }
    }

    #[test]
    fn a_call_names_its_tool() {
        let name = "a".repeat(TOOL_NAME_BYTES_MAX);
        assert_eq!(call_of(&format!(r#"{{"name":"{name}"}}"#)).unwrap().tool, name);
        assert_eq!(call_of(r#"{"name":"\u0061.b"}"#).unwrap().tool, "a.b");
        let (code, message) = refused("tools/call", &format!(r#"{{"name":"{name}b"}}"#));
        assert_eq!((code, message), (-32602, format!("Unknown tool: {name}")));
        for bad in ["{}", r#"{"name":null}"#, r#"{"name":7}"#, r#"{"name":["x"]}"#] {
            assert_eq!(refused("tools/call", bad), (-32602, "Invalid params: name must be a string".to_owned()));
        }
    }

    #[test]
    fn a_progress_token_is_a_string_or_an_integer_and_short() {
        let longest = format!("\"{}\"", "a".repeat(PROGRESS_TOKEN_BYTES_MAX - 2));
        for good in ["\"p7\"", "7", "-7", "\"\\u0070\"", &longest] {
            let call = call_of(&format!(r#"{{"name":"x","_meta":{{"progressToken":{good}}}}}"#)).unwrap();
            assert_eq!(call.progress_token.as_deref(), Some(good.as_bytes()));
        }
        assert_eq!(call_of(r#"{"name":"x","_meta":{}}"#).unwrap().progress_token, None);
        let too_long = format!("\"{}\"", "a".repeat(PROGRESS_TOKEN_BYTES_MAX - 1));
        for bad in ["1.5", "1e2", "null", "true", "{}", "[1]", &too_long] {
            let params = format!(r#"{{"name":"x","_meta":{{"progressToken":{bad}}}}}"#);
            assert_eq!(refused("tools/call", &params).0, -32602, "{bad}");
        }
        assert_eq!(refused("tools/call", r#"{"name":"x","_meta":[]}"#).0, -32602);
    }

    #[test]
    fn a_task_id_of_the_wrong_shape_is_a_task_that_cannot_be() {
        let megabyte = "a".repeat(1_000_000);
        for id in ["", "x' OR 1=1;--\\r\\n*", "AAAAAAAAAAAAAAAAAAAAAAAAAA", "zzzzzzzzzzzzzzzzzzzzzzzzzz", &megabyte] {
            let read = read_in(NEW, true, "tasks/get", &format!(r#"{{"taskId":"{id}"}}"#));
            assert_eq!(read, Ok(Request::Get(TaskRef { id: None })));
        }
        for bad in ["{}", r#"{"taskId":null}"#, r#"{"taskId":7}"#, r#"{"taskId":["aaaaaaaaaaaaaaaaaaaaaaaaaa"]}"#] {
            assert_eq!(refused("tasks/get", bad).0, -32602, "{bad}");
        }
        let named_elsewhere =
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"aaaaaaaaaaaaaaaaaaaaaaaaaa"}}}"#;
        assert_eq!(refused("tasks/get", named_elsewhere).0, -32602, "only params.taskId names the task");
    }

    #[test]
    fn a_cursor_is_a_string_and_not_too_long() {
        for method in ["tools/list", "tasks/list"] {
            for (params, cursor) in
                [("{}", None), (r#"{"cursor":""}"#, Some("")), (r#"{"cursor":"c\u002e"}"#, Some("c."))]
            {
                let cursor = cursor.map(str::to_owned);
                let expected =
                    if method == "tools/list" { Request::Tools { cursor } } else { Request::List { cursor } };
                assert_eq!(read_in(NEW, true, method, params), Ok(expected));
            }
            let long = format!(r#"{{"cursor":"{}"}}"#, "a".repeat(crate::seal::TOKEN_BYTES_MAX + 1));
            for bad in [r#"{"cursor":7}"#, r#"{"cursor":null}"#, &long] {
                assert_eq!(refused(method, bad), (-32602, "Invalid cursor".to_owned()));
            }
        }
    }

    #[test]
    fn a_hello_says_what_the_client_can_do() {
        let hello = |capabilities: &str| {
            let params = format!(
                r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"clientInfo":{{"name":"cli","version":"3"}}}}"#
            );
            match read_in(NEW, true, "initialize", &params) {
                Ok(Request::Hello(hello)) => hello,
                other => panic!("{other:?}"),
            }
        };
        let none = ClientCapabilities::default();
        let form = ClientCapabilities { elicitation_form: true, ..none };
        let url = ClientCapabilities { elicitation_url: true, ..none };
        for (declared, expected) in [
            ("{}", none),
            (r#"{"elicitation":{}}"#, form),
            (r#"{"elicitation":{"form":{}}}"#, form),
            (r#"{"elicitation":{"url":{}}}"#, url),
            (r#"{"elicitation":{"url":{},"form":{}}}"#, ClientCapabilities { elicitation_form: true, ..url }),
            (r#"{"elicitation":true,"roots":7}"#, none),
            (
                r#"{"sampling":{},"roots":{"listChanged":true}}"#,
                ClientCapabilities { sampling: true, roots: true, ..none },
            ),
        ] {
            assert_eq!(hello(declared).capabilities, expected, "{declared}");
        }
        assert_eq!(hello("{}").client.as_deref(), Some("cli"));
        assert_eq!(hello("{}").version, "2025-11-25");
        for bad in ["{}", r#"{"protocolVersion":1}"#, r#"{"protocolVersion":"a","capabilities":[]}"#] {
            assert_eq!(refused("initialize", bad).0, -32602, "{bad}");
        }
    }

    #[test]
    fn a_trace_is_read_from_any_request() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let params = format!(r#"{{"name":"x","_meta":{{"traceparent":"{parent}","tracestate":"a=b","baggage":7}}}}"#);
        let expected = TraceContext::new(Some(parent), Some("a=b"), None);
        assert_eq!(with_params(&params, trace), expected);
        assert_eq!(call_of(&params).unwrap().trace, expected);
        for none in ["{}", r#"{"_meta":7}"#, r#"{"_meta":{"traceparent":"00-x"}}"#] {
            assert_eq!(with_params(none, trace), TraceContext::default());
        }
    }

    #[test]
    fn no_notification_is_refused() {
        let cancelled = |id| Notification::Cancelled { request: RequestId::from_json(id).unwrap() };
        for (method, params, expected) in [
            ("notifications/initialized", "{}", Notification::Initialized),
            ("notifications/cancelled", r#"{"requestId":7,"reason":"r"}"#, cancelled("7")),
            ("notifications/cancelled", r#"{"requestId":"7"}"#, cancelled("\"7\"")),
            ("notifications/cancelled", r#"{"requestId":null}"#, Notification::Other),
            ("notifications/cancelled", "{}", Notification::Other),
            ("tools/call", r#"{"name":"x"}"#, Notification::Other),
        ] {
            assert_eq!(with_params(params, |params| notification(method, params)), expected);
        }
    }
}
