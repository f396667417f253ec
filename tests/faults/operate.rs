//! Operators' commands, as they are typed.

use std::time::{Duration, Instant};

use longhaul_tests::client::{BOTH, Client, PATIENCE, http};
use longhaul_tests::processes::{Redis, Site};
use serde_json::{Value, json};

use crate::{LOOK, MARGIN, countdown, page, reaches, running};

/// What is promised with Redis, and without it.
const PROMPT: Duration = Duration::from_secs(1);
const DEAF: Duration = Duration::from_secs(5);
/// A copy that is older is worth a word.
const STALE: Duration = Duration::from_secs(10);

/// Waits until a gateway answers a key with this status; fails if that takes longer.
async fn answers(url: &str, key: &str, status: u16, within: Duration) {
    let begun = Instant::now();
    let ask = async || http().post(url).bearer_auth(key).header("accept", BOTH).json(&json!({})).send().await.unwrap();
    // A request that is none is looked at after its caller.
    while ask().await.status() != status {
        assert!(begun.elapsed() < within + MARGIN, "{url} does not answer {status}");
        tokio::time::sleep(LOOK).await;
    }
}

/// The id of the only credential in a list that is `state`.
fn only(list: &str, state: &str) -> String {
    let lines: Vec<_> = list.lines().filter(|line| line.split('\t').nth(3) == Some(state)).collect();
    let [line] = lines.as_slice() else { panic!("{list}") };
    line.split('\t').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_printed_once_and_is_nowhere_else_and_serves_until_it_is_revoked() {
    let mut redis = Redis::started().await;
    let mut site = Site::new(&longhaul_tests::services::empty_database().await, Some(&redis.url())).await;
    // Only stored credentials, and everything that is said is kept.
    std::fs::write(site.folder().join("longhaul.toml"), "").unwrap();
    site.set("LOG", "trace,h2=info,hyper=info,tower=info");
    site.migrate().await;
    for role in ["taskstore-1", "gateway-1", "gateway-2", "runner-1"] {
        site.start(role).await;
    }
    let urls = [site.url("gateway-1"), site.url("gateway-2")];
    let create = ["credentials", "create", "--tenant", "acme", "--agent", "ann", "--expires", "90d"];
    let (code, key, said) = site.attempt(&create).await;
    assert_eq!(code, 0, "{said}");
    let key = key.strip_suffix('\n').unwrap().to_owned();
    assert!(key.starts_with("lh_") && key.len() == 55 && !key.contains('\n'), "the key and nothing else");
    assert!(said.contains("agent \"ann\" in tenant \"acme\"") && !said.contains(&key), "{said}");
    for url in &urls {
        answers(url, &key, 400, PROMPT).await;
        answers(url, "lh_unknown", 401, PROMPT).await;
    }
    let list = site.run(&["credentials", "list"]).await;
    let id = only(&list, "accepted");
    assert!(list.contains("\tacme\tann\taccepted\t") && !list.contains(&key), "{list}");
    assert!(!site.run(&["credentials", "list", "--tenant", "other"]).await.contains(&id));

    let client = Client::connect(&urls[0], Some(&key)).await;
    let task = countdown(&client, 60.0).await;
    let (code, next, said) = site.attempt(&["credentials", "rotate", &id, "--overlap", "1h"]).await;
    assert_eq!(code, 0, "{said}");
    let next = next.strip_suffix('\n').unwrap().to_owned();
    assert_ne!(next, key);
    for url in &urls {
        answers(url, &next, 400, PROMPT).await;
        answers(url, &key, 400, PROMPT).await;
    }
    assert_eq!(client.with_token(&next).status(&task).await, "working", "it is the same caller");
    // Without an overlap the former key ends with the rotation.
    let (_, last, _) = site.attempt(&["credentials", "rotate", &id]).await;
    let last = last.strip_suffix('\n').unwrap().to_owned();
    for url in &urls {
        answers(url, &last, 400, PROMPT).await;
        answers(url, &next, 401, PROMPT).await;
        answers(url, &key, 401, PROMPT).await;
    }
    // Redis goes, and all the same.
    redis.kill();
    let (code, _, said) = site.attempt(&["credentials", "revoke", &id]).await;
    assert!(code == 0 && said.contains("is revoked"), "{said}");
    for url in &urls {
        answers(url, &last, 401, DEAF).await;
    }
    assert_eq!(only(&site.run(&["credentials", "list"]).await, "revoked"), id);
    for odd in [&["credentials", "revoke", "none"][..], &["credentials", "rotate", &id]] {
        let (code, out, said) = site.attempt(odd).await;
        assert!(code == 1 && out.is_empty() && said.contains("there is no credential"), "{code} {out} {said}");
    }

    let mut database = site.database().await;
    for key in [&key, &next, &last] {
        assert!(!database.contains(key).await && !database.contains(&key[3..]).await, "a key is in the database");
        for role in ["taskstore-1", "gateway-1", "gateway-2", "runner-1"] {
            assert!(!site.role(role).log().contains(&key[3..]), "{role} has logged a key");
            let metrics = page(&site.management(role, "/metrics")).await.1;
            assert!(!metrics.contains(&key[3..]), "{role} shows a key");
        }
    }
    let mut events = database.decisions().await;
    events.retain(|event| event.contains(&id));
    let names: Vec<_> = events.iter().map(|event| event.split(' ').next().unwrap()).collect();
    assert_eq!(
        names,
        ["mcp.credential.created", "mcp.credential.rotated", "mcp.credential.rotated", "mcp.credential.revoked"]
    );
}

/// How a call of echo is refused, if it is.
async fn refused(client: &Client) -> Option<Value> {
    let answer = client.ask("tools/call", json!({"name": "echo", "arguments": {}})).await;
    let error = answer.get("error")?;
    assert_eq!(error["data"]["refused_by"], "kill_switch", "{answer}");
    Some(error["message"].clone())
}

async fn within(what: &str, bound: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < bound + MARGIN, "{what}: {:?}", begun.elapsed());
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_is_turned_by_hand_and_what_runs_is_stopped_only_when_asked() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "gateway-1", "gateway-2", "runner-1"]).await;
    let clients = [site.client("gateway-1").await, site.client("gateway-2").await];
    assert_eq!(site.run(&["switch", "status"]).await, "nothing is switched off\n");
    let task = countdown(&clients[0], 60.0).await;
    running(&clients[0], &task).await;

    let off = ["switch", "off", "--principal", "alice", "--tenant", "acme", "--why", "INC-7: it burns"];
    let said = site.run(&off).await;
    assert!(said.starts_with("switched OFF: tenant \"acme\", agent \"alice\""), "{said}");
    for client in &clients {
        within("off", PROMPT, async || refused(client).await.is_some()).await;
        assert!(refused(client).await.unwrap().as_str().unwrap().contains("INC-7: it burns"));
    }
    let status = site.run(&["switch", "status"]).await;
    assert!(status.starts_with("OFF since ") && status.contains("agent \"alice\": INC-7: it burns\n"), "{status}");
    assert_eq!(clients[1].status(&task).await, "working", "it was not asked to stop");
    let metrics = page(&site.management("gateway-1", "/metrics")).await.1;
    let line =
        |name: &str| metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
    assert!(line("longhaul_kill_switch_active{").contains("scope="));
    assert!(line("longhaul_control_age_seconds{").contains("of="));

    let mut off = off.to_vec();
    off.push("--stop-running");
    let said = site.run(&off).await;
    assert!(said.contains("was switched OFF before") && said.ends_with("1 tasks stopped in all\n"), "{said}");
    reaches(&clients[0], &task, "cancelled").await;

    let said = site.run(&["switch", "on", "--tool", "echo", "--why", "mended"]).await;
    assert!(said.contains("was not switched off") && said.contains("still OFF:\nOFF since"), "{said}");
    assert!(refused(&clients[0]).await.is_some());
    let said = site.run(&["switch", "on", "--principal", "alice", "--tenant", "acme", "--why", "mended"]).await;
    assert!(said.starts_with("switched ON: ") && !said.contains("still"), "{said}");
    for client in &clients {
        within("on", PROMPT, async || refused(client).await.is_none()).await;
    }
    for odd in [
        &["switch", "off", "--why", "which?"][..],
        &["switch", "off", "--everything"],
        &["switch", "off", "--everything", "--tool", "echo", "--why", "both?"],
        &["switch", "off", "--tool", "", "--why", "nameless"],
        &["credentials", "create", "--tenant", "", "--agent", "a"],
        &["credentials", "create", "--tenant", "t", "--agent", "a", "--expires", "soon"],
    ] {
        assert_eq!(site.attempt(odd).await.0, 64, "{odd:?}");
    }

    // While the task-store is away, what was said last holds, and a gateway says how old that is.
    site.run(&["switch", "off", "--everything", "--why", "the last word"]).await;
    for client in &clients {
        within("off", PROMPT, async || refused(client).await.is_some()).await;
    }
    site.kill("taskstore-1");
    let ready = site.management("gateway-1", "/readyz");
    within("its age is told", STALE, async || page(&ready).await.1.contains("[ ] switches: as they were ")).await;
    assert!(page(&ready).await.1.contains("[ ] credentials: as they were "));
    assert!(refused(&clients[0]).await.unwrap().as_str().unwrap().contains("the last word"));
    let (code, _, said) = site.attempt(&["switch", "status"]).await;
    assert!(code == 1 && said.contains("the task-store"), "{code} {said}");
    site.start("taskstore-1").await;
    within("it is read again", PATIENCE, async || !page(&ready).await.1.contains("as they were")).await;
    assert!(refused(&clients[1]).await.is_some());
}
