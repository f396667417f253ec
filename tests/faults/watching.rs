//! What an operator sees.

use std::time::{Duration, Instant};

use longhaul_tests::client::PATIENCE;
use longhaul_tests::processes::Site;
use longhaul_tests::world::ALICE;
use serde_json::{Value, json};

use crate::{LOOK, countdown, page, reaches, waiting};

const CANARY: &str = "canary-in-the-payload";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_logs_tell_what_happened_and_hold_no_payload() {
    let mut site = Site::shared().await;
    site.set("LOG", "info,longhaul_gateway=trace,longhaul_taskstore=trace,longhaul_worker=trace,longhaul_rpc=trace,longhaul_bus=trace,longhaul_cli=trace");
    site.set("MCP_TASK_MAX_OPEN", "2");
    let roles = ["taskstore-1", "runner-1", "gateway-1"];
    site.up(&roles).await;
    let client = site.client("gateway-1").await;

    let id = client.create("echo", json!({"text": CANARY})).await;
    reaches(&client, &id, "completed").await;
    client.ok("tasks/result", json!({"taskId": id})).await;
    client.ok("tools/call", json!({"name": "echo", "arguments": {"text": CANARY}})).await;
    client.error("tools/call", json!({"name": "fail", "arguments": {"message": CANARY, "code": -32000}})).await;
    client.ok("tools/call", json!({"name": "fail", "arguments": {"message": CANARY}})).await;
    client.error("tools/call", json!({"name": CANARY, "arguments": {}})).await;
    client.ok("tools/call", json!({"name": "countdown", "arguments": {"seconds": CANARY}})).await;
    client.error("tools/call", json!({"name": "panic", "arguments": {}})).await;
    client.error("tasks/get", json!({"taskId": CANARY})).await;
    let failed = client.create("fail", json!({"message": CANARY})).await;
    reaches(&client, &failed, "failed").await;
    let held = [countdown(&client, 600.0).await, countdown(&client, 600.0).await];
    let refused = client.error("tools/call", json!({"name": "echo", "arguments": {}, "task": {}})).await;
    assert_eq!(refused["code"], -31429, "{refused}");
    let stream = waiting(&client, &held[0]).await;
    client.ok("tasks/cancel", json!({"taskId": held[1]})).await;
    assert_eq!(site.run(&["tasks", "count"]).await, "stored 4\nopen 1\n");

    let rows = [
        (
            "gateway-1",
            vec![
                "mcp_server_operation_duration_seconds_count{gen_ai_tool_name=\"echo\",mcp_method_name=\"tools/call\",mcp_protocol_version=\"2025-11-25\"} 2",
                "error_type=\"-31429\",gen_ai_tool_name=\"echo\",mcp_method_name=\"tools/call\"",
                "mcp_method_name=\"tasks/get\"",
                "gen_ai_tool_name=\"_other\"",
                "longhaul_streams{kind=\"result\"} 1",
                "longhaul_task_refusals_total{refused_by=\"task_limit\"} 1",
                "longhaul_bus_connected{backend=\"redis\"} 1",
            ],
        ),
        (
            "taskstore-1",
            vec![
                "longhaul_tasks_stored 4",
                "longhaul_tasks_created_total{tool=\"echo\"} 1",
                "longhaul_tasks_created_total{tool=\"countdown\"} 2",
                "longhaul_tasks_ended_total{ending=\"completed\",tool=\"echo\"} 1",
                "longhaul_tasks_ended_total{ending=\"cancelled\",tool=\"countdown\"} 1",
                "longhaul_bus_connected{backend=\"redis\"} 1",
            ],
        ),
        ("runner-1", vec!["longhaul_runner_slots 8", "longhaul_runner_slots_busy 1"]),
    ];
    for (role, rows) in rows {
        let url = site.management(role, "/metrics");
        let begun = Instant::now();
        loop {
            let (status, text) = page(&url).await;
            assert_eq!(status, 200);
            assert!(!text.contains(CANARY), "{text}");
            let missing: Vec<_> = rows.iter().filter(|row| !text.contains(**row)).collect();
            if missing.is_empty() {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{role}: {missing:#?} in\n{text}");
            tokio::time::sleep(LOOK).await;
        }
        assert_eq!(page(&site.management(role, "/livez")).await.0, 200);
    }
    drop(stream);

    for role in ["gateway-1", "runner-1", "taskstore-1"] {
        // The last lines come with the end.
        site.role(role).signal("KILL");
        site.role(role).code(PATIENCE).await;
        let log = site.role(role).log();
        assert!(!log.is_empty(), "{role}");
        for line in log.lines() {
            // A panic's own words come from the runtime.
            if let Ok(line) = serde_json::from_str::<Value>(line) {
                assert!(line["timestamp"].is_string() && line["level"].is_string(), "{role}: {line}");
            } else {
                assert!(role == "runner-1" && !line.starts_with('{'), "{role}: {line}");
            }
        }
        for secret in [CANARY, ALICE, "a-service-token-for-the-tests", client.session()] {
            assert!(!log.contains(secret), "{role} logs {secret:?}: {log}");
        }
    }
}
