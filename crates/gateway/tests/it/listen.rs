//! `subscriptions/listen` of 2026-07-28.

use std::sync::atomic::Ordering;

use longhaul_core::TaskId;
use serde_json::{Value, json};

use crate::client::{Stream, within};
use crate::modern::Modern;
use crate::world::{World, form, text, until, with_everything};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

async fn everything() -> World {
    let world = World::start().await;
    world.store.offer(vec![with_everything()]);
    for at in [world.a.at, world.b.at] {
        let client = world.modern().at(at);
        within("the offer", async { while client.call("prompts/list", json!({})).await.status() != 200 {} }).await;
    }
    world
}

/// Opens a subscription, and gives what it honours.
async fn listen(client: &Modern, id: Value, filter: Value) -> (Stream, Value) {
    let mut stream = client.stream(id.clone(), "subscriptions/listen", json!({"notifications": filter})).await;
    let first = stream.next().await.expect("the stream ended");
    assert_eq!((first.id.clone(), first.retry), (None, None));
    let first = first.message();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(first["params"]["_meta"][SUBSCRIPTION], id);
    (stream, first["params"]["notifications"].clone())
}

/// The next message, which is of this subscription.
async fn told(stream: &mut Stream, id: &Value) -> Value {
    let event = stream.event().await.expect("the stream ended");
    assert_eq!(event.id, None);
    let message = event.message();
    assert_eq!(&message["params"]["_meta"][SUBSCRIPTION], id, "{message}");
    message
}

async fn over(mut stream: Stream, id: Value) {
    let last = stream.message().await;
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&id, &json!("complete")), "{last}");
    assert_eq!(last["result"]["_meta"][SUBSCRIPTION], id);
    assert_eq!(stream.event().await, None);
}

#[tokio::test]
async fn a_subscription_tells_of_its_tasks_from_as_they_are_to_their_end() {
    let world = World::start().await;
    let client = world.modern().with_tasks().declaring("elicitation", json!({}));
    let (first, second) = (client.create("echo").await, client.create("echo").await);
    world.store.claim(&first);
    // An id that is a number stays one, and each stream has a copy of its own, on whatever gateway.
    let mut streams = Vec::new();
    for (at, id) in [(world.a.at, json!(31)), (world.b.at, json!("31"))] {
        let (mut stream, honoured) = listen(&client.at(at), id.clone(), json!({"taskIds": [first, second]})).await;
        assert_eq!(honoured, json!({"taskIds": [first, second]}));
        let mut snapshots = Vec::new();
        for _ in 0..2 {
            let snapshot = told(&mut stream, &id).await;
            assert_eq!(
                (&snapshot["method"], &snapshot["params"]["status"]),
                (&json!("notifications/tasks"), &json!("working"))
            );
            assert!(snapshot["params"].get("resultType").is_none());
            snapshots.push(snapshot["params"]["taskId"].as_str().unwrap().to_owned());
        }
        snapshots.sort();
        let mut both = [first.clone(), second.clone()];
        both.sort();
        assert_eq!(snapshots, both);
        streams.push((stream, id));
    }
    world.store.ask(&first, &[("q-1", form("name"))]);
    for (stream, id) in &mut streams {
        let asking = told(stream, id).await;
        assert_eq!(
            (&asking["params"]["taskId"], &asking["params"]["status"]),
            (&json!(first), &json!("input_required"))
        );
        assert_eq!(asking["params"]["inputRequests"]["q-1"]["method"], "elicitation/create");
    }
    world.store.complete(&first, text("done"));
    for (stream, id) in &mut streams {
        let ended = told(stream, id).await;
        assert_eq!((&ended["params"]["taskId"], &ended["params"]["status"]), (&json!(first), &json!("completed")));
        assert_eq!(ended["params"]["result"]["content"][0]["text"], "done");
    }
    client.ok("tasks/cancel", json!({"taskId": second})).await;
    for (mut stream, id) in streams {
        assert_eq!(told(&mut stream, &id).await["params"]["status"], "cancelled");
        // All have ended, and nothing else was asked for.
        over(stream, id).await;
    }
    until("nothing is open", || world.a.status.load() == Default::default()).await;
}

#[tokio::test]
async fn a_task_that_had_ended_is_told_of_once_and_unknown_and_foreign_ones_are_left_out() {
    let world = World::start().await;
    let client = world.modern().with_tasks();
    let id = client.create("echo").await;
    world.store.finish(&id, text("done"));
    let foreign = Modern { token: crate::world::BOB, ..client.clone() }.create("echo").await;
    let unknown = TaskId::from_random(7).to_string();
    let asked = json!({"taskIds": [foreign, id, unknown, "nonsense", id]});
    let (mut stream, honoured) = listen(&client, json!(1), asked).await;
    assert_eq!(honoured, json!({"taskIds": [id]}));
    assert_eq!(told(&mut stream, &json!(1)).await["params"]["result"]["content"][0]["text"], "done");
    over(stream, json!(1)).await;
    let (stream, honoured) = listen(&client, json!(2), json!({"taskIds": [foreign]})).await;
    assert_eq!(honoured, json!({"taskIds": []}));
    over(stream, json!(2)).await;
}

#[tokio::test]
async fn who_looks_on_but_cannot_be_asked_is_not_shown_what_is_asked() {
    let world = World::start().await;
    let client = world.modern().with_tasks().declaring("elicitation", json!({}));
    let id = client.create("echo").await;
    world.store.claim(&id);
    world.store.ask(&id, &[("q-1", form("name"))]);
    let (mut stream, _) = listen(&world.modern().with_tasks(), json!(1), json!({"taskIds": [id]})).await;
    let seen = told(&mut stream, &json!(1)).await;
    assert_eq!(seen["params"]["status"], "input_required");
    assert!(!seen.to_string().contains("q-1"), "{seen}");
}

