//! What browsers are told before they let a page talk with a gateway.

use std::sync::Arc;

use longhaul_bus::LocalBus;
use longhaul_gateway::Config;
use serde_json::json;

use crate::client::{Client, Head};
use crate::modern::Modern;
use crate::world::{ALICE, World, config};

const PAGE: &str = "https://app.example";

async fn world() -> World {
    World::with(Config { allowed_origins: vec![PAGE.into()], ..config() }, Arc::new(LocalBus::new())).await
}

async fn asked(client: &Client, method: &str, extra: &str) -> Head {
    client.send(method, extra, b"{}").await.head().await.unwrap()
}

fn preflight(origin: &str) -> String {
    format!(
        "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type,mcp-param-region,x-internal\r\n"
    )
}

#[tokio::test]
async fn a_page_of_a_listed_origin_may_ask_and_read_the_answer() {
    let world = world().await;
    // A browser sends no credential when it asks whether it may.
    let nobody = Client::new(world.a.at, "");
    let head = asked(&nobody, "OPTIONS", &preflight(PAGE)).await;
    assert_eq!((head.status, head.header("access-control-allow-origin")), (204, Some(PAGE)));
    assert_eq!(head.header("access-control-allow-methods"), Some("POST, GET, DELETE"));
    let allowed = head.header("access-control-allow-headers").unwrap();
    for name in ["authorization", "content-type", "mcp-session-id", "last-event-id", "mcp-method", "mcp-param-region"] {
        assert!(allowed.split(", ").any(|other| other == name), "{name}: {allowed}");
    }
    assert!(!allowed.contains("x-internal"), "{allowed}");
    assert!(head.header("access-control-max-age").is_some());
    assert_eq!(head.header("access-control-allow-credentials"), None, "no cookie counts");

    let origin = format!("Origin: {PAGE}\r\n");
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}});
    let alice = Client::new(world.a.at, ALICE);
    let answer = alice.send("POST", &origin, hello.to_string().as_bytes()).await.answer().await.unwrap();
    assert_eq!(answer.status(), 200);
    for head in [answer.head, asked(&nobody, "POST", &origin).await] {
        assert_eq!(head.header("access-control-allow-origin"), Some(PAGE), "{head:?}");
        let exposed = head.header("access-control-expose-headers").unwrap();
        for name in ["WWW-Authenticate", "Mcp-Session-Id", "MCP-Protocol-Version"] {
            assert!(exposed.contains(name), "{name}: {exposed}");
        }
        assert_eq!(head.header("vary"), Some("origin"), "a cache gives no page the answer of another");
    }
}

#[tokio::test]
async fn no_other_page_is_told_anything_and_without_a_list_none_is() {
    let world = world().await;
    let alice = Client::new(world.a.at, ALICE);
    let wrong_host = format!("{}Host: evil.example\r\n", preflight(PAGE));
    for (extra, status) in
        [(preflight("https://evil.example"), 405), (preflight("null"), 405), (wrong_host, 405), (String::new(), 405)]
    {
        let head = asked(&alice, "OPTIONS", &extra).await;
        assert_eq!((head.status, head.header("access-control-allow-origin")), (status, None), "{extra}");
    }
    let head = asked(&alice, "POST", "Origin: https://evil.example\r\n").await;
    assert_eq!((head.status, head.header("access-control-allow-origin")), (403, None));
    // What is no browser is served as ever.
    Modern::new(world.a.at, ALICE).ok("tools/list", json!({})).await;

    let silent = World::start().await;
    let alice = Client::new(silent.a.at, ALICE);
    let own = format!("http://{}", silent.a.at);
    let head = asked(&alice, "OPTIONS", &preflight(&own)).await;
    assert_eq!((head.status, head.header("access-control-allow-origin"), head.header("vary")), (405, None, None));
    assert_eq!(asked(&alice, "POST", &format!("Origin: {own}\r\n")).await.header("access-control-allow-origin"), None);
}
