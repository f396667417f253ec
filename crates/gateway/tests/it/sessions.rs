use std::sync::Arc;

use longhaul_bus::{Control, Hint};
use longhaul_gateway::{Authenticator, Gateway, StartError};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, within};
use crate::world::{ALICE, BOB, World, alice, config, parts, until};

#[tokio::test]
async fn a_session_of_one_gateway_is_a_session_of_every_other() {
    let world = World::start().await;
    let client = world.alice().await;
    let id = client.session.clone().unwrap();
    assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
    assert_eq!(client.ok("ping", json!({})).await, json!({}));
    let there = client.at(world.b.at);
    assert_eq!(there.ok("ping", json!({})).await, json!({}));
    there.notify("notifications/initialized", json!({})).await;
    assert!(there.call("ping", json!({})).await.head.header("mcp-session-id").is_none());
}

#[tokio::test]
async fn the_version_is_negotiated_and_an_old_session_does_not_hinder_a_new_one() {
    let world = World::start().await;
    for (wish, granted, has_tasks) in [
        ("2025-11-25", "2025-11-25", true),
        ("2025-06-18", "2025-06-18", false),
        ("2026-07-28", "2025-11-25", true),
        ("x", "2025-11-25", true),
    ] {
        let mut client = world.alice().await;
        client.session = Some("an-old-one".into());
        let answer = client.initialize(wish).await;
        let result = &answer.json()["result"];
        assert_eq!(result["protocolVersion"], granted);
        assert_eq!(result["capabilities"]["tasks"].is_object(), has_tasks);
        assert_eq!(result["capabilities"]["tools"]["listChanged"], true);
        assert!(answer.head.header("mcp-session-id").is_some());
    }
    // The version before has no tasks: their methods are unknown, and a wish for one is ignored.
    let old = Client::hello_as(world.a.at, ALICE, "2025-06-18").await;
    assert_eq!(old.call("tasks/list", json!({})).await.code(), Some(-32601));
    let result = old.ok("tools/call", json!({"name": "echo", "arguments": {}, "task": {}})).await;
    assert_eq!(result["content"][0]["text"], "ok");
    let tools = old.ok("tools/list", json!({})).await;
    assert!(
        tools["tools"]
            .as_array()
            .unwrap()
            .iter()
            .all(|tool| tool.get("execution").is_none() && tool["name"] != "always")
    );
}

#[tokio::test]
async fn no_session_is_400_and_a_foreign_forged_or_expired_one_is_404() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut without = client.clone();
    without.session = None;
    for method in ["ping", "tools/list", "tools/call", "nonsense"] {
        let answer = without.call(method, json!({})).await;
        assert_eq!((answer.status(), answer.json()["id"].as_i64()), (400, Some(1)));
    }
    let good = client.session.clone().unwrap();
    let flipped = format!("{}{}", if good.starts_with('A') { 'B' } else { 'A' }, &good[1..]);
    for (token, session) in [(BOB, &*good), (ALICE, &*flipped), (ALICE, "x"), (ALICE, "")] {
        let mut other = Client::new(world.a.at, token);
        other.session = Some(session.into());
        assert_eq!(other.call("ping", json!({})).await.status(), 404, "{session}");
        for method in ["GET", "DELETE"] {
            assert_eq!(other.send(method, "", b"").await.head().await.unwrap().status, 404, "{method} {session}");
        }
    }
    assert_eq!(client.call("ping", json!({})).await.status(), 200);
    world.store.clock.advance(std::time::Duration::from_secs(24 * 3600 + 1));
    assert_eq!(client.call("ping", json!({})).await.status(), 404);
}

#[tokio::test]
async fn an_ended_session_is_unknown_here_at_once_and_soon_everywhere() {
    let world = World::start().await;
    let client = world.alice().await;
    let other = world.alice().await;
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    assert_eq!(client.send("DELETE", "", b"").await.head().await.unwrap().status, 204);
    assert_eq!(client.call("ping", json!({})).await.status(), 404);
    assert_eq!(stream.event().await, None, "the session's stream goes on");
    let there = client.at(world.b.at);
    within("the other gateway", async { while there.call("ping", json!({})).await.status() != 404 {} }).await;
    assert_eq!(client.send("DELETE", "", b"").await.head().await.unwrap().status, 404);
    assert_eq!(other.call("ping", json!({})).await.status(), 200, "another session has ended too");
    // What is stored gives nobody the session.
    let stored: Vec<_> = world.store.notes.lock().unwrap().keys().cloned().collect();
    assert_eq!(stored.len(), 1);
    assert!(!client.session.unwrap().contains(&stored[0]));
}

#[tokio::test]
async fn a_session_that_cannot_be_ended_goes_on() {
    let world = World::start().await;
    let client = world.alice().await;
    world.store.down.store(true, std::sync::atomic::Ordering::SeqCst);
    let head = client.send("DELETE", "", b"").await.head().await.unwrap();
    assert_eq!((head.status, head.header("retry-after")), (503, Some("1")));
    world.store.down.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(client.call("ping", json!({})).await.status(), 200);
}

