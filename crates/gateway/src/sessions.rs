//! Sessions: sealed tokens that any replica opens, and what is remembered of some.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::{LogLevel, Principal, Timestamp};
use longhaul_mcp::seal::{Session, SessionId};
use longhaul_rpc::{Control, Error, SESSIONS_PAGE, SessionNote, SessionPosition};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Of how many sessions something is remembered here; the task-store forgets them as they expire.
const NOTES_MAX: usize = 1_000_000;
/// How long a change may take to be seen among those made after it: longer than any statement of the task-store.
const SETTLED: Duration = Duration::from_secs(30);
/// How often all is read again, whatever has changed: the database's clock may have been set back.
const ALL_AGAIN: Duration = Duration::from_secs(10 * 60);

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
    /// How far that has been read.
    cursor: Option<Cursor>,
}

/// How far the notes of the task-store have been read.
#[derive(Clone)]
struct Cursor {
    /// Nothing new will come before it.
    from: SessionPosition,
    /// The last that was seen.
    end: SessionPosition,
    /// When that was seen first.
    end_at: Instant,
    /// When all was read.
    all_at: Instant,
}

impl Cursor {
    /// After a look that began then and came to this end.
    fn after(former: Option<Self>, end: SessionPosition, look: Instant) -> Self {
        let (all_at, from) = former.as_ref().map_or((look, SessionPosition::first()), |f| (f.all_at, f.from.clone()));
        match former {
            Some(former) if former.end >= end => {
                let from = if look >= former.end_at + SETTLED { former.end.clone() } else { from };
                Self { from, ..former }
            }
            Some(_) | None => {
                let from = from.max(SessionPosition::since(end.changed_at.minus(SETTLED)));
                Self { from, end, end_at: look, all_at }
            }
        }
    }
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

    /// Ends a session, for every replica; false if so much is remembered of its owner's sessions that it goes on.
    pub(crate) async fn end(
        &self,
        control: &dyn Control,
        owner: &Principal,
        session: &Session,
        tag: Tag,
    ) -> Result<bool, Error> {
        let taken = control.end_session(owner, &tag.to_string(), session.expires_at).await?;
        if taken {
            self.note(session, tag, |note| note.ended = true);
        }
        Ok(taken)
    }

    /// Sets from which level on a session wants log messages, on every replica; false if so much is remembered of its
    /// owner's sessions that nothing changes.
    pub(crate) async fn set_log_level(
        &self,
        control: &dyn Control,
        owner: &Principal,
        session: &Session,
        tag: Tag,
        level: LogLevel,
    ) -> Result<bool, Error> {
        let taken = control.set_log_level(owner, &tag.to_string(), level, session.expires_at).await?;
        if taken {
            self.note(session, tag, |note| note.log_level = Some(level));
        }
        Ok(taken)
    }

    fn note(&self, session: &Session, tag: Tag, write: impl FnOnce(&mut Note)) {
        let mut notes = self.notes();
        let known = notes.of(tag);
        if notes.fresh.len() < NOTES_MAX || notes.fresh.contains_key(&tag) {
            write(&mut notes.fresh.entry(tag).or_insert((known, session.expires_at)).0);
        }
    }

