//! One store, two eras: a task made in one is the same task in the other.

use longhaul_tests::client::{Client, message};
use longhaul_tests::modern::{Modern, TASKS};
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use serde_json::{Value, json};

const RELATED: &str = "io.modelcontextprotocol/related-task";

fn modern(world: &World, gateway: usize) -> Modern {
    Modern::new(&world.urls[gateway], Some(ALICE))
}

async fn an_ending_has_the_name_that_each_era_gives_it(wiring: Wiring) {
    let world = World::start(wiring).await;
    let old = world.client(ALICE).await;
    let new = modern(&world, 1);
    let error = json!({"message": "no such printer", "code": -31000});
    for (arguments, in_old, in_new) in
        [(json!({"message": "out of paper"}), "failed", "completed"), (error.clone(), "failed", "failed")]
    {
        for id in [old.create("fail", arguments.clone()).await, new.create("fail", arguments.clone()).await] {
            let result = old.result(&id).await;
            assert_eq!(old.status(&id).await, in_old);
            let task = new.task(&id).await;
            assert_eq!((&task["resultType"], &task["status"]), (&json!("complete"), &json!(in_new)), "{task}");
            match in_new {
                "completed" => {
                    assert_eq!(result["result"]["_meta"][RELATED]["taskId"], json!(id));
                    let mut plain = result["result"].clone();
                    plain.as_object_mut().unwrap().remove("_meta");
                    plain["resultType"] = json!("complete");
                    assert_eq!(task["result"], plain, "without the task's name in it");
                }
                _ => {
                    assert_eq!(task["error"], result["error"]);
                    assert_eq!(task["statusMessage"], "no such printer");
                    assert!(task.get("result").is_none(), "{task}");
                }
            }
        }
    }
    for id in [old.create("panic", json!({})).await, new.create("panic", json!({})).await] {
        let result = old.result(&id).await;
        assert_eq!(result["error"]["code"], -32603);
        assert_eq!(new.task(&id).await["error"], result["error"]);
    }
    world.stop().await;
}

async fn an_interrupted_task_is_failed_with_the_same_error_in_both_eras(wiring: Wiring) {
    let world = World::start(wiring).await;
    let (old, new) = (world.client(ALICE).await, modern(&world, 1));
    let ids = [old.create("hold", json!({})).await, new.create("hold", json!({})).await];
    for _ in &ids {
        world.gate.started().await;
    }
    world.crash("worker-1").await;
    // The same worker, come back: what it held is over at once.
    world.start_worker("worker-1").await;
    for id in ids {
        let told = old.result(&id).await["error"].clone();
        assert_eq!(told["code"], -32603);
        assert_eq!(old.status(&id).await, "failed");
        let task = new.task(&id).await;
        assert_eq!((&task["status"], &task["error"]), (&json!("failed"), &told), "{task}");
    }
    world.stop().await;
}

