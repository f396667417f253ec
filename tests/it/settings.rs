//! What operators can set.

use longhaul_tests::client::{BOTH, Client};
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::{Value, json};

async fn no_tasks(world: &World) {
    for client in world.clients(ALICE).await {
        let hello =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        assert_eq!(client.ok("initialize", hello).await["capabilities"].get("tasks"), None);
        for method in ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"] {
            let error = client.error(method, json!({"taskId": "aaaaaaaaaaaaaaaaaaaaaaaaaa"})).await;
            assert_eq!(error["code"], -32601, "{method}");
        }
        for task in [json!({}), json!({"ttl": "nonsense"}), json!(7)] {
            let params = json!({"name": "echo", "arguments": {"n": 1}, "task": task});
            let frame = client.frame("tools/call", &params);
            let (_, _, body) = client.exchange(&frame.to_string(), BOTH).await;
            let answer: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(answer["result"]["structuredContent"], json!({"n": 1}), "the wish is ignored: {body}");
        }
        let tools = client.ok("tools/list", json!({})).await;
        assert!(!tools.to_string().contains("execution") && !tools.to_string().contains("task-only"), "{tools}");
    }
    assert_eq!(world.database().await.audit().await, []);
}

async fn where_tasks_are_off_there_is_no_word_of_them(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_tasks_enabled = false).await;
    no_tasks(&world).await;
    world.stop().await;
    let world = World::start_with(wiring, |config| config.mcp_tasks_legacy_enabled = false).await;
    no_tasks(&world).await;
    world.stop().await;
}

async fn the_poll_interval_is_told_with_every_task(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_poll_interval_ms = 250).await;
    let client = world.client(ALICE).await;
    let created = client.ok("tools/call", json!({"name": "hold", "task": {}})).await;
    let id = created["task"]["taskId"].as_str().unwrap();
    assert_eq!(created["task"]["pollInterval"], 250);
    assert_eq!(client.ok("tasks/get", json!({"taskId": id})).await["pollInterval"], 250);
    assert_eq!(client.ok("tasks/list", json!({})).await["tasks"][0]["pollInterval"], 250);
    let ended = client.ok("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(ended.get("pollInterval"), None, "there is nothing more to ask for");
    world.stop().await;
}

async fn only_listed_hosts_and_origins_are_let_in(wiring: Wiring) {
    let world = World::start_with(wiring, |config| {
        config.gateway.allowed_hosts = vec!["mcp.example".into()];
        config.gateway.allowed_origins = vec!["https://app.example".into()];
    })
    .await;
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let http = longhaul_tests::client::http();
    for (host, origin, status) in [
        ("mcp.example", None, 200),
        ("mcp.example", Some("https://app.example"), 200),
        ("mcp.example", Some("https://evil.example"), 403),
        ("mcp.example", Some("null"), 403),
        ("evil.example", None, 403),
        ("evil.example", Some("https://app.example"), 403),
    ] {
        for method in [reqwest::Method::POST, reqwest::Method::GET, reqwest::Method::DELETE] {
            let mut request = http.request(method.clone(), &world.urls[0]).header("Host", host).bearer_auth(ALICE);
            if let Some(origin) = origin {
                request = request.header("Origin", origin);
            }
            let request = request.header("Accept", BOTH).header("Content-Type", "application/json");
            let answer = request.body(hello.to_string()).send().await.unwrap().status().as_u16();
            let expected = if status == 200 && method != reqwest::Method::POST { 400 } else { status };
            assert_eq!(answer, expected, "{method} {host} {origin:?}");
        }
    }
    world.stop().await;
}

async fn a_larger_body_than_allowed_is_refused(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.gateway.max_body_bytes = 10_000).await;
    let client = Client::connect(&world.urls[0], Some(ALICE)).await;
    let body = |bytes: usize| {
        let frame = |text: &str| {
            let params = json!({"name": "echo", "arguments": {"text": text}});
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
        };
        frame(&"x".repeat(bytes - frame("").len()))
    };
    assert_eq!(client.exchange(&body(10_000), BOTH).await.0, 200);
    assert_eq!(client.exchange(&body(10_001), BOTH).await.0, 413);
    assert_eq!(client.ok("ping", json!({})).await, json!({}));
    world.stop().await;
}

crate::both!(
    where_tasks_are_off_there_is_no_word_of_them,
    the_poll_interval_is_told_with_every_task,
    only_listed_hosts_and_origins_are_let_in,
    a_larger_body_than_allowed_is_refused,
);
