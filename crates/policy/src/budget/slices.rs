//! What this replica holds of each budget. It decides nothing that waits: time is an argument.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use longhaul_core::budget::until;
use longhaul_core::{Amount, BudgetKey, BudgetWindow, Delta, Limit, Timestamp, Window};
use longhaul_rpc::{BUDGET_LEASES_MAX, BudgetLease, BudgetReturn, BudgetWish};
use tokio::time::Instant;

/// Budgets that a replica draws on at a time.
pub(crate) const SLICES_MAX: usize = 10_000;
/// How long "there is no more" is believed.
const EMPTY_FOR: Duration = Duration::from_millis(200);
/// How long an unused slice is kept, if others may need it.
const IDLE: Duration = Duration::from_secs(1);
/// How long it is kept if there is [`PLENTY`] for everybody.
const IDLE_PLENTY: Duration = Duration::from_secs(60);
/// There is plenty if so many slices of this size are left.
const PLENTY: u64 = 64;
/// Calls that a slice is to be good for, at first and at most; doubled whenever it is soon used up.
const AHEAD_MIN: u64 = 16;
const AHEAD_MAX: u64 = 4096;
/// A slice that lasts less than this is too small.
const SOON: Duration = Duration::from_millis(500);
/// How long a lease or a return is said again; the task-store knows them for longer.
const SAID_FOR: Duration = Duration::from_secs(300);

/// A budget that a call is charged to: what it takes to lease a slice of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) key: BudgetKey,
    pub(crate) window: Window,
    pub(crate) limit: Limit,
}

/// The window that something was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) starts_at: Timestamp,
    pub(crate) ends_at: Timestamp,
    /// Its end by this replica's clock; rather too early than too late.
    pub(crate) end: Instant,
}

/// What came of the wish to take something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Take {
    /// Taken, in these windows.
    Taken(Vec<Term>),
    /// More has to be leased first.
    Wait,
    /// There is no more: of which of them, and until when.
    Empty(Vec<(usize, Term)>),
    /// Too many budgets.
    Crowded,
}

/// A caller that waits for a lease: since when, and for how much of what.
#[derive(Debug)]
pub(crate) struct Waiter {
    since: Instant,
    cost: Amount,
    of: Vec<BudgetKey>,
}

impl Waiter {
    pub(crate) fn new(since: Instant, cost: Amount) -> Self {
        Self { since, cost, of: Vec::new() }
    }
}

/// All slices of a replica.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    slices: HashMap<BudgetKey, Slice>,
    /// What is to be added to budgets.
    owed: BTreeMap<BudgetWindow, Owed>,
    /// What was said and is not known to have been heard, since when.
    said: Option<(Instant, Vec<BudgetReturn>)>,
}

#[derive(Debug, Clone, Copy)]
struct Owed {
    delta: Delta,
    end: Instant,
}

#[derive(Debug)]
struct Slice {
    window: Window,
    limit: Limit,
    term: Option<Term>,
    available: Amount,
    /// For everybody else, as was said with the last lease.
    left: Limit,
    /// When the last lease was asked for that was answered.
    asked: Option<Instant>,
    /// When it was answered.
    told: Option<Instant>,
    /// What callers wait for.
    demand: Amount,
    waiters: usize,
    /// How many calls it is to be good for, and what the last one cost.
    ahead: u64,
    cost: Amount,
    used: Instant,
    /// What was asked for and not answered yet, since when.
    wish: Option<(Instant, BudgetWish)>,
    /// That is on its way.
    leasing: bool,
}

impl Slice {
    fn new(source: &Source, now: Instant) -> Self {
        Self {
            window: source.window,
            limit: source.limit,
            term: None,
            available: Amount::ZERO,
            left: source.limit,
            asked: None,
            told: None,
            demand: Amount::ZERO,
            waiters: 0,
            ahead: AHEAD_MIN,
            cost: Amount::ZERO,
            used: now,
            wish: None,
            leasing: false,
        }
    }

    /// Forgets a window that is over.
    fn look_at_the_clock(&mut self, now: Instant) {
        if self.term.is_some_and(|term| term.end <= now) {
            (self.term, self.available, self.left) = (None, Amount::ZERO, self.limit);
            (self.asked, self.told) = (None, None);
        }
    }

