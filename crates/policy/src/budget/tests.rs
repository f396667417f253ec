//! Slices against a model of the task-store: whatever is lost or late, nobody spends more than there is.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use longhaul_core::{Amount, BudgetKey, BudgetWindow, Limit, Timestamp, Window};
use longhaul_rpc::{BudgetLease, BudgetReturn, BudgetWish};
use proptest::prelude::*;
use tokio::time::Instant;

use super::slices::{Slices, Source, Take, Term, Waiter};
use super::*;

const LIMIT: Limit = Limit { units: Some(100), micro_usd: Some(40) };

fn source(name: &str) -> Source {
    let key = BudgetKey { budget: name.into(), tenant: "t".into(), holder: String::new() };
    Source { key, window: Window::Minute, limit: LIMIT }
}

fn amount(units: u64, micro_usd: u64) -> Amount {
    Amount { units, micro_usd }
}

/// The task-store, and the time.
struct Store {
    start: Instant,
    passed: Duration,
    taken: BTreeMap<BudgetWindow, Amount>,
    granted: HashMap<(String, Timestamp), Amount>,
    ids: Cell<u32>,
}

impl Store {
    fn new() -> Self {
        let (taken, granted) = (BTreeMap::new(), HashMap::new());
        Self { start: Instant::now(), passed: Duration::ZERO, taken, granted, ids: Cell::new(0) }
    }

    fn now(&self) -> Instant {
        self.start + self.passed
    }

    fn id(&self) -> String {
        self.ids.set(self.ids.get() + 1);
        self.ids.get().to_string()
    }

    fn moment(&self) -> Timestamp {
        Timestamp::from_micros(0).plus(self.passed)
    }

    fn window(&self) -> Timestamp {
        Window::Minute.around(self.moment()).0
    }

    fn lease(&mut self, wish: &BudgetWish) -> BudgetLease {
        let now = self.moment();
        let (starts_at, ends_at) = wish.window.around(now);
        let taken = self.taken.entry(BudgetWindow { key: wish.key.clone(), starts_at }).or_default();
        let granted = *self.granted.entry((wish.id.clone(), starts_at)).or_insert_with(|| {
            let granted = wish.limit.without(*taken).share(wish.demand, wish.ahead);
            *taken = taken.plus(granted);
            granted
        });
        assert!(LIMIT.amount().covers(*taken), "{taken:?}");
        BudgetLease { starts_at, ends_at, now, granted, left: wish.limit.without(*taken) }
    }

    fn give_back(&mut self, back: &BudgetReturn) {
        if self.granted.insert((back.id.clone(), back.from.starts_at), Amount::ZERO).is_some() {
            return;
        }
        let taken = self.taken.get_mut(&back.from).unwrap();
        taken.units = taken.units.checked_add_signed(back.delta.units).expect("less than nothing was taken");
        taken.micro_usd =
            taken.micro_usd.checked_add_signed(back.delta.micro_usd).expect("less than nothing was taken");
    }
}

/// All wishes of a replica are said; if `heard`, it hears the answers.
fn lease(slices: &mut Slices, store: &mut Store, heard: bool) {
    let asked = store.now();
    for wish in slices.wishes(asked, || store.id()) {
        let lease = store.lease(&wish);
        match heard {
            true => slices.leased(&wish, &lease, asked, store.now()),
            false => slices.failed(&wish),
        }
    }
}

fn give_back(slices: &mut Slices, store: &mut Store, all: bool, heard: bool) {
    for _ in 0..4 {
        let returns = slices.returns(all, store.now(), || store.id());
        returns.iter().for_each(|back| store.give_back(back));
        if !heard {
            return;
        }
        slices.returned();
    }
}

#[derive(Debug, Clone)]
enum Op {
    Take {
        replica: usize,
        cost: Amount,
        of: usize,
    },
    /// What is used, in percent of what was taken.
    Settle {
        nth: usize,
        percent: u64,
    },
    Lease {
        replica: usize,
        heard: bool,
    },
    Return {
        replica: usize,
        heard: bool,
    },
    Pass {
        ms: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..2_usize, 0..12_u64, 0..5_u64, 0..3_usize)
            .prop_map(|(replica, units, usd, of)| Op::Take { replica, cost: amount(units, usd), of }),
        4 => (any::<usize>(), 0..=100_u64).prop_map(|(nth, percent)| Op::Settle { nth, percent }),
        6 => (0..2_usize, prop::bool::weighted(0.8)).prop_map(|(replica, heard)| Op::Lease { replica, heard }),
        2 => (0..2_usize, prop::bool::weighted(0.8)).prop_map(|(replica, heard)| Op::Return { replica, heard }),
        2 => (0..20_000_u64).prop_map(|ms| Op::Pass { ms }),
        4 => (0..300_u64).prop_map(|ms| Op::Pass { ms }),
    ]
}

