//! The official everything server, as published.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::world::{self, SOON, Word, World, word};
use longhaul_core::TaskSupport;
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
    // This one is there only after the server has seen that we know no roots, elicitation or sampling.
    let echo = world.tool("everything.echo").await;
    assert_eq!(echo.task_support, TaskSupport::Optional);
    let definition: Value = serde_json::from_slice(&echo.definition).unwrap();
    assert_eq!(definition["title"], "Echo Tool");
    assert_eq!(definition["inputSchema"]["required"], json!(["message"]));
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
        }
    };
    assert!(world::text(&outcome).starts_with("Long running operation completed"));
    assert_eq!(said, ["1 of 2", "2 of 2"]);
}
