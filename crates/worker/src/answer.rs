//! What a tool answers.

use base64::Engine as _;
use bytes::Bytes;
use longhaul_core::{CallError, ClientCapabilities, Outcome, Target};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::json::Members;

/// JSON-RPC: the call could not be served.
pub(crate) const INTERNAL_ERROR: i32 = -32603;
/// JSON-RPC: the call names something that is not there.
pub(crate) const INVALID_PARAMS: i32 = -32602;
/// MCP 2025-11-25, server/resources, "Error Handling"; gateways write what the caller's revision has.
const RESOURCE_NOT_FOUND: i32 = -32002;
/// MCP 2026-07-28, basic/index, "Error Codes".
const MISSING_CAPABILITY: i32 = -32021;

/// A tool's answer: the result of the call.
#[derive(Debug, Clone)]
pub struct Answer(Form);

#[derive(Debug, Clone)]
enum Form {
    Built(Body),
    Raw {
        body: Bytes,
        is_error: bool,
    },
    /// A value that has no JSON: a bug of the tool.
    Unwritable(String),
}

/// A `tools/call` result (MCP 2025-11-25 schema, `CallToolResult`).
#[derive(Debug, Clone, Default, Serialize)]
struct Body {
    content: Vec<Value>,
    #[serde(rename = "structuredContent", skip_serializing_if = "Option::is_none")]
    structured: Option<Box<RawValue>>,
    #[serde(rename = "isError", skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<Value>,
}

impl Answer {
    /// One block of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::content([]).with_text(text)
    }

    /// Content blocks as MCP writes them: text, image, audio, resource or resource link.
    pub fn content(blocks: impl IntoIterator<Item = Value>) -> Self {
        Self(Form::Built(Body { content: blocks.into_iter().collect(), ..Body::default() }))
    }

    /// Structured content; its JSON is the text block too, for clients that read text alone. It should be an object:
    /// clients of MCP 2025-11-25 are given nothing else.
    pub fn structured<T: Serialize + ?Sized>(value: &T) -> Self {
        match to_raw_value(value) {
            Ok(json) => Self(Form::Built(Body {
                content: vec![json!({ "type": "text", "text": json.get() })],
                structured: Some(json),
                ..Body::default()
            })),
            Err(error) => Self(Form::Unwritable(error.to_string())),
        }
    }

    /// The JSON of a whole `tools/call` result: an object, sent on byte for byte. Its `isError` is honoured.
    pub fn raw(result: impl Into<Bytes>) -> Result<Self, Failure> {
        let body = result.into();
        let bad = |why: String| Failure::protocol(INTERNAL_ERROR, format!("the tool's result is unusable: {why}"));
        let members = Members::read(&body).map_err(|error| bad(error.to_string()))?;
        let is_error = match members.get("isError").map(RawValue::get) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(bad("isError is not a boolean".into())),
        };
        Ok(Self(Form::Raw { body, is_error }))
    }

    /// Any other result, as a whole.
    pub(crate) fn object<T: Serialize + ?Sized>(value: &T) -> Self {
        Self(match serde_json::to_vec(value) {
            Ok(body) => Form::Raw { body: body.into(), is_error: false },
            Err(error) => Form::Unwritable(error.to_string()),
        })
    }

    /// One more block of text.
    pub fn with_text(self, text: impl Into<String>) -> Self {
        self.with_block(json!({ "type": "text", "text": text.into() }))
    }

    /// One more block: an image of the given media type.
    pub fn with_image(self, image: &[u8], media_type: &str) -> Self {
        let data = base64::engine::general_purpose::STANDARD.encode(image);
        self.with_block(json!({ "type": "image", "data": data, "mimeType": media_type }))
    }

    /// One more content block, as MCP writes it. A raw answer stays as it is.
    pub fn with_block(self, block: Value) -> Self {
        self.change(|body| body.content.push(block))
    }

    /// The result's `_meta`. A raw answer stays as it is.
    pub fn with_meta(self, meta: Value) -> Self {
        self.change(|body| body.meta = Some(meta))
    }

    /// Marks the answer as a tool error (`isError: true`): for the caller's model to read. A raw answer stays as it is.
    pub fn failed(self) -> Self {
        self.change(|body| body.is_error = true)
    }

    fn change(mut self, change: impl FnOnce(&mut Body)) -> Self {
        if let Form::Built(body) = &mut self.0 {
            change(body);
        }
        self
    }
}

