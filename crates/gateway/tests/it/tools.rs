use longhaul_core::{TaskSupport, ToolDef};
use serde_json::{Value, json};

use crate::world::{World, all_tools, config, tool, worker_info};

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
