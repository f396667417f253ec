//! `longhaul credentials`: the keys that agents show.
//!
//! A key is made here, printed once, and never leaves this process otherwise: the task-store is told its digest.

use std::io::Write;
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat, Utc};
use clap::Subcommand;
use longhaul_core::{Clock as _, TenantId, Timestamp};
use longhaul_rpc::{CREDENTIALS_MAX, CREDENTIALS_PAGE, Control, CredentialInfo, NewCredential};
use longhaul_taskstore::SystemClock;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use crate::config::Wrong;

/// What every key begins with, so that it is known wherever it should not be.
const KEY_PREFIX: &str = "lh_";
/// Random bytes of a key, and of an id.
const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 10;
/// No span of time is longer.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What to do with credentials.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Makes a credential and prints its key, this once.
    Create {
        /// The tenant that it belongs to.
        #[arg(long)]
        tenant: String,
        /// The agent that it names.
        #[arg(long)]
        agent: String,
        /// How long it is accepted, as `90d`, `12h`, `30m` or `60s`; for ever if not said.
        #[arg(long, value_parser = span)]
        expires: Option<Duration>,
    },
    /// Prints the credentials, without their keys.
    List {
        /// Those of this tenant alone.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Gives a credential another key and prints it, this once.
    Rotate {
        /// The credential's id.
        id: String,
        /// How long the former key is still accepted, as `1h`; any key before that one ends at once.
        #[arg(long, value_parser = span, default_value = "0s")]
        overlap: Duration,
        /// How long the credential is accepted from now on; as before if not said.
        #[arg(long, value_parser = span)]
        expires: Option<Duration>,
    },
    /// Ends a credential, and what is open with its keys. Its tasks go on.
    Revoke {
        /// The credential's id.
        id: String,
    },
}

/// A span of time: a whole number and its unit.
fn span(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        "w" => 7 * 24 * 3600,
        _ => return Err("a whole number and its unit: s, m, h, d or w, as `90d`".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "a whole number and its unit, as `90d`".to_owned())?;
    let span = number.checked_mul(unit).map(Duration::from_secs).filter(|span| *span <= SPAN_MAX);
    span.ok_or_else(|| "at most 100 years".to_owned())
}

/// Random bytes as letters and digits that nobody confuses.
fn random<const N: usize>() -> anyhow::Result<String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("the random source: {error}"))?;
    Ok(base32(&bytes))
}

/// RFC 4648, in small letters and without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut text = String::new();
    let (mut held, mut bits) = (0u32, 0);
    for byte in bytes {
        held = held << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(held >> bits) as usize & 31]));
        }
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(held << (5 - bits)) as usize & 31]));
    }
    text
}

fn key() -> anyhow::Result<(SecretString, [u8; 32])> {
    let key = format!("{KEY_PREFIX}{}", random::<KEY_BYTES>()?);
    let digest = Sha256::digest(&key).into();
    Ok((key.into(), digest))
}