    /// Whether `cost` cannot be had, as far as somebody can know who asks since then.
    fn is_empty_for(&self, cost: Amount, since: Instant, now: Instant) -> Option<Term> {
        let term = self.term?;
        let is_fresh = self.asked.is_some_and(|asked| asked >= since) || self.was_told(now);
        (is_fresh && !self.available.plus(self.left.amount()).covers(cost)).then_some(term)
    }

    /// Whether what the task-store said last is still believed.
    fn was_told(&self, now: Instant) -> bool {
        self.told.is_some_and(|told| now < told + EMPTY_FOR)
    }

    /// What is needed at once, and beside it.
    fn wanted(&self, now: Instant) -> Option<(Amount, Amount)> {
        let need = self.demand.minus(self.available);
        let target = self.cost.times(self.ahead);
        let is_low = !self.available.covers(Amount { units: target.units / 2, micro_usd: target.micro_usd / 2 });
        let is_used = now < self.used + IDLE;
        if need == Amount::ZERO && !(is_low && is_used && self.term.is_some()) {
            return None;
        }
        let ahead = target.minus(self.available.minus(self.demand));
        let has_more = need.plus(ahead).min(self.left.amount()) != Amount::ZERO;
        (has_more || !self.was_told(now)).then_some((need, ahead))
    }

    /// Whether what is unused may be missed elsewhere.
    fn is_idle(&self, now: Instant) -> bool {
        let has_plenty = self.left.amount().covers(self.available.times(PLENTY));
        now >= self.used + if has_plenty { IDLE_PLENTY } else { IDLE }
    }
}

impl Slices {
    /// Takes `waiter.cost` of each source, or of none of them.
    pub(crate) fn take(&mut self, sources: &[Source], waiter: &mut Waiter, now: Instant) -> Take {
        let cost = waiter.cost;
        let is_new = |source: &&Source| !self.slices.contains_key(&source.key);
        if self.slices.len() + sources.iter().filter(is_new).count() > SLICES_MAX {
            return Take::Crowded;
        }
        let mut empty = Vec::new();
        let mut terms = Vec::with_capacity(sources.len());
        for (at, source) in sources.iter().enumerate() {
            let slice = self.slices.entry(source.key.clone()).or_insert_with(|| Slice::new(source, now));
            slice.look_at_the_clock(now);
            (slice.cost, slice.used) = (cost, now);
            match slice.term {
                Some(term) if slice.available.covers(cost) => terms.push(term),
                _ => empty.extend(slice.is_empty_for(cost, waiter.since, now).map(|term| (at, term))),
            }
        }
        if terms.len() == sources.len() {
            self.leave(waiter);
            for source in sources {
                if let Some(slice) = self.slices.get_mut(&source.key) {
                    slice.available = slice.available.minus(cost);
                }
            }
            return Take::Taken(terms);
        }
        if !empty.is_empty() {
            self.leave(waiter);
            return Take::Empty(empty);
        }
        if waiter.of.is_empty() {
            waiter.of = sources.iter().map(|source| source.key.clone()).collect();
            for key in &waiter.of {
                if let Some(slice) = self.slices.get_mut(key) {
                    slice.demand = slice.demand.plus(cost);
                    slice.waiters += 1;
                }
            }
        }
        Take::Wait
    }

    /// Waits no more.
    pub(crate) fn leave(&mut self, waiter: &mut Waiter) {
        for key in waiter.of.drain(..) {
            if let Some(slice) = self.slices.get_mut(&key) {
                slice.demand = slice.demand.minus(waiter.cost);
                slice.waiters -= 1;
            }
        }
    }

