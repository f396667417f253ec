use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_core::{CallError, LogLevel, Outcome, TaskSupport};
use longhaul_rpc::Error;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client::{BOTH, Connection, within};
use crate::modern::Modern;
use crate::world::{Worker, World, all_tools, big, config, serve_worker, text, tool, until, worker_info};

#[tokio::test]
async fn a_quick_call_is_answered_as_json_byte_for_byte() {
    let world = World::start().await;
    let client = world.alice().await;
    let arguments = r#"{ "z":123456789012345678901234567890, "a":"x\u0000y", "b":1e2, "c":"  " }"#;
    for accept in [BOTH, "application/json", "*/*"] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
        );
        let answer = client.accepting(accept).send("POST", "", body.as_bytes()).await.answer().await.unwrap();
        assert_eq!((answer.status(), answer.head.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer.json()["id"], "1");
        assert!(String::from_utf8(answer.body).unwrap().contains(arguments), "the arguments were rewritten");
    }
    let mut stream =
        client.accepting("text/event-stream").stream(json!(1), "tools/call", json!({"name": "echo"})).await;
    assert_eq!(stream.event().await.unwrap().data.as_deref(), Some(""));
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "ok");
    assert_eq!(stream.event().await, None);
    assert!(world.store.created.lock().unwrap().is_empty(), "a call became a task");
    assert_eq!(client.ok("tools/call", json!({"name": "fail"})).await["isError"], true);
}

#[tokio::test]
async fn a_long_call_becomes_a_stream_that_is_never_quiet() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.stream(json!(1), "tools/call", json!({"name": "wait"})).await;
    let run = world.worker.run().await;
    let first = stream.next().await.unwrap();
    assert!(first.id.is_some() && first.data.as_deref() == Some(""));
    for _ in 0..2 {
        assert!(within("a comment", stream.next()).await.unwrap().comment);
    }
    // Without a token, progress is of no interest.
    run.progress(1.0);
    run.end(Outcome::Error(CallError { code: 7, message: "no".into(), data: Some("{\"a\": 1e2}".into()) }));
    let answer = stream.message().await;
    assert_eq!(answer["error"], json!({"code": 7, "message": "no", "data": {"a": 1e2}}));
    assert_eq!(stream.event().await, None);
}

