//! Tasks as they change: all watchers of one task on this replica share one read for each change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::{Outcome, Principal, Refusal, Task, TaskId};
use longhaul_rpc::{Error, Tasks};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Tasks asked for in one go when nothing was heard of them.
const SWEEP_MAX: usize = 1000;
/// How long hints of a task are not believed after one that promised a version that is not there.
const DISBELIEF: Duration = Duration::from_millis(50);

/// The tasks that are watched on this replica.
pub(crate) struct Watches {
    tasks: Arc<dyn Tasks>,
    tracker: TaskTracker,
    entries: Mutex<HashMap<TaskId, (Arc<Entry>, usize)>>,
}

/// What was seen of a task.
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    /// It is like this.
    Task {
        /// The task.
        task: Arc<Task>,
        /// Its outcome, if it has ended and somebody wanted to know.
        outcome: Option<Arc<Outcome>>,
    },
    /// It is gone.
    Gone(Refusal),
}

impl Seen {
    /// Whether it can never change again.
    fn is_final(&self, wants_outcome: bool) -> bool {
        match self {
            Self::Task { task, outcome } => task.ending().is_some() && (outcome.is_some() || !wants_outcome),
            Self::Gone(_) => true,
        }
    }
}

/// One watched task.
struct Entry {
    id: TaskId,
    seen: watch::Sender<Option<Seen>>,
    /// How many watchers want the outcome too.
    outcomes: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Set by the first watcher that may see the task; a task has one owner.
    owner: Option<Arc<Principal>>,
    /// The version seen.
    version: u64,
    /// The highest version heard of.
    heard: u64,
    reading: bool,
    /// Something was heard during a read.
    again: bool,
    disbelieve_until: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watches {
    pub(crate) fn new(tasks: Arc<dyn Tasks>, tracker: TaskTracker) -> Self {
        Self { tasks, tracker, entries: Mutex::default() }
    }

    /// Begins to watch a task of `principal`; answers with the task as it is.
    pub(crate) async fn open(
        self: &Arc<Self>,
        principal: &Arc<Principal>,
        id: TaskId,
        wants_outcome: bool,
    ) -> Result<(Watch, Seen), Error> {
        // Subscribe before reading, or a change between the two would be missed.
        let mut watch = self.enter(id, wants_outcome);
        let (task, outcome) = read(&*self.tasks, principal, id, wants_outcome).await?;
        let first = Seen::Task { task: Arc::new(task), outcome: outcome.map(Arc::new) };
        {
            let mut state = lock(&watch.entry.state);
            state.owner.get_or_insert_with(|| principal.clone());
            Self::offer(&watch.entry, &mut state, first);
            if state.heard > state.version {
                self.read_again(&watch.entry, &mut state);
            }
        }
        let first = watch.news.borrow_and_update().clone().expect("invariant: something was offered");
        Ok((watch, first))
    }

    fn enter(self: &Arc<Self>, id: TaskId, wants_outcome: bool) -> Watch {
        let mut entries = lock(&self.entries);
        let (entry, watchers) = entries.entry(id).or_insert_with(|| {
            let entry =
                Entry { id, seen: watch::Sender::new(None), outcomes: AtomicUsize::new(0), state: Mutex::default() };
            (Arc::new(entry), 0)
        });
        *watchers += 1;
        entry.outcomes.fetch_add(usize::from(wants_outcome), Ordering::Relaxed);
        Watch { watches: self.clone(), entry: entry.clone(), news: entry.seen.subscribe(), wants_outcome }
    }

    /// Somebody says that a task is at `version`.
    pub(crate) fn heard(self: &Arc<Self>, id: TaskId, version: u64) {
        let entry = lock(&self.entries).get(&id).map(|(entry, _)| entry.clone());
        if let Some(entry) = entry {
            self.heard_of(&entry, version);
        }
    }

    fn heard_of(self: &Arc<Self>, entry: &Arc<Entry>, version: u64) {
        let mut state = lock(&entry.state);
        state.heard = state.heard.max(version);
        if version <= state.version || state.disbelieve_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.read_again(entry, &mut state);
    }

    /// Takes in what was read, if it is newer than what was seen.
    fn offer(entry: &Entry, state: &mut State, seen: Seen) {
        if let Seen::Task { task, .. } = &seen {
            state.version = state.version.max(task.version);
        }
        entry.seen.send_if_modified(|former| {
            let newer = match (&*former, &seen) {
                (None, _) | (Some(Seen::Task { .. }), Seen::Gone(_)) => true,
                (Some(Seen::Gone(_)), _) => false,
                (Some(Seen::Task { task: old, outcome: known }), Seen::Task { task: new, outcome }) => {
                    new.version > old.version || new.version == old.version && known.is_none() && outcome.is_some()
                }
            };
            if newer {
                *former = Some(seen);
            }
            newer
        });
    }

    fn read_again(self: &Arc<Self>, entry: &Arc<Entry>, state: &mut State) {
        // Before the first watcher's own read, nobody is known to be allowed to read; that watcher looks at what was
        // heard meanwhile.
        let Some(owner) = state.owner.clone() else { return };
        if std::mem::replace(&mut state.reading, true) {
            state.again = true;
            return;
        }
        let (watches, entry) = (self.clone(), entry.clone());
        self.tracker.spawn(async move { watches.follow(&entry, &owner).await });
    }

    /// Reads until nothing newer is heard.
    async fn follow(&self, entry: &Entry, owner: &Principal) {
        loop {
            let promised = {
                let mut state = lock(&entry.state);
                state.again = false;
                state.heard
            };
            let wants_outcome = entry.outcomes.load(Ordering::Relaxed) > 0;
            let read = read(&*self.tasks, owner, entry.id, wants_outcome).await;
            let mut state = lock(&entry.state);
            let is_gone = matches!(read, Err(Error::Refused(_)));
            // Somebody may have come to want the outcome meanwhile, and no later version will bring it.
            let lacks_outcome = matches!(&read, Ok((task, None)) if task.ending().is_some())
                && !wants_outcome
                && entry.outcomes.load(Ordering::Relaxed) > 0;
            match read {
                Ok((task, outcome)) => {
                    let seen = Seen::Task { task: Arc::new(task), outcome: outcome.map(Arc::new) };
                    Self::offer(entry, &mut state, seen);
                }
                Err(Error::Refused(refusal)) => Self::offer(entry, &mut state, Seen::Gone(refusal)),
                Err(error) => {
                    tracing::debug!(task.id = %entry.id, %error, "a watched task could not be read");
                    // The next sweep finds what was missed.
                    state.heard = state.version;
                }
            }
            if state.version < promised && state.heard >= promised && !is_gone {
                // It was heard before the read began, so it should be there: a hint that lies.
                state.disbelieve_until = Some(Instant::now() + DISBELIEF);
                state.heard = state.version;
            }
            if is_gone || !state.again && !lacks_outcome && state.heard <= state.version {
                state.reading = false;
                return;
            }
        }
    }

    /// Asks which of the watched tasks have changed, whatever was heard.
    pub(crate) async fn sweep(self: &Arc<Self>) {
        let entries: Vec<_> = lock(&self.entries).values().map(|(entry, _)| entry.clone()).collect();
        let open: Vec<_> = entries
            .into_iter()
            .filter(|entry| {
                let wants_outcome = entry.outcomes.load(Ordering::Relaxed) > 0;
                entry.seen.borrow().as_ref().is_some_and(|seen| !seen.is_final(wants_outcome))
            })
            .collect();
        let (ended, open): (Vec<_>, Vec<_>) = open.into_iter().partition(
            |entry| matches!(&*entry.seen.borrow(), Some(Seen::Task { task, .. }) if task.ending().is_some()),
        );
        // Nothing changes of these any more, but their outcomes could not be read.
        for entry in ended {
            self.read_again(&entry, &mut lock(&entry.state));
        }
        for batch in open.chunks(SWEEP_MAX) {
            let seen = batch.iter().map(|entry| (entry.id, lock(&entry.state).version)).collect();
            match self.tasks.changed(seen).await {
                Ok(changed) => {
                    let by_id: HashMap<_, _> = batch.iter().map(|entry| (entry.id, entry)).collect();
                    for (id, _) in changed {
                        if let Some(entry) = by_id.get(&id) {
                            self.read_again(entry, &mut lock(&entry.state));
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "watched tasks could not be read");
                    return;
                }
            }
        }
    }
}

async fn read(
    tasks: &dyn Tasks,
    principal: &Principal,
    id: TaskId,
    wants_outcome: bool,
) -> Result<(Task, Option<Outcome>), Error> {
    if wants_outcome { tasks.result(principal, id).await } else { Ok((tasks.get(principal, id).await?, None)) }
}

/// One watcher.
pub(crate) struct Watch {
    watches: Arc<Watches>,
    entry: Arc<Entry>,
    news: watch::Receiver<Option<Seen>>,
    wants_outcome: bool,
}

impl Watch {
    /// The next thing seen of the task, newer than the last.
    pub(crate) async fn next(&mut self) -> Seen {
        self.news.changed().await.expect("invariant: the sender is in the entry, which this watcher holds");
        self.news.borrow_and_update().clone().expect("invariant: what was seen is never unseen")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut entries = lock(&self.watches.entries);
        self.entry.outcomes.fetch_sub(usize::from(self.wants_outcome), Ordering::Relaxed);
        if let Some((_, watchers)) = entries.get_mut(&self.entry.id) {
            *watchers -= 1;
            if *watchers == 0 {
                entries.remove(&self.entry.id);
            }
        }
    }
}
