//! A client that writes bytes: what it sends is what a test says.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} took too long"))
}

/// The head of a response.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }
}

/// A whole response.
#[derive(Debug)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn json(&self) -> Value {
        let value: Value = serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        check_frame(&value);
        value
    }

    pub fn code(&self) -> Option<i64> {
        if self.body.is_empty() { None } else { self.json()["error"]["code"].as_i64() }
    }
}

/// Every frame is JSON-RPC as MCP narrows it: one kind of message, and an id that is never null.
fn check_frame(frame: &Value) {
    assert_eq!(frame["jsonrpc"], "2.0", "{frame}");
    let has = |name| frame.get(name).is_some();
    assert_eq!([has("method"), has("result"), has("error")].iter().filter(|has| **has).count(), 1, "{frame}");
    assert!(frame.get("id").is_none_or(|id| id.is_string() || id.is_i64() || id.is_u64()), "{frame}");
    if let Some(error) = frame.get("error") {
        assert!(error["code"].is_i64() && error["message"].is_string(), "{frame}");
    }
}

/// A connection.
pub struct Connection {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    pub async fn open(to: SocketAddr) -> Self {
        Self { socket: TcpStream::connect(to).await.unwrap(), read: Vec::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // A server that has refused already may not read to the end.
        let _ = self.socket.write_all(bytes).await;
    }

    async fn more(&mut self) -> bool {
        let count = within("a read", self.socket.read_buf(&mut self.read)).await.unwrap_or(0);
        count > 0
    }

    /// Whether the server closes the connection without another byte.
    pub async fn is_closed(&mut self) -> bool {
        self.read.is_empty() && !self.more().await
    }

    /// How many bytes come until the server closes the connection.
    pub async fn rest(&mut self) -> usize {
        let mut count = 0;
        loop {
            count += self.read.len();
            self.read.clear();
            if !self.more().await {
                return count;
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8(self.read.drain(..end).collect()).unwrap();
                self.read.drain(..2);
                return Some(line);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.read.len() < count {
            if !self.more().await {
                return None;
            }
        }
        Some(self.read.drain(..count).collect())
    }

    pub async fn head(&mut self) -> Option<Head> {
        let status = self.line().await?.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            match line.split_once(": ") {
                Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
                None => return Some(Head { status, headers }),
            }
        }
    }

    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
        let chunk = self.exactly(size).await?;
        self.exactly(2).await?;
        (size > 0).then_some(chunk)
    }

    pub async fn answer(&mut self) -> Option<Answer> {
        let head = self.head().await?;
        let body = match head.header("content-length") {
            Some(length) => self.exactly(length.parse().unwrap()).await?,
            None if head.header("transfer-encoding").is_some() => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk().await {
                    body.extend(chunk);
                }
                body
            }
            None => Vec::new(),
        };
        Some(Answer { head, body })
    }
}

/// One event of a stream.
#[derive(Debug, Default, PartialEq)]
pub struct Event {
    pub id: Option<String>,
    pub retry: Option<u64>,
    pub data: Option<String>,
    pub comment: bool,
}

impl Event {
    /// The message that it carries.
    pub fn message(&self) -> Value {
        let frame = serde_json::from_str(self.data.as_deref().unwrap_or_default()).unwrap();
        check_frame(&frame);
        frame
    }
}

/// A stream of events.
pub struct Stream {
    pub connection: Connection,
    read: String,
}

impl Stream {
    /// The next event or comment; `None` at the end.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.read.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.read = rest;
                let mut event = Event::default();
                for line in block.lines() {
                    match line.split_once(':').map(|(name, value)| (name, value.trim_start())).unwrap() {
                        ("", _) => event.comment = true,
                        ("id", id) => event.id = Some(id.to_owned()),
                        ("retry", retry) => event.retry = Some(retry.parse().unwrap()),
                        ("data", data) => assert!(event.data.replace(data.to_owned()).is_none(), "two data lines"),
                        (other, _) => panic!("a field {other}"),
                    }
                }
                return Some(event);
            }
            let chunk = self.connection.chunk().await?;
            self.read.push_str(&String::from_utf8(chunk).unwrap());
        }
    }

    /// The next event that is no comment.
    pub async fn event(&mut self) -> Option<Event> {
        within("an event", async {
            loop {
                match self.next().await {
                    Some(event) if event.comment => {}
                    event => return event,
                }
            }
        })
        .await
    }

    /// The next message.
    pub async fn message(&mut self) -> Value {
        self.event().await.expect("the stream ended").message()
    }
}

/// A client with a session.
#[derive(Clone)]
pub struct Client {
    pub to: SocketAddr,
    pub token: &'static str,
    pub session: Option<String>,
    pub accept: &'static str,
}

pub const BOTH: &str = "application/json, text/event-stream";

