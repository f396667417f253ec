//! What an agent says to its model and hears from it, whatever the provider.

use serde::{Deserialize, Serialize};

/// What the model is asked to go on with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) system: &'a str,
    /// Sorted by name, so that the beginning of a conversation stays the same and providers can cache it.
    pub(crate) tools: &'a [ToolSpec],
    pub(crate) history: &'a [Message],
    /// The largest answer.
    pub(crate) tokens_max: u64,
}

/// A tool as the model sees it.
#[derive(Debug, Clone)]
pub(crate) struct ToolSpec {
    /// `[A-Za-z0-9_-]{1,64}`: providers take nothing else.
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema.
    pub(crate) parameters: Box<serde_json::value::RawValue>,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Message {
    /// From the caller.
    Person(String),
    /// From the model.
    Model(Said),
    /// The answers to all calls of the message before, in their order.
    Tools(Vec<ToolAnswer>),
}

/// What the model said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) stop: Stop,
    pub(crate) usage: Usage,
}

/// A call that the model wants made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolCall {
    /// The provider's id.
    pub(crate) id: String,
    pub(crate) name: String,
    /// As the model wrote them: hopefully a JSON object.
    pub(crate) arguments: String,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolAnswer {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// Why the model said no more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stop {
    /// It has finished.
    #[default]
    Done,
    /// Its answer became too long.
    Length,
    /// It, or its provider, will not answer.
    Refused,
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Read anew.
    pub(crate) input: u64,
    /// Read from the provider's cache.
    pub(crate) cached: u64,
    /// Written to the provider's cache.
    pub(crate) cache_written: u64,
    pub(crate) output: u64,
    /// Some of it is our guess: the provider did not say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_estimated: bool,
}

impl Usage {
    /// All of them.
    pub(crate) fn tokens(&self) -> u64 {
        self.input + self.cached + self.cache_written + self.output
    }

    /// Adds another one's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.input += other.input;
        self.cached += other.cached;
        self.cache_written += other.cache_written;
        self.output += other.output;
        self.is_estimated |= other.is_estimated;
    }

    /// A guess from the bytes that were sent and received: about four for a token.
    pub(crate) fn guess(sent: usize, received: usize) -> Self {
        let tokens = |bytes: usize| bytes.div_ceil(4) as u64;
        Self { input: tokens(sent), output: tokens(received), is_estimated: true, ..Self::default() }
    }
}

/// Why the model has not answered. What it shows goes to the agent's caller.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ModelError {
    /// The provider is busy or away.
    #[error("the model's provider {provider} is not available ({why}); try again later")]
    Away {
        /// Its configured name.
        provider: String,
        /// A status, or what went wrong.
        why: String,
    },
    /// The provider does not take what it was sent.
    #[error("the model's provider {provider} refused the request ({why}); the operator's log says more")]
    Refused {
        /// Its configured name.
        provider: String,
        /// The status and the kind of the error.
        why: String,
    },
}
