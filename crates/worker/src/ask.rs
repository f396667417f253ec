//! What a run asks its caller, and what it is answered.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::{InputResponse, Question};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use crate::form;

/// A question to the caller, for [`Context::request_input`](crate::Context::request_input).
#[derive(Debug, Clone)]
pub struct Ask {
    /// The question, or why there is none: said when it is asked.
    pub(crate) question: Result<Question, String>,
    pub(crate) key: Option<String>,
    pub(crate) timeout: Option<Duration>,
}

impl Ask {
    /// A form to fill in: a JSON Schema of a flat object of strings, numbers, booleans and choices (MCP 2025-11-25,
    /// client/elicitation, "Requested Schema"). One that MCP does not allow, or that asks for a secret, is never shown and
    /// counts as declined; for secrets there is [`url`](Self::url).
    pub fn form(message: impl Into<String>, schema: Value) -> Self {
        let schema = serde_json::to_vec(&schema).map_err(|error| format!("the schema has no JSON: {error}"));
        Self::of(schema.map(|schema| Question::Form { message: message.into(), schema: schema.into() }))
    }

    /// A form whose schema comes from a struct: its fields are strings, numbers, booleans, enums without data and lists of
    /// such enums; `Option` makes one optional. A struct that is no such form is an [`InputError::Invalid`].
    pub fn form_of<T: JsonSchema>(message: impl Into<String>) -> Self {
        Self::of(form::of::<T>().map(|schema| Question::Form { message: message.into(), schema }))
    }

    /// A page to open, for what must not pass through the client, such as secrets: public HTTPS, without anything in the
    /// URL that gives access. Any other counts as declined. Accepting it means consent to open it, not that the person is
    /// done there.
    pub fn url(message: impl Into<String>, url: impl Into<String>) -> Self {
        Self::of(Ok(Question::Url { message: message.into(), url: url.into() }))
    }

    /// A prompt for the client's model: the parameters of `sampling/createMessage`, an object. Not inside tasks.
    pub fn sample<T: Serialize + ?Sized>(params: &T) -> Self {
        let params = match serde_json::to_vec(params) {
            Ok(json) if json.starts_with(b"{") => Ok(json),
            Ok(_) => Err("the parameters of sampling are an object".to_owned()),
            Err(error) => Err(format!("the parameters of sampling have no JSON: {error}")),
        };
        Self::of(params.map(|params| Question::Sample { params: params.into() }))
    }

    /// The roots of the client (`roots/list`). Not inside tasks.
    pub fn roots() -> Self {
        Self::of(Ok(Question::Roots))
    }

    fn of(question: Result<Question, String>) -> Self {
        Self { question, key: None, timeout: None }
    }

    /// Its key, 1 to 64 characters of `[A-Za-z0-9_.-]`, which no other question of the run may have; `q-<n>` unless said.
    /// Callers see it.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// How long to wait for the answer before the question counts as declined, instead of the worker's setting. In a call
    /// that is not a task a gateway never waits longer than its own setting.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// For questions that are only known at run time: what they are made of stays as it came.
impl From<Question> for Ask {
    fn from(question: Question) -> Self {
        Self::of(Ok(question))
    }
}

/// What a question was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Yes: the content of a form, which fits its schema; empty for a URL.
    Accept(Content),
    /// No. Also if the question could not be asked, was not answered in time, or the answer did not fit.
    Decline,
    /// Not now.
    Cancel,
    /// What the client itself answered: the result of `sampling/createMessage` or `roots/list`, unchecked.
    Result(Content),
}

impl Response {
    /// The content, if the answer is yes.
    pub fn accepted(self) -> Option<Content> {
        match self {
            Self::Accept(content) | Self::Result(content) => Some(content),
            Self::Decline | Self::Cancel => None,
        }
    }
}

impl From<InputResponse> for Response {
    fn from(response: InputResponse) -> Self {
        match response {
            InputResponse::Accept(content) => {
                Self::Accept(Content(content.unwrap_or_else(|| Bytes::from_static(b"{}"))))
            }
            InputResponse::Decline => Self::Decline,
            InputResponse::Cancel => Self::Cancel,
            InputResponse::Result(result) => Self::Result(Content(result)),
        }
    }
}

/// A JSON object from the caller. It may be private, so printing it does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(Bytes);

impl Content {
    /// Reads it as a value of a type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ContentError> {
        serde_json::from_slice(&self.0).map_err(|error| {
            let what = match error.classify() {
                Category::Data => "does not have the expected form",
                Category::Syntax | Category::Eof | Category::Io => "is not JSON",
            };
            ContentError { what, line: error.line(), column: error.column() }
        })
    }

    /// The JSON, as it came.
    pub fn json(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Why a [`Content`] is not of the type wanted. It says where, but quotes nothing: what it says may become a tool's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the caller's answer {what} (line {line}, column {column})")]
pub struct ContentError {
    what: &'static str,
    line: usize,
    column: usize,
}

/// Why a question has no response. With `?` the tool ends there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The run is over: nobody will answer.
    #[error("the run was over before its question was answered")]
    Ended,
    /// Another question of this run has, or had, the key.
    #[error("the key {0:?} has been used for another question")]
    KeyUsed(String),
    /// More questions than a run may ask.
    #[error("a run asks at most {} questions", longhaul_core::input::QUESTIONS_MAX)]
    TooMany,
    /// The question is malformed, or could not be put.
    #[error("the question cannot be asked: {0}")]
    Invalid(String),
    /// The client's model and its roots are out of reach of a task.
    #[error("not supported inside a task")]
    Unsupported,
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    enum Colour {
        Red,
    }

    #[derive(Debug, Deserialize)]
    struct Car {
        #[serde(rename = "colour")]
        _colour: Colour,
        #[serde(rename = "doors")]
        _doors: u8,
    }

    #[test]
    fn an_answer_that_does_not_parse_is_not_quoted() {
        let content = |json: &'static str| Content(Bytes::from_static(json.as_bytes()));
        content(r#"{"colour":"Red","doors":4}"#).parse::<Car>().unwrap();
        for (json, told) in [
            (r#"{"colour":"canary","doors":4}"#, "does not have the expected form"),
            (r#"{"colour":"Red","doors":"canary"}"#, "does not have the expected form"),
            (r#"{"canary":canary}"#, "is not JSON"),
        ] {
            let error = content(json).parse::<Car>().unwrap_err();
            let shown = format!("{error} {error:?} {error:#?}");
            assert!(shown.contains(told) && shown.contains("line 1, column "), "{shown}");
            assert!(!shown.contains("canary"), "{shown}");
        }
    }
}
