//! Callers for whom an issuer vouches.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use longhaul_bus::{Bus, LocalBus};
use longhaul_core::{Caller, Clock as _, Principal, TenantId};
use longhaul_gateway::{Authenticator, Gateway, IssuerConfig, OAuthConfig, ResourceServer, Tenant};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::client::{Answer, Client, Connection};
use crate::issuer::{Issuer, Key, unsigned};
use crate::modern::Modern;
use crate::world::{self, ALICE, World, parts, text, until};

const PUBLIC: &str = "https://mcp.example";
const AUDIENCE: &str = "https://mcp.example/mcp";
const METADATA: &str = "https://mcp.example/.well-known/oauth-protected-resource/mcp";

fn issuer_config(issuer: &Issuer) -> IssuerConfig {
    IssuerConfig {
        issuer: issuer.url.clone(),
        jwks_url: Some(format!("{}/keys", issuer.url)),
        audience: None,
        tenant: Tenant::Fixed(TenantId::new("acme")),
        algorithms: vec!["ES256".into(), "RS256".into()],
        scopes: vec!["mcp:tools".into()],
        leeway: Duration::ZERO,
    }
}

fn config(issuers: Vec<IssuerConfig>) -> OAuthConfig {
    let tool_scopes = BTreeMap::from([("fail".to_owned(), vec!["files:write".to_owned(), "mcp:tools".to_owned()])]);
    OAuthConfig { public_url: PUBLIC.into(), issuers, tool_scopes, fetch_again: Duration::from_secs(600) }
}

/// A gateway that believes issuers, and those who show a key of ours as in the other tests.
struct Guarded {
    world: World,
    at: SocketAddr,
    drain: CancellationToken,
}

impl Guarded {
    async fn start(config: OAuthConfig) -> Self {
        let bus: Arc<dyn Bus> = Arc::new(LocalBus::new());
        let world = World::with(world::config(), bus.clone()).await;
        let auth = Authenticator::OAuth(Arc::new(ResourceServer::new(config).unwrap()), Box::new(world::keys()));
        let parts = parts(&world.store, &bus, &world.links, &world.token, auth);
        let gateway = Gateway::build(world::config(), parts);
        let (status, drain) = (gateway.status(), CancellationToken::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let draining = drain.clone();
        world.tasks.spawn(async move { gateway.run(listener, draining).await.unwrap() });
        until("the gateway is ready", || status.is_ready()).await;
        Self { world, at, drain }
    }

    /// The claims of a good token that lasts so many seconds, changed; those that are null are left out.
    fn claims(&self, issuer: &Issuer, seconds: i64, change: Value) -> Value {
        let now = self.world.store.clock.now().as_micros() / 1_000_000;
        let mut claims = json!({
            "iss": issuer.url, "sub": "pat", "aud": AUDIENCE, "exp": now + seconds, "azp": "app", "scope": "mcp:tools",
        });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        claims
    }

    fn good(&self, issuer: &Issuer, key: &Key) -> String {
        key.sign(&self.claims(issuer, 600, json!({})))
    }

    async fn hello(&self, token: impl Into<String>) -> Client {
        Client::hello(self.at, token.into().leak()).await
    }

    /// What a token is answered that is not let in.
    async fn ask(&self, token: &str) -> Answer {
        Client::new(self.at, token.to_owned().leak()).initialize("2025-11-25").await
    }

    async fn get(&self, path: &str) -> Answer {
        let mut connection = Connection::open(self.at).await;
        connection.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.at).as_bytes()).await;
        connection.answer().await.unwrap()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.drain.cancel();
    }
}

fn challenge(answer: &Answer) -> &str {
    answer.head.header("www-authenticate").unwrap_or_else(|| panic!("{answer:?}"))
}