#[tokio::test]
async fn so_much_is_remembered_of_the_sessions_of_one_caller_and_no_more() {
    let world = World::start().await;
    let (first, second) = (world.alice().await, world.alice().await);
    world.store.notes_max.store(1, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(first.ok("logging/setLevel", json!({"level": "error"})).await, json!({}));
    let refused = second.call("logging/setLevel", json!({"level": "error"})).await.json();
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["data"]["refused_by"]),
        (&json!(-31429), &json!("session_limit"))
    );
    let head = second.send("DELETE", "", b"").await.head().await.unwrap();
    assert_eq!(head.status, 429);
    assert_eq!(second.call("ping", json!({})).await.status(), 200, "it goes on");
    // What is known of already may change, and another caller has its own room.
    assert_eq!(first.send("DELETE", "", b"").await.head().await.unwrap().status, 204);
    let other = Client::hello(world.a.at, BOB).await;
    assert_eq!(other.send("DELETE", "", b"").await.head().await.unwrap().status, 204);
}

#[tokio::test]
async fn the_newest_stream_of_a_session_closes_older_ones_on_every_gateway() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut first = client.get(None).await;
    first.event().await.unwrap();
    let mut second = client.at(world.b.at).get(None).await;
    second.event().await.unwrap();
    assert_eq!(first.event().await, None);
    let mut third = client.at(world.b.at).get(None).await;
    third.event().await.unwrap();
    assert_eq!(second.event().await, None);
    until("the older streams are gone", || world.a.status.load().streams + world.b.status.load().streams == 1).await;
}

#[tokio::test]
async fn which_stream_is_the_newest_does_not_depend_on_clocks() {
    let world = World::start().await;
    let client = world.alice().await;
    let task = client.create("echo").await;
    let session = world.store.tasks.lock().unwrap()[&task.parse().unwrap()].0.session.clone().unwrap();
    for elsewhere in ["00000000000000000000000000000000", "ffffffffffffffffffffffffffffffff"] {
        let mut stream = client.get(None).await;
        stream.event().await.unwrap();
        let opened = Control::StreamOpened { session: session.clone(), stream: elsewhere.into() };
        world.store.bus.publish(Hint::Control(opened));
        assert_eq!(stream.event().await, None);
    }
}

#[tokio::test]
async fn a_gateway_that_hears_of_its_own_former_stream_keeps_the_present_one() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut hints = world.store.bus.subscribe();
    let mut first = client.get(None).await;
    first.event().await.unwrap();
    let Hint::Control(opened @ Control::StreamOpened { .. }) = hints.recv().await.unwrap() else { panic!("no hint") };
    let mut second = client.get(None).await;
    second.event().await.unwrap();
    assert_eq!(first.event().await, None);
    world.store.bus.publish(Hint::Control(opened));
    // What comes after it is heard after it.
    world.store.offer(Vec::new());
    assert_eq!(second.message().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn a_client_that_takes_streams_alone_gets_every_answer_as_an_event() {
    let world = World::start().await;
    let mut client = Client { accept: "text/event-stream", ..Client::new(world.a.at, ALICE) };
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    let head = client.send("POST", "", body.as_bytes()).await.head().await.unwrap();
    client.session = head.header("mcp-session-id").map(str::to_owned);
    assert!(client.session.is_some());
    let task = world.alice().await.create("echo").await;
    for (method, params, error) in [
        ("initialize", params, None),
        ("initialize", json!({}), Some(-32602)),
        ("ping", json!({}), None),
        ("tools/list", json!({}), None),
        ("tools/call", json!({"name": "echo", "task": {}}), None),
        ("tools/call", json!({"name": "nobody's"}), Some(-32602)),
        ("tasks/list", json!({}), None),
        ("tasks/get", json!({"taskId": task}), None),
        ("tasks/cancel", json!({"taskId": task}), None),
        ("tasks/cancel", json!({"taskId": task}), Some(-32602)),
        ("tasks/result", json!({"taskId": "x"}), Some(-32602)),
        ("nonsense", json!({}), Some(-32601)),
    ] {
        let mut stream = client.stream(json!(1), method, params).await;
        let answer = stream.message().await;
        assert_eq!((&answer["id"], answer["error"]["code"].as_i64()), (&json!(1), error), "{method}");
        assert_eq!(stream.event().await, None, "{method}");
    }
    until("no stream is open", || world.a.status.load() == Default::default()).await;
}

#[tokio::test]
async fn without_credentials_a_gateway_serves_the_loopback_interface_only() {
    let world = World::start().await;
    let fixed = Authenticator::Fixed(Arc::new(alice()));
    let gateway =
        |auth| Gateway::build(config(), parts(&world.store, &world.store.bus, &world.links, &world.token, auth));
    let everywhere = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let drain = CancellationToken::new();
    let refused = gateway(fixed.clone()).run(everywhere, drain.clone()).await;
    assert!(matches!(refused, Err(StartError::Open(_))), "{refused:?}");

    let here = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = here.local_addr().unwrap();
    let gateway = gateway(fixed);
    let status = gateway.status();
    world.tasks.spawn(gateway.run(here, drain));
    until("it is ready", || status.is_ready()).await;
    let client = Client::hello(at, "any token at all").await;
    assert_eq!(client.call("ping", json!({})).await.status(), 200);
    // The fixed principal is the one whose session it is.
    assert_eq!(client.at(world.a.at).call("ping", json!({})).await.status(), 401);
    let mut as_alice = client.at(world.a.at);
    as_alice.token = ALICE;
    assert_eq!(as_alice.call("ping", json!({})).await.status(), 200);
}
