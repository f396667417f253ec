//! Payloads come out as they went in.

use longhaul_tests::client::{BOTH, Client, JSON};
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::{Value, json};

/// What parsers like to spoil: digits, signs, escapes, the order of keys.
const ODD: [&str; 7] = [
    r#"{"n":1e2,"m":-0,"o":1.10,"p":-0.0,"q":1E+2}"#,
    r#"{"big":123456789012345678901234567890,"small":0.1000000000000000055511151231257827}"#,
    r#"{"nul":"a\u0000b","quote":"\"","slash":"\/","pair":"\ud83d\ude00"}"#,
    "{\"line\":\"a\u{2028}b\u{2029}c\",\"smile\":\"\u{1F600}\"}",
    r#"{"z":1,"a":2,"m":{"z":1,"a":2},"":3}"#,
    r#"{ "spaced" : [ 1 , 2 ] , "empty" : { } }"#,
    r#"{"__proto__":{"x":1},"data:":"id: 1\n\ndata: x"}"#,
];

fn call(arguments: &str, more: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"mirror","arguments":{arguments}{more}}}}}"#
    )
}

/// A task's result, as the bytes on the wire.
async fn result_of(client: &Client, body: &str) -> String {
    let (_, _, created) = client.exchange(body, BOTH).await;
    let created: Value = serde_json::from_str(&created).unwrap();
    let id = created["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}"));
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/result", "params": {"taskId": id}}).to_string();
    client.exchange(&ask, JSON).await.2
}

async fn a_call_gets_back_the_bytes_it_sent(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    for arguments in ODD {
        let expected = format!(r#""structuredContent":{arguments}"#);
        let (status, _, body) = client.exchange(&call(arguments, ""), BOTH).await;
        assert_eq!(status, 200);
        assert!(body.contains(&expected), "inline: {body}");
        let (_, kind, body) = client.exchange(&call(arguments, ""), "text/event-stream").await;
        assert_eq!(kind, "text/event-stream");
        assert!(body.contains(&expected), "as a stream: {body}");
        let body = result_of(&client, &call(arguments, r#","task":{}"#)).await;
        assert!(body.contains(&expected), "as a task: {body}");
    }
    world.stop().await;
}

async fn what_could_be_read_in_two_ways_is_refused(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let deep = format!(r#"{{"x":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
    let deepest = format!(r#"{{"x":{}"#, "[".repeat(200_000));
    let many_keys = format!("{{{}}}", (0..10_001).map(|at| format!(r#""k{at}":0"#)).collect::<Vec<_>>().join(","));
    for (arguments, code) in [
        (r#"{"path":"/public","path":"/etc"}"#, -32600),
        (r#"{"path":"/public","p\u0061th":"/etc"}"#, -32600),
        (r#"{"a":[{"b":1,"b":2}]}"#, -32600),
        (&deep, -32600),
        (r#"{"n":1e400}"#, -32600),
        (&many_keys, -32600),
        (r#"{"a":"\ud800"}"#, -32700),
        ("{\"a\":\"\u{1}\"}", -32700),
        (r#"{"a":NaN}"#, -32700),
        (r#"{"a":01}"#, -32700),
    ] {
        for more in ["", r#","task":{}"#] {
            let (status, _, body) = client.exchange(&call(arguments, more), BOTH).await;
            let answer: Value = serde_json::from_str(&body).unwrap();
            let arguments = &arguments[..arguments.len().min(60)];
            assert_eq!((status, answer["error"]["code"].as_i64()), (400, Some(code)), "{arguments}: {body}");
        }
    }
    let (status, ..) = client.exchange(&deepest, BOTH).await;
    assert_eq!(status, 400);
    assert_eq!(client.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    world.stop().await;
}

async fn a_body_beyond_four_mebibytes_is_refused(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let text = "x".repeat(1_000_000);
    let five = format!(r#"{{"a":"{text}","b":"{text}","c":"{text}","d":"{text}","e":"{text}"}}"#);
    let (status, ..) = client.exchange(&call(&five, r#","task":{}"#), BOTH).await;
    assert_eq!(status, 413);
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(1024 * 1024 + 1));
    assert_eq!(client.exchange(&call(&long, ""), BOTH).await.0, 400, "a string beyond one");
    assert_eq!(client.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    world.stop().await;
}

/// Nearly the whole of the 4 MiB that a request and a result may have.
async fn almost_four_mebibytes_go_in_and_come_out(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let text = "é\\n".repeat(249_000);
    let arguments = format!(r#"{{"a":"{text}","b":"{text}","c":"{text}","d":"{text}"}}"#);
    assert!(arguments.len() > 3_900_000);
    let (status, _, body) = client.exchange(&call(&arguments, ""), BOTH).await;
    assert_eq!(status, 200, "{}", &body[..body.len().min(200)]);
    assert!(body.contains(&arguments), "inline");
    assert!(result_of(&client, &call(&arguments, r#","task":{}"#)).await.contains(&arguments), "as a task");
    world.stop().await;
}

async fn a_result_that_is_too_large_is_a_clear_failure(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.task_max_result_bytes = 100_000).await;
    let client = world.client(ALICE).await;
    let fits = client.create("blob", json!({"bytes": 99_000})).await;
    let text = client.result(&fits).await["result"]["content"][0]["text"].as_str().unwrap().len();
    assert_eq!(text, 99_000);
    let id = client.create("blob", json!({"bytes": 100_001})).await;
    let answer = client.result(&id).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("too large") && message.contains("100000"), "{message}");
    let task = client.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((&task["status"], &task["statusMessage"]), (&json!("failed"), &json!(message)));
    let inline = client.error("tools/call", json!({"name": "blob", "arguments": {"bytes": 100_001}})).await;
    assert!(inline["message"].as_str().unwrap().contains("too large"), "{inline}");
    world.stop().await;
}

crate::both!(
    a_call_gets_back_the_bytes_it_sent,
    what_could_be_read_in_two_ways_is_refused,
    a_body_beyond_four_mebibytes_is_refused,
    almost_four_mebibytes_go_in_and_come_out,
    a_result_that_is_too_large_is_a_clear_failure,
);