async fn a_task_is_listed_read_and_cancelled_in_either_era(wiring: Wiring) {
    let world = World::start(wiring).await;
    let (old, new) = (world.client(ALICE).await, modern(&world, 1));
    let made_new = new.create("hold", json!({})).await;
    world.gate.started().await;
    let made_old = old.create("hold", json!({})).await;
    world.gate.started().await;
    let listed = old.ok("tasks/list", json!({})).await;
    let ids: Vec<_> = listed["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].clone()).collect();
    assert_eq!(ids, [json!(made_old), json!(made_new)], "newest first, whoever made it");

    let (in_old, in_new) = (old.ok("tasks/get", json!({"taskId": made_new})).await, new.task(&made_new).await);
    assert_eq!((&in_old["ttl"], &in_old["pollInterval"]), (&in_new["ttlMs"], &in_new["pollIntervalMs"]));
    for absent in ["ttl", "pollInterval", "task", "result", "error", "inputRequests", "requestState"] {
        assert!(in_new.get(absent).is_none(), "{absent}: {in_new}");
    }
    for absent in ["ttlMs", "pollIntervalMs", "resultType"] {
        assert!(in_old.get(absent).is_none(), "{absent}: {in_old}");
    }

    let waiting = old.result(&made_new);
    let cancelling = async {
        let cancelled = new.ok("tasks/cancel", json!({"taskId": made_new})).await;
        let names: Vec<_> = cancelled.as_object().unwrap().keys().cloned().collect();
        assert_eq!(names, ["resultType", "_meta"], "an acknowledgement says nothing else");
        assert_eq!(world.gate.stopped().await, made_new);
    };
    let (result, ()) = tokio::join!(waiting, cancelling);
    assert_eq!(result["error"]["code"], -31499);
    assert_eq!(old.error("tasks/cancel", json!({"taskId": made_new})).await["code"], -32602, "2025: an error");
    new.ok("tasks/cancel", json!({"taskId": made_new})).await;

    assert_eq!(old.ok("tasks/cancel", json!({"taskId": made_old})).await["status"], "cancelled");
    let task = new.task(&made_old).await;
    assert_eq!(task["status"], "cancelled");
    assert!(task.get("result").is_none() && task.get("error").is_none(), "{task}");
    world.stop().await;
}

async fn a_foreign_task_does_not_exist_in_the_new_era_either(wiring: Wiring) {
    let world = World::start(wiring).await;
    let new = modern(&world, 0);
    let id = new.create("hold", json!({})).await;
    world.gate.started().await;
    for token in [BOB, EVE] {
        let other = new.with_token(token);
        for (method, more) in [
            ("tasks/get", json!({})),
            ("tasks/cancel", json!({})),
            ("tasks/update", json!({"inputResponses": {"q-1": {"action": "accept"}}})),
        ] {
            let ask = async |id: &str| {
                let mut params = more.clone();
                params["taskId"] = json!(id);
                other.error(method, params).await
            };
            let unknown = ask("aaaaaaaaaaaaaaaaaaaaaaaaaa").await;
            assert_eq!(unknown, (200, json!({"code": -32602, "message": "Task not found"})), "{method}");
            assert_eq!(ask(&id).await, unknown, "{method}");
            assert_eq!(ask("no-id").await, unknown, "{method}");
        }
    }
    assert_eq!(new.task(&id).await["status"], "working");
    world.stop().await;
}

async fn each_era_opts_in_in_its_own_way_alone(wiring: Wiring) {
    let world = World::start(wiring).await;
    let new = modern(&world, 0);
    // The extension declared by a session of 2025 enables nothing.
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {"extensions": {TASKS: {}}},
        "clientInfo": {"name": "test", "version": "1"}}});
    let request = longhaul_tests::client::http().post(&world.urls[0]).bearer_auth(ALICE);
    let request =
        request.header("Content-Type", "application/json").header("Accept", "application/json, text/event-stream");
    let opened = message(request.body(hello.to_string()).send().await.unwrap()).await;
    let capabilities = &opened["result"]["capabilities"];
    assert!(capabilities["tasks"].is_object() && capabilities.get("extensions").is_none(), "{capabilities}");
    let old = world.client(ALICE).await;
    let plain = old.ok("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await;
    assert_eq!(plain["structuredContent"], json!({"text": "x"}));
    assert_eq!(old.error("tools/call", json!({"name": "task-only"})).await["code"], -32601);

    // `params.task` of a modern request does nothing, whatever it is.
    for task in [json!({}), json!({"ttl": 5}), json!("nonsense")] {
        let params = json!({"name": "echo", "arguments": {"text": "x"}, "task": task});
        let plain = new.plain().ok("tools/call", params.clone()).await;
        assert_eq!((&plain["resultType"], &plain["structuredContent"]), (&json!("complete"), &json!({"text": "x"})));
        assert_eq!(new.ok("tools/call", params).await["resultType"], "task");
    }
    // The capability of 2025 is not the extension.
    let legacy = new.declaring(json!({"tasks": {"requests": {"tools": {"call": {}}}}}));
    assert_eq!(legacy.ok("tools/call", json!({"name": "echo"})).await["resultType"], "complete");

    // Whoever does not declare the extension is told what to declare, before any task is looked for.
    let needed = json!({"requiredCapabilities": {"extensions": {TASKS: {}}}});
    for (method, params) in [
        ("tasks/get", json!({"taskId": "nonsense"})),
        ("tasks/cancel", json!({"taskId": "nonsense"})),
        ("tasks/update", json!({"taskId": "nonsense", "inputResponses": {}})),
        ("tools/call", json!({"name": "task-only"})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": []}})),
    ] {
        let (status, error) = new.plain().error(method, params).await;
        assert_eq!((status, &error["code"], &error["data"]), (400, &json!(-32021), &needed), "{method}: {error}");
    }
    assert_eq!(new.ok("tools/call", json!({"name": "call-only"})).await["resultType"], "complete", "never a task");
    assert_eq!(new.ok("tools/call", json!({"name": "task-only"})).await["resultType"], "task");
    world.stop().await;
}

async fn tasks_are_switched_off_for_one_era_or_both(wiring: Wiring) {
    for (all, legacy, extension) in [(false, true, true), (true, false, true), (true, true, false)] {
        let world = World::start_with(wiring, |config| {
            config.mcp_tasks_enabled = all;
            config.mcp_tasks_legacy_enabled = legacy;
            config.mcp_tasks_extension_enabled = extension;
        })
        .await;
        let (old, new) = (world.client(ALICE).await, modern(&world, 1));
        let has_tool =
            |list: &Value, name: &str| list["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == name);
        let call = json!({"name": "echo", "arguments": {}, "task": {}});
        let listed = old.ok("tools/list", json!({})).await;
        assert_eq!(has_tool(&listed, "task-only"), all && legacy);
        if all && legacy {
            assert!(old.ok("tools/call", call.clone()).await["task"].is_object());
        } else {
            assert!(old.ask("tools/call", json!({"name": "echo"})).await["result"].is_object());
            assert_eq!(old.error("tasks/list", json!({})).await["code"], -32601);
        }
        let discovered = new.ok("server/discover", json!({})).await;
        assert_eq!(discovered["capabilities"]["extensions"].get(TASKS).is_some(), all && extension, "{discovered}");
        assert!(discovered["capabilities"].get("tasks").is_none());
        let listed = new.ok("tools/list", json!({})).await;
        assert_eq!(has_tool(&listed, "task-only"), all && extension);
        let made = new.ok("tools/call", call).await;
        if all && extension {
            assert_eq!(made["resultType"], "task");
        } else {
            assert_eq!(made["resultType"], "complete");
            let (status, error) = new.error("tasks/get", json!({"taskId": "x"})).await;
            assert_eq!((status, &error["code"]), (404, &json!(-32601)));
        }
        world.stop().await;
    }
}

async fn a_disconnect_cancels_a_call_of_the_new_era_and_no_task(wiring: Wiring) {
    let world = World::start(wiring).await;
    let new = modern(&world, 0);
    for accept in ["application/json, text/event-stream", "application/json"] {
        let frame = new.plain().frame("tools/call", json!({"name": "hold"}));
        let sending = new.request(&frame, accept).send();
        tokio::select! {
            answer = async { let response = sending.await.unwrap(); let _ = response.bytes().await; } => {
                panic!("it is held: {answer:?}")
            }
            id = world.gate.started() => assert_eq!(id, ""),
        }
        assert_eq!(world.gate.stopped().await, "", "with {accept}");
    }
    let id = new.create("hold", json!({})).await;
    world.gate.started().await;
    let (_, _, events) = new.listen(json!({"taskIds": [id]})).await;
    drop(events);
    assert_eq!(new.task(&id).await["status"], "working");
    // In 2025 a lost connection cancels nothing: the call module has that.
    world.gate.open();
    new.until(&id, "completed").await;
    world.stop().await;
}

async fn methods_of_the_other_era_are_unknown(wiring: Wiring) {
    let world = World::start(wiring).await;
    let (old, new) = (world.client(ALICE).await, modern(&world, 0));
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "nonsense",
    ] {
        let (status, error) = new.error(method, json!({"taskId": "x", "level": "info", "uri": "a:b"})).await;
        assert_eq!((status, &error["code"]), (404, &json!(-32601)), "{method}: {error}");
    }
    assert_eq!(old.error("nonsense", json!({})).await["code"], -32601);
    let frame = old.frame("tasks/update", &json!({"taskId": "x", "inputResponses": {}}));
    // A method that only the new era has makes a request a modern one, which says too little of itself.
    let response = old.post(&frame, "application/json").await;
    assert_eq!(response.status(), 400);
    world.stop().await;
}

async fn a_full_tenant_runs_optional_tools_at_once_in_the_new_era(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_max_live = 1).await;
    let (old, new) = (world.client(ALICE).await, modern(&world, 0));
    let held = new.create("hold", json!({})).await;
    world.gate.started().await;
    let plain = new.ok("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await;
    assert_eq!((&plain["resultType"], &plain["structuredContent"]), (&json!("complete"), &json!({"text": "x"})));
    let (status, refused) = new.error("tools/call", json!({"name": "task-only"})).await;
    assert_eq!((status, &refused["code"], &refused["data"]["refused_by"]), (200, &json!(-31429), &json!("task_limit")));
    let refused = old.error("tools/call", json!({"name": "echo", "task": {}})).await;
    assert_eq!(refused["code"], -31429, "an accepted task call of 2025 is a task");
    world.gate.open();
    new.until(&held, "completed").await;
    new.create("task-only", json!({})).await;
    world.stop().await;
}

async fn a_caller_at_its_limit_is_refused_in_both_eras(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_max_open = 1).await;
    let (old, new) = (world.client(ALICE).await, modern(&world, 0));
    new.create("hold", json!({})).await;
    world.gate.started().await;
    let (status, refused) = new.error("tools/call", json!({"name": "echo"})).await;
    assert_eq!((status, &refused["code"], &refused["data"]["refused_by"]), (200, &json!(-31429), &json!("task_limit")));
    assert_eq!(old.error("tools/call", json!({"name": "echo", "task": {}})).await["code"], -31429);
    world.stop().await;
}