/// A moment for people and programs.
pub(crate) fn moment(moment: Timestamp) -> String {
    let moment = DateTime::from_timestamp_micros(moment.as_micros()).unwrap_or(DateTime::<Utc>::MAX_UTC);
    moment.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Does it: what is asked for goes to `out`, what is said about it to `err`.
pub(crate) async fn run(
    verb: Verb,
    control: &dyn Control,
    out: &mut impl Write,
    err: &mut impl Write,
) -> anyhow::Result<()> {
    match verb {
        Verb::Create { tenant, agent, expires } => {
            let (key, sha256) = key()?;
            let id = random::<ID_BYTES>()?;
            let new = NewCredential { id, tenant: TenantId::new(tenant), agent, sha256, expires_in: expires };
            if let Some(wrong) = new.wrong() {
                return Err(Wrong(wrong.into()).into());
            }
            let id = new.id.clone();
            let made = control.create_credential(new).await;
            let made =
                made.with_context(|| format!("it is not known whether credential {id} was made: look, and revoke it"))?;
            let made = made.with_context(|| format!("there are {CREDENTIALS_MAX} credentials: revoke some"))?;
            say(&made, &key, out, err)
        }
        Verb::List { tenant } => {
            let (now, mut after) = (SystemClock.now(), String::new());
            writeln!(out, "ID\tTENANT\tAGENT\tSTATE\tCREATED\tEXPIRES\tROTATED\tFORMER KEY UNTIL")?;
            loop {
                let page = control.credentials(tenant.as_deref(), &after).await.context("the task-store")?;
                for one in &page {
                    writeln!(out, "{}", line(one, now))?;
                }
                let Some(last) = page.last().filter(|_| page.len() >= CREDENTIALS_PAGE) else { return Ok(()) };
                after.clone_from(&last.id);
            }
        }
        Verb::Rotate { id, overlap, expires } => {
            let (key, sha256) = key()?;
            let rotated = control.rotate_credential(&id, sha256, overlap, expires).await;
            let rotated = rotated.context("it is not known whether the key was changed: do it again")?;
            let rotated = rotated.with_context(|| format!("there is no credential {id} that is still accepted"))?;
            say(&rotated, &key, out, err)
        }
        Verb::Revoke { id } => {
            let revoked = control.revoke_credential(&id).await.context("the task-store")?;
            let CredentialInfo { tenant, agent, .. } =
                revoked.with_context(|| format!("there is no credential {id}"))?;
            writeln!(
                err,
                "credential {id} of agent {agent:?} in tenant {:?} is revoked: gateways refuse it within a second, without \
                 Redis within five. Its tasks go on; `longhaul switch off --stop-running` stops them.",
                tenant.as_str()
            )?;
            Ok(())
        }
    }
}

/// Prints a key, this once. What is said of it comes first: a key that cannot be printed is revoked by its id.
fn say(info: &CredentialInfo, key: &SecretString, out: &mut impl Write, err: &mut impl Write) -> anyhow::Result<()> {
    let CredentialInfo { id, tenant, agent, expires_at, former_until, .. } = info;
    let until = expires_at.map_or("until it is revoked".to_owned(), |end| format!("until {}", moment(end)));
    writeln!(err, "credential {id} of agent {agent:?} in tenant {:?}, accepted {until}", tenant.as_str())?;
    if let Some(former) = former_until {
        writeln!(err, "its former key is accepted until {}", moment(*former))?;
    }
    writeln!(err, "the key follows, and cannot be shown again:")?;
    writeln!(out, "{}", key.expose_secret())?;
    Ok(out.flush()?)
}

fn line(info: &CredentialInfo, now: Timestamp) -> String {
    let CredentialInfo { id, tenant, agent, created_at, expires_at, rotated_at, former_until, revoked_at } = info;
    let state = match (revoked_at, expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(end)) if *end <= now => "expired",
        (None, _) => "accepted",
    };
    let maybe = |at: &Option<Timestamp>| at.map_or("-".to_owned(), moment);
    let [expires, rotated, former] = [expires_at, rotated_at, former_until].map(maybe);
    let created = moment(*created_at);
    format!("{id}\t{}\t{agent}\t{state}\t{created}\t{expires}\t{rotated}\t{former}", tenant.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_whole_number_and_a_unit() {
        for (text, seconds) in
            [("60s", 60), ("30m", 1800), ("12h", 43200), ("90d", 7_776_000), ("2w", 1_209_600), ("0s", 0)]
        {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "1", "d", "-1d", "1.5h", "1 d", "1D", "1dd", "36501d", "18446744073709551615w", "1é"] {
            assert!(span(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_long_alike_in_form_and_unlike_one_another() {
        // RFC 4648, section 10.
        for (bytes, text) in [("", ""), ("f", "my"), ("fo", "mzxq"), ("foo", "mzxw6"), ("foobar", "mzxw6ytboi")] {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
        let [(one, digest), (other, _)] = [key().unwrap(), key().unwrap()];
        let shown = one.expose_secret();
        assert!(shown.starts_with("lh_") && shown.len() == 3 + 52, "{}", shown.len());
        assert!(shown[3..].bytes().all(|byte| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte)));
        assert_ne!(shown, other.expose_secret());
        assert_eq!(digest, <[u8; 32]>::from(Sha256::digest(shown)));
        assert_eq!(random::<ID_BYTES>().unwrap().len(), 16);
    }
}
