//! Calls that are not tasks.

use std::time::Duration;

use futures::StreamExt as _;
use longhaul_core::{Interruption, Outcome};
use longhaul_rpc::{CallEvent, Calls as _, Error, Invocation};
use longhaul_worker::{Answer, Config, Context, NoArguments, Tool, Worker, demo};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::outcome::{error, text};
use crate::store::{World, principal};

fn call(tool: &str, arguments: &'static str) -> Invocation {
    Invocation { principal: principal(), tool: tool.into(), arguments: arguments.into(), progress: false }
}

async fn events(world: &World, call: Invocation) -> Vec<CallEvent> {
    let calls = world.calls();
    calls.invoke(call).await.unwrap().map(Result::unwrap).collect().await
}

async fn outcome(world: &World, call: Invocation) -> Outcome {
    match events(world, call).await.as_slice() {
        [CallEvent::Outcome(outcome)] => outcome.clone(),
        other => panic!("not one outcome: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_tools_serve_calls() {
    let world = World::new();
    let tool = Tool::new("inline", async |context: Context, _: NoArguments| {
        assert_eq!((context.task_id(), context.as_task(), context.principal()), (None, None, &principal()));
        context.set_status_message("nobody reads this").await?;
        Ok(Answer::text("inline"))
    });
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()).tool(tool));
    assert_eq!(text(outcome(&world, call("inline", "{}")).await).1, "inline");

    let exact = r#"{ "text":"\u2028 é", "n":1.10, "big":12345678901234567890123 }"#;
    let Outcome::Result { is_error: false, body } = outcome(&world, call("echo", exact)).await else { panic!() };
    assert!(std::str::from_utf8(&body).unwrap().contains(&format!(r#""structuredContent":{exact}"#)));
    assert_eq!(text(Outcome::Result { is_error: false, body }).1, exact);

    assert_eq!(text(outcome(&world, call("fail", r#"{"message":"no paper"}"#)).await), (true, "no paper".into()));
    let Outcome::Error(failed) = outcome(&world, call("fail", r#"{"message":"m","code":-32000,"data":[1]}"#)).await
    else {
        panic!("not an error")
    };
    assert_eq!((failed.code, failed.message.as_str(), failed.data.as_deref()), (-32000, "m", Some(&b"[1]"[..])));
    assert_eq!(error(outcome(&world, call("panic", "{}")).await), (-32603, "the tool panicked".into()));
    assert_eq!(error(outcome(&world, call("nope", "{}")).await), (-32602, "Unknown tool: nope".into()));
    let bad = text(outcome(&world, call("countdown", r#"{"seconds":-1}"#)).await);
    assert!(bad.0 && bad.1.contains("`seconds`"), "{bad:?}");
    assert_eq!(world.store.completions(), 0, "no call touches the task-store");
}

#[tokio::test(start_paused = true)]
async fn progress_is_passed_on_only_if_it_is_wanted() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let countdown = call("countdown", r#"{"seconds":2,"steps":200}"#);
    assert_eq!(events(&world, countdown.clone()).await.len(), 1);
    let events = events(&world, Invocation { progress: true, ..countdown }).await;
    let steps: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            CallEvent::Progress(progress) => Some(progress.progress),
            CallEvent::Outcome(_) => None,
        })
        .collect();
    assert!((15..=25).contains(&steps.len()) && steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    assert_eq!(steps.last(), Some(&200.0));
    assert!(matches!(events.last(), Some(CallEvent::Outcome(Outcome::Result { is_error: false, .. }))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_waits_for_is_stopped() {
    let world = World::new();
    let (send, mut seen) = mpsc::unbounded_channel();
    let (started, stopped) = (send.clone(), send);
    let tool = Tool::new("wait", move |context: Context, _: NoArguments| {
        let _ = started.send("started");
        async move {
            context.cancelled().await;
            Ok(Answer::text(""))
        }
    })
    .on_cancel(move |context| {
        let _ = stopped.send("stopped");
        assert!(context.is_cancelled());
        std::future::ready(())
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let calls = world.calls();
    let events = calls.invoke(call("wait", "{}")).await.unwrap();
    assert_eq!(seen.recv().await, Some("started"));
    tokio::time::timeout(Duration::from_secs(60), seen.recv()).await.unwrap_err();
    let start = Instant::now();
    drop(events);
    assert_eq!(seen.recv().await, Some("stopped"));
    assert!(start.elapsed() < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_call_has_the_tools_time_limit() {
    let world = World::new();
    let tool =
        Tool::new("slow", async |_, _: NoArguments| std::future::pending().await).timeout(Duration::from_secs(7));
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    assert_eq!(error(outcome(&world, call("slow", "{}")).await), (-32603, "timed out after 7 s".into()));
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_cap_are_refused_and_a_slot_comes_back() {
    let world = World::new();
    let _worker = world.run(Worker::new(Config { calls_max: 1, ..world.config() }).with_tools(demo::tools()));
    let calls = world.calls();
    let mut first = calls.invoke(call("countdown", r#"{"seconds":5}"#)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(1), first.next()).await.unwrap_err();
    let mut second = calls.invoke(call("echo", "{}")).await.unwrap();
    assert!(matches!(second.next().await, Some(Err(Error::NotBegun(_)))));
    assert!(matches!(first.next().await, Some(Ok(CallEvent::Outcome(_)))));
    assert_eq!(text(outcome(&world, call("echo", "{}")).await).1, "{}");
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_are_served_to_their_end_while_the_worker_drains() {
    let world = World::new();
    let config = Config { drain_timeout: Duration::from_secs(30), ..world.config() };
    let worker = world.run(Worker::new(config).with_tools(demo::tools()));
    let calls = world.calls();
    let mut short = calls.invoke(call("countdown", r#"{"seconds":20}"#)).await.unwrap();
    let mut long = calls.invoke(call("countdown", r#"{"seconds":300}"#)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(1), short.next()).await.unwrap_err();
    world.drain.cancel();
    let Some(Ok(CallEvent::Outcome(outcome))) = short.next().await else { panic!("no outcome") };
    assert_eq!(text(outcome).1, "counted down 20 s");
    let last = long.next().await.unwrap().unwrap();
    assert_eq!(last, CallEvent::Outcome(Outcome::Interrupted(Interruption::Drained)));
    worker.await.unwrap().unwrap();
}
