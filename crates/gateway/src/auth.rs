//! From a credential to a principal.

use std::fmt;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use longhaul_core::Principal;
use sha2::{Digest as _, Sha256};

use crate::credentials::{Credentials, Known};
use crate::oauth::ResourceServer;

/// Knows the callers.
#[derive(Clone)]
pub enum Authenticator {
    /// Everyone is this principal, whatever they show. Only for a listener on the loopback interface.
    Fixed(Arc<Principal>),
    /// Those who show one of these tokens, or the key of a credential that the task-store has.
    Bearer(Arc<[Credential]>),
    /// Those for whom one of these issuers vouches, and the others.
    OAuth(Arc<ResourceServer>, Box<Authenticator>),
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(principal) => f.debug_tuple("Fixed").field(principal).finish(),
            Self::Bearer(credentials) => write!(f, "Bearer({} credentials)", credentials.len()),
            Self::OAuth(issuers, others) => f.debug_tuple("OAuth").field(issuers).field(others).finish(),
        }
    }
}

/// A token, as its SHA-256, and whose it is.
#[derive(Clone)]
pub struct Credential {
    /// The digest of the token.
    pub sha256: [u8; 32],
    /// Who shows it.
    pub principal: Arc<Principal>,
}

/// What is wrong with what a caller showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unauthenticated {
    /// Nothing.
    Missing,
    /// Something we do not know, or two things.
    Invalid,
}

impl Unauthenticated {
    /// The challenge (RFC 6750, section 3): an error only where a token was shown.
    pub(crate) fn challenge(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Missing => "Bearer realm=\"longhaul\"",
            Self::Invalid => "Bearer realm=\"longhaul\", error=\"invalid_token\"",
        })
    }
}

impl Authenticator {
    /// Whether the credentials of the task-store count.
    pub(crate) fn takes_stored(&self) -> bool {
        match self {
            Self::Fixed(_) => false,
            Self::Bearer(_) => true,
            Self::OAuth(_, others) => others.takes_stored(),
        }
    }

    /// Whether it lets anybody in.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Bearer(_) => false,
            Self::OAuth(_, others) => others.is_open(),
        }
    }

    /// Whose request it is. Only the header counts, never the URL.
    pub(crate) fn principal(&self, headers: &HeaderMap, stored: &Credentials) -> Result<Known, Unauthenticated> {
        let credentials = match self {
            Self::Fixed(principal) => return Ok(Known { principal: principal.clone(), ended: None }),
            Self::Bearer(credentials) => credentials,
            Self::OAuth(_, others) => return others.principal(headers, stored),
        };
        let mut shown = headers.get_all(AUTHORIZATION).iter();
        let header = shown.next().ok_or(Unauthenticated::Missing)?.as_bytes();
        if shown.next().is_some() {
            return Err(Unauthenticated::Invalid);
        }
        let (scheme, token) = header.split_at_checked("Bearer ".len()).ok_or(Unauthenticated::Invalid)?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return Err(Unauthenticated::Invalid);
        }
        let digest: [u8; 32] = Sha256::digest(token).into();
        // Every credential is compared, and every byte of it, so that the time taken says nothing of how much was right.
        let mut found = None;
        for credential in credentials.iter() {
            let differences = credential.sha256.iter().zip(&digest).fold(0, |all, (a, b)| all | (a ^ b));
            if differences == 0 {
                found = Some(&credential.principal);
            }
        }
        let stored = stored.of(&digest);
        let found = found.map(|principal| Known { principal: principal.clone(), ended: None });
        found.or(stored).ok_or(Unauthenticated::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Caller, TenantId, TestClock, Timestamp};
    use longhaul_policy::follow::Mirror as _;
    use longhaul_rpc::CredentialChange;

    use super::*;

    #[test]
    fn only_one_known_token_in_one_header_lets_in() {
        let principal = Arc::new(Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) });
        let credential = Credential { sha256: Sha256::digest("secret").into(), principal: principal.clone() };
        let auth = Authenticator::Bearer([credential].into());
        let stored = Credentials::new(Arc::new(TestClock::at(Timestamp::from_micros(0))));
        let keys = vec![(Sha256::digest("lh_stored").into(), None)];
        let (tenant, agent) = (TenantId::new("t"), "b".to_owned());
        stored.take(vec![CredentialChange { number: 1, id: "c".into(), tenant, agent, keys }], true);
        let ask = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            auth.principal(&headers, &stored).map(|known| known.principal)
        };
        assert_eq!(ask(&["Bearer secret"]), Ok(principal.clone()));
        assert_eq!(ask(&["bearer secret"]), Ok(principal));
        assert_eq!(ask(&["Bearer lh_stored"]).unwrap().caller, Caller::Agent("b".into()));
        assert_eq!(ask(&[]), Err(Unauthenticated::Missing));
        for bad in [
            "",
            "secret",
            "Bearer",
            "Bearer ",
            "Bearer  secret",
            "Bearer secret ",
            "Bearer Secret",
            "Basic secret",
            "Bearer lh_",
        ] {
            assert_eq!(ask(&[bad]), Err(Unauthenticated::Invalid), "{bad}");
        }
        assert_eq!(ask(&["Bearer secret", "Bearer secret"]), Err(Unauthenticated::Invalid));
        assert!(!format!("{auth:?}").contains("secret"));
    }
}
