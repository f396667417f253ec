//! A provider of models that says what the test has written, in either format, byte by byte.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::world::SOON;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Openai,
    Anthropic,
}

/// What the provider does with one request.
#[derive(Debug, Clone)]
pub enum Script {
    /// Says this, and calls tools: name and arguments as they are.
    Say { text: &'static str, calls: Vec<(&'static str, &'static str)>, usage: (u64, u64) },
    /// Answers with a status, headers and a body.
    Status(u16, &'static str, Value),
    /// Says this and breaks off.
    Cut(&'static str),
    /// Says this, and then that something is wrong.
    Fault(&'static str),
    /// Says this and nothing more, for ever.
    Hang(&'static str),
}

pub fn say(text: &'static str) -> Script {
    Script::Say { text, calls: Vec::new(), usage: (100, 10) }
}

pub fn call(name: &'static str, arguments: &'static str) -> Script {
    Script::Say { text: "", calls: vec![(name, arguments)], usage: (100, 10) }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// The request line and the headers, in lower case.
    pub head: String,
    pub body: Value,
}

pub struct Provider {
    pub port: u16,
    format: Format,
    scripts: Arc<Mutex<VecDeque<Script>>>,
    pub requests: Arc<Mutex<Vec<Request>>>,
    /// How many are being answered.
    open: watch::Receiver<usize>,
    hanging: mpsc::UnboundedReceiver<()>,
    _serving: AbortOnDropHandle<()>,
}

impl Provider {
    pub async fn start(format: Format, scripts: impl IntoIterator<Item = Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let scripts: Arc<Mutex<VecDeque<_>>> = Arc::new(Mutex::new(scripts.into_iter().collect()));
        let requests: Arc<Mutex<Vec<_>>> = Arc::default();
        let (open, is_open) = watch::channel(0);
        let (hangs, hanging) = mpsc::unbounded_channel();
        let (left, log) = (scripts.clone(), requests.clone());
        let (tasks, connections) = (TaskTracker::new(), TaskTracker::new());
        let serving = tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (left, log, open, hangs) = (left.clone(), log.clone(), open.clone(), hangs.clone());
                connections.spawn(async move {
                    open.send_modify(|open| *open += 1);
                    let _ = serve(stream, format, &left, &log, &hangs).await;
                    open.send_modify(|open| *open -= 1);
                });
            }
        });
        Self { port, format, scripts, requests, open: is_open, hanging, _serving: AbortOnDropHandle::new(serving) }
    }

    pub fn config(&self) -> Value {
        let (speaks, path) = match self.format {
            Format::Openai => ("openai", "/v1"),
            Format::Anthropic => ("anthropic", ""),
        };
        json!({
            "name": "p",
            "speaks": speaks,
            "base_url": format!("http://127.0.0.1:{}{path}", self.port),
            "api_key": "sk-secret-of-the-test",
        })
    }

    /// Adds to the script.
    pub fn then(&self, scripts: impl IntoIterator<Item = Script>) {
        self.scripts.lock().unwrap().extend(scripts);
    }

    /// Waits until a request hangs.
    pub async fn hangs(&mut self) {
        timeout(SOON, self.hanging.recv()).await.expect("a request hangs").unwrap();
    }

    /// Waits until nobody is connected any more.
    pub async fn is_left_alone(&mut self) {
        timeout(SOON, self.open.wait_for(|open| *open == 0)).await.expect("all have gone").unwrap();
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    format: Format,
    scripts: &Mutex<VecDeque<Script>>,
    log: &Mutex<Vec<Request>>,
    hangs: &mpsc::UnboundedSender<()>,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
                buffer.drain(..end + 4);
                break head;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
        while buffer.len() < length {
            stream.read_buf(&mut buffer).await?;
        }
        let body = serde_json::from_slice(&buffer[..length]).unwrap();
        buffer.drain(..length);
        log.lock().unwrap().push(Request { head, body });
        let script = scripts.lock().unwrap().pop_front().unwrap_or(Script::Status(500, "", json!({ "error": "over" })));
        let text = match &script {
            Script::Status(status, headers, body) => {
                let body = body.to_string();
                let length = body.len();
                let answer = format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await?;
                continue;
            }
            Script::Say { text, .. } | Script::Cut(text) | Script::Fault(text) | Script::Hang(text) => text,
        };
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await?;
        let (begin, end) = match format {
            Format::Openai => openai(text, &script),
            Format::Anthropic => anthropic(text, &script),
        };
        pieces(&mut stream, &begin).await?;
        match script {
            Script::Hang(_) => {
                let _ = hangs.send(());
                // Until the client goes.
                let _ = stream.read_buf(&mut buffer).await?;
                return Ok(());
            }
            Script::Cut(_) => return Ok(()),
            Script::Say { .. } | Script::Fault(_) | Script::Status(..) => pieces(&mut stream, &end).await?,
        }
        stream.write_all(b"0\r\n\r\n").await?;
    }
}

/// Sends events in pieces of seven bytes, so that every character and every line is torn somewhere.
async fn pieces(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    for piece in text.as_bytes().chunks(7) {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        stream.write_all(piece).await?;
        stream.write_all(b"\r\n").await?;
        stream.flush().await?;
    }
    Ok(())
}

fn openai(text: &str, script: &Script) -> (String, String) {
    let chunk = |delta: Value, finish: Value| {
        let chunk = json!({ "id": "x", "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
        format!("data: {chunk}\n\n")
    };
    let mut begin = chunk(json!({ "role": "assistant", "content": "" }), Value::Null);
    for word in text.split_inclusive(' ') {
        begin += &chunk(json!({ "content": word }), Value::Null);
    }
    let Script::Say { calls, usage, .. } = script else {
        let fault = json!({ "error": { "type": "server_error", "message": "sk-secret-of-the-test is broken" } });
        return (begin, format!("data: {fault}\n\n"));
    };
    let mut end = String::new();
    for (at, (name, arguments)) in calls.iter().enumerate() {
        let id = format!("call_{at}");
        end += &chunk(
            json!({ "tool_calls": [{ "index": at, "id": id, "type": "function", "function": { "name": name, "arguments": "" } }] }),
            Value::Null,
        );
        for piece in torn(arguments) {
            end += &chunk(json!({ "tool_calls": [{ "index": at, "function": { "arguments": piece } }] }), Value::Null);
        }
    }
    end += &chunk(json!({}), json!(if calls.is_empty() { "stop" } else { "tool_calls" }));
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": usage.0, "completion_tokens": usage.1, "prompt_tokens_details": { "cached_tokens": usage.0 / 2 } } });
    end += &format!(": a comment\n\ndata: {usage}\n\ndata: [DONE]\n\n");
    (begin, end)
}

fn anthropic(text: &str, script: &Script) -> (String, String) {
    let event = |data: Value| format!("event: {}\r\ndata: {data}\r\n\r\n", data["type"].as_str().unwrap());
    let (input, output) = match script {
        Script::Say { usage, .. } => *usage,
        _ => (100, 10),
    };
    let usage = json!({ "input_tokens": input - input / 2, "cache_read_input_tokens": input / 2, "output_tokens": 1 });
    let mut begin = event(
        json!({ "type": "message_start", "message": { "id": "m", "role": "assistant", "content": [], "usage": usage } }),
    );
    begin += &event(json!({ "type": "ping" }));
    begin +=
        &event(json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }));
    for word in text.split_inclusive(' ') {
        begin += &event(
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": word } }),
        );
    }
    let Script::Say { calls, .. } = script else {
        return (
            begin,
            event(
                json!({ "type": "error", "error": { "type": "overloaded_error", "message": "sk-secret-of-the-test" } }),
            ),
        );
    };
    let mut end = event(json!({ "type": "content_block_stop", "index": 0 }));
    for (at, (name, arguments)) in calls.iter().enumerate() {
        let index = at + 1;
        end += &event(
            json!({ "type": "content_block_start", "index": index, "content_block": { "type": "tool_use", "id": format!("call_{at}"), "name": name, "input": {} } }),
        );
        for piece in torn(arguments) {
            end += &event(
                json!({ "type": "content_block_delta", "index": index, "delta": { "type": "input_json_delta", "partial_json": piece } }),
            );
        }
        end += &event(json!({ "type": "content_block_stop", "index": index }));
    }
    let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
    end += &event(
        json!({ "type": "message_delta", "delta": { "stop_reason": stop, "stop_sequence": null }, "usage": { "output_tokens": output } }),
    );
    end += &event(json!({ "type": "something_new", "x": 1 }));
    end += &event(json!({ "type": "message_stop" }));
    (begin, end)
}

fn torn(text: &str) -> Vec<String> {
    text.chars().collect::<Vec<_>>().chunks(3).map(|piece| piece.iter().collect()).collect()
}
