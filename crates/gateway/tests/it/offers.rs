//! Prompts, resources and their templates, and completions, in both eras.

use std::sync::Arc;

use longhaul_core::{PromptDef, TaskSupport};
use serde_json::{Value, json};

use crate::client::{Client, within};
use crate::world::{ALICE, Worker, World, serve_worker, tool, with_everything, worker_info};

async fn everything() -> World {
    let world = World::start().await;
    world.store.offer(vec![with_everything()]);
    let client = world.modern();
    within("the offer", async { while client.call("prompts/list", json!({})).await.status() != 200 {} }).await;
    let there = client.at(world.b.at);
    within("the other offer", async { while there.call("prompts/list", json!({})).await.status() != 200 {} }).await;
    world
}

fn names(page: &Value, items: &str, name: &str) -> Vec<String> {
    page[items].as_array().unwrap().iter().map(|item| item[name].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn each_list_is_paged_in_order_and_a_cursor_is_good_for_its_own_list_and_caller() {
    let world = everything().await;
    let mut info = with_everything();
    info.prompts = ["e", "d", "c", "b", "a"]
        .map(|name| PromptDef { name: name.into(), definition: json!({"name": name}).to_string().into() })
        .into();
    world.store.offer(vec![info]);
    let (modern, session) = (world.modern(), world.alice().await);
    let page = async |params: Value| {
        [modern.ok("prompts/list", params.clone()).await, session.ok("prompts/list", params).await]
    };
    within("the offer", async { while names(&page(json!({})).await[0], "prompts", "name")[0] != "a" {} }).await;
    for first in page(json!({})).await {
        assert_eq!(names(&first, "prompts", "name"), ["a", "b", "c"]);
        // A cursor is not of an era: both lists are the same.
        for rest in page(json!({"cursor": first["nextCursor"]})).await {
            assert_eq!(names(&rest, "prompts", "name"), ["d", "e"]);
            assert!(rest.get("nextCursor").is_none());
        }
        for other in ["tools/list", "resources/list", "resources/templates/list", "tasks/list"] {
            let answer = session.call(other, json!({"cursor": first["nextCursor"]})).await;
            assert_eq!((answer.status(), answer.code()), (200, Some(-32602)), "{other}");
        }
        let answer = world.bob().await.call("prompts/list", json!({"cursor": first["nextCursor"]})).await;
        assert_eq!(answer.code(), Some(-32602));
    }
    let resources = modern.ok("resources/list", json!({})).await;
    assert_eq!(names(&resources, "resources", "uri"), ["test://one", "test://two", "test://wait"]);
    let templates = session.ok("resources/templates/list", json!({})).await;
    assert_eq!(names(&templates, "resourceTemplates", "uriTemplate"), ["test://of/{id}"]);
}

#[tokio::test]
async fn a_page_says_in_2026_07_28_for_how_long_and_for_whom_it_is_good() {
    let world = everything().await;
    let (modern, session) = (world.modern(), world.alice().await);
    for method in [
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    ] {
        let result = modern.ok(method, json!({"uri": "test://one"})).await;
        assert!(result["ttlMs"].is_u64() && result["cacheScope"] == "private", "{method}: {result}");
        if method != "server/discover" {
            let result = session.ok(method, json!({"uri": "test://one"})).await;
            assert!(result.get("ttlMs").is_none() && result.get("resultType").is_none(), "{method}");
        }
    }
}

#[tokio::test]
async fn prompts_resources_and_completions_are_asked_of_a_worker() {
    let world = everything().await;
    let (modern, session) = (world.modern(), world.alice().await);
    let complete = |reference: Value| json!({"ref": reference, "argument": {"name": "city", "value": "p"}});
    for (method, params, pointer, expected) in [
        (
            "prompts/get",
            json!({"name": "greet", "arguments": {"city": "Bern"}}),
            "/messages/0/content/text",
            json!(r#"{"city":"Bern"}"#),
        ),
        ("resources/read", json!({"uri": "test://one"}), "/contents/0/uri", json!("test://one")),
        ("resources/read", json!({"uri": "test://of/7"}), "/contents/0/uri", json!("test://of/7")),
        (
            "completion/complete",
            complete(json!({"type": "ref/prompt", "name": "greet"})),
            "/completion/values/0",
            json!("paris"),
        ),
        (
            "completion/complete",
            complete(json!({"type": "ref/resource", "uri": "test://of/{id}"})),
            "/completion/values/0",
            json!("paris"),
        ),
    ] {
        let now = modern.ok(method, params.clone()).await;
        let then = session.ok(method, params).await;
        assert_eq!((now.pointer(pointer), then.pointer(pointer)), (Some(&expected), Some(&expected)), "{method}");
        assert_eq!((&now["resultType"], then.get("resultType")), (&json!("complete"), None), "{method}");
    }
    for call in &*world.worker.calls.lock().unwrap() {
        assert_eq!(call.principal, crate::world::alice());
        assert!(!call.may_become_task, "{call:?}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_said_in_the_words_of_each_era() {
    let world = everything().await;
    let (modern, session) = (world.modern(), world.alice().await);
    for (method, params, then, now) in [
        ("prompts/get", json!({"name": "nobody"}), -32602, -32602),
        ("resources/read", json!({"uri": "other://x"}), -32002, -32602),
        // Only the worker knows that this one is not of its family.
        ("resources/read", json!({"uri": "test://of/missing"}), -32002, -32602),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "nobody"}, "argument": {"name": "a", "value": ""}}),
            -32602,
            -32602,
        ),
    ] {
        assert_eq!(modern.no(method, params.clone()).await, (200, now), "{method} {params}");
        let answer = session.call(method, params.clone()).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(then)), "{method} {params}");
        if method == "resources/read" {
            assert_eq!(answer.json()["error"]["data"]["uri"], params["uri"]);
        }
    }
}

