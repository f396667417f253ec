//! The client's half of MCP, as far as wrapping a server needs it: bytes in, values out. Both eras: sessions (2025-11-25
//! and the revisions before it) and 2026-07-28.
//!
//! What an upstream server says of what it offers, and its results, are cut out of its messages as text and never parsed,
//! so that unknown members, the order of keys and the digits of numbers stay as they came.

mod ask;
mod hello;
mod listing;
mod mirror;
mod request;

use std::borrow::Cow;

use bytes::Bytes;
use longhaul_core::{CallError, LogLevel, LogMessage, Progress, Question};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub(crate) use ask::{InputRequired, accepted, action, input_required, refusal, result_of, urls_required};
pub(crate) use hello::{Discovered, Era, Hello, PROMISED, initialize, initialized, read_discovered, read_hello};
pub(crate) use listing::{Listed, Listing, prefix_contents, prefixed, read_item, read_page};
pub(crate) use mirror::Mirror;
pub(crate) use request::{Listen, Meta, Modern, Reference, Request};

/// The revision that is offered in `initialize`.
const VERSION: &str = "2025-11-25";
/// The revision without sessions.
pub(crate) const MODERN_VERSION: &str = "2026-07-28";

/// JSON-RPC's code for a fault on the server's side.
pub(crate) const INTERNAL_ERROR: i32 = -32603;
/// JSON-RPC's code for parameters that make no sense.
pub(crate) const INVALID_PARAMS: i32 = -32602;
/// JSON-RPC's code for a method that is not there.
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
/// There is no resource of this URI (MCP 2025-11-25, server/resources).
pub(crate) const RESOURCE_NOT_FOUND: i32 = -32002;
/// A page has to be opened first (MCP 2025-11-25, client/elicitation).
pub(crate) const URL_REQUIRED: i32 = -32042;
/// Headers and body differ (MCP 2026-07-28, basic/transports/streamable-http).
const HEADER_MISMATCH: i32 = -32020;
/// The version is not spoken (MCP 2026-07-28, basic/versioning).
const UNSUPPORTED_VERSION: i32 = -32022;
/// The client lacks what it has to be asked (MCP 2026-07-28, basic/index).
const MISSING_CAPABILITY: i32 = -32021;

/// How a request was answered: with the text of its result, or an error.
pub(crate) type Answer = Result<Bytes, CallError>;

/// Whether an error of 2026-07-28 is about how we speak to the server, which is nothing to whoever calls.
pub(crate) fn is_between_us(code: i32) -> bool {
    matches!(code, HEADER_MISMATCH | UNSUPPORTED_VERSION)
}

/// A message from a server.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    /// An answer to one of our requests; an error need not say to which.
    Answer { id: Option<u64>, answer: Answer },
    /// How far a call is.
    Progress { id: u64, progress: Progress },
    /// Something for the log of whoever calls.
    Log(LogMessage),
    /// A list is no longer what it was.
    Changed(Listing),
    /// A resource is no longer what it was.
    Updated(String),
    /// A subscription, by its request's id, has begun.
    Confirmed { id: u64 },
    /// The server asks something; its id is JSON text.
    Asked { id: Bytes, question: Question },
    /// The server no longer wants to know.
    Withdrawn { id: Bytes },
    /// A request that we answer ourselves, and its answer.
    Request { reply: Bytes },
    /// Nothing to us.
    Other,
}

/// `notifications/cancelled`
pub(crate) fn cancelled(id: u64) -> Bytes {
    let params = serde_json::json!({ "requestId": id, "reason": "no longer wanted" });
    message(&Outgoing::<'_, _, ()> {
        method: Some("notifications/cancelled"),
        params: Some(&params),
        ..Outgoing::new()
    })
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
    let cut = |raw: &RawValue| bytes.slice_ref(raw.get().as_bytes());
    let our_id = id.and_then(|id| id.get().parse().ok());
    Some(match (method.as_deref(), result, error) {
        (None, Some(result), None) => Incoming::Answer { id: our_id, answer: Ok(cut(result)) },
        (None, None, Some(error)) => Incoming::Answer { id: our_id, answer: Err(read_error(bytes, error)) },
        (None, ..) => return None,
        (Some(method), ..) => match (id, method) {
            (Some(id), "ping") => Incoming::Request { reply: reply(id.get().as_bytes(), Ok(&serde_json::json!({}))) },
            (Some(id), method) => match ask::read_question(bytes, method, params) {
                Some(Ok(question)) => Incoming::Asked { id: cut(id), question },
                Some(Err(why)) => Incoming::Request { reply: refusal(&cut(id), INVALID_PARAMS, &why) },
                None => Incoming::Request { reply: refusal(&cut(id), METHOD_NOT_FOUND, "not supported") },
            },
            (None, "notifications/progress") => params.and_then(read_progress).unwrap_or(Incoming::Other),
            (None, "notifications/message") => {
                params.and_then(|params| read_log(bytes, params)).unwrap_or(Incoming::Other)
            }
            (None, "notifications/cancelled") => {
                params.and_then(|params| read_withdrawn(bytes, params)).unwrap_or(Incoming::Other)
            }
            (None, "notifications/resources/updated") => params.and_then(read_updated).unwrap_or(Incoming::Other),
            (None, "notifications/subscriptions/acknowledged") => {
                params.and_then(read_confirmed).unwrap_or(Incoming::Other)
            }
            (None, "notifications/tools/list_changed") => Incoming::Changed(Listing::Tools),
            (None, "notifications/prompts/list_changed") => Incoming::Changed(Listing::Prompts),
            (None, "notifications/resources/list_changed") => Incoming::Changed(Listing::Resources),
            (None, _) => Incoming::Other,
        },
    })
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
struct Outgoing<'a, P: ?Sized, R: ?Sized> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a P>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<serde_json::Value>,
}

