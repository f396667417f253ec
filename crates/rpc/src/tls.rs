//! Mutual TLS between the roles.
//!
//! Every certificate is of one authority that serves this installation alone, and names its role: by a SPIFFE id whose
//! last segment is the role (`spiffe://longhaul/prod/gateway`), or by a DNS name whose first label is (`gateway`,
//! `gateway.prod.svc`). Both sides look at the role, not at the host: workers come and go under addresses that no
//! certificate knows.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::{Stream, StreamExt as _};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tokio_stream::wrappers::TcpListenerStream;
use webpki::EndEntityCert;

use crate::Error;
use crate::identity::Roles;

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Handshakes at a time.
const HANDSHAKES_MAX: usize = 64;
/// After an error of the listener itself, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A certificate, its key, and the authority that others are asked for; may be replaced at any time, for connections made
/// from then on.
#[derive(Clone)]
pub struct Tls(Arc<ArcSwap<Configs>>);

struct Configs {
    server: Arc<ServerConfig>,
    to_taskstore: Arc<ClientConfig>,
    to_runner: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From PEM: a chain with our own certificate first, its key, and one or more authorities.
    pub fn new(chain: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, Error> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(Configs::new(chain, key, authorities)?))))
    }

    /// Takes others from now on. If they cannot be used, nothing changes.
    pub fn replace(&self, chain: &[u8], key: &[u8], authorities: &[u8]) -> Result<(), Error> {
        self.0.store(Arc::new(Configs::new(chain, key, authorities)?));
        Ok(())
    }

    /// Connects to a server that must be of the role.
    pub(crate) async fn connect(&self, host: &str, port: u16, role: Roles) -> io::Result<client::TlsStream<TcpStream>> {
        let configs = self.0.load_full();
        let config = if role == Roles::RUNNER { &configs.to_runner } else { &configs.to_taskstore };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let socket = TcpStream::connect((host, port)).await?;
        // Costs latency if it fails, nothing else.
        let _ = socket.set_nodelay(true);
        TlsConnector::from(config.clone()).connect(name, socket).await
    }

    /// Accepts those who have a certificate of ours.
    pub(crate) fn accept(self, listener: TcpListener) -> impl Stream<Item = io::Result<server::TlsStream<TcpStream>>> {
        let shake = move |socket: io::Result<TcpStream>| {
            let acceptor = TlsAcceptor::from(self.0.load().server.clone());
            async move {
                let socket = match socket {
                    Ok(socket) => socket,
                    Err(error) => {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        return Err(error);
                    }
                };
                let _ = socket.set_nodelay(true);
                tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(socket)).await?
            }
        };
        let accepted = TcpListenerStream::new(listener).map(shake).buffer_unordered(HANDSHAKES_MAX);
        accepted.filter_map(async |accepted| match accepted {
            Ok(stream) => Some(Ok(stream)),
            Err(error) => {
                tracing::warn!(%error, "a connection to a role was refused");
                None
            }
        })
    }
}

impl Configs {
    fn new(chain: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, Error> {
        let fault = |what: &str| Error::Fault(what.to_owned());
        let failed = |error: rustls::Error| Error::Fault(error.to_string());
        let certificates = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let chain = certificates(chain).map_err(|error| Error::Fault(format!("the certificate: {error}")))?;
        let own = chain.first().ok_or_else(|| fault("there is no certificate"))?;
        if roles_of(own) == Roles::NONE {
            return Err(fault("the certificate names no role: gateway, runner, taskstore or admin"));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| Error::Fault(format!("the key: {error}")))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(authorities).map_err(|error| Error::Fault(format!("the authority: {error}")))? {
            roots.add(root).map_err(failed)?;
        }
        if roots.is_empty() {
            return Err(fault("there is no authority"));
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));

        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| Error::Fault(format!("the authority: {error}")))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| {
                config.with_client_cert_verifier(clients).with_single_cert(chain.clone(), key.clone_key())
            })
            .map_err(failed)?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        // A session that is taken up again would pass by what has been replaced since.
        server.send_tls13_tickets = 0;
        let client = |role: Roles| {
            let verifier = OfRole { roots: roots.clone(), provider: provider.clone(), role };
            let mut client = ClientConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])
                .map_err(failed)?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(failed)?;
            client.alpn_protocols = vec![b"h2".to_vec()];
            Ok::<_, Error>(Arc::new(client))
        };
        Ok(Self {
            server: Arc::new(server),
            to_taskstore: client(Roles::TASKSTORE)?,
            to_runner: client(Roles::RUNNER)?,
        })
    }
}

/// The roles that a certificate names.
pub(crate) fn roles_of(certificate: &CertificateDer<'_>) -> Roles {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Roles::NONE };
    let by_id = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix("spiffe://")?.rsplit_once('/'));
    let by_name = certificate.valid_dns_names().map(|name| name.split_once('.').map_or(name, |(label, _)| label));
    by_id.map(|(_, role)| role).chain(by_name).map(Roles::named).fold(Roles::NONE, |all, one| all | one)
}

/// Takes a server whose certificate is of our authority and of the role; its host may have any name.
#[derive(Debug)]
struct OfRole {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    role: Roles,
}

impl ServerCertVerifier for OfRole {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        match roles_of(certificate).meet(self.role) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
