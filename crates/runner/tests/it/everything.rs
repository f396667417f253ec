//! The official everything server, as published.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::world::{self, SOON, Word, World, word};
use futures::StreamExt as _;
use longhaul_core::{InputResponse, Target, TaskSupport};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// Installs the server, unless it is there from an earlier run, and returns its program.
async fn program() -> PathBuf {
    static INSTALLED: OnceCell<PathBuf> = OnceCell::const_new();
    INSTALLED.get_or_init(install).await.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/everything")
}

async fn install() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("everything");
    let lock = std::fs::read(sources().join("package-lock.json")).unwrap();
    // The copy of the lock file comes last and says that what is there is whole, and which versions it is.
    let stamp = folder.join("installed.json");
    if std::fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return folder;
    }
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(sources().join(file), folder.join(file)).unwrap();
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder).stdin(Stdio::null());
    let output = npm.output().await.expect("npm is installed");
    assert!(output.status.success(), "npm ci: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(stamp, lock).unwrap();
    folder
}

#[tokio::test]
async fn it_works_over_standard_input_and_output() {
    let world = World::start(&[json!({ "name": "everything", "command": ["node", program().await] })]).await;
    works(&world).await;
    world.end().await;
}

#[tokio::test]
async fn it_works_over_streamable_http() {
    let mut command = Command::new("node");
    command.arg("--require").arg(sources().join("port.cjs")).arg(program().await).arg("streamableHttp");
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let port = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the server says its port");
            if let Some(port) = line.strip_prefix("port ") {
                return port.to_owned();
            }
        }
    };
    let port = timeout(SOON, port).await.expect("the server starts");
    let config = json!({ "name": "everything", "url": format!("http://127.0.0.1:{port}/mcp") });
    let world = World::start(&[config]).await;
    let test = async {
        works(&world).await;
        world.end().await;
    };
    // It writes a line for each request, and would stop if nobody read them.
    tokio::select! {
        () = test => {}
        () = async { while let Ok(Some(_)) = lines.next_line().await {} } => panic!("the server stopped"),
    }
    server.kill().await.unwrap();
}

