//! Prompts, resources, their templates and what completes them; and who hears that a resource has changed.

use crate::http::Server;
use crate::world::{self, SOON, World, error, fixture};
use futures::StreamExt as _;
use longhaul_core::{Outcome, Target};
use serde_json::{Value, json};
use tokio::time::timeout;

const NUMBERS: &str = "123456789012345678901234567890";

fn upstream(name: &str) -> Value {
    json!({ "name": name, "command": ["python3", fixture(), "stdio"] })
}

fn resource(uri: &str) -> Target {
    Target::Resource(uri.into())
}

#[tokio::test]
async fn what_a_server_offers_is_offered_under_its_name_and_else_as_it_is() {
    let world = World::start(&[upstream("up")]).await;
    let worker = world.announced(|worker| (!worker.templates.is_empty()).then(|| worker.clone())).await;
    let text = |definition: &bytes::Bytes| squeeze(std::str::from_utf8(definition).unwrap());
    let prompts: Vec<_> = worker.prompts.iter().map(|prompt| (&*prompt.name, text(&prompt.definition))).collect();
    assert_eq!(
        prompts,
        [
            ("up.exact", r#"{"n":1e2,"name":"up.exact","arguments":[{"name":"who","required":true,"new":-0}]}"#.into()),
            ("up.fail", r#"{"name":"up.fail"}"#.into()),
        ]
    );
    let resources: Vec<_> = worker.resources.iter().map(|resource| &*resource.uri).collect();
    assert_eq!(resources, ["up+test://exact", "up+test://blob", "up+test://missing", "up+test://odd"], "both pages");
    assert_eq!(
        text(&worker.resources[0].definition),
        r#"{"size":-0,"uri":"up+test:\u002f/exact","name":"Exact","new":1.10}"#
    );
    let templates: Vec<_> = worker.templates.iter().map(|template| &*template.uri_template).collect();
    assert_eq!(templates, ["up+test://t/{id}/data{?full,page*}", "up+{scheme}://any/{+path}"]);
    assert_eq!(
        text(&worker.templates[0].definition),
        r#"{"n":1e2,"uriTemplate":"up+test://t/{id}/data{?full,page*}","name":"Data"}"#
    );
    assert!(worker.completes);
    world.end().await;
}

#[tokio::test]
async fn prompts_come_through_as_they_are() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.exact").await;
    let arguments = r#"{ "who": "\u00e9", "n": 1e2 }"#;
    let result = world.result(Target::Prompt("up.exact".into()), arguments).await;
    assert!(result.starts_with(&format!(r#"{{ "n":{NUMBERS}, "messages": [{{"role":"user""#)), "{result}");
    let read: Value = serde_json::from_str(&result).unwrap();
    let sent = read["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(sent.contains(r#""name":"exact","arguments":{ "who": "\u00e9", "n": 1e2 }"#), "{sent}");

    let Outcome::Error(failed) = world.invoke(Target::Prompt("up.fail".into()), "{}").await.outcome().await else {
        panic!()
    };
    assert_eq!((failed.code, &*failed.message, failed.data.as_deref()), (-32602, "no such", Some(&b"[1e2]"[..])));
    world.end().await;
}

#[tokio::test]
async fn contents_keep_every_byte_but_for_their_uris() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.exact").await;
    let result = world.result(resource("up+test://exact"), "{}").await;
    let bytes = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fYGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn+AgYKDhIWGh4iJiouMjY6PkJGSk5SVlpeYmZqbnJ2en6ChoqOkpaanqKmqq6ytrq+wsbKztLW2t7i5uru8vb6/wMHCw8TFxsfIycrLzM3Oz9DR0tPU1dbX2Nna29zd3t/g4eLj5OXm5+jp6uvs7e7v8PHy8/T19vf4+fr7/P3+/w==";
    let expected = format!(
        concat!(
            r#"{{ "zeta":-0, "contents": [ {{"uri":"up+test:\u002f/exact","text":"\"uri\": \"test://exact\"","n":1e2}},"#,
            r#" {{"x":{{"uri":"test://inner"}},"blob":"{}","uri" : "up+test://other"}} ], "uri":"test://outer" }}"#
        ),
        bytes
    );
    assert_eq!(result, expected);
    let blob: Value = serde_json::from_str(&world.result(resource("up+test://blob"), "{}").await).unwrap();
    assert_eq!(blob["contents"][0], json!({ "uri": "up+test://blob", "mimeType": "image/png", "blob": bytes }));
    world.end().await;
}

#[tokio::test]
async fn a_uri_of_a_template_finds_its_way_there_and_back() {
    let world = World::start(&[upstream("up"), upstream("2_b")]).await;
    for prefix in ["up", "x-2.b"] {
        world
            .announced(|worker| worker.templates.iter().any(|one| one.uri_template.starts_with(prefix)).then_some(()))
            .await;
        for uri in ["test://t/4%207/data?full=1&page=2", "file://any/a/b+c", "test://t/é/data"] {
            let prefixed = format!("{prefix}+{uri}");
            let read: Value = serde_json::from_str(&world.result(resource(&prefixed), "{}").await).unwrap();
            assert_eq!(read["contents"][0], json!({ "uri": prefixed, "text": "read" }));
        }
    }
    world.end().await;
}

#[tokio::test]
async fn a_resource_that_is_not_there_is_named_as_it_was_asked_for() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.exact").await;
    let Outcome::Error(missing) = world.invoke(resource("up+test://missing"), "{}").await.outcome().await else {
        panic!()
    };
    let data: Value = serde_json::from_slice(&missing.data.unwrap()).unwrap();
    assert_eq!((missing.code, data), (-32002, json!({ "uri": "up+test://missing" })));
    let odd = world.invoke(resource("up+test://odd"), "{}").await.outcome().await;
    assert_eq!(error(&odd), (-32603, "the upstream server up gives no contents that MCP knows"));
    world.end().await;
}

#[tokio::test]
async fn completions_are_asked_for_by_the_servers_own_names() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.exact").await;
    let wanted = r#"{ "argument": {"name":"who","value":"o"}, "context": {"arguments":{"a":"b"}} }"#;
    for target in [
        Target::CompletePrompt("up.exact".into()),
        Target::CompleteTemplate("up+test://t/{id}/data{?full,page*}".into()),
    ] {
        let result = world.result(target, wanted).await;
        assert_eq!(result, r#"{ "completion": {"values":["one","two"],"total":1e2}, "new":-0 }"#);
    }
    let seen = world.text("up.seen", r#"{"event": "complete", "times": 2}"#).await;
    for reference in [
        r#"complete [{\"type\": \"ref/prompt\", \"name\": \"exact\"}, {\"name\": \"who\", \"value\": \"o\"}, {\"arguments\": {\"a\": \"b\"}}]"#,
        r#"{\"type\": \"ref/resource\", \"uri\": \"test://t/{id}/data{?full,page*}\"}"#,
    ] {
        assert!(seen.contains(reference), "{seen}");
    }
    world.end().await;
}

#[tokio::test]
async fn of_too_many_resources_the_first_thousand_are_offered() {
    let mut config = upstream("up");
    config["env"] = json!(["MANY=1"]);
    let world = World::start(&[config, upstream("small")]).await;
    world.tool("up.exact").await;
    let tool = world.tool("small.exact").await;
    assert_eq!(tool.name, "small.exact");
    let resources = world.announced(|worker| (!worker.resources.is_empty()).then(|| worker.resources.clone())).await;
    assert_eq!(resources.len(), 1000);
    assert_eq!(resources[999].uri, "up+test://999");
    let read = world.result(resource("up+test://999"), "{}").await;
    assert_eq!(read, r#"{"contents":[{"uri":"up+test://999","text":"read"}]}"#);
    world.end().await;
}

#[tokio::test]
async fn who_watches_a_resource_hears_when_it_has_changed() {
    let server = Server::start().await;
    for config in [upstream("up"), server.upstream("mcp")] {
        let world = World::start(&[config]).await;
        world.tool("up.touch").await;
        let mut first = world.watch("up+test://blob").await;
        let mut second = world.watch("up+test://blob").await;
        for watcher in [&mut first, &mut second] {
            soon(watcher).await;
        }
        world.text("up.seen", r#"{"event": "subscribe test://blob"}"#).await;
        touch(&world, "test://exact").await;
        for watcher in [&mut first, &mut second] {
            assert!(futures::poll!(watcher.next()).is_pending(), "that was another one");
        }
        let touching = async {
            loop {
                touch(&world, "test://blob").await;
            }
        };
        tokio::select! {
            () = async { soon(&mut first).await; soon(&mut second).await } => {}
            () = touching => {}
        }
        drop(first);
        drop(second);
        world.text("up.seen", r#"{"event": "unsubscribe test://blob"}"#).await;
        world.end().await;
    }
}

#[tokio::test]
async fn a_server_that_was_started_again_is_told_what_is_watched() {
    let server = Server::start().await;
    for (config, lose) in [(upstream("up"), "up.crash"), (server.upstream("mcp"), "up.forget")] {
        let world = World::start(&[config]).await;
        world.tool("up.touch").await;
        let mut watcher = world.watch("up+test://blob").await;
        soon(&mut watcher).await;
        let times = if lose == "up.crash" { 1 } else { 2 };
        let seen = json!({ "event": "subscribe test://blob", "times": times });
        world.text("up.seen", &seen.to_string()).await;
        world.begin(lose, "{}").await.over().await;
        // A process of its own, or the third and fourth session.
        let times = if lose == "up.crash" { 1 } else { 4 };
        let seen = json!({ "event": "subscribe test://blob", "times": times });
        world.text("up.seen", &seen.to_string()).await;
        if lose == "up.forget" {
            // It may have changed meanwhile.
            soon(&mut watcher).await;
        }
        world.end().await;
    }
}

#[tokio::test]
async fn a_server_that_lists_is_told_what_is_watched_when_it_was_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut config = upstream("up");
    config["env"] = json!([format!("LOG={}", log.display())]);
    let world = World::start(&[config]).await;
    world.tool("up.touch").await;
    let mut watcher = world.watch("up+test://blob").await;
    soon(&mut watcher).await;
    let subscribed = || -> Vec<String> {
        let log = std::fs::read_to_string(&log).unwrap();
        log.lines().filter_map(|line| line.strip_suffix(" subscribe test://blob")).map(str::to_owned).collect()
    };
    world::until(|| subscribed().len() == 1).await;
    let killed = std::process::Command::new("kill").arg("-9").arg(&subscribed()[0]).status().unwrap();
    assert!(killed.success());
    // It may have changed meanwhile.
    soon(&mut watcher).await;
    world::until(|| subscribed().len() == 2).await;
    assert_eq!(world.runner.status()[0].sessions, 0, "nobody has called");
    world.end().await;
}

async fn touch(world: &World, uri: &str) {
    assert_eq!(world.text("up.touch", &json!({ "uri": uri }).to_string()).await, "touched");
}

async fn soon(watcher: &mut (impl futures::Stream<Item = Result<(), longhaul_rpc::Error>> + Unpin)) {
    timeout(SOON, watcher.next()).await.expect("it has changed").unwrap().unwrap();
}

/// JSON without the space around its marks, where no string has any.
fn squeeze(json: &str) -> String {
    json.replace(" : ", ":").replace(", ", ",").replace(": ", ":").replace("{ ", "{").replace(" }", "}")
}

#[tokio::test]
async fn a_changed_list_of_any_kind_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = upstream("up");
    config["env"] = json!([format!("GROWN={}", folder.path().join("grown").display())]);
    let world = World::start(&[config]).await;
    world.tool("up.grow").await;
    assert_eq!(world.text("up.grow", r#"{"what": ["prompts", "resources"]}"#).await, "grown");
    world.announced(|worker| worker.prompts.iter().any(|prompt| prompt.name == "up.extra").then_some(())).await;
    world.announced(|worker| worker.resources.iter().any(|one| one.uri == "up+test://extra").then_some(())).await;
    world.announced(|worker| worker.templates.iter().any(|one| one.uri_template == "up+extra:{x}").then_some(())).await;
    assert!(
        world::result(&world.invoke(Target::Prompt("up.extra".into()), "{}").await.outcome().await).contains("extra")
    );
    world.end().await;
}
