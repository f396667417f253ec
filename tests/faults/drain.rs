//! SIGTERM: roles end by themselves, and nobody is hurt.

use std::time::{Duration, Instant};

use longhaul_tests::client::Events;
use longhaul_tests::processes::Site;
use serde_json::json;

use crate::taskstore::{assert_all_run, create_while};
use crate::{LOOK, MARGIN, assert_counted, assert_interrupted, countdown, page, running, waiting};

/// `drain_deadline_s` unless set.
const DEADLINE: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_told_to_end_answers_its_calls_and_sends_its_streams_elsewhere() {
    let mut site = Site::shared().await;
    site.set("DRAIN_NOTICE_MS", "1000");
    site.up(&["taskstore-1", "runner-1", "gateway-1", "gateway-2"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 6.0).await;
    let mut stream = waiting(&client, &id).await;
    let ready = site.management("gateway-1", "/readyz");
    assert_eq!(page(&ready).await.0, 200);

    let call = client.ask("tools/call", json!({"name": "countdown", "arguments": {"seconds": 3}}));
    let term = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let told = Instant::now();
        site.role("gateway-1").signal("TERM");
        while page(&ready).await.0 != 503 {
            assert!(told.elapsed() < Duration::from_millis(800), "/readyz does not fail at once");
            tokio::time::sleep(LOOK).await;
        }
        client.ok("ping", json!({})).await;
        assert_eq!(client.status(&id).await, "working", "it serves until balancers have seen it");
        // No more of the stream than its end.
        assert_eq!(stream.next().await, None);
        assert!(!stream.broke, "the stream was ended, not cut");
        assert!(stream.retry.is_some());
        let other = client.at(&site.url("gateway-2"));
        let mut resumed = Events::new(other.get(stream.last_id.as_deref()).await);
        assert_counted(&resumed.next().await.unwrap());
        told
    };
    let (answer, told) = tokio::join!(call, term);
    assert_counted(&answer);
    assert_eq!(site.role("gateway-1").code(DEADLINE).await, 0);
    assert!(told.elapsed() < Duration::from_secs(8) + MARGIN, "{:?}: nothing held it up", told.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_ends_a_role_at_once_with_code_1() {
    let mut site = Site::shared().await;
    site.set("DRAIN_NOTICE_MS", "20000");
    site.up(&["taskstore-1"]).await;
    let ready = site.management("taskstore-1", "/readyz");
    site.role("taskstore-1").signal("TERM");
    while page(&ready).await.0 != 503 {
        tokio::time::sleep(LOOK).await;
    }
    site.role("taskstore-1").signal("TERM");
    assert_eq!(site.role("taskstore-1").code(MARGIN).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_takes_too_long_ends_at_its_deadline() {
    let mut site = Site::shared().await;
    site.set("DRAIN_DEADLINE_S", "2");
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let call = client.ask("tools/call", json!({"name": "countdown", "arguments": {"seconds": 600}}));
    let term = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        site.role("gateway-1").signal("TERM");
        site.role("gateway-1").code(Duration::from_secs(2) + MARGIN).await
    };
    let (answer, code) = tokio::join!(call, term);
    assert_eq!(answer["error"]["code"], -32603, "its client is told: {answer}");
    assert_eq!(code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_is_told_to_end_finishes_what_it_has_and_takes_nothing_more() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 4.0).await;
    running(&client, &id).await;
    let call = client.ask("tools/call", json!({"name": "countdown", "arguments": {"seconds": 4}}));
    let term = async {
        // The call is on its way to the only worker.
        tokio::time::sleep(Duration::from_millis(300)).await;
        site.start("runner-2").await;
        let ready = site.management("runner-1", "/readyz");
        site.role("runner-1").signal("TERM");
        let told = Instant::now();
        while page(&ready).await.0 != 503 {
            assert!(told.elapsed() < MARGIN, "/readyz does not fail at once");
            tokio::time::sleep(LOOK).await;
        }
        let next = countdown(&client, 0.1).await;
        let begun = Instant::now();
        assert_counted(&client.ask("tasks/result", json!({"taskId": next})).await);
        assert!(begun.elapsed() < MARGIN, "{:?}: another worker takes it", begun.elapsed());
        assert_eq!(site.role("runner-1").code(Duration::from_secs(4) + MARGIN).await, 0);
    };
    let (answer, ()) = tokio::join!(call, term);
    assert_counted(&answer);
    assert_counted(&client.ask("tasks/result", json!({"taskId": id})).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_hands_back_what_exceeds_its_grace() {
    let mut site = Site::shared().await;
    // So that nothing else can have interrupted it.
    site.set("TASK_HEARTBEAT_MS", "10000");
    site.set("RUNNER__DRAIN_TIMEOUT_S", "1");
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 600.0).await;
    let mut stream = waiting(&client, &id).await;
    running(&client, &id).await;
    site.role("runner-1").signal("TERM");
    let told = Instant::now();
    let answer = stream.next().await.unwrap();
    assert_interrupted(&answer);
    assert!(told.elapsed() < Duration::from_secs(1) + MARGIN, "{:?}", told.elapsed());
    assert_eq!(client.status(&id).await, "failed");
    assert_eq!(site.role("runner-1").code(MARGIN).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_stores_restarted_one_after_the_other_fail_no_request() {
    let mut site = Site::shared().await;
    site.set("DRAIN_NOTICE_MS", "200");
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"]).await;
    let clients = [site.client("gateway-1").await, site.client("gateway-2").await];
    let held = countdown(&clients[0], 6.0).await;
    let mut stream = waiting(&clients[1], &held).await;
    running(&clients[0], &held).await;
    let (acknowledged, missed) = create_while(&clients, async {
        for role in ["taskstore-1", "taskstore-2"] {
            site.role(role).signal("TERM");
            assert_eq!(site.role(role).code(Duration::from_secs(5)).await, 0);
            site.start(role).await;
        }
    })
    .await;
    let missed: Vec<_> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{missed:?}");
    assert_all_run(&clients[0], &acknowledged).await;
    assert_counted(&stream.next().await.unwrap());
}