#[tokio::test]
async fn a_resource_is_read_at_the_worker_that_lists_it_or_whose_template_fits_best() {
    let world = everything().await;
    let client = world.modern();
    let other = Arc::new(Worker::default());
    serve_worker(&world.tasks, &world.links, &world.token, "v", other.clone());
    let template = |uri: &str| longhaul_core::TemplateDef {
        uri_template: uri.into(),
        definition: json!({"uriTemplate": uri, "name": "n"}).to_string().into(),
    };
    let mut info = worker_info("v", Some("memory://v"), Vec::new());
    info.templates =
        vec![template("test://of/special/{id}"), template("test://of/deep/{id}/end"), template("test://{any}")];
    world.store.offer(vec![with_everything(), info]);
    within("the offer", async {
        while client.ok("resources/templates/list", json!({})).await["resourceTemplates"].as_array().unwrap().len() < 3
        {
        }
    })
    .await;
    for (uri, here) in [
        ("test://one", true),
        ("test://of/1", true),
        ("test://of/special/1", false),
        ("test://of/deep/1/end", false),
        ("test://of/deep/1", true),
        ("test://elsewhere", false),
    ] {
        let before = (world.worker.calls.lock().unwrap().len(), other.calls.lock().unwrap().len());
        client.ok("resources/read", json!({"uri": uri})).await;
        let after = (world.worker.calls.lock().unwrap().len(), other.calls.lock().unwrap().len());
        assert_eq!((after.0 - before.0, after.1 - before.1), if here { (1, 0) } else { (0, 1) }, "{uri}");
    }
}

#[tokio::test]
async fn each_list_has_its_own_notice_of_change() {
    let world = everything().await;
    let client = world.alice().await;
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    let mut info = with_everything();
    info.prompts.pop();
    world.store.offer(vec![info.clone()]);
    assert_eq!(stream.message().await["method"], "notifications/prompts/list_changed");
    info.resources.pop();
    world.store.offer(vec![info.clone()]);
    assert_eq!(stream.message().await["method"], "notifications/resources/list_changed");
    info.templates.clear();
    world.store.offer(vec![info.clone()]);
    assert_eq!(stream.message().await["method"], "notifications/resources/list_changed");
    info.tools.push(tool("new", TaskSupport::Optional));
    world.store.offer(vec![info]);
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn a_session_hears_of_the_lists_that_it_was_told_of_and_of_no_others() {
    let world = World::start().await;
    // There are only tools at first.
    let (before, mut info) = (world.alice().await, with_everything());
    let mut old = before.get(None).await;
    old.event().await.unwrap();
    world.store.offer(vec![info.clone()]);
    let after = within("a session that is told of prompts", async {
        loop {
            let answer = Client::new(world.a.at, ALICE).initialize("2025-11-25").await;
            if answer.json()["result"]["capabilities"]["prompts"].is_object() {
                break world.alice().await;
            }
        }
    })
    .await;
    let mut new = after.get(None).await;
    new.event().await.unwrap();
    info.prompts.pop();
    info.resources.pop();
    world.store.offer(vec![info.clone()]);
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.push(new.message().await["method"].as_str().unwrap().to_owned());
    }
    heard.sort();
    assert_eq!(heard, ["notifications/prompts/list_changed", "notifications/resources/list_changed"]);
    info.tools.push(tool("new", TaskSupport::Optional));
    world.store.offer(vec![info]);
    assert_eq!(new.message().await["method"], "notifications/tools/list_changed");
    // The first has heard of the same, and of other tools alone.
    let mut last = String::new();
    while !last.contains("tools") {
        last = old.message().await["method"].as_str().unwrap().to_owned();
        assert_eq!(last, "notifications/tools/list_changed");
    }
}

