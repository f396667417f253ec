//! What there is to spend: leased in slices, settled as tasks end, never less than nothing and never more than there is.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_core::{
    Amount, BudgetKey, BudgetWindow, Delta, Limit, NewTask, OnInterrupt, Outcome, Refusal, Reserved, Retry, Timestamp,
    Window,
};
use longhaul_rpc::{BudgetLease, BudgetReturn, BudgetState, BudgetWish, Control as _, Error, Tasks as _, Work as _};
use longhaul_taskstore::TaskStore;

use crate::on_both_engines;
use crate::verbs::refusal;
use crate::world::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn key(holder: &str) -> BudgetKey {
    BudgetKey { budget: "b".into(), tenant: "acme".into(), holder: holder.into() }
}

fn units(units: u64) -> Amount {
    Amount { units, micro_usd: 0 }
}

fn limited(units: u64) -> Limit {
    Limit { units: Some(units), micro_usd: Some(1_000_000) }
}

/// A wish of its own for so many units of 100 a month.
fn wish(demand: u64) -> BudgetWish {
    let (id, window) = (id().to_string(), Window::Month);
    BudgetWish { id, key: key("h"), window, limit: limited(100), demand: units(demand), ahead: Amount::ZERO }
}

async fn lease(store: &TaskStore, wish: BudgetWish) -> BudgetLease {
    store.lease_budget(vec![wish]).await.unwrap().remove(0)
}

async fn taken(store: &TaskStore) -> Amount {
    let states = store.budgets(None).await.unwrap();
    states.into_iter().find(|state| state.key == key("h")).map(|state| state.taken).unwrap_or_default()
}

fn back(lease: &BudgetLease, delta: Delta) -> BudgetReturn {
    let from = BudgetWindow { key: key("h"), starts_at: lease.starts_at };
    BudgetReturn { id: id().to_string(), from, delta }
}

/// A task for which these units have been leased and set aside.
async fn task_for(store: &TaskStore, price: Amount, retry: Retry) -> (NewTask, BudgetLease) {
    let leased = lease(store, BudgetWish { demand: price, ..wish(0) }).await;
    assert_eq!(leased.granted, price);
    let from = vec![BudgetWindow { key: key("h"), starts_at: leased.starts_at }];
    let new = NewTask { retry, reserved: Some(Reserved { amount: price, from }), ..new_task(&ann()) };
    assert_eq!(store.create(new.clone()).await.unwrap().reserved, new.reserved);
    (new, leased)
}

