//! Callers for whom an issuer vouches: the gateway as an OAuth 2.1 resource server (MCP, basic/authorization).
//!
//! A token says which issuer has made it; the issuer's keys say whether that is true ([`jwks`]); the config says whose
//! people they are. Nothing is asked of an issuer about a single token, and none is ever passed on.

mod jwks;
mod jwt;
mod metadata;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use jsonwebtoken::Algorithm;
use longhaul_core::{Principal, TenantId, Timestamp};
use longhaul_mcp::errors::code;
use longhaul_mcp::{RequestId, RpcError, error_body};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::auth::{Authenticator, Unauthenticated};
use crate::credentials::{Credentials, Known};
use crate::http::{json, unauthenticated, unavailable};
use crate::until::Until;
use jwks::{Keys, NoKey, Set, Source};
use jwt::{Bad, Unproven};

pub(crate) use metadata::routes;

/// How often keys are fetched although nobody asks for a new one: what an issuer withdraws is believed for no longer.
const REFRESH: Duration = Duration::from_secs(300);
/// Tokens that need not be checked again; with more, those that came first are.
const PROVEN_MAX: usize = 10_000;
/// The largest leeway for the clocks of issuers.
const LEEWAY_MAX: Duration = Duration::from_secs(300);
/// A scope that no resource asks for (MCP, basic/authorization): it is between a client and its issuer.
const OFFLINE: &str = "offline_access";

/// What the operator decides about issuers.
#[derive(Debug, Clone)]
pub struct OAuthConfig {
    /// Where clients reach the gateway: a scheme, a host, and a port if it is not the scheme's.
    pub public_url: String,
    /// Who may vouch for callers.
    pub issuers: Vec<IssuerConfig>,
    /// The scopes that calls of a tool need, beside those that everything needs.
    pub tool_scopes: BTreeMap<String, Vec<String>>,
    /// The least time between two fetches of an issuer's keys.
    pub fetch_again: Duration,
}

impl OAuthConfig {
    /// The least time between two fetches of an issuer's keys, but for tests.
    pub const FETCH_AGAIN: Duration = Duration::from_secs(30);
}

/// An issuer.
#[derive(Debug, Clone)]
pub struct IssuerConfig {
    /// Its name, exactly as its tokens write it.
    pub issuer: String,
    /// Where its keys are; without it, where its metadata says.
    pub jwks_url: Option<String>,
    /// Whom its tokens for us are for; without it, the URL of `/mcp`.
    pub audience: Option<String>,
    /// Whose people it vouches for.
    pub tenant: Tenant,
    /// The algorithms that its tokens may be signed with.
    pub algorithms: Vec<String>,
    /// The scopes that every request needs.
    pub scopes: Vec<String>,
    /// How far its clock may be off.
    pub leeway: Duration,
}

/// Whose people an issuer vouches for.
#[derive(Debug, Clone)]
pub enum Tenant {
    /// One tenant's.
    Fixed(TenantId),
    /// Those of the tenant that a claim of the token names.
    Claim {
        /// The claim.
        name: String,
        /// Which tenants it may name; empty: any, if there is no other issuer.
        among: BTreeSet<String>,
    },
}

/// Why an issuer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadIssuer {
    /// The gateway's own URL.
    #[error("public_url: {0:?} is not like https://mcp.example (or http://localhost:8080)")]
    PublicUrl(String),
    /// What is wrong with an issuer.
    #[error("issuer {0:?}: {1}")]
    Issuer(String, String),
}

/// Knows the issuers.
pub struct ResourceServer {
    /// What `/.well-known/oauth-protected-resource/mcp` says.
    metadata: Bytes,
    metadata_url: String,
    /// What everything needs.
    scopes: Vec<String>,
    issuers: Vec<Issuer>,
    tool_scopes: BTreeMap<String, Vec<String>>,
    proven: Mutex<HashMap<[u8; 32], Arc<Grant>>>,
}

struct Issuer {
    name: String,
    audience: String,
    tenant: Tenant,
    algorithms: Vec<Algorithm>,
    scopes: Vec<String>,
    leeway: Duration,
    keys: Arc<Keys>,
}

