//! What is recorded of it all.

use longhaul_tests::capture;
use longhaul_tests::client::{Client, message};
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use serde_json::{Value, json};

/// Puts the canary wherever a client or a tool can put words of its own.
async fn sing(world: &World, client: &Client) -> Vec<(String, &'static str)> {
    let canary = json!({"text": "canary-in-a-payload"});
    let mut ended = Vec::new();
    for (tool, arguments, event) in [
        ("echo", canary.clone(), "mcp.task.completed"),
        ("fail", json!({"message": "canary-in-a-tool-error"}), "mcp.task.failed"),
        ("fail", json!({"message": "canary-in-an-error", "code": -32000, "data": "canary"}), "mcp.task.failed"),
        ("panic", canary.clone(), "mcp.task.failed"),
        ("countdown", json!({"seconds": "canary"}), "mcp.task.failed"),
    ] {
        let id = client.create(tool, arguments.clone()).await;
        client.result(&id).await;
        ended.push((id, event));
        client
            .ask("tools/call", json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "canary"}}))
            .await;
    }
    let id = client.create("hold", canary.clone()).await;
    world.gate.started().await;
    client.ok("tasks/cancel", json!({"taskId": id})).await;
    client.error("tasks/cancel", json!({"taskId": id})).await;
    ended.push((id, "mcp.task.cancelled"));
    // What is refused is not recorded either.
    client.error("tools/call", json!({"name": "canary-tool", "arguments": canary, "task": {}})).await;
    client.error("tasks/get", json!({"taskId": "canary\r\ncanary"})).await;
    client.error("tasks/list", json!({"cursor": "canary"})).await;
    client.error("canary/method", json!({})).await;
    client.get(Some("canary")).await;
    client.exchange(r#"{"canary": canary}"#, "application/json").await;
    let refused = client.with_token("key-of-nobody").post(&json!({"canary": 1}), "application/json").await;
    assert_eq!(message(refused).await["error"]["code"], -32600);
    ended
}

async fn the_audit_log_has_one_row_for_each_transition_and_no_payload(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let ended = sing(&world, &client).await;
    let audit = world.database().await.audit().await;
    assert_eq!(audit.len(), 2 * ended.len());
    for (id, event) in ended {
        let of_it: Vec<_> = audit.iter().filter(|row| row.task == id).collect();
        assert_eq!(of_it.iter().map(|row| &*row.event).collect::<Vec<_>>(), ["mcp.task.created", event]);
        assert!(of_it[0].version < of_it[1].version, "{of_it:?}");
        assert!(of_it.iter().all(|row| row.text.contains("acme agent:5:alice")), "{of_it:?}");
    }
    assert!(!audit.iter().any(|row| row.text.contains("canary")), "{audit:?}");
    world.stop().await;
}

/// The lines of the whole process are looked at, whatever runs beside this test.
async fn no_log_line_and_no_span_has_a_payload_or_a_credential(wiring: Wiring) {
    capture::start();
    // Its last lines are meant to be found, but not by the other wiring.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let world = World::start(wiring).await;
    for token in [ALICE, BOB] {
        sing(&world, &world.client(token).await).await;
    }
    world.stop().await;
    assert_eq!(capture::leaks(), [""; 0]);
    tracing::info!("a canary in a line");
    drop(tracing::info_span!("meant to be found", what = "a canary in a span").entered());
    let found = capture::leaks();
    assert_eq!(found.len(), 2, "lines and spans are really looked at: {found:?}");
}

async fn a_run_belongs_to_the_trace_of_its_call(wiring: Wiring) {
    capture::start();
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let text = |result: &Value| result["content"][0]["text"].as_str().unwrap().to_owned();
    for (trace, params) in
        [("a".repeat(32), json!({"name": "trace"})), ("b".repeat(32), json!({"name": "trace", "task": {}}))]
    {
        let span = "c".repeat(16);
        let mut params = params.clone();
        params["_meta"] = json!({"traceparent": format!("00-{trace}-{span}-01")});
        let result = client.ok("tools/call", params).await;
        let ran = match result["task"]["taskId"].as_str() {
            Some(id) => text(&client.result(id).await["result"]),
            None => text(&result),
        };
        assert!(ran.starts_with(&format!("00-{trace}-")), "{ran}");
        assert!(!ran.contains(&span), "the run has a span of its own: {ran}");
    }
    let audit = world.database().await.audit().await;
    assert!(audit.iter().all(|row| row.text.contains(&"b".repeat(32))), "{audit:?}");
    world.stop().await;
}

crate::both!(
    the_audit_log_has_one_row_for_each_transition_and_no_payload,
    no_log_line_and_no_span_has_a_payload_or_a_credential,
    a_run_belongs_to_the_trace_of_its_call,
);