#[tokio::test]
async fn a_client_of_2025_06_18_gets_no_event_without_a_message() {
    let world = World::start().await;
    let client = crate::client::Client::hello_as(world.a.at, crate::world::ALICE, "2025-06-18").await;
    let mut stream = client.stream(json!(1), "tools/call", json!({"name": "wait"})).await;
    world.worker.run().await.end(text("done"));
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn progress_is_told_at_once_under_the_clients_own_token() {
    let world = World::start().await;
    let client = world.alice().await;
    for token in [json!("t"), json!(7)] {
        let params = json!({"name": "wait", "_meta": {"progressToken": token}});
        let opening = tokio::time::timeout(Duration::from_secs(5), client.stream(json!(1), "tools/call", params));
        let (stream, run) = tokio::join!(opening, async {
            let run = world.worker.run().await;
            run.progress(1.0);
            run
        });
        let mut stream = stream.unwrap();
        assert_eq!(stream.event().await.unwrap().data.as_deref(), Some(""));
        let told = stream.message().await;
        assert_eq!(told["method"], "notifications/progress");
        assert_eq!((&told["params"]["progressToken"], &told["params"]["progress"]), (&token, &json!(1)));
        // It never falls.
        run.progress(1.0);
        run.progress(0.5);
        run.progress(2.0);
        assert_eq!(stream.message().await["params"]["progress"], 2);
        run.end(text("done"));
        assert_eq!(stream.message().await["id"], 1);
        assert_eq!(stream.event().await, None);
    }
}

#[tokio::test]
async fn progress_and_log_messages_come_all_and_in_order_before_the_answer() {
    let world = World::start().await;
    let legacy = world.alice().await;
    let modern =
        world.modern().saying("progressToken", json!("p")).saying("io.modelcontextprotocol/logLevel", json!("info"));
    let params = json!({"name": "wait", "_meta": {"progressToken": "p"}});
    for is_modern in [false, true] {
        let opening = async {
            match is_modern {
                false => legacy.stream(json!(1), "tools/call", params.clone()).await,
                true => modern.stream(json!(1), "tools/call", json!({"name": "wait"})).await,
            }
        };
        // All of it before the client has read a byte.
        let (mut stream, run) = tokio::join!(opening, async {
            let run = world.worker.run().await;
            assert_eq!((run.call.line.progress, run.call.line.log), (true, Some(LogLevel::Info)));
            run.progress(0.0);
            run.log(LogLevel::Debug, "\"not this one\"");
            run.log(LogLevel::Warning, "{ \"a\": 1.00 }");
            run.progress(50.0);
            run.progress(100.0);
            run.end(text("done"));
            run
        });
        let mut told = Vec::new();
        while told.last().is_none_or(|message: &Value| message.get("result").is_none()) {
            let event = stream.event().await.unwrap();
            assert_eq!(event.id.is_some(), !is_modern, "{event:?}");
            assert!(!is_modern || event.retry.is_none(), "{event:?}");
            if event.data.as_deref() != Some("") {
                told.push(event.message());
            }
        }
        let log = json!({"level": "warning", "data": {"a": 1.0}});
        let steps: Vec<_> = told.iter().map(|message| &message["params"]["progress"]).collect();
        assert_eq!(steps, [&json!(0), &Value::Null, &json!(50), &json!(100), &Value::Null], "{told:?}");
        assert_eq!((&told[1]["method"], &told[1]["params"]), (&json!("notifications/message"), &log));
        assert_eq!(stream.event().await, None);
        drop(run);
    }
}

#[tokio::test]
async fn a_session_hears_log_messages_from_the_level_on_that_it_sets() {
    let world = World::start().await;
    let client = world.alice().await;
    let heard = async |accept, expected: Option<LogLevel>| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}).to_string();
        let mut answer = client.accepting(accept).send("POST", "", body.as_bytes()).await;
        let run = world.worker.run().await;
        assert_eq!(run.call.line.log, expected);
        run.end(text("done"));
        answer.head().await.unwrap();
    };
    heard(BOTH, Some(LogLevel::Info)).await;
    assert_eq!(client.at(world.b.at).ok("logging/setLevel", json!({"level": "error"})).await, json!({}));
    until("the level is known", || !world.store.notes.lock().unwrap().is_empty()).await;
    within("the other gateway", async {
        loop {
            let mut stream = client.stream(json!(1), "tools/call", json!({"name": "wait"})).await;
            let run = world.worker.run().await;
            run.end(text("done"));
            stream.event().await;
            if run.call.line.log == Some(LogLevel::Error) {
                break;
            }
        }
    })
    .await;
    // Who takes no stream hears nothing but the answer.
    heard("application/json", None).await;
    // Another session has its own level.
    let mut other = world.alice().await.stream(json!(1), "tools/call", json!({"name": "wait"})).await;
    let run = world.worker.run().await;
    assert_eq!(run.call.line.log, Some(LogLevel::Info));
    run.end(text("done"));
    other.event().await;
}

#[tokio::test]
async fn a_call_of_2026_07_28_ends_with_its_request() {
    let world = World::start().await;
    let client = world.modern();
    // While its answer may still become anything, as JSON alone, and as a stream.
    for (accept, is_stream) in [(BOTH, false), ("application/json", false), (BOTH, true), ("text/event-stream", true)] {
        let client = client.accepting(accept);
        let connection = client.begin(json!(1), "tools/call", json!({"name": "wait"})).await;
        let run = world.worker.run().await;
        let mut stream = if is_stream {
            Some(crate::client::into_stream(connection).await)
        } else {
            drop(connection);
            None
        };
        if let Some(stream) = &mut stream {
            assert!(!run.stopped.is_cancelled());
            // Nothing shows a way back.
            assert!(stream.next().await.unwrap().comment);
        }
        drop(stream);
        within("the worker hears", run.stopped.cancelled()).await;
        until("nothing is left", || world.a.status.load() == Default::default()).await;
    }
    assert_eq!(world.worker.calls.lock().unwrap().len(), 4, "a call was made again");
}

