//! The keys of one issuer: fetched seldom, by one at a time, and within bounds, whatever tokens are shown to us.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use url::{Host, Url};

use super::jwt::{algorithm, is_kid};

/// How long a name that no key has is known to be unknown.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
/// How many such names are known at a time; of more, each is looked for whenever a fetch is allowed.
const UNKNOWN_MAX: usize = 1000;
/// How long keys are good that could not be fetched again.
const STALE_MAX: Duration = Duration::from_secs(60 * 60);
/// How long one fetch may take.
const FETCH_MAX: Duration = Duration::from_secs(3);
/// The largest answer of an issuer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The most keys of an issuer.
const KEYS_MAX: usize = 100;
/// Why a fetch failed, for the log.
type Why = String;

/// Where an issuer's keys are.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// At this URL.
    Jwks(Url),
    /// Where the issuer's own metadata says (RFC 8414, OpenID Connect Discovery).
    Discover(Url),
}

/// The keys of an issuer.
pub(super) struct Keys {
    issuer: String,
    source: Source,
    http: reqwest::Client,
    /// The least time between two fetches.
    again: Duration,
    flight: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    fetches: TaskTracker,
}

#[derive(Default)]
struct State {
    set: Arc<Set>,
    /// When it was fetched.
    fetched: Option<Instant>,
    /// When a fetch was last begun.
    tried: Option<Instant>,
    unknown: HashMap<String, Instant>,
    /// Where the metadata said that the keys are.
    found: Option<Url>,
}

/// The keys of one answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Set {
    keys: Vec<(Option<String>, Vec<Algorithm>, Jwk)>,
}

/// Why there is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoKey {
    /// The issuer has none of this name for this algorithm.
    Unknown,
    /// The issuer's keys are not known.
    Unavailable,
}

