//! The JSON-RPC 2.0 envelope, as MCP narrows it: one message a body, ids never null, `params` an object.

use std::borrow::Cow;

use bytes::Bytes;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::errors::code;
use crate::json;
use crate::scan::{Fault, Member, scan};

/// The longest id of a request to us, in bytes; it travels in event ids.
pub const REQUEST_ID_BYTES_MAX: usize = 256;
/// The longest id of a response, in bytes: ids of our own requests may be sealed.
pub const RESPONSE_ID_BYTES_MAX: usize = 1024;

/// The id of a request: a string or an integer, kept as it came. `1` and `"1"` are two ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Id);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Id {
    String(String),
    /// Its digits, which may be more than any integer type holds.
    Integer(String),
}

impl RequestId {
    /// Reads a JSON value; `None` if it is no string or integer, or too long.
    pub fn from_json(value: &str) -> Option<Self> {
        Self::up_to(REQUEST_ID_BYTES_MAX, value)
    }

    fn up_to(max: usize, value: &str) -> Option<Self> {
        if value.len() > max {
            return None;
        }
        if json::is_integer(value) {
            return Some(Self(Id::Integer(value.to_owned())));
        }
        json::string(value).map(|text| Self(Id::String(text.into_owned())))
    }

    /// The text of an id that is a string, as all of ours are.
    pub fn as_text(&self) -> Option<&str> {
        match &self.0 {
            Id::String(text) => Some(text),
            Id::Integer(_) => None,
        }
    }

    /// As a JSON value.
    pub fn to_json(&self) -> Cow<'_, str> {
        match &self.0 {
            Id::String(text) => Cow::Owned(json::quoted(text)),
            Id::Integer(digits) => Cow::Borrowed(digits),
        }
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Id::String(text) => serializer.serialize_str(text),
            Id::Integer(digits) => {
                let digits: &RawValue = serde_json::from_str(digits).map_err(S::Error::custom)?;
                digits.serialize(serializer)
            }
        }
    }
}

/// One message.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// To be answered.
    Request {
        /// Its id.
        id: RequestId,
        /// What is wanted.
        method: Cow<'a, str>,
        /// Of what.
        params: Params<'a>,
    },
    /// Not to be answered.
    Notification {
        /// What happened.
        method: Cow<'a, str>,
        /// To what.
        params: Params<'a>,
    },
    /// An answer to a request of ours.
    Response {
        /// The request's id; `None` if the client could not read it.
        id: Option<RequestId>,
        /// The JSON of its result; or, if it is an error, what that means.
        answer: Result<&'a str, Unanswered>,
    },
}

/// What it means that a client answers a request of ours with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// It cannot, or will not, do what was asked.
    Refused,
    /// It gave the request up because we said so. A client should say nothing then (MCP 2025-11-25,
    /// basic/utilities/cancellation), but mcp for Python answers with the code [`CANCELLED`].
    Cancelled,
}

/// Not a code of JSON-RPC or MCP.
const CANCELLED: &str = "0";

/// The members of `params`; none if there is no `params`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Params<'a>(Vec<Member<'a>>);

impl<'a> Params<'a> {
    /// The value of a member, as written.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|member| member.name == name).map(|member| member.value)
    }
}

/// A body that is no message. It goes with HTTP 400.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The id, if it could be read.
    pub id: Option<RequestId>,
    /// What is wrong.
    pub error: RpcError,
}

