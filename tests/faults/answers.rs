//! What people answer: kept through kills, and nowhere to be read.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use longhaul_tests::client::{Client, Events, PATIENCE};
use longhaul_tests::modern::Modern;
use longhaul_tests::processes::{Redis, Site};
use longhaul_tests::services;
use longhaul_tests::world::ALICE;
use serde_json::{Value, json};

use crate::{LOOK, page};

const CANARY: &str = "canary-5b1fd2";
const ROLES: [&str; 5] = ["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"];

fn accept(answer: &str) -> Value {
    json!({"action": "accept", "content": {"answer": answer}})
}

fn ask() -> Value {
    json!({"name": "ask", "arguments": {"question": "Who?"}})
}

/// Everything that Redis is told from now on.
pub(crate) fn monitor(redis: &Redis) -> TcpStream {
    let address = redis.url();
    let address = address.trim_start_matches("redis://").trim_end_matches('/');
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"MONITOR\r\n").unwrap();
    connection.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    connection
}

/// What was told until it falls silent; heartbeats never let it, so there is an end.
pub(crate) fn heard(mut monitor: TcpStream) -> String {
    let (mut all, mut part, until) = (Vec::new(), [0; 65536], Instant::now() + Duration::from_secs(3));
    while Instant::now() < until {
        match monitor.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => all.extend_from_slice(&part[..bytes]),
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_sink_has_what_a_person_answered() {
    let redis = Redis::started().await;
    let mut site = Site::new(&services::database().await, Some(&redis.url())).await;
    site.set(
        "LOG",
        "trace,h2=info,hyper=info,hyper_util=info,tower=info,tonic=info,rustls=info,sqlx=info,redis=info,mio=info",
    );
    let roles = &ROLES;
    site.up(roles).await;
    let (one, other) = (site.url("gateway-1"), site.url("gateway-2"));
    let told = monitor(&redis);

    // Each way to answer. The tool repeats what it is told, in its result, which is as secret as any result.
    let new = Modern::new(&one, Some(ALICE));
    let id = new.create("ask", json!({"question": "Who?"})).await;
    let asked = new.until(&id, "input_required").await;
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let responses = json!({"taskId": id, "inputResponses": {key: accept(CANARY)}});
    new.at(&other).ok("tasks/update", responses.clone()).await;
    new.until(&id, "completed").await;
    new.ok("tasks/update", responses).await;

    let plain = new.plain();
    let asked = plain.ok("tools/call", ask()).await;
    let mut again = ask();
    again["requestState"] = asked["requestState"].clone();
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    again["inputResponses"] = json!({key: accept(CANARY)});
    assert!(plain.at(&other).ok("tools/call", again.clone()).await.to_string().contains(CANARY));
    again["requestState"] = json!("forged");
    plain.error("tools/call", again).await;

    let old = Client::declaring(&one, Some(ALICE), json!({"elicitation": {}})).await;
    let id = old.create("ask", json!({"question": "Who?"})).await;
    let mut stream = old.stream("tasks/result", json!({"taskId": id})).await;
    let asked = stream.next().await.unwrap();
    assert_eq!(old.at(&other).answer(&asked["id"], accept(CANARY)).await, 202);
    new.until(&id, "completed").await;
    assert_eq!(old.answer(&asked["id"], accept(CANARY)).await, 202);
    assert_eq!(old.answer(&json!("tiq-task-nonsense"), accept(CANARY)).await, 400);

    let mut stream = Events::new(old.post(&old.frame("tools/call", &ask()), longhaul_tests::client::BOTH).await);
    let asked = stream.next().await.unwrap();
    assert_eq!(old.at(&other).answer(&asked["id"], accept(CANARY)).await, 202);
    while stream.next().await.is_some() {}
    // What does not fit its form.
    let id = old.create("ask", json!({"question": "Who?"})).await;
    new.until(&id, "input_required").await;
    let odd = json!({"action": "accept", "content": {"answer": 7, CANARY: CANARY}});
    assert_eq!(old.answer(&json!(format!("tiq-task-{id}-1")), odd).await, 202);
    new.until(&id, "completed").await;

    let told = heard(told);
    assert!(told.contains("longhaul"), "nothing was heard of Redis");
    assert!(!told.contains(CANARY), "{told}");
    for role in roles {
        let (_, metrics) = page(&site.management(role, "/metrics")).await;
        assert!(metrics.contains("longhaul") && !metrics.contains(CANARY), "{role}: {metrics}");
        let process = site.role(role);
        let log = process.log() + &process.output();
        assert!(log.len() > 1000, "{role} logs: {log}");
        assert!(!log.contains(CANARY), "{role}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_and_its_answer_outlive_gateways_and_task_stores() {
    let mut site = Site::shared().await;
    site.up(&ROLES).await;
    let (one, other) = (site.url("gateway-1"), site.url("gateway-2"));
    let old = Client::declaring(&one, Some(ALICE), json!({"elicitation": {}})).await;
    let id = old.create("ask", json!({"question": "Who?"})).await;
    let mut stream = old.stream("tasks/result", json!({"taskId": id})).await;
    let asked = stream.next().await.unwrap();
    // The carrier dies with its gateway: the question comes again on another.
    site.kill("gateway-1");
    let elsewhere = old.at(&other);
    let mut stream = elsewhere.stream("tasks/result", json!({"taskId": id})).await;
    let again = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap();
    assert_eq!(again, asked);
    // A task-store dies around the answer: what was acknowledged is not lost.
    site.kill("taskstore-1");
    let begun = Instant::now();
    while elsewhere.answer(&asked["id"], accept("me")).await != 202 {
        assert!(begun.elapsed() < PATIENCE, "the answer is not taken");
        tokio::time::sleep(LOOK).await;
    }
    site.kill("taskstore-2");
    site.start("taskstore-1").await;
    let new = Modern::new(&other, Some(ALICE));
    let begun = Instant::now();
    loop {
        let (_, answer) = new.exchange("tasks/get", json!({"taskId": id})).await;
        if answer["result"]["status"] == "completed" {
            assert_eq!(answer["result"]["result"]["content"][0]["text"], "You said: me");
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{answer}");
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_worker_dies_while_it_asks_is_interrupted_and_its_question_withdrawn() {
    let mut site = Site::shared().await;
    site.set("TASK_HEARTBEAT_MS", "1000");
    site.up(&["taskstore-1", "runner-1", "gateway-1"]).await;
    let url = site.url("gateway-1");
    let old = Client::declaring(&url, Some(ALICE), json!({"elicitation": {}})).await;
    let id = old.create("ask", json!({"question": "Who?"})).await;
    let mut stream = old.stream("tasks/result", json!({"taskId": id})).await;
    let asked = stream.next().await.unwrap();
    site.kill("runner-1");
    let withdrawn = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap();
    assert_eq!(
        (&withdrawn["method"], &withdrawn["params"]["requestId"]),
        (&json!("notifications/cancelled"), &asked["id"])
    );
    let ended = stream.next().await.unwrap();
    assert_eq!(ended["error"]["code"], -32603, "{ended}");
    let task = Modern::new(&url, Some(ALICE)).task(&id).await;
    assert_eq!((&task["status"], task.get("inputRequests")), (&json!("failed"), None), "{task}");
    assert_eq!(old.answer(&asked["id"], accept("late")).await, 202);
}
