//! Many at once, over two task-stores on one database.

use std::collections::HashSet;
use std::time::Duration;

use futures::future::join_all;
use longhaul_core::{Ending, InputKey, LimitScope, NewTask, Refusal};
use longhaul_rpc::{Error, TaskCount, Tasks as _, Work as _};

use crate::on_both_engines;
use crate::world::*;

on_both_engines! {
    async fn the_cap_is_exact_under_parallel_creates_on_two_replicas(world) {
        let stores = [world.store().await, world.store().await];
        for round in 0..3 {
            let owner = agent("acme", &format!("ann{round}"));
            let creates = (0..100).map(|at| {
                let (store, new) = (stores[at % 2].clone(), new_task(&owner));
                spawn(async move { store.create(new).await })
            });
            let answers: Vec<_> = join_all(creates).await.into_iter().map(Result::unwrap).collect();
            assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 20);
            let full = Refusal::TaskLimit { scope: LimitScope::Caller, limit: 20 };
            for answer in answers {
                assert!(answer.is_ok() || matches!(&answer, Err(Error::Refused(refusal)) if *refusal == full), "{answer:?}");
            }
        }
        assert_eq!(stores[0].count().await.unwrap(), TaskCount { stored: 60, open: 60 });
    }

    async fn the_cap_of_a_tenant_is_exact_too_while_tasks_end(world) {
        let stores = [
            world.store_with(|config| (config.max_open, config.max_live) = (0, 10)).await,
            world.store_with(|config| (config.max_open, config.max_live) = (0, 10)).await,
        ];
        let clients = (0..16).map(|client| {
            let store = stores[client % 2].clone();
            spawn(async move {
                let owner = agent("acme", &client.to_string());
                let mut created = 0;
                for _ in 0..20 {
                    if let Ok(task) = store.create(new_task(&owner)).await {
                        created += 1;
                        assert!(store.count().await.unwrap().open <= 10);
                        store.cancel(&owner, task.id).await.unwrap();
                    }
                }
                created
            })
        });
        let created: u64 = join_all(clients).await.into_iter().map(Result::unwrap).sum();
        assert_eq!(stores[0].count().await.unwrap(), TaskCount { stored: created, open: 0 });
        assert!(created >= 20);
    }

    async fn no_task_is_handed_out_twice(world) {
        let stores = [
            world.store_with(|config| config.max_open = 0).await,
            world.store_with(|config| config.max_open = 0).await,
        ];
        let created: HashSet<_> =
            join_all((0..200).map(|_| stores[0].create(new_task(&ann())))).await.into_iter().map(|task| task.unwrap().id).collect();
        assert_eq!(created.len(), 200);
        let workers = (0..6).map(|number| {
            let store = stores[number % 2].clone();
            spawn(async move {
                let (name, mut got) = (worker(&format!("w{number}")), Vec::new());
                for turn in 0.. {
                    let claimed = store.claim(wish(&name, &format!("{number}-{turn}"), 7)).await.unwrap();
                    // Nothing left, or the last ones are just being taken by another.
                    if claimed.is_empty() {
                        break;
                    }
                    assert!(claimed.len() <= 7);
                    got.extend(claimed.into_iter().map(|one| one.task.id));
                }
                got
            })
        });
        let got: Vec<_> = join_all(workers).await.into_iter().flat_map(Result::unwrap).collect();
        assert_eq!(got.len(), 200);
        assert_eq!(got.into_iter().collect::<HashSet<_>>(), created);
    }

    async fn cancel_against_complete_has_one_winner(world) {
        let stores = [
            world.store_with(|config| config.max_open = 0).await,
            world.store_with(|config| config.max_open = 0).await,
        ];
        let mut cancelled = 0;
        for _ in 0..40 {
            let task = stores[0].create(new_task(&ann())).await.unwrap();
            let held = claim(&stores[0], &task.id.to_string()).await.task;
            let owner = ann();
            let (cancel, complete) = tokio::join!(
                stores[0].cancel(&owner, task.id),
                stores[1].complete(fence(&held), done("{\"a\":1}")),
            );
            let ending = stores[0].get(&owner, task.id).await.unwrap().ending().unwrap();
            match ending {
                Ending::Cancelled => {
                    cancelled += 1;
                    assert!(cancel.is_ok());
                    assert!(matches!(complete, Err(Error::Refused(Refusal::AlreadyEnded(Ending::Cancelled)))));
                }
                _ => {
                    assert!(complete.is_ok());
                    assert!(matches!(cancel, Err(Error::Refused(Refusal::AlreadyEnded(_)))), "{cancel:?}");
                }
            }
        }
        let ends = world.texts("SELECT CAST(count(*) AS text) FROM audit WHERE event <> 'mcp.task.created'").await;
        assert_eq!(ends, ["40"]);
        let recorded = world.texts("SELECT CAST(count(*) AS text) FROM audit WHERE event = 'mcp.task.cancelled'").await;
        assert_eq!(recorded, [cancelled.to_string()]);
    }

    async fn a_refused_row_does_not_fail_its_neighbours(world) {
        let store = world.store_with(|config| config.max_open = 3).await;
        let bad = store.create(new_task(&agent("acme", "bob"))).await.unwrap();
        // All of them arrive at once, hence in one batch: over the cap, of a taken id, twice the same, and good ones.
        let same = new_task(&agent("acme", "eve"));
        let mut all: Vec<NewTask> = (0..5).map(|_| new_task(&ann())).collect();
        all.insert(2, NewTask { id: bad.id, ..new_task(&agent("acme", "eve")) });
        all.insert(4, same.clone());
        all.insert(5, same.clone());
        let answers = join_all(all.into_iter().map(|new| store.create(new))).await;
        let kinds: Vec<_> = answers
            .iter()
            .map(|answer| match answer {
                Ok(_) => "ok",
                Err(Error::Refused(Refusal::TaskLimit { .. })) => "full",
                Err(Error::Fault(_)) => "taken",
                Err(other) => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, ["ok", "ok", "taken", "ok", "ok", "ok", "full", "full"]);
        assert_eq!(store.count().await.unwrap(), TaskCount { stored: 5, open: 5 });
        assert_eq!(world.texts("SELECT CAST(count(*) AS text) FROM audit").await, ["5"]);
    }

    async fn a_dropped_request_leaves_the_counters_right(world) {
        let store = world.store_with(|config| config.max_open = 0).await;
        for _ in 0..50 {
            // The create is polled once, so that it is on its way, and then its caller goes away.
            let mut create = Box::pin(store.create(new_task(&ann())));
            let _ = futures::poll!(create.as_mut());
            drop(create);
        }
        // Behind them in the same queue.
        store.create(new_task(&ann())).await.unwrap();
        let open = store.count().await.unwrap();
        assert_eq!(open, TaskCount { stored: 51, open: 51 });
        assert_eq!(world.texts("SELECT CAST(count(*) AS text) FROM audit").await, ["51"]);
    }
}