async fn works(world: &World) {
    let echo = world.tool("everything.echo").await;
    assert_eq!(echo.task_support, TaskSupport::Optional);
    let definition: Value = serde_json::from_slice(&echo.definition).unwrap();
    assert_eq!(definition["title"], "Echo Tool");
    assert_eq!(definition["inputSchema"]["required"], json!(["message"]));
    // These are there only after the server has seen that we know roots, elicitation and sampling.
    for name in ["get-roots-list", "trigger-elicitation-request", "trigger-url-elicitation", "trigger-sampling-request"]
    {
        world.tool(&format!("everything.{name}")).await;
    }
    let names = world.names();
    assert!(!names.contains(&"everything.simulate-research-query".into()), "a task of its own cannot be wrapped");

    assert_eq!(world.text("everything.echo", r#"{"message": "hello"}"#).await, "Echo: hello");
    assert_eq!(world.text("everything.get-sum", r#"{"a": 2, "b": 40}"#).await, "The sum of 2 and 40 is 42.");
    let longhaul_core::Outcome::Result { is_error: true, body } = world.call("everything.echo", "{}").await.1 else {
        panic!()
    };
    assert!(std::str::from_utf8(&body).unwrap().contains("message"));

    let (news, outcome) =
        world.call("everything.trigger-long-running-operation", r#"{"duration": 0.5, "steps": 5}"#).await;
    assert!(world::text(&outcome).starts_with("Long running operation completed"));
    assert!(!news.is_empty() && news.iter().all(|news| news.total == Some(5.0)), "{news:?}");

    let mut task = world.task(1, "everything.trigger-long-running-operation", r#"{"duration": 0.5, "steps": 2}"#);
    let mut said = Vec::new();
    let outcome = loop {
        match word(&mut task).await {
            Word::Report(report) => said.extend(report.status_message),
            Word::Outcome(outcome) => break outcome,
            Word::Input(asked) => panic!("{asked:?}"),
        }
    };
    assert!(world::text(&outcome).starts_with("Long running operation completed"));
    assert_eq!(said, ["1 of 2", "2 of 2"]);

    prompts_and_resources_work(world).await;
    questions_work(world).await;
}

async fn prompts_and_resources_work(world: &World) {
    let json = async |target, arguments: Value| -> Value {
        serde_json::from_str(&world.result(target, &arguments.to_string()).await).unwrap()
    };
    let prompt = |name: &str| Target::Prompt(format!("everything.{name}"));
    let weather = json(prompt("args-prompt"), json!({ "city": "Bern", "state": "BE" })).await;
    assert_eq!(weather["messages"][0]["content"]["text"], "What's weather in Bern, BE?");
    let wanted =
        json!({ "argument": { "name": "name", "value": "D" }, "context": { "arguments": { "department": "Sales" } } });
    let names = json(Target::CompletePrompt("everything.completable-prompt".into()), wanted).await;
    assert_eq!(names["completion"]["values"], json!(["David"]));

    let uri = "everything+demo://resource/static/document/features.md";
    world.announced(|worker| worker.resources.iter().any(|resource| resource.uri == uri).then_some(())).await;
    let document = json(Target::Resource(uri.into()), json!({})).await;
    assert_eq!(document["contents"][0]["uri"], uri);
    assert!(document["contents"][0]["text"].as_str().unwrap().len() > 100);
    let uri = "everything+demo://resource/dynamic/blob/7";
    let blob = json(Target::Resource(uri.into()), json!({})).await;
    assert_eq!(blob["contents"][0]["uri"], uri);
    assert!(blob["contents"][0]["blob"].is_string());
    let template = "everything+demo://resource/dynamic/text/{resourceId}";
    let wanted = json!({ "argument": { "name": "resourceId", "value": "7" } });
    assert_eq!(json(Target::CompleteTemplate(template.into()), wanted).await["completion"]["values"], json!(["7"]));

    let mut watcher = world.watch(uri).await;
    timeout(SOON, watcher.next()).await.unwrap().unwrap().unwrap();
    // It tells those who have subscribed, now and every five seconds.
    world.text("everything.toggle-subscriber-updates", "{}").await;
    timeout(SOON, watcher.next()).await.expect("it has changed").unwrap().unwrap();
    world.text("everything.toggle-subscriber-updates", "{}").await;
}

async fn questions_work(world: &World) {
    let answer = async |tool: &str, arguments: Value, answers: &[InputResponse]| {
        let mut call = world.ask(&format!("everything.{tool}"), &arguments.to_string()).await;
        for answer in answers {
            let asked = call.asked().await;
            assert_eq!(asked.requests.len(), 1, "{asked:?}");
            world.respond(&asked.run, vec![(asked.requests[0].key.clone(), answer.clone())]).await;
        }
        world::result(&call.outcome().await)
    };
    let sampled = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "sampled text" } });
    let said = answer(
        "trigger-sampling-request",
        json!({ "prompt": "hi", "maxTokens": 5 }),
        &[InputResponse::Result(sampled.to_string().into())],
    )
    .await;
    assert!(said.contains("sampled text"), "{said}");
    let yes = InputResponse::Accept(None);
    let page = json!({ "url": "https://longhaul.dev/", "message": "Open it." });
    let said = answer("trigger-url-elicitation", page, std::slice::from_ref(&yes)).await;
    assert!(said.contains("User completed the URL elicitation flow"), "{said}");
    let page = json!({ "url": "https://longhaul.dev/", "message": "Open it.", "errorPath": true });
    let said = answer("trigger-url-elicitation", page, &[yes.clone(), yes]).await;
    assert!(said.contains("User completed the URL elicitation flow"), "first what it asks for by an error: {said}");
    let page = json!({ "url": "https://localhost/", "message": "Open it." });
    let said = answer("trigger-url-elicitation", page, &[]).await;
    assert!(said.contains("User declined to open the URL"), "{said}");
    let roots = json!({ "roots": [{ "uri": "file:///home/me", "name": "mine" }] });
    let said = answer("get-roots-list", json!({}), &[InputResponse::Result(roots.to_string().into())]).await;
    assert!(said.contains("file:///home/me"), "{said}");
}