#[tokio::test]
async fn a_session_subscribes_to_resources_that_are_there_up_to_a_limit() {
    let world = everything().await;
    let client = world.alice().await;
    assert_eq!(client.ok("resources/subscribe", json!({"uri": "test://one"})).await, json!({}));
    assert_eq!(client.at(world.b.at).ok("resources/subscribe", json!({"uri": "test://one"})).await, json!({}));
    let stored = || world.store.subscriptions.lock().unwrap().values().next().unwrap().clone();
    assert_eq!(stored(), ["test://one"]);
    let answer = client.call("resources/subscribe", json!({"uri": "other://x"})).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-32002)));
    for at in 1..longhaul_rpc::SUBSCRIPTIONS_MAX {
        client.ok("resources/subscribe", json!({"uri": format!("test://of/{at}")})).await;
    }
    let answer = client.call("resources/subscribe", json!({"uri": "test://two"})).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-31429)));
    assert_eq!(answer.json()["error"]["data"]["refused_by"], "subscription_limit");
    assert_eq!(client.ok("resources/unsubscribe", json!({"uri": "test://one"})).await, json!({}));
    assert_eq!(client.ok("resources/unsubscribe", json!({"uri": "never://was"})).await, json!({}));
    assert_eq!(client.ok("resources/subscribe", json!({"uri": "test://two"})).await, json!({}));
    // Another session has its own.
    assert_eq!(world.alice().await.ok("resources/subscribe", json!({"uri": "test://one"})).await, json!({}));
    let sessions: Vec<_> = world.store.subscriptions.lock().unwrap().keys().cloned().collect();
    assert_eq!(sessions.len(), 2);
    assert!(
        !sessions.iter().any(|tag| client.session.as_ref().unwrap().contains(tag)),
        "the session itself was stored"
    );
}

#[tokio::test]
async fn a_session_sets_its_log_level_on_every_gateway() {
    let world = World::start().await;
    let client = world.alice().await;
    assert_eq!(client.call("logging/setLevel", json!({"level": "loud"})).await.code(), Some(-32602));
    let level = async |at| {
        let before = world.worker.calls.lock().unwrap().len();
        client.at(at).ok("tools/call", json!({"name": "echo"})).await;
        world.worker.calls.lock().unwrap()[before].line.log
    };
    assert_eq!(client.ok("logging/setLevel", json!({"level": "error"})).await, json!({}));
    let error = Some(longhaul_core::LogLevel::Error);
    assert_eq!(level(world.a.at).await, error, "at once where it was set");
    within("the other gateway", async { while level(world.b.at).await != error {} }).await;
    // The last one counts, wherever it was set.
    client.at(world.b.at).ok("logging/setLevel", json!({"level": "debug"})).await;
    within("the first gateway", async { while level(world.a.at).await != Some(longhaul_core::LogLevel::Debug) {} })
        .await;
    assert_eq!(client.at(world.b.at).ok("logging/setLevel", json!({"level": "debug"})).await, json!({}));
    // Where no hint arrives, it counts at once on the gateway that was told.
    let pace = longhaul_gateway::Pace { sessions: std::time::Duration::from_secs(3600), ..crate::world::config().pace };
    let config = longhaul_gateway::Config { pace, ..crate::world::config() };
    let deaf = World::with(config, Arc::new(longhaul_bus::DeafBus::new())).await;
    let client_there = deaf.alice().await;
    client_there.ok("logging/setLevel", json!({"level": "error"})).await;
    client_there.ok("tools/call", json!({"name": "echo"})).await;
    assert_eq!(deaf.worker.calls.lock().unwrap().last().unwrap().line.log, error);
    // Another session is not meant.
    let other = world.alice().await;
    other.ok("tools/call", json!({"name": "echo"})).await;
    assert_ne!(world.worker.calls.lock().unwrap().last().unwrap().line.log, Some(longhaul_core::LogLevel::Debug));
}

#[tokio::test]
async fn in_2026_07_28_a_request_says_itself_what_it_wants_to_hear() {
    let world = World::start().await;
    let client = world.modern();
    let level = "io.modelcontextprotocol/logLevel";
    for (client, log) in [
        (client.clone(), None),
        (client.clone().saying(level, json!("warning")), Some(longhaul_core::LogLevel::Warning)),
    ] {
        client.ok("tools/call", json!({"name": "echo"})).await;
        assert_eq!(world.worker.calls.lock().unwrap().last().unwrap().line.log, log);
    }
    assert_eq!(client.saying(level, json!("loud")).no("tools/call", json!({"name": "echo"})).await.1, -32602);
}
