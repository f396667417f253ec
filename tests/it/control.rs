//! What operators decide reaches every gateway: with hints at once, without them in time.

use std::time::{Duration, Instant};

use longhaul_core::{Caller, Scope, TenantId};
use longhaul_rpc::{Control as _, NewCredential, Switched};
use longhaul_tests::client::{Client, Events};
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Changes that follow one another. Without hints each would take about two seconds.
const ROUNDS: u32 = 5;
/// What is promised with Redis, and without it.
const PROMPT: Duration = Duration::from_secs(1);
const DEAF: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

const KEY: &str = "lh_a-key-of-the-tests";

/// How long all rounds may take together.
fn bound(wiring: Wiring) -> Duration {
    ROUNDS * if wiring == Wiring::Deaf { DEAF } else { PROMPT }
}

async fn refused(client: &Client, tool: &str) -> Option<Value> {
    let mut answer = client.ask("tools/call", json!({"name": tool, "arguments": {}})).await;
    let error = answer.get_mut("error")?.take();
    assert_eq!((&error["code"], &error["data"]["refused_by"]), (&json!(-31403), &json!("kill_switch")), "{error}");
    Some(error)
}

async fn a_switch_reaches_every_gateway(wiring: Wiring) {
    let world = World::start(wiring).await;
    let clients = world.clients(ALICE).await;
    let [bob, _] = world.clients(BOB).await;
    let operator = world.operator();
    let scope = Scope { tool: Some("echo".into()), caller: Some(Caller::Agent("alice".into())), ..Scope::default() };
    let began = Instant::now();
    for round in 0..ROUNDS {
        let (off, why) = (round % 2 == 0, format!("round {round}"));
        assert_eq!(operator.set_switch(&scope, off, &why).await.unwrap(), Switched::Changed);
        for client in &clients {
            loop {
                match refused(client, "echo").await {
                    Some(error) if off => {
                        let message = error["message"].as_str().unwrap();
                        assert!(message.contains(&why) && message.contains("agent \"alice\""), "{message}");
                        break;
                    }
                    None if !off => break,
                    Some(_) | None => tokio::time::sleep(LOOK).await,
                }
            }
        }
    }
    assert!(began.elapsed() < bound(wiring), "{:?}", began.elapsed());
    // It is off now: for tasks too, and in this scope alone.
    let task = json!({"name": "echo", "arguments": {}, "task": {}});
    assert_eq!(clients[1].error("tools/call", task).await["data"]["refused_by"], "kill_switch");
    assert_eq!(refused(&bob, "echo").await, None);
    assert_eq!(refused(&clients[0], "blob").await, None);
    world.stop().await;
}

async fn create(world: &World, id: &str, tenant: &str, agent: &str, key: &str) {
    let new = NewCredential {
        id: id.into(),
        tenant: TenantId::new(tenant),
        agent: agent.into(),
        sha256: Sha256::digest(key).into(),
        expires_in: None,
    };
    world.operator().create_credential(new).await.unwrap().unwrap();
}

/// Waits until a gateway lets a key in, or not.
async fn lets_in(client: &Client, yes: bool) {
    let frame = client.frame("ping", &json!({})).to_string();
    while (client.exchange(&frame, longhaul_tests::client::BOTH).await.0 == 200) != yes {
        tokio::time::sleep(LOOK).await;
    }
}

async fn a_credential_reaches_every_gateway_and_its_end_too(wiring: Wiring) {
    let world = World::start(wiring).await;
    // Sessions are the caller's, whatever key it shows.
    let sessions = world.clients(ALICE).await;
    let began = Instant::now();
    for round in 0..ROUNDS {
        let (id, key) = (format!("c{round}"), format!("{KEY}-{round}"));
        let clients = sessions.each_ref().map(|client| client.with_token(&key));
        create(&world, &id, "acme", "alice", &key).await;
        for client in &clients {
            lets_in(client, true).await;
        }
        let mut streams = Vec::new();
        for client in &clients {
            let mut stream = Events::new(client.get(None).await);
            assert_eq!(stream.next_data().await.as_deref(), Some(""));
            streams.push(stream);
        }
        // A newer stream of its session closes the older one; this one is closed by the end of its key.
        let task = clients[0].create("hold", json!({})).await;
        assert_eq!(world.gate.started().await, task);
        let mut result = clients[1].stream("tasks/result", json!({"taskId": task})).await;
        assert_eq!(result.next_data().await.as_deref(), Some(""));
        world.operator().revoke_credential(&id).await.unwrap().unwrap();
        assert_eq!(result.next_data().await, None);
        for stream in &mut streams {
            while stream.next_data().await.is_some() {}
        }
        for client in &clients {
            lets_in(client, false).await;
        }
        // The task goes on, for whoever the caller still is.
        assert_eq!(sessions[0].status(&task).await, "working");
    }
    assert!(began.elapsed() < 2 * bound(wiring), "{:?}", began.elapsed());
    world.stop().await;
}

