//! Calls that go on as tasks.

use std::time::Duration;

use futures::StreamExt as _;
use longhaul_core::{Claimed, Interruption, LeaseToken, Outcome, Refusal};
use longhaul_rpc::{CallEvent, CallEvents, Calls as _, Error, Invocation, Line, Resume};
use longhaul_worker::{Answer, Ask, Config, Context, Ended, NoArguments, Tool, Worker, demo};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::outcome::text;
use crate::store::{Asked, World, anything, call, principal, yes};

/// A tool that becomes a task, if it may, and works for ten seconds.
fn decides() -> Tool {
    Tool::new("decides", async |context: Context, _: NoArguments| {
        context.set_status_message("thinking").await?;
        context.progress(1.0, Some(3.0), None).await?;
        let task = context.become_task().await?;
        assert_eq!((task.as_ref(), task.map(|task| task.id)), (context.as_task(), context.task_id()));
        tokio::time::sleep(Duration::from_secs(10)).await;
        context.progress(2.0, Some(3.0), None).await?;
        Ok(Answer::text(if task.is_some() { "a task" } else { "a call" }))
    })
    .decides()
}

fn may(call: Invocation) -> Invocation {
    Invocation { may_become_task: true, ..call }
}

async fn becoming(events: &mut CallEvents) -> (String, Claimed) {
    match events.next().await.unwrap().unwrap() {
        CallEvent::Becoming { run, claimed } => (run, claimed),
        other => panic!("it does not become a task: {other:?}"),
    }
}

async fn said(events: &mut CallEvents) -> (bool, String) {
    match events.next().await.unwrap().unwrap() {
        CallEvent::Outcome(outcome) => text(outcome),
        other => panic!("not an outcome: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_on_as_a_task_that_its_worker_holds_and_completes() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(decides()));
    let calls = world.calls();
    let mut events = calls.invoke(may(call("decides", "{}"))).await.unwrap();
    let (run, claimed) = becoming(&mut events).await;
    assert_eq!((claimed.worker.name.as_str(), claimed.token.0.len()), ("w", 32));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let task = world.store.adopt("decides", claimed);
    calls.became(&run, Some(task.clone())).await.unwrap();
    assert!(events.next().await.is_none(), "its caller hears no more of the call");
    calls.became(&run, Some(task.clone())).await.unwrap();
    world.store.heard(1, |asked| *asked == Asked::Heartbeat(vec![(task.id, 1)])).await;
    assert_eq!(text(world.store.outcome(task.id).await), (false, "a task".into()));
    let told = world.store.task(task.id);
    assert_eq!(told.status_message.as_deref(), Some("thinking"), "said while it was a call");
    assert_eq!(told.progress.unwrap().progress, 2.0);
    let Some((_, Asked::Complete(fence, _))) =
        world.store.asked().into_iter().rfind(|(_, a)| matches!(a, Asked::Complete(..)))
    else {
        panic!("not completed")
    };
    assert_eq!((fence.id, fence.attempt), (task.id, 1));
    world.store.heard(1, |asked| *asked == Asked::Heartbeat(vec![])).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_become_a_task_goes_on_as_a_call() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(decides()));
    let calls = world.calls();
    let mut events = calls.invoke(call("decides", "{}")).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "a call".into()));

    let mut events = calls.invoke(may(call("decides", "{}"))).await.unwrap();
    let (run, claimed) = becoming(&mut events).await;
    let mut other = world.store.adopt("decides", claimed.clone());
    assert!(matches!(calls.became("x", None).await, Err(Error::Refused(Refusal::NotFound))));
    if let longhaul_core::Phase::Running(lease) = &mut other.phase {
        lease.token = LeaseToken("another's".into());
    }
    assert!(matches!(calls.became(&run, Some(other)).await, Err(Error::Fault(_))));
    calls.became(&run, None).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "a call".into()));
    assert_eq!(world.store.completions(), 0);

    let id = world.store.create("decides", "{}");
    assert_eq!(text(world.store.outcome(id).await), (false, "a task".into()), "a task is one already");
    let (_, Asked::Attach(info)) = world.store.heard(1, |asked| matches!(asked, Asked::Attach(_))).await else {
        panic!()
    };
    assert!(info.tools[0].decides);
}