impl Keys {
    pub(super) fn new(issuer: &str, source: Source, again: Duration) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(FETCH_MAX)
            .dns_resolver(Arc::new(Public))
            .user_agent(concat!("longhaul/", env!("CARGO_PKG_VERSION")))
            .build()?;
        let (flight, state) = (tokio::sync::Mutex::default(), Mutex::default());
        Ok(Self { issuer: issuer.to_owned(), source, http, again, flight, state, fetches: TaskTracker::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present keys, unless they are too old.
    pub(super) fn present(&self) -> Option<Arc<Set>> {
        let state = self.lock();
        state.fetched.filter(|fetched| fetched.elapsed() < STALE_MAX).map(|_| state.set.clone())
    }

    /// The key of a token. May fetch, but not often.
    pub(super) async fn key(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(Arc<Set>, DecodingKey), NoKey> {
        let found = |set: Arc<Set>| set.find(kid, algorithm).map(|found| found.map(|key| (set, key)));
        if let Some(found) = self.present().and_then(found) {
            return found;
        }
        let is_unknown = |kid: &str| self.lock().unknown.get(kid).is_some_and(|since| since.elapsed() < UNKNOWN_FOR);
        if self.present().is_some() && kid.is_none_or(is_unknown) {
            return Err(NoKey::Unknown);
        }
        // A caller that hangs up does not take the fetch with it: it counts as one.
        let this = self.clone();
        let fetching = self.fetches.spawn(async move { this.fetch_if_due().await });
        let fetched = fetching.await.unwrap_or(false);
        let present = self.present().ok_or(NoKey::Unavailable)?;
        if let Some(found) = found(present) {
            return found;
        }
        if let Some(kid) = kid.filter(|_| fetched) {
            self.lock().remember_unknown(kid);
        }
        Err(NoKey::Unknown)
    }

    /// Fetches the keys again, if that was not done just now. Whether they are as good as new.
    pub(super) async fn fetch_if_due(&self) -> bool {
        let _flight = self.flight.lock().await;
        if self.lock().tried.is_some_and(|tried| tried.elapsed() < self.again) {
            return false;
        }
        self.lock().tried = Some(Instant::now());
        match self.fetch().await {
            Ok(set) => {
                let mut state = self.lock();
                state.fetched = Some(Instant::now());
                state.unknown.retain(|kid, _| !set.keys.iter().any(|(known, ..)| known.as_ref() == Some(kid)));
                // Who holds the former set sees by it that something has changed.
                if *state.set != set {
                    state.set = Arc::new(set);
                }
                true
            }
            Err(why) => {
                self.lock().found = None;
                tracing::warn!(issuer = self.issuer, why, "the keys of an issuer could not be fetched");
                false
            }
        }
    }

    async fn fetch(&self) -> Result<Set, Why> {
        let url = match &self.source {
            Source::Jwks(url) => url.clone(),
            Source::Discover(issuer) => {
                let found = self.lock().found.clone();
                let url = match found {
                    Some(url) => url,
                    None => self.discover(issuer).await?,
                };
                self.lock().found = Some(url.clone());
                url
            }
        };
        Set::read(&self.get(url).await?)
    }

    /// Where the metadata of an issuer says that its keys are.
    async fn discover(&self, issuer: &Url) -> Result<Url, Why> {
        #[derive(Deserialize)]
        struct Metadata {
            issuer: String,
            jwks_uri: String,
        }
        let path = issuer.path().trim_end_matches('/');
        let mut why = String::new();
        for path in [
            format!("/.well-known/oauth-authorization-server{path}"),
            format!("{path}/.well-known/openid-configuration"),
        ] {
            let mut url = issuer.clone();
            url.set_path(&path);
            let answer = match self.get(url).await {
                Ok(answer) => answer,
                Err(error) => {
                    why = error;
                    continue;
                }
            };
            let metadata: Metadata = serde_json::from_slice(&answer).map_err(|_| "its metadata has no jwks_uri")?;
            // RFC 8414, section 3.3: else one issuer could speak for another.
            if metadata.issuer != self.issuer {
                return Err("its metadata is another issuer's".into());
            }
            let jwks = Url::parse(&metadata.jwks_uri).map_err(|_| "its jwks_uri is not a URL")?;
            check(&jwks, is_loopback(issuer)).map_err(|why| format!("its jwks_uri {why}"))?;
            return Ok(jwks);
        }
        Err(why)
    }

    async fn get(&self, url: Url) -> Result<Vec<u8>, Why> {
        let failed = |error: reqwest::Error| error.without_url().to_string();
        let mut response = self.http.get(url).header("accept", "application/json").send().await.map_err(failed)?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(format!("it answered {}", response.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err("its answer is too large".into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

impl State {
    fn remember_unknown(&mut self, kid: &str) {
        self.unknown.retain(|_, since| since.elapsed() < UNKNOWN_FOR);
        if self.unknown.len() < UNKNOWN_MAX {
            self.unknown.insert(kid.to_owned(), Instant::now());
        }
    }
}

/// A public key as issuers write it (RFC 7517), in so far as we can use it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwk {
    /// What may be checked with it: a key serves the algorithms of its own kind, whatever a token says.
    fn algorithms(&self) -> Vec<Algorithm> {
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        let signs = self.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
            && self.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        let kind: &[Algorithm] = match (self.kty.as_str(), self.crv.as_deref()) {
            _ if !signs => &[],
            ("RSA", _) => &[RS256, RS384, RS512, PS256, PS384, PS512],
            ("EC", Some("P-256")) => &[ES256],
            ("EC", Some("P-384")) => &[ES384],
            ("OKP", Some("Ed25519")) => &[EdDSA],
            // A shared secret is no public key.
            _ => &[],
        };
        let said = self.alg.as_deref().map(algorithm);
        kind.iter().filter(|one| said.is_none_or(|said| said == Some(**one))).copied().collect()
    }

    fn decoding_key(&self) -> Option<DecodingKey> {
        match (self.kty.as_str(), &self.n, &self.e, &self.x, &self.y) {
            ("RSA", Some(n), Some(e), ..) => DecodingKey::from_rsa_components(n, e).ok(),
            ("EC", _, _, Some(x), Some(y)) => DecodingKey::from_ec_components(x, y).ok(),
            ("OKP", _, _, Some(x), _) => DecodingKey::from_ed_components(x).ok(),
            _ => None,
        }
    }
}

impl Set {
    fn read(answer: &[u8]) -> Result<Self, Why> {
        #[derive(Deserialize)]
        struct Answer {
            keys: Vec<Value>,
        }
        let Answer { keys } = serde_json::from_slice(answer).map_err(|_| "its answer is no set of keys")?;
        if keys.len() > KEYS_MAX {
            return Err("it has too many keys".into());
        }
        // What we cannot use is for others: a set may hold keys of kinds that we do not know (RFC 7517, section 5).
        let usable = |key: Value| {
            let key: Jwk = serde_json::from_value(key).ok()?;
            let algorithms = key.algorithms();
            let is_usable = !algorithms.is_empty() && key.kid.as_deref().is_none_or(is_kid);
            (is_usable && key.decoding_key().is_some()).then(|| (key.kid.clone(), algorithms, key))
        };
        Ok(Self { keys: keys.into_iter().filter_map(usable).collect() })
    }

    /// The key of this name, or the only one there is for a token without a name. `Some(Err)` if no fetch would help.
    fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<Result<DecodingKey, NoKey>> {
        let named = |(known, ..): &&(Option<String>, _, _)| kid.is_none() || known.as_deref() == kid;
        let mut named = self.keys.iter().filter(named).peekable();
        named.peek()?;
        let mut fitting = named.filter(|(_, algorithms, _)| algorithms.contains(&algorithm));
        Some(match (fitting.next(), fitting.next()) {
            (Some((_, _, key)), None) => key.decoding_key().ok_or(NoKey::Unknown),
            (Some(_), Some(_)) | (None, _) => Err(NoKey::Unknown),
        })
    }
}

/// Whether a URL may be fetched; says what is wrong with it.
pub(super) fn check(url: &Url, allow_loopback: bool) -> Result<(), &'static str> {
    match (url.scheme(), is_loopback(url)) {
        ("https", false) => {}
        ("https" | "http", true) if allow_loopback => {}
        _ => return Err("is not an https URL"),
    }
    let is_barred = match url.host() {
        Some(Host::Ipv4(ip)) => !is_loopback(url) && !may_dial(ip.into()),
        Some(Host::Ipv6(ip)) => !is_loopback(url) && !may_dial(ip.into()),
        Some(Host::Domain(_)) => false,
        None => true,
    };
    if is_barred || !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("is not a URL of a server");
    }
    Ok(())
}

/// Whether a URL is of this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// Whether an address may be an issuer's. Those of private networks may: an issuer may be in the same house. The
/// machine itself and what only machines in a cloud can see (the metadata services) may not.
fn may_dial(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast()),
    }
}

/// Resolves names, and keeps the addresses that may be dialled: those very ones are, so no second answer matters.
struct Public;

impl Resolve for Public {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let all: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let here = name.as_str() == "localhost";
            let good: Vec<_> =
                all.into_iter().filter(|at| may_dial(at.ip()) || here && at.ip().is_loopback()).collect();
            if good.is_empty() {
                return Err("its name has no address that may be an issuer's".into());
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_text(url: &str, allow_loopback: bool) -> bool {
        check(&url.parse().unwrap(), allow_loopback).is_ok()
    }

    #[test]
    fn only_servers_over_https_are_asked_for_keys() {
        for url in ["https://login.example/keys", "https://10.0.0.7:8443/keys", "https://login.example:444/"] {
            assert!(check_text(url, false), "{url}");
        }
        for url in [
            "http://login.example/keys",
            "http://169.254.169.254/latest/meta-data/",
            "https://169.254.169.254/",
            "https://[fe80::1]/",
            "https://[::ffff:169.254.169.254]/",
            "https://[::ffff:7f00:1]/",
            "https://0.0.0.0/",
            "https://0/",
            "https://user@login.example/",
            "https://:pw@login.example/",
            "https://login.example/#x",
            "ftp://login.example/",
            "file:///etc/passwd",
            "data:application/json,%7B%7D",
            "http://127.0.0.1.nip.io/",
        ] {
            assert!(!check_text(url, true), "{url}");
        }
        for url in ["http://localhost:1/keys", "http://127.0.0.1:1/keys", "http://[::1]/", "https://localhost/"] {
            assert!(check_text(url, true) && !check_text(url, false), "{url}");
        }
    }

    #[tokio::test]
    async fn a_name_of_an_address_that_is_no_issuers_leads_nowhere() {
        for name in ["169.254.169.254", "127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "224.0.0.1"] {
            assert!(!may_dial(name.parse().unwrap()), "{name}");
        }
        for name in ["10.1.2.3", "192.0.2.7", "2001:db8::1"] {
            assert!(may_dial(name.parse().unwrap()), "{name}");
        }
        assert!(Public.resolve("localhost".parse().unwrap()).await.is_ok());
    }

    #[test]
    fn a_key_serves_only_what_it_is_for() {
        let ec = |more: Value| {
            let mut key = json!({"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "kid": "k"});
            more.as_object().unwrap().iter().for_each(|(name, value)| key[name] = value.clone());
            let set = Set::read(json!({"keys": [key]}).to_string().as_bytes()).unwrap();
            set.find(Some("k"), Algorithm::ES256).is_some_and(|found| found.is_ok())
        };
        for good in [json!({}), json!({"use": "sig"}), json!({"alg": "ES256"}), json!({"key_ops": ["verify"]})] {
            assert!(ec(good.clone()), "{good}");
        }
        for bad in [
            json!({"use": "enc"}),
            json!({"alg": "RS256"}),
            json!({"alg": "none"}),
            json!({"key_ops": ["sign"]}),
            json!({"crv": "P-384"}),
            json!({"kty": "oct", "k": "AAAA"}),
            json!({"kty": "RSA"}),
            json!({"kid": "../k"}),
            json!({"x": null}),
            json!({"x": "/+"}),
        ] {
            assert!(!ec(bad.clone()), "{bad}");
        }
    }

    #[test]
    fn a_token_without_a_key_name_is_believed_only_where_there_is_one_key_for_it() {
        let ec = |kid: Value| json!({"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "kid": kid});
        let rsa = json!({"kty": "RSA", "n": "AAAA", "e": "AQAB", "kid": "r"});
        let read = |keys: Value| Set::read(json!({"keys": keys}).to_string().as_bytes()).unwrap();
        let one = read(json!([ec("a".into()), rsa]));
        assert!(one.find(None, Algorithm::ES256).unwrap().is_ok());
        assert!(one.find(Some("r"), Algorithm::ES256).unwrap().is_err(), "another kind of key");
        assert!(one.find(Some("b"), Algorithm::ES256).is_none(), "a fetch may help");
        let two = read(json!([ec("a".into()), ec("b".into())]));
        assert!(two.find(None, Algorithm::ES256).unwrap().is_err());
        assert!(two.find(Some("b"), Algorithm::ES256).unwrap().is_ok());
        let same = read(json!([ec("a".into()), ec("a".into())]));
        assert!(same.find(Some("a"), Algorithm::ES256).unwrap().is_err(), "one name of two keys");
        let many = json!({"keys": vec![ec(Value::Null); KEYS_MAX + 1]}).to_string();
        assert!(Set::read(many.as_bytes()).is_err());
        assert!(Set::read(br#"{"keys": {}}"#).is_err());
    }
}