async fn stopping_what_runs_is_told_to_its_worker_and_its_waiters(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let [bob, _] = world.clients(BOB).await;
    let ids = [one.create("hold", json!({})).await, other.create("hold", json!({})).await];
    let bobs = bob.create("hold", json!({})).await;
    for _ in 0..3 {
        world.gate.started().await;
    }
    let mut stream = other.stream("tasks/result", json!({"taskId": ids[0]})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let scope = Scope { caller: Some(Caller::Agent("alice".into())), ..Scope::default() };
    let stopped = world.operator().stop_running(&scope).await.unwrap();
    assert_eq!((stopped.stopped, stopped.more), (2, false));
    assert_eq!(stream.next().await.unwrap()["error"]["code"], -31499);
    let mut told = [world.gate.stopped().await, world.gate.stopped().await];
    told.sort();
    let mut ids = ids.to_vec();
    ids.sort();
    assert_eq!(told.to_vec(), ids);
    assert_eq!(one.status(&ids[0]).await, "cancelled");
    assert_eq!(bob.status(&bobs).await, "working");
    world.stop().await;
}

async fn a_credential_of_one_tenant_never_sees_what_is_anothers(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let task = alice.create("hold", json!({})).await;
    world.gate.started().await;
    // The same name, and all else that a tenant can choose.
    create(&world, "c", "acme-2", "alice", KEY).await;
    let eve = loop {
        let answer = longhaul_tests::client::http().post(&world.urls[1]).bearer_auth(KEY).send().await.unwrap();
        if answer.status() != 401 {
            break Client::connect(&world.urls[1], Some(KEY)).await;
        }
        tokio::time::sleep(LOOK).await;
    };
    let unknown = "a".repeat(26);
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let [theirs, nobodys] =
            [eve.error(method, json!({"taskId": task})).await, eve.error(method, json!({"taskId": unknown})).await];
        assert_eq!(theirs, nobodys, "{method}");
    }
    assert_eq!(eve.ok("tasks/list", json!({})).await["tasks"], json!([]));
    let as_alice = alice.at(&world.urls[1]).with_token(KEY);
    let frame = as_alice.frame("ping", &json!({})).to_string();
    assert_eq!(as_alice.exchange(&frame, longhaul_tests::client::BOTH).await.0, 404, "her session is not theirs");
    let mine = eve.create("hold", json!({})).await;
    assert_eq!(world.gate.started().await, mine);
    // What is switched off for the one is not for the other.
    let scope = Scope { tenant: Some(TenantId::new("acme-2")), ..Scope::default() };
    world.operator().set_switch(&scope, true, "why").await.unwrap();
    while refused(&eve, "echo").await.is_none() {}
    assert_eq!(refused(&alice, "echo").await, None);
    assert_eq!(world.operator().stop_running(&scope).await.unwrap().stopped, 1);
    assert_eq!(alice.status(&task).await, "working");
    world.stop().await;
}

crate::both!(
    a_switch_reaches_every_gateway,
    a_credential_reaches_every_gateway_and_its_end_too,
    stopping_what_runs_is_told_to_its_worker_and_its_waiters,
    a_credential_of_one_tenant_never_sees_what_is_anothers,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_a_switch_is_effective_in_time() {
    a_switch_reaches_every_gateway(Wiring::Deaf).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_a_credential_is_effective_in_time() {
    a_credential_reaches_every_gateway_and_its_end_too(Wiring::Deaf).await;
}