    /// Whether there is something to lease.
    pub(crate) fn is_wanting<'a>(&self, keys: impl IntoIterator<Item = &'a BudgetKey>, now: Instant) -> bool {
        keys.into_iter()
            .any(|key| self.slices.get(key).is_some_and(|slice| !slice.leasing && slice.wanted(now).is_some()))
    }

    /// What to lease now. Each of them is to be answered or to fail.
    pub(crate) fn wishes(&mut self, now: Instant, id: impl Fn() -> String) -> Vec<BudgetWish> {
        let mut wishes = Vec::new();
        for (key, slice) in &mut self.slices {
            if wishes.len() == BUDGET_LEASES_MAX {
                break;
            }
            slice.look_at_the_clock(now);
            if slice.leasing {
                continue;
            }
            let wish = match slice.wish.take().filter(|(since, _)| now < *since + SAID_FOR) {
                Some(again) => again,
                None => {
                    let Some((demand, ahead)) = slice.wanted(now) else { continue };
                    if demand == Amount::ZERO && slice.asked.is_some_and(|asked| now < asked + SOON) {
                        slice.ahead = (slice.ahead * 2).min(AHEAD_MAX);
                    }
                    let (window, limit) = (slice.window, slice.limit);
                    (now, BudgetWish { id: id(), key: key.clone(), window, limit, demand, ahead })
                }
            };
            slice.leasing = true;
            wishes.push(wish.1.clone());
            slice.wish = Some(wish);
        }
        wishes
    }

    /// A wish was answered now that was said at `asked`.
    pub(crate) fn leased(&mut self, wish: &BudgetWish, lease: &BudgetLease, asked: Instant, now: Instant) {
        let Some(slice) = self.slices.get_mut(&wish.key) else { return };
        (slice.leasing, slice.wish) = (false, None);
        let BudgetLease { starts_at, ends_at, now: written, granted, left } = *lease;
        let end = asked + until(written, ends_at);
        match slice.term {
            Some(term) if term.starts_at == starts_at => slice.available = slice.available.plus(granted),
            // A later one has begun meanwhile.
            Some(term) if term.starts_at > starts_at => return,
            Some(_) | None => {
                slice.available = granted;
                slice.term = Some(Term { starts_at, ends_at, end });
            }
        }
        (slice.left, slice.asked, slice.told) = (left, Some(asked), Some(now));
    }

    /// A wish has no answer: it is said again.
    pub(crate) fn failed(&mut self, wish: &BudgetWish) {
        if let Some(slice) = self.slices.get_mut(&wish.key) {
            slice.leasing = false;
        }
    }

    /// What was taken and not used comes back; what was used and not taken is taken now.
    pub(crate) fn settle(&mut self, source: &Source, term: Term, taken: Amount, used: Amount, now: Instant) {
        if term.end <= now {
            return;
        }
        let (back, mut more) = (taken.minus(used), used.minus(taken));
        match self.slices.get_mut(&source.key) {
            Some(slice) if slice.term.is_some_and(|held| held.starts_at == term.starts_at) => {
                let here = more.min(slice.available);
                slice.available = slice.available.minus(here).plus(back);
                more = more.minus(here);
                self.owe(&source.key, term, more.less(Amount::ZERO));
            }
            Some(_) | None => self.owe(&source.key, term, used.less(taken)),
        }
    }

    fn owe(&mut self, key: &BudgetKey, term: Term, delta: Delta) {
        if delta == Delta::ZERO {
            return;
        }
        let window = BudgetWindow { key: key.clone(), starts_at: term.starts_at };
        let owed = self.owed.entry(window).or_insert(Owed { delta: Delta::ZERO, end: term.end });
        owed.delta.units += delta.units;
        owed.delta.micro_usd += delta.micro_usd;
    }

    /// What to give back now: what is idle, or all of it. It is to be heard, or comes again.
    pub(crate) fn returns(&mut self, all: bool, now: Instant, id: impl Fn() -> String) -> Vec<BudgetReturn> {
        let mut gone = Vec::new();
        self.slices.retain(|key, slice| {
            slice.look_at_the_clock(now);
            // Who may have been granted something waits to hear of it.
            let goes = slice.waiters == 0 && (all || (slice.wish.is_none() && slice.is_idle(now)));
            gone.extend(slice.term.filter(|_| goes).map(|term| (key.clone(), term, slice.available)));
            !goes
        });
        for (key, term, unused) in gone {
            self.owe(&key, term, Amount::ZERO.less(unused));
        }
        self.owed.retain(|_, owed| now < owed.end && owed.delta != Delta::ZERO);
        if let Some((since, said)) = &self.said
            && now < *since + SAID_FOR
        {
            return said.clone();
        }
        let mut returns = Vec::new();
        while returns.len() < BUDGET_LEASES_MAX
            && let Some((from, owed)) = self.owed.pop_first()
        {
            returns.push(BudgetReturn { id: id(), from, delta: owed.delta });
        }
        self.said = (!returns.is_empty()).then(|| (now, returns.clone()));
        returns
    }

    /// What was last said was heard.
    pub(crate) fn returned(&mut self) {
        self.said = None;
    }

    /// Whether nothing has to be looked at.
    pub(crate) fn is_quiet(&self) -> bool {
        self.slices.is_empty() && self.owed.is_empty() && self.said.is_none()
    }
}
