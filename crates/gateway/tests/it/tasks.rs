use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_bus::{Bus as _, DeafBus, Hint, LocalBus};
use longhaul_core::{CallError, Outcome, TaskId, TraceContext};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::client::within;
use crate::world::{World, alice, config, text, until};

const RELATED: &str = "io.modelcontextprotocol/related-task";

#[tokio::test]
async fn a_call_becomes_a_task_whose_result_any_gateway_tells() {
    let world = World::start().await;
    let client = world.alice().await;
    let params = json!({"name": "wait", "arguments": {"n": 1}, "task": {"ttl": 7_200_000}});
    let created = client.ok("tools/call", params).await;
    let task = &created["task"];
    let id = task["taskId"].as_str().unwrap();
    assert_eq!(
        (&task["status"], &task["ttl"], &task["pollInterval"]),
        (&json!("working"), &json!(7_200_000), &json!(1000))
    );
    assert_eq!(created["_meta"][RELATED]["taskId"], id);
    let new = world.store.created.lock().unwrap()[0].clone();
    assert_eq!((&*new.tool, &*new.arguments), ("wait", &br#"{"n":1}"#[..]));
    assert!(!client.session.as_ref().unwrap().contains(new.session.as_ref().unwrap()), "the session itself was stored");

    let there = client.at(world.b.at);
    assert_eq!(there.ok("tasks/get", json!({"taskId": id, "task": {}})).await["status"], "working");
    let mut one = client.stream(json!("1"), "tasks/result", json!({"taskId": id})).await;
    let mut two = there.stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    for stream in [&mut one, &mut two] {
        let first = stream.event().await.unwrap();
        assert!(first.id.is_some() && first.data.as_deref() == Some(""));
        assert!(within("a comment", stream.next()).await.unwrap().comment);
    }
    world.store.finish(id, text("done \u{2028}"));
    for (stream, request) in [(&mut one, json!("1")), (&mut two, json!(1))] {
        let answer = stream.message().await;
        assert_eq!(answer["id"], request);
        assert_eq!(answer["result"]["content"][0]["text"], "done \u{2028}");
        assert_eq!(answer["result"]["_meta"][RELATED]["taskId"], id);
        assert_eq!(stream.event().await, None);
    }
    // Over, it is told at once, in whatever form.
    let again = there.ok("tasks/result", json!({"taskId": id})).await;
    assert_eq!(again["content"][0]["text"], "done \u{2028}");
    let mut stream =
        client.accepting("text/event-stream").stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    stream.event().await.unwrap();
    assert_eq!(stream.message().await["result"], again);
    until("nothing is open", || world.a.status.load().streams + world.b.status.load().streams == 0).await;
}

#[tokio::test]
async fn every_ending_is_told_as_2025_11_25_names_it() {
    let world = World::start().await;
    let client = world.alice().await;
    let tool_error = Outcome::Result { is_error: true, body: r#"{"content":[],"isError":true}"#.into() };
    let error = Outcome::Error(CallError { code: -7, message: "no".into(), data: None });
    let interrupted = Outcome::Interrupted(longhaul_core::Interruption::WorkerLost);
    for (outcome, status, error, already) in [
        (text("x"), "completed", None, "completed"),
        (tool_error, "failed", None, "failed"),
        (error, "failed", Some(-7), "failed"),
        (interrupted, "failed", Some(-32603), "failed"),
    ] {
        let id = client.create("echo").await;
        world.store.finish(&id, outcome);
        assert_eq!(client.ok("tasks/get", json!({"taskId": id})).await["status"], status);
        let answer = client.call("tasks/result", json!({"taskId": id})).await;
        assert_eq!((answer.status(), answer.code()), (200, error));
        let cancel = client.call("tasks/cancel", json!({"taskId": id})).await;
        assert_eq!(cancel.code(), Some(-32602));
        assert_eq!(cancel.json()["error"]["message"], format!("Cannot cancel task: already {already}"));
    }
    let id = client.create("echo").await;
    let mut waiting = client.stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    assert_eq!(client.at(world.b.at).ok("tasks/cancel", json!({"taskId": id})).await["status"], "cancelled");
    waiting.event().await.unwrap();
    assert_eq!(waiting.message().await["error"]["code"], -31499);
    assert_eq!(client.call("tasks/cancel", json!({"taskId": id})).await.code(), Some(-32602));
}

#[tokio::test]
async fn another_callers_task_is_answered_like_one_that_does_not_exist() {
    let world = World::start().await;
    let (alice, bob) = (world.alice().await, world.bob().await);
    let id = alice.create("echo").await;
    let unknown = TaskId::from_random(7).to_string();
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let theirs = bob.call(method, json!({"taskId": id})).await;
        assert_eq!((theirs.status(), theirs.code()), (200, Some(-32602)));
        for other in [&*unknown, "", "x' OR 1=1;--\r\n*", &"a".repeat(1024 * 1024), &id.to_uppercase()] {
            assert_eq!(bob.call(method, json!({"taskId": other})).await.body, theirs.body, "{method}");
        }
    }
    // A watched task is no less hidden.
    let mut waiting = alice.stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    waiting.event().await.unwrap();
    assert_eq!(bob.call("tasks/result", json!({"taskId": id})).await.code(), Some(-32602));
    assert_eq!(bob.ok("tasks/list", json!({})).await["tasks"], json!([]));
    let seen = alice.get(None).await.event().await.unwrap().id.unwrap();
    assert_eq!(bob.send("GET", &format!("Last-Event-ID: {seen}\r\n"), b"").await.head().await.unwrap().status, 400);
    assert_eq!(alice.ok("tasks/get", json!({"taskId": id})).await["status"], "working");
    let before = world.store.reads.load(Ordering::SeqCst);
    bob.call("tasks/get", json!({"taskId": "not an id"})).await;
    assert_eq!(world.store.reads.load(Ordering::SeqCst), before, "an impossible id was looked up");
}

#[tokio::test]
async fn tasks_are_listed_newest_first_over_pages_although_many_are_of_one_moment() {
    let world = World::start().await;
    let client = world.alice().await;
    world.bob().await.create("echo").await;
    let mut made = Vec::new();
    for at in 0..120 {
        if at == 60 {
            world.store.clock.advance(std::time::Duration::from_millis(1));
        }
        made.push(client.create("echo").await);
    }
    let (mut cursor, mut listed, mut sizes) = (Value::Null, Vec::new(), Vec::new());
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = client.at(world.b.at).ok("tasks/list", params).await;
        let ids = page["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].as_str().unwrap().to_owned());
        let before = listed.len();
        listed.extend(ids);
        sizes.push(listed.len() - before);
        match page.get("nextCursor") {
            Some(next) => cursor = next.clone(),
            None => break,
        }
    }
    assert_eq!(sizes, [50, 50, 20]);
    let (newer, older) = listed.split_at(60);
    let sorted = |ids: &[String]| {
        let mut ids = ids.to_vec();
        ids.sort();
        ids
    };
    assert_eq!((sorted(newer), sorted(older)), (sorted(&made[60..]), sorted(&made[..60])));
    assert_eq!(world.bob().await.call("tasks/list", json!({"cursor": cursor})).await.code(), Some(-32602));
}

#[tokio::test]
async fn a_caller_that_takes_no_stream_waits_for_a_while() {
    let world = World::start().await;
    let client = world.alice().await.accepting("application/json");
    let id = client.create("echo").await;
    let answer = client.call("tasks/result", json!({"taskId": id})).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-31408)));
    assert_eq!(answer.json()["error"]["data"], json!({"status": "working", "pollInterval": 1000, "retry": true}));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/result", "params": {"taskId": id}}).to_string();
    let mut waiting = client.send("POST", "", body.as_bytes()).await;
    until("it waits", || world.a.status.load().requests == 1).await;
    world.store.finish(&id, text("done"));
    assert_eq!(waiting.answer().await.unwrap().json()["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn hanging_up_or_cancelling_the_wait_leaves_the_task_alone() {
    let world = World::start().await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    let mut gone = client.stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    gone.event().await.unwrap();
    drop(gone);
    let mut cancelled = client.stream(json!(2), "tasks/result", json!({"taskId": id})).await;
    let mut other = client.stream(json!("2"), "tasks/result", json!({"taskId": id})).await;
    cancelled.event().await.unwrap();
    other.event().await.unwrap();
    client.at(world.b.at).notify("notifications/cancelled", json!({"requestId": 2})).await;
    client.over(cancelled, 0).await;
    assert_eq!(client.ok("tasks/get", json!({"taskId": id})).await["status"], "working");
    world.store.finish(&id, text("done"));
    assert_eq!(other.message().await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_create_is_finished_although_its_client_hangs_up() {
    let world = World::start().await;
    let client = world.alice().await;
    let hold = Arc::new(Notify::new());
    *world.store.hold_creates.lock().unwrap() = Some(hold.clone());
    let params = json!({"name": "echo", "task": {}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let connection = client.send("POST", "", body.as_bytes()).await;
    until("it has begun", || world.a.status.load().requests == 1).await;
    drop(connection);
    until("the request is gone", || world.a.status.load().requests == 0).await;
    hold.notify_one();
    until("the task is there", || world.store.created.lock().unwrap().len() == 1).await;
}

#[tokio::test]
async fn a_task_and_a_call_belong_to_the_trace_that_their_request_names() {
    let world = World::start().await;
    let client = world.alice().await;
    let trace = |digit: &str| format!("00-{}-{}-01", digit.repeat(32), digit.repeat(16));
    let header = format!(
        "traceparent: {}\r\ntracestate: h=1\r\ntracestate: i=2\r\nbaggage: h=1\r\nbaggage: i=2\r\n",
        trace("a")
    );
    let many = (0..33).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
    let in_meta = json!({"traceparent": trace("b"), "tracestate": "m=1", "baggage": "m=1"});
    let long = format!("k={}", "v".repeat(8191));
    let some = |texts: [&str; 3]| texts.map(|text| Some(text.to_owned()));
    for (meta, extra, expected) in [
        (json!({}), "", [None, None, None]),
        (json!({}), &*header, some([&trace("a"), "h=1,i=2", "h=1,i=2"])),
        (in_meta.clone(), &*header, some([&trace("b"), "m=1", "m=1"])),
        (json!({"traceparent": trace("b")}), &*header, [Some(trace("b")), None, Some("h=1,i=2".into())]),
        (json!({"baggage": "m=1"}), &*header, some([&trace("a"), "h=1,i=2", "m=1"])),
        (json!({"traceparent": "nonsense", "tracestate": "m=1"}), "", [None, None, None]),
        (json!({"traceparent": trace("b"), "tracestate": many, "baggage": long}), "", [Some(trace("b")), None, None]),
        // Who calls is never taken from a header.
        (
            json!({}),
            "x-tenant: t\r\nx-user: u\r\nx-longhaul-principal: p\r\ngrpc-metadata-x: p\r\n",
            [None, None, None],
        ),
    ] {
        for params in [json!({"name": "echo", "task": {}, "_meta": meta}), json!({"name": "echo", "_meta": meta})] {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
            let answer = client.send("POST", extra, body.as_bytes()).await.answer().await.unwrap();
            assert_eq!((answer.status(), answer.code()), (200, None));
        }
        let created = world.store.created.lock().unwrap().last().unwrap().clone();
        let invoked = world.worker.calls.lock().unwrap().last().unwrap().clone();
        assert_eq!((&created.owner, &invoked.principal), (&alice(), &alice()));
        for TraceContext { traceparent, tracestate, baggage } in [created.trace, invoked.trace] {
            assert_eq!([traceparent, tracestate, baggage], expected, "{meta} {extra}");
        }
    }
    let modern = world.modern().saying("traceparent", json!(trace("c"))).saying("baggage", json!("m=1"));
    modern.ok("tools/call", json!({"name": "echo", "arguments": {}})).await;
    let invoked = world.worker.calls.lock().unwrap().last().unwrap().trace.clone();
    assert_eq!((invoked.traceparent, invoked.baggage.as_deref()), (Some(trace("c")), Some("m=1")));
}

#[tokio::test]
async fn too_many_open_tasks_are_refused_and_a_store_that_is_away_is_unavailable() {
    let world = World::start().await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    world.store.open_max.store(1, Ordering::SeqCst);
    let create = json!({"name": "echo", "task": {}});
    let answer = client.call("tools/call", create.clone()).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-31429)));
    assert_eq!(answer.json()["error"]["data"]["refused_by"], "task_limit");
    world.store.down.store(true, Ordering::SeqCst);
    let reads =
        [("tasks/get", json!({"taskId": id})), ("tasks/result", json!({"taskId": id})), ("tasks/list", json!({}))];
    let writes = [("tools/call", create), ("tasks/cancel", json!({"taskId": id}))];
    let is_unavailable = async |method: &str, params: Value| {
        let answer = client.call(method, params).await;
        assert_eq!(
            (answer.status(), answer.code(), answer.json()["id"].as_i64()),
            (503, Some(-32603), Some(1)),
            "{method}"
        );
        assert_eq!(answer.head.header("retry-after"), Some("1"));
    };
    for (method, params) in reads.clone() {
        is_unavailable(method, params).await;
    }
    // Of a write it is not known whether it was done: to send it again could do it twice.
    for (method, params) in writes.clone() {
        let answer = client.call(method, params).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(-32603)), "{method}");
        assert_eq!(answer.head.header("retry-after"), None);
        let error = &answer.json()["error"];
        assert!(error["message"].as_str().unwrap().starts_with("It is not known whether"), "{error}");
        let named: TaskId = error["data"]["taskId"].as_str().unwrap().parse().unwrap();
        assert_eq!(named.to_string() == id, method == "tasks/cancel");
    }
    // Unless it surely was not begun.
    world.store.full.store(true, Ordering::SeqCst);
    for (method, params) in reads.into_iter().chain(writes) {
        is_unavailable(method, params).await;
    }
    // What needs no store is served.
    assert_eq!(client.ok("tools/call", json!({"name": "echo"})).await["content"][0]["text"], "ok");
}

