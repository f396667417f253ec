//! Methods and their parameters into neutral requests.

use bytes::Bytes;

use crate::dialect::Dialect;
use crate::errors::{Denial, Rejection};
use crate::json::{self, Object};
use crate::jsonrpc::{Params, RpcError};
use crate::params::{self, Callable, invalid, object};
use crate::reply::Features;
use crate::request::{Call, Envelope, Filter, Listing, Request, Retry, Update, Wants};
use crate::seal::TOKEN_BYTES_MAX;
use crate::v2026::envelope::log_level;

const DIALECT: Dialect = Dialect::V2026_07_28;

/// How many answers one request may bring.
const RESPONSES_MAX: usize = 64;
/// The longest key of an answer, in bytes; ours are shorter.
const RESPONSE_KEY_BYTES_MAX: usize = 256;
/// How many tasks one subscription may name.
const SUBSCRIBED_TASKS_MAX: usize = 256;
/// How many resources one subscription may name.
const SUBSCRIBED_RESOURCES_MAX: usize = 256;

/// Reads a request whose [`envelope`](super::envelope()) is good: its method, the extension that `tasks/*` and
/// `taskIds` need, its parameters. What is not served is an unknown method. `params.task` means nothing here.
pub fn read(method: &str, params: &Params<'_>, envelope: &Envelope, features: Features) -> Result<Request, Rejection> {
    let known = known(method, features).ok_or_else(|| Denial::UnknownMethod.reject(DIALECT))?;
    let declares_tasks = features.tasks && envelope.tasks;
    let needs_tasks = match known {
        Method::Get | Method::Update | Method::Cancel => true,
        Method::Listen => features.tasks && names_tasks(params),
        Method::Discover | Method::List(_) | Method::Call(_) => false,
    };
    // Of what it made in a session, a client of both eras may ask here too (SEP-2663, "Compatibility"); that a task is not
    // one of those is found later.
    let may_be_known = features.tasks && envelope.session_tasks && matches!(known, Method::Get | Method::Cancel);
    if needs_tasks && !declares_tasks && !may_be_known {
        return Err(Denial::TasksUndeclared.reject(DIALECT));
    }
    let meta = object(params, "_meta")?;
    log_level(&meta)?;
    Ok(match known {
        Method::Discover => Request::Discover,
        Method::List(listing) => Request::List { listing, cursor: params::cursor(DIALECT, params)? },
        Method::Call(callable) => {
            let (target, arguments) = params::target(DIALECT, callable, params)?;
            let is_tool = callable == Callable::Tool;
            Request::Call(Call {
                target,
                arguments,
                wants: if is_tool && declares_tasks { Wants::Either } else { Wants::Inline },
                progress_token: params::progress_token(&meta)?,
                retry: if callable == Callable::Completion { None } else { retry(params)? },
                trace: envelope.trace.clone(),
            })
        }
        Method::Get => Request::Get(params::task_ref(params)?),
        Method::Cancel => Request::Cancel(params::task_ref(params)?),
        Method::Update => {
            let responses = params.get("inputResponses").ok_or_else(|| invalid("inputResponses is required"))?;
            Request::Update(Update { task: params::task_ref(params)?, responses: self::responses(responses)? })
        }
        Method::Listen => Request::Listen(filter(params, features)?),
    })
}

enum Method {
    Discover,
    List(Listing),
    Call(Callable),
    Listen,
    Get,
    Update,
    Cancel,
}

fn known(method: &str, features: Features) -> Option<Method> {
    if let Some(listing) = params::listing(method, features) {
        return Some(Method::List(listing));
    }
    if let Some(callable) = Callable::of_method(method, features) {
        return Some(Method::Call(callable));
    }
    match method {
        "server/discover" => Some(Method::Discover),
        "subscriptions/listen" => Some(Method::Listen),
        "tasks/get" if features.tasks => Some(Method::Get),
        "tasks/update" if features.tasks => Some(Method::Update),
        "tasks/cancel" if features.tasks => Some(Method::Cancel),
        _ => None,
    }
}

