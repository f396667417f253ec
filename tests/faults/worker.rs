//! A worker dies, freezes, or comes back.

use std::time::{Duration, Instant};

use longhaul_tests::processes::Site;
use serde_json::json;

use crate::{LOOK, MARGIN, assert_counted, assert_interrupted, countdown, reaches, running, waiting};

/// 33 s, ten times as fast.
const INTERRUPTED_WITHIN: Duration = Duration::from_millis(3300);
/// What an interrupted one is allowed that comes back under its name.
const BACK_WITHIN: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_workers_task_is_interrupted_and_its_waiter_hears_it() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 600.0).await;
    let mut stream = waiting(&client.at(&site.url("gateway-2")), &id).await;
    running(&client, &id).await;

    let killed = Instant::now();
    site.kill("runner-1");
    let answer = stream.next().await.unwrap();
    let heard = killed.elapsed();
    assert_interrupted(&answer);
    assert!(heard < INTERRUPTED_WITHIN + MARGIN, "{heard:?}");
    assert!(heard > Duration::from_millis(1500), "{heard:?}: its lease had not run out");
    assert_eq!(client.status(&id).await, "failed");
    assert_interrupted(&client.ask("tasks/result", json!({"taskId": id})).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_under_its_name_interrupts_what_it_held_at_once() {
    let mut site = Site::shared().await;
    // So that nothing else can have interrupted it.
    site.set("TASK_HEARTBEAT_MS", "10000");
    site.set("RUNNER__NAME", "the-worker");
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 600.0).await;
    let mut stream = waiting(&client, &id).await;
    running(&client, &id).await;

    site.kill("runner-1");
    let back = Instant::now();
    site.spawn("runner-1", &[]);
    let answer = stream.next().await.unwrap();
    let heard = back.elapsed();
    assert_interrupted(&answer);
    assert!(heard < BACK_WITHIN + MARGIN, "{heard:?}");
    let next = countdown(&client, 0.1).await;
    reaches(&client, &next, "completed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_stops_the_run_that_it_lost_and_works_on() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 2.0).await;
    running(&client, &id).await;

    site.role("runner-1").signal("STOP");
    reaches(&client, &id, "failed").await;
    site.role("runner-1").signal("CONT");
    // Its countdown is over by now, or will be while it runs these.
    for _ in 0..2 {
        let next = countdown(&client, 1.5).await;
        assert_counted(&client.ask("tasks/result", json!({"taskId": next})).await);
    }
    assert_eq!(client.status(&id).await, "failed");
    assert_interrupted(&client.ask("tasks/result", json!({"taskId": id})).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_loses_its_worker_is_answered_and_the_next_one_goes_to_another() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let call = client.ask("tools/call", json!({"name": "countdown", "arguments": {"seconds": 600}}));
    let kill = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        site.spawn("runner-2", &[]);
        site.ready("runner-2").await;
        site.kill("runner-1");
        Instant::now()
    };
    let (answer, killed) = tokio::join!(call, kill);
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("worker was lost"), "{answer}");
    assert!(killed.elapsed() < MARGIN, "{:?}", killed.elapsed());

    // The gateway hears of the other one's tools, and sees that the first is gone.
    for round in 0..100 {
        let answer = client.attempt("tools/call", json!({"name": "echo", "arguments": {"round": round}})).await;
        if answer.is_ok_and(|answer| answer["result"]["structuredContent"]["round"] == round) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("no call reaches the worker that lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_has_waited_long_for_a_task_runs_it_to_its_end() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    // Longer than a lease, and than a worker goes on without a heartbeat.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let id = countdown(&client, 1.0).await;
    assert_counted(&client.ask("tasks/result", json!({"taskId": id})).await);
}
