//! Tasks are kept for so long, and no longer.

use std::time::Duration;

use longhaul_tests::client::{BOTH, message};
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);
const EXPIRED: &str = "Failed to retrieve task: Task has expired";

async fn a_time_to_live_is_a_wish_and_the_granted_one_is_told(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let hour = json!(3_600_000);
    let day = json!(86_400_000);
    for (wish, granted) in [
        ("{}", &hour),
        (r#"{"ttl":0}"#, &hour),
        (r#"{"ttl":60000}"#, &hour),
        (r#"{"ttl":7200000}"#, &json!(7_200_000)),
        (r#"{"ttl":86400001}"#, &day),
        (r#"{"ttl":1e18}"#, &day),
        (r#"{"ttl":123456789012345678901234567890}"#, &day),
        (r#"{"ttl":null}"#, &day),
    ] {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","task":{wish}}}}}"#);
        let (status, _, body) = client.exchange(&body, BOTH).await;
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &answer["result"]["task"]["ttl"]), (200, granted), "{wish}: {body}");
        let told = client.ok("tasks/get", json!({"taskId": answer["result"]["task"]["taskId"]})).await;
        assert_eq!(told["ttl"], *granted);
    }
    for wish in [json!(-1), json!("x"), json!("60000"), json!(1.5), json!(true), json!([1])] {
        let error = client.error("tools/call", json!({"name": "echo", "task": {"ttl": wish}})).await;
        assert_eq!(error["code"], -32602, "{wish}");
    }
    world.stop().await;
}

async fn without_a_cap_a_task_may_be_kept_for_ever(wiring: Wiring) {
    let world = World::start_with(wiring, |config| {
        config.mcp_task_max_ttl_ms = 0;
        config.mcp_task_default_ttl_ms = 0;
    })
    .await;
    let client = world.client(ALICE).await;
    let id = client.create("echo", json!({})).await;
    client.result(&id).await;
    world.advance(1000 * HOUR).await;
    let task = client.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((task["status"].as_str(), task.get("ttl")), (Some("completed"), Some(&Value::Null)));
    world.stop().await;
}

async fn an_expired_task_is_gone_and_for_an_hour_its_owner_hears_so(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [alice, elsewhere] = world.clients(ALICE).await;
    let others = [world.client(BOB).await, world.client(EVE).await];
    let id = alice.create("echo", json!({"text": "mine"})).await;
    alice.result(&id).await;
    let methods = ["tasks/get", "tasks/result", "tasks/cancel"];
    let all_hear = async |expected: &str| {
        for method in methods {
            for client in [&alice, &elsewhere] {
                let error = client.error(method, json!({"taskId": id})).await;
                assert_eq!(error, json!({"code": -32602, "message": expected}), "{method}");
            }
            for client in &others {
                let error = client.error(method, json!({"taskId": id})).await;
                assert_eq!(error, json!({"code": -32602, "message": "Task not found"}), "{method}");
            }
        }
        assert_eq!(alice.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    };
    world.advance(HOUR - Duration::from_secs(60)).await;
    assert_eq!(alice.status(&id).await, "completed");
    world.advance(Duration::from_secs(61)).await;
    all_hear(EXPIRED).await;
    world.purge().await;
    all_hear(EXPIRED).await;
    world.advance(HOUR).await;
    world.purge().await;
    all_hear("Task not found").await;
    world.stop().await;
}

async fn running_out_wakes_those_who_wait_and_stops_the_work(wiring: Wiring) {
    // Less than a lease, or the worker would be taken for dead as well.
    let world = World::start_with(wiring, |config| config.mcp_task_min_ttl_ms = 1000).await;
    let [one, other] = world.clients(ALICE).await;
    let created = one.ok("tools/call", json!({"name": "hold", "task": {"ttl": 10_000}})).await;
    assert_eq!(created["task"]["ttl"], 10_000);
    let id = created["task"]["taskId"].as_str().unwrap();
    assert_eq!(world.gate.started().await, id);
    let mut streams = Vec::new();
    for client in [&one, &other] {
        let mut stream = client.stream("tasks/result", json!({"taskId": id})).await;
        assert_eq!(stream.next_data().await.as_deref(), Some(""));
        streams.push(stream);
    }
    world.advance(Duration::from_secs(11)).await;
    for stream in &mut streams {
        let answer = stream.next().await.unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message == EXPIRED || message.contains("time to live"), "{answer}");
    }
    assert_eq!(world.gate.stopped().await, id, "the work was told to stop");
    assert_eq!(one.error("tasks/get", json!({"taskId": id})).await["message"], EXPIRED);
    assert_eq!(
        message(one.post(&one.frame("tasks/result", &json!({"taskId": id})), BOTH).await).await["error"]["message"],
        EXPIRED
    );
    let events: Vec<_> = world.database().await.audit().await.into_iter().map(|row| row.event).collect();
    assert_eq!(events, ["mcp.task.created", "mcp.task.failed"]);
    world.stop().await;
}

crate::both!(
    a_time_to_live_is_a_wish_and_the_granted_one_is_told,
    without_a_cap_a_task_may_be_kept_for_ever,
    an_expired_task_is_gone_and_for_an_hour_its_owner_hears_so,
    running_out_wakes_those_who_wait_and_stops_the_work,
);