/// What a caller that was asked something comes back with.
fn retry(params: &Params<'_>) -> Result<Option<Retry>, Rejection> {
    let state = match params.get("requestState").map(json::string) {
        None => None,
        Some(Some(state)) if state.len() <= TOKEN_BYTES_MAX => Some(state.into_owned()),
        Some(_) => return Err(Denial::BadState.reject(DIALECT)),
    };
    let responses = match params.get("inputResponses") {
        None if state.is_none() => return Ok(None),
        None => Vec::new(),
        Some(responses) => self::responses(responses)?,
    };
    Ok(Some(Retry { state, responses }))
}

/// Answers by key, as they came: whether one is legal matters only if its question is open.
fn responses(responses: &str) -> Result<Vec<(String, Bytes)>, RpcError> {
    let Some(object) = Object::read(responses.as_bytes()) else {
        return Err(invalid("inputResponses must be an object"));
    };
    if object.fields.len() > RESPONSES_MAX {
        return Err(invalid(format!("inputResponses has at most {RESPONSES_MAX} members")));
    }
    if object.fields.iter().any(|field| field.name.len() > RESPONSE_KEY_BYTES_MAX) {
        return Err(invalid(format!("a key of inputResponses has at most {RESPONSE_KEY_BYTES_MAX} bytes")));
    }
    let response = |field: json::Field<'_>| (field.name.into_owned(), Bytes::copy_from_slice(field.value.as_bytes()));
    Ok(object.fields.into_iter().map(response).collect())
}

fn names_tasks(params: &Params<'_>) -> bool {
    let filter = params.get("notifications").and_then(|filter| Object::read(filter.as_bytes()));
    filter.is_some_and(|filter| filter.get("taskIds").is_some())
}

fn filter(params: &Params<'_>, features: Features) -> Result<Filter, RpcError> {
    let filter = params.get("notifications").and_then(|filter| Object::read(filter.as_bytes()));
    let filter = filter.ok_or_else(|| invalid("notifications must be an object"))?;
    let flag = |name: &str| match filter.get(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(invalid(format!("notifications.{name} must be true or false"))),
    };
    let tasks = strings(&filter, "taskIds", SUBSCRIBED_TASKS_MAX)?.filter(|_| features.tasks);
    let uris = strings(&filter, "resourceSubscriptions", SUBSCRIBED_RESOURCES_MAX)?.unwrap_or_default();
    Ok(Filter {
        tools: flag("toolsListChanged")?,
        prompts: flag("promptsListChanged")?,
        resources: flag("resourcesListChanged")?,
        resource_uris: unique(uris),
        tasks: tasks.map(|ids| unique(ids.iter().filter_map(|id| id.parse().ok()))),
    })
}

/// Each once, in order. There are few enough to compare them all.
fn unique<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

