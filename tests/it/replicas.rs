//! One of several task-stores goes, and nobody notices.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use longhaul_tests::client::{BOTH, Client};
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::json;

/// A unary call's deadline, and the machine's share.
const DEADLINE: Duration = Duration::from_secs(10);

/// Each method once, in time.
async fn everything_works(one: &Client, other: &Client) {
    let within = async |what: &str, method: &str, params| {
        let began = Instant::now();
        let answer = one.ok(method, params).await;
        assert!(began.elapsed() < DEADLINE, "{what}: {:?}", began.elapsed());
        answer
    };
    let created = within("create", "tools/call", json!({"name": "echo", "task": {}})).await;
    let id = created["task"]["taskId"].as_str().unwrap();
    assert!(other.result(id).await.get("result").is_some());
    assert_eq!(within("get", "tasks/get", json!({"taskId": id})).await["status"], "completed");
    assert_eq!(within("list", "tasks/list", json!({})).await["tasks"][0]["taskId"], id);
    let held = one.create("hold", json!({})).await;
    assert_eq!(within("cancel", "tasks/cancel", json!({"taskId": held})).await["status"], "cancelled");
    within("call", "tools/call", json!({"name": "echo"})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_store_that_dies_is_replaced_by_the_other_one() {
    for dying in ["store-1", "store-2"] {
        let world = World::start(Wiring::Cluster).await;
        let [one, other] = world.clients(ALICE).await;
        let id = one.create("hold", json!({})).await;
        world.gate.started().await;
        let mut stream = other.stream("tasks/result", json!({"taskId": id})).await;
        assert_eq!(stream.next_data().await.as_deref(), Some(""));
        world.crash(dying).await;
        everything_works(&one, &other).await;
        world.gate.open();
        assert_eq!(stream.next().await.unwrap()["result"]["content"][0]["text"], "let go");
        world.stop().await;
    }
}

/// What was acknowledged is there; a client of a store that is told to end sees no error at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_store_that_drains_fails_no_request() {
    let world = World::start_with(Wiring::Cluster, |config| config.mcp_task_max_open = 0).await;
    let clients = world.clients(ALICE).await;
    let ended = std::cell::Cell::new(false);
    let drain = async {
        world.end("store-1").await;
        ended.set(true);
    };
    let work = async {
        let (mut acknowledged, mut after) = (HashSet::new(), 0);
        while after < 20 {
            let client = &clients[acknowledged.len() % 2];
            let frame = client.frame("tools/call", &json!({"name": "echo", "task": {}}));
            let (status, _, body) = client.exchange(&frame.to_string(), BOTH).await;
            assert_eq!(status, 200, "{body}");
            let created: serde_json::Value = serde_json::from_str(&body).unwrap();
            let id = created["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
            client.ok("tasks/get", json!({"taskId": id})).await;
            acknowledged.insert(id);
            after += u32::from(ended.get());
        }
        acknowledged
    };
    let ((), acknowledged) = tokio::join!(drain, work);
    for id in &acknowledged {
        assert!(clients[0].result(id).await.get("result").is_some());
    }
    world.stop().await;
}
