//! A client says hello, and goodbye.

use std::time::{Duration, Instant};

use longhaul_tests::client::{BOTH, Client, Events, message};
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use reqwest::Method;
use serde_json::{Value, json};

async fn a_hello_tells_the_version_and_what_is_on_offer(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    for (asked, told, tasks) in [
        ("2025-11-25", "2025-11-25", tasks.clone()),
        ("2025-06-18", "2025-06-18", Value::Null),
        ("2024-11-05", "2025-11-25", tasks.clone()),
        ("2026-07-28", "2025-11-25", tasks.clone()),
        ("1999-01-01", "2025-11-25", tasks),
    ] {
        let params = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        // An old session in the header does not matter.
        let result = client.ok("initialize", params).await;
        assert_eq!(result["protocolVersion"], told, "{asked}");
        assert_eq!(result["capabilities"]["tasks"], tasks, "{asked}");
        assert_eq!(result["capabilities"]["tools"], json!({"listChanged": true}));
        assert_eq!(result["serverInfo"]["name"], "longhaul");
    }
    assert_eq!(client.ok("ping", json!({})).await, json!({}));
    assert_eq!(client.error("tasks/destroy", json!({})).await["code"], -32601);
    world.stop().await;
}

async fn an_ended_session_is_unknown_everywhere_and_its_tasks_live_on(wiring: Wiring) {
    let world = World::start(wiring).await;
    let here = world.client(ALICE).await;
    let there = here.at(&world.urls[1]);
    let id = here.create("hold", json!({})).await;
    assert_eq!(there.ok("ping", json!({})).await, json!({}), "any gateway takes it");
    let mut stream = Events::new(there.get(None).await);
    assert_eq!(stream.next_data().await.as_deref(), Some(""));

    let ended = here.request(Method::DELETE).send().await.unwrap();
    assert_eq!(ended.status(), 204);
    let ended = Instant::now();
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(here.post(&ping, BOTH).await.status(), 404, "at once where it was ended");
    while there.post(&ping, BOTH).await.status() != 404 {
        assert!(ended.elapsed() < Duration::from_secs(4), "at the other gateway within 2.5 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(stream.next().await, None, "its stream has ended");
    for client in [&here, &there] {
        assert_eq!(client.get(None).await.status(), 404);
        assert_eq!(client.request(Method::DELETE).send().await.unwrap().status(), 404);
    }

    let later = Client::connect(&world.urls[1], Some(ALICE)).await;
    assert_eq!(later.status(&id).await, "working");
    world.gate.open();
    assert_eq!(later.result(&id).await["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

async fn without_a_session_or_a_credential_nothing_is_done(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "hold", "task": {}}});
    let http = longhaul_tests::client::http();
    let post = |session: Option<&str>, token: Option<&str>| {
        let mut request = http.post(&world.urls[0]).header("Content-Type", "application/json").header("Accept", BOTH);
        if let Some(session) = session {
            request = request.header("Mcp-Session-Id", session);
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.body(call.to_string()).send()
    };
    let session = client.session();
    assert!(session.bytes().all(|byte| byte.is_ascii_graphic()), "{session}");
    for (session, token, status) in [
        (None, Some(ALICE), 400),
        (Some("nonsense"), Some(ALICE), 404),
        (Some(&session[..session.len() - 1]), Some(ALICE), 404),
        (Some(session), Some(BOB), 404),
        (Some(session), Some("wrong"), 401),
        (Some(session), None, 401),
        (None, None, 401),
    ] {
        let response = post(session, token).await.unwrap();
        assert_eq!(response.status(), status, "{session:?} {token:?}");
        assert_eq!(response.headers().contains_key("www-authenticate"), status == 401);
        assert!(message(response).await["error"]["code"].is_i64());
    }
    let other_version = client.request(Method::POST).header("MCP-Protocol-Version", "2026-07-28");
    let other_version = other_version.header("Content-Type", "application/json").header("Accept", BOTH);
    assert_eq!(other_version.body(call.to_string()).send().await.unwrap().status(), 400, "two versions");
    assert_eq!(client.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    world.stop().await;
}

crate::both!(
    a_hello_tells_the_version_and_what_is_on_offer,
    an_ended_session_is_unknown_everywhere_and_its_tasks_live_on,
    without_a_session_or_a_credential_nothing_is_done,
);
