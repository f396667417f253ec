//! A token as its sender shows it, read before anything of it is believed (RFC 7515, RFC 7519, RFC 9068).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use longhaul_core::{Caller, Timestamp};
use longhaul_mcp::scan::scan;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The largest token, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The longest key id.
const KID_BYTES_MAX: usize = 64;
/// The longest name of a person, an app or a tenant, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 512;
/// The last second of the year 9999: what expires later was not meant as a time.
const SECONDS_MAX: f64 = 253_402_300_799.0;

/// What is wrong with a token; for the log, never for its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bad(pub(super) &'static str);

/// A token that is well formed. Nothing of it is true until its signature is.
pub(super) struct Unproven<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) kid: Option<String>,
    pub(super) claims: Claims,
    /// What the signature is for.
    pub(super) signed: &'a str,
    /// The signature, in base64url.
    pub(super) signature: &'a str,
}

/// Keys that a header brings along (`jwk`, `jku`, `x5c`, `x5u`) are not even read.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<serde::de::IgnoredAny>,
}

/// What the token says.
#[derive(Deserialize)]
pub(super) struct Claims {
    pub(super) iss: String,
    sub: String,
    aud: OneOrMore,
    exp: f64,
    nbf: Option<f64>,
    azp: Option<String>,
    client_id: Option<String>,
    scope: Option<String>,
    scp: Option<OneOrMore>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more,
        }
        .iter()
        .map(String::as_str)
    }
}

/// Whether a token is a JWT rather than a key of ours: three parts, of which the first is a JSON object.
pub(super) fn is_jwt(token: &[u8]) -> bool {
    let mut parts = token.split(|byte| *byte == b'.');
    let (header, others) = (parts.next().unwrap_or_default(), parts.count());
    others == 2 && URL_SAFE_NO_PAD.decode(header).is_ok_and(|header| header.starts_with(b"{"))
}

/// Reads a token.
pub(super) fn read(token: &str) -> Result<Unproven<'_>, Bad> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Bad("too long"));
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(Bad("shape"))?;
    let (header, claims) = signed.split_once('.').ok_or(Bad("shape"))?;
    let header: Header = part(header).ok_or(Bad("header"))?;
    if header.crit.is_some() {
        return Err(Bad("crit"));
    }
    // A token of another kind is not for access, whoever has signed it (RFC 8725, section 3.11).
    let is_access =
        |typ: &String| ["jwt", "at+jwt", "application/at+jwt"].iter().any(|ok| typ.eq_ignore_ascii_case(ok));
    if !header.typ.as_ref().is_none_or(is_access) {
        return Err(Bad("typ"));
    }
    if !header.kid.as_deref().is_none_or(is_kid) {
        return Err(Bad("kid"));
    }
    let algorithm = algorithm(&header.alg).ok_or(Bad("alg"))?;
    let claims = part(claims).ok_or(Bad("claims"))?;
    Ok(Unproven { algorithm, kid: header.kid, claims, signed, signature })
}

/// A part of a token: JSON in which no key comes twice, so that nobody reads it differently.
fn part<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(part).ok()?;
    scan(&json, "").1.ok()?;
    serde_json::from_slice(&json).ok()
}

/// Whether a key's name is one: it goes into logs and caches.
pub(super) fn is_kid(kid: &str) -> bool {
    (1..=KID_BYTES_MAX).contains(&kid.len())
        && kid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The algorithms that we know. Those with a shared secret are none: whoever could check a token could make one.
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let known = [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA];
    known.into_iter().find(|known| format!("{known:?}") == name)
}

/// What is asked of the claims of a token.
pub(super) struct Asked<'a> {
    pub(super) audience: &'a str,
    pub(super) leeway: Duration,
    pub(super) now: Timestamp,
}

impl Claims {
    /// Whether the token is for us, and for now; says until when it is.
    pub(super) fn check(&self, asked: &Asked<'_>) -> Result<Timestamp, Bad> {
        if !self.aud.iter().any(|audience| is_same(audience, asked.audience)) {
            return Err(Bad("aud"));
        }
        let end = moment(self.exp).ok_or(Bad("exp"))?.plus(asked.leeway);
        if end <= asked.now {
            return Err(Bad("expired"));
        }
        match self.nbf.map(moment) {
            Some(None) => Err(Bad("nbf")),
            Some(Some(start)) if start > asked.now.plus(asked.leeway) => Err(Bad("not yet valid")),
            Some(Some(_)) | None => Ok(end),
        }
    }

