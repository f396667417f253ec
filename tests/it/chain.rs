//! The admission chain: whoever calls, and whatever becomes of the call, it passes the same checks.

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use longhaul_cli::admission::{OnFailure, ToolConfig, WebhookConfig};
use longhaul_tests::client::{Client, Miss, PATIENCE};
use longhaul_tests::modern::Modern;
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use serde_json::{Value, json};

const ALL: &str = "permit (principal, action, resource);";
const CARD: &str = "4111 1111 1111 1111";

/// The files that a system has its rules from.
struct Rules(tempfile::TempDir);

impl Rules {
    fn new(policies: &str, data: &str) -> Self {
        let rules = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(rules.policies()).unwrap();
        rules.write_policies(policies);
        rules.write_data(data);
        rules
    }

    fn policies(&self) -> std::path::PathBuf {
        self.0.path().join("policies")
    }

    fn data(&self) -> std::path::PathBuf {
        self.0.path().join("data.toml")
    }

    fn write_policies(&self, text: &str) {
        self.put(&self.policies().join("rules.cedar"), text);
    }

    fn write_data(&self, text: &str) {
        self.put(&self.data(), text);
    }

    /// Replaces a file in one go: somebody may be reading it.
    fn put(&self, file: &Path, text: &str) {
        let new = self.0.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, file).unwrap();
    }
}

fn data(action: &str, on: &str) -> String {
    format!("[[policies]]\nname = \"cards\"\non = [\"{on}\"]\ndetect = [\"card\"]\naction = \"{action}\"\n")
}

/// What a refusal says in its `data`.
fn refused_by(error: &Value) -> (i64, &str) {
    (error["code"].as_i64().unwrap(), error["data"]["refused_by"].as_str().unwrap_or("nobody"))
}

/// What a call hears, in both eras, as an answer and as a task.
async fn refusals(client: &Client, modern: &Modern, tool: &str, arguments: Value) -> Vec<Value> {
    let call = json!({"name": tool, "arguments": arguments});
    let task = json!({"name": tool, "arguments": arguments, "task": {}});
    let (status, plain) = modern.plain().error("tools/call", call.clone()).await;
    let (other, either) = modern.error("tools/call", call.clone()).await;
    assert_eq!((status, other), (200, 200));
    vec![client.error("tools/call", call).await, client.error("tools/call", task).await, plain, either]
}

