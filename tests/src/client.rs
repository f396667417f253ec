//! A client of MCP 2025-11-25 that shows what is on the wire.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::{Value, json};

use crate::schema::{self, Schema};

/// What a conformant client accepts.
pub const BOTH: &str = "application/json, text/event-stream";
/// What a caller without streams accepts.
pub const JSON: &str = "application/json";
/// How long a test waits for anything before it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A client with a session.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    session: String,
    next_id: AtomicI64,
}

/// Connections of their own, no proxy, no redirects.
pub fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap()
}

impl Client {
    /// Initializes a session at `url`, with `token` as bearer credential.
    pub async fn connect(url: &str, token: Option<&str>) -> Self {
        Self::declaring(url, token, json!({})).await
    }

    /// Initializes a session of a client that declares these capabilities.
    pub async fn declaring(url: &str, token: Option<&str>, capabilities: Value) -> Self {
        let mut client = Self {
            http: http(),
            url: url.to_owned(),
            token: token.map(str::to_owned),
            session: String::new(),
            next_id: AtomicI64::new(1),
        };
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "test", "version": "1"}}});
        let response = client.post(&hello, BOTH).await;
        assert_eq!(response.status(), 200);
        client.session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let body = message(response).await;
        Schema::V2025.check("InitializeResult", &body["result"]);
        let done = client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}), BOTH).await;
        assert_eq!(done.status(), 202);
        client
    }

    /// The same session at another replica.
    pub fn at(&self, url: &str) -> Self {
        Self {
            http: http(),
            url: url.to_owned(),
            token: self.token.clone(),
            session: self.session.clone(),
            next_id: AtomicI64::new(1_000_000),
        }
    }

    /// The same session shown by somebody else.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.at(&self.url) }
    }

    /// Where it asks.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The session's id.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// A request with the session's headers.
    pub fn request(&self, method: reqwest::Method) -> reqwest::RequestBuilder {
        let mut request = self.http.request(method, &self.url).header("MCP-Protocol-Version", "2025-11-25");
        if !self.session.is_empty() {
            request = request.header("Mcp-Session-Id", &self.session);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        request
    }

    /// Posts a body as it is.
    pub async fn post(&self, body: &Value, accept: &str) -> reqwest::Response {
        let request = self.request(reqwest::Method::POST).header(CONTENT_TYPE, JSON).header(ACCEPT, accept);
        tokio::time::timeout(PATIENCE, request.body(body.to_string()).send()).await.unwrap().unwrap()
    }

    /// Posts a body as it is; gives the status, the type and the whole body of the answer.
    pub async fn exchange(&self, body: &str, accept: &str) -> (u16, String, String) {
        let request = self.request(reqwest::Method::POST).header(CONTENT_TYPE, JSON).header(ACCEPT, accept);
        let response = tokio::time::timeout(PATIENCE, request.body(body.to_owned()).send()).await.unwrap().unwrap();
        let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let body = tokio::time::timeout(PATIENCE, response.text()).await.unwrap().unwrap();
        (status, kind.unwrap_or_default(), body)
    }

    /// Waits for a task's result, and gives the whole answer.
    pub async fn result(&self, id: &str) -> Value {
        self.ask("tasks/result", json!({"taskId": id})).await
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &str, params: Value) {
        let response = self.post(&json!({"jsonrpc": "2.0", "method": method, "params": params}), BOTH).await;
        assert_eq!(response.status(), 202);
        assert_eq!(response.text().await.unwrap(), "");
    }

    /// Answers a request of the server; gives the HTTP status.
    pub async fn answer(&self, id: &Value, result: Value) -> u16 {
        self.post(&json!({"jsonrpc": "2.0", "id": id, "result": result}), BOTH).await.status().as_u16()
    }

    /// A request object with a fresh id.
    pub fn frame(&self, method: &str, params: &Value) -> Value {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// Asks, and gives the whole answer, be it JSON or the last event of a stream.
    pub async fn ask(&self, method: &str, params: Value) -> Value {
        let frame = self.frame(method, &params);
        let answer = message(self.post(&frame, BOTH).await).await;
        assert_eq!(answer["id"], frame["id"], "{answer}");
        if let Some(result) = answer.get("result") {
            Schema::V2025.check("JSONRPCResultResponse", &answer);
            schema::check_result(method, !params["task"].is_null(), result);
        } else {
            Schema::V2025.check("JSONRPCErrorResponse", &answer);
        }
        answer
    }

    /// Asks for a result.
    pub async fn ok(&self, method: &str, params: Value) -> Value {
        let mut answer = self.ask(method, params).await;
        assert!(answer.get("result").is_some(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Asks for an error.
    pub async fn error(&self, method: &str, params: Value) -> Value {
        let mut answer = self.ask(method, params).await;
        assert!(answer.get("error").is_some(), "{method}: {answer}");
        answer["error"].take()
    }

    /// Asks once of a system that may be broken: the answer, or why there is none.
    pub async fn attempt(&self, method: &str, params: Value) -> Result<Value, Miss> {
        let frame = self.frame(method, &params);
        let request = self.request(reqwest::Method::POST).header(CONTENT_TYPE, JSON).header(ACCEPT, BOTH);
        let answer = async {
            let response = request.body(frame.to_string()).send().await.map_err(Miss::Broken)?;
            if response.status() != 200 {
                let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
                return Err(Miss::Refused { status: response.status().as_u16(), retry_after });
            }
            if response.headers()[CONTENT_TYPE] != JSON {
                let mut events = Events::new(response);
                while let Some(message) = events.next().await {
                    if message["id"] == frame["id"] {
                        return Ok(message);
                    }
                }
                return Err(Miss::Cut);
            }
            let body = response.bytes().await.map_err(Miss::Broken)?;
            Ok(serde_json::from_slice(&body).unwrap())
        };
        tokio::time::timeout(PATIENCE, answer).await.expect("no answer in time")
    }

    /// Starts a task; gives its id.
    pub async fn create(&self, tool: &str, arguments: Value) -> String {
        let params = json!({"name": tool, "arguments": arguments, "task": {}});
        self.ok("tools/call", params).await["task"]["taskId"].as_str().unwrap().to_owned()
    }

    /// A task's status.
    pub async fn status(&self, id: &str) -> String {
        self.ok("tasks/get", json!({"taskId": id})).await["status"].as_str().unwrap().to_owned()
    }

    /// Asks by a stream, and gives the stream.
    pub async fn stream(&self, method: &str, params: Value) -> Events {
        let frame = self.frame(method, &params);
        Events::new(self.post(&frame, BOTH).await)
    }

    /// Opens a GET stream, or resumes one.
    pub async fn get(&self, last_event_id: Option<&str>) -> reqwest::Response {
        let mut request = self.request(reqwest::Method::GET).header(ACCEPT, "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        tokio::time::timeout(PATIENCE, request.send()).await.unwrap().unwrap()
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Miss {
    /// The connection was refused or lost.
    Broken(reqwest::Error),
    /// The stream ended without an answer.
    Cut,
    /// Not now.
    Refused {
        /// The HTTP status.
        status: u16,
        /// When to come back.
        retry_after: Option<String>,
    },
}

/// The message of a response: its JSON body, or the last event of its stream.
pub async fn message(response: reqwest::Response) -> Value {
    if response.headers()[CONTENT_TYPE].to_str().unwrap().starts_with("text/event-stream") {
        Events::new(response).last().await
    } else {
        let body = tokio::time::timeout(PATIENCE, response.bytes()).await.unwrap().unwrap();
        serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&body)))
    }
}

/// An event stream being read.
pub struct Events {
    body: futures::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    schema: Schema,
    unread: String,
    /// The id of the last event read.
    pub last_id: Option<String>,
    /// How long the server asks its client to wait before it comes back, in milliseconds.
    pub retry: Option<u64>,
    /// Comments seen.
    pub comments: usize,
    /// Whether the connection was lost, instead of ended.
    pub broke: bool,
}

impl Events {
    /// Reads the body of a 2025-11-25 response.
    pub fn new(response: reqwest::Response) -> Self {
        Self::read(response, Schema::V2025)
    }

    /// Reads the body of a 2026-07-28 response, whose events have no ids.
    pub fn modern(response: reqwest::Response) -> Self {
        Self::read(response, Schema::V2026)
    }

    fn read(response: reqwest::Response, schema: Schema) -> Self {
        assert_eq!(response.status(), 200);
        let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Self {
            body: response.bytes_stream().boxed(),
            schema,
            unread: String::new(),
            last_id: None,
            retry: None,
            comments: 0,
            broke: false,
        }
    }

    /// The next event's data, empty ones included; `None` at the end of the stream, or when it broke.
    pub async fn next_data(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.unread.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.unread = rest;
                let mut data: Option<String> = None;
                for line in block.lines() {
                    let (field, value) = line.split_once(':').unwrap_or((line, ""));
                    let value = value.strip_prefix(' ').unwrap_or(value);
                    match field {
                        "" => self.comments += 1,
                        "id" => {
                            assert_eq!(self.schema, Schema::V2025, "2026-07-28 has no event ids");
                            self.last_id = Some(value.to_owned());
                        }
                        "retry" => self.retry = Some(value.parse().unwrap()),
                        "data" => match &mut data {
                            Some(data) => *data = format!("{data}\n{value}"),
                            None => data = Some(value.to_owned()),
                        },
                        _ => {}
                    }
                }
                if data.is_some() {
                    return data;
                }
                continue;
            }
            match tokio::time::timeout(PATIENCE, self.body.next()).await.expect("the stream is silent") {
                Some(Ok(bytes)) => self.unread.push_str(std::str::from_utf8(&bytes).unwrap()),
                Some(Err(_)) => {
                    self.broke = true;
                    return None;
                }
                None => return None,
            }
        }
    }

    /// The next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let data = self.next_data().await?;
            if !data.is_empty() {
                let message: Value = serde_json::from_str(&data).unwrap();
                match self.schema {
                    Schema::V2025 => Schema::V2025.check("JSONRPCMessage", &message),
                    Schema::V2026 | Schema::Tasks => schema::check_modern_message(&message),
                }
                return Some(message);
            }
        }
    }

    /// The last message; every one before it is a notification.
    pub async fn last(mut self) -> Value {
        let mut last = None;
        while let Some(message) = self.next().await {
            if let Some(former) = last.replace(message) {
                assert!(former["method"].as_str().unwrap().starts_with("notifications/"), "{former}");
            }
        }
        last.expect("the stream ended without a message")
    }
}