/// Why a tool has no answer.
///
/// Any error becomes one with `?`: a tool error with the error's text.
#[derive(Debug, Clone)]
pub struct Failure(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Tool(String),
    Protocol { code: i32, message: String, data: Option<Box<RawValue>> },
}

impl Failure {
    /// A tool error: a result with `isError: true` and this text, for the caller's model to read.
    pub fn tool(message: impl Into<String>) -> Self {
        Self(Kind::Tool(message.into()))
    }

    /// A JSON-RPC error.
    pub fn protocol(code: i32, message: impl Into<String>) -> Self {
        Self(Kind::Protocol { code, message: message.into(), data: None })
    }

    /// There is no resource of this URI.
    pub fn resource_not_found(uri: &str) -> Self {
        Self::protocol(RESOURCE_NOT_FOUND, "Resource not found").with_data(&json!({ "uri": uri }))
    }

    /// The call makes no sense for a client that cannot be asked this.
    pub fn missing_capability(missing: ClientCapabilities) -> Self {
        let ClientCapabilities { elicitation_form, elicitation_url, sampling, roots } = missing;
        let mut needed = Map::new();
        let modes = [(elicitation_form, "form"), (elicitation_url, "url")];
        let modes: Map<_, _> =
            modes.into_iter().filter(|(is, _)| *is).map(|(_, mode)| (mode.into(), json!({}))).collect();
        if !modes.is_empty() {
            needed.insert("elicitation".into(), modes.into());
        }
        for (_, other) in [(sampling, "sampling"), (roots, "roots")].into_iter().filter(|(is, _)| *is) {
            needed.insert(other.into(), json!({}));
        }
        Self::protocol(MISSING_CAPABILITY, "The client lacks a capability that this call needs")
            .with_data(&json!({ "requiredCapabilities": needed }))
    }

    /// The same, where there is no result that is an error.
    pub(crate) fn into_protocol(self) -> Self {
        match self.0 {
            Kind::Tool(message) => Self::protocol(INTERNAL_ERROR, message),
            Kind::Protocol { .. } => self,
        }
    }

    /// The `data` of a JSON-RPC error; a [`RawValue`] stays as it is written. A tool error has none.
    pub fn with_data<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        if let Kind::Protocol { data, .. } = &mut self.0 {
            *data = to_raw_value(value).ok();
        }
        self
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::tool(error.to_string())
    }
}

pub(crate) fn internal_error(message: impl Into<String>) -> Outcome {
    Outcome::Error(CallError { code: INTERNAL_ERROR, message: message.into(), data: None })
}

/// What is called is not there.
pub(crate) fn unknown(target: &Target) -> Outcome {
    let what = match target {
        Target::Tool(_) => "tool",
        Target::Prompt(_) | Target::CompletePrompt(_) => "prompt",
        Target::Resource(uri) => return outcome(Err(Failure::resource_not_found(uri)), usize::MAX),
        Target::CompleteTemplate(_) => "resource template",
    };
    let message = format!("Unknown {what}: {}", target.name());
    Outcome::Error(CallError { code: INVALID_PARAMS, message, data: None })
}

/// How the call ended, in at most `bytes_max` bytes.
pub(crate) fn outcome(answer: Result<Answer, Failure>, bytes_max: usize) -> Outcome {
    let outcome = match answer {
        Ok(Answer(Form::Built(body))) => written(&body),
        Ok(Answer(Form::Raw { body, is_error })) => Outcome::Result { is_error, body },
        Ok(Answer(Form::Unwritable(why))) => internal_error(format!("the tool's answer has no JSON: {why}")),
        Err(Failure(Kind::Tool(message))) => {
            let Answer(Form::Built(body)) = Answer::text(message).failed() else {
                return internal_error("the tool failed");
            };
            written(&body)
        }
        Err(Failure(Kind::Protocol { code, message, data })) => Outcome::Error(CallError {
            code,
            message,
            data: data.map(|data| Bytes::from(String::from(Box::<str>::from(data)))),
        }),
    };
    let bytes = match &outcome {
        Outcome::Result { body, .. } => body.len(),
        Outcome::Error(error) => error.message.len() + error.data.as_ref().map_or(0, Bytes::len),
        Outcome::Cancelled | Outcome::Interrupted(_) => 0,
    };
    if bytes > bytes_max {
        return internal_error(format!("the tool's answer is too large: {bytes} bytes, {bytes_max} at most"));
    }
    outcome
}