#[tokio::test]
async fn a_call_that_has_said_something_can_still_be_called_off() {
    let world = World::start().await;
    let legacy = world.alice().await;
    let modern = world.modern().saying("progressToken", json!("p"));
    for is_modern in [false, true] {
        let mut stream = if is_modern {
            modern.stream(json!(5), "tools/call", json!({"name": "wait"})).await
        } else {
            let params = json!({"name": "wait", "_meta": {"progressToken": "p"}});
            let mut stream = legacy.stream(json!(5), "tools/call", params).await;
            stream.event().await.unwrap();
            stream
        };
        let run = world.worker.run().await;
        run.progress(1.0);
        assert_eq!(stream.message().await["params"]["progress"], 1);
        if is_modern {
            drop(stream);
        } else {
            legacy.notify("notifications/cancelled", json!({"requestId": 5})).await;
            legacy.over(stream, 0).await;
        }
        within("the worker hears", run.stopped.cancelled()).await;
        until("nothing is left", || world.a.status.load().calls == 0).await;
    }
}

#[tokio::test]
async fn an_answer_of_2026_07_28_says_what_it_is_and_keeps_its_bytes() {
    let world = World::start().await;
    let client = world.modern();
    let arguments = r#"{ "z":123456789012345678901234567890, "b":1e2 }"#;
    let body = client.body(&json!("1"), "tools/call", json!({"name": "echo"})).to_string();
    let body = body.replacen(r#""name":"echo""#, &format!(r#""name":"echo","arguments":{arguments}"#), 1);
    let headers = Modern::headers("tools/call", &json!({"name": "echo"}));
    let answer = client.send(&headers, body.as_bytes()).await.answer().await.unwrap();
    assert_eq!((answer.status(), &answer.json()["result"]["resultType"]), (200, &json!("complete")));
    assert!(String::from_utf8(answer.body).unwrap().contains(arguments), "the arguments were rewritten");
    // Slower than a stream is awaited: the same in an event.
    let mut stream = client.stream(json!(7), "tools/call", json!({"name": "wait"})).await;
    let missing = CallError {
        code: -32021,
        message: "no".into(),
        data: Some(r#"{"requiredCapabilities":{"sampling":{}}}"#.into()),
    };
    world.worker.run().await.end(Outcome::Error(missing.clone()));
    let answer = stream.message().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32021)));
    assert_eq!(stream.event().await, None);
    // In time, it has the status that the specification asks for.
    let json_only = client.accepting("application/json");
    let (answer, ()) = tokio::join!(json_only.call("tools/call", json!({"name": "wait"})), async {
        world.worker.run().await.end(Outcome::Error(missing));
    });
    assert_eq!((answer.status(), answer.code()), (400, Some(-32021)));
}

#[tokio::test]
async fn a_client_that_comes_back_is_told_what_it_missed() {
    let world = World::start().await;
    let client = world.alice().await;
    let params = json!({"name": "wait", "_meta": {"progressToken": 1}});
    let mut stream = client.stream(json!(1), "tools/call", params).await;
    stream.event().await.unwrap();
    let run = world.worker.run().await;
    run.progress(1.0);
    let seen = stream.event().await.unwrap();
    assert_eq!(seen.message()["params"]["progress"], 1);
    drop(stream);
    until("the stream is gone", || world.a.status.load().streams == 0).await;
    run.progress(2.0);
    run.progress(3.0);
    let mut stream = client.get(seen.id.as_deref()).await;
    stream.event().await.unwrap();
    for expected in [2, 3] {
        assert_eq!(stream.message().await["params"]["progress"], expected);
    }
    run.end(text("done"));
    client.over(stream, 1).await;
}

