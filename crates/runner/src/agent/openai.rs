//! Chat Completions as OpenAI defined them and many servers speak them (OpenAI API reference, "Chat Completions").

use serde::Deserialize;
use serde_json::{Value, json};

use super::model::{Message, Said, Stop, ToolCall, Turn, Usage};
use super::stream::{CALLS_MAX, Flow, Odd, Reading};

/// The request's body. `tokens_key` is what the server calls its limit: `max_completion_tokens`, or `max_tokens` of old.
pub(super) fn body(model: &str, tokens_key: &str, turn: &Turn<'_>) -> Value {
    let mut messages = Vec::with_capacity(turn.history.len() + 1);
    if !turn.system.is_empty() {
        messages.push(json!({ "role": "system", "content": turn.system }));
    }
    let mut calls: &[ToolCall] = &[];
    for message in turn.history {
        match message {
            Message::Person(text) => messages.push(json!({ "role": "user", "content": text })),
            Message::Model(said) => {
                calls = &said.calls;
                messages.push(said_before(said));
            }
            Message::Tools(answers) => {
                messages.extend(
                    calls.iter().zip(answers).map(
                        |(call, answer)| json!({ "role": "tool", "tool_call_id": call.id, "content": answer.text }),
                    ),
                );
            }
        }
    }
    let mut body = json!({
        "model": model,
        "messages": messages,
        "stream": true,
        "stream_options": { "include_usage": true },
        tokens_key: turn.tokens_max,
    });
    if !turn.tools.is_empty() {
        let tool = |tool: &super::model::ToolSpec| {
            json!({
                "type": "function",
                "function": { "name": tool.name, "description": tool.description, "parameters": tool.parameters },
            })
        };
        body["tools"] = turn.tools.iter().map(tool).collect();
    }
    body
}

fn said_before(said: &Said) -> Value {
    let content = if said.text.is_empty() { Value::Null } else { said.text.as_str().into() };
    if said.calls.is_empty() {
        return json!({ "role": "assistant", "content": said.text });
    }
    let call = |call: &ToolCall| {
        json!({
            "id": call.id,
            "type": "function",
            "function": { "name": call.name, "arguments": call.arguments },
        })
    };
    json!({ "role": "assistant", "content": content, "tool_calls": said.calls.iter().map(call).collect::<Vec<_>>() })
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Used>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    refusal: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Piece>>,
}

#[derive(Deserialize)]
struct Piece {
    index: Option<usize>,
    id: Option<String>,
    #[serde(default)]
    function: Function,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Used {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// What has come of an answer.
#[derive(Default)]
pub(super) struct Answer {
    said: Said,
    usage: Option<Usage>,
    is_finished: bool,
}

impl Reading for Answer {
    fn event(&mut self, data: &[u8]) -> Result<Flow, Odd> {
        if data == b"[DONE]" {
            return Ok(Flow::End);
        }
        let chunk: Chunk = serde_json::from_slice(data).map_err(|_| Odd::Unreadable)?;
        if let Some(error) = chunk.error {
            return Err(Odd::Failed(super::stream::kind_of(&error)));
        }
        if let Some(used) = chunk.usage {
            let cached = used.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or_default();
            self.usage = Some(Usage {
                input: used.prompt_tokens.saturating_sub(cached),
                cached,
                output: used.completion_tokens,
                ..Usage::default()
            });
        }
        // One was asked for: `n` is 1.
        let Some(Choice { delta, finish_reason }) = chunk.choices.into_iter().next() else { return Ok(Flow::More) };
        if let Some(text) = delta.content {
            self.said.text.push_str(&text);
        }
        if let Some(refusal) = delta.refusal {
            self.said.text.push_str(&refusal);
            self.said.stop = Stop::Refused;
        }
        for piece in delta.tool_calls.into_iter().flatten() {
            self.piece(piece)?;
        }
        match finish_reason.as_deref() {
            None => return Ok(Flow::More),
            Some("length") => self.said.stop = Stop::Length,
            Some("content_filter") => self.said.stop = Stop::Refused,
            Some(_) => {}
        }
        self.is_finished = true;
        // The usage comes after it.
        Ok(Flow::More)
    }

    fn received(&self) -> usize {
        self.said.text.len() + self.said.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>()
    }

    fn finish(mut self) -> Result<(Said, bool), Odd> {
        if !self.is_finished {
            return Err(Odd::Cut);
        }
        for (nth, call) in self.said.calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            call.id = format!("call_{nth}");
        }
        self.said.usage = self.usage.unwrap_or_default();
        Ok((self.said, self.usage.is_some()))
    }
}

impl Answer {
    /// A piece of a call. Without an index it belongs to the call of its id; a server that cuts nothing gives neither.
    fn piece(&mut self, piece: Piece) -> Result<(), Odd> {
        let calls = &mut self.said.calls;
        let known = || piece.id.as_ref().and_then(|id| calls.iter().position(|call| call.id == *id));
        let at = piece.index.or_else(known).unwrap_or(calls.len());
        if at >= CALLS_MAX {
            return Err(Odd::TooLarge);
        }
        if calls.len() <= at {
            calls.resize_with(at + 1, ToolCall::default);
        }
        let call = &mut calls[at];
        if let Some(id) = piece.id.filter(|id| !id.is_empty()) {
            call.id = id;
        }
        if let Some(name) = piece.function.name {
            call.name.push_str(&name);
        }
        if let Some(arguments) = piece.function.arguments {
            call.arguments.push_str(&arguments);
        }
        Ok(())
    }
}
