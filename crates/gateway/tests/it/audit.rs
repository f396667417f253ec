//! What the audit log is told of.

use std::collections::BTreeMap;

use longhaul_core::audit::Record;
use longhaul_core::{Scope, TaskId};
use serde_json::json;

use crate::client::within;
use crate::world::{World, alice, text, until};

fn retrieved(world: &World) -> Vec<TaskId> {
    let recorded = world.store.recorded.lock().unwrap();
    let task = |record: &Record| match record {
        Record::Retrieved(task) => Some(*task),
        Record::Refused(_) => None,
    };
    recorded.iter().flat_map(|batch| &batch.records).filter_map(task).collect()
}

#[tokio::test]
async fn what_came_of_a_task_is_recorded_when_it_goes_out_by_whatever_way_and_only_once() {
    let world = World::start().await;
    let (modern, session) = (world.modern().with_tasks(), world.alice().await);
    let mut ids: Vec<String> = Vec::new();
    for _ in 0..4 {
        ids.push(session.create("echo").await);
    }
    let task = |nth: usize| json!({"taskId": ids[nth]});
    // While it runs, and where only its status is told, nothing went out.
    modern.ok("tasks/get", task(0)).await;
    let listen = json!({"notifications": {"taskIds": [ids[3]]}});
    let mut listening = modern.stream(json!("l"), "subscriptions/listen", listen).await;
    listening.message().await;
    let mut stream = session.stream(json!(7), "tasks/result", task(2)).await;
    stream.event().await.unwrap();
    ids.iter().for_each(|id| world.store.finish(id, text("done")));
    session.ok("tasks/get", task(0)).await;
    session.ok("tasks/list", json!({})).await;

    for _ in 0..3 {
        modern.ok("tasks/get", task(0)).await;
    }
    session.accepting("application/json").ok("tasks/result", task(1)).await;
    while stream.message().await["id"] != 7 {}
    while listening.message().await["id"] != "l" {}
    let told = |wanted: &[String]| {
        let mut told: Vec<_> = retrieved(&world).iter().map(TaskId::to_string).collect();
        let mut wanted = wanted.to_vec();
        told.sort();
        wanted.sort();
        told == wanted
    };
    until("all four", || retrieved(&world).len() >= 4).await;
    assert!(told(&ids), "{:?}", retrieved(&world));
    // Somebody else's is not.
    world.bob().await.call("tasks/result", task(0)).await;
    world.a.drain.cancel();
    within("the end", world.a.over.cancelled()).await;
    assert!(told(&ids), "{:?}", retrieved(&world));
}

#[tokio::test]
async fn refused_calls_are_recorded_with_their_number_before_the_gateway_ends() {
    let world = World::start().await;
    world.store.open_max.store(1, std::sync::atomic::Ordering::SeqCst);
    let session = world.alice().await;
    session.create("echo").await;
    for _ in 0..3 {
        let answer =
            session.call("tools/call", json!({"name": "echo", "task": {}, "arguments": {"n": "canary"}})).await;
        assert_eq!(answer.code(), Some(-31429));
    }
    let scope = Scope { tool: Some("echo".into()), ..Scope::default() };
    world.store.switch(scope, true, "the mirror is broken");
    let plain = json!({"name": "echo", "arguments": {"n": "canary"}});
    within("the switch", async { while session.call("tools/call", plain.clone()).await.code() != Some(-31403) {} })
        .await;
    world.a.drain.cancel();
    within("the end", world.a.over.cancelled()).await;
    let recorded = world.store.recorded.lock().unwrap();
    let mut times = BTreeMap::new();
    for record in recorded.iter().flat_map(|batch| &batch.records) {
        let Record::Refused(refused) = record else { panic!("{record:?}") };
        assert_eq!((&*refused.called, &refused.principal), ("echo", &alice()));
        *times.entry(refused.by.name()).or_default() += refused.times;
    }
    assert_eq!(times, [("kill_switch", 1), ("task_limit", 3)].into());
    assert!(!format!("{recorded:?}").contains("canary"));
}
