//! A task is cancelled.

use std::time::Duration;

use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::json;

const ROUNDS: u64 = 50;

async fn cancelling_stops_the_work_and_is_the_end(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let id = one.create("hold", json!({})).await;
    world.gate.started().await;
    let mut waiting = one.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(waiting.next_data().await.as_deref(), Some(""));
    let cancelled = other.ok("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(cancelled, one.ok("tasks/get", json!({"taskId": id})).await);
    assert_eq!(world.gate.stopped().await, id, "the work was told to stop");
    assert_eq!(waiting.next().await.unwrap()["error"]["code"], -31499);
    for client in [&one, &other] {
        let error = client.error("tasks/cancel", json!({"taskId": id})).await;
        assert_eq!(error, json!({"code": -32602, "message": "Cannot cancel task: already cancelled"}));
    }
    world.gate.open();
    assert_eq!(cancelled, other.ok("tasks/get", json!({"taskId": id})).await, "it never changes again");
    world.stop().await;
}

async fn a_task_that_has_ended_cannot_be_cancelled(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    for (tool, arguments, word) in [
        ("echo", json!({}), "completed"),
        ("fail", json!({}), "failed"),
        ("fail", json!({"code": -32000}), "failed"),
        ("panic", json!({}), "failed"),
    ] {
        let id = client.create(tool, arguments).await;
        client.result(&id).await;
        let error = client.error("tasks/cancel", json!({"taskId": id})).await;
        assert_eq!(error, json!({"code": -32602, "message": format!("Cannot cancel task: already {word}")}));
        assert_eq!(client.status(&id).await, word);
    }
    world.stop().await;
}

async fn a_task_that_no_worker_has_yet_is_cancelled_and_never_runs(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.runner.slots = 1).await;
    let client = world.client(ALICE).await;
    let running = client.create("hold", json!({})).await;
    assert_eq!(world.gate.started().await, running);
    let queued = client.create("hold", json!({})).await;
    client.ok("tasks/cancel", json!({"taskId": queued})).await;
    let next = client.create("hold", json!({})).await;
    world.gate.open();
    client.result(&running).await;
    assert_eq!(world.gate.started().await, next);
    client.result(&next).await;
    world.stop().await;
}

/// The moments at which the requests meet the work are spread over the time that it takes.
async fn of_two_cancels_and_a_completion_at_one_time_exactly_one_wins(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let mut ended = Vec::new();
    for round in 0..ROUNDS {
        let id = one.create("echo", json!({})).await;
        let params = json!({"taskId": id});
        let pause = Duration::from_micros(round % 16 * 250);
        let cancel = async |client: &longhaul_tests::client::Client| {
            tokio::time::sleep(pause).await;
            client.ask("tasks/cancel", params.clone()).await
        };
        let (first, second, result) = tokio::join!(cancel(&one), cancel(&other), other.result(&id));
        let won = [&first, &second].into_iter().filter(|answer| answer.get("result").is_some()).count();
        assert!(won <= 1, "two cancels were told that they did it: {first} {second}");
        let word = if won == 0 { "completed" } else { "cancelled" };
        assert_eq!(result.get("result").is_some(), won == 0, "{first} {second} {result}");
        for answer in [first, second].into_iter().filter(|answer| answer.get("error").is_some()) {
            assert_eq!(
                answer["error"],
                json!({"code": -32602, "message": format!("Cannot cancel task: already {word}")})
            );
        }
        ended.push((id, word, result));
    }
    let audit = world.database().await.audit().await;
    for (id, word, result) in ended {
        assert_eq!(one.status(&id).await, word);
        let again = other.result(&id).await;
        assert_eq!((again.get("result"), again.get("error")), (result.get("result"), result.get("error")));
        let events: Vec<_> = audit.iter().filter(|row| row.task == id).map(|row| &*row.event).collect();
        assert_eq!(events, ["mcp.task.created", &format!("mcp.task.{word}")]);
    }
    world.stop().await;
}

crate::both!(
    cancelling_stops_the_work_and_is_the_end,
    a_task_that_has_ended_cannot_be_cancelled,
    a_task_that_no_worker_has_yet_is_cancelled_and_never_runs,
    of_two_cancels_and_a_completion_at_one_time_exactly_one_wins,
);
