//! Methods and their parameters into neutral requests.

use longhaul_core::{LogLevel, TtlWish};

use crate::dialect::Dialect;
use crate::errors::Denial;
use crate::json::{self, Object};
use crate::jsonrpc::{Params, RequestId, RpcError};
use crate::params::{self, Callable, invalid, object};
use crate::reply::Features;
use crate::request::{Call, ClientCapabilities, Hello, Notification, Request, TraceContext, Wants};

/// Reads a request. What is not served is an unknown method. Where tasks are off, or the dialect does not know them,
/// `params.task` is ignored (MCP 2025-11-25, basic/utilities/tasks, "Task Support and Handling").
pub fn read(dialect: Dialect, method: &str, params: &Params<'_>, features: Features) -> Result<Request, RpcError> {
    let tasks = features.tasks && dialect.has_tasks();
    if let Some(listing) = params::listing(method, features) {
        return Ok(Request::List { listing, cursor: params::cursor(dialect, params)? });
    }
    if let Some(callable) = Callable::of_method(method, features) {
        return call(dialect, callable, params, tasks).map(Request::Call);
    }
    match method {
        "initialize" => hello(params).map(Request::Hello),
        "ping" => Ok(Request::Ping),
        "logging/setLevel" => level(params).map(Request::SetLevel),
        "resources/subscribe" if features.resources => Ok(Request::Subscribe { uri: params::uri(dialect, params)? }),
        "resources/unsubscribe" if features.resources => {
            Ok(Request::Unsubscribe { uri: params::uri(dialect, params)? })
        }
        "tasks/get" if tasks => Ok(Request::Get(params::task_ref(params)?)),
        "tasks/result" if tasks => Ok(Request::Result(params::task_ref(params)?)),
        "tasks/list" if tasks => Ok(Request::Tasks { cursor: params::cursor(dialect, params)? }),
        "tasks/cancel" if tasks => Ok(Request::Cancel(params::task_ref(params)?)),
        _ => Err(Denial::UnknownMethod.reject(dialect).error),
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
    let meta = params.get("_meta").and_then(|meta| Object::read(meta.as_bytes()));
    meta.map(|meta| params::trace(&meta)).unwrap_or_default()
}

fn hello(params: &Params<'_>) -> Result<Hello, RpcError> {
    let version = params::text(params, "protocolVersion")?.into_owned();
    let declared = object(params, "capabilities")?;
    let mut capabilities = params::capabilities(&declared);
    if Dialect::negotiate(&version) == Dialect::V2025_06_18 {
        // That revision knows forms only, and no names of modes.
        let elicitation_form = declared.get("elicitation").is_some_and(json::is_object);
        capabilities = ClientCapabilities { elicitation_form, elicitation_url: false, ..capabilities };
    }
    Ok(Hello { version, capabilities, client: params::client_name(&object(params, "clientInfo")?) })
}

fn level(params: &Params<'_>) -> Result<LogLevel, RpcError> {
    LogLevel::from_name(&params::text(params, "level")?).ok_or_else(|| invalid("level is none of RFC 5424"))
}

fn call(dialect: Dialect, callable: Callable, params: &Params<'_>, tasks: bool) -> Result<Call, RpcError> {
    let (target, arguments) = params::target(dialect, callable, params)?;
    let wants = match params.get("task") {
        Some(_) if tasks && callable == Callable::Tool => Wants::Task(ttl(&object(params, "task")?)?),
        Some(_) | None => Wants::Inline,
    };
    let meta = object(params, "_meta")?;
    let progress_token = params::progress_token(&meta)?;
    Ok(Call { target, arguments, wants, progress_token, retry: None, trace: params::trace(&meta) })
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use longhaul_core::Target;
    use longhaul_core::limits::{PROGRESS_TOKEN_BYTES_MAX, TOOL_NAME_BYTES_MAX};

    use super::*;
    use crate::jsonrpc::{Message, parse};
    use crate::request::{Listing, TaskRef};
    use crate::seal::TOKEN_BYTES_MAX;

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
        let features = Features { tasks, prompts: true, resources: true, completions: true };
        with_params(params, |params| read(dialect, method, params, features))
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
            ("tasks/list", Request::Tasks { cursor: None }),
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
            "server/discover",
            "subscriptions/listen",
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
        assert_eq!(call_of(&format!(r#"{{"name":"{name}"}}"#)).unwrap().target, Target::Tool(name.clone()));
        assert_eq!(call_of(r#"{"name":"\u0061.b"}"#).unwrap().target, Target::Tool("a.b".into()));
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
        for (method, listing) in [
            ("tools/list", Some(Listing::Tools)),
            ("prompts/list", Some(Listing::Prompts)),
            ("resources/list", Some(Listing::Resources)),
            ("resources/templates/list", Some(Listing::Templates)),
            ("tasks/list", None),
        ] {
            let expected = |cursor| match listing {
                Some(listing) => Request::List { listing, cursor },
                None => Request::Tasks { cursor },
            };
            for (params, cursor) in
                [("{}", None), (r#"{"cursor":""}"#, Some("")), (r#"{"cursor":"c\u002e"}"#, Some("c."))]
            {
                assert_eq!(read_in(NEW, true, method, params), Ok(expected(cursor.map(str::to_owned))));
            }
            let long = format!(r#"{{"cursor":"{}"}}"#, "a".repeat(TOKEN_BYTES_MAX + 1));
            for bad in [r#"{"cursor":7}"#, r#"{"cursor":null}"#, &long] {
                assert_eq!(refused(method, bad), (-32602, "Invalid cursor".to_owned()));
            }
        }
    }

    #[test]
    fn what_is_not_served_is_an_unknown_method() {
        let none = Features { tasks: false, prompts: false, resources: false, completions: false };
        let uri = r#"{"uri":"a:b"}"#;
        for (method, params, features) in [
            ("prompts/list", "{}", Features { prompts: true, ..none }),
            ("prompts/get", r#"{"name":"p"}"#, Features { prompts: true, ..none }),
            ("resources/list", "{}", Features { resources: true, ..none }),
            ("resources/templates/list", "{}", Features { resources: true, ..none }),
            ("resources/read", uri, Features { resources: true, ..none }),
            ("resources/subscribe", uri, Features { resources: true, ..none }),
            ("resources/unsubscribe", uri, Features { resources: true, ..none }),
            (
                "completion/complete",
                r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":""}}"#,
                Features { completions: true, ..none },
            ),
        ] {
            for dialect in [NEW, OLD] {
                let read = |features| with_params(params, |params| read(dialect, method, params, features));
                assert!(read(features).is_ok(), "{method}");
                let others = Features {
                    tasks: true,
                    prompts: !features.prompts,
                    resources: !features.resources,
                    completions: !features.completions,
                };
                assert_eq!(read(others).unwrap_err().code, -32601, "{method}");
            }
        }
        for (method, params) in [("tools/list", "{}"), ("ping", "{}"), ("logging/setLevel", r#"{"level":"info"}"#)] {
            assert!(with_params(params, |params| read(NEW, method, params, none)).is_ok(), "{method}");
        }
    }

    #[test]
    fn a_call_of_a_prompt_a_resource_or_a_completion_goes_on_as_it_came() {
        let called = |method, params| match read_in(NEW, true, method, params) {
            Ok(Request::Call(call)) => {
                assert_eq!((call.wants, call.retry), (Wants::Inline, None), "only tools make tasks");
                (call.target, call.arguments)
            }
            other => panic!("{other:?}"),
        };
        let arguments = Bytes::from_static;
        for (method, params, expected) in [
            (
                "prompts/get",
                r#"{"name":"p","arguments":{ "a":"b" },"task":{}}"#,
                (Target::Prompt("p".into()), arguments(br#"{ "a":"b" }"#)),
            ),
            ("prompts/get", r#"{"name":"p"}"#, (Target::Prompt("p".into()), arguments(b"{}"))),
            ("resources/read", r#"{"uri":"a:b","arguments":7}"#, (Target::Resource("a:b".into()), arguments(b"{}"))),
            (
                "completion/complete",
                r#"{"argument":{ "name":"a","value":"x" },"ref":{"type":"ref/prompt","name":"p"}}"#,
                (Target::CompletePrompt("p".into()), arguments(br#"{"argument":{ "name":"a","value":"x" }}"#)),
            ),
            (
                "completion/complete",
                r#"{"argument":{"name":"a","value":""},"ref":{"type":"ref/resource","uri":"a:{b}"},"context":{"arguments":{"c":"d"}}}"#,
                (
                    Target::CompleteTemplate("a:{b}".into()),
                    arguments(br#"{"argument":{"name":"a","value":""},"context":{"arguments":{"c":"d"}}}"#),
                ),
            ),
        ] {
            assert_eq!(called(method, params), expected);
        }
        let long = format!(r#"{{"uri":"{}"}}"#, "a".repeat(8193));
        assert_eq!(refused("resources/read", &long).0, -32002);
        for (method, bad) in [
            ("prompts/get", "{}"),
            ("prompts/get", r#"{"name":"p","arguments":[]}"#),
            ("resources/read", r#"{"uri":7}"#),
            ("resources/subscribe", "{}"),
            ("completion/complete", "{}"),
            ("completion/complete", r#"{"argument":{"name":"a","value":"x"}}"#),
            ("completion/complete", r#"{"argument":{"name":"a"},"ref":{"type":"ref/prompt","name":"p"}}"#),
            ("completion/complete", r#"{"argument":{"name":"a","value":"x"},"ref":{"type":"ref/tool","name":"p"}}"#),
            ("completion/complete", r#"{"argument":{"name":"a","value":"x"},"ref":{"type":"ref/prompt","uri":"p"}}"#),
            (
                "completion/complete",
                r#"{"argument":{"name":"a","value":"x"},"ref":{"type":"ref/prompt","name":"p"},"context":7}"#,
            ),
        ] {
            assert_eq!(refused(method, bad).0, -32602, "{method} {bad}");
        }
    }

    #[test]
    fn a_session_says_what_it_wants_to_hear() {
        let uri = || "test://watched".to_owned();
        for (method, params, request) in [
            ("resources/subscribe", r#"{"uri":"test://watched"}"#, Request::Subscribe { uri: uri() }),
            ("resources/unsubscribe", r#"{"uri":"test://watched"}"#, Request::Unsubscribe { uri: uri() }),
            ("logging/setLevel", r#"{"level":"warning"}"#, Request::SetLevel(LogLevel::Warning)),
        ] {
            assert_eq!(read_in(NEW, true, method, params), Ok(request));
        }
        for bad in ["{}", r#"{"level":"Warning"}"#, r#"{"level":4}"#] {
            assert_eq!(refused("logging/setLevel", bad).0, -32602);
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
        for declared in [r#"{"elicitation":{}}"#, r#"{"elicitation":{"url":{}}}"#] {
            let params = format!(r#"{{"protocolVersion":"2025-06-18","capabilities":{declared}}}"#);
            let Ok(Request::Hello(old)) = read_in(NEW, true, "initialize", &params) else { panic!("{declared}") };
            assert_eq!(old.capabilities, form, "that revision has forms alone");
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
