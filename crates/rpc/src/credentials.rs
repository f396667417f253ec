//! Agent credentials: opaque bearer keys, of which everyone but their holder knows the digest alone.

use std::time::Duration;

use longhaul_core::{TenantId, Timestamp};

use crate::control::Changes;
use crate::convert::Bad;
use crate::pb;

/// Credentials on one page, and changes of credentials.
pub const CREDENTIALS_PAGE: usize = 500;
/// Credentials of one installation, ended ones that are still remembered included: every gateway keeps them in memory.
pub const CREDENTIALS_MAX: usize = 100_000;
/// Bytes of a tenant's, an agent's or a tool's name.
pub const NAME_BYTES_MAX: usize = 256;

/// The SHA-256 of a key.
pub type KeyDigest = [u8; 32];

/// A credential to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCredential {
    /// Its id, made by its creator: not secret. The same again is the same credential.
    pub id: String,
    /// Its tenant.
    pub tenant: TenantId,
    /// The agent that it names.
    pub agent: String,
    /// The digest of its key.
    pub sha256: KeyDigest,
    /// How long it is accepted; `None` is for ever.
    pub expires_in: Option<Duration>,
}

impl NewCredential {
    /// What is wrong with it, if anything is.
    pub fn wrong(&self) -> Option<&'static str> {
        let named = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        match () {
            () if !named(&self.id) => Some("the id is empty, too long, or not plain text"),
            () if !named(self.tenant.as_str()) => Some("the tenant is empty, longer than 256 bytes, or not plain text"),
            () if !named(&self.agent) => Some("the agent is empty, longer than 256 bytes, or not plain text"),
            () => None,
        }
    }
}

/// What may be shown of a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialInfo {
    /// Its id.
    pub id: String,
    /// Its tenant.
    pub tenant: TenantId,
    /// The agent that it names.
    pub agent: String,
    /// When it was stored.
    pub created_at: Timestamp,
    /// When it is accepted no more by itself; `None` is never.
    pub expires_at: Option<Timestamp>,
    /// When it last got another key.
    pub rotated_at: Option<Timestamp>,
    /// Until when the key before that is accepted.
    pub former_until: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// What a credential has become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialChange {
    /// The change's number; a later one is higher.
    pub number: u64,
    /// The credential.
    pub id: String,
    /// Its tenant.
    pub tenant: TenantId,
    /// The agent that it names.
    pub agent: String,
    /// The keys that are accepted, and until when; none of a revoked one.
    pub keys: Vec<(KeyDigest, Option<Timestamp>)>,
}

fn micros(moment: Option<Timestamp>) -> Option<i64> {
    moment.map(Timestamp::as_micros)
}

fn moment(micros: Option<i64>) -> Option<Timestamp> {
    micros.map(Timestamp::from_micros)
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn digest(bytes: &[u8]) -> Result<KeyDigest, Bad> {
    bytes.try_into().map_err(|_| Bad("digest"))
}

pub(crate) fn new_to(new: &NewCredential) -> pb::CreateCredentialRequest {
    pb::CreateCredentialRequest {
        id: new.id.clone(),
        tenant: new.tenant.as_str().to_owned(),
        agent: new.agent.clone(),
        sha256: new.sha256.to_vec().into(),
        expires_in_ms: new.expires_in.map(ms),
    }
}

pub(crate) fn new_from(new: pb::CreateCredentialRequest) -> Result<NewCredential, Bad> {
    Ok(NewCredential {
        id: new.id,
        tenant: TenantId::new(new.tenant),
        agent: new.agent,
        sha256: digest(&new.sha256)?,
        expires_in: new.expires_in_ms.map(Duration::from_millis),
    })
}

pub(crate) fn rotate_to(
    id: &str,
    sha256: KeyDigest,
    overlap: Duration,
    expires_in: Option<Duration>,
) -> pb::RotateCredentialRequest {
    pb::RotateCredentialRequest {
        id: id.to_owned(),
        sha256: sha256.to_vec().into(),
        overlap_ms: ms(overlap),
        expires_in_ms: expires_in.map(ms),
    }
}

pub(crate) fn rotate_from(
    rotate: pb::RotateCredentialRequest,
) -> Result<(String, KeyDigest, Duration, Option<Duration>), Bad> {
    let overlap = Duration::from_millis(rotate.overlap_ms);
    Ok((rotate.id, digest(&rotate.sha256)?, overlap, rotate.expires_in_ms.map(Duration::from_millis)))
}

pub(crate) fn info_to(info: CredentialInfo) -> pb::Credential {
    pb::Credential {
        id: info.id,
        tenant: info.tenant.as_str().to_owned(),
        agent: info.agent,
        created_at: info.created_at.as_micros(),
        expires_at: micros(info.expires_at),
        rotated_at: micros(info.rotated_at),
        former_until: micros(info.former_until),
        revoked_at: micros(info.revoked_at),
    }
}

pub(crate) fn info_from(info: pb::Credential) -> CredentialInfo {
    CredentialInfo {
        id: info.id,
        tenant: TenantId::new(info.tenant),
        agent: info.agent,
        created_at: Timestamp::from_micros(info.created_at),
        expires_at: moment(info.expires_at),
        rotated_at: moment(info.rotated_at),
        former_until: moment(info.former_until),
        revoked_at: moment(info.revoked_at),
    }
}

pub(crate) fn changes_to(changes: Changes<CredentialChange>) -> pb::CredentialChangesResponse {
    let one = |change: CredentialChange| pb::CredentialChange {
        number: change.number,
        id: change.id,
        tenant: change.tenant.as_str().to_owned(),
        agent: change.agent,
        keys: change
            .keys
            .into_iter()
            .map(|(sha256, until)| pb::CredentialKey { sha256: sha256.to_vec().into(), until: micros(until) })
            .collect(),
    };
    let Changes { changes, forgotten } = changes;
    pb::CredentialChangesResponse { changes: changes.into_iter().map(one).collect(), forgotten }
}

pub(crate) fn changes_from(changes: pb::CredentialChangesResponse) -> Result<Changes<CredentialChange>, Bad> {
    let one = |change: pb::CredentialChange| {
        let keys = change.keys.into_iter().map(|key| Ok((digest(&key.sha256)?, moment(key.until))));
        Ok(CredentialChange {
            number: change.number,
            id: change.id,
            tenant: TenantId::new(change.tenant),
            agent: change.agent,
            keys: keys.collect::<Result<_, Bad>>()?,
        })
    };
    let pb::CredentialChangesResponse { changes, forgotten } = changes;
    Ok(Changes { changes: changes.into_iter().map(one).collect::<Result<_, Bad>>()?, forgotten })
}
