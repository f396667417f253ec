//! What a run asks its caller, and what it is answered.
//!
//! Here: the values. The rules, the same for both eras and for tasks as for other calls, are in the modules: [`vet`] says
//! whether a question may be shown at all, [`fit`] whether an answer fits its question.

use bytes::Bytes;

mod answer;
mod form;
mod format;
mod json;
mod pattern;
mod secret;
mod url;

pub use answer::fit;
pub use form::{CHOICES_MAX, FIELDS_MAX, Form, FormError, PATTERNS_MAX};
pub use pattern::{MATCHED_BYTES_MAX, PATTERN_BYTES_MAX};
pub use url::{URL_BYTES_MAX, is_public};

use crate::time::Timestamp;

/// Questions of one task or call over its whole life.
pub const QUESTIONS_MAX: usize = 32;
/// The largest question, in bytes of message, schema, URL or parameters.
pub const QUESTION_BYTES_MAX: usize = 64 * 1024;
/// The largest answer to a form, in bytes.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// The longest key of a question, in bytes.
pub const KEY_BYTES_MAX: usize = 64;

/// Something that a run asks its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Fill in a form.
    Form {
        /// What to say above it.
        message: String,
        /// The JSON Schema of the content, as it came: an object of primitives (MCP 2025-11-25, client/elicitation,
        /// "Requested Schema").
        schema: Bytes,
    },
    /// Open a page.
    Url {
        /// Why.
        message: String,
        /// Which.
        url: String,
    },
    /// Ask the client's model: the parameters of `sampling/createMessage`, as they came. Not inside tasks.
    Sample {
        /// A JSON object.
        params: Bytes,
    },
    /// Name the client's roots. Not inside tasks.
    Roots,
}

impl Question {
    /// What it takes, in bytes of message, schema, URL or parameters.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Form { message, schema } => message.len() + schema.len(),
            Self::Url { message, url } => message.len() + url.len(),
            Self::Sample { params } => params.len(),
            Self::Roots => 0,
        }
    }
}

/// A question with its key: unique for the life of its task or call, never used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    /// 1 to [`KEY_BYTES_MAX`] characters of `[A-Za-z0-9_.-]`.
    pub key: String,
    /// What is asked.
    pub question: Question,
}

/// What a question was answered.
#[derive(Clone, PartialEq, Eq)]
pub enum InputResponse {
    /// Yes; with the content of a form, a JSON object, or none for a URL.
    Accept(Option<Bytes>),
    /// No. Also what an answer counts as that does not fit, or did not come in time.
    Decline,
    /// Not now.
    Cancel,
    /// The result of a question to the client itself (its model, its roots), a JSON object as it came.
    Result(Bytes),
}

/// Answers are never recorded: only their kind can be printed.
impl std::fmt::Debug for InputResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accept(_) => "Accept([redacted])",
            Self::Decline => "Decline",
            Self::Cancel => "Cancel",
            Self::Result(_) => "Result([redacted])",
        })
    }
}

/// Which question of a task is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputKey {
    /// The one of this key.
    Named(String),
    /// The n-th of the task, from 1.
    Nth(u32),
}

/// A question of a task, its n-th as it is the n-th of [`Task::inputs`](crate::Task::inputs).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its key.
    pub key: String,
    /// Whether it still waits.
    pub state: InputState,
}

/// Whether a question still waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputState {
    /// It waits for an answer.
    Open {
        /// What is asked.
        question: Question,
        /// When it counts as declined.
        until: Timestamp,
    },
    /// Answered, declined for want of time, or withdrawn.
    Closed,
}

/// Why a question may not be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// The form is not one that MCP allows.
    #[error("{0}")]
    Form(#[from] FormError),
    /// The form asks for a secret.
    #[error("a form must not ask for a secret: {0:?}; ask for a URL to be opened instead")]
    Secret(String),
    /// The URL must not be shown.
    #[error("only a public https URL may be shown: {0}")]
    Url(&'static str),
    /// It is too large.
    #[error("a question has at most {QUESTION_BYTES_MAX} bytes")]
    TooLarge,
}

/// Whether a question may be shown to anybody. A URL's name must besides resolve to public addresses alone
/// ([`is_public`]), which is for the caller to look up.
pub fn vet(question: &Question) -> Result<(), Objection> {
    if question.bytes() > QUESTION_BYTES_MAX {
        return Err(Objection::TooLarge);
    }
    match question {
        Question::Form { message, schema } => {
            let form = Form::read(schema)?;
            secret::look(message, &form).map_or(Ok(()), |found| Err(Objection::Secret(found)))
        }
        Question::Url { url, .. } => url::vet(url).map_err(Objection::Url),
        Question::Sample { .. } | Question::Roots => Ok(()),
    }
}

/// Whether a key has the right shape.
pub fn is_key(key: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}