impl Malformed {
    /// The body that says so.
    pub fn body(&self) -> Bytes {
        error_body(self.id.as_ref(), &self.error)
    }
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Result<Message<'_>, Malformed> {
    let (found, result) = scan(body, "params");
    // Twice the same name is no name: before a repeated key is refused, it has been noted twice.
    let member = |name: &str| {
        let mut values = found.members.iter().filter(|member| member.name == name).map(|member| member.value);
        values.next().filter(|_| values.next().is_none())
    };
    let (result_member, error_member) = (member("result"), member("error"));
    let is_answer = result_member.is_some() || error_member.is_some();
    let id_bytes_max = if is_answer { RESPONSE_ID_BYTES_MAX } else { REQUEST_ID_BYTES_MAX };
    let id = member("id");
    let known_id = id.and_then(|id| RequestId::up_to(id_bytes_max, id));
    let malformed =
        |code, message: &'static str| Malformed { id: known_id.clone(), error: RpcError::new(code, message) };
    match result {
        Ok(()) => {}
        // In text that is not JSON, nothing can be relied on.
        Err(Fault::Syntax) => return Err(Malformed { id: None, error: RpcError::new(code::PARSE, "Parse error") }),
        Err(Fault::Limit(limit)) => return Err(malformed(code::INVALID_REQUEST, limit.sentence())),
    }
    let invalid = |message| malformed(code::INVALID_REQUEST, message);
    if !found.is_object {
        return Err(invalid("Invalid Request: a body is one JSON-RPC object"));
    }
    if id.is_some() && known_id.is_none() {
        return Err(invalid("Invalid Request: id must be a string or an integer, and not too long"));
    }
    if member("jsonrpc").and_then(json::string).as_deref() != Some("2.0") {
        return Err(invalid("Invalid Request: jsonrpc must be \"2.0\""));
    }
    let method = match (member("method").map(json::string), result_member, error_member) {
        (Some(Some(method)), None, None) => method,
        (None, Some(result), None) => return Ok(Message::Response { id: known_id, answer: Ok(result) }),
        (None, None, Some(error)) => {
            let code = json::Object::read(error.as_bytes()).and_then(|error| error.get("code"));
            let is_cancelled = code == Some(CANCELLED);
            let why = if is_cancelled { Unanswered::Cancelled } else { Unanswered::Refused };
            return Ok(Message::Response { id: known_id, answer: Err(why) });
        }
        _ => return Err(invalid("Invalid Request: neither a request nor a notification nor a response")),
    };
    if member("params").is_some_and(|params| !json::is_object(params)) {
        return Err(malformed(code::INVALID_PARAMS, "Invalid params: params must be an object"));
    }
    let params = Params(found.inner);
    Ok(match known_id {
        Some(id) => Message::Request { id, method, params },
        None => Message::Notification { method, params },
    })
}

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// The code.
    pub code: i32,
    /// One short sentence.
    pub message: Cow<'static, str>,
    /// Any JSON, as text.
    pub data: Option<Bytes>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// An error with data.
    pub fn with_data(code: i32, message: impl Into<Cow<'static, str>>, data: &serde_json::Value) -> Self {
        Self { data: Some(data.to_string().into()), ..Self::new(code, message) }
    }
}

/// The body of an error response; without `id` if the request's could not be read, for MCP knows no null ids.
pub fn error_body(id: Option<&RequestId>, error: &RpcError) -> Bytes {
    let mut out = Vec::with_capacity(128 + error.message.len() + error.data.as_ref().map_or(0, Bytes::len));
    open_response(&mut out, id);
    out.extend_from_slice(b"\"error\":");
    append_error(&mut out, error);
    out.push(b'}');
    out.into()
}

/// Appends an error object; data that is no JSON is left out.
pub(crate) fn append_error(out: &mut Vec<u8>, error: &RpcError) {
    #[derive(Serialize)]
    struct Object<'a> {
        code: i32,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<&'a RawValue>,
    }
    let data = error.data.as_deref().and_then(|data| serde_json::from_slice(data).ok());
    append(out, &Object { code: error.code, message: &error.message, data });
}

/// Appends an object with a list of items and maybe a cursor.
pub(crate) fn append_list<T>(
    out: &mut Vec<u8>,
    name: &str,
    items: &[T],
    next_cursor: Option<&str>,
    mut item: impl FnMut(&mut Vec<u8>, &T),
) {
    out.extend_from_slice(b"{\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":[");
    for (at, one) in items.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        item(out, one);
    }
    out.push(b']');
    if let Some(cursor) = next_cursor {
        out.extend_from_slice(b",\"nextCursor\":");
        append(out, &cursor);
    }
    out.push(b'}');
}

/// The body of a response whose result is what `result` appends.
pub(crate) fn result_body(id: &RequestId, size: usize, result: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(size + 64);
    open_response(&mut out, Some(id));
    out.extend_from_slice(b"\"result\":");
    result(&mut out);
    out.push(b'}');
    out.into()
}

/// The body of a notification.
pub(crate) fn notification_body(method: &str, params: &impl Serialize) -> Bytes {
    #[derive(Serialize)]
    struct Object<'a, P> {
        jsonrpc: &'static str,
        method: &'a str,
        params: &'a P,
    }
    let mut out = Vec::with_capacity(256);
    append(&mut out, &Object { jsonrpc: "2.0", method, params });
    out.into()
}

/// Appends `value` as JSON.
pub(crate) fn append(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("invariant: our own values have string keys and go to memory");
}