    /// Who it speaks of: exactly as the issuer wrote it.
    pub(super) fn caller(&self) -> Result<Caller, Bad> {
        let app = match (&self.azp, &self.client_id) {
            (Some(azp), Some(client)) if azp != client => return Err(Bad("azp and client_id differ")),
            (Some(app), _) | (None, Some(app)) => app,
            (None, None) => return Err(Bad("no azp and no client_id")),
        };
        if !is_name(app) || !is_name(&self.sub) {
            return Err(Bad("sub or azp is no name"));
        }
        Ok(Caller::Person { app: app.clone(), person: self.sub.clone() })
    }

    /// A claim that is a name.
    pub(super) fn name(&self, claim: &str) -> Option<&str> {
        self.others.get(claim).and_then(Value::as_str).filter(|name| is_name(name))
    }

    /// What it allows (RFC 8693, section 4.2; several issuers write `scp`).
    pub(super) fn scopes(&self) -> Vec<String> {
        let scopes = self.scope.iter().map(String::as_str).chain(self.scp.iter().flat_map(OneOrMore::iter));
        scopes.flat_map(|scopes| scopes.split(' ')).filter(|scope| !scope.is_empty()).map(str::to_owned).collect()
    }
}

/// Whether text can be the name of somebody: there is some, and no database refuses it.
pub(super) fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Whether two resources are the same: scheme and host do not mind capitals (MCP, basic/authorization).
fn is_same(one: &str, other: &str) -> bool {
    one == other || matches!((url::Url::parse(one), url::Url::parse(other)), (Ok(one), Ok(other)) if one == other)
}