struct Open {
    replica: usize,
    sources: Vec<Source>,
    terms: Vec<Term>,
    cost: Amount,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn whatever_is_lost_or_late_no_more_is_spent_than_there_is_and_all_of_it_is_accounted_for(
        ops in prop::collection::vec(op(), 1..150)
    ) {
        let (mut store, mut replicas) = (Store::new(), [Slices::default(), Slices::default()]);
        let (mut open, mut charged): (Vec<Open>, BTreeMap<BudgetWindow, Amount>) = (Vec::new(), BTreeMap::new());
        let of = |source: &Source, term: &Term| BudgetWindow { key: source.key.clone(), starts_at: term.starts_at };
        for op in ops {
            match op {
                Op::Take { replica, cost, of } => {
                    let sources = [vec![source("a")], vec![source("b")], vec![source("a"), source("b")]][of].clone();
                    let mut waiter = Waiter::new(store.now(), cost);
                    for _ in 0..3 {
                        match replicas[replica].take(&sources, &mut waiter, store.now()) {
                            Take::Taken(terms) => {
                                prop_assert!(terms.iter().all(|term| term.starts_at == store.window()), "of another window");
                                open.push(Open { replica, sources, terms, cost });
                                break;
                            }
                            Take::Wait => lease(&mut replicas[replica], &mut store, true),
                            Take::Empty(_) => break,
                            Take::Crowded => prop_assert!(false, "crowded"),
                        }
                    }
                    replicas[replica].leave(&mut waiter);
                }
                Op::Settle { nth, percent } if !open.is_empty() => {
                    let Open { replica, sources, terms, cost } = open.swap_remove(nth % open.len());
                    let used = amount(cost.units * percent / 100, cost.micro_usd * percent / 100);
                    for (source, term) in sources.iter().zip(&terms) {
                        replicas[replica].settle(source, *term, cost, used, store.now());
                        let charged = charged.entry(of(source, term)).or_default();
                        *charged = charged.plus(used);
                    }
                }
                Op::Settle { .. } => {}
                Op::Lease { replica, heard } => lease(&mut replicas[replica], &mut store, heard),
                Op::Return { replica, heard } => give_back(&mut replicas[replica], &mut store, false, heard),
                Op::Pass { ms } => store.passed += Duration::from_millis(ms),
            }
            for (window, charged) in &charged {
                prop_assert!(LIMIT.amount().covers(*charged), "{window:?}");
            }
        }
        // Once all is given back that nobody uses, exactly what is used is taken.
        for slices in &mut replicas {
            lease(slices, &mut store, true);
            give_back(slices, &mut store, true, true);
            prop_assert!(slices.is_quiet());
        }
        let now = store.window();
        let mut used: BTreeMap<BudgetWindow, Amount> = charged.into_iter().filter(|(at, _)| at.starts_at == now).collect();
        for Open { sources, terms, cost, .. } in &open {
            for (source, term) in sources.iter().zip(terms).filter(|(_, term)| term.starts_at == now) {
                let used = used.entry(of(source, term)).or_default();
                *used = used.plus(*cost);
            }
        }
        for (window, taken) in store.taken.iter().filter(|(at, _)| at.starts_at == now) {
            prop_assert_eq!(*taken, used.get(window).copied().unwrap_or_default());
        }
    }
}

fn take(slices: &mut Slices, store: &Store, cost: Amount) -> Take {
    let mut waiter = Waiter::new(store.now(), cost);
    let taken = slices.take(&[source("a")], &mut waiter, store.now());
    slices.leave(&mut waiter);
    taken
}