impl<P: ?Sized, R: ?Sized> Outgoing<'_, P, R> {
    fn new() -> Self {
        Self { jsonrpc: "2.0", id: None, method: None, params: None, result: None, error: None }
    }
}

/// An answer to a request of the server's; its id is JSON text.
fn reply<R: Serialize + ?Sized>(id: &[u8], answer: Result<&R, (i32, &str)>) -> Bytes {
    let id = serde_json::from_slice(id).ok();
    let error = |(code, sentence): (i32, &str)| serde_json::json!({ "code": code, "message": sentence });
    message(&Outgoing::<'_, (), R> { id, result: answer.ok(), error: answer.err().map(error), ..Outgoing::new() })
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

/// The JSON text of a value of ours.
fn raw(value: &(impl Serialize + ?Sized)) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("invariant: our own values have string keys and go to memory")
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

fn read_log(bytes: &Bytes, params: &RawValue) -> Option<Incoming> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow)]
        level: Cow<'a, str>,
        #[serde(default)]
        logger: Option<String>,
        #[serde(borrow)]
        data: &'a RawValue,
    }
    let Members { level, logger, data } = serde_json::from_str(params.get()).ok()?;
    let level = LogLevel::from_name(&level)?;
    Some(Incoming::Log(LogMessage { level, logger, data: bytes.slice_ref(data.get().as_bytes()) }))
}

fn read_withdrawn(bytes: &Bytes, params: &RawValue) -> Option<Incoming> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        #[serde(borrow)]
        request_id: &'a RawValue,
    }
    let Members { request_id } = serde_json::from_str(params.get()).ok()?;
    Some(Incoming::Withdrawn { id: bytes.slice_ref(request_id.get().as_bytes()) })
}

fn read_updated(params: &RawValue) -> Option<Incoming> {
    #[derive(Deserialize)]
    struct Members {
        uri: String,
    }
    serde_json::from_str(params.get()).ok().map(|Members { uri }| Incoming::Updated(uri))
}

fn read_confirmed(params: &RawValue) -> Option<Incoming> {
    #[derive(Deserialize)]
    struct Members {
        _meta: Meta,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
        id: u64,
    }
    serde_json::from_str(params.get()).ok().map(|Members { _meta: Meta { id } }| Incoming::Confirmed { id })
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
    fn pings_are_answered_and_what_we_do_not_do_is_declined() {
        for (asked, replied) in [
            (r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#, r#"{"jsonrpc":"2.0","id":"p","result":{}}"#),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{}}"#,
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"not supported"}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1.50,"method":"elicitation/create","params":[]}"#,
                r#"{"jsonrpc":"2.0","id":1.50,"error":{"code":-32602,"message":"the question cannot be read"}}"#,
            ),
        ] {
            assert_eq!(read(&asked.into()), Some(Incoming::Request { reply: replied.into() }));
        }
    }

    #[test]
    fn news_are_told_apart() {
        let notification = |method: &str, params: &str| {
            read(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}"#).into())
        };
        for (method, listing) in
            [("tools", Listing::Tools), ("prompts", Listing::Prompts), ("resources", Listing::Resources)]
        {
            assert_eq!(notification(&format!("{method}/list_changed"), "{}"), Some(Incoming::Changed(listing)));
        }
        assert_eq!(notification("resources/updated", r#"{"uri":"a:\/b"}"#), Some(Incoming::Updated("a:/b".into())));
        assert_eq!(
            notification("cancelled", r#"{"requestId":"q\u002d1"}"#),
            Some(Incoming::Withdrawn { id: r#""q\u002d1""#.into() })
        );
        let log = LogMessage { level: LogLevel::Warning, logger: Some("db".into()), data: "[1e2, -0]".into() };
        assert_eq!(
            notification("message", r#"{"level":"warning","logger":"db","data":[1e2, -0],"more":1}"#),
            Some(Incoming::Log(log))
        );
    }

    #[test]
    fn other_messages_do_no_harm() {
        let method = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
        for odd in ["notifications/message", "notifications/progress", "notifications/resources/updated", "x"] {
            assert_eq!(read(&method(odd).into()), Some(Incoming::Other));
        }
        for odd in [
            r#"{"method":"notifications/message","params":{"level":"loud","data":1}}"#,
            r#"{"method":"notifications/message","params":{"level":"info"}}"#,
            r#"{"method":"notifications/resources/updated","params":{"uri":1}}"#,
            r#"{"method":"notifications/cancelled","params":{}}"#,
            r#"{"method":"notifications/progress","params":{"progressToken":"x","progress":1}}"#,
        ] {
            assert_eq!(read(&odd.into()), Some(Incoming::Other), "{odd}");
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
}
