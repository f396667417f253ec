//! What a client keeps for us between requests: session ids, cursors and event ids, as sealed tokens.
//!
//! A token says nothing to its holder and opens only for the principal it was made for, as the kind it was made as,
//! until it expires. Whatever is wrong with one, the answer is the same: `None`. Any replica with the same keys opens it.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use longhaul_core::limits::TOOL_NAME_BYTES_MAX;
use longhaul_core::{Principal, TaskId, Timestamp};

use crate::dialect::Dialect;
use crate::jsonrpc::RequestId;
use crate::request::ClientCapabilities;

/// The longest token, in characters.
pub const TOKEN_BYTES_MAX: usize = 2048;
/// How many former keys a keyring may have.
pub const FORMER_KEYS_MAX: usize = 8;
/// The length of a key, in bytes.
pub const KEY_BYTES: usize = 32;

/// The layout of tokens, as their first byte.
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

    /// Seals `token` for `principal`. The nonce comes from the operating system's random source; GCM-SIV forgives an
    /// accidental repetition, of which plain GCM would make a disaster.
    pub fn seal<T: Token>(&self, principal: &Principal, token: &T, nonce: [u8; NONCE_LEN]) -> String {
        let mut sealed = Vec::with_capacity(128);
        put_i64(&mut sealed, token.expires_at().as_micros());
        token.write(&mut sealed);
        let bound = bound_to::<T>(principal);
        self.current
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound), &mut sealed)
            .expect("invariant: a token is far shorter than the cipher's limit");
        let mut text = Vec::with_capacity(1 + NONCE_LEN + sealed.len());
        text.push(LAYOUT);
        text.extend_from_slice(&nonce);
        text.extend_from_slice(&sealed);
        URL_SAFE_NO_PAD.encode(text)
    }

    /// Opens what was sealed for `principal`, if it has not expired by `now`.
    pub fn open<T: Token>(&self, principal: &Principal, token: &str, now: Timestamp) -> Option<T> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (&[LAYOUT], rest) = bytes.split_first_chunk::<1>()? else { return None };
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let bound = bound_to::<T>(principal);
        let open_with = |key: &LessSafeKey| {
            let mut sealed = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let length = key.open_in_place(nonce, Aad::from(&bound), &mut sealed).ok()?.len();
            sealed.truncate(length);
            Some(sealed)
        };
        let plain = std::iter::once(&self.current).chain(&self.former).find_map(open_with)?;
        let mut plain = Reader(&plain);
        let expires_at = Timestamp::from_micros(plain.i64()?);
        if expires_at <= now {
            return None;
        }
        let token = T::read(expires_at, &mut plain)?;
        plain.0.is_empty().then_some(token)
    }
}

fn key(bytes: &[u8; KEY_BYTES]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM_SIV, bytes).expect("invariant: the cipher's keys have this length");
    LessSafeKey::new(key)
}

/// What a token is bound to, besides its content: its kind and its principal.
fn bound_to<T: Token>(principal: &Principal) -> Vec<u8> {
    let mut bound = vec![T::KIND as u8];
    // Length first, so that no two pairs of tenant and owner share a spelling.
    put_text(&mut bound, principal.tenant.as_str());
    put_text(&mut bound, &principal.owner());
    bound
}

/// What can be sealed: [`Session`], [`TaskCursor`], [`ToolCursor`], [`EventId`].
pub trait Token: Content {}

impl<T: Content> Token for T {}

/// The id of a session: 128 random bits, written as 32 characters of hex. The client sees it only sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(u128);

impl SessionId {
    /// An id from 128 bits that the caller took from the operating system's random source.
    pub const fn from_random(bits: u128) -> Self {
        Self(bits)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The text is not a session id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a session id")]
pub struct NotASessionId;

impl FromStr for SessionId {
    type Err = NotASessionId;

    fn from_str(text: &str) -> Result<Self, NotASessionId> {
        let is_ours = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_ours { u128::from_str_radix(text, 16).map(Self).map_err(|_| NotASessionId) } else { Err(NotASessionId) }
    }
}

/// A session, as its `Mcp-Session-Id` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// What was negotiated.
    pub dialect: Dialect,
    /// What the client can be asked.
    pub capabilities: ClientCapabilities,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// Where a page of tasks ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskCursor {
    /// When the page's last task was created.
    pub created_at: Timestamp,
    /// The page's last task.
    pub id: TaskId,
    /// When the cursor is no longer good.
    pub expires_at: Timestamp,
}

/// Where a page of tools ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCursor {
    /// The name of the page's last tool.
    pub after: String,
    /// When the cursor is no longer good.
    pub expires_at: Timestamp,
}

/// An event of a stream: enough for any replica to go on with that stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    /// The session it belongs to.
    pub session: SessionId,
    /// Random for each stream.
    pub stream: u64,
    /// The task that the stream waits for.
    pub task: Option<TaskId>,
    /// The request that the stream answers.
    pub request: Option<RequestId>,
    /// Counts the stream's events.
    pub seq: u64,
    /// When the stream can no longer be resumed.
    pub expires_at: Timestamp,
}

