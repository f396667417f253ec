//! One endpoint, two eras: which rules a request is under, and the order of its checks.

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::modern::{Modern, VERSION};
use crate::world::{ALICE, World, with_everything};

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

async fn send(client: &Modern, headers: &str, body: &Value) -> Answer {
    client.send(headers, body.to_string().as_bytes()).await.answer().await.unwrap()
}

/// One fault at a time, and each pair of them: of two, the earlier check speaks.
#[tokio::test]
async fn checks_of_2026_07_28_come_in_their_order() {
    let world = World::start().await;
    let client = world.modern();
    let good = client.body(&json!(1), "tools/call", json!({"name": "echo", "arguments": {"a": 1}}));
    let headers = Modern::headers("tools/call", &json!({"name": "echo"}));

    /// What is wrong, what it does to the headers and the body, and the HTTP status and code that it gets.
    type Fault = (&'static str, fn(&mut String, &mut Value), u16, i64);
    fn header(headers: &mut String, from: &str, to: &str) {
        *headers = headers.replace(from, to);
    }
    let faults: [Fault; 12] = [
        ("no Mcp-Method", |headers, _| header(headers, "Mcp-Method: tools/call\r\n", ""), 400, -32020),
        ("no Mcp-Name", |headers, _| header(headers, "Mcp-Name: echo\r\n", ""), 400, -32020),
        (
            "another Mcp-Method",
            |headers, _| header(headers, "Mcp-Method: tools/call", "Mcp-Method: TOOLS/CALL"),
            400,
            -32020,
        ),
        ("another Mcp-Name", |headers, _| header(headers, "Mcp-Name: echo", "Mcp-Name: wait"), 400, -32020),
        ("no capabilities", |_, body| drop(meta(body).remove(META_CAPABILITIES)), 400, -32602),
        ("no version in _meta", |_, body| drop(meta(body).remove(META_VERSION)), 400, -32602),
        (
            "another version in _meta",
            |_, body| drop(meta(body).insert(META_VERSION.into(), json!("2031-01-01"))),
            400,
            -32020,
        ),
        (
            "an unknown version",
            |headers, body| {
                header(headers, VERSION, "2031-01-01");
                meta(body).insert(META_VERSION.into(), json!("2031-01-01"));
            },
            400,
            -32022,
        ),
        (
            "an unknown method",
            |headers, body| {
                header(headers, "Mcp-Method: tools/call", "Mcp-Method: tools/destroy");
                body["method"] = json!("tools/destroy");
            },
            404,
            -32601,
        ),
        ("arguments that are none", |_, body| body["params"]["arguments"] = json!([]), 200, -32602),
        (
            "an unknown tool",
            |headers, body| {
                header(headers, "Mcp-Name: echo", "Mcp-Name: nobody");
                body["params"]["name"] = json!("nobody");
            },
            200,
            -32602,
        ),
        ("a token of no kind", |_, body| drop(meta(body).insert("progressToken".into(), json!({}))), 200, -32602),
    ];
    fn meta(body: &mut Value) -> &mut serde_json::Map<String, Value> {
        body["params"]["_meta"].as_object_mut().unwrap()
    }
    assert_eq!(send(&client, &headers, &good).await.status(), 200);
    for (name, fault, status, code) in faults {
        let (mut headers, mut body) = (headers.clone(), good.clone());
        fault(&mut headers, &mut body);
        let answer = send(&client, &headers, &body).await;
        assert_eq!((answer.status(), answer.code()), (status, Some(code)), "{name}");
        assert_eq!(answer.json()["id"], 1, "{name}");
        assert_eq!(answer.head.header("content-type"), Some("application/json"), "{name}");
    }
    // What is in the body is looked at after what is in front of it, and who asks before all of it.
    for (name, fault, ..) in faults {
        let (mut headers, mut body) = (headers.clone(), good.clone());
        fault(&mut headers, &mut body);
        let stranger = Modern { token: "nobody", ..client.clone() };
        assert_eq!(send(&stranger, &headers, &body).await.status(), 401, "{name}");
        let mut connection = client.send(&headers, &body.to_string().as_bytes()[1..]).await;
        let answer = connection.answer().await.unwrap();
        assert_eq!((answer.status(), answer.code()), (400, Some(-32700)), "{name}");
    }
    assert_eq!(world.worker.calls.lock().unwrap().len(), 1, "something ran that was refused");
}

#[tokio::test]
async fn of_two_faults_the_earlier_check_speaks() {
    let world = World::start().await;
    let client = world.modern();
    let all = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: echo\r\n";
    let body = |meta: Value, params: Value| {
        let mut body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        body["params"]["_meta"] = meta;
        body
    };
    let good = json!({META_VERSION: VERSION, META_CAPABILITIES: {}});
    let future = json!({META_VERSION: "2031-01-01", META_CAPABILITIES: {}});
    let wrong_method = all.replace("tools/call", "tools/list");
    for (name, headers, body, expected) in [
        ("header before _meta", &*wrong_method, body(json!({}), json!({"name": "echo"})), (400, -32020)),
        ("mismatch before unknown version", all, body(future, json!({"name": "echo"})), (400, -32020)),
        ("header before unknown tool", &*wrong_method, body(good.clone(), json!({"name": "nobody"})), (400, -32020)),
        (
            "_meta before unknown tool",
            &all.replace("echo", "nobody"),
            body(json!({}), json!({"name": "nobody"})),
            (400, -32602),
        ),
        (
            "capability before parameters",
            &all.replace("echo", "always"),
            body(good, json!({"name": "always"})),
            (400, -32021),
        ),
    ] {
        let answer = send(&client, headers, &body).await;
        assert_eq!((answer.status(), answer.code()), (expected.0, Some(expected.1)), "{name}");
    }
}

#[tokio::test]
async fn what_a_request_says_of_itself_decides_its_era() {
    let world = World::start().await;
    let modern = world.modern();
    let old = world.alice().await;
    // In 2026-07-28 these do not exist, although they do in a session.
    for method in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/result", "tasks/list"] {
        assert_eq!(
            modern.no(method, json!({"level": "info", "uri": "x", "taskId": "x"})).await,
            (404, -32601),
            "{method}"
        );
    }
    assert_eq!(old.ok("ping", json!({})).await, json!({}));
    // The header alone makes a broken request of that era, and so does `_meta` alone.
    let bare = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let answer = send(&modern, &Modern::headers("tools/list", &json!({})), &bare).await;
    assert_eq!((answer.status(), answer.code()), (400, Some(-32602)));
    let whole = modern.body(&json!(1), "tools/list", json!({}));
    let answer = send(&modern, "", &whole).await;
    assert_eq!((answer.status(), answer.code()), (400, Some(-32020)));
    // A method that only that era has.
    for method in ["server/discover", "subscriptions/listen", "tasks/update"] {
        let answer = send(&modern, "", &json!({"jsonrpc": "2.0", "id": 1, "method": method})).await;
        assert_eq!((answer.status(), answer.code()), (400, Some(-32020)), "{method}");
    }
    // A version with sessions cannot be spoken without one; in one, `_meta` says nothing.
    let mut backwards = whole.clone();
    backwards["params"]["_meta"][META_VERSION] = json!("2025-11-25");
    let headers = Modern::headers("tools/list", &json!({})).replace(VERSION, "2025-11-25");
    let answer = send(&modern, &headers, &backwards).await;
    assert_eq!((answer.status(), answer.code()), (400, Some(-32022)));
    let answer = old.send("POST", &headers, backwards.to_string().as_bytes()).await.answer().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.json()["result"].get("resultType").is_none());
}

