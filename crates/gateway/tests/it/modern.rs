//! A client of 2026-07-28: every request says all there is to know.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{Answer, BOTH, Client, Connection, Stream, into_stream};

pub const VERSION: &str = "2026-07-28";
const TASKS: &str = "io.modelcontextprotocol/tasks";

#[derive(Clone)]
pub struct Modern {
    pub to: SocketAddr,
    pub token: &'static str,
    pub accept: &'static str,
    pub capabilities: Value,
    /// More of `_meta`.
    pub meta: Value,
}

impl Modern {
    /// A client that can do nothing.
    pub fn new(to: SocketAddr, token: &'static str) -> Self {
        Self { to, token, accept: BOTH, capabilities: json!({}), meta: json!({}) }
    }

    /// One that knows tasks.
    pub fn with_tasks(mut self) -> Self {
        self.capabilities["extensions"][TASKS] = json!({});
        self
    }

    /// One that can do this too.
    pub fn declaring(mut self, name: &str, value: Value) -> Self {
        self.capabilities[name] = value;
        self
    }

    pub fn saying(mut self, name: &str, value: Value) -> Self {
        self.meta[name] = value;
        self
    }

    pub fn at(&self, to: SocketAddr) -> Self {
        Self { to, ..self.clone() }
    }

    pub fn accepting(&self, accept: &'static str) -> Self {
        Self { accept, ..self.clone() }
    }

    pub fn body(&self, id: &Value, method: &str, mut params: Value) -> Value {
        let mut meta = self.meta.clone();
        meta["io.modelcontextprotocol/protocolVersion"] = json!(VERSION);
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        params["_meta"] = meta;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// The headers that go with a request, one a line.
    pub fn headers(method: &str, params: &Value) -> String {
        let name = match method {
            "tools/call" | "prompts/get" => &params["name"],
            "resources/read" => &params["uri"],
            "tasks/get" | "tasks/update" | "tasks/cancel" => &params["taskId"],
            _ => &Value::Null,
        };
        let name = name.as_str().map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
        format!("MCP-Protocol-Version: {VERSION}\r\nMcp-Method: {method}\r\n{name}")
    }

    /// Sends any body under any headers.
    pub async fn send(&self, headers: &str, body: &[u8]) -> Connection {
        let client = Client { accept: self.accept, ..Client::new(self.to, self.token) };
        client.send("POST", headers, body).await
    }

    pub async fn begin(&self, id: Value, method: &str, params: Value) -> Connection {
        let headers = Self::headers(method, &params);
        self.send(&headers, self.body(&id, method, params).to_string().as_bytes()).await
    }

    pub async fn call(&self, method: &str, params: Value) -> Answer {
        self.begin(json!(1), method, params).await.answer().await.expect("no answer")
    }

    /// The result of a request that must succeed.
    pub async fn ok(&self, method: &str, params: Value) -> Value {
        let answer = self.call(method, params).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert!(answer.head.header("mcp-session-id").is_none());
        let body = answer.json();
        assert!(body["result"]["resultType"].is_string(), "{body}");
        body["result"].clone()
    }

    /// The HTTP status and the code of a request that must fail.
    pub async fn no(&self, method: &str, params: Value) -> (u16, i64) {
        let answer = self.call(method, params).await;
        (answer.status(), answer.code().unwrap_or_else(|| panic!("{answer:?}")))
    }

    pub async fn stream(&self, id: Value, method: &str, params: Value) -> Stream {
        into_stream(self.begin(id, method, params).await).await
    }

    /// Makes a task of a call and gives its id.
    pub async fn create(&self, tool: &str) -> String {
        let result = self.ok("tools/call", json!({"name": tool, "arguments": {}})).await;
        assert_eq!(result["resultType"], "task", "{result}");
        result["taskId"].as_str().unwrap().to_owned()
    }
}