mod private {
    use super::Reader;
    use longhaul_core::Timestamp;

    /// Says what a token is used for. Never renumber: it would let a token of one kind pass for another.
    #[derive(Clone, Copy)]
    pub enum Kind {
        Session = 1,
        TaskCursor = 2,
        ToolCursor = 3,
        EventId = 4,
    }

    /// How a token is laid out. Private, so that a kind is never used twice.
    pub trait Content: Sized {
        const KIND: Kind;
        fn expires_at(&self) -> Timestamp;
        fn write(&self, out: &mut Vec<u8>);
        fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self>;
    }
}

use private::{Content, Kind};

impl Content for Session {
    const KIND: Kind = Kind::Session;

    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0.to_be_bytes());
        out.push(match self.dialect {
            Dialect::V2025_06_18 => 1,
            Dialect::V2025_11_25 => 2,
        });
        let ClientCapabilities { elicitation_form, elicitation_url, sampling, roots } = self.capabilities;
        let flags = [elicitation_form, elicitation_url, sampling, roots];
        out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
    }

    fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self> {
        let id = SessionId(from.u128()?);
        let dialect = match from.byte()? {
            1 => Dialect::V2025_06_18,
            2 => Dialect::V2025_11_25,
            _ => return None,
        };
        let flags = from.byte()?;
        let flag = |at: u8| flags >> at & 1 == 1;
        let capabilities = ClientCapabilities {
            elicitation_form: flag(0),
            elicitation_url: flag(1),
            sampling: flag(2),
            roots: flag(3),
        };
        Some(Self { id, dialect, capabilities, expires_at })
    }
}

impl Content for TaskCursor {
    const KIND: Kind = Kind::TaskCursor;

    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_i64(out, self.created_at.as_micros());
        out.extend_from_slice(&self.id.bits().to_be_bytes());
    }

    fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self> {
        let created_at = Timestamp::from_micros(from.i64()?);
        Some(Self { created_at, id: TaskId::from_random(from.u128()?), expires_at })
    }
}

impl Content for ToolCursor {
    const KIND: Kind = Kind::ToolCursor;

    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_text(out, longhaul_core::limits::cut(&self.after, TOOL_NAME_BYTES_MAX));
    }

    fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { after: from.text()?.to_owned(), expires_at })
    }
}

impl Content for EventId {
    const KIND: Kind = Kind::EventId;

    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.session.0.to_be_bytes());
        out.extend_from_slice(&self.stream.to_be_bytes());
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.push(u8::from(self.task.is_some()) | u8::from(self.request.is_some()) << 1);
        if let Some(task) = self.task {
            out.extend_from_slice(&task.bits().to_be_bytes());
        }
        if let Some(request) = &self.request {
            put_text(out, &request.to_json());
        }
    }

    fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self> {
        let session = SessionId(from.u128()?);
        let stream = from.u64()?;
        let seq = from.u64()?;
        let flags = from.byte()?;
        let task = if flags & 1 == 1 { Some(TaskId::from_random(from.u128()?)) } else { None };
        let request = if flags & 2 == 2 { Some(RequestId::from_json(from.text()?)?) } else { None };
        Some(Self { session, stream, task, request, seq, expires_at })
    }
}

