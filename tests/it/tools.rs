//! Tools are listed.

use std::time::Duration;

use longhaul_tests::client::{Client, Events, PATIENCE};
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::{Value, json};

async fn all(clients: &[Client]) -> Vec<Value> {
    let (mut tools, mut params) = (Vec::new(), json!({}));
    for client in clients.iter().cycle() {
        let page = client.ok("tools/list", params).await;
        tools.extend(page["tools"].as_array().unwrap().iter().cloned());
        match page.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    tools
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

async fn every_tool_is_listed_with_its_schema_and_task_support(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.gateway.tools_page = 3).await;
    let clients = world.clients(ALICE).await;
    let tools = all(&clients).await;
    let expected = [
        "ask",
        "ask-many",
        "ask-odd",
        "blob",
        "call-only",
        "countdown",
        "echo",
        "fail",
        "give-up",
        "grow",
        "hold",
        "log",
        "mirror",
        "panic",
        "task-only",
        "touch",
        "trace",
    ];
    assert_eq!(names(&tools), expected);
    for tool in &tools {
        let support = match tool["name"].as_str().unwrap() {
            "task-only" => "required",
            "call-only" => "forbidden",
            _ => "optional",
        };
        assert_eq!(tool["execution"]["taskSupport"], support, "{tool}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(!tool["description"].as_str().unwrap().is_empty(), "{tool}");
    }
    assert_eq!(tools[5]["inputSchema"]["required"], json!(["seconds"]));
    for wrong in ["", "3", "hold"] {
        assert_eq!(clients[0].error("tools/list", json!({"cursor": wrong})).await["code"], -32602);
    }
    world.stop().await;
}

/// Waits until both gateways say so.
async fn until(clients: &[Client; 2], is_so: impl Fn(&[Value]) -> bool) {
    let both = async {
        for client in clients {
            while !is_so(&all(std::slice::from_ref(client)).await) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, both).await.unwrap();
}

async fn tools_come_and_go_with_their_workers_and_clients_are_told(wiring: Wiring) {
    let world = World::start(wiring).await;
    let clients = world.clients(ALICE).await;
    let mut streams = Vec::new();
    for client in &clients {
        let mut stream = Events::new(client.get(None).await);
        assert_eq!(stream.next_data().await.as_deref(), Some(""));
        streams.push(stream);
    }
    world.start_worker_with("worker-2", vec![world.gate.tool("extra")]).await;
    for stream in &mut streams {
        let told = stream.next().await.unwrap();
        assert_eq!(told, json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    }
    until(&clients, |tools| names(tools).contains(&"extra")).await;
    let id = clients[1].create("extra", json!({})).await;
    assert_eq!(world.gate.started().await, id, "a worker that has the tool");
    world.gate.open();
    clients[0].result(&id).await;
    world.end("worker-2").await;
    for stream in &mut streams {
        while stream.next().await.unwrap()["method"] != "notifications/tools/list_changed" {}
    }
    until(&clients, |tools| !names(tools).contains(&"extra")).await;
    assert_eq!(clients[0].error("tools/call", json!({"name": "extra", "task": {}})).await["code"], -32602);
    drop(streams);
    world.stop().await;
}

crate::both!(
    every_tool_is_listed_with_its_schema_and_task_support,
    tools_come_and_go_with_their_workers_and_clients_are_told,
);
