//! Prompts, resources and completion.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt as _;
use longhaul_core::{Outcome, Refusal, Target};
use longhaul_rpc::{CallEvent, Calls as _, Error, Invocation, Line, Resume};
use longhaul_worker::{
    Answer, Ask, ClientCapabilities, Contents, Context, Failure, Messages, NoArguments, Offer, Prompt, Resource, Role,
    Tool, Worker, demo,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::outcome::error;
use crate::store::{Asked, World, anything, call, principal, yes};

fn of(target: Target, arguments: &'static str) -> Invocation {
    Invocation { target, ..call("", arguments) }
}

async fn outcome(world: &World, target: Target, arguments: &'static str) -> Outcome {
    let events = world.calls().invoke(of(target, arguments)).await.unwrap();
    match events.map(Result::unwrap).collect::<Vec<_>>().await.as_slice() {
        [CallEvent::Outcome(outcome)] => outcome.clone(),
        other => panic!("not one outcome: {other:?}"),
    }
}

async fn body(world: &World, target: Target, arguments: &'static str) -> String {
    match outcome(world, target, arguments).await {
        Outcome::Result { is_error: false, body } => String::from_utf8(body.to_vec()).unwrap(),
        other => panic!("no result: {other:?}"),
    }
}

async fn json_of(world: &World, target: Target, arguments: &'static str) -> Value {
    serde_json::from_str(&body(world, target, arguments).await).unwrap()
}

fn prompt(name: &str) -> Target {
    Target::Prompt(name.into())
}

fn resource(uri: &str) -> Target {
    Target::Resource(uri.into())
}

#[derive(Deserialize)]
struct Review {
    code: String,
    style: Option<String>,
}

fn review() -> Prompt {
    Prompt::new("review", async |context: Context, Review { code, style }| {
        assert_eq!((context.method(), context.tool(), context.as_task()), ("prompts/get", "review", None));
        if code.is_empty() {
            return Err(Failure::tool("there is nothing to review"));
        }
        let messages = Messages::new().user(format!("Review {code} {}", style.unwrap_or_default()));
        Ok(messages
            .assistant("Gladly.")
            .image(Role::User, b"\x00\xff", "image/png")
            .resource(Role::User, "demo://style", "text/plain", "be nice")
            .description("A review"))
    })
    .argument("code", "What to review", true)
    .argument("style", "How", false)
}

#[tokio::test(start_paused = true)]
async fn a_prompt_gives_messages_or_says_what_is_wrong() {
    let world = World::new();
    let raw = Prompt::raw(br#"{"name":"raw","odd":1.10}"#, async |_, arguments| Ok(Messages::raw(arguments)));
    let _worker = world.run(Worker::new(world.config()).prompt(review()).prompt(raw));
    assert_eq!(
        json_of(&world, prompt("review"), r#"{"code":"fn"}"#).await,
        json!({ "description": "A review", "messages": [
            { "role": "user", "content": { "type": "text", "text": "Review fn " } },
            { "role": "assistant", "content": { "type": "text", "text": "Gladly." } },
            { "role": "user", "content": { "type": "image", "data": "AP8=", "mimeType": "image/png" } },
            { "role": "user", "content": { "type": "resource", "resource":
                { "uri": "demo://style", "mimeType": "text/plain", "text": "be nice" } } }
        ]})
    );
    let exact = r#"{ "messages":[],"n":1.10, "big":12345678901234567890123 }"#;
    assert_eq!(body(&world, prompt("raw"), exact).await, exact);
    for (target, arguments, code, words) in [
        (prompt("review"), "{}", -32602, "`code`"),
        (prompt("review"), r#"{"code":1}"#, -32602, "`code`"),
        (prompt("review"), r#"{"code":""}"#, -32603, "nothing to review"),
        (prompt("nope"), "{}", -32602, "Unknown prompt: nope"),
        // A tool of that name is no prompt.
        (Target::Tool("review".into()), "{}", -32602, "Unknown tool: review"),
    ] {
        let (got, message) = error(outcome(&world, target.clone(), arguments).await);
        assert!(got == code && message.contains(words), "{target:?} {arguments}: {got} {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_is_read_by_its_uri_or_by_a_template_that_fits() {
    #[derive(Deserialize)]
    struct Row {
        table: String,
        id: String,
    }
    let world = World::new();
    let worker = Worker::new(world.config())
        .resource(Resource::new("demo://a", "a", async |_| Ok(Contents::text("A"))).media_type("text/plain"))
        .resource(Resource::new("demo://bytes", "bytes", async |_| Ok(Contents::blob(b"\x00\xff"))))
        .resource(Resource::new("demo://dir", "dir", async |_| {
            Ok(Contents::text("index")
                .with_text("demo://dir/x", "x")
                .media_type("text/x")
                .with_blob("demo://dir/y", b"y"))
        }))
        .resource(
            Resource::template("demo://{table}/{id}", "row", async |context: Context, Row { table, id }| {
                if id == "0" {
                    return Err(Failure::resource_not_found(context.tool()));
                }
                Ok(Contents::text(format!("{table} {id}")))
            })
            .media_type("text/row"),
        )
        .resource(Resource::template("kind://{kind}", "kind", async |_, kind: Kind| {
            Ok(Contents::text(kind.kind.name()))
        }))
        .resource(Resource::new("demo://t/exact", "exact", async |_| Ok(Contents::text("exact"))))
        .resource(Resource::raw_template(br#"{"uriTemplate":"up://{+path}","name":"up"}"#, async |_, uri: String| {
            Ok(Contents::raw(format!(r#"{{"contents":[ ],"uri":"{uri}"}}"#)))
        }))
        .resource(Resource::new("demo://broken", "broken", async |_| Err(Failure::tool("no disk"))));
    let _worker = world.run(worker);
    for (uri, contents) in [
        ("demo://a", json!([{ "uri": "demo://a", "mimeType": "text/plain", "text": "A" }])),
        ("demo://bytes", json!([{ "uri": "demo://bytes", "blob": "AP8=" }])),
        (
            "demo://dir",
            json!([
                { "uri": "demo://dir", "text": "index" },
                { "uri": "demo://dir/x", "mimeType": "text/x", "text": "x" },
                { "uri": "demo://dir/y", "blob": "eQ==" }
            ]),
        ),
        ("demo://t/a%20b", json!([{ "uri": "demo://t/a%20b", "mimeType": "text/row", "text": "t a b" }])),
        ("demo://t/exact", json!([{ "uri": "demo://t/exact", "text": "exact" }])),
        ("kind://one", json!([{ "uri": "kind://one", "text": "One" }])),
    ] {
        assert_eq!(json_of(&world, resource(uri), "{}").await, json!({ "contents": contents }), "{uri}");
    }
    assert_eq!(body(&world, resource("up://a/b"), "{}").await, r#"{"contents":[ ],"uri":"up://a/b"}"#);
    for uri in ["demo://nope", "demo://t/0", "kind://two", "x"] {
        let Outcome::Error(missing) = outcome(&world, resource(uri), "{}").await else { panic!("{uri} was found") };
        assert_eq!((missing.code, missing.message.as_str()), (-32002, "Resource not found"));
        assert_eq!(missing.data.unwrap(), format!(r#"{{"uri":"{uri}"}}"#));
    }
    assert_eq!(error(outcome(&world, resource("demo://broken"), "{}").await), (-32603, "no disk".into()));
}

#[derive(Deserialize)]
struct Kind {
    kind: KindName,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindName {
    One,
}

impl KindName {
    fn name(&self) -> &'static str {
        match self {
            Self::One => "One",
        }
    }
}

#[tokio::test(start_paused = true)]
async fn arguments_and_variables_are_completed() {
    let world = World::new();
    let styles = async |context: Context, value: String, given: HashMap<String, String>| {
        assert_eq!(context.method(), "completion/complete");
        let all = ["nice", "neat", "harsh"].into_iter().filter(|style| style.starts_with(&value));
        all.map(|style| format!("{style}{}", given.get("code").map_or("", String::as_str))).collect()
    };
    let ids = async |_: Context, _: String, _| (0..150).map(|id| id.to_string()).collect();
    let raw = async |_: Context, wanted: bytes::Bytes| Ok(wanted);
    let worker = Worker::new(world.config())
        .prompt(review().complete("style", styles))
        .prompt(Prompt::new("plain", async |_, _: NoArguments| Ok(Messages::new())))
        .prompt(Prompt::raw(br#"{"name":"raw"}"#, async |_, _| Ok(Messages::new())).complete_raw(raw))
        .resource(
            Resource::template("demo://{id}", "row", async |_, _: HashMap<String, String>| Ok(Contents::text("")))
                .complete("id", ids),
        );
    let _worker = world.run(worker);
    let of_prompt = |name: &str| Target::CompletePrompt(name.into());
    let completion = async |target, arguments| json_of(&world, target, arguments).await["completion"].clone();
    let style = r#"{"argument":{"name":"style","value":"n"},"context":{"arguments":{"code":"!"}}}"#;
    assert_eq!(
        completion(of_prompt("review"), style).await,
        json!({ "values": ["nice!", "neat!"], "total": 2, "hasMore": false })
    );
    let nothing = json!({ "values": [], "total": 0, "hasMore": false });
    for (name, arguments) in [
        ("review", r#"{"argument":{"name":"code","value":"n"}}"#),
        ("review", r#"{"argument":{"name":"odd","value":""}}"#),
        ("plain", r#"{"argument":{"name":"style","value":"n"}}"#),
    ] {
        assert_eq!(completion(of_prompt(name), arguments).await, nothing, "{name} {arguments}");
    }
    let template = Target::CompleteTemplate("demo://{id}".into());
    let many = completion(template, r#"{"argument":{"name":"id","value":""}}"#).await;
    assert_eq!(
        (many["values"].as_array().unwrap().len(), &many["total"], &many["hasMore"]),
        (100, &json!(150), &json!(true))
    );
    let exact = r#"{"argument" : {}, "n":1.10}"#;
    assert_eq!(body(&world, of_prompt("raw"), exact).await, exact);
    for (target, arguments) in
        [(of_prompt("nope"), "{}"), (of_prompt("review"), "{}"), (Target::CompleteTemplate("demo://{x}".into()), "{}")]
    {
        assert_eq!(error(outcome(&world, target.clone(), arguments).await).0, -32602, "{target:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_that_is_on_offer_is_announced_and_again_when_it_changes() {
    let world = World::new();
    let tool = Tool::new("t", async |_, _: NoArguments| Ok(Answer::text("")))
        .needs(ClientCapabilities { sampling: true, ..ClientCapabilities::default() });
    let worker =
        Worker::new(world.config()).tool(tool).with_tools(demo::prompts()).with_tools(demo::resources()).resource(
            Resource::template("demo://{x}", "x", async |_, _: HashMap<String, String>| Ok(Contents::text(""))),
        );
    let tools = worker.tools();
    let _worker = world.run(worker);
    let attached = |asked: &Asked| matches!(asked, Asked::Attach(_));
    let (_, Asked::Attach(info)) = world.store.heard(1, attached).await else { panic!() };
    assert!(info.tools[0].needs.sampling && !info.tools[0].decides && info.completes);
    assert_eq!((info.prompts[0].name.as_str(), info.prompts.len()), ("greeting", 1));
    assert_eq!((info.resources[0].uri.as_str(), info.resources.len()), ("demo://welcome", 1));
    assert_eq!((info.templates[0].uri_template.as_str(), info.templates.len()), ("demo://{x}", 1));
    assert!(body(&world, prompt("greeting"), r#"{"name":"Ada"}"#).await.contains("Greet Ada"));
    assert!(body(&world, resource("demo://welcome"), "{}").await.contains("Welcome"));

    let offers: [Offer; 2] =
        [review().into(), Resource::new("demo://new", "new", async |_| Ok(Contents::text(""))).into()];
    tools.replace(offers).unwrap();
    let (_, Asked::Attach(info)) = world.store.heard(2, attached).await else { panic!() };
    assert_eq!((info.tools.len(), info.prompts.len(), info.resources.len(), info.templates.len()), (0, 1, 1, 0));
    assert!(!info.completes);
    assert_eq!(error(outcome(&world, prompt("greeting"), "{}").await).0, -32602);
    let twice = tools.add(Resource::new("demo://new", "new", async |_| Ok(Contents::text("")))).unwrap_err();
    assert_eq!(twice.to_string(), "resource \"demo://new\": another one has this name");
    assert_eq!(tools.add(review()).unwrap_err().to_string(), "prompt \"review\": another one has this name");
}

#[tokio::test(start_paused = true)]
async fn who_watches_a_resource_hears_that_it_has_changed() {
    let world = World::new();
    let touch = Tool::new("touch", async |context: Context, _: NoArguments| {
        context.resources().updated("demo://welcome");
        Ok(Answer::text(""))
    });
    let worker = Worker::new(world.config()).with_tools(demo::resources()).tool(touch);
    let resources = worker.resources();
    let (send, mut watched) = mpsc::unbounded_channel();
    let _worker = world.run(worker);
    let calls = world.calls();
    let mut one = calls.watch("demo://welcome").await.unwrap();
    one.next().await.unwrap().unwrap();
    resources.on_watch(move |uri, on| drop(send.send((uri.to_owned(), on))));
    let mut other = calls.watch("demo://welcome").await.unwrap();
    other.next().await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(5), one.next()).await.map(drop).unwrap_err();
    resources.updated("demo://welcome");
    resources.updated("demo://other");
    for watch in [&mut one, &mut other] {
        watch.next().await.unwrap().unwrap();
        tokio::time::timeout(Duration::from_secs(5), watch.next()).await.map(drop).unwrap_err();
    }
    outcome(&world, Target::Tool("touch".into()), "{}").await;
    one.next().await.unwrap().unwrap();
    assert_eq!(watched.recv().await, Some(("demo://welcome".into(), true)));
    drop(one);
    tokio::time::timeout(Duration::from_secs(5), watched.recv()).await.unwrap_err();
    drop(other);
    assert_eq!(watched.recv().await, Some(("demo://welcome".into(), false)));
    let mut unknown = calls.watch("demo://unknown").await.unwrap();
    assert!(matches!(unknown.next().await, Some(Err(Error::Refused(Refusal::NotFound)))));
    let mut again = calls.watch("demo://welcome").await.unwrap();
    again.next().await.unwrap().unwrap();
    assert_eq!(watched.recv().await, Some(("demo://welcome".into(), true)));
}

async fn name(context: Context) -> Result<String, Failure> {
    let form = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    let response = context.request_input(Ask::form("Who?", form).key("who")).await?;
    let told: HashMap<String, String> = response.accepted().ok_or_else(|| Failure::tool("no"))?.parse()?;
    Ok(told["name"].clone())
}

#[tokio::test(start_paused = true)]
async fn prompts_and_resources_ask_their_callers_too() {
    let world = World::new();
    let worker = Worker::new(world.config())
        .prompt(Prompt::new("asks", async |context, _: NoArguments| Ok(Messages::new().user(name(context).await?))))
        .resource(Resource::new("demo://asks", "asks", async |context| Ok(Contents::text(name(context).await?))));
    let _worker = world.run(worker);
    for target in [prompt("asks"), resource("demo://asks")] {
        let call = Invocation { park: Some(Duration::from_secs(60)), ..of(target.clone(), "{}") };
        let mut events = world.calls().invoke(call).await.unwrap();
        let Some(Ok(CallEvent::Asked(asked))) = events.next().await else { panic!("not asked") };
        assert!(events.next().await.is_none());
        let resume = Resume {
            principal: principal(),
            run: asked.run,
            round: asked.round,
            answers: vec![("who".into(), yes(r#"{"name":"Ada"}"#))],
            client: anything(),
            line: Line::default(),
        };
        let mut events = world.calls().resume(resume).await.unwrap();
        let Some(Ok(CallEvent::Outcome(Outcome::Result { body, .. }))) = events.next().await else {
            panic!("{target:?}")
        };
        assert!(std::str::from_utf8(&body).unwrap().contains("Ada"));
    }
}