impl Client {
    pub fn new(to: SocketAddr, token: &'static str) -> Self {
        Self { to, token, session: None, accept: BOTH }
    }

    /// Opens a session of 2025-11-25.
    pub async fn hello(to: SocketAddr, token: &'static str) -> Self {
        Self::hello_as(to, token, "2025-11-25").await
    }

    pub async fn hello_as(to: SocketAddr, token: &'static str, version: &str) -> Self {
        let client = Self::new(to, token);
        let answer = client.initialize(version).await;
        client.in_session(&answer)
    }

    /// Opens a session of 2025-11-25 for a client that can do this.
    pub async fn hello_with(to: SocketAddr, token: &'static str, capabilities: Value) -> Self {
        let client = Self::new(to, token);
        let answer = client.initialize_with("2025-11-25", capabilities).await;
        client.in_session(&answer)
    }

    fn in_session(self, answer: &Answer) -> Self {
        assert_eq!(answer.status(), 200, "{answer:?}");
        Self { session: answer.head.header("mcp-session-id").map(str::to_owned), ..self }
    }

    pub async fn initialize(&self, version: &str) -> Answer {
        self.initialize_with(version, json!({})).await
    }

    async fn initialize_with(&self, version: &str, capabilities: Value) -> Answer {
        let client = json!({"name": "t", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": client});
        self.post(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).await
    }

    /// Answers a request of the server with a result; the HTTP status.
    pub async fn respond(&self, id: &Value, result: Value) -> u16 {
        self.post(&json!({"jsonrpc": "2.0", "id": id, "result": result})).await.status()
    }

    /// The same client at another gateway.
    pub fn at(&self, to: SocketAddr) -> Self {
        Self { to, ..self.clone() }
    }

    pub fn accepting(&self, accept: &'static str) -> Self {
        Self { accept, ..self.clone() }
    }

    /// The bytes of a request.
    pub fn request(&self, method: &str, extra: &str, body: &[u8]) -> Vec<u8> {
        let mut head = format!(
            "{method} /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nAccept: {}\r\n{extra}",
            self.to, self.token, self.accept
        );
        if let Some(session) = &self.session {
            head += &format!("Mcp-Session-Id: {session}\r\n");
        }
        if method == "POST" {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        [head.as_bytes(), b"\r\n", body].concat()
    }

    pub async fn send(&self, method: &str, extra: &str, body: &[u8]) -> Connection {
        let mut connection = Connection::open(self.to).await;
        connection.send(&self.request(method, extra, body)).await;
        connection
    }

    pub async fn post(&self, body: &Value) -> Answer {
        self.send("POST", "", body.to_string().as_bytes()).await.answer().await.expect("no answer")
    }

    pub async fn call(&self, method: &str, params: Value) -> Answer {
        self.post(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).await
    }

    /// The result of a request that must succeed.
    pub async fn ok(&self, method: &str, params: Value) -> Value {
        let answer = self.call(method, params).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let body = answer.json();
        assert!(body.get("result").is_some(), "{body}");
        body["result"].clone()
    }

    /// Opens a stream with a POST.
    pub async fn stream(&self, id: Value, method: &str, params: Value) -> Stream {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        into_stream(self.send("POST", "", body.to_string().as_bytes()).await).await
    }

    /// Opens a stream with a GET.
    pub async fn get(&self, last_event: Option<&str>) -> Stream {
        let extra = last_event.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        into_stream(self.send("GET", &extra, b"").await).await
    }

    /// Reads a stream to its end, which must say that there is no more: no client comes back for ever.
    pub async fn over(&self, mut stream: Stream, messages: usize) {
        let mut last = None;
        for _ in 0..messages.max(1) {
            let event = stream.event().await.expect("the stream ended without its last event");
            assert_eq!(event.data.as_deref().is_some_and(|data| !data.is_empty()), messages > 0, "{event:?}");
            last = event.id;
        }
        assert_eq!(stream.event().await, None);
        let last = last.expect("the last event has no id");
        let head = self.send("GET", &format!("Last-Event-ID: {last}\r\n"), b"").await.head().await.unwrap();
        assert_eq!(head.status, 204, "a client that comes back is told to stay away");
    }

    pub async fn notify(&self, method: &str, params: Value) {
        let answer = self.post(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
        assert_eq!((answer.status(), answer.body.len()), (202, 0));
    }

    /// Makes a task of a call and gives its id.
    pub async fn create(&self, tool: &str) -> String {
        let params = json!({"name": tool, "arguments": {}, "task": {}, "_meta": {"progressToken": "p"}});
        self.ok("tools/call", params).await["task"]["taskId"].as_str().unwrap().to_owned()
    }
}

pub async fn into_stream(mut connection: Connection) -> Stream {
    let head = connection.head().await.expect("no answer");
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")), "{head:?}");
    assert_eq!(head.header("cache-control"), Some("no-cache"));
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    Stream { connection, read: String::new() }
}
