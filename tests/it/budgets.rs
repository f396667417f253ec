//! So much to spend, and no more.

use std::time::Duration;

use futures::future::join_all;
use longhaul_cli::admission::ToolConfig;
use longhaul_cli::budgets::{BudgetConfig, Scope, WindowName};
use longhaul_core::Amount;
use longhaul_tests::client::{Client, PATIENCE};
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use longhaul_worker::{Answer, Context, NoArguments, Tool};
use serde_json::{Value, json};

/// So many units a month for each tenant.
fn budget(units: u64) -> BudgetConfig {
    BudgetConfig {
        name: "tenants".into(),
        scope: Scope::Tenant,
        window: WindowName::Month,
        units: Some(units),
        usd: None,
        tenants: vec!["*".into()],
        r#match: vec!["*".into()],
    }
}

async fn start(wiring: Wiring, budgets: Vec<BudgetConfig>) -> World {
    World::start_with(wiring, |config| {
        config.mcp_task_max_open = 0;
        config.mcp_task_max_live = 0;
        config.budgets = budgets;
        config.tools.insert("hold".into(), ToolConfig { price_units: 10, ..ToolConfig::default() });
    })
    .await
}

/// Creates a task; on a busy machine a lease may take longer than a call waits for one, and then nothing was begun.
async fn create(client: &Client, tool: &str) -> Value {
    loop {
        let answer = client.ask("tools/call", json!({"name": tool, "task": {}})).await;
        if answer["error"]["message"] != "Temporarily unavailable; try again" {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The ids of the accepted ones; the others must have been refused by the budget.
fn accepted(answers: &[Value]) -> Vec<String> {
    let mut ids = Vec::new();
    for answer in answers {
        match answer["result"]["task"]["taskId"].as_str() {
            Some(id) => ids.push(id.to_owned()),
            None => {
                let error = &answer["error"];
                assert_eq!(
                    (&error["code"], &error["data"]["refused_by"]),
                    (&json!(-31429), &json!("budget")),
                    "{answer}"
                );
                assert!(error["data"]["retryAfterMs"].as_u64().is_some_and(|wait| wait > 0), "{answer}");
                assert!(error["message"].as_str().unwrap().contains("begins anew at"), "{answer}");
            }
        }
    }
    ids
}

/// Creates until it is no longer refused by the budget: what others hold unused takes a moment to come back.
async fn eventually(client: &Client, tool: &str) -> String {
    let trying = async {
        loop {
            if let Some(id) = accepted(&[create(client, tool).await]).pop() {
                return id;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, trying).await.unwrap()
}

async fn of_a_thousand_creates_at_once_a_hundred_are_paid_for(wiring: Wiring) {
    let world = start(wiring, vec![budget(100)]).await;
    let client = world.client(ALICE).await;
    let answers = join_all((0..1000).map(|_| create(&client, "echo"))).await;
    assert_eq!(accepted(&answers).len(), 100);
    let eve = world.client(EVE).await;
    assert_eq!(accepted(&[create(&eve, "echo").await]).len(), 1, "each tenant has its own");
    // A call is charged as a task is.
    let call = client.ask("tools/call", json!({"name": "echo"})).await;
    assert!(accepted(&[call]).is_empty());
    world.stop().await;
}

async fn two_gateways_together_let_no_more_pass(wiring: Wiring) {
    let world = start(wiring, vec![budget(100)]).await;
    let clients = world.clients(ALICE).await;
    let answers = join_all((0..1000).map(|at| create(&clients[at % 2], "echo"))).await;
    let mut ids = accepted(&answers);
    assert!(ids.len() <= 100 && ids.len() > 50, "{}", ids.len());
    while ids.len() < 100 {
        ids.push(eventually(&clients[0], "echo").await);
    }
    for client in &clients {
        assert!(accepted(&[create(client, "echo").await]).is_empty());
    }
    world.stop().await;
}

async fn what_is_cancelled_is_given_back_and_what_is_answered_is_not(wiring: Wiring) {
    let world = start(wiring, vec![budget(20)]).await;
    let client = world.client(ALICE).await;
    let first = eventually(&client, "hold").await;
    let second = eventually(&client, "hold").await;
    world.gate.started().await;
    world.gate.started().await;
    assert!(accepted(&[create(&client, "echo").await]).is_empty());
    client.ok("tasks/cancel", json!({"taskId": first})).await;
    let third = eventually(&client, "hold").await;
    world.gate.open();
    for id in [&second, &third] {
        client.result(id).await;
    }
    assert!(accepted(&[create(&client, "echo").await]).is_empty());
    // A call that is given up costs nothing, but there is nothing left to show it with.
    world.stop().await;
}

async fn a_tool_is_charged_what_it_says_it_spent(wiring: Wiring) {
    let money =
        BudgetConfig { name: "people".into(), scope: Scope::Principal, units: None, usd: Some(1.0), ..budget(0) };
    let world = World::start_with(wiring, |config| {
        config.budgets = vec![money];
        config.tools.insert("agent".into(), ToolConfig { price_usd: 0.6, ..ToolConfig::default() });
    })
    .await;
    let agent = Tool::new("agent", async |context: Context, _: NoArguments| {
        context.spend(Amount { units: 0, micro_usd: 100_000 }).await?;
        Ok(Answer::text("done"))
    });
    world.start_worker_with("worker-2", vec![agent]).await;
    let client = world.client(ALICE).await;
    let known = async {
        while !client.ok("tools/list", json!({})).await.to_string().contains("\"agent\"") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.unwrap();
    // Each sets 0.60 aside and uses 0.10.
    for _ in 0..5 {
        let id = eventually(&client, "agent").await;
        client.result(&id).await;
    }
    assert!(accepted(&[create(&client, "agent").await]).is_empty(), "less than 0.60 is left");
    let bob = world.client(BOB).await;
    assert_eq!(accepted(&[create(&bob, "agent").await]).len(), 1, "each caller has its own");
    world.stop().await;
}

async fn a_new_window_begins_anew(wiring: Wiring) {
    let world = start(wiring, vec![budget(3)]).await;
    let client = world.client(ALICE).await;
    assert_eq!(accepted(&join_all((0..10).map(|_| create(&client, "echo"))).await).len(), 3);
    // Gateways ask again after a moment, whatever their own clocks say.
    world.advance(Duration::from_secs(32 * 24 * 3600)).await;
    for _ in 0..3 {
        eventually(&client, "echo").await;
    }
    assert!(accepted(&[create(&client, "echo").await]).is_empty());
    world.stop().await;
}

async fn nobody_who_is_killed_makes_others_spend_more(wiring: Wiring) {
    let world = start(wiring, vec![budget(100)]).await;
    let clients = world.clients(ALICE).await;
    let mut ids = accepted(&join_all((0..20).map(|at| create(&clients[at % 2], "echo"))).await);
    assert_eq!(ids.len(), 20);
    // It takes with it what it held.
    world.crash("gateway-2").await;
    ids.extend(accepted(&join_all((0..20).map(|_| create(&clients[0], "echo"))).await));
    world.crash("store-1").await;
    if wiring == Wiring::Embedded {
        world.start_store("store-1").await;
    }
    let until_empty = async {
        let mut refused = 0;
        // What is idle comes back: it is empty only if it stays so.
        while refused < 40 {
            match client_try(&clients[0]).await {
                Some(id) => {
                    ids.push(id);
                    refused = 0;
                }
                None => {
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        ids
    };
    let ids = tokio::time::timeout(2 * PATIENCE, until_empty).await.unwrap();
    assert!(ids.len() <= 100 && ids.len() >= 50, "{}", ids.len());
    world.stop().await;
}

/// A create that may meet a task-store that has just died.
async fn client_try(client: &Client) -> Option<String> {
    let answer = client.attempt("tools/call", json!({"name": "echo", "task": {}})).await.ok()?;
    answer["result"]["task"]["taskId"].as_str().map(str::to_owned)
}

crate::both!(
    of_a_thousand_creates_at_once_a_hundred_are_paid_for,
    two_gateways_together_let_no_more_pass,
    what_is_cancelled_is_given_back_and_what_is_answered_is_not,
    a_tool_is_charged_what_it_says_it_spent,
    a_new_window_begins_anew,
    nobody_who_is_killed_makes_others_spend_more,
);