    /// Looks at what has changed, and at times at all; what was known stays if that fails. `page` is
    /// [`Control::sessions`].
    pub(crate) async fn refresh<F>(&self, page: impl Fn(SessionPosition) -> F, now: Timestamp) -> Result<(), Error>
    where
        F: Future<Output = Result<Vec<SessionNote>, Error>>,
    {
        let look = Instant::now();
        // What is written while we ask may be missing in the answer, or older there.
        let (before, cursor) = {
            let notes = self.notes();
            (notes.fresh.clone(), notes.cursor.clone().filter(|cursor| look < cursor.all_at + ALL_AGAIN))
        };
        let mut read = HashMap::new();
        let mut after = cursor.as_ref().map_or_else(SessionPosition::first, |cursor| cursor.from.clone());
        loop {
            let page = page(after.clone()).await?;
            let is_full = page.len() >= SESSIONS_PAGE;
            after = page.last().map_or(after, SessionPosition::from);
            read.extend(page.into_iter().filter_map(|SessionNote { session, ended, log_level, .. }| {
                Some((Tag::parse(&session)?, Note { ended, log_level }))
            }));
            if !is_full || read.len() > NOTES_MAX {
                break;
            }
        }
        let mut notes = self.notes();
        notes.fresh.retain(|tag, note| note.1 > now && (before.get(tag) != Some(note) || !read.contains_key(tag)));
        if cursor.is_none() {
            notes.stored.clear();
        }
        for (tag, note) in read {
            if notes.stored.len() < NOTES_MAX || notes.stored.contains_key(&tag) {
                notes.stored.insert(tag, note);
            }
        }
        if notes.stored.len() >= NOTES_MAX {
            tracing::warn!("too much is known of sessions to remember it all");
        }
        notes.cursor = Some(Cursor::after(cursor, after, look));
        drop(notes);
        self.loaded.send_if_modified(|loaded| !std::mem::replace(loaded, true));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task-store that counts what it says.
    #[derive(Default)]
    struct Store {
        notes: Mutex<Vec<SessionNote>>,
        said: Mutex<usize>,
    }

    impl Store {
        /// A session ended at this second.
        fn end(&self, session: u128, second: i64) {
            let mut notes = self.notes.lock().unwrap();
            let changed_at = Timestamp::from_micros(second * 1_000_000);
            notes.push(SessionNote { session: Tag(session).to_string(), ended: true, log_level: None, changed_at });
            notes.sort_by_key(|note| SessionPosition::from(note));
        }

        async fn sessions(&self, after: SessionPosition) -> Result<Vec<SessionNote>, Error> {
            let notes = self.notes.lock().unwrap();
            let page: Vec<_> = notes.iter().filter(|note| SessionPosition::from(*note) > after).cloned().collect();
            *self.said.lock().unwrap() += page.len();
            Ok(page.into_iter().take(SESSIONS_PAGE).collect())
        }
    }

    /// How much is read by a look, after this time.
    async fn looked(sessions: &Sessions, store: &Store, pause: Duration) -> usize {
        tokio::time::advance(pause).await;
        *store.said.lock().unwrap() = 0;
        sessions.refresh(|after| store.sessions(after), Timestamp::from_micros(0)).await.unwrap();
        *store.said.lock().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_has_changed_is_read_again_and_what_comes_late_is_not_missed() {
        let (store, sessions) = (Store::default(), Sessions::default());
        let short = Duration::from_secs(2);
        assert_eq!(looked(&sessions, &store, short).await, 0);
        for session in 0..100 {
            store.end(session, session as i64);
        }
        assert_eq!(looked(&sessions, &store, short).await, 100);
        assert!((0..100).all(|session| sessions.has_ended(Tag(session))));
        // What began before is waited for, and then no longer.
        assert_eq!(looked(&sessions, &store, short).await, 31);
        store.end(1000, 80);
        assert_eq!(looked(&sessions, &store, short).await, 32);
        assert!(sessions.has_ended(Tag(1000)));
        assert_eq!(looked(&sessions, &store, SETTLED).await, 32);
        assert_eq!(looked(&sessions, &store, short).await, 0);
        store.end(1001, 200);
        assert_eq!(looked(&sessions, &store, short).await, 1);
        assert!(sessions.has_ended(Tag(1001)) && !sessions.has_ended(Tag(1002)));
        // The database's clock was set back.
        store.end(1002, 1);
        assert_eq!(looked(&sessions, &store, short).await, 1);
        assert_eq!(looked(&sessions, &store, ALL_AGAIN).await, 103);
        assert!(sessions.has_ended(Tag(1002)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_task_store_has_forgotten_is_forgotten_here_too() {
        let (store, sessions) = (Store::default(), Sessions::default());
        store.end(1, 1);
        store.end(2, 2);
        assert_eq!(looked(&sessions, &store, SETTLED).await, 2);
        store.notes.lock().unwrap().retain(|note| note.session == Tag(1).to_string());
        looked(&sessions, &store, ALL_AGAIN).await;
        assert!(sessions.has_ended(Tag(1)) && !sessions.has_ended(Tag(2)));
    }
}
