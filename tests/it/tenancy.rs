//! What belongs to somebody else does not exist.

use longhaul_tests::client::{BOTH, Client, Events, JSON};
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use reqwest::Method;
use serde_json::{Value, json};

/// An id that no task has, of the right shape.
const NOBODYS: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";

/// What a response shows, but for the moment.
async fn shown(response: reqwest::Response) -> (u16, Vec<(String, String)>, String) {
    let headers = response.headers().iter().filter(|(name, _)| *name != "date");
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    (response.status().as_u16(), headers, response.text().await.unwrap())
}

async fn ask(client: &Client, method: &str, params: Value, accept: &str) -> (u16, Vec<(String, String)>, String) {
    shown(client.post(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}), accept).await).await
}

async fn a_foreign_task_is_answered_byte_for_byte_like_one_that_never_was(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let held = alice.create("hold", json!({"text": "alice's own"})).await;
    world.gate.started().await;
    let ended = alice.create("echo", json!({"text": "alice's own"})).await;
    alice.result(&ended).await;
    for token in [BOB, EVE] {
        for other in world.clients(token).await {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                for accept in [BOTH, JSON] {
                    let unknown = ask(&other, method, json!({"taskId": NOBODYS}), accept).await;
                    assert!(unknown.2.contains("Task not found"), "{unknown:?}");
                    for id in [&held, &ended] {
                        assert_eq!(ask(&other, method, json!({"taskId": id}), accept).await, unknown, "{method}");
                    }
                    let misshapen = ask(&other, method, json!({"taskId": "x' OR 1=1; --\r\n*"}), accept).await;
                    assert_eq!(misshapen, unknown, "{method}");
                }
            }
            assert_eq!(other.ok("tasks/list", json!({})).await, json!({"tasks": []}));
        }
    }
    assert_eq!(alice.status(&held).await, "working", "nobody has cancelled it");
    world.stop().await;
}

async fn a_foreign_session_is_like_one_that_never_was(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let id = alice.create("hold", json!({})).await;
    for token in [BOB, EVE] {
        let own = world.client(token).await;
        let with = |session: &str, method: Method| {
            let request = longhaul_tests::client::http().request(method, &world.urls[1]).bearer_auth(token);
            request.header("Mcp-Session-Id", session).header("Accept", BOTH).header("Content-Type", JSON)
        };
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let send = async |session: &str| {
                let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/get", "params": {"taskId": id}});
                shown(with(session, method.clone()).body(body.to_string()).send().await.unwrap()).await
            };
            let unknown = send("nonsense").await;
            assert_eq!(unknown.0, 404, "{method}");
            assert_eq!(send(alice.session()).await, unknown, "{method}");
        }
        assert_eq!(own.ok("ping", json!({})).await, json!({}));
    }
    assert_eq!(alice.status(&id).await, "working", "her session is still there");
    world.stop().await;
}

async fn a_foreign_stream_and_cursor_are_like_ones_that_never_were(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_max_open = 0).await;
    let alice = world.client(ALICE).await;
    let id = alice.create("hold", json!({})).await;
    for _ in 0..50 {
        alice.create("echo", json!({})).await;
    }
    let cursor = alice.ok("tasks/list", json!({})).await["nextCursor"].clone();
    let mut stream = alice.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let mut standalone = Events::new(alice.get(None).await);
    assert_eq!(standalone.next_data().await.as_deref(), Some(""));
    for token in [BOB, EVE] {
        let other = world.client(token).await;
        let unknown = shown(other.get(Some("nonsense")).await).await;
        for events in [&stream, &standalone] {
            assert_eq!(shown(other.get(events.last_id.as_deref()).await).await, unknown);
        }
        let unknown = ask(&other, "tasks/list", json!({"cursor": "nonsense"}), BOTH).await;
        assert_eq!(ask(&other, "tasks/list", json!({"cursor": cursor}), BOTH).await, unknown);
    }
    world.gate.open();
    assert_eq!(stream.next().await.unwrap()["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

async fn nobody_cancels_somebody_elses_request(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let frame = alice.frame("tools/call", &json!({"name": "hold"}));
    let mut stream = Events::new(alice.post(&frame, BOTH).await);
    world.gate.started().await;
    for token in [BOB, EVE] {
        for other in world.clients(token).await {
            other.notify("notifications/cancelled", json!({"requestId": frame["id"]})).await;
        }
    }
    // Their words have been heard by now, if anybody would: alice's own take the same way.
    let own = alice.frame("tools/call", &json!({"name": "hold"}));
    let mut cancelled = Events::new(alice.post(&own, BOTH).await);
    world.gate.started().await;
    alice.at(&world.urls[1]).notify("notifications/cancelled", json!({"requestId": own["id"]})).await;
    assert_eq!(cancelled.next().await, None);
    world.gate.open();
    assert_eq!(stream.next().await.unwrap()["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

crate::both!(
    a_foreign_task_is_answered_byte_for_byte_like_one_that_never_was,
    a_foreign_session_is_like_one_that_never_was,
    a_foreign_stream_and_cursor_are_like_ones_that_never_were,
    nobody_cancels_somebody_elses_request,
);