#[tokio::test]
async fn sessions_and_event_ids_mean_nothing_in_2026_07_28() {
    let world = World::start().await;
    let client = world.modern();
    let body = client.body(&json!("x"), "tools/list", json!({}));
    let headers = Modern::headers("tools/list", &json!({}));
    for extra in ["Mcp-Session-Id: nonsense\r\n", "Last-Event-ID: nonsense\r\n"] {
        let answer = send(&client, &format!("{headers}{extra}"), &body).await;
        assert_eq!((answer.status(), &answer.json()["id"]), (200, &json!("x")), "{extra}");
        assert!(answer.head.header("mcp-session-id").is_none());
    }
    let session = world.alice().await;
    for (method, allowed) in [("GET", "POST"), ("DELETE", "POST")] {
        let extra = format!("MCP-Protocol-Version: {VERSION}\r\n");
        let head = session.send(method, &extra, b"").await.head().await.unwrap();
        assert_eq!((head.status, head.header("allow")), (405, Some(allowed)), "{method}");
    }
    assert_eq!(session.call("ping", json!({})).await.status(), 200, "the session was ended");
}

#[tokio::test]
async fn notifications_are_accepted_and_a_response_answers_nothing_in_2026_07_28() {
    let world = World::start().await;
    let client = world.modern();
    let headers = format!("MCP-Protocol-Version: {VERSION}\r\n");
    for method in ["notifications/cancelled", "notifications/nonsense"] {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": {"requestId": 1}});
        let answer = send(&client, &headers, &body).await;
        assert_eq!((answer.status(), answer.body.len()), (202, 0), "{method}");
    }
    for body in [
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": "tiq-task-x-1", "error": {"code": 1, "message": ""}}),
    ] {
        let answer = send(&client, &headers, &body).await;
        assert_eq!((answer.status(), answer.code()), (400, Some(-32600)));
        assert!(answer.json().get("id").is_none());
    }
}

