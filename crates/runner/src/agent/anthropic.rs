//! Messages as Anthropic defined them (Anthropic API reference, "Messages", "Streaming Messages").

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::model::{Message, Said, Stop, ToolCall, ToolSpec, Turn, Usage};
use super::stream::{CALLS_MAX, Flow, Odd, Reading, kind_of};

/// The version of the API that requests name.
pub(super) const VERSION: &str = "2023-06-01";

/// The request's body. What stays the same from turn to turn is marked for the provider's cache.
pub(super) fn body(model: &str, turn: &Turn<'_>) -> Value {
    let mut messages = Vec::with_capacity(turn.history.len());
    let mut calls: &[ToolCall] = &[];
    for message in turn.history {
        match message {
            Message::Person(text) => messages.push(json!({ "role": "user", "content": text })),
            Message::Model(said) => {
                calls = &said.calls;
                messages.push(json!({ "role": "assistant", "content": blocks(said) }));
            }
            Message::Tools(answers) => {
                let answer = |(call, answer): (&ToolCall, &super::model::ToolAnswer)| {
                    json!({
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": answer.text,
                        "is_error": answer.is_error,
                    })
                };
                let answers: Vec<Value> = calls.iter().zip(answers).map(answer).collect();
                messages.push(json!({ "role": "user", "content": answers }));
            }
        }
    }
    let mut body = json!({ "model": model, "max_tokens": turn.tokens_max, "messages": messages, "stream": true });
    let keep = json!({ "type": "ephemeral" });
    if !turn.system.is_empty() {
        body["system"] = json!([{ "type": "text", "text": turn.system, "cache_control": keep }]);
    }
    if !turn.tools.is_empty() {
        let tool = |tool: &ToolSpec| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters });
        let mut tools: Vec<Value> = turn.tools.iter().map(tool).collect();
        if let Some(last) = tools.last_mut() {
            last["cache_control"] = keep;
        }
        body["tools"] = tools.into();
    }
    body
}

fn blocks(said: &Said) -> Vec<Value> {
    let text = (!said.text.is_empty()).then(|| json!({ "type": "text", "text": said.text }));
    let call = |call: &ToolCall| {
        // What was no object has been answered with an error; the API takes nothing else.
        let input: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
        json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
    };
    text.into_iter().chain(said.calls.iter().map(call)).collect()
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Start,
    },
    ContentBlockStart {
        index: usize,
        content_block: Block,
    },
    ContentBlockDelta {
        index: usize,
        delta: Delta,
    },
    MessageDelta {
        delta: End,
        #[serde(default)]
        usage: Used,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    usage: Used,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        #[serde(default)]
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct End {
    stop_reason: Option<String>,
}

/// Of `message_start` and, with the totals so far, of `message_delta`.
#[derive(Default, Deserialize)]
struct Used {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

/// What has come of an answer.
#[derive(Default)]
pub(super) struct Answer {
    said: Said,
    /// The block of each call.
    blocks: Vec<usize>,
    usage: Option<Usage>,
    is_finished: bool,
}

impl Reading for Answer {
    fn event(&mut self, data: &[u8]) -> Result<Flow, Odd> {
        match serde_json::from_slice(data).map_err(|_| Odd::Unreadable)? {
            Event::MessageStart { message } => self.used(&message.usage),
            Event::ContentBlockStart { index, content_block: Block::ToolUse { id, name } } => {
                if self.blocks.len() == CALLS_MAX {
                    return Err(Odd::TooLarge);
                }
                self.blocks.push(index);
                self.said.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Event::ContentBlockStart { content_block: Block::Text { text }, .. } => self.said.text.push_str(&text),
            Event::ContentBlockDelta { delta: Delta::Text { text }, .. } => self.said.text.push_str(&text),
            Event::ContentBlockDelta { index, delta: Delta::InputJson { partial_json } } => {
                let Some(at) = self.blocks.iter().position(|block| *block == index) else { return Ok(Flow::More) };
                self.said.calls[at].arguments.push_str(&partial_json);
            }
            Event::MessageDelta { delta, usage } => {
                self.used(&usage);
                match delta.stop_reason.as_deref() {
                    None => return Ok(Flow::More),
                    Some("max_tokens" | "model_context_window_exceeded") => self.said.stop = Stop::Length,
                    Some("refusal") => self.said.stop = Stop::Refused,
                    Some(_) => {}
                }
                self.is_finished = true;
            }
            Event::MessageStop => return Ok(Flow::End),
            Event::Error { error } => return Err(Odd::Failed(kind_of(&error))),
            Event::ContentBlockStart { .. } | Event::ContentBlockDelta { .. } | Event::Other => {}
        }
        Ok(Flow::More)
    }

    fn received(&self) -> usize {
        self.said.text.len() + self.said.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>()
    }

    fn finish(mut self) -> Result<(Said, bool), Odd> {
        if !self.is_finished {
            return Err(Odd::Cut);
        }
        self.said.usage = self.usage.unwrap_or_default();
        Ok((self.said, self.usage.is_some()))
    }
}

impl Answer {
    fn used(&mut self, used: &Used) {
        let Used { input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens } = used;
        if input_tokens.or(*output_tokens).is_none() {
            return;
        }
        let usage = self.usage.get_or_insert_default();
        let set = |total: &mut u64, told: &Option<u64>| *total = told.unwrap_or(*total);
        set(&mut usage.input, input_tokens);
        set(&mut usage.output, output_tokens);
        set(&mut usage.cache_written, cache_creation_input_tokens);
        set(&mut usage.cached, cache_read_input_tokens);
    }
}