async fn each_check_refuses_calls_and_tasks_in_both_eras_and_the_first_of_them_counts(wiring: Wiring) {
    let rules = Rules::new(
        &format!(r#"{ALL} forbid (principal, action, resource is Tool) when {{ resource.tags.contains("money") }};"#),
        &data("block", "arguments"),
    );
    let world = World::start_with(wiring, |config| {
        config.policy_dir = Some(rules.policies());
        config.data_policies_file = Some(rules.data());
        config.tools.insert("mirror".into(), ToolConfig { tags: vec!["money".into()], ..ToolConfig::default() });
        config.guardrails.deny_patterns = vec!["drop table".into()];
        config.rate_limits.per_tool.insert("blob".into(), "2/d".parse().unwrap());
    })
    .await;
    let (client, modern) = (world.client(ALICE).await, Modern::new(&world.urls[0], Some(ALICE)));
    // The rate's own calls are used up.
    let mut left = 0;
    for client in world.clients(BOB).await {
        while client.ask("tools/call", json!({"name": "blob", "arguments": {"bytes": 1}})).await.get("result").is_some()
        {
            left += 1;
        }
    }
    assert_eq!(left, 2);

    for (tool, text, expected) in [
        ("blob", "drop table", (-31429, "rate_limit")),
        ("mirror", &format!("{CARD} drop table"), (-31403, "policy")),
        ("echo", &format!("{CARD} drop table"), (-31403, "data_policy")),
        ("echo", "drop table", (-31403, "guardrail")),
    ] {
        for error in refusals(&client, &modern, tool, json!({"text": text})).await {
            assert_eq!(refused_by(&error), expected, "{error}");
            let wait = error["data"]["retryAfterMs"].as_u64();
            assert_eq!(wait.is_some(), expected.1 == "rate_limit", "{error}");
            // Neither the rule nor what it found.
            for content in ["money", "4111", "card", "drop"] {
                assert!(!error["message"].as_str().unwrap().contains(content), "{error}");
            }
        }
    }
    // What nobody has anything against passes; and none of the above became a task.
    client.ok("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await;
    assert_eq!(client.ok("tasks/list", json!({})).await["tasks"], json!([]));
    world.stop().await;
}

async fn what_is_redacted_never_reaches_the_tool(wiring: Wiring) {
    let rules = Rules::new(ALL, &data("redact", "arguments"));
    let world = World::start_with(wiring, |config| config.data_policies_file = Some(rules.data())).await;
    let client = world.client(ALICE).await;
    let arguments = json!({"text": format!("pay with {CARD}"), "n": 1});
    let expected = json!({"text": "pay with [redacted:card]", "n": 1});
    let answer = client.ok("tools/call", json!({"name": "echo", "arguments": arguments})).await;
    assert_eq!(answer["structuredContent"], expected);
    let task = client.create("echo", arguments).await;
    assert_eq!(client.result(&task).await["result"]["structuredContent"], expected);
    assert!(!world.database().await.contains(CARD).await);
    world.stop().await;
}

/// Asks again until something is so: rules are looked at every other second.
async fn until<T>(what: &str, asks: impl AsyncFn() -> Option<T>) -> T {
    let reached = async {
        loop {
            match asks().await {
                Some(reached) => return reached,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("never: {what}"))
}

async fn a_task_is_told_as_data_policies_say_now(wiring: Wiring) {
    let rules = Rules::new(ALL, "");
    let world = World::start_with(wiring, |config| config.data_policies_file = Some(rules.data())).await;
    let client = world.client(ALICE).await;
    let modern = Modern::new(&world.urls[0], Some(ALICE));
    let arguments = json!({"text": CARD});
    let task = client.create("echo", arguments.clone()).await;
    assert_eq!(client.result(&task).await["result"]["structuredContent"], arguments);
    let shown = modern.until(&task, "completed").await;
    assert_eq!(shown["result"]["structuredContent"], arguments);

    rules.write_data(&data("redact", "results"));
    let shown = until("redacted", async || {
        let shown = modern.task(&task).await;
        (shown["result"]["structuredContent"]["text"] == "[redacted:card]").then_some(shown)
    })
    .await;
    assert!(!shown.to_string().contains("4111"), "{shown}");
    assert_eq!(client.result(&task).await["result"]["structuredContent"]["text"], "[redacted:card]");

    rules.write_data(&data("block", "results"));
    let shown = until("withheld", async || {
        let shown = modern.task(&task).await;
        (shown["result"]["isError"] == true).then_some(shown)
    })
    .await;
    assert_eq!(shown["status"], "completed");
    assert_eq!(shown["result"]["_meta"]["longhaul/withheld"]["refused_by"], "data_policy");
    assert!(!shown.to_string().contains("redacted"), "{shown}");
    assert_eq!(refused_by(&client.result(&task).await["error"]), (-31403, "data_policy"));
    assert_eq!(client.status(&task).await, "completed");
    let call = json!({"name": "echo", "arguments": arguments});
    assert_eq!(refused_by(&client.error("tools/call", call.clone()).await), (-31403, "data_policy"));
    assert_eq!(refused_by(&modern.plain().error("tools/call", call).await.1), (-31403, "data_policy"));

    // An error of a tool is output too, and so is what the task says of it.
    let failing = client.create("fail", json!({"message": CARD, "code": -32001})).await;
    assert_eq!(refused_by(&client.result(&failing).await["error"]), (-31403, "data_policy"));
    for look in [modern.until(&failing, "failed").await, client.ok("tasks/get", json!({"taskId": failing})).await] {
        assert!(!look.to_string().contains("4111"), "{look}");
        assert_eq!(look["status"], "failed");
    }
    assert!(!client.ok("tasks/list", json!({})).await.to_string().contains("4111"));
    world.stop().await;
}

async fn who_may_no_longer_call_a_tool_cannot_answer_for_it_but_sees_and_cancels_its_task(wiring: Wiring) {
    let rules = Rules::new(ALL, "");
    let world = World::start_with(wiring, |config| config.policy_dir = Some(rules.policies())).await;
    let modern = Modern::new(&world.urls[0], Some(ALICE));
    let task = modern.create("ask-many", json!({})).await;
    let asking = modern.until(&task, "input_required").await;
    let answers: serde_json::Map<_, _> = asking["inputRequests"]
        .as_object()
        .unwrap()
        .keys()
        .map(|key| (key.clone(), json!({"action": "accept", "content": {"text": "x"}})))
        .collect();
    assert_eq!(answers.len(), 2);

    // A set of rules that makes no sense changes nothing, the next one does.
    rules.write_policies("forbid (");
    rules.write_policies(&format!(r#"{ALL} forbid (principal, action, resource == Tool::"ask-many");"#));
    until("forbidden", async || {
        let (_, answer) = modern.exchange("tasks/update", json!({"taskId": task, "inputResponses": {}})).await;
        answer.get("error").is_some().then_some(())
    })
    .await;
    let (status, error) = modern.error("tasks/update", json!({"taskId": task, "inputResponses": answers})).await;
    assert_eq!((status, refused_by(&error)), (200, (-31403, "policy")));
    let client = world.client(ALICE).await;
    let answer = json!({"action": "accept", "content": {"text": "x"}});
    assert_eq!(client.answer(&json!(format!("tiq-task-{task}-1")), answer).await, 400);
    assert_eq!(modern.task(&task).await["status"], "input_required");
    modern.ok("tasks/cancel", json!({"taskId": task})).await;
    assert_eq!(modern.task(&task).await["status"], "cancelled");
    world.stop().await;
}

async fn a_call_that_needs_no_task_is_answered_where_tasks_are_forbidden(wiring: Wiring) {
    let rules = Rules::new(&format!(r#"{ALL} forbid (principal, action == Action::"create_task", resource);"#), "");
    let world = World::start_with(wiring, |config| config.policy_dir = Some(rules.policies())).await;
    let (client, modern) = (world.client(ALICE).await, Modern::new(&world.urls[0], Some(ALICE)));
    let answer = modern.ok("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await;
    assert_eq!((&answer["resultType"], &answer["structuredContent"]), (&json!("complete"), &json!({"text": "x"})));
    let error = client.error("tools/call", json!({"name": "echo", "arguments": {}, "task": {}})).await;
    assert_eq!(refused_by(&error), (-31403, "policy"));
    let (_, error) = modern.error("tools/call", json!({"name": "task-only", "arguments": {}})).await;
    assert_eq!(refused_by(&error), (-31403, "policy"));
    world.stop().await;
}

async fn a_call_that_a_guardrail_cannot_judge_is_told_to_come_again(wiring: Wiring) {
    let nobody = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
    let world = World::start_with(wiring, |config| {
        config.guardrails.webhook = Some(WebhookConfig {
            url: format!("http://{nobody}/"),
            token: None,
            token_file: None,
            deadline_ms: 1000,
            on_failure: OnFailure::Closed,
            max_concurrent: 1,
        });
    })
    .await;
    let client = world.client(ALICE).await;
    for params in [json!({"name": "echo", "arguments": {}}), json!({"name": "echo", "arguments": {}, "task": {}})] {
        match client.attempt("tools/call", params).await.unwrap_err() {
            Miss::Refused { status, retry_after } => assert!(status == 503 && retry_after.is_some()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(client.ok("tasks/list", json!({})).await["tasks"], json!([]));
    world.stop().await;
}

/// Calls at both gateways until each says to come back much later; how many calls passed.
async fn passed(clients: &[Client], params: &Value) -> usize {
    let calls = clients.iter().flat_map(|client| [client; 4]).map(|client| async move {
        let mut passed = 0;
        loop {
            let answer = client.ask("tools/call", params.clone()).await;
            if answer.get("result").is_some() {
                passed += 1;
                continue;
            }
            assert_eq!(refused_by(&answer["error"]), (-31429, "rate_limit"), "{answer}");
            let wait = Duration::from_millis(answer["error"]["data"]["retryAfterMs"].as_u64().unwrap());
            if wait > Duration::from_secs(10) {
                return passed;
            }
            tokio::time::sleep(wait).await;
        }
    });
    tokio::time::timeout(PATIENCE, join_all(calls)).await.unwrap().into_iter().sum()
}

async fn two_gateways_keep_one_limit(wiring: Wiring) {
    let world = World::start_with(wiring, |config| {
        config.rate_limits.per_principal = Some("40/d".parse().unwrap());
        config.rate_limits.creates_per_tenant = Some("10/d".parse().unwrap());
    })
    .await;
    let (alice, bob) = (world.clients(ALICE).await, world.clients(BOB).await);
    assert_eq!(passed(&bob, &json!({"name": "echo", "arguments": {}, "task": {}})).await, 10);
    // The tenant's tasks are used up, and the caller's calls are not.
    assert_eq!(passed(&alice, &json!({"name": "echo", "arguments": {}, "task": {}})).await, 0);
    assert_eq!(passed(&alice, &json!({"name": "echo", "arguments": {}})).await, 40);
    world.stop().await;
}

async fn a_task_that_is_polled_too_often_says_when_to_come_back(wiring: Wiring) {
    let world =
        World::start_with(wiring, |config| config.rate_limits.polls_per_task = Some("4/d".parse().unwrap())).await;
    let client = world.client(ALICE).await;
    let (one, other) = (client.create("hold", json!({})).await, client.create("hold", json!({})).await);
    let polls = async |id: &str| {
        let mut polls = 0;
        loop {
            let answer = client.ask("tasks/get", json!({"taskId": id})).await;
            if let Some(error) = answer.get("error") {
                assert_eq!(refused_by(error), (-31429, "rate_limit"));
                assert!(error["data"]["retryAfterMs"].as_u64().unwrap() > 1000);
                return polls;
            }
            polls += 1;
        }
    };
    // Where replicas share nothing of this, each has half.
    assert_eq!(polls(&one).await, if wiring == Wiring::Embedded { 4 } else { 2 });
    assert_ne!(polls(&other).await, 0);
    client.ok("tasks/cancel", json!({"taskId": one})).await;
    world.stop().await;
}

crate::both!(
    each_check_refuses_calls_and_tasks_in_both_eras_and_the_first_of_them_counts,
    what_is_redacted_never_reaches_the_tool,
    a_task_is_told_as_data_policies_say_now,
    who_may_no_longer_call_a_tool_cannot_answer_for_it_but_sees_and_cancels_its_task,
    a_call_that_needs_no_task_is_answered_where_tasks_are_forbidden,
    a_call_that_a_guardrail_cannot_judge_is_told_to_come_again,
    two_gateways_keep_one_limit,
    a_task_that_is_polled_too_often_says_when_to_come_back,
);