async fn a_short_task_is_answered_plainly_where_that_is_wanted(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.gateway.task_shortcut_ms = 5_000).await;
    let new = modern(&world, 0);
    let plain = new.ok("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await;
    assert_eq!((&plain["resultType"], &plain["structuredContent"]), (&json!("complete"), &json!({"text": "x"})));
    let failed = new.ok("tools/call", json!({"name": "fail", "arguments": {"message": "out of paper"}})).await;
    assert_eq!((&failed["resultType"], &failed["isError"]), (&json!("complete"), &json!(true)));
    world.stop().await;
    let world = World::start_with(wiring, |config| config.gateway.task_shortcut_ms = 50).await;
    let id = modern(&world, 0).create("hold", json!({})).await;
    assert_eq!(world.gate.started().await, id, "what takes longer is a task");
    world.stop().await;
}

/// So that a session of 2025 is not taken for one of the new era.
async fn a_session_may_say_what_the_new_era_says(wiring: Wiring) {
    let world = World::start(wiring).await;
    let old: Client = world.client(ALICE).await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2025-11-25",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let id = old.create("hold", json!({})).await;
    let task = old.ok("tasks/get", json!({"taskId": id, "_meta": meta})).await;
    assert_eq!(task["status"], "working");
    assert!(task.get("resultType").is_none(), "{task}");
    world.stop().await;
}

crate::both!(
    an_ending_has_the_name_that_each_era_gives_it,
    an_interrupted_task_is_failed_with_the_same_error_in_both_eras,
    a_task_is_listed_read_and_cancelled_in_either_era,
    a_foreign_task_does_not_exist_in_the_new_era_either,
    each_era_opts_in_in_its_own_way_alone,
    tasks_are_switched_off_for_one_era_or_both,
    a_disconnect_cancels_a_call_of_the_new_era_and_no_task,
    methods_of_the_other_era_are_unknown,
    a_full_tenant_runs_optional_tools_at_once_in_the_new_era,
    a_caller_at_its_limit_is_refused_in_both_eras,
    a_short_task_is_answered_plainly_where_that_is_wanted,
    a_session_may_say_what_the_new_era_says,
);
