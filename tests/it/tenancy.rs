//! What belongs to somebody else does not exist.

use longhaul_cli::callers::IssuerConfig;
use longhaul_cli::config::CredentialConfig;
use longhaul_core::Clock as _;
use longhaul_taskstore::SystemClock;
use longhaul_tests::client::{BOTH, Client, Events, JSON};
use longhaul_tests::issuer::{Issuer, Key};
use longhaul_tests::modern::Modern;
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use reqwest::Method;
use serde_json::{Value, json};

/// An id that no task has, of the right shape.
const NOBODYS: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";

/// What a response shows, but for the moment.
async fn shown(response: reqwest::Response) -> (u16, Vec<(String, String)>, String) {
    let headers = response.headers().iter().filter(|(name, _)| *name != "date");
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    (response.status().as_u16(), headers, response.text().await.unwrap())
}

async fn ask(client: &Client, method: &str, params: Value, accept: &str) -> (u16, Vec<(String, String)>, String) {
    shown(client.post(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}), accept).await).await
}

async fn a_foreign_task_is_answered_byte_for_byte_like_one_that_never_was(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let held = alice.create("hold", json!({"text": "alice's own"})).await;
    world.gate.started().await;
    let ended = alice.create("echo", json!({"text": "alice's own"})).await;
    alice.result(&ended).await;
    for token in [BOB, EVE] {
        for other in world.clients(token).await {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                for accept in [BOTH, JSON] {
                    let unknown = ask(&other, method, json!({"taskId": NOBODYS}), accept).await;
                    assert!(unknown.2.contains("Task not found"), "{unknown:?}");
                    for id in [&held, &ended] {
                        assert_eq!(ask(&other, method, json!({"taskId": id}), accept).await, unknown, "{method}");
                    }
                    let misshapen = ask(&other, method, json!({"taskId": "x' OR 1=1; --\r\n*"}), accept).await;
                    assert_eq!(misshapen, unknown, "{method}");
                }
            }
            assert_eq!(other.ok("tasks/list", json!({})).await, json!({"tasks": []}));
        }
    }
    assert_eq!(alice.status(&held).await, "working", "nobody has cancelled it");
    world.stop().await;
}

async fn a_foreign_session_is_like_one_that_never_was(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let id = alice.create("hold", json!({})).await;
    for token in [BOB, EVE] {
        let own = world.client(token).await;
        let with = |session: &str, method: Method| {
            let request = longhaul_tests::client::http().request(method, &world.urls[1]).bearer_auth(token);
            request.header("Mcp-Session-Id", session).header("Accept", BOTH).header("Content-Type", JSON)
        };
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let send = async |session: &str| {
                let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/get", "params": {"taskId": id}});
                shown(with(session, method.clone()).body(body.to_string()).send().await.unwrap()).await
            };
            let unknown = send("nonsense").await;
            assert_eq!(unknown.0, 404, "{method}");
            assert_eq!(send(alice.session()).await, unknown, "{method}");
        }
        assert_eq!(own.ok("ping", json!({})).await, json!({}));
    }
    assert_eq!(alice.status(&id).await, "working", "her session is still there");
    world.stop().await;
}

