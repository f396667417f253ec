//! Budgets: what a call may cost is set aside before it begins, and what it did not use is given back.
//!
//! The task-store keeps what is taken of each budget. This replica leases slices of them in the background and decides
//! from its slices, so that a call waits for the task-store only if there is no slice: at its budget's first call of a
//! window, or when there may be no more. A replica that crashes leaves its slices taken until their windows end: less
//! may be spent than there is, and never more.

mod metrics;
mod rules;
mod slices;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::budget::{Done, charge, spelt, until};
use longhaul_core::{
    Amount, BudgetKey, BudgetWindow, Check, Denied, Principal, Refusal, Reserved, Target, Timestamp, Window,
};
use longhaul_rpc::{Control, Error};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::hooks::Budget;

pub use rules::{BadBudget, BudgetRule, BudgetRules, BudgetScope};

use metrics::Metrics;
use slices::{Slices, Source, Take, Term, Waiter};

/// How long a call waits for a slice of its budgets; then they cannot be evaluated, and it is not let in.
pub const RESERVE_MAX: Duration = Duration::from_secs(5);
/// How often slices are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// The pause after a lease that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the last slices may take to be given back.
const LAST_RETURN: Duration = Duration::from_secs(1);

/// The budgets of one replica. Clones are the same ones.
#[derive(Clone)]
pub struct Budgets {
    inner: Arc<Inner>,
}

struct Inner {
    rules: BudgetRules,
    control: Arc<dyn Control>,
    slices: Mutex<Slices>,
    /// There is something to lease.
    wanting: Notify,
    /// There is more of something, or there is none.
    changed: Notify,
    metrics: Metrics,
}

impl fmt::Debug for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budgets").field("rules", &self.inner.rules).finish()
    }
}

#[async_trait::async_trait]
impl Budget for Budgets {
    async fn reserve(&self, principal: &Principal, target: &Target) -> Result<Reservation, Error> {
        self.reserve(principal, target).await
    }
}

impl Budgets {
    /// Budgets by these rules, kept by the task-store behind `control`. They lease nothing before they [`run`](Self::run).
    /// Instruments come from the global meter provider, which must be set by then.
    pub fn new(rules: BudgetRules, control: Arc<dyn Control>) -> Result<Self, BadBudget> {
        rules.check()?;
        let (slices, wanting, changed) = (Mutex::default(), Notify::new(), Notify::new());
        Ok(Self { inner: Arc::new(Inner { rules, control, slices, wanting, changed, metrics: Metrics::new() }) })
    }

    /// Sets aside what a call costs, in all its budgets or in none of them. Refused as [`Refusal::Denied`] if there is not
    /// enough, which the task-store has just said; unavailable if it does not answer within [`RESERVE_MAX`].
    pub async fn reserve(&self, principal: &Principal, target: &Target) -> Result<Reservation, Error> {
        let (cost, keys) = self.inner.rules.of(principal, target);
        if keys.is_empty() {
            return Ok(Reservation::none());
        }
        for (at, _) in &keys {
            let rule = &self.inner.rules.rules[*at];
            if !rule.limit.amount().covers(cost) {
                return Err(never(rule.scope));
            }
        }
        let source = |(at, key): (usize, BudgetKey)| {
            let rule = &self.inner.rules.rules[at];
            (rule.scope, Source { key, window: rule.window, limit: rule.limit })
        };
        let (scopes, sources): (Vec<_>, Vec<_>) = keys.into_iter().map(source).unzip();
        let mut waiting = Waiting { inner: &self.inner, waiter: Waiter::new(Instant::now(), cost) };
        let deadline = Instant::now() + RESERVE_MAX;
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            let taken = {
                let (now, mut slices) = (Instant::now(), self.inner.slices());
                let taken = slices.take(&sources, &mut waiting.waiter, now);
                if slices.is_wanting(sources.iter().map(|source| &source.key), now) {
                    self.inner.wanting.notify_one();
                }
                taken
            };
            match taken {
                Take::Taken(terms) => {
                    let parts = sources.into_iter().zip(terms).collect();
                    let state = Mutex::new(State { spent: None, is_open: true });
                    return Ok(Reservation(Some(Arc::new(Held {
                        inner: self.inner.clone(),
                        price: cost,
                        parts,
                        state,
                    }))));
                }
                Take::Wait => {
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        self.inner.metrics.late();
                        return Err(Error::Unavailable("the budgets cannot be read".into()));
                    }
                }
                Take::Empty(empty) => {
                    // It makes no sense to try again before all of them have begun anew.
                    let last = empty.into_iter().max_by_key(|(_, term)| term.ends_at);
                    let Some((at, term)) = last else { continue };
                    return Err(empty_until(scopes[at], sources[at].window, term));
                }
                Take::Crowded => return Err(Error::Unavailable("too many budgets are in use".into())),
            }
        }
    }

    /// Leases slices and gives back what is idle, until `stop` fires; then gives back everything.
    pub async fn run(&self, stop: CancellationToken) {
        let inner = &*self.inner;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = inner.wanting.notified() => {}
                _ = look.tick() => {
                    if inner.slices().is_quiet() {
                        continue;
                    }
                }
            }
            let (leased, ()) = tokio::join!(inner.lease(), inner.give_back(false));
            if !leased {
                tokio::time::sleep(PAUSE).await;
                // Those that wait still do.
                inner.wanting.notify_one();
            }
        }
        if tokio::time::timeout(LAST_RETURN, inner.give_back(true)).await.is_err() {
            tracing::warn!("slices of budgets could not be given back: they count as taken until their windows end");
        }
    }
}

