//! From a URL to a connection.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Uri};
use hyper_util::rt::TokioIo;
use longhaul_core::limits::{MESSAGE_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX};
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::Error;
use crate::identity::Roles;
use crate::tls::Tls;

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
    tls: Option<Tls>,
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

    /// The same, with certificates: what is reached over TCP is reached by TLS and not without.
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// What connections over TCP are secured with, if they are.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// A connection to a task-store at `url`, made when it is first used.
    pub(crate) fn channel(&self, url: &str) -> Result<Channel, Error> {
        self.channel_to(url, Roles::TASKSTORE)
    }

    /// A connection to a server at `url` that must be of the role, if it has a certificate.
    pub(crate) fn channel_to(&self, url: &str, role: Roles) -> Result<Channel, Error> {
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
            let uri: Uri = url.parse().map_err(|error| fault(&error))?;
            return match (uri.scheme_str(), &self.tls) {
                (Some("https"), Some(tls)) => {
                    let host = uri.host().ok_or_else(|| fault(&"no host"))?.to_owned();
                    let (port, tls) = (uri.port_u16().unwrap_or(443), tls.clone());
                    let dial = tower::service_fn(move |_: Uri| {
                        let (tls, host) = (tls.clone(), host.clone());
                        async move { tls.connect(&host, port, role).await.map(TokioIo::new) }
                    });
                    // By its own scheme, it would be asked for a certificate once more.
                    let endpoint = Endpoint::from_shared(url.replacen("https", "http", 1));
                    Ok(tune(endpoint.map_err(|error| fault(&error))?).connect_with_connector_lazy(dial))
                }
                (Some("https"), None) => Err(fault(&"needs tls.cert_file, tls.key_file and tls.ca_file")),
                (_, Some(_)) => Err(fault(&"must be https: there is a certificate")),
                (_, None) => Ok(tune(Endpoint::from(uri)).connect_lazy()),
            };
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

/// The secrets that roles show to one another, and those that they accept.
#[derive(Clone)]
pub struct ServiceToken {
    shown: Secret,
    /// What a gateway shows to workers, if that is another one.
    shown_to_workers: Option<Secret>,
    accepted: Arc<[(Secret, Roles)]>,
}

type Secret = MetadataValue<Ascii>;

impl fmt::Debug for ServiceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceToken([redacted])")
    }
}

/// What roles write before their token.
fn secret(token: &str) -> Option<Secret> {
    let whole = token.len() >= 16 && token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut value: Secret = whole.then(|| format!("Bearer {token}").parse().ok()).flatten()?;
    value.set_sensitive(true);
    Some(value)
}

impl ServiceToken {
    /// Tokens of all roles: the present one, which is shown, then those still accepted. Each is visible ASCII, at least 16
    /// characters.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        Self::of(Roles::ALL, tokens)
    }

    /// Tokens of some roles.
    pub fn of<'a>(roles: Roles, tokens: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let bad = || Error::Fault("a service token is at least 16 characters of visible ASCII".into());
        let all = tokens.into_iter().map(|token| Ok((secret(token).ok_or_else(bad)?, roles)));
        let accepted: Arc<[_]> = all.collect::<Result<_, Error>>()?;
        let shown = accepted.first().ok_or_else(bad)?.0.clone();
        Ok(Self { shown, shown_to_workers: None, accepted })
    }

    /// Shows its own, and accepts none of its kind.
    #[must_use]
    pub fn accepting_none(self) -> Self {
        Self { accepted: Arc::default(), ..self }
    }

    /// Accepts those of `other` too, and goes on showing its own.
    #[must_use]
    pub fn accepting(self, other: &Self) -> Self {
        let accepted = self.accepted.iter().chain(&*other.accepted).cloned().collect();
        Self { accepted, ..self }
    }

    /// Shows workers what `other` shows.
    #[must_use]
    pub fn showing_workers(self, other: &Self) -> Self {
        Self { shown_to_workers: Some(other.shown.clone()), ..self }
    }

    /// What is shown to workers.
    #[must_use]
    pub fn to_workers(&self) -> Self {
        Self { shown: self.shown_to_workers.clone().unwrap_or_else(|| self.shown.clone()), ..self.clone() }
    }

    /// Puts the token on a request.
    pub(crate) fn sign<T>(&self, mut request: Request<T>) -> Request<T> {
        request.metadata_mut().insert("authorization", self.shown.clone());
        request
    }

    /// Which roles the other side has shown to be, by its token.
    pub(crate) fn roles(&self, headers: &HeaderMap) -> Result<Roles, Status> {
        // Every byte is compared, so that the time taken says nothing of how much was right.
        let equal = |shown: &[u8], known: &[u8]| {
            shown.len() == known.len() && shown.iter().zip(known).fold(0, |all, (a, b)| all | (a ^ b)) == 0
        };
        let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let found = self.accepted.iter().filter(|(known, _)| equal(shown, known.as_bytes()));
        match found.fold(Roles::NONE, |all, (_, roles)| all | *roles) {
            Roles::NONE => {
                Err(Status::unauthenticated("a service credential is needed: see docs/CONFIG.md, service_token_file"))
            }
            roles => Ok(roles),
        }
    }

    /// Whether the other side showed an accepted token.
    pub(crate) fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        self.roles(metadata.as_ref()).map(|_| ())
    }
}