#[tokio::test]
async fn a_task_that_expires_while_it_is_waited_for_is_told_at_once() {
    let world = World::start().await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    let mut waiting = client.stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    waiting.event().await.unwrap();
    world.store.clock.advance(std::time::Duration::from_secs(3601));
    let answer = waiting.message().await;
    assert_eq!(answer["error"]["message"], "Failed to retrieve task: Task has expired");
    assert_eq!(waiting.event().await, None);
}

#[tokio::test]
async fn a_stream_is_resumed_where_it_was_lost_and_only_with_its_own_event_id() {
    let world = World::start().await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    let mut lost = client.stream(json!("r"), "tasks/result", json!({"taskId": id})).await;
    let seen = lost.event().await.unwrap().id.unwrap();
    drop(lost);
    let there = client.at(world.b.at);
    for bad in ["x", &seen[1..], &seen.to_uppercase()] {
        let head = there.send("GET", &format!("Last-Event-ID: {bad}\r\n"), b"").await.head().await.unwrap();
        assert_eq!(head.status, 400);
    }
    world.store.finish(&id, text("done"));
    for _ in 0..2 {
        let mut resumed = there.get(Some(&seen)).await;
        assert_ne!(resumed.event().await.unwrap().id.unwrap(), seen);
        let answer = resumed.message().await;
        assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!("r"), &json!("done")));
        assert_eq!(resumed.event().await, None);
    }
    world.store.clock.advance(std::time::Duration::from_secs(3601));
    let mut late = there.get(Some(&seen)).await;
    assert_eq!(late.message().await["error"]["code"], -32602);
    assert_eq!(late.event().await, None);
    there.over(there.get(Some(&seen)).await, 1).await;
}