#[tokio::test]
async fn a_client_of_2026_07_28_that_takes_streams_alone_gets_a_stream_without_ids() {
    let world = World::start().await;
    let client = world.modern().accepting("text/event-stream");
    for (method, params) in [("tools/list", json!({})), ("tools/call", json!({"name": "echo"}))] {
        let mut stream = client.stream(json!("s"), method, params).await;
        let event = stream.event().await.unwrap();
        assert_eq!((event.id.clone(), event.retry), (None, None), "{method}");
        assert_eq!(event.message()["id"], "s", "{method}");
        assert_eq!(stream.event().await, None, "{method}");
    }
    // What is wrong is told with its status, which no stream could have.
    let answer = client.call("tools/destroy", json!({})).await;
    assert_eq!((answer.status(), answer.head.header("content-type")), (404, Some("application/json")));
}

#[tokio::test]
async fn what_is_advertised_is_served_and_nothing_else_is() {
    let world = World::start().await;
    let modern = world.modern();
    let listings = [
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ];
    let calls = [
        ("prompts/get", json!({"name": "greet"})),
        ("resources/read", json!({"uri": "test://one"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "city", "value": "p"}}),
        ),
    ];
    let discovered = modern.ok("server/discover", json!({})).await;
    assert_eq!(discovered["supportedVersions"], json!(["2026-07-28", "2025-11-25", "2025-06-18"]));
    let capabilities = &discovered["capabilities"];
    assert_eq!(capabilities["tools"]["listChanged"], true);
    assert!(capabilities["extensions"]["io.modelcontextprotocol/tasks"].is_object());
    let old = Client::new(world.a.at, ALICE);
    let initialized = old.initialize("2025-11-25").await.json()["result"]["capabilities"].clone();
    for name in ["prompts", "resources", "completions"] {
        assert!(capabilities.get(name).is_none() && initialized.get(name).is_none(), "{name}");
    }
    assert!(capabilities["logging"].is_object() && initialized["logging"].is_object());
    let session = world.alice().await;
    for (method, params) in listings.iter().map(|(method, _)| (*method, json!({}))).chain(calls.clone()) {
        assert_eq!(modern.no(method, params.clone()).await, (404, -32601), "{method}");
        let answer = session.call(method, params).await;
        assert_eq!((answer.status(), answer.code()), (200, Some(-32601)), "{method}");
    }

    world.store.offer(vec![with_everything()]);
    crate::client::within("the offer", async { while modern.call("prompts/list", json!({})).await.status() != 200 {} })
        .await;
    let capabilities = modern.ok("server/discover", json!({})).await["capabilities"].clone();
    let initialized = old.initialize("2025-11-25").await.json()["result"]["capabilities"].clone();
    for (name, member) in [("prompts", "listChanged"), ("resources", "listChanged"), ("resources", "subscribe")] {
        assert_eq!(initialized[name][member], true, "{name}.{member}");
        assert_eq!(capabilities[name]["listChanged"], true, "{name}");
    }
    assert!(capabilities["completions"].is_object() && initialized["completions"].is_object());
    for (method, items) in listings {
        assert!(!modern.ok(method, json!({})).await[items].as_array().unwrap().is_empty(), "{method}");
        assert!(!session.ok(method, json!({})).await[items].as_array().unwrap().is_empty(), "{method}");
    }
    for (method, params) in calls {
        modern.ok(method, params.clone()).await;
        session.ok(method, params).await;
    }
}

#[tokio::test]
async fn each_era_has_a_switch_of_its_own_for_tasks() {
    use longhaul_gateway::Config;
    for (legacy, extension) in [(true, false), (false, true)] {
        let config = Config { tasks_legacy: legacy, tasks_extension: extension, ..crate::world::config() };
        let world = World::with(config, std::sync::Arc::new(longhaul_bus::LocalBus::new())).await;
        let (session, modern) = (world.alice().await, world.modern().with_tasks());
        let initialized = session.initialize("2025-11-25").await.json();
        assert_eq!(initialized["result"]["capabilities"].get("tasks").is_some(), legacy);
        let discovered = modern.ok("server/discover", json!({})).await;
        let extensions = discovered["capabilities"].get("extensions");
        assert_eq!(extensions.is_some_and(|all| all.get("io.modelcontextprotocol/tasks").is_some()), extension);

        let answer = session.call("tasks/get", json!({"taskId": "x"})).await;
        assert_eq!(answer.code(), Some(if legacy { -32602 } else { -32601 }));
        let expected = if extension { (200, -32602) } else { (404, -32601) };
        for (method, params) in [
            ("tasks/get", json!({"taskId": "x"})),
            ("tasks/cancel", json!({"taskId": "x"})),
            ("tasks/update", json!({"taskId": "x", "inputResponses": {}})),
        ] {
            assert_eq!(modern.no(method, params).await, expected, "{method}");
        }
        let result = modern.ok("tools/call", json!({"name": "echo"})).await;
        assert_eq!(result["resultType"], if extension { "task" } else { "complete" });
        // A tool that needs a task is not there without them.
        let tools = modern.ok("tools/list", json!({})).await;
        assert_eq!(tools["tools"][0]["name"] == "always", extension);
        if !extension {
            assert_eq!(modern.no("tools/call", json!({"name": "always"})).await, (200, -32602));
        }
    }
}
