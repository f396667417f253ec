//! A wrapped server, through the whole system: the official everything server, as published.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use longhaul_tests::client::{Client, PATIENCE};
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Installs the server, unless it is there from an earlier run, and returns its program.
async fn program() -> PathBuf {
    static INSTALLED: OnceCell<PathBuf> = OnceCell::const_new();
    INSTALLED.get_or_init(install).await.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

async fn install() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/runner/tests/everything");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("everything");
    let lock = std::fs::read(sources.join("package-lock.json")).unwrap();
    // The copy of the lock file comes last and says that what is there is whole, and which versions it is.
    let stamp = folder.join("installed.json");
    if std::fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return folder;
    }
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(sources.join(file), folder.join(file)).unwrap();
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder).stdin(Stdio::null());
    let output = npm.output().await.expect("npm is installed");
    assert!(output.status.success(), "npm ci: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(stamp, lock).unwrap();
    folder
}

/// Starts a world whose worker wraps the server; each start of it writes its process id to `pids`.
async fn start(wiring: Wiring, pids: &Path) -> World {
    let run = format!("echo $$ >> '{}'; exec node '{}'", pids.display(), program().await.display());
    let upstream = json!({"name": "everything", "command": ["sh", "-c", run]});
    let upstream = serde_json::from_value(upstream).unwrap();
    World::start_with(wiring, |config| config.runner.upstreams = vec![upstream]).await
}

/// Waits until a tool is on offer, and gives it.
async fn offered(client: &Client, name: &str) -> Value {
    let offered = async {
        loop {
            let list = client.ok("tools/list", json!({})).await;
            if let Some(tool) = list["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name) {
                return tool.clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, offered).await.unwrap_or_else(|_| panic!("{name} is not on offer"))
}

async fn its_tools_are_called_at_once_and_as_tasks(wiring: Wiring) {
    let folder = tempfile::tempdir().unwrap();
    let world = start(wiring, &folder.path().join("pids")).await;
    let [one, other] = world.clients(ALICE).await;
    let echo = offered(&one, "everything.echo").await;
    assert_eq!(echo["execution"]["taskSupport"], "optional");
    assert_eq!(echo["inputSchema"]["required"], json!(["message"]));
    offered(&other, "everything.get-sum").await;

    let result = one.ok("tools/call", json!({"name": "everything.echo", "arguments": {"message": "hello"}})).await;
    assert_eq!(result["content"][0]["text"], "Echo: hello");
    let began = Instant::now();
    let id = one.create("everything.get-sum", json!({"a": 2, "b": 40})).await;
    let answer = other.result(&id).await;
    assert!(began.elapsed() < Duration::from_secs(5), "tasks of a new tool are claimed at once: {:?}", began.elapsed());
    assert_eq!(answer["result"]["content"][0]["text"], "The sum of 2 and 40 is 42.");

    let id = one.create("everything.trigger-long-running-operation", json!({"duration": 600, "steps": 600})).await;
    let stepping = async {
        while other.ok("tasks/get", json!({"taskId": id})).await["statusMessage"].is_null() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, stepping).await.expect("its progress is the status message");
    assert_eq!(other.ok("tasks/cancel", json!({"taskId": id})).await["status"], "cancelled");
    let bad = one.ok("tools/call", json!({"name": "everything.echo"})).await;
    assert_eq!(bad["isError"], true, "{bad}");
    world.stop().await;
}

async fn a_killed_server_is_started_again(wiring: Wiring) {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let world = start(wiring, &pids).await;
    let client = world.client(ALICE).await;
    offered(&client, "everything.get-sum").await;
    let operation = json!({"duration": 600, "steps": 6000});
    let id = client.create("everything.trigger-long-running-operation", operation).await;
    let stepping = async {
        while client.ok("tasks/get", json!({"taskId": id})).await["statusMessage"].is_null() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, stepping).await.expect("it runs");

    // The first one lists what there is; the second one is the caller's.
    let first = std::fs::read_to_string(&pids).unwrap();
    let killed = Command::new("kill").args(["-9", first.lines().nth(1).unwrap()]).status().await.unwrap();
    assert!(killed.success());
    let answer = client.result(&id).await;
    assert!(answer["error"]["code"].is_i64() || answer["result"]["isError"] == true, "its call has failed: {answer}");
    assert_eq!(client.status(&id).await, "failed");
    let works = async {
        loop {
            let params = json!({"name": "everything.get-sum", "arguments": {"a": 2, "b": 40}});
            let answer = client.ask("tools/call", params).await;
            if answer["result"]["content"][0]["text"] == "The sum of 2 and 40 is 42." {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, works).await.expect("it works again");
    let all = std::fs::read_to_string(&pids).unwrap();
    assert_eq!(all.lines().count(), 3, "{all}");
    world.stop().await;
}

crate::both!(its_tools_are_called_at_once_and_as_tasks, a_killed_server_is_started_again);
