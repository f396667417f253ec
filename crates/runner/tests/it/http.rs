//! Servers that are reached over Streamable HTTP.

use std::process::Stdio;

use crate::world::{self, SOON, World, error, fixture};
use longhaul_core::Outcome;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// A running server; it ends when this is dropped.
pub struct Server {
    port: u16,
    lines: Lines<BufReader<ChildStdout>>,
    process: Child,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_at(0).await
    }

    async fn start_at(port: u16) -> Self {
        Self::start_program(fixture(), port).await
    }

    /// Another server, which says its port and ends with its input too.
    pub async fn start_program(program: impl AsRef<std::ffi::OsStr>, port: u16) -> Self {
        let mut command = Command::new("python3");
        command.arg(program).arg("http").arg(port.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap().parse().unwrap();
        Self { port, lines, process }
    }

    /// The next line that it writes.
    pub async fn says(&mut self) -> String {
        timeout(SOON, self.lines.next_line()).await.unwrap().unwrap().unwrap()
    }

    pub fn upstream(&self, path: &str) -> Value {
        json!({ "name": "up", "url": format!("http://127.0.0.1:{}/{path}", self.port) })
    }
}

#[tokio::test]
async fn results_come_through_as_they_are_with_their_progress() {
    let server = Server::start().await;
    let mut config = server.upstream("mcp");
    config["headers"] = json!({ "Authorization": "Bearer secret" });
    let world = World::start(&[config]).await;
    world.tool("up.exact").await;
    let (_, outcome) = world.call("up.exact", "{}").await;
    let Outcome::Result { body, .. } = outcome else { panic!("{outcome:?}") };
    assert!(
        std::str::from_utf8(&body).unwrap().contains("\"big\":123456789012345678901234567890,\"exp\":1e2"),
        "{body:?}"
    );
    let Outcome::Error(failed) = world.call("up.fail", "{}").await.1 else { panic!() };
    assert_eq!(
        (failed.code, failed.data.as_deref()),
        (-32042, Some(&br#"{"big":123456789012345678901234567890,"exp":1e2}"#[..]))
    );

    let (news, outcome) = world.call("up.count", r#"{"to": 3}"#).await;
    assert_eq!(world::text(&outcome), "counted");
    assert_eq!(news.last().map(|news| news.progress), Some(3.0));

    let headers: Value = serde_json::from_str(&world.text("up.headers", "{}").await).unwrap();
    assert_eq!(headers["authorization"], "Bearer secret");
    assert_eq!(headers["mcp-protocol-version"], "2025-11-25");
    assert!(headers["mcp-session-id"].as_str().unwrap().starts_with("session-"));

    let requests = json!({ "requests": [
        r#"{"jsonrpc":"2.0","id":"ping-1","method":"ping"}"#, r#"{"jsonrpc":"2.0","id":7,"method":"tasks/list"}"#,
    ] });
    let replies: Value = serde_json::from_str(&world.text("up.ask", &requests.to_string()).await).unwrap();
    assert_eq!((&replies[0]["result"], &replies[1]["error"]["code"]), (&json!({}), &json!(-32601)));
    let (_, outcome) = world.call("up.huge", r#"{"bytes": 6000000}"#).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up sent too large an answer"));
    world.end().await;
}

#[tokio::test]
async fn how_large_an_answer_may_be_is_for_the_operator_to_say() {
    let server = Server::start().await;
    for path in ["mcp", "json"] {
        let world = World::start_with(&[server.upstream(path)], 8_000_000).await;
        world.tool("up.huge").await;
        assert_eq!(world.text("up.huge", r#"{"bytes": 6000000}"#).await.len(), 6_000_000);
        let (_, outcome) = world.call("up.huge", r#"{"bytes": 9000000}"#).await;
        assert_eq!(error(&outcome), (-32603, "the upstream server up sent too large an answer"), "{path}");
        world.end().await;
    }
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_upstream_and_the_session_ended_at_last() {
    let mut server = Server::start().await;
    let world = World::start(&[server.upstream("mcp")]).await;
    world.tool("up.wait").await;
    let mut call = world.begin("up.wait", "{}").await;
    call.next().await.unwrap();
    drop(call);
    world.text("up.seen", r#"{"event": "gave up"}"#).await;
    world.end().await;
    let line = server.says().await;
    assert!(line.starts_with("deleted session-"), "{line}");
}

#[tokio::test]
async fn a_lost_session_is_replaced_within_the_call() {
    for path in ["mcp", "lax"] {
        let server = Server::start().await;
        let world = World::start(&[server.upstream(path)]).await;
        world.tool("up.forget").await;
        world.text("up.forget", "{}").await;
        let (one, two) = futures::join!(world.text("up.raw", "{}"), world.text("up.raw", "{}"));
        assert!(one.contains("\"raw\"") && two.contains("\"raw\""), "{one} {two}");
        let events = world.text("up.seen", r#"{"event": "initialize", "times": 4}"#).await;
        let count = events.matches("initialize").count();
        assert_eq!(count, 4, "one new session for both, and one for the lists: {events}");
        world.end().await;
    }
}

#[tokio::test]
async fn a_changed_list_is_announced_even_in_a_new_session() {
    let server = Server::start().await;
    let world = World::start(&[server.upstream("mcp")]).await;
    world.tool("up.grow").await;
    world.text("up.seen", r#"{"event": "listening", "times": 2}"#).await;
    world.text("up.forget", "{}").await;
    world.text("up.seen", r#"{"event": "listening", "times": 4}"#).await;
    world.text("up.grow", "{}").await;
    world.tool("up.extra").await;
    assert_eq!(world.text("up.extra", "{}").await, "called extra");
    world.end().await;
}

#[tokio::test]
async fn a_server_without_a_stream_of_its_own_does_as_well() {
    let server = Server::start().await;
    let world = World::start(&[server.upstream("deaf")]).await;
    world.tool("up.exact").await;
    world.text("up.raw", "{}").await;
    world.end().await;
}

#[tokio::test]
async fn a_server_that_was_away_is_found_again() {
    let mut server = Server::start().await;
    let world = World::start(&[server.upstream("mcp")]).await;
    world.tool("up.wait").await;
    let mut call = world.begin("up.wait", "{}").await;
    call.next().await.unwrap();
    server.process.kill().await.unwrap();
    assert_eq!(error(&world::finish(call).await.1), (-32603, "the upstream server up stopped"));
    let (_, outcome) = world.call("up.raw", "{}").await;
    assert!(error(&outcome).1.starts_with("the upstream server up "), "{outcome:?}");
    assert!(world.names().contains(&"up.raw".into()), "its tools stay on offer");

    let _server = Server::start_at(server.port).await;
    let found = async { while !matches!(world.call("up.raw", "{}").await.1, Outcome::Result { .. }) {} };
    timeout(SOON, found).await.expect("it is found again");
    world::until(|| world.runner.status()[0].missing.is_none()).await;
    world.end().await;
}

#[tokio::test]
async fn a_stream_that_ends_before_its_answer_is_taken_up_again() {
    let server = Server::start().await;
    let world = World::start(&[server.upstream("mcp")]).await;
    world.tool("up.poll").await;
    let (news, outcome) = world.call("up.poll", "{}").await;
    assert_eq!(news.last().map(|news| news.progress), Some(1.0));
    assert_eq!(world::text(&outcome), "after poll-2");
    let (_, outcome) = world.call("up.poll", r#"{"lost": true}"#).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up stopped"));
    world.end().await;
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = Server::start().await;
    let world = World::start(&[server.upstream("moved")]).await;
    let missing = || world.runner.status()[0].missing.clone().unwrap();
    timeout(SOON, async {
        while missing() == "is being started" {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(missing(), "answers with HTTP status 307");
    world.end().await;
}
