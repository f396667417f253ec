//! Calls that are not tasks.

use std::time::Duration;

use futures::StreamExt as _;
use longhaul_core::{Interruption, LogMessage, Outcome, TraceContext};
use longhaul_rpc::{CallEvent, Calls as _, Error, Invocation, Line};
use longhaul_worker::{Answer, Config, Context, Ended, LogLevel, NoArguments, Status, Tool, Worker, demo};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::outcome::{error, text};
use crate::store::{World, call, principal};

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
    let events = events(&world, Invocation { line: Line { progress: true, log: None }, ..countdown }).await;
    let steps: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            CallEvent::Progress(progress) => Some(progress.progress),
            _ => None,
        })
        .collect();
    // Sixteen as they come, then ten a second.
    assert!((30..=40).contains(&steps.len()) && steps.is_sorted_by(|a, b| a < b), "{steps:?}");
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

#[tokio::test(start_paused = true)]
async fn steps_that_are_a_little_apart_are_all_heard_and_many_at_once_are_merged() {
    let world = World::new();
    let few = Tool::new("few", async |context: Context, _: NoArguments| {
        for step in [0.0, 50.0, 100.0] {
            context.progress(step, Some(100.0), None).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Answer::text(""))
    });
    let many = Tool::new("many", async |context: Context, _: NoArguments| {
        for step in 0..1000 {
            context.progress(step.into(), None, None).await?;
            context.progress(f64::from(step) - 1.0, None, None).await?;
            context.progress(f64::NAN, None, None).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Answer::text(""))
    });
    let _worker = world.run(Worker::new(world.config()).tool(few).tool(many));
    let line = Line { progress: true, log: None };
    let steps = async |tool: &str| {
        let events = events(&world, Invocation { line, ..call(tool, "{}") }).await;
        let steps = events.into_iter().filter_map(|event| match event {
            CallEvent::Progress(progress) => Some(progress.progress),
            _ => None,
        });
        steps.collect::<Vec<_>>()
    };
    assert_eq!(steps("few").await, [0.0, 50.0, 100.0]);
    let many = steps("many").await;
    assert!(many.is_sorted_by(|a, b| a < b) && (20..=30).contains(&many.len()), "{many:?}");
    assert_eq!((many.first(), many.last()), (Some(&0.0), Some(&999.0)), "the first goes at once, the last is not lost");
}

#[tokio::test(start_paused = true)]
async fn a_caller_hears_the_log_from_the_level_it_asked_for() {
    let world = World::new();
    let tool = Tool::new("logs", async |context: Context, _: NoArguments| {
        context.log(LogLevel::Debug, None, "too fine").await?;
        context.log(LogLevel::Info, Some("db"), &serde_json::json!({ "rows": 1 })).await?;
        context.log(LogLevel::Error, None, &"x".repeat(100_000)).await?;
        context.log(LogLevel::Error, None, "bad").await?;
        Ok(Answer::text(""))
    });
    let flood = Tool::new("floods", async |context: Context, _: NoArguments| {
        for nth in 0..500 {
            context.log(LogLevel::Info, None, &nth).await?;
        }
        Ok(Answer::text(""))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool).tool(flood));
    let logs = async |tool: &str, log| {
        let line = Line { progress: false, log };
        let events = events(&world, Invocation { line, ..call(tool, "{}") }).await;
        assert!(matches!(events.last(), Some(CallEvent::Outcome(_))));
        let logs =
            events.into_iter().filter_map(|event| if let CallEvent::Log(log) = event { Some(log) } else { None });
        logs.collect::<Vec<_>>()
    };
    let info = LogMessage { level: LogLevel::Info, logger: Some("db".into()), data: r#"{"rows":1}"#.into() };
    let error = LogMessage { level: LogLevel::Error, logger: None, data: r#""bad""#.into() };
    assert_eq!(logs("logs", Some(LogLevel::Info)).await, [info, error.clone()]);
    assert_eq!(logs("logs", Some(LogLevel::Error)).await, [error]);
    assert_eq!(logs("logs", None).await, []);
    let flood = logs("floods", Some(LogLevel::Debug)).await;
    assert!((100..500).contains(&flood.len()), "{}", flood.len());
}

#[tokio::test(start_paused = true)]
async fn what_a_run_leaves_behind_cannot_speak_for_it() {
    let world = World::new();
    let (send, mut left) = mpsc::unbounded_channel();
    let tool = Tool::new("leaves", move |context: Context, _: NoArguments| {
        let send = send.clone();
        async move {
            assert_eq!(context.status(), Status::Working);
            assert_eq!((context.task_id(), context.method(), context.tool()), (None, "tools/call", "leaves"));
            assert_eq!(context.deadline(), Some(Instant::now() + Duration::from_secs(5)));
            context.set_status_message("é".repeat(1000)).await?;
            assert_eq!(context.status_message().unwrap().len(), 1024);
            let _ = send.send(context.clone());
            Ok(Answer::text(""))
        }
    })
    .timeout(Duration::from_secs(5));
    let _worker =
        world.run(Worker::new(Config { calls_max: 1, ..world.config() }).tool(tool).with_tools(demo::tools()));
    assert_eq!(text(outcome(&world, call("leaves", "{}")).await).1, "");
    let left = left.recv().await.unwrap();
    assert_eq!(left.progress(1.0, None, None).await, Err(Ended::Stopped));
    assert_eq!(left.become_task().await, Err(Ended::Stopped));
    assert_eq!(left.request_input(longhaul_worker::Ask::roots()).await, Err(longhaul_worker::InputError::Ended));
    assert_eq!((left.status(), left.is_cancelled()), (Status::Ended(Ended::Stopped), false));
    assert_eq!(text(outcome(&world, call("echo", "{}")).await).1, "{}");
}

/// No spans are recorded here.
#[tokio::test(start_paused = true)]
async fn a_run_knows_the_trace_of_its_call_even_if_no_spans_are_recorded() {
    let world = World::new();
    let tool = Tool::new("trace", async |context: Context, _: NoArguments| {
        let TraceContext { traceparent, tracestate, baggage } = context.trace();
        assert_eq!(traceparent, context.traceparent());
        Ok(Answer::text(format!("{traceparent:?} {tracestate:?} {baggage:?}")))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = TraceContext::new(Some(parent), Some("a=b"), Some("k=v"));
    let expected = format!(r#"Some("{parent}") Some("a=b") Some("k=v")"#);
    let said = text(outcome(&world, Invocation { trace, ..call("trace", "{}") }).await);
    assert_eq!(said, (false, expected));
}
