use std::sync::atomic::Ordering;

use longhaul_gateway::NotReady;
use serde_json::json;

use crate::client::{Connection, within};
use crate::world::{World, text, until};

#[tokio::test]
async fn a_drain_ends_streams_so_that_their_clients_go_on_elsewhere() {
    let world = World::start().await;
    let client = world.alice().await;
    let task = client.create("echo").await;
    let mut waiting = client.stream(json!("r"), "tasks/result", json!({"taskId": task})).await;
    let mut standalone = client.get(None).await;
    waiting.event().await.unwrap();
    standalone.event().await.unwrap();
    let json_only = client.accepting("application/json");
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "wait"}});
    let mut calling = json_only.send("POST", "", call.to_string().as_bytes()).await;
    let run = world.worker.run().await;

    world.a.drain.cancel();
    let last = waiting.event().await.unwrap();
    assert_eq!((last.data.as_deref(), last.retry), (Some(""), Some(1000)));
    assert_eq!(waiting.event().await, None);
    assert!(standalone.event().await.unwrap().id.is_some());
    assert_eq!(standalone.event().await, None);
    assert!(!world.a.status.is_ready());

    // The other gateway goes on with the stream from the last event.
    let mut resumed = client.at(world.b.at).get(last.id.as_deref()).await;
    resumed.event().await.unwrap();
    world.store.finish(&task, text("done"));
    let answer = resumed.message().await;
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!("r"), &json!("done")));
    assert_eq!(resumed.event().await, None);

    // A call that has no other home ends in its own time.
    assert!(!world.a.over.is_cancelled());
    run.end(text("late"));
    let answer = calling.answer().await.unwrap();
    assert_eq!(answer.json()["result"]["content"][0]["text"], "late");
    assert_eq!(answer.head.header("connection"), Some("close"));
    within("the end", world.a.over.cancelled()).await;
    assert!(tokio::net::TcpStream::connect(world.a.at).await.is_err());
}

#[tokio::test]
async fn a_drain_ends_within_its_time_and_says_so_to_calls_that_it_cuts() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.stream(json!(1), "tools/call", json!({"name": "wait"})).await;
    stream.event().await.unwrap();
    let run = world.worker.run().await;
    // A client that never reads, and one that never says a word.
    let _silent = Connection::open(world.a.at).await;
    world.a.drain.cancel();
    assert_eq!(stream.message().await["error"]["code"], -32603);
    within("the end", world.a.over.cancelled()).await;
    within("the worker", run.stopped.cancelled()).await;
}

#[tokio::test]
async fn a_gateway_whose_task_store_is_away_for_long_is_not_ready_until_it_is_back() {
    let world = World::start().await;
    let status = &world.a.status;
    assert_eq!(status.ready(), Ok(()));
    world.store.down.store(true, Ordering::SeqCst);
    until("it is not ready", || !status.is_ready()).await;
    let why = status.ready().unwrap_err();
    assert!(matches!(why, NotReady::StoreAway(_)) && why.to_string().contains("taskstore_urls"), "{why}");
    world.store.down.store(false, Ordering::SeqCst);
    until("it is ready again", || status.is_ready()).await;
}
