//! Keep a copy of what changes in the task-store, so that a call is judged without asking it.
//!
//! A copy is read again when a hint says so, and every [`LOOK`] without one; from its last change on, or from the beginning
//! after a look that failed, since the database may have been put back meanwhile. What was read last holds until the next
//! look that goes well, however long that takes.

use std::convert::Infallible;
use std::time::Duration;

use longhaul_bus::{Bus, Control as ControlHint, Hint};
use longhaul_rpc::{Changes, Control, Error};
use opentelemetry::metrics::Gauge;
use opentelemetry::{KeyValue, global};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How often a copy is read again without a hint.
pub const LOOK: Duration = Duration::from_secs(2);
/// A copy that has not been read for so long is worth a word to the operator.
pub const STALE: Duration = Duration::from_secs(10);
/// How soon it is read again after a look that failed.
const AGAIN: Duration = Duration::from_millis(500);

/// A copy of something that changes in the task-store.
pub trait Mirror: Send + Sync {
    /// One change.
    type Change: Send;

    /// What it is, for operators.
    const NAME: &'static str;
    /// What says that there are changes.
    const HINT: ControlHint;

    /// Changes after this number, in order; none if there are no more.
    fn read(control: &dyn Control, since: u64) -> impl Future<Output = Result<Changes<Self::Change>, Error>> + Send;
    /// The number of a change.
    fn number(change: &Self::Change) -> u64;
    /// Takes over changes, in order. `whole`: they are all there is, and what else was known is no more.
    fn take(&self, changes: Vec<Self::Change>, whole: bool);
    /// Where it is noted when it was read.
    fn freshness(&self) -> &Freshness;
}

/// When a copy was last as the task-store had it.
#[derive(Debug)]
pub struct Freshness {
    read: watch::Sender<Option<Instant>>,
    age: Gauge<f64>,
}

impl Default for Freshness {
    /// Never. Its instrument comes from the global meter provider, which must be set by then.
    fn default() -> Self {
        let age = global::meter("longhaul")
            .f64_gauge("longhaul_control_age_seconds")
            .with_description("How old the copy of what operators decide is, at its last look.")
            .build();
        Self { read: watch::Sender::new(None), age }
    }
}

impl Freshness {
    /// Whether there is a copy, however old.
    pub fn is_there(&self) -> bool {
        self.read.borrow().is_some()
    }

    /// Waits until there is one.
    pub async fn there(&self) {
        // It fails only if the sender is gone, and that is in our hands.
        let _ = self.read.subscribe().wait_for(Option::is_some).await;
    }

    /// How old it is; `None` if there is none.
    pub fn age(&self) -> Option<Duration> {
        self.read.borrow().map(|read| read.elapsed())
    }
}

/// Keeps a copy for ever.
pub async fn follow<M: Mirror>(mirror: &M, control: &dyn Control, bus: &dyn Bus) -> Infallible {
    let mut hints = bus.subscribe();
    let freshness = mirror.freshness();
    let (mut since, mut failing) = (0, false);
    loop {
        let began = Instant::now();
        let looked = look(mirror, control, since).await;
        let pause = match looked {
            Ok(seen) => {
                freshness.read.send_replace(Some(began));
                since = seen;
                if std::mem::take(&mut failing) {
                    tracing::info!(of = M::NAME, "the task-store's control state is read again");
                }
                LOOK
            }
            Err(error) => {
                since = 0;
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(of = M::NAME, %error, "the control state cannot be read: what was read last holds");
                }
                AGAIN
            }
        };
        if let Some(age) = freshness.age() {
            freshness.age.record(age.as_secs_f64(), &[KeyValue::new("of", M::NAME)]);
        }
        // Without a hint in time, it is time all the same.
        let _ = timeout(pause, hinted(&mut hints, &M::HINT)).await;
    }
}

/// Reads all that has changed; answers with the number of the last change.
async fn look<M: Mirror>(mirror: &M, control: &dyn Control, since: u64) -> Result<u64, Error> {
    let (mut whole, mut seen, mut changes) = (since == 0, since, Vec::new());
    loop {
        let page = M::read(control, seen).await?;
        if !whole && page.forgotten > seen {
            // What was forgotten may be something that is known here.
            (whole, seen) = (true, 0);
            changes.clear();
            continue;
        }
        let Some(last) = page.changes.last() else { break };
        let last = M::number(last);
        if last <= seen {
            return Err(Error::Fault(format!("{}: change {last} came after {seen}", M::NAME)));
        }
        seen = last;
        changes.extend(page.changes);
    }
    mirror.take(changes, whole);
    Ok(seen)
}

/// Waits until something says that there may be changes.
async fn hinted(hints: &mut Receiver<Hint>, wanted: &ControlHint) {
    loop {
        match hints.recv().await {
            Ok(Hint::Control(hint)) if hint == *wanted => return,
            Ok(Hint::Missed) | Err(RecvError::Lagged(_)) => return,
            Ok(Hint::Task { .. } | Hint::Control(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
