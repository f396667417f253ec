//! Tasks in 2026-07-28: the server decides, and one answer tells all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_bus::LocalBus;
use longhaul_core::{CallError, ClientCapabilities, InputResponse, Outcome, Question, TaskId, TaskSupport, ToolDef};
use longhaul_gateway::Config;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::client::within;
use crate::modern::Modern;
use crate::world::{BOB, World, all_tools, bob, config, form, text, tool, until, worker_info};

const RELATED: &str = "io.modelcontextprotocol/related-task";

fn url() -> Question {
    Question::Url { message: "Link".into(), url: "https://example.com/x".into() }
}

/// A world with these tools beside its own.
async fn with_tools(more: Vec<ToolDef>) -> World {
    let world = World::start().await;
    let name = more[0].name.clone();
    let tools = all_tools().into_iter().chain(more).collect();
    world.store.offer(vec![worker_info("w", Some("memory://w"), tools)]);
    for at in [world.a.at, world.b.at] {
        let client = world.modern().at(at);
        within("the tool", async {
            while client.call("tools/call", json!({"name": name})).await.json()["error"]["message"]
                == format!("Unknown tool: {name}")
            {}
        })
        .await;
    }
    world.worker.calls.lock().unwrap().clear();
    world.store.tasks.lock().unwrap().clear();
    world.store.created.lock().unwrap().clear();
    world
}

