//! What a client keeps for us between requests: session ids, cursors and event ids, as sealed tokens.
//!
//! A token says nothing to its holder and opens only for the principal it was made for, as the kind it was made as,
//! until it expires. Whatever is wrong with one, the answer is the same: `None`. Any replica with the same keys opens it.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use longhaul_core::{Principal, TaskId, Timestamp, WorkerId};
pub use longhaul_seal::{BadKeyFile, FORMER_KEYS_MAX, KEY_BYTES, Keyring, NONCE_BYTES};

use crate::answer::QuestionKind;
use crate::dialect::Dialect;
use crate::jsonrpc::RequestId;
use crate::request::{ClientCapabilities, Listing};

/// The longest token, in characters: a `requestState` with as many questions as a call may ask, their keys as long as they
/// may be.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// The longest name or URI by which a list is paged, in bytes.
pub const LIST_KEY_BYTES_MAX: usize = 2048;

/// Seals tokens with a [`Keyring`], and opens them.
pub trait Seal {
    /// Seals `token` for `principal`, with a nonce from the operating system's random source.
    fn seal<T: Token>(&self, principal: &Principal, token: &T, nonce: [u8; NONCE_BYTES]) -> String;
    /// Opens what was sealed for `principal`, if it has not expired by `now`.
    fn open<T: Token>(&self, principal: &Principal, token: &str, now: Timestamp) -> Option<T>;
}

impl Seal for Keyring {
    fn seal<T: Token>(&self, principal: &Principal, token: &T, nonce: [u8; NONCE_BYTES]) -> String {
        let mut plain = Vec::with_capacity(128);
        put_i64(&mut plain, token.expires_at().as_micros());
        token.write(&mut plain);
        URL_SAFE_NO_PAD.encode(self.seal_bytes(&bound_to::<T>(principal), &plain, nonce))
    }

    fn open<T: Token>(&self, principal: &Principal, token: &str, now: Timestamp) -> Option<T> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let plain = self.open_bytes(&bound_to::<T>(principal), &URL_SAFE_NO_PAD.decode(token).ok()?)?;
        let mut plain = Reader(&plain);
        let expires_at = Timestamp::from_micros(plain.i64()?);
        if expires_at <= now {
            return None;
        }
        let token = T::read(expires_at, &mut plain)?;
        plain.0.is_empty().then_some(token)
    }
}

/// What a token is bound to, besides its content: its kind and its principal.
fn bound_to<T: Token>(principal: &Principal) -> Vec<u8> {
    let mut bound = vec![T::KIND as u8];
    // Length first, so that no two pairs of tenant and owner share a spelling.
    put_text(&mut bound, principal.tenant.as_str());
    put_text(&mut bound, &principal.owner());
    bound
}

/// What can be sealed: [`Session`], [`TaskCursor`], [`ListCursor`], [`EventId`], [`RequestState`], [`RunQuestion`].
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
    /// Whether the client was told that there are prompts, and hears when their list changes.
    pub prompts: bool,
    /// The same of resources.
    pub resources: bool,
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

/// Where a page of a list ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListCursor {
    /// Which list.
    pub listing: Listing,
    /// The name or URI of the page's last item, of at most [`LIST_KEY_BYTES_MAX`] bytes.
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

/// What a caller of 2026-07-28 comes back with to a call that asked it something (`requestState`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestState {
    /// The worker on which the call waits.
    pub worker: WorkerId,
    /// The run that waits.
    pub run: String,
    /// How often it had asked.
    pub round: u32,
    /// The SHA-256 of the call's method, name and [`canonical`](crate::canonical()) arguments: it answers no other call.
    pub call: [u8; 32],
    /// The keys of the questions, and what kind of answer each wants; at most
    /// [`QUESTIONS_MAX`](longhaul_core::input::QUESTIONS_MAX).
    pub keys: Vec<(String, QuestionKind)>,
    /// When the run no longer waits.
    pub expires_at: Timestamp,
}

