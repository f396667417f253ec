//! The order of the checks, one fault at a time, in both eras.

use longhaul_tests::client::{BOTH, JSON, http};
use longhaul_tests::modern::{Modern, VERSION};
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::{Value, json};

/// The status, and the code of the error if there is one.
type Answered = (u16, Option<i64>);

/// A request as it would be right; each test spoils a part.
struct Raw {
    method: reqwest::Method,
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Raw {
    fn right(client: &Modern) -> Self {
        let frame = client.frame("tools/call", json!({"name": "echo", "arguments": {"text": "x"}}));
        Self {
            method: reqwest::Method::POST,
            headers: vec![
                ("content-type", JSON.into()),
                ("accept", BOTH.into()),
                ("authorization", format!("Bearer {ALICE}")),
                ("mcp-protocol-version", VERSION.into()),
                ("mcp-method", "tools/call".into()),
                ("mcp-name", "echo".into()),
            ],
            body: frame.to_string(),
        }
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self
    }

    fn with(self, name: &'static str, value: &str) -> Self {
        let mut changed = self.without(name);
        changed.headers.push((name, value.into()));
        changed
    }

    fn body(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let mut body = serde_json::from_str(&self.body).unwrap();
        change(&mut body);
        self.body = body.to_string();
        self
    }

    async fn send(self, url: &str) -> Answered {
        let mut request = http().request(self.method, url).body(self.body);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let body = response.text().await.unwrap();
        let message = body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&body);
        let message: Value = serde_json::from_str(message).unwrap_or_default();
        (status, message["error"]["code"].as_i64())
    }
}

/// A change to the body's `_meta`.
fn meta(key: &'static str, value: Option<Value>) -> impl FnOnce(&mut Value) {
    move |body| {
        let meta = body["params"]["_meta"].as_object_mut().unwrap();
        let key = format!("io.modelcontextprotocol/{key}");
        match value {
            Some(value) => drop(meta.insert(key, value)),
            None => drop(meta.remove(&key)),
        }
    }
}

async fn each_fault_of_a_modern_request_has_its_own_answer(wiring: Wiring) {
    let world = World::start(wiring).await;
    let url = &world.urls[0];
    let client = Modern::new(url, Some(ALICE));
    let right = || Raw::right(&client.plain());
    let cases: [(&str, Raw, Answered); 40] = [
        ("nothing", right(), (200, None)),
        ("another path of HTTP", Raw { method: reqwest::Method::PUT, ..right() }, (405, Some(-32600))),
        ("GET", Raw { method: reqwest::Method::GET, ..right() }, (405, Some(-32600))),
        ("DELETE", Raw { method: reqwest::Method::DELETE, ..right() }, (405, Some(-32600))),
        ("a foreign page", right().with("origin", "https://evil.example"), (403, Some(-32600))),
        ("no token", right().without("authorization"), (401, Some(-32600))),
        ("a wrong token", right().with("authorization", "Bearer x"), (401, Some(-32600))),
        ("another type", right().with("content-type", "text/plain"), (415, Some(-32600))),
        ("no JSON", Raw { body: "{".into(), ..right() }, (400, Some(-32700))),
        ("a batch", Raw { body: "[]".into(), ..right() }, (400, Some(-32600))),
        ("a null id", right().body(|body| body["id"] = Value::Null), (400, Some(-32600))),
        (
            "an answer",
            right().body(|body| *body = json!({"jsonrpc": "2.0", "id": 1, "result": {}})),
            (400, Some(-32600)),
        ),
        ("no version in the header", right().without("mcp-protocol-version"), (400, Some(-32020))),
        ("no method in the header", right().without("mcp-method"), (400, Some(-32020))),
        ("another method in the header", right().with("mcp-method", "TOOLS/CALL"), (400, Some(-32020))),
        ("no name in the header", right().without("mcp-name"), (400, Some(-32020))),
        ("another name in the header", right().with("mcp-name", "fail"), (400, Some(-32020))),
        ("a name in space", right().with("mcp-name", "  echo  "), (200, None)),
        ("a packed name", right().with("mcp-name", "=?base64?ZWNobw==?="), (200, None)),
        ("a badly packed name", right().with("mcp-name", "=?base64?ZWNobw?="), (400, Some(-32020))),
        ("a name that only looks packed", right().with("mcp-name", "=?BASE64?ZWNobw==?="), (400, Some(-32020))),
        (
            "no meta",
            right().body(|body| drop(body["params"].as_object_mut().unwrap().remove("_meta"))),
            (400, Some(-32602)),
        ),
        ("no version in meta", right().body(meta("protocolVersion", None)), (400, Some(-32602))),
        ("a version that is no text", right().body(meta("protocolVersion", Some(json!(7)))), (400, Some(-32602))),
        ("no capabilities", right().body(meta("clientCapabilities", None)), (400, Some(-32602))),
        ("capabilities of no kind", right().body(meta("clientCapabilities", Some(json!([])))), (400, Some(-32602))),
        ("no client info", right().body(meta("clientInfo", None)), (200, None)),
        ("two versions", right().body(meta("protocolVersion", Some(json!("2031-01-01")))), (400, Some(-32020))),
        (
            "an unknown version",
            right().body(meta("protocolVersion", Some(json!("2031-01-01")))).with("mcp-protocol-version", "2031-01-01"),
            (400, Some(-32022)),
        ),
        (
            "a version with sessions",
            right().body(meta("protocolVersion", Some(json!("2025-11-25")))).with("mcp-protocol-version", "2025-11-25"),
            (400, Some(-32022)),
        ),
        (
            "an unknown method",
            right().body(|body| body["method"] = json!("nonsense")).with("mcp-method", "nonsense"),
            (404, Some(-32601)),
        ),
        (
            "a tool that needs the extension",
            right().body(|body| body["params"]["name"] = json!("task-only")).with("mcp-name", "task-only"),
            (400, Some(-32021)),
        ),
        (
            "an unknown tool",
            right().body(|body| body["params"]["name"] = json!("nothing")).with("mcp-name", "nothing"),
            (200, Some(-32602)),
        ),
        ("arguments of no kind", right().body(|body| body["params"]["arguments"] = json!(7)), (200, Some(-32602))),
        ("a session", right().with("mcp-session-id", "nonsense"), (200, None)),
        ("an event to go on from", right().with("last-event-id", "nonsense"), (200, None)),
        ("a parameter that nobody knows", right().with("mcp-param-region", "eu"), (200, None)),
        (
            "answers of no kind",
            right().body(|body| body["params"]["inputResponses"] = json!(null)),
            (200, Some(-32602)),
        ),
        ("a state of no kind", right().body(|body| body["params"]["requestState"] = json!(7)), (200, Some(-32602))),
        (
            "a state that is not ours",
            right().body(|body| body["params"]["requestState"] = json!("x")),
            (200, Some(-32602)),
        ),
    ];
    for (fault, raw, answer) in cases {
        assert_eq!(raw.send(url).await, answer, "{fault}");
    }
    // The first fault in the order of the checks is told.
    let both = right().with("mcp-method", "x").body(meta("protocolVersion", None));
    assert_eq!(both.send(url).await, (400, Some(-32020)));
    let both = right().body(meta("clientCapabilities", None)).body(meta("protocolVersion", Some(json!("2031-01-01"))));
    assert_eq!(both.send(url).await, (400, Some(-32602)));
    let both = right().without("authorization").with("origin", "https://evil.example");
    assert_eq!(both.send(url).await, (403, Some(-32600)));
    world.stop().await;
}

