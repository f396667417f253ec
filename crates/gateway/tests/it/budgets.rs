//! What calls are charged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use longhaul_bus::LocalBus;
use longhaul_core::{Amount, Claimed, LeaseToken, Limit, TaskSupport, ToolDef, Window, WorkerId};
use longhaul_policy::budget::{BudgetRule, BudgetRules, BudgetScope, RESERVE_MAX};
use longhaul_rpc::CallEvent;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::client::{Answer, within};
use crate::world::{World, config, form, text, tool, worker_info};

fn units(units: u64) -> Amount {
    Amount { units, micro_usd: 0 }
}

/// So many units a day for the tenant; calls of `wait` and `wait-and-see` cost ten.
async fn world(limit: u64) -> World {
    let limit = Limit { units: Some(limit), micro_usd: None };
    let rule = |name: &str, scope, limit| BudgetRule {
        name: name.into(),
        scope,
        tenants: vec!["*".into()],
        holders: vec!["*".into()],
        window: Window::Day,
        limit,
    };
    let rules = vec![
        rule("tenants", BudgetScope::Tenant, limit),
        rule("callers", BudgetScope::Principal, Limit { units: Some(1_000_000), micro_usd: Some(1_000_000) }),
    ];
    let prices = ["wait", "wait-and-see"].map(|tool| (tool.to_owned(), units(10))).into();
    World::with_budgets(config(), Arc::new(LocalBus::new()), BudgetRules { rules, prices }).await
}

impl World {
    /// What is taken once the gateways have given back what they do not use.
    async fn charged(self) -> Amount {
        for gateway in [&self.a, &self.b] {
            gateway.drain.cancel();
            within("the end", gateway.over.cancelled()).await;
        }
        let taken = self.store.taken.lock().unwrap();
        let mut all = taken.iter();
        let callers = all.next().map(|(key, taken)| (key.budget.clone(), *taken));
        let tenants = all.next().map(|(key, taken)| (key.budget.clone(), *taken));
        assert!(all.next().is_none(), "{taken:?}");
        let (Some((first, callers)), Some((second, tenants))) = (callers, tenants) else { return Amount::ZERO };
        assert_eq!((&*first, &*second), ("callers", "tenants"));
        assert_eq!(callers, tenants, "each call is charged to all its budgets");
        tenants
    }
}

fn refused(answer: &Answer) -> Value {
    let answer = answer.json();
    assert_eq!((&answer["error"]["code"], &answer["error"]["data"]["refused_by"]), (&json!(-31429), &json!("budget")));
    answer["error"].clone()
}

#[tokio::test]
async fn as_many_calls_pass_as_are_paid_for_and_the_others_hear_when_to_come_back() {
    let world = world(40).await;
    let client = world.alice().await.accepting("application/json");
    let calls = (0..200).map(|_| client.call("tools/call", json!({"name": "echo"})));
    let answers = within("the calls", join_all(calls)).await;
    let (passed, others): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.json()["error"].is_null());
    assert_eq!(passed.len(), 40);
    for answer in others {
        let error = refused(answer);
        let wait = error["data"]["retryAfterMs"].as_u64().unwrap();
        assert!(wait > 0 && wait <= 24 * 3600 * 1000, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(
                "Your organisation's budget for this day is used up: it begins anew at 2025-12-01T00:00:00Z (in "
            ),
            "{message}"
        );
    }
    // Whatever else there is costs nothing.
    client.ok("tools/list", json!({})).await;
    assert_eq!(world.charged().await, units(40));
}

