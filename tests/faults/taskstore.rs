//! A task-store dies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longhaul_tests::client::{Client, Miss, PATIENCE};
use longhaul_tests::processes::Site;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{LOOK, MARGIN, assert_counted, assert_interrupted, countdown, running, waiting};

/// Clients that create at a time.
const CLIENTS: usize = 4;
/// How many tasks they create before and after the blow, at least.
const SOME: usize = 24;

/// Creates going on.
#[derive(Default)]
pub(crate) struct Creating {
    acknowledged: AtomicUsize,
    stop: CancellationToken,
}

impl Creating {
    /// Waits until some more were created.
    pub(crate) async fn some(&self) {
        let wanted = self.acknowledged.load(Ordering::Relaxed) + SOME;
        let begun = Instant::now();
        while self.acknowledged.load(Ordering::Relaxed) < wanted {
            assert!(begun.elapsed() < PATIENCE, "tasks are no longer created");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The request that each client waits for is its last.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

/// Creates one task after the other; gives those that were acknowledged, and what went wrong.
pub(crate) async fn create(client: &Client, creating: &Creating) -> (Vec<String>, Vec<Miss>) {
    let (mut acknowledged, mut missed) = (Vec::new(), Vec::new());
    while !creating.stop.is_cancelled() {
        let call = json!({"name": "echo", "arguments": {"at": acknowledged.len()}, "task": {}});
        match client.attempt("tools/call", call).await {
            Ok(answer) => match answer["result"]["task"]["taskId"].as_str() {
                Some(id) => {
                    acknowledged.push(id.to_owned());
                    creating.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                None => panic!("{answer}"),
            },
            Err(miss) => {
                if let Miss::Refused { status, retry_after } = &miss {
                    assert_eq!(*status, 503);
                    assert!(retry_after.is_some());
                }
                missed.push(miss);
                // What `Retry-After` asks for is more than a test has time for.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    (acknowledged, missed)
}

/// Creates with several clients while something happens; gives what was acknowledged, and each client's failures.
pub(crate) async fn create_while<F: Future<Output = ()>>(
    clients: &[Client],
    happens: F,
) -> (Vec<String>, Vec<Vec<Miss>>) {
    let creating = Creating::default();
    let creates = futures::future::join_all(clients.iter().map(|client| create(client, &creating)));
    let meanwhile = async {
        creating.some().await;
        happens.await;
        creating.some().await;
        creating.stop();
    };
    let (created, ()) = tokio::join!(creates, meanwhile);
    let (mut acknowledged, mut missed) = (Vec::new(), Vec::new());
    for (ids, misses) in created {
        acknowledged.extend(ids);
        missed.push(misses);
    }
    (acknowledged, missed)
}

/// Panics unless each of the tasks is there, and all of them end well.
pub(crate) async fn assert_all_run(client: &Client, ids: &[String]) {
    assert!(ids.len() >= 2 * SOME, "only {} were created", ids.len());
    for id in ids {
        let answer = client.ask("tasks/result", json!({"taskId": id})).await;
        assert!(answer["result"]["structuredContent"]["at"].is_u64(), "{answer}");
    }
}

async fn clients(site: &mut Site, gateways: &[&str]) -> Vec<Client> {
    let mut clients = Vec::new();
    for at in 0..CLIENTS {
        clients.push(site.client(gateways[at % gateways.len()]).await);
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_two_task_stores_clients_do_not_notice_that_one_is_killed() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"]).await;
    let clients = clients(&mut site, &["gateway-1", "gateway-2"]).await;
    let held = countdown(&clients[0], 4.0).await;
    let mut stream = waiting(&clients[1], &held).await;
    running(&clients[0], &held).await;
    let (acknowledged, missed) = create_while(&clients, async { site.kill("taskstore-1") }).await;
    let missed: Vec<_> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{missed:?}");
    assert_all_run(&clients[0], &acknowledged).await;
    assert_counted(&stream.next().await.unwrap());

    site.start("taskstore-1").await;
    site.kill("taskstore-2");
    assert_all_run(&clients[1], &acknowledged).await;
    let next = countdown(&clients[0], 0.1).await;
    assert_counted(&clients[1].ask("tasks/result", json!({"taskId": next})).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_task_store_comes_back_with_everything_that_it_acknowledged() {
    let mut site = Site::shared().await;
    // A run outlives an outage shorter than what its worker bears.
    site.set("TASK_HEARTBEAT_MS", "4000");
    let only = format!("[http://{}]", site.address("taskstore-1"));
    site.set("TASKSTORE_URLS", only);
    site.up(&["taskstore-1", "runner-1", "gateway-1", "gateway-2"]).await;
    let clients = clients(&mut site, &["gateway-1", "gateway-2"]).await;
    let held = countdown(&clients[0], 5.0).await;
    let mut stream = waiting(&clients[1], &held).await;
    running(&clients[0], &held).await;
    let (acknowledged, missed) = create_while(&clients, async {
        site.kill("taskstore-1");
        tokio::time::sleep(Duration::from_millis(500)).await;
        site.start("taskstore-1").await;
    })
    .await;
    for missed in missed {
        assert!(missed.len() <= 1, "{missed:?}");
    }
    assert_all_run(&clients[0], &acknowledged).await;
    assert_counted(&stream.next().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_task_store_requests_are_told_to_come_back_and_streams_go_on_when_it_is_there() {
    let mut site = Site::shared().await;
    site.set("TASK_HEARTBEAT_MS", "10000");
    let only = format!("[http://{}]", site.address("taskstore-1"));
    site.set("TASKSTORE_URLS", only);
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 3.0).await;
    let mut stream = waiting(&client, &id).await;
    running(&client, &id).await;
    site.kill("taskstore-1");
    let begun = Instant::now();
    let miss = client.attempt("tasks/get", json!({"taskId": id})).await.unwrap_err();
    assert!(matches!(&miss, Miss::Refused { status: 503, retry_after: Some(_) }), "{miss:?}");
    assert!(begun.elapsed() < Duration::from_secs(8) + MARGIN, "{:?}", begun.elapsed());
    let echo = client.ok("tools/call", json!({"name": "echo", "arguments": {"x": 1}})).await;
    assert_eq!(echo["structuredContent"]["x"], 1, "a call that is no task needs no task-store");
    site.start("taskstore-1").await;
    assert_counted(&stream.next().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_killed_at_once_comes_back_with_every_task() {
    let mut site = Site::shared().await;
    let roles = ["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"];
    site.up(&roles).await;
    let clients = clients(&mut site, &["gateway-1", "gateway-2"]).await;
    let held = countdown(&clients[0], 600.0).await;
    running(&clients[0], &held).await;
    let creating = Creating::default();
    let creates = futures::future::join_all(clients.iter().map(|client| create(client, &creating)));
    let kill = async {
        creating.some().await;
        site.kill_all();
        creating.stop();
    };
    let (created, ()) = tokio::join!(creates, kill);
    let acknowledged: Vec<_> = created.into_iter().flat_map(|(ids, _)| ids).collect();
    for role in roles {
        site.spawn(role, &[]);
    }
    for role in roles {
        site.ready(role).await;
    }
    assert_interrupted(&clients[1].ask("tasks/result", json!({"taskId": held})).await);
    for id in acknowledged {
        // Those that a worker had in hand are interrupted, the others run now.
        let answer = clients[0].ask("tasks/result", json!({"taskId": id})).await;
        if answer["error"].is_object() {
            assert_interrupted(&answer);
        } else {
            assert!(answer["result"]["structuredContent"]["at"].is_u64(), "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_task_store_delays_requests_and_interrupts_nothing() {
    let mut site = Site::shared().await;
    site.set("TASK_HEARTBEAT_MS", "10000");
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 13.0).await;
    let mut stream = waiting(&client, &id).await;
    running(&client, &id).await;
    site.role("taskstore-1").signal("STOP");
    for _ in 0..4 {
        let begun = Instant::now();
        assert_eq!(client.status(&id).await, "working");
        // The deadline of a request between roles.
        assert!(begun.elapsed() < Duration::from_secs(8) + MARGIN, "{:?}", begun.elapsed());
    }
    assert_counted(&stream.next().await.unwrap());
    site.role("taskstore-1").signal("CONT");
    let next = countdown(&client, 0.1).await;
    assert_counted(&client.ask("tasks/result", json!({"taskId": next})).await);
}
