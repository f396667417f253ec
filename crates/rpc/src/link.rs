//! From a URL to a connection.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use longhaul_core::limits::{MESSAGE_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX};
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::Error;

/// Bytes buffered in each direction of an in-memory connection.
const MEMORY_PIPE_BYTES: usize = 256 * 1024;
/// In-memory connections that wait to be accepted.
const MEMORY_BACKLOG_MAX: usize = 64;
/// HTTP/2 flow-control windows: a result of the largest size fits without a stall.
const STREAM_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// The largest message, in bytes: a payload, or all tools of a worker, and what goes with it.
pub(crate) fn message_bytes_max(payload_bytes_max: usize) -> usize {
    payload_bytes_max.max(PAYLOAD_BYTES_MAX) + MESSAGE_OVERHEAD_BYTES
}

/// Knows how to reach other roles: over TCP, or in this process by name.
#[derive(Clone, Default)]
pub struct Links {
    memory: Arc<Mutex<HashMap<String, mpsc::Sender<DuplexStream>>>>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Links")
    }
}

/// A URL without a scheme would be one that no connection ever comes of.
pub(crate) fn check_url(url: &str) -> Result<(), Error> {
    if url.starts_with("memory://") {
        return Ok(());
    }
    let uri: Uri = url.parse().map_err(|error| Error::Fault(format!("{url}: {error}")))?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(()),
        Some(_) | None => Err(Error::Fault(format!("{url}: must begin with http://"))),
    }
}

impl Links {
    /// Opens the in-memory address `memory://name`. A later listener of the same name replaces an earlier one.
    pub fn listen(&self, name: &str) -> Listener {
        let (dial, accept) = mpsc::channel(MEMORY_BACKLOG_MAX);
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), dial);
        Listener::Memory(MemoryListener(accept))
    }

    /// A connection to `url`, made when it is first used.
    pub(crate) fn channel(&self, url: &str) -> Result<Channel, Error> {
        let fault = |error: &dyn fmt::Display| Error::Fault(format!("{url}: {error}"));
        let tune = |endpoint: Endpoint| {
            endpoint
                .connect_timeout(Duration::from_secs(2))
                .http2_keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(5))
                .keep_alive_while_idle(true)
                .tcp_nodelay(true)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(2 * STREAM_WINDOW_BYTES)
        };
        let Some(name) = url.strip_prefix("memory://") else {
            return Ok(tune(Endpoint::from_shared(url.to_owned()).map_err(|error| fault(&error))?).connect_lazy());
        };
        let (links, name) = (self.clone(), name.to_owned());
        let dial = tower::service_fn(move |_: Uri| {
            let (links, name) = (links.clone(), name.clone());
            async move {
                let listener = links.memory.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
                let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                let (ours, theirs) = tokio::io::duplex(MEMORY_PIPE_BYTES);
                listener.ok_or_else(refused)?.send(theirs).await.map_err(|_| refused())?;
                Ok::<_, std::io::Error>(TokioIo::new(ours))
            }
        });
        Ok(tune(Endpoint::from_static("http://memory")).connect_with_connector_lazy(dial))
    }
}

/// Where a server accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A name in this process.
    Memory(MemoryListener),
}

/// Accepts the connections of an in-memory address.
#[derive(Debug)]
pub struct MemoryListener(pub(crate) mpsc::Receiver<DuplexStream>);

/// The secret that roles show to one another. The first of several is shown; any of them is accepted.
#[derive(Clone)]
pub struct ServiceToken(Arc<[MetadataValue<Ascii>]>);

impl fmt::Debug for ServiceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceToken([redacted])")
    }
}

impl ServiceToken {
    /// The present token first, then those still accepted. Each is visible ASCII, at least 16 characters.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let bad = || Error::Fault("a service token is at least 16 characters of visible ASCII".into());
        let tokens: Arc<[_]> = tokens
            .into_iter()
            .map(|token| {
                let whole = token.len() >= 16 && token.bytes().all(|byte| byte.is_ascii_graphic());
                let mut value: MetadataValue<Ascii> =
                    format!("Bearer {}", if whole { token } else { return Err(bad()) }).parse().map_err(|_| bad())?;
                value.set_sensitive(true);
                Ok(value)
            })
            .collect::<Result<_, Error>>()?;
        if tokens.is_empty() { Err(bad()) } else { Ok(Self(tokens)) }
    }

    /// Puts the token on a request.
    pub(crate) fn sign<T>(&self, mut request: Request<T>) -> Request<T> {
        request.metadata_mut().insert("authorization", self.0[0].clone());
        request
    }

    /// Whether the other side showed an accepted token.
    pub(crate) fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        // Every byte is compared, so that the time taken says nothing of how much was right.
        let equal = |shown: &[u8], known: &[u8]| {
            shown.len() == known.len() && shown.iter().zip(known).fold(0, |all, (a, b)| all | (a ^ b)) == 0
        };
        let shown = metadata.get("authorization").map(|value| value.as_bytes()).unwrap_or_default();
        match self.0.iter().filter(|known| equal(shown, known.as_bytes())).count() {
            0 => Err(Status::unauthenticated("a service credential is needed: see docs/CONFIG.md, service_token_file")),
            _ => Ok(()),
        }
    }
}
