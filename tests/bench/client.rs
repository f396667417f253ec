//! A cheap load client: one keep-alive HTTP/1.1 connection, one request at a time, in a session of MCP 2025-11-25 or
//! without one as MCP 2026-07-28 has it.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const REVISION: HeaderValue = HeaderValue::from_static("2025-11-25");
const MODERN: HeaderValue = HeaderValue::from_static("2026-07-28");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// What each request of 2026-07-28 says of its sender.
const META: &str = r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"longhaul-bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;
/// The same, from a client that takes no tasks.
const META_PLAIN: &str = r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"longhaul-bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;
/// A call without an answer by then gets none.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Of a wrong answer, this much is shown.
const SHOWN_CHARS: usize = 400;

/// A connection that posts to one path.
pub struct Http {
    sender: SendRequest<Full<Bytes>>,
    uri: Uri,
    /// Sent with every request.
    headers: HeaderMap,
    /// Drives the connection; dropped with it.
    _connection: JoinSet<()>,
}

impl Http {
    /// Connects.
    pub async fn open(address: SocketAddr, path: &'static str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        // How the connection ended is seen by the request that it failed.
        driver.spawn(async move { drop(connection.await) });
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(&address.to_string())?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { sender, uri: Uri::from_static(path), headers, _connection: driver })
    }

    /// Posts a body.
    pub async fn post(&mut self, body: impl Into<Bytes>) -> Result<Response<Incoming>> {
        let headers = self.headers.clone();
        self.post_with(headers, body).await
    }

    async fn post_with(&mut self, headers: HeaderMap, body: impl Into<Bytes>) -> Result<Response<Incoming>> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        self.sender.ready().await.context("the connection was closed")?;
        Ok(self.sender.send_request(request).await?)
    }

    /// Posts a body and expects the same back.
    pub async fn echo(&mut self, body: &'static str) -> Result<()> {
        let response = self.post(body).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        ensure!(status == StatusCode::OK && answer == body, "echo: {status}: {}", shown(&answer));
        Ok(())
    }
}

/// A request.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Its method.
    pub method: &'static str,
    /// What `Mcp-Name` says.
    pub name: String,
    /// The members of its params; at least one in 2026-07-28.
    pub params: String,
    /// Whether its sender takes tasks; 2025-11-25 says so in the params.
    pub tasks: bool,
}

/// A caller: an initialized session, or one that needs none.
pub struct Session {
    http: Http,
    /// Whether it speaks 2026-07-28.
    pub modern: bool,
    next_id: u64,
    /// When the last answer was here.
    pub arrived: Instant,
}

#[derive(Deserialize)]
struct News<'a> {
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<T> {
    id: Option<u64>,
    method: Option<IgnoredAny>,
    result: Option<T>,
    error: Option<Box<RawValue>>,
}