impl fmt::Debug for ResourceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.issuers.iter().map(|issuer| &issuer.name)).finish()
    }
}

/// What a token that was found good grants.
pub(crate) struct Grant {
    principal: Arc<Principal>,
    scopes: Vec<String>,
    /// Which issuer it is of.
    issuer: usize,
    /// Those of the issuer's keys that it was checked with: it is checked again once there are others.
    keys: Arc<Set>,
    expires_at: Timestamp,
}

/// Who asks, and how far.
pub(crate) struct Identity {
    pub(crate) principal: Arc<Principal>,
    /// Fires when a key of ours is no longer accepted.
    pub(crate) ended: Option<CancellationToken>,
    /// `None` for keys of ours, which are good for everything.
    grant: Option<Arc<Grant>>,
}

/// Why a token is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Bad(Bad),
    /// It cannot be judged at present.
    Unknowable,
}

impl From<Bad> for Refused {
    fn from(bad: Bad) -> Self {
        Self::Bad(bad)
    }
}

impl ResourceServer {
    /// Checks the config. Keys are fetched when they are needed first, or by [`follow`](Self::follow).
    pub fn new(config: OAuthConfig) -> Result<Self, BadIssuer> {
        let OAuthConfig { public_url, issuers, tool_scopes, fetch_again } = config;
        let resource = metadata::resource(&public_url).ok_or(BadIssuer::PublicUrl(public_url))?;
        separate(&issuers)?;
        let issuers = issuers
            .into_iter()
            .map(|issuer| {
                let name = issuer.issuer.clone();
                Issuer::new(issuer, &resource, fetch_again).map_err(|why| BadIssuer::Issuer(name, why))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut scopes: Vec<String> = Vec::new();
        for scope in issuers.iter().flat_map(|issuer| &issuer.scopes) {
            if !scopes.contains(scope) {
                scopes.push(scope.clone());
            }
        }
        let names = issuers.iter().map(|issuer| issuer.name.as_str());
        Ok(Self {
            metadata: metadata::document(&resource, names, &scopes),
            metadata_url: metadata::url(&resource),
            scopes,
            issuers,
            tool_scopes,
            proven: Mutex::default(),
        })
    }

    /// Keeps the keys of all issuers fresh.
    pub(crate) async fn follow(self: Arc<Self>) -> Infallible {
        loop {
            for issuer in &self.issuers {
                issuer.keys.fetch_if_due().await;
            }
            tokio::time::sleep(REFRESH).await;
        }
    }

    /// What a token grants.
    async fn grant(&self, token: &[u8], now: Timestamp) -> Result<Arc<Grant>, Refused> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let known = self.proven.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned();
        if let Some(grant) = known.filter(|grant| self.still_holds(grant, now)) {
            return Ok(grant);
        }
        let token = std::str::from_utf8(token).map_err(|_| Bad("not text"))?;
        let grant = Arc::new(self.prove(jwt::read(token)?, now).await?);
        let mut proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        if proven.len() >= PROVEN_MAX {
            proven.retain(|_, grant| self.still_holds(grant, now));
        }
        if proven.len() >= PROVEN_MAX {
            proven.clear();
        }
        proven.insert(digest, grant.clone());
        Ok(grant)
    }

    fn still_holds(&self, grant: &Grant, now: Timestamp) -> bool {
        let present = self.issuers[grant.issuer].keys.present();
        grant.expires_at > now && present.is_some_and(|present| Arc::ptr_eq(&present, &grant.keys))
    }

    /// Checks everything that costs nothing before an issuer is asked for keys.
    async fn prove(&self, token: Unproven<'_>, now: Timestamp) -> Result<Grant, Refused> {
        let Unproven { algorithm, kid, claims, signed, signature } = token;
        let at = self.issuers.iter().position(|issuer| issuer.name == claims.iss).ok_or(Bad("iss"))?;
        let issuer = &self.issuers[at];
        if !issuer.algorithms.contains(&algorithm) {
            return Err(Bad("alg is not the issuer's").into());
        }
        let asked = jwt::Asked { audience: &issuer.audience, leeway: issuer.leeway, now };
        let (expires_at, caller) = (claims.check(&asked)?, claims.caller()?);
        let tenant = match &issuer.tenant {
            Tenant::Fixed(tenant) => tenant.clone(),
            Tenant::Claim { name, among } => {
                let tenant = claims.name(name).ok_or(Bad("no tenant"))?;
                if !among.is_empty() && !among.contains(tenant) {
                    return Err(Bad("another tenant").into());
                }
                TenantId::new(tenant)
            }
        };
        let (keys, key) = issuer.keys.key(kid.as_deref(), algorithm).await.map_err(|none| match none {
            NoKey::Unknown => Refused::Bad(Bad("no such key")),
            NoKey::Unavailable => Refused::Unknowable,
        })?;
        match jsonwebtoken::crypto::verify(signature, signed.as_bytes(), &key, algorithm) {
            Ok(true) => {}
            Ok(false) | Err(_) => return Err(Bad("signature").into()),
        }
        let principal = Arc::new(Principal { tenant, caller });
        Ok(Grant { principal, scopes: claims.scopes(), issuer: at, keys, expires_at })
    }

    /// The challenge of an answer (RFC 6750, section 3, and RFC 9728, section 5.1).
    fn challenge(&self, error: Option<&str>, scopes: &[&str]) -> HeaderValue {
        let mut text = "Bearer realm=\"longhaul\"".to_owned();
        for (name, value) in [
            ("error", error),
            ("scope", Some(&*scopes.join(" ")).filter(|scopes| !scopes.is_empty())),
            ("resource_metadata", Some(&self.metadata_url)),
        ] {
            if let Some(value) = value {
                text.push_str(&format!(", {name}=\"{value}\""));
            }
        }
        // Scopes and URLs are checked when the config is read.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("Bearer"))
    }

    fn unauthenticated(&self, why: Unauthenticated) -> Response {
        let error = match why {
            Unauthenticated::Missing => None,
            Unauthenticated::Invalid => Some("invalid_token"),
        };
        let scopes: Vec<_> = self.scopes.iter().map(String::as_str).collect();
        let mut response = unauthenticated(why);
        response.headers_mut().insert(WWW_AUTHENTICATE, self.challenge(error, &scopes));
        response
    }

    /// All that an operation needs, and whether it is granted.
    fn needs<'a>(&'a self, grant: &Grant, tool: Option<&str>) -> (Vec<&'a str>, bool) {
        let of_tool = tool.and_then(|tool| self.tool_scopes.get(tool)).into_iter().flatten();
        let mut needed: Vec<&str> = Vec::new();
        for scope in self.issuers[grant.issuer].scopes.iter().chain(of_tool) {
            if !needed.contains(&scope.as_str()) {
                needed.push(scope);
            }
        }
        let granted = needed.iter().all(|needed| grant.scopes.iter().any(|granted| implies(granted, needed)));
        (needed, granted)
    }