/// A question of a 2025-11-25 call that is not a task, as the id of the request that asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunQuestion {
    /// The worker on which the call waits.
    pub worker: WorkerId,
    /// The run that waits.
    pub run: String,
    /// The question's key.
    pub key: String,
    /// What kind of answer it wants.
    pub kind: QuestionKind,
    /// When the run no longer waits.
    pub expires_at: Timestamp,
}

mod private {
    use super::Reader;
    use longhaul_core::Timestamp;

    /// Says what a token is used for. Never renumber, nor use 3 again, which was a cursor of another layout: it would let a
    /// token of one kind pass for another.
    #[derive(Clone, Copy)]
    pub enum Kind {
        Session = 1,
        TaskCursor = 2,
        EventId = 4,
        ListCursor = 5,
        RequestState = 6,
        RunQuestion = 7,
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
            // Has no sessions, and is not read back.
            Dialect::V2026_07_28 => 0,
        });
        let ClientCapabilities { elicitation_form, elicitation_url, sampling, roots } = self.capabilities;
        let flags = [elicitation_form, elicitation_url, sampling, roots, self.prompts, self.resources];
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
        Some(Self { id, dialect, capabilities, prompts: flag(4), resources: flag(5), expires_at })
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

impl Content for ListCursor {
    const KIND: Kind = Kind::ListCursor;

    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(match self.listing {
            Listing::Tools => 1,
            Listing::Prompts => 2,
            Listing::Resources => 3,
            Listing::Templates => 4,
        });
        put_text(out, longhaul_core::limits::cut(&self.after, LIST_KEY_BYTES_MAX));
    }

    fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self> {
        let listing = match from.byte()? {
            1 => Listing::Tools,
            2 => Listing::Prompts,
            3 => Listing::Resources,
            4 => Listing::Templates,
            _ => return None,
        };
        Some(Self { listing, after: from.text()?.to_owned(), expires_at })
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

impl Content for RequestState {
    const KIND: Kind = Kind::RequestState;

    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_worker(out, &self.worker);
        put_text(out, &self.run);
        out.extend_from_slice(&self.round.to_be_bytes());
        out.extend_from_slice(&self.call);
        for (key, kind) in &self.keys {
            put_kind(out, *kind);
            put_text(out, key);
        }
    }

    fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self> {
        let worker = from.worker()?;
        let run = from.text()?.to_owned();
        let round = from.chunk().map(u32::from_be_bytes)?;
        let call = from.chunk()?;
        let mut keys = Vec::new();
        while !from.0.is_empty() {
            let kind = from.kind()?;
            keys.push((from.text()?.to_owned(), kind));
        }
        Some(Self { worker, run, round, call, keys, expires_at })
    }
}

impl Content for RunQuestion {
    const KIND: Kind = Kind::RunQuestion;

    fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_worker(out, &self.worker);
        put_text(out, &self.run);
        put_kind(out, self.kind);
        put_text(out, &self.key);
    }

    fn read(expires_at: Timestamp, from: &mut Reader<'_>) -> Option<Self> {
        let worker = from.worker()?;
        let run = from.text()?.to_owned();
        let kind = from.kind()?;
        Some(Self { worker, run, key: from.text()?.to_owned(), kind, expires_at })
    }
}

fn put_worker(out: &mut Vec<u8>, worker: &WorkerId) {
    put_text(out, &worker.name);
    put_text(out, &worker.incarnation);
}

