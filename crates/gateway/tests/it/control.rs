//! What operators decide while gateways run: whose keys are accepted, and what is switched off.

use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_core::{Clock as _, Scope, TenantId};
use longhaul_gateway::{Authenticator, Gateway};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::client::{Answer, Client, within};
use crate::modern::Modern;
use crate::world::{ALICE, BOB, World, alice, config, parts, text, until};

const KEY: &str = "lh_key-of-alice";
const NEXT_KEY: &str = "lh_next-key-of-alice";

/// Waits until both gateways answer a key so.
async fn answered(world: &World, key: &'static str, status: u16) {
    for at in [world.a.at, world.b.at] {
        let client = Modern::new(at, key);
        within("the key", async {
            while client.call("tools/list", json!({})).await.status() != status {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_stored_key_is_accepted_everywhere_until_it_is_revoked_and_then_its_streams_end() {
    let world = World::start().await;
    answered(&world, KEY, 401).await;
    world.store.credential("c", &alice(), &[(KEY, None)]);
    answered(&world, KEY, 200).await;
    let client = Client::hello(world.a.at, KEY).await;
    let id = client.create("wait").await;
    // It is the same caller, whatever it shows.
    assert_eq!(world.alice().await.ok("tasks/get", json!({"taskId": id})).await["status"], "working");
    let mut streams = vec![
        client.get(None).await,
        client.at(world.b.at).stream(json!(1), "tasks/result", json!({"taskId": id})).await,
        client.stream(json!(2), "tools/call", json!({"name": "wait"})).await,
        Modern::new(world.b.at, KEY)
            .with_tasks()
            .stream(json!(3), "subscriptions/listen", json!({"notifications": {"taskIds": [id]}}))
            .await,
    ];
    let stays = Client::hello(world.b.at, ALICE).await;
    let mut other = stays.stream(json!(4), "tasks/result", json!({"taskId": id})).await;
    for stream in streams.iter_mut().chain([&mut other]) {
        assert!(stream.next().await.is_some(), "it is open");
    }

    world.store.credential("c", &alice(), &[]);
    for stream in &mut streams {
        within("the end of a stream", async { while stream.next().await.is_some() {} }).await;
    }
    answered(&world, KEY, 401).await;
    let refused = client.call("ping", json!({})).await;
    assert_eq!(refused.head.header("www-authenticate"), Some("Bearer realm=\"longhaul\", error=\"invalid_token\""));
    // Its task goes on, for whoever the caller still is.
    world.store.finish(&id, text("done"));
    assert_eq!(other.message().await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_rotated_key_and_its_follower_are_both_accepted_until_the_overlap_is_over() {
    let world = World::start().await;
    world.store.credential("c", &alice(), &[(KEY, None)]);
    answered(&world, KEY, 200).await;
    let mut stream = Client::hello(world.a.at, KEY).await.get(None).await;
    assert!(stream.next().await.is_some());
    let until = world.store.clock.now().plus(Duration::from_secs(60));
    world.store.credential("c", &alice(), &[(NEXT_KEY, None), (KEY, Some(until))]);
    answered(&world, NEXT_KEY, 200).await;
    answered(&world, KEY, 200).await;
    // Keep-alives: it was not cut.
    assert!(stream.next().await.is_some());
    world.store.clock.advance(Duration::from_secs(60));
    answered(&world, KEY, 401).await;
    within("the end of the stream", async { while stream.next().await.is_some() {} }).await;
    answered(&world, NEXT_KEY, 200).await;
}

#[tokio::test]
async fn a_gateway_that_has_not_read_who_may_call_is_not_ready_and_refuses_nobody_for_good() {
    let world = World::start().await;
    world.store.credential("c", &alice(), &[(KEY, None)]);
    world.store.down.store(true, Ordering::SeqCst);
    let parts = parts(&world.store, &world.store.bus, &world.links, &world.token, Authenticator::Bearer([].into()));
    let gateway = Gateway::build(config(), parts);
    let (status, listener) = (gateway.status(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let client = Modern::new(listener.local_addr().unwrap(), KEY);
    let drain = CancellationToken::new();
    world.tasks.spawn(gateway.run(listener, drain.clone()));
    for key in [KEY, "unknown"] {
        let answer = Modern { token: key, ..client.at(client.to) }.call("tools/list", json!({})).await;
        assert_eq!((answer.status(), answer.head.header("retry-after").is_some()), (503, true), "{key}");
    }
    assert!(!status.is_ready());
    world.store.down.store(false, Ordering::SeqCst);
    until("it is ready", || status.is_ready()).await;
    assert_eq!(client.call("tools/list", json!({})).await.status(), 200);
    assert_eq!(Modern { token: "unknown", ..client.at(client.to) }.call("tools/list", json!({})).await.status(), 401);
    // What it has read holds while nobody can be asked.
    world.store.down.store(true, Ordering::SeqCst);
    assert_eq!(client.call("tools/list", json!({})).await.status(), 200);
    assert!(status.is_ready() && status.mentions().is_empty());
    drain.cancel();
}

/// The words of a refusal, if it is one.
fn switched_off(answer: &Answer) -> Option<String> {
    let frame = answer.json();
    let error = frame.get("error")?;
    let refusal = (answer.status(), error["code"].as_i64(), &error["data"]["refused_by"]);
    assert_eq!(refusal, (200, Some(-31403), &json!("kill_switch")), "{frame}");
    Some(error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn what_is_switched_off_is_refused_on_every_gateway_and_can_still_be_looked_at_and_cancelled() {
    let world = World::start().await;
    let [alice_2025, bob_2025] = [(world.a.at, ALICE), (world.b.at, BOB)].map(|(at, token)| Client::hello(at, token));
    let (alice_2025, bob_2025) = (alice_2025.await, bob_2025.await);
    let modern = Modern::new(world.b.at, ALICE).with_tasks();
    let [running, open] = [alice_2025.create("echo").await, alice_2025.create("wait").await];
    let call = |name: &str| json!({"name": name, "arguments": {}});
    let task = |name: &str| json!({"name": name, "arguments": {}, "task": {}});
    let scope = Scope { tenant: Some(TenantId::new("acme")), tool: Some("echo".into()), caller: Some(alice().caller) };
    world.store.switch(scope.clone(), true, "the mirror is broken (INC-7)");
    let refused = async |attempt: &Attempt<'_>| {
        within("the switch", async {
            loop {
                if let Some(message) = switched_off(&attempt.answer().await) {
                    return message;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    };
    let sessions = Attempt::Session(&alice_2025, call("echo"));
    let message = refused(&sessions).await;
    assert!(message.contains("the mirror is broken (INC-7)") && message.contains("tool \"echo\""), "{message}");
    for attempt in [Attempt::Session(&alice_2025, task("echo")), Attempt::Modern(&modern, call("echo"))] {
        refused(&attempt).await;
    }
    let before = (world.store.created.lock().unwrap().len(), world.worker.calls.lock().unwrap().len());
    for _ in 0..3 {
        refused(&Attempt::Modern(&modern, call("echo"))).await;
    }
    assert_eq!((world.store.created.lock().unwrap().len(), world.worker.calls.lock().unwrap().len()), before);
    // Others, and other tools, are not concerned.
    bob_2025.ok("tools/call", call("echo")).await;
    alice_2025.create("wait").await;
    // What runs is seen and cancelled as ever.
    assert_eq!(alice_2025.ok("tasks/get", json!({"taskId": running})).await["status"], "working");
    assert_eq!(alice_2025.ok("tasks/cancel", json!({"taskId": running})).await["status"], "cancelled");

    world.store.switch(Scope::default(), true, "everything");
    for client in [&alice_2025, &bob_2025] {
        refused(&Attempt::Session(client, call("wait"))).await;
    }
    assert_eq!(modern.call("tasks/cancel", json!({"taskId": open})).await.status(), 200);
    world.store.switch(Scope::default(), false, "mended");
    world.store.switch(scope, false, "mended");
    within("all is on", async {
        for attempt in [Attempt::Session(&alice_2025, call("echo")), Attempt::Session(&bob_2025, call("echo"))] {
            while switched_off(&attempt.answer().await).is_some() {}
        }
    })
    .await;
}

/// A call that may be refused.
enum Attempt<'a> {
    Session(&'a Client, Value),
    Modern(&'a Modern, Value),
}

impl Attempt<'_> {
    async fn answer(&self) -> Answer {
        match self {
            Self::Session(client, params) => client.call("tools/call", params.clone()).await,
            Self::Modern(client, params) => client.call("tools/call", params.clone()).await,
        }
    }
}
