//! Each caller has a session of their own with a server that may ask.

use crate::http::Server;
use crate::questions::{ask, form, replies};
use crate::world::{self, ANYTHING, Call, World, error, fixture, lives, somebody, until, yes};
use longhaul_core::{LogLevel, Target};
use longhaul_rpc::{Asked, CallEvent};
use serde_json::{Value, json};

fn upstream() -> Value {
    json!({ "name": "up", "command": ["python3", fixture(), "stdio"] })
}

impl World {
    /// A call of a tool by an agent of some tenant, who can be asked anything.
    async fn of(&self, tenant: &str, tool: &str, arguments: &Value) -> Call {
        let target = Target::Tool(tool.into());
        self.invoke_as(somebody(tenant), ANYTHING, None, target, &arguments.to_string()).await
    }

    async fn text_of(&self, tenant: &str, tool: &str, arguments: Value) -> String {
        world::text(&self.of(tenant, tool, &arguments).await.outcome().await)
    }

    /// A call that goes on until it is given up.
    async fn waiting(&self, tenant: &str) -> Call {
        let mut call = self.of(tenant, "up.wait", &json!({})).await;
        assert!(matches!(call.next().await, Some(CallEvent::Progress(_))));
        call
    }

    async fn accept(&self, tenant: &str, asked: &Asked, content: &str) {
        let answers = vec![(asked.requests[0].key.clone(), yes(content))];
        self.respond_as(&somebody(tenant), &asked.run, answers).await.unwrap();
    }

    /// The process that serves a tenant.
    async fn process(&self, tenant: &str) -> u32 {
        let said = self.text_of(tenant, "up.env", json!({})).await;
        let (_, _, [process, _]): (Value, Value, [u32; 2]) = serde_json::from_str(&said).unwrap();
        process
    }

    fn sessions(&self) -> usize {
        self.runner.status()[0].sessions
    }
}

#[tokio::test]
async fn a_question_for_a_call_that_is_over_or_given_up_reaches_no_other_caller() {
    for (over_http, give_up) in [(false, false), (false, true), (true, false), (true, true)] {
        let server = Server::start().await;
        let world = World::start(&[if over_http { server.upstream("mcp") } else { upstream() }]).await;
        world.tool("up.later").await;
        if over_http {
            world.text_of("x", "up.seen", json!({ "event": "listening", "times": 2 })).await;
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, reply) = (folder.path().join("go"), folder.path().join("go.reply"));
        let later = json!({ "file": file, "request": form(1), "give_up": give_up });
        let mut call = world.of("x", "up.later", &later).await;
        if give_up {
            assert!(matches!(call.next().await, Some(CallEvent::Progress(_))));
        } else {
            call.over().await;
        }
        drop(call);
        let mut other = world.waiting("y").await;
        std::fs::write(&file, "").unwrap();
        tokio::select! {
            () = until(|| reply.exists()) => {}
            heard = other.next() => panic!("the other caller hears {heard:?}"),
        }
        let reply: Value = serde_json::from_slice(&std::fs::read(reply).unwrap()).unwrap();
        assert_eq!(reply["error"], json!({ "code": -32603, "message": "no call is running that it could belong to" }));
        assert!(other.is_silent());
        drop(other);
        world.end().await;
    }
}

