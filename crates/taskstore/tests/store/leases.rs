//! Claims, heartbeats, directives, interruption.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use longhaul_core::{Ending, Interruption, LeaseToken, NewTask, Outcome, Phase, WorkerId};
use longhaul_rpc::{Claim, Directive, Report, Tasks as _, Work as _};

use crate::on_both_engines;
use crate::world::*;

const LOST: Ending = Ending::Interrupted(Interruption::WorkerLost);
/// Long enough for anything that happens at once, however slow the machine.
const SOON: Duration = Duration::from_secs(20);

on_both_engines! {
    async fn the_same_claim_again_gets_the_same_tasks_and_no_others(world) {
        let store = world.store().await;
        for _ in 0..5 {
            store.create(new_task(&ann())).await.unwrap();
        }
        let first = store.claim(wish(&worker("w"), "t", 3)).await.unwrap();
        assert_eq!(first.len(), 3);
        let again = world.store().await.claim(wish(&worker("w"), "t", 3)).await.unwrap();
        assert_eq!(again, first);
        let rest = store.claim(wish(&worker("w"), "u", 3)).await.unwrap();
        assert_eq!(rest.len(), 2);
        assert!(rest.iter().all(|one| first.iter().all(|other| one.task.id != other.task.id)));
        assert_eq!(store.claim(wish(&worker("w"), "v", 3)).await.unwrap(), []);
    }

    async fn two_copies_of_a_claim_at_once_take_tasks_only_once(world) {
        let (one, two) = (world.store().await, world.store().await);
        for _ in 0..10 {
            for _ in 0..6 {
                one.create(new_task(&ann())).await.unwrap();
            }
            let token = id().to_string();
            let (first, second) = tokio::join!(
                one.claim(wish(&worker("w"), &token, 3)),
                two.claim(wish(&worker("w"), &token, 3)),
            );
            let (first, second) = (first.unwrap(), second.unwrap());
            assert_eq!(first.len(), 3);
            assert_eq!(first, second);
            for assignment in first.into_iter().chain(one.claim(wish(&worker("w"), "rest", 3)).await.unwrap()) {
                one.complete(fence(&assignment.task), done("{}")).await.unwrap();
            }
        }
    }

    async fn a_worker_gets_only_tools_that_it_runs_the_oldest_first(world) {
        let store = world.store().await;
        let tool = |tool: &str| NewTask { tool: tool.into(), ..new_task(&ann()) };
        let mut ids = Vec::new();
        for name in ["a", "x", "b", "a"] {
            ids.push(store.create(tool(name)).await.unwrap().id);
        }
        let wish = Claim { tools: vec!["b".into(), "a".into(), "\0".into()], ..wish(&worker("w"), "t", 9) };
        let got: Vec<_> = store.claim(wish.clone()).await.unwrap().into_iter().map(|one| one.task.id).collect();
        assert_eq!(got, [ids[0], ids[2], ids[3]]);
        assert_eq!(store.claim(Claim { tools: vec![], ..wish.clone() }).await.unwrap(), []);
        assert_eq!(store.claim(Claim { max: 0, ..wish }).await.unwrap(), []);
    }

    async fn no_tenant_waits_behind_the_flood_of_another(world) {
        let store = world.store_with(|config| config.max_open = 0).await;
        for _ in 0..30 {
            store.create(new_task(&agent("flood", "a"))).await.unwrap();
        }
        let small = store.create(new_task(&agent("small", "a"))).await.unwrap();
        let got = store.claim(wish(&worker("w"), "t", 4)).await.unwrap();
        assert_eq!(got.len(), 4);
        assert!(got.iter().any(|one| one.task.id == small.id));
    }

    async fn one_claim_hands_out_a_bounded_number_of_bytes_but_always_a_task(world) {
        let store = world.store().await;
        for _ in 0..3 {
            let arguments = vec![b' '; 10 * 1024 * 1024].into();
            store.create(NewTask { arguments, ..new_task(&ann()) }).await.unwrap();
        }
        for token in ["t", "u", "v"] {
            assert_eq!(store.claim(wish(&worker("w"), token, 3)).await.unwrap().len(), 1);
        }
    }

    async fn a_lease_that_is_renewed_lasts_and_one_that_is_not_runs_out(world) {
        let store = world.store().await;
        let task = store.create(new_task(&ann())).await.unwrap();
        let held = claim(&store, "t").await.task;
        assert_eq!(store.interrupt().await.unwrap(), 0);
        for _ in 0..3 {
            store.advance_clock(LEASE - Duration::from_secs(60)).await.unwrap();
            assert_eq!(store.interrupt().await.unwrap(), 0);
            assert_eq!(store.heartbeat(&worker("w"), vec![(task.id, 1)]).await.unwrap(), []);
        }
        // A heartbeat is nothing that anybody sees.
        let now = store.get(&ann(), task.id).await.unwrap();
        assert_eq!((now.version, now.updated_at), (held.version, held.updated_at));
        store.advance_clock(LEASE - Duration::from_secs(60)).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 0);
        store.advance_clock(Duration::from_secs(61)).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 1);
        let (ended, outcome) = store.result(&ann(), task.id).await.unwrap();
        assert_eq!(ended.phase, Phase::Ended(LOST));
        assert!(ended.status_message.unwrap().contains("interrupted"));
        assert_eq!(outcome, Some(Outcome::Interrupted(Interruption::WorkerLost)));
        assert!(store.complete(fence(&held), done("{}")).await.is_err());
        assert_eq!(store.heartbeat(&worker("w"), vec![(task.id, 1)]).await.unwrap(), [Directive::Stop(task.id)]);
        assert_eq!(store.interrupt().await.unwrap(), 0);
    }

    async fn a_heartbeat_says_what_to_stop_and_renews_only_what_is_held(world) {
        let store = world.store().await;
        let mut tasks = Vec::new();
        for _ in 0..3 {
            store.create(new_task(&ann())).await.unwrap();
        }
        for assignment in store.claim(wish(&worker("w"), "t", 3)).await.unwrap() {
            tasks.push(assignment.task);
        }
        store.cancel(&ann(), tasks[1].id).await.unwrap();
        let beat = vec![(tasks[0].id, 1), (tasks[1].id, 1), (tasks[2].id, 2), (id(), 1)];
        let mut stop = store.heartbeat(&worker("w"), beat.clone()).await.unwrap();
        stop.sort_by_key(|one| beat.iter().position(|(id, _)| *one == Directive::Stop(*id)));
        assert_eq!(stop, beat[1..].iter().map(|(id, _)| Directive::Stop(*id)).collect::<Vec<_>>());
        for stranger in [worker("v"), WorkerId { incarnation: "2".into(), ..worker("w") }] {
            let stop = store.heartbeat(&stranger, vec![(tasks[0].id, 1)]).await.unwrap();
            assert_eq!(stop, [Directive::Stop(tasks[0].id)]);
        }
    }

    async fn a_time_in_which_nobody_looked_interrupts_nothing_by_itself(world) {
        let store = world.store().await;
        store.create(new_task(&ann())).await.unwrap();
        store.create(new_task(&ann())).await.unwrap();
        let alive = claim(&store, "t").await.task;
        let dead = claim(&store, "u").await.task;
        assert_eq!(store.interrupt().await.unwrap(), 0);
        // Ten leases go by; no task-store ticks, no heartbeat gets through.
        world.execute("UPDATE longhaul_clock SET offset_us = offset_us + 3000000000").await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 0);
        assert_eq!(world.store().await.interrupt().await.unwrap(), 0, "another replica agrees");
        store.advance_clock(LEASE - Duration::from_secs(60)).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 0);
        assert_eq!(store.heartbeat(&worker("w"), vec![(alive.id, 1)]).await.unwrap(), []);
        store.advance_clock(Duration::from_secs(61)).await.unwrap();
        assert_eq!(store.interrupt().await.unwrap(), 1);
        assert_eq!(store.get(&ann(), dead.id).await.unwrap().ending(), Some(LOST));
        assert_eq!(store.get(&ann(), alive.id).await.unwrap().ending(), None);
    }

    async fn a_worker_that_comes_back_ends_what_its_former_self_held(world) {
        let store = world.store().await;
        for _ in 0..3 {
            store.create(new_task(&ann())).await.unwrap();
        }
        let _first = store.attach(worker_info(&worker("w"), &["echo"])).await.unwrap();
        let old = claim(&store, "t").await.task;
        let others = store.claim(wish(&worker("v"), "x", 1)).await.unwrap().remove(0).task;
        let new = WorkerId { incarnation: "2".into(), ..worker("w") };
        let _second = store.attach(worker_info(&new, &["echo"])).await.unwrap();
        assert_eq!(store.get(&ann(), old.id).await.unwrap().ending(), Some(LOST));
        assert_eq!(store.get(&ann(), others.id).await.unwrap().ending(), None);
        // The former self gets nothing more; the new one does.
        assert_eq!(store.claim(wish(&worker("w"), "z", 1)).await.unwrap(), []);
        assert_eq!(store.claim(wish(&new, "y", 1)).await.unwrap().len(), 1);
        // Attached again, it is still itself.
        let _third = store.attach(worker_info(&new, &["echo"])).await.unwrap();
        assert_eq!(store.heartbeat(&new, vec![]).await.unwrap(), []);
        assert_eq!(store.interrupt().await.unwrap(), 0);
        assert_eq!(world.texts("SELECT coalesce(ending, phase) FROM tasks ORDER BY 1").await, ["running", "running", "worker_lost"]);
    }

    async fn an_attached_worker_is_told_to_stop_at_once_wherever_the_task_ended(world) {
        let (here, there) = (world.store().await, world.store().await);
        let mut directives = here.attach(worker_info(&worker("w"), &["echo"])).await.unwrap();
        for (number, canceller) in [&here, &there].into_iter().enumerate() {
            let task = here.create(new_task(&ann())).await.unwrap();
            let held = claim(&here, &number.to_string()).await.task;
            here.report(fence(&held), Report { status_message: Some("m".into()), progress: None }).await.unwrap();
            canceller.cancel(&ann(), task.id).await.unwrap();
            let told = tokio::time::timeout(SOON, directives.next()).await.unwrap();
            assert_eq!(told, Some(Directive::Stop(task.id)));
        }
        // Claimed through another replica: the heartbeat makes it known here.
        let task = here.create(new_task(&ann())).await.unwrap();
        claim(&there, "there").await;
        here.heartbeat(&worker("w"), vec![(task.id, 1)]).await.unwrap();
        there.cancel(&ann(), task.id).await.unwrap();
        assert_eq!(tokio::time::timeout(SOON, directives.next()).await.unwrap(), Some(Directive::Stop(task.id)));
        // What the worker itself has ended it need not be told.
        here.create(new_task(&ann())).await.unwrap();
        let held = claim(&here, "own").await.task;
        here.complete(fence(&held), done("{}")).await.unwrap();
        assert_eq!(directives.next().now_or_never(), None);
    }

    async fn a_waiting_claim_is_woken_by_a_create_on_any_replica(world) {
        let (here, there) = (world.store().await, world.store().await);
        for creator in [&here, &there] {
            let token = LeaseToken(id().to_string());
            let wish = Claim { wait: SOON, token, ..wish(&worker("w"), "", 1) };
            let waiting = { let here = here.clone(); spawn(async move { here.claim(wish).await }) };
            let task = creator.create(new_task(&ann())).await.unwrap();
            let got = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
            assert_eq!(got.into_iter().map(|one| one.task.id).collect::<Vec<_>>(), [task.id]);
        }
    }

    async fn a_claim_that_finds_nothing_answers_when_its_wait_is_over(world) {
        let store = world.store().await;
        let wish = Claim { wait: Duration::from_millis(50), ..wish(&worker("w"), "t", 1) };
        assert_eq!(tokio::time::timeout(SOON, store.claim(wish)).await.unwrap().unwrap(), []);
    }

    async fn with_a_deaf_bus_only_the_timer_is_left_and_it_is_enough(world) {
        let mut world = world;
        world.bus = std::sync::Arc::new(longhaul_bus::DeafBus::new());
        let (here, there) = (world.store().await, world.store().await);
        let wish = Claim { wait: SOON, ..wish(&worker("w"), "t", 1) };
        let waiting = { let here = here.clone(); spawn(async move { here.claim(wish).await }) };
        let task = there.create(new_task(&ann())).await.unwrap();
        let got = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
        assert_eq!(got[0].task.id, task.id);
        here.complete(fence(&got[0].task), done("{}")).await.unwrap();
        assert_eq!(there.result(&ann(), task.id).await.unwrap().1, Some(done("{}")));
    }
}
