use longhaul_core::{TaskSupport, ToolDef, WorkerId, WorkerInfo};
use serde_json::{Value, json};

use crate::world::{World, all_tools, config, tool, until, worker_info};

fn names(page: &Value) -> Vec<&str> {
    page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn tools_are_listed_by_name_page_by_page_on_any_gateway() {
    let world = World::start().await;
    let client = world.alice().await;
    let first = client.ok("tools/list", json!({})).await;
    assert_eq!(names(&first), ["always", "echo", "fail"]);
    assert_eq!(first["tools"][0]["execution"]["taskSupport"], "required");
    let rest = client.at(world.b.at).ok("tools/list", json!({"cursor": first["nextCursor"]})).await;
    assert_eq!(names(&rest), ["never", "wait"]);
    assert!(rest.get("nextCursor").is_none());
}

#[tokio::test]
async fn a_cursor_of_another_kind_or_caller_is_no_cursor() {
    let world = World::start().await;
    let client = world.alice().await;
    let foreign = world.bob().await.ok("tools/list", json!({})).await["nextCursor"].clone();
    for method in ["tools/list", "tasks/list"] {
        for cursor in [&json!(""), &json!("x"), &foreign, &json!(7), &json!("x".repeat(5000))] {
            let answer = client.call(method, json!({"cursor": cursor})).await;
            assert_eq!((answer.status(), answer.code()), (200, Some(-32602)), "{method} {cursor}");
        }
    }
    let own = client.ok("tools/list", json!({})).await["nextCursor"].clone();
    assert_eq!(client.call("tasks/list", json!({"cursor": own})).await.code(), Some(-32602));
}

#[tokio::test]
async fn a_changed_list_is_told_on_the_session_stream() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    world.store.offer(vec![worker_info("w", Some("memory://w"), vec![tool("new", TaskSupport::Optional)])]);
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");
    assert_eq!(names(&client.ok("tools/list", json!({})).await), ["new"]);
}

#[tokio::test]
async fn the_first_worker_by_name_defines_a_tool_that_several_offer() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    let defined = |by: &str| {
        let definition = json!({"name": "t", "description": by, "inputSchema": {"type": "object"}, "n": 1}).to_string();
        let definition = definition.replace("\"n\":1", "\"n\":1.00").into();
        vec![ToolDef { definition, ..tool("t", TaskSupport::Optional) }]
    };
    world.store.offer(vec![worker_info("b", None, defined("b")), worker_info("a", None, defined("a"))]);
    stream.message().await;
    let answer = client.call("tools/list", json!({})).await;
    assert_eq!(answer.json()["result"]["tools"][0]["description"], "a");
    assert!(String::from_utf8(answer.body).unwrap().contains("\"n\":1.00"), "a number was rewritten");
}

/// As the task-store tells of a worker that has gone.
fn gone(name: &str, tools: Vec<ToolDef>) -> WorkerInfo {
    let info = worker_info(name, None, tools);
    WorkerInfo { id: WorkerId { incarnation: String::new(), ..info.id }, ..info }
}

#[tokio::test]
async fn a_worker_that_has_gone_defines_only_what_nobody_else_offers() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    let defined = |name: &str, by: &str| {
        let definition = json!({"name": name, "description": by, "inputSchema": {"type": "object"}}).to_string();
        ToolDef { definition: definition.into(), ..tool(name, TaskSupport::Optional) }
    };
    let old = gone("a", vec![defined("both", "old"), defined("old", "old")]);
    world.store.offer(vec![old, worker_info("b", None, vec![defined("both", "new")])]);
    stream.message().await;
    let tools = client.ok("tools/list", json!({})).await["tools"].clone();
    let told: Vec<_> = tools.as_array().unwrap().iter().map(|tool| (&tool["name"], &tool["description"])).collect();
    assert_eq!(told, [(&json!("both"), &json!("new")), (&json!("old"), &json!("old"))]);
}

#[tokio::test]
async fn between_two_starts_of_the_only_worker_tasks_are_taken_and_other_calls_wait_a_little() {
    let world = World::start().await;
    let client = world.alice().await;
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    // The tool that is new shows when the gateway has heard that the worker has gone.
    let tools = [all_tools(), vec![tool("new", TaskSupport::Optional)]].concat();
    world.store.offer(vec![gone("w", tools.clone())]);
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");
    let id = client.create("echo").await;
    assert_eq!(client.ok("tasks/get", json!({"taskId": id})).await["status"], "working");

    let call = json!({"name": "echo", "arguments": {}});
    let answer = client.call("tools/call", call.clone()).await;
    assert_eq!((answer.status(), answer.head.header("retry-after")), (503, Some("1")));
    assert!(world.worker.calls.lock().unwrap().is_empty());

    let coming_back = async {
        until("the call waits", || world.a.status.load().requests > 1).await;
        world.store.offer(vec![worker_info("w", Some("memory://w"), tools)]);
    };
    let (answer, ()) = tokio::join!(client.call("tools/call", call), coming_back);
    assert_eq!(answer.json()["result"]["content"][0]["text"], "ok", "{answer:?}");
    assert_eq!(world.worker.calls.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn without_tasks_there_is_no_word_of_them() {
    let config = longhaul_gateway::Config { tasks_legacy: false, ..config() };
    let world = World::with(config, std::sync::Arc::new(longhaul_bus::LocalBus::new())).await;
    let client = world.alice().await;
    let hello = client.initialize("2025-11-25").await.json();
    assert!(hello["result"]["capabilities"].get("tasks").is_none());
    for method in ["tasks/get", "tasks/list", "tasks/result", "tasks/cancel"] {
        let answer = client.call(method, json!({"taskId": "x"})).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(-32601)), "{method}");
    }
    let result = client.ok("tools/call", json!({"name": "echo", "arguments": {}, "task": {"ttl": -1}})).await;
    assert_eq!(result["content"][0]["text"], "ok");
    let list = client.ok("tools/list", json!({})).await;
    assert!(list["tools"].as_array().unwrap().iter().all(|tool| tool.get("execution").is_none()));
    assert_eq!(client.call("tools/call", json!({"name": "always"})).await.code(), Some(-32601));
    assert!(world.store.created.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_rules_of_task_support_are_kept() {
    let world = World::start().await;
    let client = world.alice().await;
    for (params, code) in [
        (json!({"name": "never", "task": {}}), -32601),
        (json!({"name": "always"}), -32601),
        (json!({"name": "nobody"}), -32602),
        (json!({"name": "nobody", "task": {}}), -32602),
        (json!({"name": 7}), -32602),
        (json!({"arguments": {}}), -32602),
        (json!({"name": "echo", "arguments": []}), -32602),
        (json!({"name": "echo", "task": true}), -32602),
        (json!({"name": "echo", "task": {"ttl": -1}}), -32602),
        (json!({"name": "echo", "task": {"ttl": "60000"}}), -32602),
        (json!({"name": "echo", "task": {"ttl": 1.5}}), -32602),
    ] {
        let answer = client.call("tools/call", params.clone()).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(code)), "{params}");
    }
    assert!(world.store.created.lock().unwrap().is_empty() && world.worker.calls.lock().unwrap().is_empty());
    assert_eq!(all_tools().len(), 5);
}