impl Session {
    async fn connect(address: SocketAddr, key: &str) -> Result<Http> {
        let mut http = Http::open(address, "/mcp").await?;
        http.headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        http.headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}"))?);
        Ok(http)
    }

    /// Connects, to speak 2026-07-28 with a bearer key.
    pub async fn modern(address: SocketAddr, key: &str) -> Result<Self> {
        let mut http = Self::connect(address, key).await?;
        http.headers.insert(VERSION, MODERN);
        Ok(Self { http, modern: true, next_id: 1, arrived: Instant::now() })
    }

    /// Connects and initializes a session of 2025-11-25 with a bearer key.
    pub async fn open(address: SocketAddr, key: &str) -> Result<Self> {
        let mut http = Self::connect(address, key).await?;
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"longhaul-bench","version":"1"}}}"#;
        let response = http.post(hello).await?;
        let session = response.headers().get(SESSION).cloned();
        let mut this = Self { http, modern: false, next_id: 1, arrived: Instant::now() };
        this.answer::<IgnoredAny>(0, response).await.context("initialize")?;
        this.http.headers.insert(SESSION, session.context("initialize gave no session id")?);
        this.http.headers.insert(VERSION, REVISION);
        let ready = this.http.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await?;
        ensure!(ready.status() == StatusCode::ACCEPTED, "notifications/initialized: {}", ready.status());
        ready.into_body().collect().await?;
        Ok(this)
    }

    /// One request. An error, or another request's answer, is a failure.
    pub async fn call<T: DeserializeOwned>(&mut self, ask: &Ask) -> Result<T> {
        let answered = async {
            let (id, response) = self.ask(ask).await?;
            self.answer(id, response).await
        };
        let asked = || format!("asked: {ask:?}");
        tokio::time::timeout(ANSWER_WITHIN, answered)
            .await
            .context("no answer")
            .with_context(asked)?
            .with_context(asked)
    }

    /// Sends a request, and returns its id once the head of the response is there.
    pub async fn ask(&mut self, ask: &Ask) -> Result<(u64, Response<Incoming>)> {
        let id = self.next_id;
        self.next_id += 1;
        let Ask { method, name, params, tasks } = ask;
        let mut body = String::with_capacity(params.len() + META.len() + 96);
        let meta = match (self.modern, tasks) {
            (false, _) => "",
            (true, true) => META,
            (true, false) => META_PLAIN,
        };
        write!(body, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}{meta}}}}}"#)?;
        let mut headers = self.http.headers.clone();
        if self.modern {
            headers.insert(METHOD, HeaderValue::from_static(method));
            headers.insert(NAME, HeaderValue::from_str(name)?);
        }
        Ok((id, self.http.post_with(headers, body).await?))
    }

    /// Reads a stream to its end, and gives the last notification's params before the answer.
    pub async fn last_news<T: DeserializeOwned>(&mut self, ask: &Ask) -> Result<T> {
        let (_, response) = self.ask(ask).await?;
        let status = response.status();
        let text = tokio::time::timeout(ANSWER_WITHIN, response.into_body().collect()).await.context("no answer")??;
        let text = text.to_bytes();
        ensure!(status == StatusCode::OK, "{status}: {}", shown(&text));
        let mut last = None;
        for data in text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:")) {
            let news: News<'_> = serde_json::from_slice(data).with_context(|| shown(data))?;
            last = news.params.map(|params| params.to_owned()).or(last);
        }
        let last = last.with_context(|| format!("a stream without news: {}", shown(&text)))?;
        serde_json::from_str(last.get()).with_context(|| shown(last.get().as_bytes()))
    }

    /// The rest of that response.
    pub async fn answer<T: DeserializeOwned>(&mut self, id: u64, response: Response<Incoming>) -> Result<T> {
        let status = response.status();
        let events =
            response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !events || status != StatusCode::OK {
            let body = response.into_body().collect().await?.to_bytes();
            self.arrived = Instant::now();
            ensure!(status == StatusCode::OK, "{status}: {}", shown(&body));
            return read(id, &body)?.with_context(|| format!("no answer: {}", shown(&body)));
        }
        let mut body = response.into_body();
        let (mut text, mut answer) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                text.extend_from_slice(&data);
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let data = text[..end].strip_prefix(b"data:").unwrap_or_default().trim_ascii();
                if !data.is_empty()
                    && let Some(result) = read(id, data)?
                {
                    self.arrived = Instant::now();
                    ensure!(answer.replace(result).is_none(), "two answers on one stream");
                }
                text.drain(..=end);
            }
        }
        answer.context("the stream ended without an answer")
    }
}

/// The result in a response; nothing in a notification.
fn read<T: DeserializeOwned>(id: u64, body: &[u8]) -> Result<Option<T>> {
    let message: Message<T> = serde_json::from_slice(body).with_context(|| shown(body))?;
    match message {
        Message { method: Some(_), id: None, .. } => Ok(None),
        Message { id: Some(answered), result: Some(result), error: None, method: None } if answered == id => {
            Ok(Some(result))
        }
        _ => bail!("the answer to {id} is wrong: {}", shown(body)),
    }
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(SHOWN_CHARS).collect()
}
