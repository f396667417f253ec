//! Tasks that are handed out again when their worker is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use longhaul_core::{Outcome, Phase};
use longhaul_worker::{Answer, Ask, Context, Failure, JournalError, NoArguments, OnInterrupt, Tool, Worker};
use serde_json::json;

use crate::outcome::text;
use crate::store::{World, yes};

/// Does five steps, each of which counts in `done`; is lost once after each of them.
async fn steps(
    context: Context,
    done: Arc<AtomicU32>,
    lost: tokio::sync::mpsc::UnboundedSender<u32>,
) -> Result<Answer, Failure> {
    let journal = context.journal().await?;
    for step in journal.len() as u32..5 {
        done.fetch_add(1, Ordering::SeqCst);
        context.record(format!("step {step}")).await?;
        if context.as_task().is_some_and(|task| task.attempt == step + 1) {
            lost.send(step).unwrap();
            context.cancelled().await;
            return Ok(Answer::text("too late"));
        }
    }
    let read = context.journal().await?;
    Ok(Answer::text(
        read.iter().map(|entry| String::from_utf8_lossy(entry).into_owned()).collect::<Vec<_>>().join(", "),
    ))
}

#[tokio::test(start_paused = true)]
async fn a_tool_goes_on_from_its_journal_and_repeats_nothing() {
    let world = World::new();
    let (done, (sender, mut lost)) = (Arc::new(AtomicU32::new(0)), tokio::sync::mpsc::unbounded_channel());
    let tool = {
        let done = done.clone();
        Tool::new("steps", move |context, _: NoArguments| steps(context, done.clone(), sender.clone()))
    };
    let _worker = world.run(Worker::new(world.config()).tool(tool.on_interrupt(OnInterrupt::Resume)));
    world.store.faults(|faults| faults.record_answers_lost = 3);
    let id = world.store.create_again("steps", OnInterrupt::Resume);
    for attempt in 0..2 {
        assert_eq!(lost.recv().await, Some(attempt));
        world.store.lose(id);
    }
    assert_eq!(lost.recv().await, Some(2));
    let task = world.store.task(id);
    assert!(matches!(task.phase, Phase::Running(_)));
    assert_eq!((task.attempt, done.load(Ordering::SeqCst)), (3, 3), "one step each, though answers were lost");
    // The third attempt is the last one.
    world.store.lose(id);
    assert!(matches!(world.store.outcome(id).await, Outcome::Interrupted(_)));
}

#[tokio::test(start_paused = true)]
async fn the_same_worker_takes_up_a_task_that_it_lost() {
    let world = World::new();
    let (done, (sender, mut lost)) = (Arc::new(AtomicU32::new(3)), tokio::sync::mpsc::unbounded_channel());
    let tool = {
        let done = done.clone();
        Tool::new("steps", move |context, _: NoArguments| steps(context, done.clone(), sender.clone()))
    };
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create_again("steps", OnInterrupt::Resume);
    for _ in 0..2 {
        lost.recv().await.unwrap();
        world.store.lose(id);
    }
    // It is lost no more: the word to stop that came last was for the attempt before.
    lost.recv().await.unwrap();
    let context_goes_on = world.store.task(id);
    assert_eq!(context_goes_on.attempt, 3);
    world.store.cancel(id);
    assert_eq!(world.store.outcome(id).await, Outcome::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn what_a_former_attempt_asked_is_asked_again_under_another_key() {
    let world = World::new();
    let tool = Tool::new("ask", async |context: Context, _: NoArguments| {
        let ask = Ask::form("Which?", json!({ "type": "object", "properties": { "colour": { "type": "string" } } }));
        let response = context.request_input(ask.key("colour")).await?;
        Ok(Answer::text(format!("{response:?}").contains("Accept").to_string()))
    });
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tool = {
        let heard = heard.clone();
        tool.on_input(move |_, key, _| {
            heard.lock().unwrap().push(key);
            async {}
        })
    };
    let _worker = world.run(Worker::new(world.config()).tool(tool.on_interrupt(OnInterrupt::Requeue)));
    let id = world.store.create_again("ask", OnInterrupt::Requeue);
    world.store.asking(id, 1).await;
    assert_eq!(world.store.task(id).open_inputs().next().unwrap().1, "colour");
    world.store.lose(id);
    assert!(!world.store.task(id).is_asking(), "nobody waits for that answer");
    world.store.asking(id, 1).await;
    assert_eq!(world.store.task(id).open_inputs().next().unwrap().1, "colour.2");
    world.store.respond(id, &[("colour.2", yes(r#"{"colour":"blue"}"#))]);
    assert_eq!(text(world.store.outcome(id).await), (false, "true".into()));
    assert_eq!(*heard.lock().unwrap(), ["colour"], "the tool knows it by its own name");
}

#[tokio::test(start_paused = true)]
async fn where_nobody_goes_on_nothing_is_kept() {
    let world = World::new();
    let tool = Tool::new("once", async |context: Context, _: NoArguments| {
        context.record("a").await?;
        let large = context.record(Bytes::from(vec![0; 5 << 20])).await;
        Ok(Answer::text(format!("{} {}", context.journal().await?.len(), large == Err(JournalError::TooLarge))))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("once", "{}");
    assert_eq!(text(world.store.outcome(id).await), (false, "0 true".into()));
}