    /// The answer to a caller whose token does not go so far: all that the operation needs, in one challenge.
    fn insufficient(&self, needed: &[&str], id: Option<&RequestId>) -> Response {
        let message = format!("This needs a token with the scope {}", needed.join(" "));
        let body = error_body(id, &RpcError::new(code::INVALID_REQUEST, message));
        let mut response = json(StatusCode::FORBIDDEN, body);
        response.headers_mut().insert(WWW_AUTHENTICATE, self.challenge(Some("insufficient_scope"), needed));
        response
    }
}

/// Whether a scope that was granted implies another: itself, and what is below it (`files` implies `files:read`).
fn implies(granted: &str, needed: &str) -> bool {
    needed.strip_prefix(granted).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// What can be written into a challenge as a scope (RFC 6749, section 3.3).
fn is_scope(scope: &str) -> bool {
    !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

/// No two issuers may speak of the same person: a name that one gives, the other could give to somebody else.
fn separate(issuers: &[IssuerConfig]) -> Result<(), BadIssuer> {
    let mut tenants = BTreeSet::new();
    for (at, issuer) in issuers.iter().enumerate() {
        let bad = |why: &str| Err(BadIssuer::Issuer(issuer.issuer.clone(), why.to_owned()));
        if issuers[..at].iter().any(|other| other.issuer == issuer.issuer) {
            return bad("is there twice");
        }
        let own: Vec<&str> = match &issuer.tenant {
            Tenant::Fixed(tenant) => vec![tenant.as_str()],
            Tenant::Claim { among, .. } if among.is_empty() && issuers.len() > 1 => {
                return bad("beside other issuers its tenants must be listed");
            }
            Tenant::Claim { among, .. } => among.iter().map(String::as_str).collect(),
        };
        for tenant in own {
            if !jwt::is_name(tenant) {
                return bad("its tenant has no name");
            }
            if !tenants.insert(tenant) {
                return bad("another issuer vouches for the same tenant");
            }
        }
    }
    Ok(())
}

impl Issuer {
    fn new(config: IssuerConfig, resource: &str, fetch_again: Duration) -> Result<Self, String> {
        let IssuerConfig { issuer, jwks_url, audience, tenant, algorithms, scopes, leeway } = config;
        let parse = |what: &str, url: &str, allow_loopback: bool| {
            let url = Url::parse(url).map_err(|_| format!("{what} is not a URL"))?;
            jwks::check(&url, allow_loopback).map_err(|why| format!("{what} {why}"))?;
            Ok::<_, String>(url)
        };
        let url = parse("it", &issuer, true)?;
        if url.query().is_some() {
            return Err("it has a query".into());
        }
        let source = match jwks_url {
            Some(jwks) => Source::Jwks(parse("jwks_url", &jwks, true)?),
            None => Source::Discover(url),
        };
        let known = |name: &String| jwt::algorithm(name).ok_or_else(|| format!("{name:?} is no algorithm for tokens"));
        let algorithms = algorithms.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        if algorithms.is_empty() {
            return Err("no algorithms".into());
        }
        if let Some(bad) = scopes.iter().find(|scope| !is_scope(scope) || *scope == OFFLINE) {
            return Err(format!("{bad:?} is no scope to ask for"));
        }
        if leeway > LEEWAY_MAX {
            return Err(format!("a leeway of more than {} s", LEEWAY_MAX.as_secs()));
        }
        let keys = Keys::new(&issuer, source, fetch_again).map_err(|error| error.to_string())?;
        let audience = audience.unwrap_or_else(|| resource.to_owned());
        Ok(Self { name: issuer, audience, tenant, algorithms, scopes, leeway, keys: Arc::new(keys) })
    }
}

impl Authenticator {
    /// The issuers, if there are any.
    pub(crate) fn resource_server(&self) -> Option<&Arc<ResourceServer>> {
        if let Self::OAuth(server, _) = self { Some(server) } else { None }
    }

    /// Who sends a request, or the answer to who may not.
    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        stored: &Credentials,
        now: Timestamp,
    ) -> Result<Identity, Response> {
        let own = |Known { principal, ended }| Identity { principal, ended, grant: None };
        let Some(server) = self.resource_server() else {
            return self.principal(headers, stored).map(own).map_err(unauthenticated);
        };
        let Some(token) = bearer(headers).filter(|token| jwt::is_jwt(token)) else {
            return self.principal(headers, stored).map(own).map_err(|why| server.unauthenticated(why));
        };
        let grant = server.grant(token, now).await.map_err(|refused| match refused {
            Refused::Bad(Bad(why)) => {
                tracing::debug!(why, "a token was refused");
                server.unauthenticated(Unauthenticated::Invalid)
            }
            Refused::Unknowable => unavailable(None),
        })?;
        match server.needs(&grant, None) {
            (_, true) => Ok(Identity { principal: grant.principal.clone(), ended: None, grant: Some(grant) }),
            (needed, false) => Err(server.insufficient(&needed, None)),
        }
    }

    /// The answer to a call of a tool that needs a scope which its caller was not granted.
    pub(crate) fn lacks(&self, identity: &Identity, tool: &str, id: &RequestId) -> Option<Response> {
        let (server, grant) = (self.resource_server()?, identity.grant.as_ref()?);
        match server.needs(grant, Some(tool)) {
            (_, true) => None,
            (needed, false) => Some(server.insufficient(&needed, Some(id))),
        }
    }
}

impl Identity {
    /// How long a stream of such a caller may go on.
    pub(crate) fn until(&self, drain: &CancellationToken, now: Timestamp) -> Until {
        Until::new(drain, now, self.grant.as_ref().map(|grant| grant.expires_at))
    }
}

/// The one token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (shown.next(), shown.next()) else { return None };
    let (scheme, token) = header.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(name: &str, tenant: Tenant) -> IssuerConfig {
        IssuerConfig {
            issuer: name.into(),
            jwks_url: None,
            audience: None,
            tenant,
            algorithms: vec!["ES256".into()],
            scopes: vec!["mcp:tools".into()],
            leeway: Duration::from_secs(30),
        }
    }

    fn claim(among: &[&str]) -> Tenant {
        Tenant::Claim { name: "org".into(), among: among.iter().map(|name| (*name).to_owned()).collect() }
    }

    fn build(issuers: Vec<IssuerConfig>) -> Result<ResourceServer, BadIssuer> {
        let public_url = "https://mcp.example".into();
        let fetch_again = OAuthConfig::FETCH_AGAIN;
        ResourceServer::new(OAuthConfig { public_url, issuers, tool_scopes: BTreeMap::new(), fetch_again })
    }

    #[test]
    fn a_scope_implies_itself_and_what_is_below_it() {
        for (granted, needed, implied) in [
            ("files", "files", true),
            ("files", "files:read", true),
            ("files:read", "files", false),
            ("files:read", "files:write", false),
            ("file", "files", false),
            ("", "files", false),
            ("Files", "files", false),
        ] {
            assert_eq!(implies(granted, needed), implied, "{granted} {needed}");
        }
    }

    #[test]
    fn two_issuers_never_speak_of_the_same_people() {
        let fixed = |name: &str| Tenant::Fixed(TenantId::new(name));
        assert!(build(vec![issuer("https://a.example", fixed("t")), issuer("https://b.example", fixed("u"))]).is_ok());
        assert!(build(vec![issuer("https://a.example", claim(&[]))]).is_ok());
        assert!(
            build(vec![issuer("https://a.example", claim(&["t"])), issuer("https://b.example", fixed("u"))]).is_ok()
        );
        for other in [fixed("t"), claim(&["u", "t"]), claim(&[])] {
            let both = vec![issuer("https://a.example", fixed("t")), issuer("https://b.example", other)];
            assert!(matches!(build(both), Err(BadIssuer::Issuer(name, _)) if name == "https://b.example"));
        }
        assert!(build(vec![issuer("https://a.example", fixed("t")), issuer("https://a.example", fixed("u"))]).is_err());
    }

    #[test]
    fn an_issuer_that_cannot_be_trusted_is_a_wrong_config() {
        let change = |change: &dyn Fn(&mut IssuerConfig)| {
            let mut issuer = issuer("https://a.example/x", claim(&["t"]));
            change(&mut issuer);
            build(vec![issuer])
        };
        assert!(change(&|_| ()).is_ok());
        let bad: [&dyn Fn(&mut IssuerConfig); 10] = [
            &|issuer| issuer.issuer = "http://a.example".into(),
            &|issuer| issuer.issuer = "https://a.example/?x".into(),
            &|issuer| issuer.issuer = "a.example".into(),
            &|issuer| issuer.jwks_url = Some("http://a.example/keys".into()),
            &|issuer| issuer.jwks_url = Some("https://169.254.169.254/keys".into()),
            &|issuer| issuer.algorithms = vec!["HS256".into()],
            &|issuer| issuer.algorithms = Vec::new(),
            &|issuer| issuer.scopes = vec!["a\"b".into()],
            &|issuer| issuer.scopes = vec!["offline_access".into()],
            &|issuer| issuer.leeway = Duration::from_secs(301),
        ];
        for (at, bad) in bad.iter().enumerate() {
            assert!(change(bad).is_err(), "{at}");
        }
    }
}