fn written(body: &Body) -> Outcome {
    match serde_json::to_vec(body) {
        Ok(json) => Outcome::Result { is_error: body.is_error, body: json.into() },
        Err(error) => internal_error(format!("the tool's answer has no JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(answer: Answer) -> (bool, String) {
        match outcome(Ok(answer), 1 << 20) {
            Outcome::Result { is_error, body } => (is_error, String::from_utf8(body.to_vec()).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    fn error(answer: Result<Answer, Failure>, max: usize) -> CallError {
        match outcome(answer, max) {
            Outcome::Error(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn answers_have_the_shape_of_a_tool_result() {
        assert_eq!(result(Answer::text("hi")), (false, r#"{"content":[{"type":"text","text":"hi"}]}"#.into()));
        let structured = result(Answer::structured(&json!({ "n": 1 })).with_meta(json!({ "k": true })));
        assert_eq!(
            structured.1,
            r#"{"content":[{"type":"text","text":"{\"n\":1}"}],"structuredContent":{"n":1},"_meta":{"k":true}}"#
        );
        let image = result(Answer::content([]).with_image(b"\x00\xff", "image/png"));
        assert_eq!(image.1, r#"{"content":[{"type":"image","data":"AP8=","mimeType":"image/png"}]}"#);
        let failed = result(Answer::text("no").failed());
        assert_eq!(failed, (true, r#"{"content":[{"type":"text","text":"no"}],"isError":true}"#.into()));
    }

    #[test]
    fn a_raw_answer_stays_byte_for_byte_and_says_itself_whether_it_is_an_error() {
        let odd = r#" {"isError" : true, "n":1.10, "big":123456789012345678901234567890, "content":[ ]} "#;
        assert_eq!(result(Answer::raw(odd).unwrap()), (true, odd.into()));
        assert!(!result(Answer::raw("{}").unwrap()).0);
        for bad in ["[]", "", "null", "{", r#"{"isError":"yes"}"#, "{} x", "{\"a\":\"\u{1}\"}"] {
            assert_eq!(error(Answer::raw(bad), 1000).code, INTERNAL_ERROR, "{bad}");
        }
    }

    #[test]
    fn a_failure_is_a_tool_error_or_a_protocol_error() {
        let Outcome::Result { is_error: true, body } = outcome(Err(Failure::tool("out of paper")), 1000) else {
            panic!("not a tool error");
        };
        assert!(body.ends_with(br#""isError":true}"#));
        let data = RawValue::from_string("{\"n\":1.10}".into()).unwrap();
        let protocol = error(Err(Failure::protocol(-32000, "no").with_data(&data)), 1000);
        assert_eq!(protocol, CallError { code: -32000, message: "no".into(), data: Some("{\"n\":1.10}".into()) });
        let from_any: Failure = "x".parse::<u8>().unwrap_err().into();
        assert!(matches!(outcome(Err(from_any), 1000), Outcome::Result { is_error: true, .. }));
    }

    #[test]
    fn a_missing_capability_is_named_as_clients_declare_it() {
        for (bits, named) in [
            (0b0001, r#"{"elicitation":{"form":{}}}"#),
            (0b1110, r#"{"elicitation":{"url":{}},"sampling":{},"roots":{}}"#),
        ] {
            let missing = error(Err(Failure::missing_capability(ClientCapabilities::from_bits(bits))), 1000);
            assert_eq!(missing.code, -32021);
            assert_eq!(missing.data.unwrap(), format!(r#"{{"requiredCapabilities":{named}}}"#));
        }
    }

    #[test]
    fn an_answer_that_is_too_large_says_so_instead() {
        let large = error(Ok(Answer::text("x".repeat(1000))), 500);
        assert_eq!(large.code, INTERNAL_ERROR);
        assert!(large.message.contains("500 at most"), "{}", large.message);
        assert!(error(Err(Failure::protocol(1, "y".repeat(501))), 500).message.contains("501 bytes"));
    }
}