#[tokio::test]
async fn callers_that_are_asked_at_once_each_have_their_own_questions() {
    for push in [false, true] {
        let server = Server::start().await;
        let world = World::start(&[if push { server.upstream("mcp") } else { upstream() }]).await;
        world.tool("up.ask").await;
        let mut calls = Vec::new();
        for (nth, tenant) in ["x", "y"].into_iter().enumerate() {
            if push {
                world.text_of(tenant, "up.seen", json!({ "event": "listening", "times": nth + 2 })).await;
            }
            let mut arguments = ask(&[form(nth as u32)]);
            arguments["push"] = json!(push);
            let mut call = world.of(tenant, "up.ask", &arguments).await;
            let asked = call.asked().await;
            calls.push((tenant, call, asked));
        }
        for (tenant, _, asked) in calls.iter().rev() {
            world.accept(tenant, asked, if *tenant == "x" { r#"{"n":1}"# } else { r#"{"n":2}"# }).await;
        }
        for ((_, call, _), n) in calls.iter_mut().zip([1, 2]) {
            assert_eq!(replies(&call.outcome().await)[0]["result"]["content"], json!({ "n": n }));
        }
        world.end().await;
    }
}

#[tokio::test]
async fn what_a_server_without_sessions_says_to_all_is_asked_of_nobody() {
    let server = Server::start().await;
    let world = World::start(&[server.upstream("anonymous")]).await;
    world.tool("up.ask").await;
    world.text_of("x", "up.seen", json!({ "event": "listening" })).await;
    let mut arguments = ask(&[form(1)]);
    arguments["push"] = json!(true);
    let reply = &replies(&world.of("x", "up.ask", &arguments).await.outcome().await)[0];
    let message = "several callers share the connection, and it does not say to whose call it belongs";
    assert_eq!(reply["error"], json!({ "code": -32603, "message": message }));

    let mut call = world.of("x", "up.ask", &ask(&[form(2)])).await;
    let asked = call.asked().await;
    world.accept("x", &asked, r#"{"n":1}"#).await;
    assert_eq!(replies(&call.outcome().await)[0]["result"]["action"], "accept", "its own stream says whose it is");
    world.end().await;
}

#[tokio::test]
async fn a_caller_without_a_place_waits_for_one_and_then_hears_that_there_is_none() {
    let mut config = upstream();
    config["sessions_max"] = json!(1);
    let world = World::start(&[config]).await;
    world.tool("up.wait").await;
    let first = world.process("x").await;
    let running = world.waiting("x").await;
    let refused = world.of("y", "up.raw", &json!({})).await.outcome().await;
    let why = "the upstream server up has no session left: all 1 are at work (sessions_max)";
    assert_eq!(error(&refused), (-32603, why));
    assert!(lives(first));

    let (second, ()) = futures::join!(world.process("y"), async {
        // The other one is on its way when there is room.
        drop(running);
    });
    assert_ne!(first, second);
    assert!(!lives(first), "a place is free once its process has left");
    assert_eq!(world.sessions(), 1);
    world.end().await;
    assert!(!lives(second));
}

#[tokio::test]
async fn the_session_that_was_idle_for_longest_makes_room() {
    let mut config = upstream();
    config["sessions_max"] = json!(2);
    let world = World::start(&[config]).await;
    world.tool("up.env").await;
    let (x, y) = (world.process("x").await, world.process("y").await);
    assert_eq!(world.process("x").await, x, "a caller keeps theirs");
    let z = world.process("z").await;
    assert!(lives(x) && !lives(y) && lives(z));
    assert_eq!(world.process("x").await, x);
    assert_ne!(world.process("y").await, y);
    assert!(!lives(z));
    assert_eq!(world.sessions(), 2);
    world.end().await;
}

#[tokio::test]
async fn a_session_without_a_call_ends_and_is_there_again_when_it_is_wanted() {
    let mut server = Server::start().await;
    for mut config in [upstream(), server.upstream("mcp")] {
        let over_http = config["url"].is_string();
        config["session_idle_s"] = json!(1);
        let world = World::start(&[config]).await;
        world.tool("up.env").await;
        let mut busy = world.waiting("y").await;
        let process = world.process("x").await;
        until(|| world.sessions() == 1).await;
        assert!(over_http || !lives(process));
        if over_http {
            assert!(server.says().await.starts_with("deleted session-"));
        }
        assert!(over_http || world.process("x").await != process);
        assert!(busy.is_silent(), "a session with a call goes on");
        drop(busy);
        until(|| world.sessions() == 0).await;
        assert_eq!(world.runner.status()[0].missing, None);
        world.end().await;
    }
}

#[tokio::test]
async fn a_process_that_dies_ends_the_calls_of_its_own_caller_alone() {
    let world = World::start(&[upstream()]).await;
    world.tool("up.crash").await;
    let mut other = world.waiting("y").await;
    let mut mine = world.waiting("x").await;
    let stopped = (-32603, "the upstream server up stopped");
    assert_eq!(error(&world.of("x", "up.crash", &json!({})).await.outcome().await), stopped);
    assert_eq!(error(&mine.outcome().await), stopped, "at once");
    assert!(world.text_of("x", "up.raw", json!({})).await.contains("raw"), "it is there again");
    assert!(other.is_silent());
    assert_eq!(world.runner.status()[0].missing, None);
    drop(other);
    world.end().await;
}

#[tokio::test]
async fn a_session_that_cannot_begin_fails_its_call_and_the_next_one_tries_again() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("server.py");
    std::fs::copy(fixture(), &program).unwrap();
    let world = World::start(&[json!({ "name": "up", "command": ["python3", program, "stdio"] })]).await;
    world.tool("up.raw").await;
    std::fs::rename(&program, folder.path().join("away")).unwrap();
    let failed = world.of("x", "up.raw", &json!({})).await.outcome().await;
    assert_eq!(error(&failed), (-32603, "the upstream server up stopped"));
    std::fs::rename(folder.path().join("away"), &program).unwrap();
    assert!(world.text_of("x", "up.raw", json!({})).await.contains("raw"));
    world.end().await;
}

#[tokio::test]
async fn a_server_that_all_callers_share_is_one_session_and_asks_nobody() {
    let server = Server::start().await;
    for mut config in [upstream(), server.upstream("mcp")] {
        config["shared"] = json!(true);
        let world = World::start(&[config]).await;
        world.tool("up.ask").await;
        assert_eq!(world.process("x").await, world.process("y").await);
        for tenant in ["x", "y"] {
            let reply = &replies(&world.of(tenant, "up.ask", &ask(&[form(1)])).await.outcome().await)[0];
            assert_eq!(reply["error"], json!({ "code": -32601, "message": "not supported" }));
        }
        let seen = world.text_of("x", "up.seen", json!({ "event": "initialize" })).await;
        assert!(seen.contains("initialize {}"), "it is promised nothing: {seen}");
        assert_eq!(world.sessions(), 0);
        world.end().await;
    }
}

#[tokio::test]
async fn a_log_message_that_names_no_call_reaches_nobody_once_callers_share_a_connection() {
    let modern = format!("{}/tests/fixtures/modern.py", env!("CARGO_MANIFEST_DIR"));
    let world = World::start(&[json!({ "name": "up", "command": ["python3", modern, "stdio"] })]).await;
    world.tool("up.log").await;
    for (tenant, expected) in [("x", &[LogLevel::Info][..]), ("y", &[]), ("x", &[])] {
        let mut call = world.of(tenant, "up.log", &json!({})).await;
        assert_eq!(world::text(&call.outcome().await), "logged");
        assert_eq!(call.logs.iter().map(|log| log.level).collect::<Vec<_>>(), expected, "{tenant}");
    }
    assert_eq!(world.sessions(), 0, "questions of 2026-07-28 say whose they are");
    world.end().await;
}