#[tokio::test]
async fn whoever_has_no_token_learns_where_to_get_one() {
    let issuer = Issuer::start(&[]).await;
    let guarded = Guarded::start(config(vec![issuer_config(&issuer)])).await;
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        let answer = guarded.get(path).await;
        assert_eq!((answer.status(), answer.head.header("content-type")), (200, Some("application/json")));
        let said: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            said,
            json!({
                "resource": AUDIENCE,
                "authorization_servers": [issuer.url],
                "scopes_supported": ["mcp:tools"],
                "bearer_methods_supported": ["header"],
                "resource_name": "Longhaul",
            })
        );
    }
    let without = format!(r#"Bearer realm="longhaul", scope="mcp:tools", resource_metadata="{METADATA}""#);
    for method in ["POST", "GET", "DELETE"] {
        let request =
            format!("{method} /mcp?access_token=x HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", guarded.at);
        let mut connection = Connection::open(guarded.at).await;
        connection.send(request.as_bytes()).await;
        let answer = connection.answer().await.unwrap();
        assert_eq!((answer.status(), challenge(&answer)), (401, &*without), "{method}");
    }
    let with = without.replace("scope=", r#"error="invalid_token", scope="#);
    for token in ["key-of-nobody", "eyJhbGciOiJub25lIn0.e30.", "a.b.c"] {
        let answer = guarded.ask(token).await;
        assert_eq!((answer.status(), challenge(&answer)), (401, &*with), "{token}");
    }
    // Where there is no issuer, there is nothing to learn.
    let mut connection = Connection::open(guarded.world.a.at).await;
    let path = "/.well-known/oauth-protected-resource";
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", guarded.world.a.at).as_bytes()).await;
    assert_eq!(connection.answer().await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_good_token_makes_its_person_in_its_app_the_caller_beside_keys_of_ours() {
    let (key, rsa) = (Key::ec("k1"), Key::rsa("k2"));
    let issuer = Issuer::start(&[&key, &rsa]).await;
    let guarded = Guarded::start(config(vec![issuer_config(&issuer)])).await;
    let person = |app: &str, person: &str| Principal {
        tenant: TenantId::new("acme"),
        caller: Caller::Person { app: app.into(), person: person.into() },
    };
    for (token, principal) in [
        (guarded.good(&issuer, &key), person("app", "pat")),
        (guarded.good(&issuer, &rsa), person("app", "pat")),
        (key.sign(&guarded.claims(&issuer, 600, json!({"sub": "PAT\u{200b}"}))), person("app", "PAT\u{200b}")),
        (key.sign(&guarded.claims(&issuer, 600, json!({"azp": null, "client_id": "b"}))), person("b", "pat")),
        (key.sign(&guarded.claims(&issuer, 600, json!({"scope": null, "scp": ["x", "mcp"]}))), person("app", "pat")),
        (
            key.sign_under(&json!({"alg": "ES256", "kid": "k1"}), &guarded.claims(&issuer, 600, json!({}))),
            person("app", "pat"),
        ),
        (key.sign_under(&json!({"alg": "ES256"}), &guarded.claims(&issuer, 600, json!({}))), person("app", "pat")),
        (ALICE.to_owned(), world::alice()),
    ] {
        let client = guarded.hello(token).await;
        client.create("echo").await;
        assert_eq!(guarded.world.store.created.lock().unwrap().last().unwrap().owner, principal);
    }
    assert_eq!(issuer.fetches(), 1);
}

/// HS256 over a secret, as whoever knows only the public key can make it.
fn hmac(secret: &[u8], header: &Value, claims: &Value) -> String {
    let signed = unsigned(header, claims);
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
    let tag = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

#[tokio::test]
async fn a_token_that_is_wrong_in_any_way_is_not_let_in() {
    let (key, rsa, stranger) = (Key::ec("k1"), Key::rsa("k2"), Key::ec("k1"));
    let issuer = Issuer::start(&[&key, &rsa]).await;
    let guarded = Guarded::start(config(vec![issuer_config(&issuer)])).await;
    let good = guarded.claims(&issuer, 600, json!({}));
    let now = guarded.world.store.clock.now().as_micros() / 1_000_000;
    let changed = |change: Value| key.sign(&guarded.claims(&issuer, 600, change));
    let under = |header: Value| key.sign_under(&header, &good);
    let whole = key.sign(&good);
    let (signed, signature) = whole.rsplit_once('.').unwrap();
    let other_claims = guarded.claims(&issuer, 600, json!({"sub": "admin"}));
    let tokens = [
        ("none", format!("{}.", unsigned(&json!({"alg": "none"}), &good))),
        ("none with a signature", format!("{}.{signature}", unsigned(&json!({"alg": "none", "kid": "k1"}), &good))),
        ("NONE", format!("{}.", unsigned(&json!({"alg": "NONE"}), &good))),
        ("hmac with the public key", hmac(&rsa.public_der(), &json!({"alg": "HS256", "kid": "k2"}), &good)),
        (
            "hmac with the published key",
            hmac(rsa.jwk().to_string().as_bytes(), &json!({"alg": "HS256", "kid": "k2"}), &good),
        ),
        ("hmac with nothing", hmac(b"", &json!({"alg": "HS256"}), &good)),
        ("hmac said to be RS256", hmac(&rsa.public_der(), &json!({"alg": "RS256", "kid": "k2"}), &good)),
        ("an algorithm not of the issuer", under(json!({"alg": "ES384", "kid": "k1"}))),
        ("an algorithm of another key", under(json!({"alg": "RS256", "kid": "k1"}))),
        ("the name of another key", under(json!({"alg": "ES256", "kid": "k2"}))),
        ("a path as a name", under(json!({"alg": "ES256", "kid": "../../etc/passwd"}))),
        ("SQL as a name", under(json!({"alg": "ES256", "kid": "' UNION SELECT"}))),
        ("an empty name", under(json!({"alg": "ES256", "kid": ""}))),
        ("a key of its own", stranger.sign_under(&json!({"alg": "ES256", "kid": "k1", "jwk": stranger.jwk()}), &good)),
        (
            "a key elsewhere",
            stranger.sign_under(&json!({"alg": "ES256", "kid": "k1", "jku": format!("{}/keys", issuer.url)}), &good),
        ),
        ("critical", under(json!({"alg": "ES256", "kid": "k1", "crit": ["x"]}))),
        ("another kind of token", under(json!({"alg": "ES256", "kid": "k1", "typ": "logout+jwt"}))),
        ("a stranger's signature", stranger.sign(&good)),
        ("another's claims", format!("{}.{signature}", unsigned(&key.header(), &other_claims))),
        ("no signature", format!("{signed}.")),
        ("half a signature", format!("{signed}.{}", &signature[..40])),
        ("padding", format!("{whole}==")),
        ("a fourth part", format!("{whole}.x")),
        ("no iss", changed(json!({"iss": null}))),
        ("another iss", changed(json!({"iss": "https://evil.example"}))),
        ("iss with a slash", changed(json!({"iss": format!("{}/", issuer.url)}))),
        ("iss as a list", changed(json!({"iss": [issuer.url, "x"]}))),
        ("no aud", changed(json!({"aud": null}))),
        ("another aud", changed(json!({"aud": "https://upstream.example/mcp"}))),
        ("aud is the origin", changed(json!({"aud": PUBLIC}))),
        ("aud is empty", changed(json!({"aud": []}))),
        ("aud is no text", changed(json!({"aud": 7}))),
        ("no sub", changed(json!({"sub": null}))),
        ("sub is no text", changed(json!({"sub": 7}))),
        ("sub is empty", changed(json!({"sub": ""}))),
        ("sub with NUL", changed(json!({"sub": "a\u{0}"}))),
        ("no azp", changed(json!({"azp": null}))),
        ("azp is no text", changed(json!({"azp": {"a": 1}}))),
        ("two apps", changed(json!({"client_id": "other"}))),
        ("no exp", changed(json!({"exp": null}))),
        ("exp is text", changed(json!({"exp": (now + 600).to_string()}))),
        ("exp is 1e99", changed(json!({"exp": 1e99}))),
        ("exp is negative", changed(json!({"exp": -1}))),
        ("expired", changed(json!({"exp": now}))),
        ("not yet valid", changed(json!({"nbf": now + 1}))),
        ("nbf is text", changed(json!({"nbf": "now"}))),
        ("too long", changed(json!({"x": "y".repeat(8 * 1024)}))),
        ("claims twice", {
            let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
            let body = good.to_string().replacen('{', r#"{"sub":"admin","#, 1);
            format!("{}.{}.{signature}", part(&key.header().to_string()), part(&body))
        }),
    ];
    for (what, token) in tokens {
        let answer = guarded.ask(&token).await;
        assert_eq!(answer.status(), 401, "{what}");
        assert!(challenge(&answer).contains(r#"error="invalid_token""#), "{what}");
        assert!(!String::from_utf8_lossy(&answer.body).contains(&token[..20]), "{what}");
    }
    assert_eq!(guarded.ask(&whole).await.status(), 200, "it is not the rest that is wrong");
    // Two tokens in two headers are none, be they both good.
    let twice = format!("Authorization: Bearer {whole}\r\n");
    let client = Client::new(guarded.at, whole.clone().leak());
    assert_eq!(client.send("POST", &twice, b"{}").await.answer().await.unwrap().status(), 401);
    assert_eq!(issuer.fetches(), 1, "nothing of this was worth a fetch");
}

#[tokio::test]
async fn a_token_that_does_not_go_far_enough_is_told_all_that_the_call_needs() {
    let key = Key::ec("k1");
    let issuer = Issuer::start(&[&key]).await;
    let guarded = Guarded::start(config(vec![issuer_config(&issuer)])).await;
    let with = |scope: &str| key.sign(&guarded.claims(&issuer, 600, json!({"scope": scope})));
    let insufficient = |scopes: &str| {
        format!(
            r#"Bearer realm="longhaul", error="insufficient_scope", scope="{scopes}", resource_metadata="{METADATA}""#
        )
    };
    for scope in ["", "openid", "mcp:toolsmith", "mcp:tool"] {
        let answer = guarded.ask(&with(scope)).await;
        assert_eq!((answer.status(), challenge(&answer)), (403, &*insufficient("mcp:tools")), "{scope}");
    }
    let call = json!({"name": "fail", "arguments": {}});
    for scope in ["mcp:tools", "mcp", "mcp:tools files:read"] {
        let token = with(scope);
        let client = guarded.hello(token.clone()).await;
        assert!(client.create("echo").await.len() > 1, "a tool that needs nothing more");
        let modern = Modern::new(guarded.at, token.leak()).with_tasks();
        for answer in [client.call("tools/call", call.clone()).await, modern.call("tools/call", call.clone()).await] {
            assert_eq!((answer.status(), challenge(&answer)), (403, &*insufficient("mcp:tools files:write")));
            assert_eq!((&answer.json()["id"], &answer.json()["error"]["code"]), (&json!(1), &json!(-32600)));
        }
    }
    let created = guarded.world.store.created.lock().unwrap().len();
    for scope in ["mcp:tools files:write", "mcp files"] {
        guarded.hello(with(scope)).await.create("fail").await;
    }
    guarded.hello(ALICE).await.create("fail").await;
    assert_eq!(guarded.world.store.created.lock().unwrap().len(), created + 3);
}

#[tokio::test]
async fn each_issuer_vouches_for_its_own_tenant_only() {
    let (one, other) = (Key::ec("k1"), Key::ec("k1"));
    let (first, second) = (Issuer::start(&[&one]).await, Issuer::start(&[&other]).await);
    let tenant = Tenant::Claim { name: "org".into(), among: ["umbrella".to_owned(), "evil".to_owned()].into() };
    let guarded =
        Guarded::start(config(vec![issuer_config(&first), IssuerConfig { tenant, ..issuer_config(&second) }])).await;
    let tenant_of = async |token: String| {
        guarded.hello(token).await.create("echo").await;
        guarded.world.store.created.lock().unwrap().last().unwrap().owner.tenant.as_str().to_owned()
    };
    assert_eq!(tenant_of(one.sign(&guarded.claims(&first, 600, json!({"org": "evil"})))).await, "acme");
    assert_eq!(tenant_of(other.sign(&guarded.claims(&second, 600, json!({"org": "evil"})))).await, "evil");
    for (key, issuer, org) in [
        (&other, &second, json!("acme")),
        (&other, &second, json!(null)),
        (&other, &second, json!("")),
        (&other, &second, json!(["evil"])),
        (&other, &second, json!("Evil")),
        (&other, &first, json!("evil")),
        (&one, &second, json!("evil")),
    ] {
        let token = key.sign(&guarded.claims(issuer, 600, json!({"org": org})));
        assert_eq!(guarded.ask(&token).await.status(), 401, "{org}");
    }
}

#[tokio::test]
async fn ten_thousand_names_of_keys_are_worth_two_fetches() {
    let key = Key::ec("k1");
    let issuer = Issuer::start(&[&key]).await;
    let guarded =
        Guarded::start(OAuthConfig { fetch_again: Duration::from_millis(200), ..config(vec![issuer_config(&issuer)]) })
            .await;
    guarded.hello(guarded.good(&issuer, &key)).await;
    assert_eq!(issuer.fetches(), 1);
    tokio::time::sleep(Duration::from_millis(250)).await;
    // The first is worth one; later ones come too soon after it, and it is known by then itself.
    let claims = guarded.claims(&issuer, 600, json!({}));
    let token = |name: &str| key.sign_under(&json!({"alg": "ES256", "kid": name}), &claims);
    assert_eq!(guarded.ask(&token("none-such")).await.status(), 401);
    assert_eq!(issuer.fetches(), 2);
    tokio::time::sleep(Duration::from_millis(250)).await;
    for _ in 0..20 {
        assert_eq!(guarded.ask(&token("none-such")).await.status(), 401);
    }
    assert_eq!(issuer.fetches(), 2, "a name that is known to be unknown");

    let guarded = Guarded::start(config(vec![issuer_config(&issuer)])).await;
    let before = issuer.fetches();
    let (at, token) = (guarded.at, &token);
    let attack = async |from: usize| {
        let mut connection = Connection::open(at).await;
        for nth in from..from + 2500 {
            let client = Client::new(at, token(&format!("k{nth}-x")).leak());
            connection.send(&client.request("POST", "", b"{}")).await;
            assert_eq!(connection.answer().await.unwrap().status(), 401);
        }
    };
    tokio::join!(attack(0), attack(10_000), attack(20_000), attack(30_000));
    assert!(issuer.fetches() - before <= 2, "{} fetches", issuer.fetches() - before);
    guarded.hello(guarded.good(&issuer, &key)).await;
}

#[tokio::test]
async fn keys_change_without_a_restart_and_an_old_one_is_believed_no_more() {
    let (old, new) = (Key::ec("old"), Key::ec("new"));
    let issuer = Issuer::start(&[&old]).await;
    let guarded =
        Guarded::start(OAuthConfig { fetch_again: Duration::ZERO, ..config(vec![issuer_config(&issuer)]) }).await;
    let (by_old, by_new) = (guarded.good(&issuer, &old), guarded.good(&issuer, &new));
    assert_eq!(guarded.ask(&by_old).await.status(), 200);
    issuer.publish(&[&old, &new]);
    assert_eq!(guarded.ask(&by_new).await.status(), 200);
    assert_eq!(guarded.ask(&by_old).await.status(), 200);
    // The old key is withdrawn: a token that was found good before is looked at again once that is known.
    issuer.publish(&[&new]);
    let claims = guarded.claims(&issuer, 600, json!({}));
    let unknown = new.sign_under(&json!({"alg": "ES256", "kid": "makes-us-look"}), &claims);
    assert_eq!(guarded.ask(&unknown).await.status(), 401);
    assert_eq!(guarded.ask(&by_old).await.status(), 401);
    assert_eq!(guarded.ask(&by_new).await.status(), 200);
}

#[tokio::test]
async fn an_issuer_that_is_away_stops_nobody_whose_key_is_known() {
    let key = Key::ec("k1");
    let issuer = Issuer::start(&[&key]).await;
    issuer.fail(true);
    let guarded =
        Guarded::start(OAuthConfig { fetch_again: Duration::ZERO, ..config(vec![issuer_config(&issuer)]) }).await;
    let (known, other) = (guarded.good(&issuer, &key), key.sign(&guarded.claims(&issuer, 500, json!({}))));
    let answer = guarded.ask(&known).await;
    assert_eq!((answer.status(), answer.head.header("retry-after")), (503, Some("1")), "it cannot be judged");
    assert_eq!(guarded.ask(ALICE).await.status(), 200, "keys of ours need no issuer");
    issuer.fail(false);
    assert_eq!(guarded.ask(&known).await.status(), 200);
    issuer.fail(true);
    assert_eq!(guarded.ask(&known).await.status(), 200);
    assert_eq!(guarded.ask(&other).await.status(), 200);
}

#[tokio::test]
async fn an_issuer_without_an_address_for_its_keys_is_asked_for_it() {
    let key = Key::ec("k1");
    let issuer = Issuer::start(&[&key]).await;
    let discovered = IssuerConfig { jwks_url: None, ..issuer_config(&issuer) };
    let with = OAuthConfig { fetch_again: Duration::ZERO, ..config(vec![discovered]) };
    let guarded = Guarded::start(with.clone()).await;
    let token = guarded.good(&issuer, &key);
    assert_eq!(guarded.ask(&token).await.status(), 200);
    // Metadata of another issuer, and keys at an address that is no issuer's.
    for metadata in [
        json!({"issuer": "https://other.example", "jwks_uri": format!("{}/keys", issuer.url)}),
        json!({"issuer": issuer.url, "jwks_uri": "http://169.254.169.254/latest/meta-data/"}),
        json!({"issuer": issuer.url, "jwks_uri": "file:///etc/passwd"}),
        json!({"issuer": issuer.url}),
    ] {
        *issuer.state.metadata.lock().unwrap() = metadata.clone();
        let guarded = Guarded::start(with.clone()).await;
        assert_eq!(guarded.ask(&guarded.good(&issuer, &key)).await.status(), 503, "{metadata}");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_much_is_no_set_of_keys() {
    let key = Key::ec("k1");
    let issuer = Issuer::start(&[&key]).await;
    let usual = key.jwk();
    for keys in [vec![usual.clone(); 101], vec![usual.clone(), json!({"kty": "x", "x": "y".repeat(65 * 1024)})]] {
        *issuer.state.keys.lock().unwrap() = keys;
        let guarded = Guarded::start(config(vec![issuer_config(&issuer)])).await;
        assert_eq!(guarded.ask(&guarded.good(&issuer, &key)).await.status(), 503);
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_token_that_opened_it_and_goes_on_with_the_next() {
    let key = Key::ec("k1");
    let issuer = Issuer::start(&[&key]).await;
    let guarded = Guarded::start(config(vec![issuer_config(&issuer)])).await;
    let long = guarded.hello(guarded.good(&issuer, &key)).await;
    let task = long.create("echo").await;
    let soon = key.sign(&guarded.claims(&issuer, 1, json!({})));
    let short = Client { token: soon.clone().leak(), ..long.clone() };
    let modern = Modern::new(guarded.at, soon.leak());

    let mut waiting = short.stream(json!("r"), "tasks/result", json!({"taskId": task})).await;
    let mut standalone = short.get(None).await;
    let mut calling = short.stream(json!("c"), "tools/call", json!({"name": "wait"})).await;
    let run = guarded.world.worker.run().await;
    let mut lost = modern.stream(json!("m"), "tools/call", json!({"name": "wait", "arguments": {}})).await;
    let lost_run = guarded.world.worker.run().await;
    let filter = json!({"notifications": {"toolsListChanged": true}});
    let mut listening = modern.stream(json!("l"), "subscriptions/listen", filter).await;

    let mut last = Vec::new();
    for stream in [&mut waiting, &mut standalone, &mut calling] {
        let mut event = stream.event().await.unwrap();
        while let Some(next) = stream.event().await {
            event = next;
        }
        assert_eq!((event.data.as_deref(), event.retry), (Some(""), Some(1000)), "come back");
        last.push(event.id);
    }
    let mut messages = Vec::new();
    while let Some(event) = listening.event().await {
        messages.push(event.message());
    }
    assert_eq!(messages.last().unwrap()["id"], "l", "a subscription ends with its result");
    assert!(messages.last().unwrap()["result"].is_object());
    assert_eq!(lost.message().await["error"]["code"], -32603);
    assert_eq!(lost.event().await, None);
    crate::client::within("the run without a request", lost_run.stopped.cancelled()).await;

    // With a fresh token their client goes on where it was.
    let mut waiting = long.get(last[0].as_deref()).await;
    guarded.world.store.finish(&task, text("done"));
    waiting.event().await.unwrap();
    assert_eq!(waiting.message().await["result"]["content"][0]["text"], "done");
    let mut calling = long.get(last[2].as_deref()).await;
    calling.event().await.unwrap();
    run.end(text("late"));
    assert_eq!(calling.message().await["result"]["content"][0]["text"], "late");
    assert!(!guarded.world.store.down.load(Ordering::SeqCst));
}