#[tokio::test]
async fn two_gateways_together_let_no_more_pass_and_all_once_nobody_holds_what_it_does_not_use() {
    let world = world(60).await;
    let one = world.alice().await.accepting("application/json");
    let other = one.at(world.b.at);
    let call = json!({"name": "echo"});
    let calls = (0..100).map(|at| if at % 2 == 0 { &one } else { &other }.call("tools/call", call.clone()));
    let answers = within("the calls", join_all(calls)).await;
    let mut passed = answers.iter().filter(|answer| answer.json()["error"].is_null()).count();
    assert!(passed <= 60 && passed > 20, "{passed}");
    // What the other one gives back when it is idle comes here.
    within("the rest", async {
        while passed < 60 {
            if one.call("tools/call", call.clone()).await.json()["error"].is_null() {
                passed += 1;
            } else {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    })
    .await;
    refused(&other.call("tools/call", call.clone()).await);
    assert_eq!(world.charged().await, units(60));
}

#[tokio::test]
async fn a_call_is_charged_what_it_used_and_nothing_if_it_did_not_come_to_an_end() {
    let spent = |units, micro_usd| CallEvent::Spent(Amount { units, micro_usd });
    for (what, charge) in [
        ("answered", units(10)),
        ("spent less", Amount { units: 3, micro_usd: 5 }),
        ("spent more", Amount { units: 25, micro_usd: 0 }),
        ("cancelled", Amount::ZERO),
        ("cancelled after it spent", units(4)),
    ] {
        let world = world(1000).await;
        let client = world.alice().await;
        let asking = client.stream(json!(7), "tools/call", json!({"name": "wait", "_meta": {"progressToken": 1}}));
        let (mut stream, run) = tokio::join!(asking, async {
            let run = world.worker.run().await;
            run.progress(1.0);
            run
        });
        match what {
            "spent less" => {
                run.say.send(Ok(spent(1, 5))).unwrap();
                run.say.send(Ok(spent(3, 5))).unwrap();
            }
            "spent more" => run.say.send(Ok(spent(25, 0))).unwrap(),
            "cancelled after it spent" => run.say.send(Ok(spent(4, 0))).unwrap(),
            _ => {}
        }
        assert_eq!(stream.event().await.unwrap().data.as_deref(), Some(""));
        // What was said before is heard by then.
        run.progress(2.0);
        while stream.message().await["params"]["progress"].as_f64() != Some(2.0) {}
        if what.starts_with("cancelled") {
            client.notify("notifications/cancelled", json!({"requestId": 7})).await;
            within("the stop", run.say.closed()).await;
        } else {
            run.end(text("done"));
            while stream.message().await["result"].is_null() {}
        }
        assert_eq!(world.charged().await, charge, "{what}");
    }
}

#[tokio::test]
async fn a_task_takes_what_was_set_aside_with_it_and_a_refused_one_gives_it_back() {
    let world = world(1000).await;
    let client = world.alice().await;
    let create = || client.call("tools/call", json!({"name": "echo", "task": {}}));
    assert!(create().await.json()["result"]["task"]["taskId"].is_string());
    let reserved = world.store.created.lock().unwrap()[0].reserved.clone().unwrap();
    assert_eq!(reserved.amount, units(1));
    let names: Vec<_> = reserved.from.iter().map(|window| (&*window.key.budget, &*window.key.holder)).collect();
    assert_eq!(names, [("tenants", ""), ("callers", "agent:5:alice")]);
    // A day begins when the calendar's does, by the task-store's clock.
    assert_eq!(reserved.from[0].starts_at.as_micros() % 86_400_000_000, 0);
    world.store.open_max.store(1, Ordering::SeqCst);
    assert_eq!(create().await.json()["error"]["data"]["refused_by"], "task_limit");
    world.store.open_max.store(usize::MAX, Ordering::SeqCst);
    world.store.full.store(true, Ordering::SeqCst);
    // The slice is there already, so that only the create fails.
    assert_eq!(create().await.status(), 503);
    world.store.full.store(false, Ordering::SeqCst);
    // One that may have been stored keeps what was set aside for it.
    let hold = Arc::new(Notify::new());
    *world.store.hold_creates.lock().unwrap() = Some(hold.clone());
    let (unknown, ()) = tokio::join!(create(), async {
        world.store.down.store(true, Ordering::SeqCst);
        hold.notify_one();
    });
    assert!(!unknown.json()["error"].is_null());
    world.store.down.store(false, Ordering::SeqCst);
    *world.store.hold_creates.lock().unwrap() = None;
    // The task-store settles tasks; this one does not.
    assert_eq!(world.charged().await, units(2));
}

#[tokio::test]
async fn a_call_that_asks_is_charged_once_for_the_request_that_gets_the_answer() {
    let world = world(1000).await;
    let client = world.modern().declaring("elicitation", json!({"form": {}}));
    let mut params = json!({"name": "wait", "arguments": {}});
    let json_only = client.accepting("application/json");
    let (asked, ()) = tokio::join!(json_only.call("tools/call", params.clone()), async {
        world.worker.run().await.ask("run-1", 1, &[("colour", form("colour"))]);
    });
    params["requestState"] = asked.json()["result"]["requestState"].clone();
    params["inputResponses"] = json!({"colour": {"action": "accept", "content": {"colour": "blue"}}});
    let (answered, ()) = tokio::join!(json_only.call("tools/call", params), async {
        world.worker.run().await.end(text("done"));
    });
    assert_eq!(answered.json()["result"]["content"][0]["text"], "done");
    assert_eq!(world.charged().await, units(10));
}

#[tokio::test]
async fn a_call_that_becomes_a_task_takes_what_was_set_aside_with_it() {
    let world = world(1000).await;
    let decides = ToolDef { decides: true, ..tool("wait-and-see", TaskSupport::Optional) };
    world.store.offer(vec![worker_info("w", Some("memory://w"), vec![decides])]);
    let client = world.modern().with_tasks();
    within("the offer", async {
        while !client.ok("tools/list", json!({})).await.to_string().contains("wait-and-see") {}
    })
    .await;
    let json_only = client.accepting("application/json");
    let call = json!({"name": "wait-and-see", "arguments": {}});
    let (answer, ()) = tokio::join!(json_only.call("tools/call", call), async {
        let run = world.worker.run().await;
        let worker = WorkerId { name: "w".into(), incarnation: "1".into() };
        let claimed = Claimed { worker, token: LeaseToken("t".into()) };
        run.say.send(Ok(CallEvent::Becoming { run: "run-1".into(), claimed })).unwrap();
    });
    assert_eq!(answer.json()["result"]["resultType"], "task", "{}", answer.json());
    let reserved = world.store.created.lock().unwrap()[0].reserved.clone().unwrap();
    assert_eq!(reserved.amount, units(10));
    assert_eq!(world.charged().await, units(10));
}

#[tokio::test]
async fn without_a_task_store_a_gateway_goes_on_with_what_it_has_and_then_lets_nothing_pass() {
    let world = world(10_000).await;
    let client = world.alice().await;
    let call = || client.call("tools/call", json!({"name": "echo"}));
    assert!(call().await.json()["error"].is_null());
    world.store.down.store(true, Ordering::SeqCst);
    let mut passed = 0;
    let begun = std::time::Instant::now();
    let last = loop {
        let answer = call().await;
        if answer.status() != 200 {
            break answer;
        }
        passed += 1;
    };
    assert!(passed > 5, "{passed}");
    assert_eq!(last.status(), 503);
    assert!(begun.elapsed() < 2 * RESERVE_MAX + Duration::from_secs(2));
    world.store.down.store(false, Ordering::SeqCst);
    assert!(call().await.json()["error"].is_null());
    assert_eq!(world.charged().await, units(passed + 2));
}

#[tokio::test]
async fn a_call_that_is_never_paid_for_does_not_wait() {
    let world = world(9).await;
    let client = world.alice().await;
    let error = refused(&client.call("tools/call", json!({"name": "wait"})).await);
    assert_eq!(error["data"]["retryAfterMs"], Value::Null);
    assert!(error["message"].as_str().unwrap().contains("never enough"), "{error}");
    assert_eq!(world.charged().await, Amount::ZERO);
}
