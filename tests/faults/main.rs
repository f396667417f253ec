//! The real binary as processes, killed.
#![expect(clippy::unwrap_used, reason = "a test")]

mod answers;
mod audit;
mod budgets;
mod config;
mod credential;
mod dev;
mod drain;
mod gateway;
mod operate;
mod postgres;
mod redis;
mod taskstore;
mod watching;
mod worker;

use std::time::{Duration, Instant};

use longhaul_tests::client::{Client, Events, PATIENCE};
use serde_json::{Value, json};

/// What a busy machine may add to a bound.
const MARGIN: Duration = Duration::from_secs(2);
/// How often something is looked at that sends no signal.
const LOOK: Duration = Duration::from_millis(20);

/// Starts a countdown as a task; gives its id.
async fn countdown(client: &Client, seconds: f64) -> String {
    client.create("countdown", json!({"seconds": seconds})).await
}

/// Waits until a task has a status; gives when it was seen.
async fn reaches(client: &Client, id: &str, status: &str) -> Instant {
    let begun = Instant::now();
    loop {
        let now = client.status(id).await;
        if now == status {
            return Instant::now();
        }
        assert!(now == "working" || status == "working", "{id} is {now}, not {status}");
        assert!(begun.elapsed() < PATIENCE, "{id} is still {now}, not {status}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until a worker has taken a countdown.
async fn running(client: &Client, id: &str) {
    let begun = Instant::now();
    while !client.ok("tasks/get", json!({"taskId": id})).await["statusMessage"]
        .as_str()
        .is_some_and(|message| message.ends_with("left"))
    {
        assert!(begun.elapsed() < PATIENCE, "{id} is not taken");
        tokio::time::sleep(LOOK).await;
    }
}

/// Opens a stream for a task's result, and reads its priming event.
async fn waiting(client: &Client, id: &str) -> Events {
    let mut stream = client.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""), "the priming event");
    stream
}

/// Panics unless an answer says that a task was interrupted.
fn assert_interrupted(answer: &Value) {
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("interrupted"), "{answer}");
}

/// Panics unless an answer is that of a countdown.
fn assert_counted(answer: &Value) {
    let text = answer["result"]["content"][0]["text"].as_str();
    assert!(text.is_some_and(|text| text.starts_with("counted down")), "{answer}");
}

/// The text of a page.
async fn page(url: &str) -> (u16, String) {
    let answer = longhaul_tests::client::http().get(url).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}
