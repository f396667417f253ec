//! A call that is not a task.

use futures::future::join_all;
use longhaul_tests::client::{BOTH, Events, message};
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::{Value, json};

async fn progress_comes_on_the_calls_own_stream_under_its_token(wiring: Wiring) {
    let world = World::start(wiring).await;
    for (client, token) in world.clients(ALICE).await.iter().zip([json!("p7"), json!(7)]) {
        let params =
            json!({"name": "countdown", "arguments": {"seconds": 0.6, "steps": 3}, "_meta": {"progressToken": token}});
        let mut stream = client.stream("tools/call", params).await;
        let (mut told, mut answer) = (Vec::new(), Value::Null);
        while let Some(message) = stream.next().await {
            assert!(answer.is_null(), "the answer comes last: {message}");
            if message["method"] == "notifications/progress" {
                let params = &message["params"];
                assert_eq!((&params["progressToken"], params["total"].as_f64()), (&token, Some(3.0)), "{message}");
                told.push(params["progress"].as_f64().unwrap());
            } else {
                answer = message;
            }
        }
        assert!(told.len() >= 2 && told.is_sorted_by(|a, b| a < b), "{told:?}");
        assert_eq!(answer["result"]["content"][0]["text"], "counted down 0.6 s");
        assert!(answer["result"].get("_meta").is_none(), "there is no task: {answer}");
    }
    world.stop().await;
}

async fn each_ending_of_a_call_has_its_answer(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let call = async |tool: &str, arguments: Value| {
        client.ask("tools/call", json!({"name": tool, "arguments": arguments})).await
    };
    assert_eq!(call("echo", json!({"text": "x"})).await["result"]["structuredContent"], json!({"text": "x"}));
    let failed = call("fail", json!({"message": "out of paper"})).await;
    assert_eq!(failed["result"], json!({"content": [{"type": "text", "text": "out of paper"}], "isError": true}));
    let error = call("fail", json!({"message": "no", "code": -32001, "data": [1]})).await;
    assert_eq!(error["error"], json!({"code": -32001, "message": "no", "data": [1]}));
    let bad = call("countdown", json!({"seconds": "soon"})).await;
    assert_eq!(bad["result"]["isError"], true, "{bad}");
    assert!(bad["result"]["content"][0]["text"].as_str().unwrap().contains("seconds"), "{bad}");
    assert_eq!(call("panic", json!({})).await["error"]["code"], -32603);
    assert_eq!(call("echo", json!({"n": 1})).await["result"]["structuredContent"], json!({"n": 1}), "the worker lives");
    let unknown = call("nothing", json!({})).await;
    assert_eq!(unknown["error"], json!({"code": -32602, "message": "Unknown tool: nothing"}));
    assert_eq!(call("task-only", json!({})).await["error"]["code"], -32601);
    assert_eq!(call("call-only", json!({})).await["result"], json!({"content": []}));
    assert_eq!(client.ok("tasks/list", json!({})).await, json!({"tasks": []}), "calls leave no tasks");
    world.stop().await;
}

async fn a_call_is_cancelled_through_the_other_gateway(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let elsewhere = client.at(&world.urls[1]);
    let frame = client.frame("tools/call", &json!({"name": "hold"}));
    let mut stream = Events::new(client.post(&frame, BOTH).await);
    assert_eq!(world.gate.started().await, "");
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    // The same number as text, and in another session, is another request.
    let other_type = json!({"requestId": frame["id"].to_string()});
    elsewhere.notify("notifications/cancelled", other_type).await;
    world.client(ALICE).await.notify("notifications/cancelled", json!({"requestId": frame["id"]})).await;
    elsewhere.notify("notifications/cancelled", json!({"requestId": frame["id"], "reason": "changed my mind"})).await;
    assert_eq!(world.gate.stopped().await, "");
    assert_eq!(stream.next().await, None, "a cancelled call has no answer");
    world.stop().await;
}

async fn a_lost_connection_cancels_nothing(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let frame = client.frame("tools/call", &json!({"name": "hold"}));
    let mut stream = Events::new(client.post(&frame, BOTH).await);
    world.gate.started().await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let event = stream.last_id.clone().unwrap();
    drop(stream);
    let mut resumed = Events::new(client.get(Some(&event)).await);
    assert_eq!(resumed.next_data().await.as_deref(), Some(""));
    world.gate.open();
    let answer = resumed.next().await.unwrap();
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&frame["id"], &json!("let go")));
    world.stop().await;
}

async fn requests_with_one_id_and_ids_of_two_types_are_each_answered(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let ids = [json!(1), json!(1), json!("1"), json!("1"), json!(-9_007_199_254_740_991_i64), json!("\u{2028}é")];
    let asked = ids.iter().map(|id| {
        let frame = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "hold"}});
        let client = &client;
        async move { message(client.post(&frame, BOTH).await).await }
    });
    let let_go = async {
        for _ in &ids {
            world.gate.started().await;
        }
        world.gate.open();
    };
    let (answers, ()) = tokio::join!(join_all(asked), let_go);
    for (answer, id) in answers.iter().zip(&ids) {
        assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (id, &json!("let go")));
    }
    world.stop().await;
}

async fn calls_go_to_the_workers_that_stay(wiring: Wiring) {
    let world = World::start(wiring).await;
    let clients = world.clients(ALICE).await;
    world.add_worker("worker-2").await;
    let frame = clients[0].frame("tools/call", &json!({"name": "hold"}));
    let mut held = Events::new(clients[0].post(&frame, BOTH).await);
    world.gate.started().await;
    assert_eq!(held.next_data().await.as_deref(), Some(""));
    let calls = async {
        for at in 0..100 {
            let params = json!({"name": "echo", "arguments": {"at": at}});
            let result = clients[at % 2].ok("tools/call", params).await;
            assert_eq!(result["structuredContent"], json!({"at": at}));
        }
        world.gate.open();
    };
    // One of the two has the held call, and ends only when that has ended.
    tokio::join!(calls, world.end("worker-1"));
    assert_eq!(held.next().await.unwrap()["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

async fn a_lost_worker_is_an_error_and_the_next_call_goes_elsewhere(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let mut held = client.stream("tools/call", json!({"name": "hold"})).await;
    world.gate.started().await;
    world.add_worker("worker-2").await;
    world.crash("worker-1").await;
    let answer = held.next().await.unwrap();
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    for at in 0..10 {
        let result = client.ok("tools/call", json!({"name": "echo", "arguments": {"at": at}})).await;
        assert_eq!(result["structuredContent"], json!({"at": at}));
    }
    world.stop().await;
}

crate::both!(
    progress_comes_on_the_calls_own_stream_under_its_token,
    each_ending_of_a_call_has_its_answer,
    a_call_is_cancelled_through_the_other_gateway,
    a_lost_connection_cancels_nothing,
    requests_with_one_id_and_ids_of_two_types_are_each_answered,
    calls_go_to_the_workers_that_stay,
    a_lost_worker_is_an_error_and_the_next_call_goes_elsewhere,
);