#[tokio::test]
async fn a_lost_hint_and_an_outcome_that_could_not_be_read_only_cost_time() {
    let world = World::start().await;
    let client = world.modern().with_tasks();
    let id = client.create("echo").await;
    let (mut stream, _) = listen(&client, json!(1), json!({"taskIds": [id]})).await;
    told(&mut stream, &json!(1)).await;
    world.store.silent.store(true, Ordering::SeqCst);
    world.store.finish(&id, text("done"));
    assert_eq!(told(&mut stream, &json!(1)).await["params"]["result"]["content"][0]["text"], "done");
    over(stream, json!(1)).await;
}

#[tokio::test]
async fn a_subscription_hears_of_the_lists_that_it_asked_for_and_no_others() {
    let world = everything().await;
    let client = world.modern();
    let all = json!({"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true});
    let (mut every, honoured) = listen(&client, json!("all"), all.clone()).await;
    assert_eq!(honoured, all);
    let (mut tools, honoured) =
        listen(&client, json!("tools"), json!({"toolsListChanged": true, "promptsListChanged": false})).await;
    assert_eq!(honoured, json!({"toolsListChanged": true}));
    let mut info = with_everything();
    for (list, shrink) in [
        ("prompts", (|info| drop(info.prompts.pop())) as fn(&mut longhaul_core::WorkerInfo)),
        ("resources", |info| drop(info.resources.pop())),
        ("tools", |info| drop(info.tools.pop())),
    ] {
        shrink(&mut info);
        world.store.offer(vec![info.clone()]);
        assert_eq!(told(&mut every, &json!("all")).await["method"], format!("notifications/{list}/list_changed"));
    }
    assert_eq!(told(&mut tools, &json!("tools")).await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn what_is_not_served_is_not_honoured() {
    let world = World::start().await;
    let client = world.modern();
    let asked = json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
        "resourceSubscriptions": ["test://one"],
    });
    let (_stream, honoured) = listen(&client, json!(1), asked).await;
    assert_eq!(honoured, json!({"toolsListChanged": true}));
    // Nothing at all is honoured too, and stays open.
    let (mut stream, honoured) = listen(&client, json!(2), json!({})).await;
    assert_eq!(honoured, json!({}));
    assert!(within("a comment", stream.next()).await.unwrap().comment);
    for (params, expected) in [
        (json!({}), (200, -32602)),
        (json!({"notifications": []}), (200, -32602)),
        (json!({"notifications": {"toolsListChanged": "yes"}}), (200, -32602)),
        (json!({"notifications": {"resourceSubscriptions": "x"}}), (200, -32602)),
    ] {
        assert_eq!(client.no("subscriptions/listen", params.clone()).await, expected, "{params}");
    }
    let answer = client.accepting("application/json").call("subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(answer.status(), 406);
}

#[tokio::test]
async fn a_subscription_hears_of_its_resources_although_their_worker_restarts() {
    let world = everything().await;
    let client = world.modern();
    let uris = json!(["test://one", "other://x", "test://of/7"]);
    let (mut stream, honoured) = listen(&client, json!(1), json!({"resourceSubscriptions": uris})).await;
    assert_eq!(honoured, json!({"resourceSubscriptions": ["test://one", "test://of/7"]}));
    until("both are watched", || world.worker.watchers("test://one") == 1 && world.worker.watchers("test://of/7") == 1)
        .await;
    for uri in ["test://of/7", "test://one"] {
        world.worker.update(uri);
        let updated = told(&mut stream, &json!(1)).await;
        assert_eq!(
            (&updated["method"], &updated["params"]["uri"]),
            (&json!("notifications/resources/updated"), &json!(uri))
        );
    }
    world.worker.update("test://two");
    // Nobody knows what happened while nobody watched: that is told as a change.
    world.worker.end_watches();
    let mut updated = [told(&mut stream, &json!(1)).await, told(&mut stream, &json!(1)).await]
        .map(|told| told["params"]["uri"].as_str().unwrap().to_owned());
    updated.sort();
    assert_eq!(updated, ["test://of/7", "test://one"]);
    until("both are watched", || world.worker.watchers("test://one") == 1 && world.worker.watchers("test://of/7") == 1)
        .await;
    world.worker.update("test://one");
    assert_eq!(told(&mut stream, &json!(1)).await["params"]["uri"], "test://one");
    drop(stream);
    until("nobody watches any more", || {
        world.worker.watchers("test://one") == 0 && world.worker.watchers("test://of/7") == 0
    })
    .await;
}

#[tokio::test]
async fn one_stream_hears_of_so_many_resources_and_tasks() {
    let world = everything().await;
    let client = world.modern().with_tasks();
    let uris: Vec<_> = (0..150).map(|at| format!("test://of/{at}")).collect();
    let (_stream, honoured) = listen(&client, json!(1), json!({"resourceSubscriptions": uris})).await;
    assert_eq!(honoured["resourceSubscriptions"], json!(uris[..100]));
    let ids: Vec<_> = (0..257).map(|at| TaskId::from_random(at).to_string()).collect();
    assert_eq!(client.no("subscriptions/listen", json!({"notifications": {"taskIds": ids}})).await, (200, -32602));
}

#[tokio::test]
async fn a_drain_ends_subscriptions_with_their_result() {
    let world = World::start().await;
    let client = world.modern();
    let (stream, _) = listen(&client, json!("d"), json!({"toolsListChanged": true})).await;
    world.a.drain.cancel();
    over(stream, json!("d")).await;
    within("the end", world.a.over.cancelled()).await;
}