#[tokio::test]
async fn a_stream_that_ends_in_an_error_says_that_there_is_no_more() {
    let world = World::start().await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    let mut stream = client.stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    stream.event().await.unwrap();
    client.ok("tasks/cancel", json!({"taskId": id})).await;
    client.over(stream, 1).await;
}

#[tokio::test]
async fn without_hints_everything_works_only_later() {
    let world = World::with(config(), Arc::new(DeafBus::new())).await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    let mut waiting = client.at(world.b.at).stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    waiting.event().await.unwrap();
    world.store.finish(&id, text("done"));
    assert_eq!(waiting.message().await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn without_hints_the_session_stream_looks_for_tasks_more_often() {
    let pace = longhaul_gateway::Pace { floor: std::time::Duration::from_secs(3600), ..config().pace };
    let world = World::with(longhaul_gateway::Config { pace, ..config() }, Arc::new(DeafBus::new())).await;
    let client = world.alice().await;
    let mut stream = client.at(world.b.at).get(None).await;
    stream.event().await.unwrap();
    // The second is not there yet when the stream looks for the first.
    for _ in 0..2 {
        let id = client.create("echo").await;
        world.store.claim(&id);
        {
            let mut told = std::pin::pin!(stream.message());
            let mut reports = 0;
            let told = loop {
                tokio::select! {
                    told = &mut told => break told,
                    // The stream tells of what changes after its look.
                    () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {
                        reports += 1;
                        world.store.report(&id, Some(&format!("report {reports}")), None);
                    }
                }
            };
            assert_eq!(told["params"]["taskId"], id);
        }
        world.store.complete(&id, text("done"));
        while stream.message().await["params"]["status"] != "completed" {}
    }
}

#[tokio::test]
async fn one_lost_hint_costs_one_floor_interval() {
    let world = World::start().await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    let mut waiting = client.stream(json!(1), "tasks/result", json!({"taskId": id})).await;
    waiting.event().await.unwrap();
    world.store.silent.store(true, Ordering::SeqCst);
    world.store.finish(&id, text("done"));
    assert_eq!(waiting.message().await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn many_watchers_share_one_read_and_hints_that_lie_cause_few() {
    let bus = Arc::new(LocalBus::new());
    let config = longhaul_gateway::Config {
        pace: longhaul_gateway::Pace { floor: std::time::Duration::from_secs(60), ..config().pace },
        ..config()
    };
    let world = World::with(config, bus.clone()).await;
    let client = world.alice().await;
    let id = client.create("echo").await;
    let mut streams = Vec::new();
    for at in 0..20 {
        let mut stream = client.stream(json!(at), "tasks/result", json!({"taskId": id})).await;
        stream.event().await.unwrap();
        streams.push(stream);
    }
    let before = world.store.reads.load(Ordering::SeqCst);
    let task = id.parse().unwrap();
    for _ in 0..1000 {
        bus.publish(Hint::Task { id: task, version: u64::MAX - 1 });
    }
    bus.publish(Hint::Task { id: TaskId::from_random(1), version: 9 });
    world.store.claim(&id);
    world.store.complete(&id, text("done"));
    // The lies may have cost belief: then the truth is found when hints were missed, as after any loss.
    bus.publish(Hint::Missed);
    for stream in &mut streams {
        assert_eq!(stream.message().await["result"]["content"][0]["text"], "done");
    }
    let reads = world.store.reads.load(Ordering::SeqCst) - before;
    assert!(reads <= 8, "{reads} reads for 20 watchers");
}

#[tokio::test]
async fn the_session_stream_tells_of_tasks_of_its_session_on_whatever_gateway() {
    let world = World::start().await;
    let client = world.alice().await;
    let earlier = client.create("echo").await;
    let mut stream = client.at(world.b.at).get(None).await;
    stream.event().await.unwrap();
    let foreign = world.alice().await.create("echo").await;
    let id = client.create("echo").await;
    world.store.finish(&foreign, text("not here"));
    world.store.claim(&id);
    world.store.report(&id, Some("half"), Some(5.0));
    let (mut progress, mut status) = (Value::Null, Value::Null);
    while progress.is_null() || status["params"]["statusMessage"] != "half" {
        let told = stream.message().await;
        match told["method"].as_str().unwrap() {
            "notifications/progress" => progress = told,
            "notifications/tasks/status" => status = told,
            other => panic!("{other}"),
        }
    }
    assert_eq!(progress["params"]["progressToken"], "p");
    assert_eq!(progress["params"]["_meta"][RELATED]["taskId"], id);
    assert_eq!((&status["params"]["taskId"], &status["params"]["status"]), (&json!(id), &json!("working")));
    assert!(status["params"].get("_meta").is_none());
    world.store.complete(&id, text("done"));
    let ended = stream.message().await;
    assert_eq!((&ended["params"]["taskId"], &ended["params"]["status"]), (&json!(id), &json!("completed")));
    // A task from before the stream is told of too.
    world.store.finish(&earlier, text("done"));
    let ended = stream.message().await;
    assert_eq!((&ended["params"]["taskId"], &ended["params"]["status"]), (&json!(earlier), &json!("completed")));
}