fn put_i64(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).expect("invariant: names are short");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Reads what was written, in the same order.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn byte(&mut self) -> Option<u8> {
        self.chunk().map(u8::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.chunk().map(i64::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_be_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.chunk().map(u128::from_be_bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.chunk().map(u32::from_be_bytes)?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Caller, TenantId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const LATER: Timestamp = Timestamp::from_micros(1_000_001);
    const NONCE: [u8; NONCE_LEN] = [9; NONCE_LEN];

    fn keys(current: u8, former: &[u8]) -> Keyring {
        Keyring::new(&[current; KEY_BYTES], &former.iter().map(|byte| [*byte; KEY_BYTES]).collect::<Vec<_>>())
    }

    fn principal(tenant: &str, agent: &str) -> Principal {
        Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(agent.into()) }
    }

    fn session() -> Session {
        let capabilities = ClientCapabilities { elicitation_url: true, roots: true, ..Default::default() };
        Session { id: SessionId(7), dialect: Dialect::V2025_11_25, capabilities, expires_at: LATER }
    }

    fn event(request: Option<&str>, task: Option<u128>) -> EventId {
        EventId {
            session: SessionId(u128::MAX),
            stream: u64::MAX,
            task: task.map(TaskId::from_random),
            request: request.map(|id| RequestId::from_json(id).unwrap()),
            seq: 3,
            expires_at: LATER,
        }
    }

    #[test]
    fn what_was_sealed_opens_for_its_principal_on_any_replica_with_the_key() {
        let who = principal("t", "a");
        fn round<T: Token + PartialEq + fmt::Debug>(who: &Principal, token: &T) {
            let text = keys(1, &[]).seal(who, token, NONCE);
            assert!(text.len() <= TOKEN_BYTES_MAX);
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')), "{text}");
            assert_eq!(keys(1, &[]).open::<T>(who, &text, NOW).as_ref(), Some(token));
            assert_eq!(keys(2, &[3, 1]).open::<T>(who, &text, NOW).as_ref(), Some(token), "a former key still opens");
            assert_eq!(keys(2, &[3]).open::<T>(who, &text, NOW), None, "a forgotten key does not");
            assert_eq!(keys(1, &[]).open::<T>(who, &text, LATER), None, "it has expired");
            for other in [principal("t", "b"), principal("u", "a"), principal("ta", ""), principal("", "ta")] {
                assert_eq!(keys(1, &[]).open::<T>(&other, &text, NOW), None, "it belongs to somebody else");
            }
        }
        round(&who, &session());
        for elicitation_form in [false, true] {
            for dialect in [Dialect::V2025_06_18, Dialect::V2025_11_25] {
                let capabilities = ClientCapabilities { elicitation_form, sampling: true, ..Default::default() };
                round(&who, &Session { dialect, capabilities, ..session() });
            }
        }
        let id = TaskId::from_random(u128::MAX);
        round(&who, &TaskCursor { created_at: Timestamp::from_micros(-1), id, expires_at: LATER });
        round(&who, &ToolCursor { after: "é".repeat(TOOL_NAME_BYTES_MAX / 2), expires_at: LATER });
        let long = format!("\"{}\"", "a".repeat(crate::jsonrpc::REQUEST_ID_BYTES_MAX - 2));
        for (request, task) in
            [(None, None), (Some("1"), None), (Some("\"1\""), Some(5)), (Some(&*long), Some(u128::MAX))]
        {
            round(&who, &event(request, task));
        }
    }

    #[test]
    fn a_token_of_one_kind_is_none_of_another() {
        let who = principal("t", "a");
        let (keys, cursor) =
            (keys(1, &[]), TaskCursor { created_at: NOW, id: TaskId::from_random(1), expires_at: LATER });
        let text = keys.seal(&who, &cursor, NONCE);
        assert_eq!(keys.open::<Session>(&who, &text, NOW), None);
        assert_eq!(keys.open::<ToolCursor>(&who, &text, NOW), None);
        assert_eq!(keys.open::<EventId>(&who, &text, NOW), None);
        assert_eq!(keys.open::<TaskCursor>(&who, &text, NOW), Some(cursor));
        // These have the length and the bytes of another kind: only what they are bound to tells them apart.
        let named = |after: &str| ToolCursor { after: after.to_owned(), expires_at: LATER };
        let text = keys.seal(&who, &named("12345678901234567890"), NONCE);
        assert_eq!(keys.open::<TaskCursor>(&who, &text, NOW), None);
        let text = keys.seal(&who, &named("123456789012\u{1}\u{0}"), NONCE);
        assert_eq!(keys.open::<Session>(&who, &text, NOW), None);
    }

    #[test]
    fn no_changed_token_opens() {
        let (who, keys) = (principal("t", "a"), keys(1, &[]));
        let text = keys.seal(&who, &session(), NONCE);
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert_eq!(keys.open::<Session>(&who, &URL_SAFE_NO_PAD.encode(&changed), NOW), None, "bit {at}");
        }
        for length in 0..text.len() {
            assert_eq!(keys.open::<Session>(&who, &text[..length], NOW), None, "cut to {length}");
        }
        let huge = "A".repeat(8 * 1024);
        let spellings = [
            format!("{text}A"),
            format!("{text}="),
            format!(" {text}"),
            text.replace(['-', '_'], "+") + "/",
            huge,
            "é".into(),
        ];
        for bad in &spellings {
            assert_eq!(keys.open::<Session>(&who, bad, NOW), None, "{bad}");
        }
        assert_eq!(keys.open(&who, &text, NOW), Some(session()));
    }

    #[test]
    fn a_key_file_has_a_key_on_each_line_the_current_one_first() {
        let line = |byte: u8| STANDARD.encode([byte; KEY_BYTES]);
        let file = format!("# keys\n{}\n\n  {}\r\n", line(1), line(2));
        let read = Keyring::parse(&file).unwrap();
        let who = principal("t", "a");
        assert_eq!(keys(1, &[]).open(&who, &read.seal(&who, &session(), NONCE), NOW), Some(session()));
        assert_eq!(read.open(&who, &keys(2, &[]).seal(&who, &session(), NONCE), NOW), Some(session()));
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

    #[test]
    fn a_session_id_reads_back_as_it_was_written() {
        for bits in [0, 1, u128::MAX] {
            let id = SessionId::from_random(bits);
            assert_eq!(id.to_string().len(), 32);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "0", &"0".repeat(33), &"F".repeat(32), &"+".repeat(32), &"é".repeat(16)] {
            assert_eq!(bad.parse::<SessionId>(), Err(NotASessionId), "{bad}");
        }
    }
}