#[tokio::test(start_paused = true)]
async fn a_call_asks_first_then_becomes_a_task_and_asks_again() {
    let world = World::new();
    let tool = Tool::new("both", async |context: Context, _: NoArguments| {
        let form = || json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
        context.request_input(Ask::form("as a call?", form())).await?;
        let task = context.become_task().await?.expect("it may");
        let response = context.request_input(Ask::form("as a task?", form())).await?;
        assert!(response.accepted().is_some());
        Ok(Answer::text(task.id.to_string()))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let first = Invocation { park: Some(Duration::from_secs(60)), ..may(call("both", "{}")) };
    let mut events = world.calls().invoke(first).await.unwrap();
    let Some(Ok(CallEvent::Asked(asked))) = events.next().await else { panic!("not asked") };
    assert!(events.next().await.is_none());
    let resume = Resume {
        principal: principal(),
        run: asked.run,
        round: 1,
        answers: vec![("q-1".into(), yes(r#"{"n":1}"#))],
        client: anything(),
        line: Line::default(),
    };
    let calls = world.calls();
    let mut events = calls.resume(resume).await.unwrap();
    let (run, claimed) = becoming(&mut events).await;
    let task = world.store.adopt("both", claimed);
    calls.became(&run, Some(task.clone())).await.unwrap();
    assert!(events.next().await.is_none());
    world.store.asking(task.id, 1).await;
    world.store.respond(task.id, &[("q-2", yes(r#"{"n":2}"#))]);
    assert_eq!(text(world.store.outcome(task.id).await), (false, task.id.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_became_a_task_is_stopped_and_drained_as_one() {
    let world = World::new();
    let (send, mut seen) = mpsc::unbounded_channel();
    let tool = Tool::new("long", move |context: Context, _: NoArguments| {
        let send = send.clone();
        async move {
            context.become_task().await?;
            context.cancelled().await;
            let _ = send.send(context.status());
            Ok(Answer::text(""))
        }
    });
    let config = Config { drain_timeout: Duration::from_secs(30), ..world.config() };
    let worker = world.run(Worker::new(config).tool(tool));
    let calls = world.calls();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut events = calls.invoke(may(call("long", "{}"))).await.unwrap();
        let (run, claimed) = becoming(&mut events).await;
        let task = world.store.adopt("long", claimed);
        calls.became(&run, Some(task.clone())).await.unwrap();
        assert!(events.next().await.is_none());
        ids.push(task.id);
    }
    world.store.cancel(ids[0]);
    assert_eq!(seen.recv().await, Some(longhaul_worker::Status::Ended(Ended::Stopped)));
    world.drain.cancel();
    worker.await.unwrap().unwrap();
    assert_eq!(world.store.outcome(ids[1]).await, Outcome::Interrupted(Interruption::Drained));
    assert_eq!(world.store.completions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_hangs_up_while_its_task_is_made_does_not_end_the_run() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(decides()).with_tools(demo::tools()));
    let calls = world.calls();
    let mut events = calls.invoke(may(call("decides", "{}"))).await.unwrap();
    let (run, claimed) = becoming(&mut events).await;
    drop(events);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let task = world.store.adopt("decides", claimed);
    calls.became(&run, Some(task.clone())).await.unwrap();
    assert_eq!(text(world.store.outcome(task.id).await), (false, "a task".into()));

    let mut events = calls.invoke(may(call("decides", "{}"))).await.unwrap();
    let (run, claimed) = becoming(&mut events).await;
    drop(events);
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let task = world.store.adopt("decides", claimed);
    let late = calls.became(&run, Some(task)).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::NotFound))), "{late:?} {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_does_not_wait_for_its_task_completes_it_all_the_same() {
    let world = World::new();
    let tool = Tool::new("hasty", async |context: Context, _: NoArguments| {
        let becoming = tokio::time::timeout(Duration::from_secs(1), context.become_task()).await;
        assert!(becoming.is_err());
        Ok(Answer::text("done"))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let calls = world.calls();
    let mut events = calls.invoke(may(call("hasty", "{}"))).await.unwrap();
    let (run, claimed) = becoming(&mut events).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let task = world.store.adopt("hasty", claimed);
    calls.became(&run, Some(task.clone())).await.unwrap();
    assert_eq!(text(world.store.outcome(task.id).await), (false, "done".into()));
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_cancelled_before_its_run_heard_of_it_stops_the_run() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(decides()));
    let calls = world.calls();
    let mut events = calls.invoke(may(call("decides", "{}"))).await.unwrap();
    let (run, claimed) = becoming(&mut events).await;
    let task = world.store.adopt("decides", claimed);
    world.store.cancel(task.id);
    calls.became(&run, Some(world.store.task(task.id))).await.unwrap();
    assert!(events.next().await.is_none());
    world.store.heard(1, |asked| *asked == Asked::Heartbeat(vec![])).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((world.store.completions(), world.store.outcome(task.id).await), (0, Outcome::Cancelled));
}