/// The moment so many seconds after the epoch.
fn moment(seconds: f64) -> Option<Timestamp> {
    // In the range where every microsecond is a whole number of 64 bits.
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Timestamp::from_micros((seconds * 1e6) as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(header: &Value, claims: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.c2ln", part(&header.to_string()), part(claims))
    }

    fn claims(change: &Value) -> Value {
        let mut claims =
            json!({"iss": "https://i.example", "sub": "p", "aud": "https://r.example/mcp", "exp": 1000, "azp": "a"});
        for (key, value) in change.as_object().unwrap() {
            claims[key] = value.clone();
        }
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        claims
    }

    fn judge(change: &Value) -> Result<(Timestamp, Caller), Bad> {
        let token = token(&json!({"alg": "ES256"}), &claims(change).to_string());
        let read = read(&token)?;
        let now = Timestamp::from_micros(900_000_000);
        let asked = Asked { audience: "https://r.example/mcp", leeway: Duration::from_secs(30), now };
        Ok((read.claims.check(&asked)?, read.claims.caller()?))
    }

    #[test]
    fn a_header_is_refused_unless_it_is_of_a_signed_access_token() {
        let good = claims(&json!({})).to_string();
        for (header, bad) in [
            (json!({"alg": "none"}), "alg"),
            (json!({"alg": "None"}), "alg"),
            (json!({"alg": "HS256"}), "alg"),
            (json!({"alg": "HS512", "kid": "k"}), "alg"),
            (json!({"alg": "es256"}), "alg"),
            (json!({"alg": ["ES256"]}), "header"),
            (json!({"kid": "k"}), "header"),
            (json!({"alg": "ES256", "kid": 7}), "header"),
            (json!({"alg": "ES256", "kid": ""}), "kid"),
            (json!({"alg": "ES256", "kid": "../../etc/passwd"}), "kid"),
            (json!({"alg": "ES256", "kid": "' UNION SELECT"}), "kid"),
            (json!({"alg": "ES256", "kid": "k\u{0}"}), "kid"),
            (json!({"alg": "ES256", "kid": "k".repeat(65)}), "kid"),
            (json!({"alg": "ES256", "crit": ["exp"]}), "crit"),
            (json!({"alg": "ES256", "crit": [], "b64": false}), "crit"),
            (json!({"alg": "ES256", "typ": "logout+jwt"}), "typ"),
            (json!({"alg": "ES256", "typ": "dpop+jwt"}), "typ"),
        ] {
            assert_eq!(read(&token(&header, &good)).err(), Some(Bad(bad)), "{header}");
        }
        for header in [
            json!({"alg": "RS256", "kid": "A.b_c-9", "typ": "at+JWT"}),
            json!({"alg": "EdDSA", "jku": "https://evil.example/keys", "x5u": "https://evil.example", "jwk": {"kty": "oct"}}),
        ] {
            assert!(read(&token(&header, &good)).is_ok(), "{header}");
        }
        let twice = format!("{}.{}.c2ln", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","alg":"ES256"}"#), "e30");
        assert_eq!(read(&twice).err(), Some(Bad("header")));
        let long = token(&json!({"alg": "ES256"}), &claims(&json!({"x": "y".repeat(8 * 1024)})).to_string());
        assert_eq!(read(&long).err(), Some(Bad("too long")));
    }

    #[test]
    fn claims_must_be_there_be_of_their_type_and_be_for_us_and_now() {
        let person = |app: &str, person: &str| Caller::Person { app: app.into(), person: person.into() };
        let until = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        for (change, good) in [
            (json!({}), (until(1030), person("a", "p"))),
            (json!({"exp": 871}), (until(901), person("a", "p"))),
            (json!({"exp": 1000.5}), (Timestamp::from_micros(1_030_500_000), person("a", "p"))),
            (json!({"nbf": 930}), (until(1030), person("a", "p"))),
            (json!({"aud": ["x", "https://r.example/mcp"]}), (until(1030), person("a", "p"))),
            (json!({"aud": "HTTPS://R.example/mcp"}), (until(1030), person("a", "p"))),
            (json!({"azp": null, "client_id": "c"}), (until(1030), person("c", "p"))),
            (json!({"client_id": "a"}), (until(1030), person("a", "p"))),
            (json!({"sub": "admin\u{200b}"}), (until(1030), person("a", "admin\u{200b}"))),
        ] {
            assert_eq!(judge(&change), Ok(good), "{change}");
        }
        for (change, bad) in [
            (json!({"iss": null}), "claims"),
            (json!({"iss": ["https://i.example"]}), "claims"),
            (json!({"sub": null}), "claims"),
            (json!({"sub": 7}), "claims"),
            (json!({"sub": ""}), "sub or azp is no name"),
            (json!({"sub": "a\u{0}b"}), "sub or azp is no name"),
            (json!({"sub": "x".repeat(513)}), "sub or azp is no name"),
            (json!({"aud": null}), "claims"),
            (json!({"aud": []}), "aud"),
            (json!({"aud": ""}), "aud"),
            (json!({"aud": {"https://r.example/mcp": 1}}), "claims"),
            (json!({"aud": "https://r.example"}), "aud"),
            (json!({"aud": "https://r.example/MCP"}), "aud"),
            (json!({"aud": "https://r.example.evil.example/mcp"}), "aud"),
            (json!({"exp": null}), "claims"),
            (json!({"exp": "1000"}), "claims"),
            (json!({"exp": 1e99}), "exp"),
            (json!({"exp": -1}), "exp"),
            (json!({"exp": 870}), "expired"),
            (json!({"nbf": "0"}), "claims"),
            (json!({"nbf": 931}), "not yet valid"),
            (json!({"nbf": 1e99}), "nbf"),
            (json!({"azp": null}), "no azp and no client_id"),
            (json!({"azp": 7}), "claims"),
            (json!({"azp": ["a"]}), "claims"),
            (json!({"azp": ""}), "sub or azp is no name"),
            (json!({"client_id": "another"}), "azp and client_id differ"),
        ] {
            assert_eq!(judge(&change), Err(Bad(bad)), "{change}");
        }
        let twice = token(&json!({"alg": "ES256"}), r#"{"iss":"i","sub":"p","sub":"q","aud":"r","exp":1,"azp":"a"}"#);
        assert_eq!(read(&twice).err(), Some(Bad("claims")));
    }

    #[test]
    fn scopes_come_as_text_or_as_a_list() {
        for (change, scopes) in [
            (json!({}), vec![]),
            (json!({"scope": "a  b"}), vec!["a", "b"]),
            (json!({"scp": ["a", "b c"]}), vec!["a", "b", "c"]),
            (json!({"scp": "a", "scope": "b"}), vec!["b", "a"]),
        ] {
            let token = token(&json!({"alg": "ES256"}), &claims(&change).to_string());
            assert_eq!(read(&token).unwrap().claims.scopes(), scopes, "{change}");
        }
    }

    #[test]
    fn a_key_of_ours_is_not_taken_for_a_token_of_an_issuer() {
        assert!(is_jwt(token(&json!({"alg": "none"}), "{}").as_bytes()));
        assert!(is_jwt(b"eyJhbGciOiJub25lIn0.e30."));
        for key in ["", "key-of-alice", "a.b.c", "eyJ.a", "eyJ.a.b.c.d", "lh_a.b.c"] {
            assert!(!is_jwt(key.as_bytes()), "{key}");
        }
    }
}
