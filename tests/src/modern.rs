//! A client of MCP 2026-07-28 that shows what is on the wire.

use std::sync::atomic::{AtomicI64, Ordering};

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::{Value, json};

use crate::client::{BOTH, Events, JSON, PATIENCE, http};
use crate::schema::{self, Schema};

/// The revision.
pub const VERSION: &str = "2026-07-28";
/// The key of the tasks extension.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

/// A client. There is no session: each request says all there is to know.
#[derive(Debug)]
pub struct Modern {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    capabilities: Value,
    next_id: AtomicI64,
}

impl Modern {
    /// A client that declares the tasks extension and forms.
    pub fn new(url: &str, token: Option<&str>) -> Self {
        let capabilities = json!({"elicitation": {"form": {}}, "extensions": {TASKS: {}}});
        Self {
            http: http(),
            url: url.to_owned(),
            token: token.map(str::to_owned),
            capabilities,
            next_id: AtomicI64::new(1),
        }
    }

    /// The same caller, declaring these capabilities.
    pub fn declaring(&self, capabilities: Value) -> Self {
        Self { capabilities, ..self.at(&self.url) }
    }

    /// The same caller without the tasks extension.
    pub fn plain(&self) -> Self {
        self.declaring(json!({"elicitation": {"form": {}}}))
    }

    /// The same caller at another replica.
    pub fn at(&self, url: &str) -> Self {
        Self {
            capabilities: self.capabilities.clone(),
            next_id: AtomicI64::new(1_000_000),
            ..Self::new(url, self.token.as_deref())
        }
    }

    /// The same request shown by somebody else.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.at(&self.url) }
    }

    /// What every request says of its sender.
    pub fn meta(&self) -> Value {
        json!({
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        })
    }

    /// A request object with a fresh id; a `_meta` in `params` adds to what every request says.
    pub fn frame(&self, method: &str, mut params: Value) -> Value {
        let mut meta = self.meta();
        for (key, value) in params["_meta"].as_object().cloned().unwrap_or_default() {
            meta[key] = value;
        }
        params["_meta"] = meta;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// A request with the headers that its body asks for.
    pub fn request(&self, frame: &Value, accept: &str) -> reqwest::RequestBuilder {
        let params = &frame["params"];
        let method = frame["method"].as_str().unwrap_or_default();
        let mut request = self
            .http
            .post(&self.url)
            .header("MCP-Protocol-Version", VERSION)
            .header("Mcp-Method", method)
            .header(CONTENT_TYPE, JSON)
            .header(ACCEPT, accept);
        let name = match method {
            "tools/call" | "prompts/get" => &params["name"],
            "resources/read" => &params["uri"],
            method if method.starts_with("tasks/") => &params["taskId"],
            _ => &Value::Null,
        };
        if let Some(name) = name.as_str() {
            request = request.header("Mcp-Name", name);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        request.body(frame.to_string())
    }

    /// Sends a request object, and gives the response.
    pub async fn send(&self, frame: &Value) -> reqwest::Response {
        tokio::time::timeout(PATIENCE, self.request(frame, BOTH).send()).await.unwrap().unwrap()
    }

    /// Asks, and gives the HTTP status and the whole answer, be it JSON or the last event of a stream.
    pub async fn exchange(&self, method: &str, params: Value) -> (u16, Value) {
        let frame = self.frame(method, params);
        let response = self.send(&frame).await;
        let status = response.status().as_u16();
        assert!(response.headers().get("mcp-session-id").is_none());
        let answer = if response.headers()[CONTENT_TYPE] == JSON {
            let body = tokio::time::timeout(PATIENCE, response.bytes()).await.unwrap().unwrap();
            serde_json::from_slice(&body).unwrap()
        } else {
            Events::modern(response).last().await
        };
        assert_eq!(answer["id"], frame["id"], "{answer}");
        match answer.get("result") {
            Some(result) => {
                Schema::V2026.check("JSONRPCResultResponse", &answer);
                schema::check_modern_result(method, result);
                let server = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
                assert_eq!(server["name"], "longhaul", "{result}");
            }
            None => Schema::V2026.check("JSONRPCErrorResponse", &answer),
        }
        (status, answer)
    }

    /// Asks for a result.
    pub async fn ok(&self, method: &str, params: Value) -> Value {
        let (status, mut answer) = self.exchange(method, params).await;
        assert_eq!(status, 200, "{method}: {answer}");
        assert!(answer.get("result").is_some(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Asks for an error; gives the HTTP status too.
    pub async fn error(&self, method: &str, params: Value) -> (u16, Value) {
        let (status, mut answer) = self.exchange(method, params).await;
        assert!(answer.get("error").is_some(), "{method}: {answer}");
        (status, answer["error"].take())
    }

    /// Calls a tool that becomes a task; gives the task's id.
    pub async fn create(&self, tool: &str, arguments: Value) -> String {
        let handle = self.ok("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_eq!(handle["resultType"], "task", "{handle}");
        handle["taskId"].as_str().unwrap().to_owned()
    }

    /// How a task is.
    pub async fn task(&self, id: &str) -> Value {
        self.ok("tasks/get", json!({"taskId": id})).await
    }

    /// A task, once it has reached this status; polled as clients do.
    pub async fn until(&self, id: &str, status: &str) -> Value {
        let reached = async {
            loop {
                let task = self.task(id).await;
                if task["status"] == status {
                    return task;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("the task is never {status}"))
    }

    /// Asks by a stream, and gives the request's id and the stream.
    pub async fn stream(&self, method: &str, params: Value) -> (Value, Events) {
        let frame = self.frame(method, params);
        let response = self.send(&frame).await;
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        (frame["id"].clone(), Events::modern(response))
    }

    /// Opens a subscription; gives its id, what is honoured, and the stream after that.
    pub async fn listen(&self, notifications: Value) -> (Value, Value, Events) {
        let (id, mut events) = self.stream("subscriptions/listen", json!({"notifications": notifications})).await;
        let ack = events.next().await.unwrap();
        assert_eq!(ack["method"], "notifications/subscriptions/acknowledged", "{ack}");
        assert_eq!(ack["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id, "{ack}");
        (id, ack["params"]["notifications"].clone(), events)
    }
}
