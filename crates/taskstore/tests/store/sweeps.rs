//! Time to live, tombstones, purge, retention.

use std::time::Duration;

use longhaul_bus::Hint;
use longhaul_core::{Ending, Interruption, NewTask, Outcome, Refusal, TtlWish};
use longhaul_rpc::{Directive, TaskCount, Tasks as _, Work as _};

use crate::on_both_engines;
use crate::verbs::refusal;
use crate::world::*;

const TTL: Duration = Duration::from_secs(3600);
const MOMENT: Duration = Duration::from_secs(60);

on_both_engines! {
    async fn an_expired_task_is_told_so_to_its_owner_for_an_hour_and_to_nobody_else(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        store.advance_clock(TTL - MOMENT).await.unwrap();
        assert_eq!(store.get(&ann(), task.id).await.unwrap(), task);
        store.advance_clock(MOMENT).await.unwrap();
        // Before any sweep, after the expiry, and after the purge: always the same.
        for step in 0..3 {
            assert_eq!(refusal(store.get(&ann(), task.id).await), Refusal::Expired);
            assert_eq!(refusal(store.result(&ann(), task.id).await), Refusal::Expired);
            assert_eq!(refusal(store.cancel(&ann(), task.id).await), Refusal::Expired);
            assert_eq!(refusal(store.get(&agent("acme", "bob"), task.id).await), Refusal::NotFound);
            assert_eq!(refusal(store.get(&agent("umbrella", "ann"), task.id).await), Refusal::NotFound);
            assert_eq!(store.list(&ann(), None, 50).await.unwrap().tasks, []);
            assert_eq!(store.count().await.unwrap(), TaskCount::default());
            match step {
                0 => assert_eq!(store.expire().await.unwrap(), 1),
                1 => assert_eq!(store.purge().await.unwrap(), 1),
                _ => {}
            }
        }
        store.advance_clock(TTL - MOMENT).await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(refusal(store.get(&ann(), task.id).await), Refusal::Expired);
        store.advance_clock(MOMENT).await.unwrap();
        assert_eq!(refusal(store.get(&ann(), task.id).await), Refusal::NotFound);
        store.purge().await.unwrap();
        assert_eq!(refusal(store.get(&ann(), task.id).await), Refusal::NotFound);
        assert_eq!(world.texts("SELECT id FROM tombstones").await, [""; 0]);
        assert_eq!(world.texts("SELECT tenant FROM counters").await, [""; 0]);
        // A caller whose counters were forgotten may come back.
        store.create(new_task(&ann())).await.unwrap();
    }

    async fn expiry_ends_the_work_and_wakes_who_waits(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        let held = claim(&store, "t").await.task;
        let mut heard = world.bus.subscribe();
        store.advance_clock(TTL + MOMENT).await.unwrap();
        assert_eq!(store.expire().await.unwrap(), 1);
        assert_eq!(store.expire().await.unwrap(), 0);
        assert_eq!(heard.try_recv(), Ok(Hint::Task { id: task.id, version: 3 }));
        let expired = Refusal::AlreadyEnded(Ending::Interrupted(Interruption::Expired));
        assert_eq!(refusal(store.complete(fence(&held), done("{}")).await), expired);
        assert_eq!(store.heartbeat(&worker("w"), vec![(task.id, 1)]).await.unwrap(), [Directive::Stop(task.id)]);
        assert_eq!(store.purge().await.unwrap(), 1);
        assert_eq!(refusal(store.complete(fence(&held), done("{}")).await), Refusal::Expired);
        let reasons = world.texts("SELECT event || ' ' || reason FROM audit WHERE reason IS NOT NULL").await;
        assert_eq!(reasons, ["mcp.task.failed expired"]);
    }

    async fn an_expired_task_is_not_handed_out(world) {
        let store = world.store().await;
        store.create(new_task(&ann())).await.unwrap();
        store.advance_clock(TTL + MOMENT).await.unwrap();
        assert_eq!(store.claim(wish(&worker("w"), "t", 1)).await.unwrap(), []);
    }

    async fn a_task_without_end_is_never_purged(world) {
        let store = world.store_with(|config| config.ttl.max_ms = 0).await;
        let task = store.create(NewTask { ttl: TtlWish::Longest, ..new_task(&ann()) }).await.unwrap();
        let ended = store.cancel(&ann(), task.id).await.unwrap();
        store.advance_clock(1000 * TTL).await.unwrap();
        assert_eq!((store.expire().await.unwrap(), store.purge().await.unwrap()), (0, 0));
        assert_eq!(store.result(&ann(), task.id).await.unwrap(), (ended, Some(Outcome::Cancelled)));
    }

    async fn more_tasks_than_fit_a_batch_are_expired_and_purged(world) {
        let store = world.store_with(|config| (config.max_open, config.max_live) = (0, 0)).await;
        let creates = (0..1203).map(|_| store.create(new_task(&ann())));
        for created in futures::future::join_all(creates).await {
            created.unwrap();
        }
        let kept = store.create(NewTask { ttl: TtlWish::Ms(7_200_000), ..new_task(&ann()) }).await.unwrap();
        store.advance_clock(TTL + MOMENT).await.unwrap();
        assert_eq!(store.expire().await.unwrap(), 1203);
        assert_eq!(store.purge().await.unwrap(), 1203);
        assert_eq!(store.count().await.unwrap(), TaskCount { stored: 1, open: 1 });
        assert_eq!(store.list(&ann(), None, 50).await.unwrap().tasks, [kept]);
        let audit = world.texts("SELECT CAST(count(*) AS text) FROM audit").await;
        assert_eq!(audit, [(1203 * 2 + 1).to_string()]);
    }

    async fn audit_rows_go_after_their_retention_and_not_before(world) {
        let store = world.store_with(|config| config.audit_retention_days = 2).await;
        store.create(new_task(&ann())).await.unwrap();
        store.seal().await.unwrap();
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        store.advance_clock(days(2) - MOMENT).await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(world.texts("SELECT event FROM audit").await, ["mcp.task.created"]);
        // In PostgreSQL with the rest of their month.
        store.advance_clock(if world.is_postgres() { days(32) } else { 2 * MOMENT }).await.unwrap();
        store.purge().await.unwrap();
        assert_eq!(world.texts("SELECT event FROM audit").await, [""; 0]);
    }

    async fn the_loops_do_all_this_by_themselves_and_end_when_drained(world) {
        let store = world.store_with(|config| config.lease = Duration::from_millis(900)).await;
        let task = store.create(new_task(&ann())).await.unwrap();
        claim(&store, "t").await;
        let mut heard = world.bus.subscribe();
        let drain = tokio_util::sync::CancellationToken::new();
        let running = { let (store, drain) = (store.clone(), drain.clone()); spawn(async move { store.run(drain).await }) };
        let interrupted = tokio::time::timeout(Duration::from_secs(30), heard.recv()).await.unwrap();
        assert_eq!(interrupted, Ok(Hint::Task { id: task.id, version: 3 }));
        drain.cancel();
        tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
        assert!(matches!(store.get(&ann(), task.id).await, Err(longhaul_rpc::Error::NotBegun(_))));
    }
}