async fn the_form_of_an_answer_is_that_which_the_client_takes(wiring: Wiring) {
    let world = World::start(wiring).await;
    let url = &world.urls[0];
    let client = Modern::new(url, Some(ALICE)).plain();
    for (accept, status, kind) in [
        (BOTH, 200, "application/json"),
        ("application/json", 200, "application/json"),
        ("*/*", 200, "application/json"),
        ("text/event-stream", 200, "text/event-stream"),
        ("text/html", 406, "application/json"),
    ] {
        let frame = client.frame("tools/call", json!({"name": "echo", "arguments": {}}));
        let response = client.request(&frame, accept).send().await.unwrap();
        let sent = response.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!((response.status().as_u16(), sent.as_str()), (status, kind), "{accept}");
    }
    world.stop().await;
}

async fn a_notification_of_the_new_era_is_taken_and_does_nothing(wiring: Wiring) {
    let world = World::start(wiring).await;
    let url = &world.urls[0];
    let client = Modern::new(url, Some(ALICE));
    let frame = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "_meta": client.meta()}});
    let response = client.send(&frame).await;
    assert_eq!((response.status().as_u16(), response.text().await.unwrap().as_str()), (202, ""));
    world.stop().await;
}

async fn what_is_discovered_is_what_is_served(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = Modern::new(&world.urls[1], Some(ALICE));
    let discovered = client.ok("server/discover", json!({})).await;
    assert_eq!(discovered["supportedVersions"][0], VERSION);
    assert!(discovered["supportedVersions"].as_array().unwrap().contains(&json!("2025-11-25")));
    assert!(discovered["ttlMs"].is_u64() && discovered["cacheScope"] == "private", "{discovered}");
    let capabilities = discovered["capabilities"].as_object().unwrap();
    for (capability, method) in [
        ("tools", "tools/list"),
        ("prompts", "prompts/list"),
        ("resources", "resources/list"),
        ("resources", "resources/templates/list"),
    ] {
        let (status, answer) = client.exchange(method, json!({})).await;
        let served = capabilities.contains_key(capability);
        assert_eq!((status, answer.get("result").is_some()), (if served { 200 } else { 404 }, served), "{method}");
        if served {
            let result = &answer["result"];
            assert!(result["ttlMs"].is_u64() && result["cacheScope"] == "private", "{result}");
        }
    }
    let tools = client.ok("tools/list", json!({})).await;
    for tool in tools["tools"].as_array().unwrap() {
        assert!(tool.get("execution").is_none(), "{tool}");
    }
    world.stop().await;
}

crate::both!(
    each_fault_of_a_modern_request_has_its_own_answer,
    the_form_of_an_answer_is_that_which_the_client_takes,
    a_notification_of_the_new_era_is_taken_and_does_nothing,
    what_is_discovered_is_what_is_served,
);
