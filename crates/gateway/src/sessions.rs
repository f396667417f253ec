//! Sessions: sealed tokens that any replica opens, and what is remembered of some.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longhaul_core::{LogLevel, Timestamp};
use longhaul_mcp::seal::{Session, SessionId};
use longhaul_rpc::{Control, Error, SESSIONS_PAGE, SessionNote};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};

/// Of how many sessions something is remembered here; the task-store forgets them as they expire.
const NOTES_MAX: usize = 1_000_000;

/// What stands for a session everywhere but in its client's hands: a digest, so that it gives no right.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tag(u128);

impl Tag {
    pub(crate) fn of(session: SessionId) -> Self {
        Self(digest(&[b"session", session.to_string().as_bytes()]))
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().map(Self).filter(|tag| tag.to_string() == text)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A digest of several texts, none of which can pass for a part of another.
pub(crate) fn digest(texts: &[&[u8]]) -> u128 {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    }
    let hash: [u8; 32] = hash.finalize().into();
    u128::from_be_bytes(std::array::from_fn(|at| hash[at]))
}

/// What is known of sessions: which have ended, and what they want to hear.
#[derive(Default)]
pub(crate) struct Sessions {
    notes: Mutex<Notes>,
    loaded: watch::Sender<bool>,
    /// Asks for a look before it is due.
    pub(crate) look: Notify,
}

/// Of one session.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Note {
    ended: bool,
    log_level: Option<LogLevel>,
}

#[derive(Default)]
struct Notes {
    /// As the task-store said last.
    stored: HashMap<Tag, Note>,
    /// Written here since, and until when that matters; the task-store may not have said so yet.
    fresh: HashMap<Tag, (Note, Timestamp)>,
}

impl Notes {
    fn of(&self, tag: Tag) -> Note {
        let stored = self.stored.get(&tag).copied().unwrap_or_default();
        let fresh = self.fresh.get(&tag).map(|(note, _)| *note).unwrap_or_default();
        Note { ended: stored.ended || fresh.ended, log_level: fresh.log_level.or(stored.log_level) }
    }
}

impl Sessions {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is known which sessions have ended.
    pub(crate) fn loaded(&self) -> bool {
        *self.loaded.borrow()
    }

    /// Hears when it is known.
    pub(crate) fn loads(&self) -> watch::Receiver<bool> {
        self.loaded.subscribe()
    }

    /// Whether a session has ended.
    pub(crate) fn has_ended(&self, tag: Tag) -> bool {
        self.notes().of(tag).ended
    }

    /// From which level on a session wants log messages, if it said so.
    pub(crate) fn log_level(&self, tag: Tag) -> Option<LogLevel> {
        self.notes().of(tag).log_level
    }

    /// Ends a session, for every replica.
    pub(crate) async fn end(&self, control: &dyn Control, session: &Session, tag: Tag) -> Result<(), Error> {
        control.end_session(&tag.to_string(), session.expires_at).await?;
        self.note(session, tag, |note| note.ended = true);
        Ok(())
    }

    /// Sets from which level on a session wants log messages, on every replica.
    pub(crate) async fn set_log_level(
        &self,
        control: &dyn Control,
        session: &Session,
        tag: Tag,
        level: LogLevel,
    ) -> Result<(), Error> {
        control.set_log_level(&tag.to_string(), level, session.expires_at).await?;
        self.note(session, tag, |note| note.log_level = Some(level));
        Ok(())
    }

    fn note(&self, session: &Session, tag: Tag, write: impl FnOnce(&mut Note)) {
        let mut notes = self.notes();
        let known = notes.of(tag);
        if notes.fresh.len() < NOTES_MAX || notes.fresh.contains_key(&tag) {
            write(&mut notes.fresh.entry(tag).or_insert((known, session.expires_at)).0);
        }
    }

    /// Looks again; what was known stays if that fails.
    pub(crate) async fn refresh(&self, control: &dyn Control, now: Timestamp) -> Result<(), Error> {
        // What is written while we ask may be missing in the answer, or older there.
        let before = self.notes().fresh.clone();
        let (mut stored, mut after) = (HashMap::new(), String::new());
        loop {
            let page = control.sessions(&after).await?;
            let is_full = page.len() >= SESSIONS_PAGE;
            after = page.last().map(|last| last.session.clone()).unwrap_or_default();
            stored.extend(page.into_iter().filter_map(|SessionNote { session, ended, log_level }| {
                Some((Tag::parse(&session)?, Note { ended, log_level }))
            }));
            if stored.len() > NOTES_MAX {
                tracing::warn!("too much is known of sessions to remember it all");
                break;
            }
            if !is_full {
                break;
            }
        }
        let mut notes = self.notes();
        notes.fresh.retain(|tag, note| note.1 > now && (before.get(tag) != Some(note) || !stored.contains_key(tag)));
        notes.stored = stored;
        drop(notes);
        self.loaded.send_if_modified(|loaded| !std::mem::replace(loaded, true));
        Ok(())
    }
}