on_both_engines! {
    async fn slices_are_handed_out_as_far_as_the_limit_and_smaller_near_the_end(world) {
        let store = world.store().await;
        let first = lease(&store, BudgetWish { ahead: Amount { units: 50, micro_usd: 7 }, ..wish(20) }).await;
        assert_eq!(first.granted, Amount { units: 20 + 80 / 8, micro_usd: 7 });
        assert_eq!(first.left, Limit { units: Some(70), micro_usd: Some(999_993) });
        let (starts_at, ends_at) = Window::Month.around(first.now);
        assert_eq!((first.starts_at, first.ends_at), (starts_at, ends_at));
        assert_eq!(lease(&store, wish(60)).await.granted, units(60));
        let last = lease(&store, BudgetWish { ahead: units(9), ..wish(15) }).await;
        assert_eq!((last.granted, last.left.units), (units(10), Some(0)));
        assert_eq!(lease(&store, wish(1)).await.granted, Amount::ZERO);
        // A smaller limit than what is taken leaves nothing, and a larger one more.
        assert_eq!(lease(&store, BudgetWish { limit: limited(10), ..wish(1) }).await.left.units, Some(0));
        assert_eq!(lease(&store, BudgetWish { limit: limited(101), ..wish(2) }).await.granted, units(1));
        let endless = BudgetWish { limit: Limit::default(), ahead: units(3), ..wish(5) };
        let endless = lease(&store, endless).await;
        assert_eq!((endless.granted, endless.left), (units(8), Limit::default()));
        let state = BudgetState {
            key: key("h"), starts_at, ends_at, limit: Limit::default(), taken: Amount { units: 109, micro_usd: 7 },
        };
        assert_eq!(store.budgets(None).await.unwrap(), [state]);
    }

    async fn a_lease_or_return_that_is_said_again_changes_nothing(world) {
        let (store, other) = (world.store().await, world.store().await);
        let wish = wish(30);
        let both = tokio::join!(lease(&store, wish.clone()), lease(&other, wish.clone()));
        assert_eq!((both.0.granted, both.1.granted), (units(30), units(30)));
        assert_eq!((taken(&store).await, lease(&store, wish).await.granted), (units(30), units(30)));
        let unused = back(&both.0, Delta { units: -20, micro_usd: 0 });
        let twice = tokio::join!(store.return_budget(vec![unused.clone()]), other.return_budget(vec![unused.clone()]));
        twice.0.unwrap();
        twice.1.unwrap();
        store.return_budget(vec![unused.clone(), unused]).await.unwrap();
        assert_eq!(taken(&store).await, units(10));
        // Nobody can give back what was never taken.
        store.return_budget(vec![back(&both.0, Delta { units: -50, micro_usd: -1 })]).await.unwrap();
        assert_eq!(taken(&store).await, Amount::ZERO);
        assert_eq!(lease(&store, self::wish(100)).await.granted, units(100));
    }

    /// The keys of a batch are locked in one order, whatever order they come in.
    async fn a_thousand_leases_at_once_on_two_task_stores_take_what_there_is_and_no_more(world) {
        let stores = [world.store().await, world.store().await];
        let asking = (0..1000).map(|at: usize| {
            let store = stores[at % 2].clone();
            let mut wishes = vec![wish(1), BudgetWish { key: key("other"), ..wish(1) }];
            if at.is_multiple_of(3) {
                wishes.reverse();
            }
            async move {
                let leases = store.lease_budget(wishes).await.unwrap();
                let of = |at: usize| leases[at].granted.units;
                if at.is_multiple_of(3) { (of(1), of(0)) } else { (of(0), of(1)) }
            }
        });
        let granted = futures::future::join_all(asking).await;
        assert_eq!(granted.iter().map(|(one, _)| one).sum::<u64>(), 100);
        assert_eq!(granted.iter().map(|(_, other)| other).sum::<u64>(), 100);
        let states = stores[0].budgets(None).await.unwrap();
        assert_eq!(states.iter().map(|state| state.taken).collect::<Vec<_>>(), [units(100), units(100)]);
    }

    async fn what_a_task_did_not_use_is_given_back_by_its_end(world) {
        let store = world.store().await;
        let price = Amount { units: 10, micro_usd: 500 };
        let spent = |units, micro_usd| Some(Amount { units, micro_usd });
        #[derive(Debug, Clone, Copy)]
        enum End { Completed, Failed, Cancelled, Lost, Expired }
        let mut charged = Amount::ZERO;
        for (end, is_running, reported, charge) in [
            (End::Completed, true, None, price),
            (End::Completed, true, spent(3, 100), Amount { units: 3, micro_usd: 100 }),
            (End::Completed, true, spent(0, 0), Amount::ZERO),
            (End::Completed, true, spent(12, 900), Amount { units: 12, micro_usd: 900 }),
            (End::Failed, true, None, price),
            (End::Failed, true, spent(1, 0), units(1)),
            (End::Cancelled, false, None, Amount::ZERO),
            (End::Cancelled, true, None, Amount::ZERO),
            (End::Cancelled, true, spent(2, 7), Amount { units: 2, micro_usd: 7 }),
            (End::Lost, true, None, Amount::ZERO),
            (End::Lost, true, spent(4, 0), units(4)),
            (End::Expired, false, None, Amount::ZERO),
        ] {
            let (new, _) = task_for(&store, price, Retry::default()).await;
            assert_eq!(taken(&store).await, charged.plus(price));
            let mut held = store.get(&ann(), new.id).await.unwrap();
            if is_running {
                held = claim(&store, &new.id.to_string()).await.task;
            }
            if let Some(total) = reported {
                held = store.spend(fence(&held), total).await.unwrap();
                assert_eq!((held.spent, &held.reserved), (Some(total), &new.reserved));
            }
            let outcome = match end {
                End::Failed => Some(Outcome::Error(longhaul_core::CallError { code: 1, message: "no".into(), data: None })),
                End::Completed => Some(done("{}")),
                End::Cancelled | End::Lost | End::Expired => None,
            };
            match end {
                End::Cancelled => drop(store.cancel(&ann(), new.id).await.unwrap()),
                End::Lost => {
                    let lost = Outcome::Interrupted(longhaul_core::Interruption::Drained);
                    store.complete(fence(&held), lost).await.unwrap();
                }
                End::Expired => {
                    // The longest that it may have been, so that the month need not end with it.
                    let expire = format!("UPDATE tasks SET expires_at = 1, ttl_ms = 1, created_at = 0 WHERE id = '{}'", new.id);
                    world.execute_any(expire).await;
                    assert_eq!(store.expire().await.unwrap(), 1);
                }
                End::Completed | End::Failed => {
                    let outcome = outcome.clone().unwrap();
                    store.complete(fence(&held), outcome.clone()).await.unwrap();
                    // Again, it settles nothing.
                    store.complete(fence(&held), outcome).await.unwrap();
                }
            }
            charged = charged.plus(charge);
            assert_eq!(taken(&store).await, charged, "{end:?} {reported:?}");
            if is_running {
                let late = refusal(store.spend(fence(&held), price).await);
                assert!(matches!(late, Refusal::AlreadyEnded(_)), "{late:?}");
            }
        }
        // What is settled can be leased.
        let left = 100 - charged.units;
        assert_eq!(lease(&store, wish(200)).await.granted, units(left));
    }

    async fn a_task_is_charged_once_for_all_its_attempts(world) {
        let store = world.store().await;
        let retry = Retry { on_interrupt: OnInterrupt::Requeue, max_attempts: 2 };
        let (new, _) = task_for(&store, units(10), retry).await;
        let first = claim(&store, "t1").await.task;
        store.spend(fence(&first), units(3)).await.unwrap();
        store.complete(fence(&first), Outcome::Interrupted(longhaul_core::Interruption::Drained)).await.unwrap();
        assert_eq!(taken(&store).await, units(10), "it has not ended");
        let second = claim(&store, "t2").await.task;
        assert_eq!((second.id, second.spent), (new.id, Some(units(3))));
        assert_eq!(refusal(store.spend(fence(&first), units(9)).await), Refusal::Fenced);
        // A total never falls.
        store.spend(fence(&second), units(5)).await.unwrap();
        let said = store.spend(fence(&second), units(4)).await.unwrap();
        assert_eq!(said.spent, Some(units(5)));
        store.complete(fence(&second), done("{}")).await.unwrap();
        assert_eq!(taken(&store).await, units(5));
    }

    async fn a_new_window_begins_anew_and_what_ends_late_is_of_the_old_one(world) {
        let store = world.store().await;
        let wish = |demand| BudgetWish { window: Window::Day, ..wish(demand) };
        let said = wish(40);
        let old = lease(&store, said.clone()).await;
        assert_eq!(lease(&store, wish(60)).await.granted, units(60));
        let from = vec![BudgetWindow { key: key("h"), starts_at: old.starts_at }];
        let reserved = Some(Reserved { amount: units(100), from });
        let new = NewTask { reserved, ttl: longhaul_core::TtlWish::Longest, ..new_task(&ann()) };
        store.create(new.clone()).await.unwrap();
        assert_eq!(lease(&store, wish(1)).await.granted, Amount::ZERO);
        // The next day, wherever in the present one this is.
        let to_next = Duration::from_micros((old.ends_at.as_micros() - old.now.as_micros()) as u64);
        store.advance_clock(to_next).await.unwrap();
        assert!(store.budgets(None).await.unwrap().is_empty(), "nobody has drawn on it yet");
        let young = lease(&store, wish(20)).await;
        assert_eq!((young.granted, young.starts_at), (units(20), old.ends_at));
        // Said again in another window, a wish takes from that one.
        assert_eq!(lease(&store, said).await.granted, units(40));
        store.cancel(&ann(), new.id).await.unwrap();
        store.return_budget(vec![back(&old, Delta { units: -1, micro_usd: 0 })]).await.unwrap();
        assert_eq!(taken(&store).await, units(60));
        // Old windows are forgotten, and what is settled in them.
        store.advance_clock(8 * DAY).await.unwrap();
        store.return_budget(vec![back(&old, Delta { units: -1, micro_usd: 0 })]).await.unwrap();
        store.purge().await.unwrap();
        assert!(world.texts("SELECT budget FROM budgets").await.is_empty());
        assert!(world.texts("SELECT id FROM budget_moves").await.len() <= 1);
        if world.is_postgres() {
            assert!(world.texts("SELECT budget FROM budget_settlements").await.is_empty());
        }
    }

    async fn settlements_are_folded_though_nobody_leases_any_more(world) {
        let store = world.store().await;
        let leased = lease(&store, wish(50)).await;
        for _ in 0..3 {
            store.return_budget(vec![back(&leased, Delta { units: -10, micro_usd: 3 })]).await.unwrap();
        }
        assert_eq!(taken(&store).await, Amount { units: 20, micro_usd: 9 });
        store.purge().await.unwrap();
        let taken = world.texts("SELECT taken_units || ' ' || taken_micro_usd FROM budgets").await;
        assert_eq!(taken, ["20 9"]);
        if world.is_postgres() {
            assert!(world.texts("SELECT budget FROM budget_settlements").await.is_empty());
        }
    }

    async fn a_page_of_budgets_goes_on_where_the_last_one_ended(world) {
        let store = world.store().await;
        let holders = ["", "a", "b"];
        let wishes = holders.map(|holder| BudgetWish { key: key(holder), ..wish(1) });
        store.lease_budget(wishes.into()).await.unwrap();
        let all = store.budgets(None).await.unwrap();
        assert_eq!(all.iter().map(|state| &*state.key.holder).collect::<Vec<_>>(), holders);
        assert_eq!(store.budgets(Some(key(""))).await.unwrap(), all[1..]);
        assert!(store.budgets(Some(key("b"))).await.unwrap().is_empty());
    }

    async fn what_cannot_be_stored_is_refused(world) {
        let store = world.store().await;
        let wide = BudgetKey { budget: "x".repeat(65), ..key("h") };
        for bad in [
            BudgetWish { id: String::new(), ..wish(1) },
            BudgetWish { id: "x".repeat(65), ..wish(1) },
            BudgetWish { key: key("\0"), ..wish(1) },
            BudgetWish { key: wide.clone(), ..wish(1) },
        ] {
            assert!(matches!(store.lease_budget(vec![bad]).await, Err(Error::Fault(_))));
        }
        let many = (0..=longhaul_rpc::BUDGET_LEASES_MAX).map(|_| wish(1)).collect();
        assert!(matches!(store.lease_budget(many).await, Err(Error::Fault(_))));
        let from = vec![BudgetWindow { key: wide, starts_at: Timestamp::from_micros(0) }];
        let new = NewTask { reserved: Some(Reserved { amount: units(1), from }), ..new_task(&ann()) };
        assert!(matches!(store.create(new).await, Err(Error::Fault(_))));
        // More than any number is as much as there can be.
        let huge = Amount { units: u64::MAX, micro_usd: u64::MAX };
        let endless = BudgetWish { limit: Limit::default(), demand: huge, ahead: huge, ..wish(1) };
        let most = longhaul_core::budget::AMOUNT_MAX;
        assert_eq!(lease(&store, endless).await.granted, Amount { units: most, micro_usd: most });
    }

    /// As a model of plain sums says: no step takes more than there is, and none leaves less than nothing.
    async fn leases_and_returns_are_plain_sums(world) {
        let store = world.store().await;
        let mut chance = 7_u64;
        let mut below = |end: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % end
        };
        let limit = Limit { units: Some(1000), micro_usd: Some(400) };
        let mut held: BTreeMap<u64, (BudgetLease, Amount)> = BTreeMap::new();
        let mut model = Amount::ZERO;
        for step in 0..200 {
            if below(3) > 0 || held.is_empty() {
                let mut amount = |units, usd| Amount { units: below(units), micro_usd: below(usd) };
                let (demand, ahead) = (amount(60, 30), amount(200, 100));
                let leased = lease(&store, BudgetWish { limit, demand, ahead, ..wish(0) }).await;
                assert_eq!(leased.granted, limit.without(model).share(demand, ahead));
                model = model.plus(leased.granted);
                assert_eq!(leased.left, limit.without(model));
                held.insert(step, (leased, leased.granted));
            } else {
                let at = *held.keys().nth(below(held.len() as u64) as usize).unwrap();
                let (leased, granted) = held.remove(&at).unwrap();
                let used = Amount { units: below(granted.units + 1), micro_usd: below(granted.micro_usd + 1) };
                store.return_budget(vec![back(&leased, used.less(granted))]).await.unwrap();
                model = model.minus(granted.minus(used));
            }
            assert!(limit.amount().covers(model));
            if step % 10 == 0 {
                assert_eq!(taken(&store).await, model);
            }
        }
        assert_eq!(taken(&store).await, model);
    }
}
