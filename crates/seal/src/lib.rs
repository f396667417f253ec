//! Seal bytes that others keep for us: clients their tokens, the database the answers of people.
//!
//! What is sealed says nothing to its keeper, opens only where it was meant to be opened (its `bound`), and only unchanged.
//! Whatever is wrong with it, the answer is the same: `None`. Any replica with the same keys opens it.

#![warn(missing_docs)]

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// How many former keys a keyring may have.
pub const FORMER_KEYS_MAX: usize = 8;
/// The length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// The length of a nonce, in bytes.
pub const NONCE_BYTES: usize = NONCE_LEN;

/// The layout of what is sealed, as its first byte.
const LAYOUT: u8 = 1;

/// The keys: one to seal and open with, and former ones to open with.
pub struct Keyring {
    current: LessSafeKey,
    former: Vec<LessSafeKey>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring([redacted], {} former)", self.former.len())
    }
}

/// A key file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKeyFile {
    /// It has no key.
    #[error("there is no key in it")]
    Empty,
    /// It has too many.
    #[error("there are more than {} keys in it", FORMER_KEYS_MAX + 1)]
    TooMany,
    /// A line is not a key.
    #[error("line {0} is not the base64 of {KEY_BYTES} bytes")]
    Line(usize),
}

impl Keyring {
    /// A keyring of a current key and up to [`FORMER_KEYS_MAX`] former ones; more are left out.
    pub fn new(current: &[u8; KEY_BYTES], former: &[[u8; KEY_BYTES]]) -> Self {
        Self { current: key(current), former: former.iter().take(FORMER_KEYS_MAX).map(key).collect() }
    }

    /// Reads a key file: a line of base64 for each key, the current one first. Empty lines and those that start with
    /// `#` are skipped.
    pub fn parse(file: &str) -> Result<Self, BadKeyFile> {
        let mut keys = Vec::new();
        for (at, line) in file.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bytes = STANDARD.decode(line).ok().and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok());
            keys.push(bytes.ok_or(BadKeyFile::Line(at + 1))?);
        }
        match keys.as_slice() {
            [] => Err(BadKeyFile::Empty),
            [_, former @ ..] if former.len() > FORMER_KEYS_MAX => Err(BadKeyFile::TooMany),
            [current, former @ ..] => Ok(Self::new(current, former)),
        }
    }

    /// Seals `plain`, bound to `bound`. The nonce comes from the operating system's random source; GCM-SIV forgives an
    /// accidental repetition, of which plain GCM would make a disaster.
    pub fn seal_bytes(&self, bound: &[u8], plain: &[u8], nonce: [u8; NONCE_BYTES]) -> Vec<u8> {
        let mut sealed = plain.to_vec();
        self.current
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound), &mut sealed)
            .expect("invariant: what is sealed is far shorter than the cipher's limit");
        let mut whole = Vec::with_capacity(1 + NONCE_BYTES + sealed.len());
        whole.push(LAYOUT);
        whole.extend_from_slice(&nonce);
        whole.append(&mut sealed);
        whole
    }

    /// Opens what was sealed with the same `bound` and any of these keys.
    pub fn open_bytes(&self, bound: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (&[LAYOUT], rest) = sealed.split_first_chunk::<1>()? else { return None };
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let open_with = |key: &LessSafeKey| {
            let mut sealed = sealed.to_vec();
            let length =
                key.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(bound), &mut sealed).ok()?.len();
            sealed.truncate(length);
            Some(sealed)
        };
        std::iter::once(&self.current).chain(&self.former).find_map(open_with)
    }
}

fn key(bytes: &[u8; KEY_BYTES]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM_SIV, bytes).expect("invariant: the cipher's keys have this length");
    LessSafeKey::new(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; NONCE_BYTES] = [9; NONCE_BYTES];

    fn keys(current: u8, former: &[u8]) -> Keyring {
        Keyring::new(&[current; KEY_BYTES], &former.iter().map(|byte| [*byte; KEY_BYTES]).collect::<Vec<_>>())
    }

    #[test]
    fn what_was_sealed_opens_with_any_key_of_the_ring_and_only_where_it_is_bound_to() {
        let sealed = keys(1, &[]).seal_bytes(b"here", b"secret", NONCE);
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(keys(1, &[]).open_bytes(b"here", &sealed).as_deref(), Some(&b"secret"[..]));
        assert_eq!(keys(2, &[3, 1]).open_bytes(b"here", &sealed).as_deref(), Some(&b"secret"[..]));
        assert_eq!(keys(2, &[3]).open_bytes(b"here", &sealed), None);
        for bound in [&b""[..], b"her", b"here ", b"Here"] {
            assert_eq!(keys(1, &[]).open_bytes(bound, &sealed), None);
        }
        let nothing = keys(1, &[]).seal_bytes(b"", b"", NONCE);
        assert_eq!(keys(1, &[]).open_bytes(b"", &nothing).as_deref(), Some(&b""[..]));
    }

    #[test]
    fn nothing_changed_or_cut_opens() {
        let keys = keys(1, &[]);
        let sealed = keys.seal_bytes(b"here", b"secret", NONCE);
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(keys.open_bytes(b"here", &changed), None, "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert_eq!(keys.open_bytes(b"here", &sealed[..length]), None, "cut to {length}");
        }
    }

    #[test]
    fn a_key_file_has_a_key_on_each_line_the_current_one_first() {
        let line = |byte: u8| STANDARD.encode([byte; KEY_BYTES]);
        let file = format!("# keys\n{}\n\n  {}\r\n", line(1), line(2));
        let read = Keyring::parse(&file).unwrap();
        assert!(keys(1, &[]).open_bytes(b"", &read.seal_bytes(b"", b"x", NONCE)).is_some());
        assert!(read.open_bytes(b"", &keys(2, &[]).seal_bytes(b"", b"x", NONCE)).is_some());
        assert_eq!(format!("{read:?}"), "Keyring([redacted], 1 former)");

        let short = STANDARD.encode([1; KEY_BYTES - 1]);
        let many = vec![line(1); FORMER_KEYS_MAX + 2].join("\n");
        for (bad, why) in [
            ("", BadKeyFile::Empty),
            ("# none\n", BadKeyFile::Empty),
            (&*format!("{}\n!", line(1)), BadKeyFile::Line(2)),
            (&*short, BadKeyFile::Line(1)),
            (&*many, BadKeyFile::TooMany),
        ] {
            assert_eq!(Keyring::parse(bad).unwrap_err(), why);
        }
        assert!(Keyring::parse(&vec![line(1); FORMER_KEYS_MAX + 1].join("\n")).is_ok());
    }
}
