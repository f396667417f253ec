//! From a host's name to its addresses: a URL that people are shown must lead to the public internet alone.

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::input::is_public;

/// How long a name may take to resolve.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
/// The port of public HTTPS.
const HTTPS: u16 = 443;

/// Looks up names.
#[async_trait]
pub trait Resolver: Debug + Send + Sync {
    /// All addresses of a host.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// Looks names up as the operating system does.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, HTTPS)).await?.map(|address| address.ip()).collect())
    }
}

/// Whether a URL, which was vetted already, leads to public addresses alone; if not, why.
pub(crate) async fn leads_to_public(resolver: &dyn Resolver, url: &str) -> Result<(), &'static str> {
    let url = url::Url::parse(url).map_err(|_| "it is not a URL")?;
    let host = url.domain().ok_or("it has no registered name")?;
    match tokio::time::timeout(RESOLVE_MAX, resolver.resolve(host)).await {
        Ok(Ok(addresses)) if addresses.is_empty() => Err("its name has no address"),
        Ok(Ok(addresses)) if addresses.iter().all(|address| is_public(*address)) => Ok(()),
        Ok(Ok(_)) => Err("its name leads to an address that is not public"),
        Ok(Err(_)) => Err("its name has no address"),
        Err(_) => Err("its name could not be looked up in time"),
    }
}
