//! Sessions: sealed tokens that any replica opens, and the few that have ended.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use longhaul_core::Timestamp;
use longhaul_mcp::seal::{Session, SessionId};
use longhaul_rpc::{Control, ENDED_SESSIONS_PAGE, Error};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};

/// How many ended sessions are remembered here; the task-store forgets them as they expire.
const ENDED_MAX: usize = 1_000_000;

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

/// The sessions that have ended.
#[derive(Default)]
pub(crate) struct Sessions {
    ended: Mutex<Ended>,
    loaded: watch::Sender<bool>,
    /// Asks for a look before it is due.
    pub(crate) look: Notify,
}

#[derive(Default)]
struct Ended {
    /// As the task-store said last.
    stored: HashSet<Tag>,
    /// Ended here since; the task-store may not have said so yet.
    fresh: HashMap<Tag, Timestamp>,
}

impl Sessions {
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
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.stored.contains(&tag) || ended.fresh.contains_key(&tag)
    }

    /// Ends a session, for every replica.
    pub(crate) async fn end(&self, control: &dyn Control, session: &Session, tag: Tag) -> Result<(), Error> {
        control.end_session(&tag.to_string(), session.expires_at).await?;
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.fresh.len() < ENDED_MAX {
            ended.fresh.insert(tag, session.expires_at);
        }
        Ok(())
    }

    /// Looks again; what was known stays if that fails.
    pub(crate) async fn refresh(&self, control: &dyn Control, now: Timestamp) -> Result<(), Error> {
        let (mut stored, mut after) = (HashSet::new(), String::new());
        loop {
            let page = control.ended_sessions(&after).await?;
            stored.extend(page.iter().filter_map(|tag| Tag::parse(tag)));
            if stored.len() > ENDED_MAX {
                tracing::warn!("too many ended sessions to remember them all");
                break;
            }
            match page.into_iter().nth(ENDED_SESSIONS_PAGE - 1) {
                Some(last) => after = last,
                None => break,
            }
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // A session that ended while we asked may be missing in the answer.
        ended.fresh.retain(|tag, expires_at| !stored.contains(tag) && *expires_at > now);
        ended.stored = stored;
        drop(ended);
        self.loaded.send_if_modified(|loaded| !std::mem::replace(loaded, true));
        Ok(())
    }
}