/// Statements whose outcome nobody knows: killed before, during or after their commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_connections_are_killed_nothing_acknowledged_is_lost_or_done_twice() {
    let world = World::postgres().await;
    let store = world.store_with(|config| (config.max_open, config.max_live) = (0, 0)).await;
    let over = tokio_util::sync::CancellationToken::new();
    let monkey = {
        let (over, url) = (over.clone(), world.url.clone());
        spawn(async move { over.run_until_cancelled(kill_connections(&url)).await })
    };
    let clients = (0..8).map(|client| {
        let (store, owner) = (store.clone(), agent("acme", &client.to_string()));
        spawn(async move {
            let mut known = Vec::new();
            for turn in 0..25 {
                let Ok(task) = store.create(new_task(&owner)).await else { continue };
                let mut ending = None;
                if turn % 2 == 0 {
                    ending = store.cancel(&owner, task.id).await.ok().and_then(|task| task.ending());
                } else if let Ok(claimed) = store.claim(wish(&worker("w"), &format!("{client}-{turn}"), 1)).await {
                    for one in claimed {
                        // Perhaps cancelled by its owner meanwhile; that is for the audit log to show.
                        let _ = store.complete(fence(&one.task), done("{}")).await;
                    }
                }
                known.push((owner.clone(), task.id, ending));
            }
            known
        })
    });
    let known: Vec<_> = join_all(clients).await.into_iter().flat_map(Result::unwrap).collect();
    over.cancel();
    monkey.await.unwrap();
    assert!(known.len() > 20, "only {} creates were acknowledged", known.len());
    let check = world.store().await;
    for (owner, id, ending) in known {
        let task = check.get(&owner, id).await.unwrap();
        assert!(ending.is_none() || task.ending() == ending);
    }
    let nothing: [&str; 0] = [];
    let twice = "SELECT task_id FROM audit GROUP BY task_id, event HAVING count(*) > 1";
    assert_eq!(world.texts(twice).await, nothing);
    let ended_twice =
        "SELECT task_id FROM audit WHERE event <> 'mcp.task.created' GROUP BY task_id HAVING count(*) > 1";
    assert_eq!(world.texts(ended_twice).await, nothing);
    let unrecorded =
        "SELECT id FROM tasks t WHERE NOT EXISTS (SELECT FROM audit a WHERE a.task_id = t.id AND a.version = 1)
        OR (phase = 'ended' AND NOT EXISTS (SELECT FROM audit a WHERE a.task_id = t.id AND a.version = t.version))";
    assert_eq!(world.texts(unrecorded).await, nothing);
    let miscounted = "SELECT c.tenant || c.owner FROM counters c
        LEFT JOIN (SELECT tenant, owner, sum(open) AS open FROM endings GROUP BY tenant, owner) e USING (tenant, owner)
        WHERE c.open + coalesce(e.open, 0)
            <> (SELECT count(*) FROM tasks t WHERE t.tenant = c.tenant AND c.owner IN ('', t.owner) AND phase <> 'ended')
        OR stored <> (SELECT count(*) FROM tasks t WHERE t.tenant = c.tenant AND c.owner IN ('', t.owner))";
    assert_eq!(world.texts(miscounted).await, nothing);
    // The sweep moves all that has ended into the counters.
    check.purge().await.unwrap();
    assert_eq!(world.texts("SELECT owner FROM endings").await, nothing);
    assert_eq!(world.texts(miscounted).await, nothing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_connections_are_killed_no_acknowledged_answer_is_lost_or_counted_twice() {
    let world = World::postgres().await;
    let store = world.store_with(|config| config.max_open = 0).await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        tasks.push(running(&store, &ann()).await);
    }
    let over = tokio_util::sync::CancellationToken::new();
    let monkey = {
        let (over, url) = (over.clone(), world.url.clone());
        spawn(async move { over.run_until_cancelled(kill_connections(&url)).await })
    };
    let workers = tasks.into_iter().map(|task| {
        let store = store.clone();
        spawn(async move {
            let (hour, mut acknowledged, mut arrived) = (Duration::from_secs(3600), Vec::new(), Vec::new());
            for at in 0..20u32 {
                let (key, answer) = (at.to_string(), colour(&at.to_string()));
                let asked = store.request_input(fence(&task), vec![form(&key, "Which?")], hour).await;
                let Ok(asked) = asked else { continue };
                let nth = asked.open_inputs().find(|(_, open, _)| **open == key).unwrap().0;
                if store.respond(&ann(), task.id, vec![(InputKey::Named(key), answer.clone())]).await.is_ok() {
                    acknowledged.push((nth, answer));
                }
                // What was not acknowledged may be there all the same. A repeated acknowledgement deletes nothing new.
                let have = arrived.iter().map(|(nth, _)| *nth).collect();
                if let Ok(kept) = store.collect(fence(&task), have).await {
                    arrived.extend(kept);
                }
            }
            (task, acknowledged, arrived)
        })
    });
    let tasks: Vec<_> = join_all(workers).await.into_iter().map(Result::unwrap).collect();
    over.cancel();
    monkey.await.unwrap();
    let mut total = 0;
    for (task, acknowledged, mut arrived) in tasks {
        let have = arrived.iter().map(|(nth, _)| *nth).collect();
        arrived.extend(store.collect(fence(&task), have).await.unwrap());
        let numbers: HashSet<_> = arrived.iter().map(|(nth, _)| *nth).collect();
        assert_eq!(numbers.len(), arrived.len(), "an answer arrived twice");
        assert!(acknowledged.iter().all(|answer| arrived.contains(answer)), "{acknowledged:?}, not {arrived:?}");
        total += acknowledged.len();
    }
    assert!(total > 20, "only {total} answers were acknowledged");
    let nothing: [&str; 0] = [];
    assert_eq!(world.texts("SELECT task_id FROM audit GROUP BY task_id, version HAVING count(*) > 1").await, nothing);
}
