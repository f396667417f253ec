//! Prompts, resources and completion, in both eras and through either gateway.

use longhaul_tests::client::Events;
use longhaul_tests::modern::Modern;
use longhaul_tests::world::{ALICE, Wiring, World};
use longhaul_worker::{Messages, NoArguments, Prompt};
use serde_json::{Value, json};

fn names<'a>(list: &'a Value, what: &str, name: &str) -> Vec<&'a str> {
    list[what].as_array().unwrap().iter().map(|one| one[name].as_str().unwrap()).collect()
}

async fn the_same_is_on_offer_in_both_eras(wiring: Wiring) {
    let world = World::start(wiring).await;
    for gateway in 0..2 {
        let (old, new) = (&world.clients(ALICE).await[gateway], Modern::new(&world.urls[gateway], Some(ALICE)));
        for (method, what, name) in [("prompts/list", "prompts", "name"), ("resources/list", "resources", "uri")] {
            let (in_old, in_new) = (old.ok(method, json!({})).await, new.ok(method, json!({})).await);
            assert_eq!(names(&in_old, what, name), names(&in_new, what, name));
            assert_eq!(names(&in_new, what, name).len(), 1, "{in_new}");
            assert!(in_old.get("ttlMs").is_none() && in_new["ttlMs"].is_u64(), "{in_old} {in_new}");
        }
        let prompt = json!({"name": "greeting", "arguments": {"name": "Ann"}});
        let (in_old, in_new) = (old.ok("prompts/get", prompt.clone()).await, new.ok("prompts/get", prompt).await);
        assert_eq!(in_old["messages"], in_new["messages"]);
        assert!(in_new["messages"][0]["content"]["text"].as_str().unwrap().contains("Ann"), "{in_new}");
        let read = json!({"uri": "demo://welcome"});
        let (in_old, in_new) = (old.ok("resources/read", read.clone()).await, new.ok("resources/read", read).await);
        assert_eq!(in_old["contents"], in_new["contents"]);
        assert_eq!(in_new["contents"][0]["uri"], "demo://welcome");

        let nothing = json!({"uri": "demo://nothing"});
        let error = old.error("resources/read", nothing.clone()).await;
        assert_eq!((&error["code"], &error["data"]["uri"]), (&json!(-32002), &json!("demo://nothing")));
        let (status, error) = new.error("resources/read", nothing).await;
        assert_eq!((status, &error["code"], &error["data"]["uri"]), (200, &json!(-32602), &json!("demo://nothing")));
        let unknown = json!({"name": "nothing"});
        assert_eq!(old.error("prompts/get", unknown.clone()).await["code"], -32602);
        assert_eq!(new.error("prompts/get", unknown).await.1["code"], -32602);
    }
    world.stop().await;
}

async fn a_new_prompt_is_announced_to_those_who_want_to_know(wiring: Wiring) {
    let world = World::start(wiring).await;
    let old = world.client(ALICE).await;
    let mut stream = Events::new(old.get(None).await);
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let new = Modern::new(&world.urls[1], Some(ALICE));
    let (_, honoured, mut events) = new.listen(json!({"promptsListChanged": true})).await;
    assert_eq!(honoured, json!({"promptsListChanged": true}));
    let prompt = Prompt::new("late", async |_, _: NoArguments| Ok(Messages::new().user("here"))).description("Late.");
    world.start_worker_offering("worker-2", vec![prompt.into()]).await;
    assert_eq!(events.next().await.unwrap()["method"], "notifications/prompts/list_changed");
    loop {
        let message = stream.next().await.unwrap();
        if message["method"] == "notifications/prompts/list_changed" {
            break;
        }
    }
    assert_eq!(names(&new.ok("prompts/list", json!({})).await, "prompts", "name"), ["greeting", "late"]);
    world.stop().await;
}

async fn a_watched_resource_is_told_of_where_it_was_asked_for(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let mut stream = Events::new(one.get(None).await);
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    // Subscribed through the other gateway.
    let elsewhere = one.at(&world.urls[1]);
    assert_eq!(elsewhere.ok("resources/subscribe", json!({"uri": "demo://welcome"})).await, json!({}));
    let new = Modern::new(&world.urls[1], Some(ALICE));
    let (_, honoured, mut events) = new.listen(json!({"resourceSubscriptions": ["demo://welcome"]})).await;
    assert_eq!(honoured, json!({"resourceSubscriptions": ["demo://welcome"]}));
    let told = async {
        // Until the watch has begun, an update is nobody's.
        loop {
            other.ok("tools/call", json!({"name": "touch", "arguments": {}})).await;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let heard = async {
        for stream in [&mut events, &mut stream] {
            loop {
                let message = stream.next().await.unwrap();
                if message["method"] == "notifications/resources/updated" {
                    assert_eq!(message["params"]["uri"], "demo://welcome");
                    break;
                }
            }
        }
    };
    tokio::select! {
        () = heard => {}
        () = told => {}
    }
    world.stop().await;
}

crate::both!(
    the_same_is_on_offer_in_both_eras,
    a_new_prompt_is_announced_to_those_who_want_to_know,
    a_watched_resource_is_told_of_where_it_was_asked_for,
);