#[tokio::test]
async fn hanging_up_cancels_nothing_and_the_client_may_come_back() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.stream(json!("c"), "tools/call", json!({"name": "wait"})).await;
    let seen = stream.event().await.unwrap().id.unwrap();
    let run = world.worker.run().await;
    drop(stream);
    until("the stream is gone", || world.a.status.load().streams == 0).await;
    assert!(!run.stopped.is_cancelled());
    // Nobody else can have it, and another replica does not pretend to.
    let mut bob = world.bob().await.send("GET", &format!("Last-Event-ID: {seen}\r\n"), b"").await;
    assert_eq!(bob.head().await.unwrap().status, 400);
    let mut other = world.alice().await.send("GET", &format!("Last-Event-ID: {seen}\r\n"), b"").await;
    assert_eq!(other.head().await.unwrap().status, 400, "another session of the same caller");
    let mut there = client.at(world.b.at).send("GET", &format!("Last-Event-ID: {seen}\r\n"), b"").await;
    assert_eq!(there.head().await.unwrap().status, 503);

    let mut resumed = client.get(Some(&seen)).await;
    let next = resumed.event().await.unwrap().id.unwrap();
    assert_ne!(next, seen);
    // A second stream takes the run over: its message goes on one stream only.
    let mut second = client.get(Some(&next)).await;
    second.event().await.unwrap();
    assert_eq!(resumed.event().await, None);
    run.end(text("done"));
    let answer = second.message().await;
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!("c"), &json!("done")));
    // The answer is kept for a while.
    let mut again = client.get(Some(&seen)).await;
    again.event().await.unwrap();
    assert_eq!(again.message().await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_call_without_a_stream_outlives_its_connection() {
    let world = World::start().await;
    let client = world.alice().await.accepting("application/json");
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}).to_string();
    let connection = client.send("POST", "", body.as_bytes()).await;
    let run = world.worker.run().await;
    drop(connection);
    until("the request is gone", || world.a.status.load().requests == 0).await;
    assert_eq!(world.a.status.load().calls, 1);
    assert!(!run.stopped.is_cancelled());
    run.end(text("nobody hears"));
    until("the call is over", || world.a.status.load().calls == 0).await;
}

#[tokio::test]
async fn a_cancelled_call_stops_and_is_not_answered_on_whatever_gateway_it_runs() {
    let world = World::start().await;
    let client = world.alice().await;
    for gateway in [world.a.at, world.b.at] {
        let mut stream = client.stream(json!(5), "tools/call", json!({"name": "wait"})).await;
        stream.event().await.unwrap();
        let run = world.worker.run().await;
        // Other ids, types of id, and sessions are not meant.
        client.at(gateway).notify("notifications/cancelled", json!({"requestId": "5"})).await;
        client.at(gateway).notify("notifications/cancelled", json!({"requestId": 6})).await;
        client.at(gateway).notify("notifications/cancelled", json!({"requestId": null})).await;
        world.alice().await.at(gateway).notify("notifications/cancelled", json!({"requestId": 5})).await;
        assert!(!run.stopped.is_cancelled());
        client.at(gateway).notify("notifications/cancelled", json!({"requestId": 5, "reason": "no"})).await;
        within("the worker hears", run.stopped.cancelled()).await;
        client.over(stream, 0).await;
    }
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "wait"}}).to_string();
    let mut waiting = client.accepting("application/json").send("POST", "", body.as_bytes()).await;
    let _run = world.worker.run().await;
    client.notify("notifications/cancelled", json!({"requestId": 5})).await;
    let answer = waiting.answer().await.unwrap();
    assert_eq!((answer.status(), answer.body.len()), (202, 0));
}

#[tokio::test]
async fn two_requests_with_one_id_get_an_answer_each() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut one = client.stream(json!(1), "tools/call", json!({"name": "wait", "arguments": {}})).await;
    let first = world.worker.run().await;
    let mut two = client.stream(json!(1), "tools/call", json!({"name": "wait", "arguments": {}})).await;
    let second = world.worker.run().await;
    second.end(text("two"));
    first.end(text("one"));
    for (stream, answer) in [(&mut one, "one"), (&mut two, "two")] {
        stream.event().await.unwrap();
        assert_eq!(stream.message().await["result"]["content"][0]["text"], answer);
    }
}