/// An array of strings; `None` if it is absent.
fn strings(filter: &Object<'_>, name: &str, max: usize) -> Result<Option<Vec<String>>, RpcError> {
    let Some(value) = filter.get(name) else { return Ok(None) };
    let strings: Vec<String> = serde_json::from_str(value)
        .map_err(|_| invalid(format!("notifications.{name} must be an array of strings")))?;
    if strings.len() > max {
        return Err(invalid(format!("notifications.{name} has at most {max} members")));
    }
    Ok(Some(strings))
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Target, TaskId};

    use super::*;
    use crate::errors::Status;
    use crate::jsonrpc::{Message, parse};
    use crate::request::TaskRef;

    const ALL: Features = Features { tasks: true, prompts: true, resources: true, completions: true };
    const NONE: Features = Features { tasks: false, prompts: false, resources: false, completions: false };
    const TASK: &str = "aaaaaaaaaaaaaaaaaaaaaaaaab";

    fn read_with(features: Features, tasks: bool, method: &str, params: &str) -> Result<Request, (Status, i32)> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let Ok(Message::Request { method, params, .. }) = parse(body.as_bytes()) else { panic!("{body}") };
        let envelope = Envelope { tasks, ..Envelope::default() };
        read(&method, &params, &envelope, features).map_err(|no| (no.status, no.error.code))
    }

    fn read_all(method: &str, params: &str) -> Result<Request, (Status, i32)> {
        read_with(ALL, true, method, params)
    }

    fn call(params: &str) -> Result<Call, (Status, i32)> {
        match read_all("tools/call", params)? {
            Request::Call(call) => Ok(call),
            other => panic!("{other:?}"),
        }
    }

    const INVALID: (Status, i32) = (Status::Ok, -32602);

    #[test]
    fn what_is_not_served_is_not_found() {
        let named = r#"{"name":"x"}"#;
        let uri = r#"{"uri":"a:b"}"#;
        let of_task = format!(r#"{{"taskId":"{TASK}","inputResponses":{{}}}}"#);
        let complete = r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":""}}"#;
        for (method, params, needs) in [
            ("server/discover", "{}", NONE),
            ("tools/list", "{}", NONE),
            ("tools/call", named, NONE),
            ("subscriptions/listen", r#"{"notifications":{}}"#, NONE),
            ("prompts/list", "{}", Features { prompts: true, ..NONE }),
            ("prompts/get", named, Features { prompts: true, ..NONE }),
            ("resources/list", "{}", Features { resources: true, ..NONE }),
            ("resources/templates/list", "{}", Features { resources: true, ..NONE }),
            ("resources/read", uri, Features { resources: true, ..NONE }),
            ("completion/complete", complete, Features { completions: true, ..NONE }),
            ("tasks/get", &of_task, Features { tasks: true, ..NONE }),
            ("tasks/update", &of_task, Features { tasks: true, ..NONE }),
            ("tasks/cancel", &of_task, Features { tasks: true, ..NONE }),
        ] {
            assert!(read_with(needs, true, method, params).is_ok(), "{method}");
            if needs != NONE {
                assert_eq!(read_with(NONE, true, method, params), Err((Status::NotFound, -32601)), "{method}");
            }
        }
        for method in [
            "initialize",
            "ping",
            "logging/setLevel",
            "resources/subscribe",
            "resources/unsubscribe",
            "tasks/result",
            "tasks/list",
            "Tools/List",
            "",
        ] {
            assert_eq!(read_all(method, r#"{"uri":"a:b"}"#), Err((Status::NotFound, -32601)), "{method}");
        }
    }

    #[test]
    fn methods_of_tasks_need_the_extension_before_anything_else_is_read() {
        let missing = Err((Status::BadRequest, -32021));
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            for params in ["{}", r#"{"taskId":7}"#] {
                assert_eq!(read_with(ALL, false, method, params), missing, "{method}");
                assert_eq!(read_with(ALL, true, method, params), Err(INVALID), "{method}");
            }
        }
        let listen = r#"{"notifications":{"taskIds":["x"]}}"#;
        assert_eq!(read_with(ALL, false, "subscriptions/listen", listen), missing);
        let Ok(Request::Listen(filter)) = read_with(NONE, false, "subscriptions/listen", listen) else { panic!() };
        assert_eq!(filter.tasks, None, "where tasks are off, this is an unknown kind");
        let of_sessions = Envelope { session_tasks: true, ..Envelope::default() };
        for (method, is_read) in [("tasks/get", true), ("tasks/cancel", true), ("tasks/update", false)] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"taskId":"x"}}}}"#);
            let Ok(Message::Request { method, params, .. }) = parse(body.as_bytes()) else { panic!("{body}") };
            assert_eq!(read(&method, &params, &of_sessions, ALL).is_ok(), is_read, "{body}");
            assert!(read(&method, &params, &of_sessions, NONE).is_err(), "{body}");
        }
        let id = TaskRef { id: TASK.parse().ok() };
        assert_eq!(read_all("tasks/get", &format!(r#"{{"taskId":"{TASK}"}}"#)), Ok(Request::Get(id)));
        assert_eq!(read_all("tasks/cancel", r#"{"taskId":"x"}"#), Ok(Request::Cancel(TaskRef { id: None })));
    }

    #[test]
    fn a_caller_that_declares_tasks_leaves_it_to_us_and_a_wish_of_its_own_means_nothing() {
        for (features, tasks, wants) in [
            (ALL, true, Wants::Either),
            (ALL, false, Wants::Inline),
            (Features { tasks: false, ..ALL }, true, Wants::Inline),
        ] {
            for task in ["", r#","task":{"ttl":5}"#, r#","task":7"#] {
                let params = format!(r#"{{"name":"x"{task}}}"#);
                match read_with(features, tasks, "tools/call", &params) {
                    Ok(Request::Call(call)) => assert_eq!(call.wants, wants),
                    other => panic!("{other:?}"),
                }
                match read_with(features, tasks, "prompts/get", &params) {
                    Ok(Request::Call(call)) => assert_eq!(call.wants, Wants::Inline, "only tools make tasks"),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_call_goes_on_as_it_came() {
        let read = call(
            r#"{"name":"x","arguments":{ "n":1.00 },"_meta":{"progressToken":"p","io.modelcontextprotocol/logLevel":"debug"}}"#,
        );
        let expected = Call {
            target: Target::Tool("x".into()),
            arguments: Bytes::from_static(br#"{ "n":1.00 }"#),
            wants: Wants::Either,
            progress_token: Some(Bytes::from_static(b"\"p\"")),
            retry: None,
            trace: Default::default(),
        };
        assert_eq!(read, Ok(expected));
        let long = format!(r#"{{"name":"{}"}}"#, "a".repeat(129));
        for bad in [
            "{}",
            r#"{"name":7}"#,
            r#"{"name":"x","arguments":[]}"#,
            r#"{"name":"x","_meta":{"progressToken":1.5}}"#,
            r#"{"name":"x","_meta":{"io.modelcontextprotocol/logLevel":"Info"}}"#,
            r#"{"name":"x","_meta":{"io.modelcontextprotocol/logLevel":3}}"#,
            &long,
        ] {
            assert_eq!(call(bad), Err(INVALID), "{bad}");
        }
        assert_eq!(read_all("tools/list", r#"{"cursor":7}"#), Err(INVALID));
        assert_eq!(read_all("resources/read", &format!(r#"{{"uri":"{}"}}"#, "a".repeat(8193))), Err(INVALID));
    }

    #[test]
    fn a_caller_that_comes_back_brings_its_state_and_its_answers() {
        let answers = r#""inputResponses":{ "q1":{"action":"accept"},"\u0071-2": 7 }"#;
        let responses = || {
            vec![
                ("q1".to_owned(), Bytes::from_static(br#"{"action":"accept"}"#)),
                ("q-2".to_owned(), Bytes::from_static(b"7")),
            ]
        };
        for (members, expected) in [
            ("", None),
            (r#","requestState":"s""#, Some(Retry { state: Some("s".into()), responses: vec![] })),
            (&*format!(",{answers}"), Some(Retry { state: None, responses: responses() })),
            (
                &*format!(r#","requestState":"",{answers}"#),
                Some(Retry { state: Some(String::new()), responses: responses() }),
            ),
            (r#","inputResponses":{}"#, Some(Retry { state: None, responses: vec![] })),
        ] {
            for (method, target) in
                [("tools/call", r#""name":"x""#), ("prompts/get", r#""name":"x""#), ("resources/read", r#""uri":"x""#)]
            {
                match read_all(method, &format!("{{{target}{members}}}")) {
                    Ok(Request::Call(call)) => assert_eq!(call.retry, expected, "{method} {members}"),
                    other => panic!("{other:?}"),
                }
            }
            let params = format!(
                r#"{{"ref":{{"type":"ref/prompt","name":"p"}},"argument":{{"name":"a","value":""}}{members}}}"#
            );
            match read_all("completion/complete", &params) {
                Ok(Request::Call(call)) => assert_eq!(call.retry, None, "a completion asks nothing"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn answers_are_an_object_of_few_members_with_short_names() {
        let many = |count: usize| {
            let members: Vec<_> = (0..count).map(|at| format!(r#""{at}":{{}}"#)).collect();
            format!("{{{}}}", members.join(","))
        };
        let key = |length: usize| format!(r#"{{"{}":{{}}}}"#, "k".repeat(length));
        for (responses, good) in [
            ("{}", true),
            (&*many(RESPONSES_MAX), true),
            (&*many(RESPONSES_MAX + 1), false),
            (&*key(RESPONSE_KEY_BYTES_MAX), true),
            (&*key(RESPONSE_KEY_BYTES_MAX + 1), false),
            ("null", false),
            ("[]", false),
            ("7", false),
        ] {
            let update = read_all("tasks/update", &format!(r#"{{"taskId":"{TASK}","inputResponses":{responses}}}"#));
            let retry = call(&format!(r#"{{"name":"x","inputResponses":{responses}}}"#));
            assert_eq!((update.is_ok(), retry.is_ok()), (good, good));
            if !good {
                assert_eq!((update.unwrap_err(), retry.unwrap_err()), (INVALID, INVALID));
            }
        }
        assert_eq!(read_all("tasks/update", &format!(r#"{{"taskId":"{TASK}"}}"#)), Err(INVALID));
        let state = |state: &str| call(&format!(r#"{{"name":"x","requestState":{state}}}"#));
        assert!(state(&format!("\"{}\"", "a".repeat(TOKEN_BYTES_MAX))).is_ok());
        for bad in ["null", "7", &format!("\"{}\"", "a".repeat(TOKEN_BYTES_MAX + 1))] {
            assert_eq!(state(bad), Err(INVALID));
        }
    }

    #[test]
    fn a_subscription_names_what_it_wants_to_hear() {
        let listen = |filter: &str| match read_all("subscriptions/listen", &format!(r#"{{"notifications":{filter}}}"#))
        {
            Ok(Request::Listen(filter)) => Ok(filter),
            Ok(other) => panic!("{other:?}"),
            Err(no) => Err(no),
        };
        assert_eq!(listen("{}"), Ok(Filter::default()));
        assert_eq!(listen(r#"{"toolsListChanged":false,"unknown":7}"#), Ok(Filter::default()));
        let task: TaskId = TASK.parse().unwrap();
        let all = format!(
            r#"{{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a:b","a:c","a:b"],"taskIds":["{TASK}","x","{TASK}"]}}"#
        );
        let expected = Filter {
            tools: true,
            prompts: true,
            resources: true,
            resource_uris: vec!["a:b".into(), "a:c".into()],
            tasks: Some(vec![task]),
        };
        assert_eq!(listen(&all), Ok(expected), "each once; what cannot be a task is left out");
        assert_eq!(listen(r#"{"taskIds":[]}"#), Ok(Filter { tasks: Some(vec![]), ..Filter::default() }));
        let many = |name: &str, count: usize| format!(r#"{{"{name}":{}}}"#, serde_json::json!(vec!["x"; count]));
        assert!(listen(&many("taskIds", SUBSCRIBED_TASKS_MAX)).is_ok());
        assert!(listen(&many("resourceSubscriptions", SUBSCRIBED_RESOURCES_MAX)).is_ok());
        for bad in [
            "[]",
            "null",
            r#"{"toolsListChanged":1}"#,
            r#"{"taskIds":"x"}"#,
            r#"{"taskIds":[7]}"#,
            r#"{"resourceSubscriptions":{}}"#,
            &many("taskIds", SUBSCRIBED_TASKS_MAX + 1),
            &many("resourceSubscriptions", SUBSCRIBED_RESOURCES_MAX + 1),
        ] {
            assert_eq!(listen(bad), Err(INVALID), "{bad}");
        }
        assert_eq!(read_all("subscriptions/listen", "{}"), Err(INVALID));
    }
}
