//! The audit log: proved, exported, and touched.

use std::collections::BTreeMap;
use std::time::Instant;

use longhaul_tests::client::{Client, PATIENCE};
use longhaul_tests::database::Database;
use longhaul_tests::modern::Modern;
use longhaul_tests::processes::{Process, Redis, Site, binary, free_address};
use longhaul_tests::services;
use longhaul_tests::world::ALICE;
use serde_json::{Value, json};

use crate::answers::{heard, monitor};
use crate::{LOOK, page, reaches};

const CANARY: &str = "canary-77e0a4";

/// Waits until there are so many rows of an event, and all is sealed.
async fn sealed(database: &mut Database, event: &str, rows: i64) {
    let begun = Instant::now();
    let of = format!("SELECT count(*) FROM audit WHERE event = '{event}'");
    while database.number(&of).await < rows || database.number("SELECT count(*) FROM audit_inbox").await > 0 {
        assert!(begun.elapsed() < PATIENCE, "{} of {rows} rows", database.number(&of).await);
        tokio::time::sleep(LOOK).await;
    }
}

fn lines(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Panics unless the log is proved; gives what was said.
async fn proved(site: &mut Site, more: &[&str]) -> String {
    let (code, said, log) = site.attempt(&[&["audit", "verify"], more].concat()).await;
    assert_eq!(code, 0, "{said}{log}");
    said
}

/// Panics unless the log is said to be broken, there.
async fn broken(site: &mut Site, more: &[&str], place: &str) -> String {
    let (code, said, log) = site.attempt(&[&["audit", "verify"], more].concat()).await;
    assert_eq!(code, 1, "{said}{log}");
    assert!(log.contains(&format!("the audit log is broken: {place}")), "{said}{log}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_proved_and_exported_and_the_first_row_that_was_touched_is_named() {
    let url = services::empty_database().await;
    let mut site = Site::new(&url, None).await;
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = client.create("echo", json!({"text": "hello"})).await;
        client.result(&id).await;
        ids.push(id);
    }
    let mut database = Database::connect(&url).await;
    // More than two pages.
    let many = "INSERT INTO audit_inbox (at, event, tenant, owner)
        SELECT longhaul_now(), 'mcp.call.refused', 'many', 'person:1:a:1:p' FROM generate_series(1, 1200)";
    database.execute(many).await;
    sealed(&mut database, "mcp.task.retrieved", 3).await;

    let said = proved(&mut site, &[]).await;
    assert!(said.contains("tenant \"acme\": rows 1 to 9 are as they were sealed"), "{said}");
    assert!(said.contains("tenant \"many\": rows 1 to 1200 are"), "{said}");
    let said = proved(&mut site, &["--tenant", "nobody"]).await;
    assert_eq!(said, "tenant \"nobody\": nothing was sealed yet\n");

    let exported = lines(&site.run(&["audit", "export", "--tenant", "acme"]).await);
    let mut events: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in &exported {
        assert_eq!((&line["tenant"], &line["agent"], &line["tool"]), (&json!("acme"), &json!("alice"), &json!("echo")));
        events.entry(line["task"].as_str().unwrap()).or_default().push(line["event"].as_str().unwrap());
    }
    let life = ["mcp.task.created", "mcp.task.completed", "mcp.task.retrieved"];
    assert_eq!(events, ids.iter().map(|id| (&**id, life.to_vec())).collect());
    let names: Vec<_> = exported[0].as_object().unwrap().keys().map(String::as_str).collect();
    let known = [
        "time", "event", "tenant", "agent", "tool", "task", "version", "trace_id", "times", "id", "seq", "sealed",
        "prev", "hash",
    ];
    assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
    assert_eq!(exported[0]["prev"], "0".repeat(64));
    assert!(exported.windows(2).all(|two| two[0]["hash"] == two[1]["prev"]), "each line names the one before it");

    let everything = lines(&site.run(&["audit", "export"]).await);
    assert_eq!(everything.len(), 1209);
    let many: Vec<_> = everything.iter().filter(|line| line["tenant"] == "many").collect();
    assert_eq!(
        (&many[1199]["app"], &many[1199]["person"], &many[1199]["seq"]),
        (&json!("a"), &json!("p"), &json!(1200))
    );
    // A part of it.
    let from = many[700]["sealed"].as_str().unwrap().to_owned();
    let said = proved(&mut site, &["--tenant", "many", "--since", &from]).await;
    assert!(said.contains(" to 1200 are") && !said.contains("rows 1 to"), "{said}");
    let noted = format!("1200:{}", many[1199]["hash"].as_str().unwrap());
    proved(&mut site, &["--tenant", "many", "--noted", &noted]).await;
    for (nothing, when) in [("--since", "2999-01-01"), ("--until", "2000-01-01T00:00:00+02:00")] {
        assert_eq!(site.run(&["audit", "export", nothing, when]).await, "");
        assert!(proved(&mut site, &[nothing, when]).await.contains("no rows of that time"));
    }
    assert_eq!(site.attempt(&["audit", "verify", "--since", "yesterday"]).await.0, 64);

    // A row more, just where a page ends.
    let rest = "tenant, seq, hash, id, at, event, task_id, version, owner, tool, reason, subject, trace_id, times";
    let more = format!(
        "INSERT INTO audit_log (sealed_at, {rest})
         SELECT sealed_at + 1, {rest} FROM audit_log WHERE tenant = 'many' AND seq = 500"
    );
    database.execute(&more).await;
    broken(&mut site, &[], "tenant \"many\": row 500 is there, but does not belong there").await;
    let less =
        "DELETE FROM audit_log a USING audit_log b WHERE a.tenant = 'many' AND a.tenant = b.tenant AND a.seq = b.seq
        AND a.sealed_at > b.sealed_at";
    database.execute(less).await;
    proved(&mut site, &[]).await;

    database.execute("UPDATE audit_log SET owner = 'agent:3:bob' WHERE tenant = 'acme' AND seq = 4").await;
    let said = broken(&mut site, &[], "tenant \"acme\": row 4 is not what was sealed").await;
    assert!(said.contains("tenant \"many\": rows 1 to 1200 are"), "the others are still proved: {said}");
    database.execute("UPDATE audit_log SET owner = 'agent:5:alice' WHERE tenant = 'acme' AND seq = 4").await;
    proved(&mut site, &[]).await;

    // Who can write everything can cut a chain so that it looks whole; not for those who have noted a later row.
    let cut = "UPDATE audit_heads h SET seq = l.seq, hash = l.hash FROM audit_log l
        WHERE h.tenant = 'many' AND l.tenant = 'many' AND l.seq = 1000";
    database.execute(cut).await;
    database.execute("DELETE FROM audit_log WHERE tenant = 'many' AND seq > 1000").await;
    proved(&mut site, &["--tenant", "many"]).await;
    broken(&mut site, &["--tenant", "many", "--noted", &noted], "tenant \"many\": row 1001 is missing").await;
    let other = format!("7:{}", "0".repeat(64));
    broken(&mut site, &["--tenant", "many", "--noted", &other], "tenant \"many\": row 7 is not the one").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_a_laptop_is_read_from_its_folder_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let (listen, data) = (address.to_string(), folder.path().join("data").display().to_string());
    let arguments = ["dev", "--listen", &listen, "--data", &data];
    let mut dev = Process::start("dev", &binary(), &arguments, &[], folder.path());
    let begun = Instant::now();
    while !dev.output().contains("By hand") {
        assert!(dev.ended().is_none() && begun.elapsed() < PATIENCE, "{}", dev.log());
        tokio::time::sleep(LOOK).await;
    }
    let client = Client::connect(&format!("http://{address}/mcp"), None).await;
    let id = client.create("echo", json!({"text": "hello"})).await;
    reaches(&client, &id, "completed").await;
    client.result(&id).await;

    let mut site = Site::new("postgres://nobody@127.0.0.1:1/none", None).await;
    let begun = Instant::now();
    let exported = loop {
        let exported = lines(&site.run(&["audit", "export", "--data", &data]).await);
        if exported.len() == 3 {
            break exported;
        }
        assert!(begun.elapsed() < PATIENCE, "{exported:?}");
        tokio::time::sleep(LOOK).await;
    };
    assert!(exported.iter().all(|line| line["task"] == *id && line["agent"] == "dev"), "{exported:?}");
    dev.kill();
    assert!(proved(&mut site, &["--data", &data]).await.contains("tenant \"dev\": rows 1 to 3 are"));
    let nowhere = folder.path().join("nowhere").display().to_string();
    let (code, _, log) = site.attempt(&["audit", "verify", "--data", &nowhere]).await;
    assert!(code == 64 && log.contains("longhaul.db"), "{log}");
    assert!(!folder.path().join("nowhere").exists(), "it has touched nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_sink_has_an_argument_a_result_an_answer_or_a_token() {
    let redis = Redis::started().await;
    let url = services::empty_database().await;
    let mut site = Site::new(&url, Some(&redis.url())).await;
    site.set(
        "LOG",
        "trace,h2=info,hyper=info,hyper_util=info,tower=info,tonic=info,rustls=info,sqlx=info,redis=info,mio=info",
    );
    site.set("MCP_TASK_MAX_OPEN", "1");
    let roles = ["taskstore-1", "taskstore-2", "runner-1", "gateway-1"];
    site.up(&roles).await;
    let gateway = site.url("gateway-1");
    let told = monitor(&redis);
    // Argument and result, by both ways out; an answer; a refusal.
    let (new, old) = (Modern::new(&gateway, Some(ALICE)), Client::connect(&gateway, Some(ALICE)).await);
    let id = old.create("echo", json!({"text": CANARY})).await;
    assert!(old.result(&id).await.to_string().contains(CANARY));
    assert!(new.task(&id).await.to_string().contains(CANARY));
    let id = old.create("fail", json!({"message": CANARY})).await;
    assert!(old.ask("tasks/result", json!({"taskId": id})).await.to_string().contains(CANARY));
    let id = new.create("ask", json!({"question": CANARY})).await;
    let asked = new.until(&id, "input_required").await;
    let refused = old.error("tools/call", json!({"name": "echo", "arguments": {"text": CANARY}, "task": {}})).await;
    assert_eq!(refused["data"]["refused_by"], "task_limit");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answers = json!({key: {"action": "accept", "content": {"answer": CANARY}}});
    new.ok("tasks/update", json!({"taskId": id, "inputResponses": answers})).await;
    new.until(&id, "completed").await;

    let mut database = Database::connect(&url).await;
    sealed(&mut database, "mcp.task.retrieved", 3).await;
    sealed(&mut database, "mcp.call.refused", 1).await;
    let exported = site.run(&["audit", "export"]).await;
    let refusal = lines(&exported).into_iter().find(|line| line["event"] == "mcp.call.refused").unwrap();
    let told_of = ["agent", "tool", "reason", "times"].map(|name| refusal[name].clone());
    assert_eq!(told_of, [json!("alice"), json!("echo"), json!("task_limit"), json!(1)]);
    let (verified, told) = (proved(&mut site, &[]).await, heard(told));
    assert!(told.contains("longhaul"), "nothing was heard of Redis");
    for secret in [CANARY, ALICE] {
        assert!(!exported.contains(secret) && !verified.contains(secret), "{exported}");
        assert!(!told.contains(secret), "{told}");
        for table in ["audit_log", "audit_inbox", "audit_heads", "audit_batches", "retrievals"] {
            let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
            let rows =
                format!("SELECT count(*) FROM {table} t WHERE t::text LIKE '%{secret}%' OR t::text LIKE '%{hex}%'");
            assert_eq!(database.number(&rows).await, 0, "{table}");
        }
        for role in roles {
            let (_, metrics) = page(&site.management(role, "/metrics")).await;
            assert!(metrics.contains("longhaul") && !metrics.contains(secret), "{role}: {metrics}");
            let process = site.role(role);
            let log = process.log() + &process.output();
            assert!(log.len() > 1000 && !log.contains(secret), "{role}: {log}");
        }
    }
    assert!(!database.contains(ALICE).await, "a token is in no table");
    assert!(database.contains(CANARY).await, "tables are really looked at: arguments are kept with their task");
}
