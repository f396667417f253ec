//! `subscriptions/listen`: each stream is told what it asked for, and nothing else.

use longhaul_tests::client::Events;
use longhaul_tests::modern::Modern;
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use serde_json::{Value, json};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

fn modern(world: &World, gateway: usize) -> Modern {
    Modern::new(&world.urls[gateway], Some(ALICE))
}

/// The next message, which must be of this kind and of this subscription.
async fn told(events: &mut Events, method: &str, subscription: &Value) -> Value {
    let message = events.next().await.unwrap_or_else(|| panic!("the stream ended before {method}"));
    assert_eq!(message["method"], method, "{message}");
    assert_eq!(message["params"]["_meta"][SUBSCRIPTION], *subscription, "{message}");
    message["params"].clone()
}

async fn ended(mut events: Events, subscription: &Value) {
    let last = events.next().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["resultType"]), (subscription, &json!("complete")), "{last}");
    assert_eq!(last["result"]["_meta"][SUBSCRIPTION], *subscription, "{last}");
    assert_eq!(events.next().await, None);
    assert!(!events.broke);
}

async fn a_task_is_told_from_its_state_now_to_its_end_on_every_gateway(wiring: Wiring) {
    let world = World::start(wiring).await;
    let (one, other) = (modern(&world, 0), modern(&world, 1));
    let id = one.create("hold", json!({})).await;
    world.gate.started().await;
    let mut streams = Vec::new();
    for client in [&one, &one, &other] {
        let (subscription, honoured, mut events) = client.listen(json!({"taskIds": [id]})).await;
        assert_eq!(honoured, json!({"taskIds": [id]}));
        let now = told(&mut events, "notifications/tasks", &subscription).await;
        assert_eq!((&now["taskId"], &now["status"]), (&json!(id), &json!("working")));
        assert!(now.get("resultType").is_none(), "{now}");
        streams.push((subscription, events));
    }
    world.gate.open();
    for (subscription, mut events) in streams {
        let over = told(&mut events, "notifications/tasks", &subscription).await;
        assert_eq!(over["status"], "completed");
        assert_eq!(over["result"]["content"][0]["text"], "let go");
        ended(events, &subscription).await;
    }
    // One that has ended long ago is told too.
    let (subscription, _, mut events) = other.listen(json!({"taskIds": [id]})).await;
    assert_eq!(told(&mut events, "notifications/tasks", &subscription).await["status"], "completed");
    ended(events, &subscription).await;
    world.stop().await;
}

async fn what_cannot_be_honoured_is_left_out(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = modern(&world, 0);
    let id = alice.create("hold", json!({})).await;
    world.gate.started().await;
    let bobs = alice.with_token(BOB);
    let (subscription, honoured, events) =
        bobs.listen(json!({"taskIds": [id, "aaaaaaaaaaaaaaaaaaaaaaaaaa", "nonsense"]})).await;
    assert_eq!(honoured, json!({"taskIds": []}), "nobody's and somebody else's alike");
    ended(events, &subscription).await;

    let (_, honoured, mut events) =
        alice.listen(json!({"toolsListChanged": true, "taskIds": ["nonsense", id], "unknownKind": true})).await;
    assert_eq!(honoured, json!({"toolsListChanged": true, "taskIds": [id]}));
    let first = events.next().await.unwrap();
    assert_eq!(first["method"], "notifications/tasks");
    world.stop().await;
}

async fn a_subscription_is_named_by_its_request_as_it_was_written(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = modern(&world, 0);
    let task = alice.create("hold", json!({})).await;
    world.gate.started().await;
    for id in [json!("7"), json!(7), json!(-1), json!("é\u{2028}")] {
        let mut frame = alice.frame("subscriptions/listen", json!({"notifications": {"taskIds": [task]}}));
        frame["id"] = id.clone();
        let mut events = Events::modern(alice.send(&frame).await);
        told(&mut events, "notifications/subscriptions/acknowledged", &id).await;
        told(&mut events, "notifications/tasks", &id).await;
    }
    world.stop().await;
}

async fn a_changed_list_of_tools_is_told_to_who_asked(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = modern(&world, 0);
    let (tools, honoured, mut events) = alice.listen(json!({"toolsListChanged": true})).await;
    assert_eq!(honoured, json!({"toolsListChanged": true}));
    let task = alice.create("hold", json!({})).await;
    world.gate.started().await;
    let (tasks, _, mut of_task) = alice.listen(json!({"taskIds": [task]})).await;
    told(&mut of_task, "notifications/tasks", &tasks).await;
    world.add_worker("worker-2").await;
    told(&mut events, "notifications/tools/list_changed", &tools).await;
    world.gate.open();
    let next = told(&mut of_task, "notifications/tasks", &tasks).await;
    assert_eq!(next["status"], "completed", "and nothing of tools");
    world.stop().await;
}

async fn a_draining_gateway_ends_subscriptions_in_words(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = modern(&world, 0);
    let task = alice.create("hold", json!({})).await;
    world.gate.started().await;
    let (subscription, _, mut events) = alice.listen(json!({"taskIds": [task], "toolsListChanged": true})).await;
    told(&mut events, "notifications/tasks", &subscription).await;
    let ending = world.end("gateway-1");
    let ((), ()) = tokio::join!(ending, ended(events, &subscription));
    assert_eq!(modern(&world, 1).task(&task).await["status"], "working", "the task goes on");
    world.stop().await;
}

async fn an_odd_filter_is_refused(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = modern(&world, 0);
    for filter in
        [json!(null), json!([]), json!({"taskIds": "x"}), json!({"taskIds": [7]}), json!({"toolsListChanged": 1})]
    {
        let (_, error) = alice.error("subscriptions/listen", json!({"notifications": filter})).await;
        assert_eq!(error["code"], -32602, "{filter}: {error}");
    }
    let (_, error) = alice.error("subscriptions/listen", json!({})).await;
    assert_eq!(error["code"], -32602, "{error}");
    world.stop().await;
}

crate::both!(
    a_task_is_told_from_its_state_now_to_its_end_on_every_gateway,
    what_cannot_be_honoured_is_left_out,
    a_subscription_is_named_by_its_request_as_it_was_written,
    a_changed_list_of_tools_is_told_to_who_asked,
    a_draining_gateway_ends_subscriptions_in_words,
    an_odd_filter_is_refused,
);