impl Inner {
    fn slices(&self) -> MutexGuard<'_, Slices> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases what is wanted; false if the task-store did not answer.
    async fn lease(&self) -> bool {
        let asked = Instant::now();
        let wishes = self.slices().wishes(asked, random_id);
        if wishes.is_empty() {
            return true;
        }
        let answer = self.control.lease_budget(wishes.clone()).await;
        self.metrics.leased(wishes.len(), answer.is_ok());
        {
            let mut slices = self.slices();
            match &answer {
                Ok(leases) => {
                    let now = Instant::now();
                    for (wish, lease) in wishes.iter().zip(leases) {
                        slices.leased(wish, lease, asked, now);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "no slices of budgets could be leased");
                    wishes.iter().for_each(|wish| slices.failed(wish));
                }
            }
        }
        self.changed.notify_waiters();
        answer.is_ok()
    }

    async fn give_back(&self, all: bool) {
        loop {
            let returns = self.slices().returns(all, Instant::now(), random_id);
            if returns.is_empty() {
                return;
            }
            if let Err(error) = self.control.return_budget(returns).await {
                return tracing::warn!(%error, "slices of budgets could not be given back yet");
            }
            self.slices().returned();
        }
    }
}

fn random_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("invariant: the operating system has a random source");
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Waits no more once it is dropped.
struct Waiting<'a> {
    inner: &'a Inner,
    waiter: Waiter,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.inner.slices().leave(&mut self.waiter);
    }
}

const fn whose(scope: BudgetScope) -> &'static str {
    match scope {
        BudgetScope::Tenant => "Your organisation's budget",
        BudgetScope::Principal => "Your budget",
        BudgetScope::Tool => "The budget of this tool",
    }
}

fn denied(message: String, retry_after: Option<Duration>) -> Error {
    Error::Refused(Refusal::Denied(Denied { by: Check::Budget, message, retry_after }))
}

fn never(scope: BudgetScope) -> Error {
    denied(format!("{} is never enough for this call: ask your operator", whose(scope)), None)
}

fn empty_until(scope: BudgetScope, window: Window, term: Term) -> Error {
    let retry_after = term.end.saturating_duration_since(Instant::now());
    let message = format!(
        "{} for this {} is used up: it begins anew at {} (in {})",
        whose(scope),
        window.name(),
        spelt(term.ends_at),
        in_words(retry_after)
    );
    denied(message, Some(retry_after))
}

fn in_words(wait: Duration) -> String {
    // Rounded up: who comes back then is not too early.
    let of = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    match wait.as_secs() + u64::from(wait.subsec_nanos() > 0) {
        seconds @ 0..120 => of(seconds, "second"),
        seconds @ 120..7200 => of(seconds.div_ceil(60), "minute"),
        seconds @ 7200..172_800 => of(seconds.div_ceil(3600), "hour"),
        seconds => of(seconds.div_ceil(86_400), "day"),
    }
}

/// What is set aside for a call. Clones are the same one; dropped, the last one gives back what nobody said was used.
#[derive(Clone)]
pub struct Reservation(Option<Arc<Held>>);

struct Held {
    inner: Arc<Inner>,
    price: Amount,
    parts: Vec<(Source, Term)>,
    state: Mutex<State>,
}

struct State {
    spent: Option<Amount>,
    /// It is not settled, and nobody else is to settle it.
    is_open: bool,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.0.as_ref().map(|held| held.price)).finish()
    }
}

impl Reservation {
    /// Of a call that no budget is charged with.
    pub const fn none() -> Self {
        Self(None)
    }

    /// What a task takes with it. From then on it is for the statement that ends the task to settle it
    /// ([`handed_over`](Self::handed_over)).
    pub fn reserved(&self) -> Option<Reserved> {
        let held = self.0.as_ref()?;
        let from = held.parts.iter().map(|(source, term)| window(source, term.starts_at));
        Some(Reserved { amount: held.price, from: from.collect() })
    }

    /// The run says that it has used so much so far.
    pub fn spent(&self, total: Amount) {
        if let Some(held) = &self.0 {
            let mut state = held.state();
            state.spent = Some(state.spent.unwrap_or_default().max(total));
        }
    }

    /// The call was answered: it is charged what it said it used, or else its price.
    pub fn answered(&self) {
        self.settle(Done::Answered);
    }

    /// The call was not carried out, or not to its end: it is charged what it said it used, and else nothing.
    pub fn broken(&self) {
        self.settle(Done::Broken);
    }

    /// A task has it now, or may have: nothing comes back from here.
    pub fn handed_over(&self) {
        if let Some(held) = &self.0 {
            held.state().is_open = false;
        }
    }

    fn settle(&self, done: Done) {
        if let Some(held) = &self.0 {
            held.settle(done);
        }
    }
}

fn window(source: &Source, starts_at: Timestamp) -> BudgetWindow {
    BudgetWindow { key: source.key.clone(), starts_at }
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, done: Done) {
        let used = {
            let mut state = self.state();
            if !std::mem::take(&mut state.is_open) {
                return;
            }
            charge(self.price, state.spent, done)
        };
        let now = Instant::now();
        {
            let mut slices = self.inner.slices();
            for (source, term) in &self.parts {
                slices.settle(source, *term, self.price, used, now);
            }
        }
        for (source, _) in &self.parts {
            self.inner.metrics.spent(&source.key.budget, used);
        }
        self.inner.changed.notify_waiters();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.settle(Done::Broken);
    }
}

/// How long is left of a budget's window.
pub fn resets_in(now: Timestamp, ends_at: Timestamp) -> String {
    in_words(until(now, ends_at))
}
