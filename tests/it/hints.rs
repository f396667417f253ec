//! Hints only make it sooner: the system with them, and with a bus that drops everything.

use std::time::{Duration, Instant};

use longhaul_tests::client::Events;
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::json;

/// With hints the floor is 10 s, so nobody meets it.
const PROMPT: Duration = Duration::from_secs(3);
/// The floor is 2 s without hints; the rest is for the machine.
const FLOOR: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_a_task_is_run_and_its_waiters_are_answered_within_the_floor() {
    let world = World::start(Wiring::Deaf).await;
    let [one, other] = world.clients(ALICE).await;
    let began = Instant::now();
    let id = one.create("hold", json!({})).await;
    assert_eq!(world.gate.started().await, id);
    assert!(began.elapsed() < FLOOR, "{:?}", began.elapsed());
    let mut stream = other.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let began = Instant::now();
    world.gate.open();
    assert_eq!(stream.next().await.unwrap()["result"]["content"][0]["text"], "let go");
    assert!(began.elapsed() < FLOOR, "{:?}", began.elapsed());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_a_cancel_stops_the_work_and_tells_waiters() {
    let world = World::start(Wiring::Deaf).await;
    let [one, other] = world.clients(ALICE).await;
    let id = one.create("hold", json!({})).await;
    world.gate.started().await;
    let mut stream = other.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let began = Instant::now();
    one.ok("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(stream.next().await.unwrap()["error"]["code"], -31499);
    assert!(began.elapsed() < FLOOR, "{:?}", began.elapsed());
    // The worker hears it with the answer to its next heartbeat at the latest.
    assert_eq!(world.gate.stopped().await, id);
    assert!(began.elapsed() < Duration::from_secs(14), "{:?}", began.elapsed());
    world.stop().await;
}

async fn with_hints_every_change_is_heard_at_once(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let prompt = |what: &str, since: Instant| assert!(since.elapsed() < PROMPT, "{what}: {:?}", since.elapsed());
    let mut standalone = Events::new(other.get(None).await);
    assert_eq!(standalone.next_data().await.as_deref(), Some(""));
    for cancelled in [true, false, true] {
        let began = Instant::now();
        let id = one.create("hold", json!({})).await;
        assert_eq!(world.gate.started().await, id);
        prompt("a worker hears of a task", began);
        let mut stream = other.stream("tasks/result", json!({"taskId": id})).await;
        assert_eq!(stream.next_data().await.as_deref(), Some(""));
        let began = Instant::now();
        if cancelled {
            one.ok("tasks/cancel", json!({"taskId": id})).await;
            assert_eq!(world.gate.stopped().await, id);
            prompt("a worker hears of a cancel", began);
        } else {
            world.gate.open();
        }
        assert!(stream.next().await.is_some());
        prompt("a waiter hears of the end", began);
        world.gate.close();
    }
    let began = Instant::now();
    let own = other.create("echo", json!({})).await;
    assert_eq!(standalone.next().await.unwrap()["params"]["taskId"], own.as_str());
    prompt("a session hears of its task", began);
    let began = Instant::now();
    world.add_worker("worker-2").await;
    prompt("gateways hear of a worker", began);
    drop(standalone);
    world.stop().await;
}

crate::both!(with_hints_every_change_is_heard_at_once);