#[tokio::test]
async fn a_lost_worker_is_an_error_and_the_call_is_not_made_again() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.stream(json!(1), "tools/call", json!({"name": "wait"})).await;
    stream.event().await.unwrap();
    let run = world.worker.run().await;
    run.say.send(Err(Error::Unavailable("gone".into()))).unwrap();
    let answer = stream.message().await;
    assert_eq!(answer["error"]["code"], -32603);
    assert!(answer["error"]["message"].as_str().unwrap().contains("worker was lost"));
    assert_eq!(world.worker.calls.lock().unwrap().len(), 1);
    assert_eq!(client.ok("tools/call", json!({"name": "echo"})).await["content"][0]["text"], "ok");
}

/// Replaces the worker of a world by two others.
async fn two_workers(world: &World, client: &crate::client::Client) -> [(Arc<Worker>, CancellationToken); 2] {
    let workers = ["u", "v"].map(|name| {
        let worker = Arc::new(Worker::default());
        let stop = serve_worker(&world.tasks, &world.links, &world.token, name, worker.clone());
        (worker, stop)
    });
    let infos = ["u", "v"].map(|name| worker_info(name, Some(&format!("memory://{name}")), all_tools()));
    world.store.offer(infos.into());
    within("both workers", async {
        while workers.iter().any(|(worker, _)| worker.calls.lock().unwrap().is_empty()) {
            client.call("tools/call", json!({"name": "echo"})).await;
        }
    })
    .await;
    workers
}

#[tokio::test]
async fn a_full_worker_is_passed_over_and_only_if_all_are_full_the_client_is_to_come_back() {
    let world = World::start().await;
    let client = world.alice().await;
    let [(one, _), (other, _)] = two_workers(&world, &client).await;
    let asked = |worker: &Worker| worker.calls.lock().unwrap().len();
    one.full.store(true, Ordering::SeqCst);
    let before = asked(&one);
    for _ in 0..4 {
        assert_eq!(client.ok("tools/call", json!({"name": "echo"})).await["content"][0]["text"], "ok");
    }
    assert!(asked(&one) > before, "the full worker was never asked");

    other.full.store(true, Ordering::SeqCst);
    let before = asked(&one) + asked(&other);
    for accept in [BOTH, "application/json"] {
        let answer = client.accepting(accept).call("tools/call", json!({"name": "echo"})).await;
        assert_eq!((answer.status(), answer.code(), answer.head.header("retry-after")), (503, Some(-32603), Some("1")));
    }
    assert_eq!(asked(&one) + asked(&other) - before, 4, "each is asked once");
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_first_event_is_a_lost_worker_and_no_other_is_asked() {
    let world = World::start().await;
    let client = world.alice().await;
    let [(one, stop_one), (other, stop_other)] = two_workers(&world, &client).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}).to_string();
    let mut waiting = client.accepting("application/json").send("POST", "", body.as_bytes()).await;
    let (_run, stop) = tokio::select! {
        run = one.run() => (run, stop_one),
        run = other.run() => (run, stop_other),
    };
    stop.cancel();
    let answer = waiting.answer().await.unwrap();
    assert_eq!((answer.status(), answer.code()), (200, Some(-32603)));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("worker was lost"));
    let made =
        |worker: &Worker| worker.calls.lock().unwrap().iter().filter(|call| call.target.name() == "wait").count();
    assert_eq!(made(&one) + made(&other), 1, "the call was made again");
}

#[tokio::test]
async fn calls_take_turns_and_pass_over_workers_that_are_gone() {
    let world = World::start().await;
    let client = world.alice().await;
    let other = Arc::new(Worker::default());
    let stop = serve_worker(&world.tasks, &world.links, &world.token, "v", other.clone());
    world.store.offer(vec![
        worker_info("w", Some("memory://w"), all_tools()),
        worker_info("v", Some("memory://v"), all_tools()),
        worker_info("u", Some("memory://nobody"), all_tools()),
    ]);
    let echo = json!({"name": "echo"});
    within("both workers", async {
        while other.calls.lock().unwrap().len() < 2 || world.worker.calls.lock().unwrap().len() < 2 {
            client.ok("tools/call", echo.clone()).await;
        }
    })
    .await;
    stop.cancel();
    let before = world.worker.calls.lock().unwrap().len();
    for _ in 0..4 {
        client.call("tools/call", echo.clone()).await;
    }
    assert!(world.worker.calls.lock().unwrap().len() > before);
}