fn open_response(out: &mut Vec<u8>, id: Option<&RequestId>) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",");
    if let Some(id) = id {
        out.extend_from_slice(b"\"id\":");
        out.extend_from_slice(id.to_json().as_bytes());
        out.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &[u8]) -> (i32, Option<String>) {
        let malformed = parse(body).unwrap_err();
        let sent: serde_json::Value = serde_json::from_slice(&malformed.body()).unwrap();
        assert_eq!(sent["jsonrpc"], "2.0");
        assert_eq!(sent["error"]["code"], malformed.error.code);
        (malformed.error.code, sent.get("id").map(ToString::to_string))
    }

    #[test]
    fn a_message_is_what_its_members_say() {
        let id = |json| RequestId::from_json(json).unwrap();
        let body =
            br#" {"params":{"a":{"b":[1.0]},"c":"d"},"x":[{}],"method":"m\u0065","id":"\u0031","jsonrpc":"2\u002e0"}
"#;
        match parse(body).unwrap() {
            Message::Request { id: got, method, params } => {
                assert_eq!((got, &*method), (id("\"1\""), "me"));
                assert_eq!(params.get("a"), Some(r#"{"b":[1.0]}"#));
                assert_eq!(params.get("c"), Some(r#""d""#));
                assert_eq!(params.get("b"), None);
            }
            other => panic!("{other:?}"),
        }
        let body = br#"{"jsonrpc":"2.0","method":"ping"}"#;
        assert_eq!(parse(body).unwrap(), Message::Notification { method: "ping".into(), params: Params::default() });
        let sealed = format!("\"{}\"", "a".repeat(RESPONSE_ID_BYTES_MAX - 2));
        let sealed_id = RequestId::up_to(RESPONSE_ID_BYTES_MAX, &sealed);
        assert_eq!(sealed_id.as_ref().unwrap().as_text(), Some(&sealed[1..sealed.len() - 1]));
        for (answer, id, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{ "a":1.0 }}"#, Some(id("1")), Ok(r#"{ "a":1.0 }"#)),
            (r#"{"jsonrpc":"2.0","id":"a","result":7}"#, Some(id("\"a\"")), Ok("7")),
            (r#"{"jsonrpc":"2.0","id":"a","error":{"code":1}}"#, Some(id("\"a\"")), Err(Unanswered::Refused)),
            (r#"{"jsonrpc":"2.0","id":"a","error":{ "code" : 0 }}"#, Some(id("\"a\"")), Err(Unanswered::Cancelled)),
            (r#"{"jsonrpc":"2.0","id":"a","error":0}"#, Some(id("\"a\"")), Err(Unanswered::Refused)),
            (r#"{"jsonrpc":"2.0","error":{"code":1}}"#, None, Err(Unanswered::Refused)),
            (&format!(r#"{{"jsonrpc":"2.0","id":{sealed},"result":{{}}}}"#), sealed_id, Ok("{}")),
        ] {
            assert_eq!(parse(answer.as_bytes()).unwrap(), Message::Response { id, answer: expected });
        }
    }

    #[test]
    fn an_id_comes_back_as_it_was_sent() {
        let long = format!("\"{}\"", "a".repeat(REQUEST_ID_BYTES_MAX - 2));
        let ids = ["1", "\"1\"", "0", "-7", "123456789012345678901234567890", "\"\"", "\"é\\n\\u0000\"", &long];
        for (at, id) in ids.iter().enumerate() {
            let read = RequestId::from_json(id).unwrap();
            assert_eq!(read.to_json(), *id);
            for other in &ids[at + 1..] {
                assert_ne!(Some(&read), RequestId::from_json(other).as_ref());
            }
        }
        assert_eq!(RequestId::from_json("\"\\u0061\""), RequestId::from_json("\"a\""));
        let too_long = format!("\"{}\"", "a".repeat(REQUEST_ID_BYTES_MAX - 1));
        for bad in ["null", "true", "1.5", "1e2", "1.0", "{}", "[1]", &too_long] {
            assert_eq!(RequestId::from_json(bad), None, "{bad}");
            let body = format!(r#"{{"jsonrpc":"2.0","id":{bad},"method":"ping"}}"#);
            assert_eq!(refused(body.as_bytes()), (-32600, None), "{bad}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_id_if_it_could_be_read() {
        let deep =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","x":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
        let one = || Some("1".to_owned());
        let long_id = "a".repeat(RESPONSE_ID_BYTES_MAX - 1);
        let long_answer = format!(r#"{{"jsonrpc":"2.0","id":"{long_id}","result":{{}}}}"#);
        let cases: [(&str, i32, Option<String>); 25] = [
            ("", -32700, None),
            (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"#, -32700, None),
            ("\u{feff}{}", -32700, None),
            ("[]", -32600, None),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, None),
            ("7", -32600, None),
            ("{}", -32600, None),
            (r#"{"id":1,"method":"ping"}"#, -32600, one()),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600, one()),
            (r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1,"method":null,"result":{}}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#, -32600, None),
            (&long_answer, -32600, None),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":["x"]}"#, -32602, one()),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":null}"#, -32602, one()),
            (r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1,"method":"a","m\u0065thod":"b"}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#, -32600, None),
            (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"p":1,"p":2}}}"#, -32600, one()),
            (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"n":1e400}}}"#, -32600, one()),
            (&deep, -32600, one()),
        ];
        for (body, code, id) in cases {
            assert_eq!(refused(body.as_bytes()), (code, id), "{}", &body[..body.len().min(80)]);
        }
    }

    #[test]
    fn error_data_that_is_no_json_is_left_out() {
        let id = RequestId::from_json("1").unwrap();
        let error = |data: &'static str| RpcError { code: 5, message: "m\"".into(), data: Some(data.into()) };
        assert_eq!(
            error_body(Some(&id), &error("{\"a\": 1.00}")),
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":5,"message":"m\"","data":{"a": 1.00}}}"#
        );
        assert_eq!(error_body(None, &error("{")), r#"{"jsonrpc":"2.0","error":{"code":5,"message":"m\""}}"#);
    }
}