fn put_kind(out: &mut Vec<u8>, kind: QuestionKind) {
    out.push(match kind {
        QuestionKind::Elicitation => 1,
        QuestionKind::Sampling => 2,
        QuestionKind::Roots => 3,
    });
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

    fn worker(&mut self) -> Option<WorkerId> {
        let name = self.text()?.to_owned();
        Some(WorkerId { name, incarnation: self.text()?.to_owned() })
    }

    fn kind(&mut self) -> Option<QuestionKind> {
        match self.byte()? {
            1 => Some(QuestionKind::Elicitation),
            2 => Some(QuestionKind::Sampling),
            3 => Some(QuestionKind::Roots),
            _ => None,
        }
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
    use longhaul_core::input::{KEY_BYTES_MAX, QUESTIONS_MAX};
    use longhaul_core::{Caller, TenantId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const LATER: Timestamp = Timestamp::from_micros(1_000_001);
    const NONCE: [u8; NONCE_BYTES] = [9; NONCE_BYTES];

    fn keys(current: u8, former: &[u8]) -> Keyring {
        Keyring::new(&[current; KEY_BYTES], &former.iter().map(|byte| [*byte; KEY_BYTES]).collect::<Vec<_>>())
    }

    fn principal(tenant: &str, agent: &str) -> Principal {
        Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(agent.into()) }
    }

    fn session() -> Session {
        let capabilities = ClientCapabilities { elicitation_url: true, roots: true, ..Default::default() };
        Session {
            id: SessionId(7),
            dialect: Dialect::V2025_11_25,
            capabilities,
            prompts: false,
            resources: true,
            expires_at: LATER,
        }
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
                round(&who, &Session { dialect, capabilities, prompts: elicitation_form, ..session() });
            }
        }
        let id = TaskId::from_random(u128::MAX);
        round(&who, &TaskCursor { created_at: Timestamp::from_micros(-1), id, expires_at: LATER });
        for listing in [Listing::Tools, Listing::Prompts, Listing::Resources, Listing::Templates] {
            round(&who, &ListCursor { listing, after: "é".repeat(LIST_KEY_BYTES_MAX / 2), expires_at: LATER });
        }
        let worker = || WorkerId { name: "w".repeat(128), incarnation: "0".repeat(32) };
        let kinds = [QuestionKind::Elicitation, QuestionKind::Sampling, QuestionKind::Roots];
        for (count, kind) in (0..=QUESTIONS_MAX).step_by(16).zip(kinds) {
            let key = |at| (format!("{at:0width$}", width = KEY_BYTES_MAX), kind);
            let state = RequestState {
                worker: worker(),
                run: "f".repeat(32),
                round: u32::MAX,
                call: [7; 32],
                keys: (0..count).map(key).collect(),
                expires_at: LATER,
            };
            round(&who, &state);
            let key = "k".repeat(KEY_BYTES_MAX);
            let question = RunQuestion { worker: worker(), run: "f".repeat(32), key, kind, expires_at: LATER };
            round(&who, &question);
            let id = keys(1, &[]).seal(&who, &question, NONCE);
            assert!(id.len() + 2 <= crate::jsonrpc::RESPONSE_ID_BYTES_MAX, "it is the id of a request");
        }
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
        assert_eq!(keys.open::<ListCursor>(&who, &text, NOW), None);
        assert_eq!(keys.open::<RequestState>(&who, &text, NOW), None);
        assert_eq!(keys.open::<RunQuestion>(&who, &text, NOW), None);
        assert_eq!(keys.open::<EventId>(&who, &text, NOW), None);
        assert_eq!(keys.open::<TaskCursor>(&who, &text, NOW), Some(cursor));
        // These have the length and the bytes of another kind: only what they are bound to tells them apart.
        let named = |after: &str| ListCursor { listing: Listing::Tools, after: after.to_owned(), expires_at: LATER };
        let text = keys.seal(&who, &named("1234567890123456789"), NONCE);
        assert_eq!(keys.open::<TaskCursor>(&who, &text, NOW), None);
        let text = keys.seal(&who, &named("12345678901\u{1}\u{0}"), NONCE);
        assert_eq!(keys.open::<Session>(&who, &text, NOW), None);
    }

    #[test]
    fn no_session_speaks_a_dialect_without_sessions() {
        let (who, keys) = (principal("t", "a"), keys(1, &[]));
        let text = keys.seal(&who, &Session { dialect: Dialect::V2026_07_28, ..session() }, NONCE);
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