#[tokio::test]
async fn a_caller_that_knows_tasks_gets_one_which_any_gateway_tells_of() {
    let world = World::start().await;
    let client = world.modern().with_tasks();
    let created = client.ok("tools/call", json!({"name": "echo", "arguments": {"n": 1}})).await;
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    assert_eq!((&created["ttlMs"], &created["pollIntervalMs"]), (&json!(3_600_000), &json!(1000)));
    for absent in ["task", "ttl", "pollInterval", "result", "inputRequests", "requestState"] {
        assert!(created.get(absent).is_none(), "{absent}");
    }
    let id = created["taskId"].as_str().unwrap();
    let new = world.store.created.lock().unwrap()[0].clone();
    assert_eq!((&*new.arguments, new.session, new.progress_token), (&br#"{"n":1}"#[..], None, None));

    let there = client.at(world.b.at);
    let working = there.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((&working["resultType"], &working["status"]), (&json!("complete"), &json!("working")));
    world.store.finish(id, text("done"));
    let ended = there.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((&ended["status"], &ended["result"]["content"][0]["text"]), (&json!("completed"), &json!("done")));
    assert!(ended["result"]["_meta"].get(RELATED).is_none());
    // Its caller is the same in a session, and hears of it in the words of that era.
    let session = world.alice().await;
    assert_eq!(session.ok("tasks/get", json!({"taskId": id})).await["status"], "completed");
    assert_eq!(session.ok("tasks/list", json!({})).await["tasks"][0]["taskId"], id);
    let result = session.ok("tasks/result", json!({"taskId": id})).await;
    assert_eq!(result["_meta"][RELATED]["taskId"], id);
}

#[tokio::test]
async fn every_ending_is_told_as_each_era_names_it() {
    let world = World::start().await;
    let (modern, session) = (world.modern().with_tasks(), world.alice().await);
    let tool_error = Outcome::Result { is_error: true, body: r#"{"content":[],"isError":true}"#.into() };
    let error = Outcome::Error(CallError { code: -7, message: "no".into(), data: None });
    let interrupted = Outcome::Interrupted(longhaul_core::Interruption::WorkerLost);
    for (outcome, now, then, code) in [
        (text("x"), "completed", "completed", None),
        (tool_error, "completed", "failed", None),
        (error, "failed", "failed", Some(-7)),
        (interrupted, "failed", "failed", Some(-32603)),
    ] {
        let id = modern.create("echo").await;
        world.store.finish(&id, outcome);
        let seen = modern.ok("tasks/get", json!({"taskId": id})).await;
        assert_eq!((&seen["status"], seen["error"]["code"].as_i64()), (&json!(now), code));
        assert_eq!(seen.get("result").is_some(), code.is_none());
        assert_eq!(session.ok("tasks/get", json!({"taskId": id})).await["status"], then);
        // Too late to cancel is no error here.
        let ack = modern.ok("tasks/cancel", json!({"taskId": id})).await;
        assert_eq!((&ack["resultType"], ack.get("taskId")), (&json!("complete"), None));
        assert_eq!(session.call("tasks/cancel", json!({"taskId": id})).await.code(), Some(-32602));
    }
    let id = modern.create("echo").await;
    for _ in 0..2 {
        let ack = modern.ok("tasks/cancel", json!({"taskId": id})).await;
        let members: Vec<_> = ack.as_object().unwrap().keys().map(String::as_str).collect();
        assert!(members.iter().all(|name| matches!(*name, "resultType" | "_meta")), "{ack}");
    }
    let seen = modern.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((&seen["status"], seen.get("error"), seen.get("result")), (&json!("cancelled"), None, None));
}

#[tokio::test]
async fn a_client_of_both_eras_gets_and_cancels_what_it_made_in_a_session_without_the_extension() {
    let world = World::start().await;
    let id = world.alice().await.create("echo").await;
    let both = world.modern().declaring("tasks", json!({"cancel": {}}));
    let task = both.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((&task["taskId"], &task["status"]), (&json!(id), &json!("working")));
    both.ok("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(both.ok("tasks/get", json!({"taskId": id})).await["status"], "cancelled");
    // Nothing else follows from it, and nobody else gains by it.
    let update = json!({"taskId": id, "inputResponses": {}});
    assert_eq!(both.no("tasks/update", update).await, (400, -32021));
    assert_eq!(world.modern().no("tasks/get", json!({"taskId": id})).await, (400, -32021));
    let bob = Modern::new(world.a.at, BOB).declaring("tasks", json!({}));
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(bob.no(method, json!({"taskId": id})).await, (400, -32021), "{method}");
    }
}

#[tokio::test]
async fn who_does_not_declare_the_extension_gets_plain_answers_and_no_tasks() {
    let world = World::start().await;
    let id = world.modern().with_tasks().create("echo").await;
    // A declaration in a session, or of the capability of sessions, is none.
    let plain = world.modern().declaring("tasks", json!({"requests": {"tools": {"call": {}}}}));
    let result = plain.ok("tools/call", json!({"name": "echo", "task": {"ttl": 1}})).await;
    assert_eq!((&result["resultType"], &result["content"][0]["text"]), (&json!("complete"), &json!("ok")));
    for (method, params) in [
        ("tools/call", json!({"name": "always"})),
        ("tasks/get", json!({"taskId": id})),
        ("tasks/get", json!({"taskId": "nonsense"})),
        ("tasks/cancel", json!({"taskId": id})),
        ("tasks/update", json!({"taskId": id, "inputResponses": {}})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": [id]}})),
    ] {
        let answer = plain.call(method, params).await;
        assert_eq!((answer.status(), answer.code()), (400, Some(-32021)), "{method}");
        let required = answer.json()["error"]["data"]["requiredCapabilities"].clone();
        assert_eq!(required, json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}), "{method}");
    }
    assert_eq!(world.store.created.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_tool_says_whether_a_call_may_or_must_become_a_task() {
    let world = World::start().await;
    let client = world.modern().with_tasks();
    assert_eq!(client.ok("tools/call", json!({"name": "never"})).await["resultType"], "complete");
    assert_eq!(client.ok("tools/call", json!({"name": "echo"})).await["resultType"], "task");
    assert_eq!(client.ok("tools/call", json!({"name": "always"})).await["resultType"], "task");
    // What a session would say about it means nothing.
    assert_eq!(client.ok("tools/call", json!({"name": "never", "task": {"ttl": "x"}})).await["resultType"], "complete");
    assert_eq!(client.no("tools/call", json!({"name": "nobody"})).await, (200, -32602));
}

#[tokio::test]
async fn a_tool_that_decides_itself_begins_as_a_call() {
    let decides = |name, support| ToolDef { decides: true, ..tool(name, support) };
    let world = with_tools(vec![decides("may", TaskSupport::Optional), decides("must", TaskSupport::Required)]).await;
    let may = async |client: &Modern, name: &str| {
        client.ok("tools/call", json!({"name": name})).await;
        world.worker.calls.lock().unwrap().pop().unwrap().may_become_task
    };
    let knows = world.modern().with_tasks();
    assert!(may(&knows, "may").await && may(&knows, "must").await);
    assert!(!may(&world.modern(), "may").await);
    assert_eq!(world.modern().no("tools/call", json!({"name": "must"})).await, (400, -32021));
    assert!(world.store.created.lock().unwrap().is_empty());
    // In a session its client has decided.
    let session = world.alice().await;
    assert!(session.ok("tools/call", json!({"name": "may", "task": {}})).await["task"].is_object());
    session.ok("tools/call", json!({"name": "may"})).await;
    assert!(!world.worker.calls.lock().unwrap().pop().unwrap().may_become_task);
}

#[tokio::test]
async fn a_tool_is_called_for_a_client_only_that_can_be_asked_what_it_needs() {
    let needs = ClientCapabilities { sampling: true, elicitation_form: true, ..ClientCapabilities::default() };
    let world = with_tools(vec![ToolDef { needs, ..tool("asks", TaskSupport::Optional) }]).await;
    let call = json!({"name": "asks"});
    let answer = world.modern().call("tools/call", call.clone()).await;
    assert_eq!((answer.status(), answer.code()), (400, Some(-32021)));
    let required = |answer: &crate::client::Answer| answer.json()["error"]["data"]["requiredCapabilities"].clone();
    assert_eq!(required(&answer), json!({"elicitation": {"form": {}}, "sampling": {}}));
    let can = world.modern().declaring("elicitation", json!({}));
    let answer = can.call("tools/call", call.clone()).await;
    assert_eq!((answer.code(), required(&answer)), (Some(-32021), json!({"sampling": {}})));
    let can = can.declaring("sampling", json!({}));
    assert_eq!(can.ok("tools/call", call.clone()).await["content"][0]["text"], "ok");
    // A session says what its client can be asked once and for all.
    assert_eq!(world.alice().await.call("tools/call", call).await.code(), Some(-32602));
}

#[tokio::test]
async fn arguments_that_are_said_in_headers_too_are_said_alike() {
    let schema = json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    let definition = json!({"name": "where", "description": "d", "inputSchema": schema}).to_string().into();
    let world = with_tools(vec![ToolDef { definition, ..tool("where", TaskSupport::Forbidden) }]).await;
    let client = world.modern();
    let send = async |arguments: Value, extra: &str| {
        let params = json!({"name": "where", "arguments": arguments});
        let headers = format!("{}{extra}", Modern::headers("tools/call", &params));
        let body = client.body(&json!(1), "tools/call", params).to_string();
        let answer = client.send(&headers, body.as_bytes()).await.answer().await.unwrap();
        (answer.status(), answer.code())
    };
    let north = json!({"region": "north"});
    assert_eq!(send(north.clone(), "Mcp-Param-Region: north\r\n").await, (200, None));
    assert_eq!(send(json!({}), "").await, (200, None));
    assert_eq!(send(json!({}), "Mcp-Param-Other: x\r\n").await, (200, None));
    for (arguments, extra) in [
        (north.clone(), ""),
        (north.clone(), "Mcp-Param-Region: south\r\n"),
        (north.clone(), "Mcp-Param-Region: =?base64?bm9y?=\r\n"),
        (json!({"region": null}), "Mcp-Param-Region: north\r\n"),
    ] {
        assert_eq!(send(arguments, extra).await, (400, Some(-32020)), "{extra}");
    }
    // A session knows no such headers.
    let result = world.alice().await.ok("tools/call", json!({"name": "where", "arguments": north})).await;
    assert_eq!(result["content"][0]["text"], "ok");
}

#[tokio::test]
async fn the_callers_limit_refuses_and_the_tenants_limit_only_what_must_be_a_task() {
    let world = World::start().await;
    let (modern, session) = (world.modern().with_tasks(), world.alice().await);
    world.store.live_max.store(0, Ordering::SeqCst);
    assert_eq!(modern.ok("tools/call", json!({"name": "echo"})).await["content"][0]["text"], "ok");
    assert_eq!(modern.no("tools/call", json!({"name": "always"})).await, (200, -31429));
    let answer = session.call("tools/call", json!({"name": "echo", "task": {}})).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-31429)));
    world.store.live_max.store(usize::MAX, Ordering::SeqCst);
    world.store.open_max.store(0, Ordering::SeqCst);
    let answer = modern.call("tools/call", json!({"name": "echo"})).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-31429)));
    assert_eq!(answer.json()["error"]["data"]["refused_by"], "task_limit");
    assert!(world.store.created.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_task_that_ends_at_once_is_answered_with_its_outcome() {
    let world =
        World::with(Config { task_shortcut: Duration::from_secs(60), ..config() }, Arc::new(LocalBus::new())).await;
    let client = world.modern().with_tasks();
    let created = async || {
        until("the task", || !world.store.created.lock().unwrap().is_empty()).await;
        world.store.created.lock().unwrap().pop().unwrap().id.to_string()
    };
    let (result, id) = tokio::join!(client.ok("tools/call", json!({"name": "echo"})), async {
        let id = created().await;
        world.store.finish(&id, text("quick"));
        id
    });
    assert_eq!((&result["resultType"], &result["content"][0]["text"]), (&json!("complete"), &json!("quick")));
    // It stays, as any other.
    assert_eq!(client.ok("tasks/get", json!({"taskId": id})).await["status"], "completed");
    // One that asks cannot be answered by a caller that does not know it.
    let client = client.declaring("elicitation", json!({}));
    let (result, id) = tokio::join!(client.ok("tools/call", json!({"name": "echo"})), async {
        let id = created().await;
        world.store.claim(&id);
        world.store.ask(&id, &[("q-1", form("name"))]);
        id
    });
    assert_eq!((&result["resultType"], &result["taskId"]), (&json!("task"), &json!(id)));
    // In a session an accepted task is a task.
    let session = world.alice().await;
    assert!(session.ok("tools/call", json!({"name": "echo", "task": {}})).await["task"].is_object());
}

#[tokio::test]
async fn a_task_of_which_nobody_heard_is_cancelled_and_one_that_was_told_of_is_not() {
    let world = World::start().await;
    let client = world.modern().with_tasks();
    let hold = Arc::new(Notify::new());
    *world.store.hold_creates.lock().unwrap() = Some(hold.clone());
    let connection = client.begin(json!(1), "tools/call", json!({"name": "echo"})).await;
    until("it has begun", || world.a.status.load().requests == 1).await;
    drop(connection);
    until("the request is gone", || world.a.status.load().requests == 0).await;
    hold.notify_one();
    let status = |id: TaskId| world.store.tasks.lock().unwrap().get(&id).map(|(task, _)| task.ending());
    until("the task is there", || !world.store.created.lock().unwrap().is_empty()).await;
    let id = world.store.created.lock().unwrap()[0].id;
    until("it is cancelled", || status(id) == Some(Some(longhaul_core::Ending::Cancelled))).await;

    *world.store.hold_creates.lock().unwrap() = None;
    for accept in ["application/json", "text/event-stream"] {
        let params = json!({"name": "echo"});
        let mut connection = client.accepting(accept).begin(json!(1), "tools/call", params).await;
        let body = String::from_utf8(connection.answer().await.unwrap().body).unwrap();
        let body = body.trim().trim_start_matches("data: ");
        let id = serde_json::from_str::<Value>(body).unwrap()["result"]["taskId"].as_str().unwrap().to_owned();
        drop(connection);
        until("the request is gone", || world.a.status.load().requests == 0).await;
        assert_eq!(client.ok("tasks/get", json!({"taskId": id})).await["status"], "working", "{accept}");
    }
}

#[tokio::test]
async fn another_callers_task_is_answered_like_one_that_does_not_exist() {
    let world = World::start().await;
    let alice = world.modern().with_tasks();
    let stranger = Modern { token: BOB, ..alice.clone() };
    let id = alice.create("echo").await;
    assert_ne!(world.store.tasks.lock().unwrap()[&id.parse().unwrap()].0.owner, bob());
    let unknown = TaskId::from_random(7).to_string();
    for (method, more) in
        [("tasks/get", json!({})), ("tasks/cancel", json!({})), ("tasks/update", json!({"inputResponses": {}}))]
    {
        let with = |id: &str| {
            let mut params = more.clone();
            params["taskId"] = json!(id);
            params
        };
        let theirs = stranger.call(method, with(&id)).await;
        assert_eq!((theirs.status(), theirs.code()), (200, Some(-32602)), "{method}");
        for other in [&*unknown, "nonsense"] {
            assert_eq!(stranger.call(method, with(other)).await.body, theirs.body, "{method}");
        }
    }
    assert_eq!(alice.ok("tasks/get", json!({"taskId": id})).await["status"], "working");
    // A name in the header that differs is refused before anything is looked up; none is fine (A-11).
    let headers = |name: &str| format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tasks/get\r\n{name}");
    let body = alice.body(&json!(1), "tasks/get", json!({"taskId": id})).to_string();
    let status = async |name: &str| {
        let answer = alice.send(&headers(name), body.as_bytes()).await.answer().await.unwrap();
        (answer.status(), answer.code())
    };
    assert_eq!(status("").await, (200, None));
    assert_eq!(status("Mcp-Name: other\r\n").await, (400, Some(-32020)));
}

#[tokio::test]
async fn a_task_that_asks_shows_its_questions_and_takes_answers_by_and_by() {
    let world = World::start().await;
    let client = world.modern().with_tasks().declaring("elicitation", json!({"form": {}, "url": {}}));
    let id = client.create("echo").await;
    world.store.claim(&id);
    world.store.ask(&id, &[("q-1", form("name")), ("q-2", form("colour")), ("q-3", url())]);
    let seen = client.at(world.b.at).ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!(seen["status"], "input_required");
    let asked = seen["inputRequests"].as_object().unwrap();
    assert_eq!(asked.keys().collect::<Vec<_>>(), ["q-1", "q-2", "q-3"]);
    assert_eq!(
        (&asked["q-1"]["method"], &asked["q-1"]["params"]["mode"]),
        (&json!("elicitation/create"), &json!("form"))
    );
    assert_eq!((&asked["q-3"]["params"]["mode"], asked["q-3"]["params"].get("elicitationId")), (&json!("url"), None));

    let update = async |responses: Value| {
        client.at(world.b.at).call("tasks/update", json!({"taskId": id, "inputResponses": responses})).await
    };
    // One that is no answer, and nothing that came with it counts.
    for bad in [json!(7), json!({"action": "maybe"}), json!({})] {
        let answer = update(json!({"q-1": {"action": "decline"}, "q-2": bad})).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(-32602)));
    }
    assert!(world.store.answers.lock().unwrap().is_empty());
    for bad in [json!(null), json!([]), json!("x")] {
        let answer = update(bad).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(-32602)));
    }
    let acknowledged = async |responses: Value| {
        let answer = update(responses).await;
        let result = answer.json()["result"].clone();
        assert_eq!((answer.status(), &result["resultType"]), (200, &json!("complete")), "{result}");
        assert!(result.as_object().unwrap().keys().all(|name| name == "resultType" || name == "_meta"), "{result}");
    };
    acknowledged(json!({})).await;
    // What was never asked is ignored, whatever it is.
    acknowledged(json!({"q-1": {"action": "accept", "content": {"name": "Ada"}}, "unknown-key": {"ignored": true}}))
        .await;
    let seen = client.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!(seen["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), ["q-2", "q-3"]);
    // The first answer counts.
    acknowledged(json!({"q-1": 7})).await;
    acknowledged(json!({"q-2": {"action": "cancel"}, "q-3": {"action": "accept"}})).await;
    let answers: Vec<_> =
        world.store.answers.lock().unwrap().iter().map(|(_, nth, answer)| (*nth, answer.clone())).collect();
    assert_eq!(
        answers,
        [
            (1, InputResponse::Accept(Some(r#"{"name":"Ada"}"#.into()))),
            (2, InputResponse::Cancel),
            (3, InputResponse::Accept(None))
        ]
    );
    let seen = client.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((&seen["status"], seen.get("inputRequests")), (&json!("working"), None));
    world.store.complete(&id, text("done"));
    acknowledged(json!({"q-1": {"action": "decline"}})).await;
}

#[tokio::test]
async fn who_cannot_be_asked_sees_that_the_task_waits_but_not_for_what() {
    let world = World::start().await;
    let creator = world.modern().with_tasks().declaring("elicitation", json!({"form": {}, "url": {}}));
    let id = creator.create("echo").await;
    world.store.claim(&id);
    world.store.report(&id, Some("Half done"), None);
    world.store.ask(&id, &[("q-1", form("name")), ("q-2", url())]);
    let seen = creator.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!(seen["statusMessage"], "Half done");
    let forms_only = world.modern().with_tasks().declaring("elicitation", json!({}));
    let seen = forms_only.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!(seen["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), ["q-1"]);
    assert!(seen["statusMessage"].as_str().unwrap().contains("not declared"));
    let cannot = world.modern().with_tasks();
    let seen = cannot.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!(seen["status"], "input_required");
    assert!(!seen.to_string().contains("q-1") && !seen.to_string().contains("Which"), "{seen}");
    // It may answer all the same: the creator can be asked.
    cannot.ok("tasks/update", json!({"taskId": id, "inputResponses": {"q-2": {"action": "decline"}}})).await;
    assert_eq!(world.store.answers.lock().unwrap().len(), 1);
    assert_eq!(world.alice().await.ok("tasks/get", json!({"taskId": id})).await["status"], "input_required");
}

#[tokio::test]
async fn a_store_that_is_away_is_unavailable_and_a_write_of_unknown_outcome_says_so() {
    let world = World::start().await;
    let client = world.modern().with_tasks();
    let id = client.create("echo").await;
    world.store.down.store(true, Ordering::SeqCst);
    for (method, params) in [
        ("tasks/get", json!({"taskId": id})),
        ("tasks/update", json!({"taskId": id, "inputResponses": {}})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": [id]}})),
    ] {
        let answer = client.call(method, params).await;
        assert_eq!((answer.status(), answer.code()), (503, Some(-32603)), "{method}");
        assert_eq!(answer.head.header("retry-after"), Some("1"));
    }
    for (method, params) in [("tools/call", json!({"name": "echo"})), ("tasks/cancel", json!({"taskId": id}))] {
        let answer = client.call(method, params).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(-32603)), "{method}");
        let error = &answer.json()["error"];
        assert!(error["message"].as_str().unwrap().contains("tasks/get"), "{error}");
        assert!(error["data"]["taskId"].as_str().unwrap().parse::<TaskId>().is_ok());
    }
    // What needs no store is served.
    assert_eq!(world.modern().ok("tools/call", json!({"name": "echo"})).await["content"][0]["text"], "ok");
}
