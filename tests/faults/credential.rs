//! Roles that do not show the right service credential get nothing.

use std::time::Instant;

use longhaul_tests::client::{Miss, PATIENCE};
use longhaul_tests::processes::Site;
use serde_json::json;

use crate::{LOOK, page, reaches};

const WRONG: &str = "a-wrong-service-token";

async fn says_so(site: &mut Site, role: &str) {
    let begun = Instant::now();
    while !site.role(role).log().contains("service credential") {
        assert!(begun.elapsed() < PATIENCE, "{}", site.role(role).log());
        tokio::time::sleep(LOOK).await;
    }
    assert!(!site.role(role).log().contains(WRONG), "{}", site.role(role).log());
}

fn with_wrong_token(site: &mut Site, role: &str) {
    let file = site.folder().join("wrong-token");
    std::fs::write(&file, WRONG).unwrap();
    site.spawn(role, &[("SERVICE_TOKEN_FILE", file.to_str().unwrap())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_with_a_wrong_service_token_is_never_given_work() {
    let mut site = Site::shared().await;
    site.migrate().await;
    site.start("taskstore-1").await;
    site.start("gateway-1").await;
    with_wrong_token(&mut site, "runner-1");
    says_so(&mut site, "runner-1").await;
    let ready = site.management("runner-1", "/readyz");
    assert_eq!(page(&ready).await.0, 503);
    let client = site.client("gateway-1").await;
    assert_eq!(client.ok("tools/list", json!({})).await["tools"], json!([]), "its tools are not on offer");

    site.start("runner-2").await;
    site.offering("gateway-1").await;
    for _ in 0..10 {
        let id = client.create("echo", json!({})).await;
        reaches(&client, &id, "completed").await;
    }
    assert_eq!(page(&ready).await.0, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_with_a_wrong_service_token_serves_nobody() {
    let mut site = Site::shared().await;
    site.migrate().await;
    site.start("taskstore-1").await;
    site.start("runner-1").await;
    site.start("gateway-2").await;
    with_wrong_token(&mut site, "gateway-1");
    says_so(&mut site, "gateway-1").await;
    let ready = site.management("gateway-1", "/readyz");
    assert_eq!(page(&ready).await.0, 503);
    // With a session that every gateway accepts.
    let client = site.client("gateway-2").await.at(&site.url("gateway-1"));
    let answer = client.attempt("tools/call", json!({"name": "echo", "arguments": {}, "task": {}})).await;
    assert!(matches!(&answer, Err(Miss::Refused { status: 503, retry_after: Some(_) })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_token_is_changed_without_a_gap() {
    let mut site = Site::shared().await;
    let both = site.folder().join("both-tokens");
    let former = std::fs::read_to_string(site.folder().join("service-token")).unwrap();
    std::fs::write(&both, format!("a-new-token-for-the-tests\n{former}\n")).unwrap();
    site.migrate().await;
    // The task-store accepts the former one still, while others show the new one already.
    let both = both.to_str().unwrap().to_owned();
    site.start_with("taskstore-1", &[("SERVICE_TOKEN_FILE", &both)]).await;
    site.start_with("gateway-1", &[("SERVICE_TOKEN_FILE", &both)]).await;
    site.start("runner-1").await;
    site.offering("gateway-1").await;
    let client = site.client("gateway-1").await;
    let id = client.create("echo", json!({})).await;
    reaches(&client, &id, "completed").await;
}