async fn a_foreign_stream_and_cursor_are_like_ones_that_never_were(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_max_open = 0).await;
    let alice = world.client(ALICE).await;
    let id = alice.create("hold", json!({})).await;
    for _ in 0..50 {
        alice.create("echo", json!({})).await;
    }
    let cursor = alice.ok("tasks/list", json!({})).await["nextCursor"].clone();
    let mut stream = alice.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let mut standalone = Events::new(alice.get(None).await);
    assert_eq!(standalone.next_data().await.as_deref(), Some(""));
    for token in [BOB, EVE] {
        let other = world.client(token).await;
        let unknown = shown(other.get(Some("nonsense")).await).await;
        for events in [&stream, &standalone] {
            assert_eq!(shown(other.get(events.last_id.as_deref()).await).await, unknown);
        }
        let unknown = ask(&other, "tasks/list", json!({"cursor": "nonsense"}), BOTH).await;
        assert_eq!(ask(&other, "tasks/list", json!({"cursor": cursor}), BOTH).await, unknown);
    }
    world.gate.open();
    assert_eq!(stream.next().await.unwrap()["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

async fn nobody_cancels_somebody_elses_request(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let frame = alice.frame("tools/call", &json!({"name": "hold"}));
    let mut stream = Events::new(alice.post(&frame, BOTH).await);
    world.gate.started().await;
    for token in [BOB, EVE] {
        for other in world.clients(token).await {
            other.notify("notifications/cancelled", json!({"requestId": frame["id"]})).await;
        }
    }
    // Their words have been heard by now, if anybody would: alice's own take the same way.
    let own = alice.frame("tools/call", &json!({"name": "hold"}));
    let mut cancelled = Events::new(alice.post(&own, BOTH).await);
    world.gate.started().await;
    alice.at(&world.urls[1]).notify("notifications/cancelled", json!({"requestId": own["id"]})).await;
    assert_eq!(cancelled.next().await, None);
    world.gate.open();
    assert_eq!(stream.next().await.unwrap()["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

/// Callers of each kind, who have names in common: two people, one in two apps, of one issuer; such a person of another
/// issuer; and agents of both tenants.
struct Callers {
    world: World,
    tokens: Vec<(&'static str, String)>,
}

impl Callers {
    async fn start(wiring: Wiring) -> Self {
        let (key, other_key) = (Key::ec("k"), Key::ec("k"));
        let (issuer, other) = (Issuer::start(&[&key]).await, Issuer::start(&[&other_key]).await);
        let with = |issuer: &Issuer, tenant: &str| IssuerConfig {
            issuer: issuer.url.clone(),
            jwks_url: None,
            audience: None,
            tenant: Some(tenant.into()),
            tenant_claim: None,
            tenants: Default::default(),
            algorithms: vec!["ES256".into()],
            scopes_required: vec!["mcp:tools".into()],
            leeway_s: 30,
        };
        let issuers = vec![with(&issuer, "acme"), with(&other, "others")];
        let agent = |key: &str, tenant: &str| CredentialConfig {
            sha256: sha256(key),
            tenant: tenant.into(),
            agent: Some("pat".into()),
            app: None,
            person: None,
        };
        let credentials = vec![agent("key-of-pat", "acme"), agent("key-of-pat-of-others", "others")];
        let world = World::start_with(wiring, |config| {
            config.mcp_task_max_open = 0;
            config.gateway.public_url = Some("https://mcp.example".into());
            config.gateway.issuers = issuers;
            config.gateway.credentials = credentials;
        })
        .await;
        let end = SystemClock.now().as_micros() / 1_000_000 + 3600;
        let token = |key: &Key, issuer: &Issuer, app: &str, person: &str| {
            let claims = json!({"iss": issuer.url, "aud": "https://mcp.example/mcp", "exp": end, "sub": person, "azp": app, "scope": "mcp:tools"});
            key.sign(&claims)
        };
        let tokens = vec![
            ("a person", token(&key, &issuer, "app", "pat")),
            ("the person in another app", token(&key, &issuer, "pat", "pat")),
            ("another person", token(&key, &issuer, "app", "PAT")),
            ("a person of another issuer", token(&other_key, &other, "app", "pat")),
            ("an agent", "key-of-pat".to_owned()),
            ("an agent of another tenant", "key-of-pat-of-others".to_owned()),
        ];
        Self { world, tokens }
    }
}

fn sha256(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All that a caller holds.
struct Held {
    tasks: Vec<String>,
    asking: String,
    session: String,
    cursor: Value,
    events: Vec<String>,
    /// Of a task, and of a call.
    questions: Vec<Value>,
    asked: Value,
    /// As long as these are open, so are what they are of.
    _streams: Vec<Events>,
}

const PAGE: usize = 50;

impl Held {
    async fn by(world: &World, token: &str) -> Self {
        let can_ask = json!({"elicitation": {"form": {}}});
        let client = Client::declaring(&world.urls[0], Some(token), can_ask).await;
        let running = client.create("hold", json!({})).await;
        world.gate.started().await;
        let ended = client.create("echo", json!({})).await;
        client.result(&ended).await;
        let asking = client.create("ask", json!({"question": "Who?"})).await;
        for _ in 0..PAGE {
            client.create("echo", json!({})).await;
        }
        let cursor = client.ok("tasks/list", json!({})).await["nextCursor"].clone();
        assert!(cursor.is_string());
        let mut of_task = client.stream("tasks/result", json!({"taskId": asking})).await;
        let mut of_call = client.stream("tools/call", json!({"name": "ask", "arguments": {"question": "Who?"}})).await;
        let mut questions = Vec::new();
        for stream in [&mut of_task, &mut of_call] {
            let question = loop {
                let message = stream.next().await.expect("the stream ended without a question");
                if message["method"] == "elicitation/create" {
                    break message["id"].clone();
                }
            };
            questions.push(question);
        }
        let mut standalone = Events::new(client.get(None).await);
        standalone.next_data().await;
        let events = [&of_task, &of_call, &standalone].map(|stream| stream.last_id.clone().unwrap());
        let modern = Modern::new(&world.urls[0], Some(token)).plain();
        let asked = modern.ok("tools/call", json!({"name": "ask", "arguments": {"question": "Who?"}})).await;
        Self {
            tasks: vec![running, ended, asking.clone()],
            asking,
            session: client.session().to_owned(),
            cursor,
            events: events.into(),
            questions,
            asked,
            _streams: vec![of_task, of_call, standalone],
        }
    }

    /// What another caller is answered who shows these handles, by the name of what is tried.
    async fn tried_by(&self, world: &World, token: &str) -> Vec<(String, (u16, Vec<(String, String)>, String))> {
        let mut answers = Vec::new();
        let client = Client::connect(&world.urls[1], Some(token)).await;
        let modern = Modern::new(&world.urls[1], Some(token));
        let by_modern = async |method: &str, params: Value| {
            let mut frame = modern.frame(method, params);
            frame["id"] = json!(7);
            shown(modern.send(&frame).await).await
        };
        for (at, task) in self.tasks.iter().enumerate() {
            for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
                for accept in [BOTH, JSON] {
                    let answer = ask(&client, method, json!({"taskId": task}), accept).await;
                    answers.push((format!("{method} {at} {accept}"), answer));
                }
            }
            let responses = json!({"answer": {"action": "accept", "content": {"answer": "me"}}});
            for (method, params) in [
                ("tasks/get", json!({"taskId": task})),
                ("tasks/cancel", json!({"taskId": task})),
                ("tasks/update", json!({"taskId": task, "inputResponses": responses})),
                ("tasks/update", json!({"taskId": task, "inputResponses": {}})),
            ] {
                answers.push((format!("2026 {method} {at}"), by_modern(method, params).await));
            }
        }
        let mut listen = modern.frame("subscriptions/listen", json!({"notifications": {"taskIds": self.tasks}}));
        listen["id"] = json!(7);
        answers.push(("listen".into(), shown(modern.send(&listen).await).await));
        answers.push(("list".into(), ask(&client, "tasks/list", json!({"cursor": self.cursor}), BOTH).await));
        for (at, event) in self.events.iter().enumerate() {
            answers.push((format!("resume {at}"), shown(client.get(Some(event)).await).await));
        }
        for (at, question) in self.questions.iter().enumerate() {
            let answer =
                json!({"jsonrpc": "2.0", "id": question, "result": {"action": "accept", "content": {"answer": "me"}}});
            answers.push((format!("answer {at}"), shown(client.post(&answer, BOTH).await).await));
            let answer = json!({"jsonrpc": "2.0", "id": question, "error": {"code": 1, "message": "no"}});
            answers.push((format!("answer {at} with an error"), shown(client.post(&answer, BOTH).await).await));
        }
        let call = self.again(json!({}));
        answers.push(("state".into(), by_modern("tools/call", call).await));
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let request = longhaul_tests::client::http().request(method.clone(), &world.urls[1]).bearer_auth(token);
            let request =
                request.header("Mcp-Session-Id", &self.session).header("Accept", BOTH).header("Content-Type", JSON);
            let body = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"}).to_string();
            answers.push((format!("session {method}"), shown(request.body(body).send().await.unwrap()).await));
        }
        answers
    }

    /// The call of 2026 once more, with what it was asked.
    fn again(&self, responses: Value) -> Value {
        let state = &self.asked["requestState"];
        json!({"name": "ask", "arguments": {"question": "Who?"}, "requestState": state, "inputResponses": responses})
    }

    /// Answers everything that is asked: it all goes on, whoever else tried.
    async fn answer(&self, world: &World, token: &str) {
        let client = Client::connect(&world.urls[1], Some(token)).await;
        for question in &self.questions {
            assert_eq!(client.answer(question, json!({"action": "decline"})).await, 202);
        }
        let modern = Modern::new(&world.urls[1], Some(token)).plain();
        let key = self.asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let answered = modern.ok("tools/call", self.again(json!({key: {"action": "decline"}}))).await;
        assert_eq!(answered["resultType"], "complete", "{answered}");
    }

    /// Handles of the same shapes that nobody holds.
    fn of_nobody(&self) -> Self {
        let id = |question: &Value| match question.as_str().unwrap() {
            task if task.starts_with("tiq-task-") => json!(format!("tiq-task-{NOBODYS}-1")),
            _ => json!("nonsense"),
        };
        Self {
            tasks: vec![NOBODYS.to_owned(); self.tasks.len()],
            asking: NOBODYS.to_owned(),
            session: "nonsense".to_owned(),
            cursor: json!("nonsense"),
            events: vec!["nonsense".to_owned(); self.events.len()],
            questions: self.questions.iter().map(id).collect(),
            asked: json!({"requestState": "nonsense"}),
            _streams: Vec::new(),
        }
    }
}

async fn no_handle_of_a_caller_is_anything_to_another_of_any_kind(wiring: Wiring) {
    let Callers { world, tokens } = Callers::start(wiring).await;
    for (owner, token) in [&tokens[0], &tokens[4]] {
        let held = Held::by(&world, token).await;
        let nobodys = held.of_nobody();
        for (other, other_token) in tokens.iter().filter(|(name, _)| name != owner) {
            let unknown = nobodys.tried_by(&world, other_token).await;
            let foreign = held.tried_by(&world, other_token).await;
            assert_eq!(foreign.len(), unknown.len());
            for ((what, foreign), (_, unknown)) in foreign.iter().zip(&unknown) {
                assert_eq!(foreign, unknown, "{what}: of {owner}, tried by {other}");
            }
        }
        // Nothing of it had any effect.
        let client = Client::connect(&world.urls[1], Some(token)).await;
        let statuses = [
            client.status(&held.tasks[0]).await,
            client.status(&held.tasks[1]).await,
            client.status(&held.asking).await,
        ];
        assert_eq!(statuses, ["working", "completed", "input_required"], "{owner}");
        assert_eq!(
            client.ok("tasks/list", json!({"cursor": held.cursor})).await["tasks"].as_array().map(Vec::len),
            Some(3)
        );
        held.answer(&world, token).await;
    }
    world.stop().await;
}

crate::both!(
    no_handle_of_a_caller_is_anything_to_another_of_any_kind,
    a_foreign_task_is_answered_byte_for_byte_like_one_that_never_was,
    a_foreign_session_is_like_one_that_never_was,
    a_foreign_stream_and_cursor_are_like_ones_that_never_were,
    nobody_cancels_somebody_elses_request,
);