#[tokio::test]
async fn a_tool_that_no_worker_takes_calls_of_is_unavailable() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    world.store.offer(vec![worker_info("w", None, vec![tool("echo", TaskSupport::Optional)])]);
    stream.message().await;
    let answer = client.call("tools/call", json!({"name": "echo"})).await;
    assert_eq!((answer.status(), answer.code(), answer.head.header("retry-after")), (503, Some(-32603), Some("1")));
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_cut_and_costs_no_more_meanwhile() {
    let world = World::start().await;
    let client = world.alice().await;
    let params = json!({"name": "wait", "_meta": {"progressToken": 1}});
    let mut stream = client.stream(json!(1), "tools/call", params).await;
    stream.event().await.unwrap();
    let run = world.worker.run().await;
    let size = 24 << 20;
    run.end(big(size));
    // It reads nothing more: what the sockets do not hold waits once, and the connection ends.
    until("the stream is cut", || world.a.status.load() == Default::default()).await;
    assert!(stream.connection.rest().await < size, "the stream was not cut");
    assert_eq!(client.call("ping", json!({})).await.status(), 200);
}

#[tokio::test]
async fn too_many_requests_are_refused_with_a_hint_when_to_come_back() {
    let config = longhaul_gateway::Config { requests_max: 2, ..config() };
    let world = World::with(config, Arc::new(longhaul_bus::LocalBus::new())).await;
    let client = world.alice().await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        streams.push(client.stream(json!(1), "tools/call", json!({"name": "wait"})).await);
    }
    let answer = client.call("ping", json!({})).await;
    assert_eq!((answer.status(), answer.head.header("retry-after")), (503, Some("1")));
    drop(streams);
    until("there is room", || world.a.status.load().requests == 0).await;
    assert_eq!(client.call("ping", json!({})).await.status(), 200);
}

#[tokio::test]
async fn bodies_beyond_the_memory_for_them_are_refused() {
    let config = longhaul_gateway::Config { bodies_bytes_max: 1000, ..config() };
    let world = World::with(config, Arc::new(longhaul_bus::LocalBus::new())).await;
    let client = world.alice().await;
    let answer = client.call("tools/call", json!({"name": "echo", "arguments": {"a": "x".repeat(1000)}})).await;
    assert_eq!((answer.status(), answer.head.header("retry-after")), (503, Some("1")));
    assert_eq!(client.call("ping", json!({})).await.status(), 200);
}

#[tokio::test]
async fn a_body_counts_until_its_call_is_done() {
    let config = longhaul_gateway::Config { bodies_bytes_max: 3000, ..config() };
    let world = World::with(config, Arc::new(longhaul_bus::LocalBus::new())).await;
    let client = world.alice().await;
    let arguments = json!({"a": "x".repeat(2000)});
    let echo = json!({"name": "echo", "arguments": arguments});
    let echoes = async |status| {
        within("another status", async { while client.call("tools/call", echo.clone()).await.status() != status {} })
            .await
    };
    let mut stream = client.stream(json!(1), "tools/call", json!({"name": "wait", "arguments": arguments})).await;
    stream.event().await.unwrap();
    let run = world.worker.run().await;
    assert_eq!(client.call("tools/call", echo.clone()).await.status(), 503);
    assert_eq!(client.call("ping", json!({})).await.status(), 200);
    run.end(text("done"));
    stream.message().await;
    echoes(200).await;

    let hold = Arc::new(Notify::new());
    *world.store.hold_creates.lock().unwrap() = Some(hold.clone());
    let params = json!({"name": "echo", "arguments": arguments, "task": {}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut creating = client.send("POST", "", body.as_bytes()).await;
    until("it has begun", || world.a.status.load().requests == 1).await;
    echoes(503).await;
    hold.notify_one();
    assert_eq!(creating.answer().await.unwrap().status(), 200);
    echoes(200).await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let world = World::start().await;
    for words in [&b""[..], b"PRI * HTTP/2.0\r\n", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: "] {
        let mut connection = Connection::open(world.a.at).await;
        connection.send(words).await;
        assert!(within("the close", connection.is_closed()).await);
    }
}