#[test]
fn a_steady_caller_seldom_waits_for_a_lease() {
    let (mut store, mut slices) = (Store::new(), Slices::default());
    let endless = Source { limit: Limit { units: Some(1_000_000), micro_usd: None }, ..source("a") };
    let mut waits = 0;
    for call in 0..20_000 {
        let mut waiter = Waiter::new(store.now(), amount(1, 0));
        while slices.take(std::slice::from_ref(&endless), &mut waiter, store.now()) == Take::Wait {
            waits += 1;
            assert!(waits < 10);
            let asked = store.now();
            for wish in slices.wishes(asked, || store.id()) {
                let (starts_at, ends_at) = wish.window.around(store.moment());
                let granted = wish.demand.plus(wish.ahead);
                let (left, now) = (Limit { units: Some(1_000_000), micro_usd: None }, store.moment());
                slices.leased(&wish, &BudgetLease { starts_at, ends_at, now, granted, left }, asked, asked);
            }
        }
        // A lease takes as long as a few calls.
        if call % 5 == 0 && slices.is_wanting([&endless.key], store.now()) {
            let asked = store.now();
            for wish in slices.wishes(asked, || store.id()) {
                let (starts_at, ends_at) = wish.window.around(store.moment());
                let granted = wish.demand.plus(wish.ahead);
                let (left, now) = (Limit { units: Some(1_000_000), micro_usd: None }, store.moment());
                slices.leased(&wish, &BudgetLease { starts_at, ends_at, now, granted, left }, asked, asked);
            }
        }
        store.passed += Duration::from_millis(1);
    }
    assert_eq!(waits, 1, "only the first call of the window waits");
}

#[test]
fn what_is_empty_is_asked_for_again_but_not_by_every_caller() {
    let (mut store, mut slices) = (Store::new(), Slices::default());
    let mut other = Slices::default();
    assert_eq!(take(&mut other, &store, amount(90, 0)), Take::Wait);
    let mut waiter = Waiter::new(store.now(), amount(90, 0));
    other.take(&[source("a")], &mut waiter, store.now());
    lease(&mut other, &mut store, true);
    let Take::Taken(terms) = other.take(&[source("a")], &mut waiter, store.now()) else { panic!("not taken") };
    // It is believed of the task-store alone that there is no more.
    let mut waiter = Waiter::new(store.now(), amount(20, 0));
    assert_eq!(slices.take(&[source("a")], &mut waiter, store.now()), Take::Wait);
    lease(&mut slices, &mut store, true);
    let Take::Empty(empty) = slices.take(&[source("a")], &mut waiter, store.now()) else { panic!("not empty") };
    assert_eq!(empty[0].1.ends_at, Timestamp::from_micros(60_000_000));
    // For a moment, others need not ask.
    assert!(matches!(take(&mut slices, &store, amount(20, 0)), Take::Empty(_)));
    other.settle(&source("a"), terms[0], amount(90, 0), Amount::ZERO, store.now());
    give_back(&mut other, &mut store, true, true);
    store.passed += Duration::from_millis(200);
    let mut waiter = Waiter::new(store.now(), amount(20, 0));
    assert_eq!(slices.take(&[source("a")], &mut waiter, store.now()), Take::Wait);
    lease(&mut slices, &mut store, true);
    assert!(matches!(slices.take(&[source("a")], &mut waiter, store.now()), Take::Taken(_)));
}

#[test]
fn what_is_used_beyond_the_price_is_taken_too() {
    let (mut store, mut slices) = (Store::new(), Slices::default());
    let mut waiter = Waiter::new(store.now(), amount(10, 0));
    slices.take(&[source("a")], &mut waiter, store.now());
    lease(&mut slices, &mut store, true);
    let Take::Taken(terms) = slices.take(&[source("a")], &mut waiter, store.now()) else { panic!("not taken") };
    slices.settle(&source("a"), terms[0], amount(10, 0), amount(60, 5), store.now());
    give_back(&mut slices, &mut store, true, true);
    assert_eq!(store.taken.values().copied().collect::<Vec<_>>(), [amount(60, 5)]);
}

#[test]
fn people_read_when_to_come_back() {
    for (ms, words) in [
        (1, "1 second"),
        (1000, "1 second"),
        (1001, "2 seconds"),
        (119_000, "119 seconds"),
        (120_000, "2 minutes"),
        (7_199_000, "120 minutes"),
        (7_200_000, "2 hours"),
        (86_400_000, "24 hours"),
        (172_800_000, "2 days"),
        (172_801_000, "3 days"),
    ] {
        assert_eq!(in_words(Duration::from_millis(ms)), words);
    }
}
