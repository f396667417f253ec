//! Calls that ask: their callers stay on the line, or hang up and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use longhaul_core::{Caller, ClientCapabilities, InputResponse, Interruption, Outcome, Principal, Refusal};
use longhaul_rpc::{Asked, CallEvent, CallEvents, Calls as _, Error, Invocation, Line, Resume};
use longhaul_worker::{Answer, Ask, Config, Context, InputError, NoArguments, Response, Tool, Worker, demo};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::outcome::text;
use crate::store::{World, anything, call, principal, yes};

fn form() -> Value {
    json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] })
}

/// A tool that asks one thing after another, and answers with the numbers it was told.
fn counts(name: &str, questions: usize) -> Tool {
    Tool::new(name, move |context: Context, _: NoArguments| async move {
        let mut told = Vec::new();
        for nth in 1..=questions {
            let response = context.request_input(Ask::form(format!("{nth}?"), form())).await?;
            told.push(
                response
                    .accepted()
                    .map_or_else(|| "no".into(), |content| content.parse::<Value>().unwrap()["n"].to_string()),
            );
        }
        Ok(Answer::text(told.join(" ")))
    })
}

/// A tool that asks three things at once.
fn three() -> Tool {
    Tool::new("three", async |context: Context, _: NoArguments| {
        let responses = context.request_inputs(["a", "b", "c"].map(|key| Ask::form(key, form()).key(key))).await?;
        let kinds = responses.iter().map(|response| match response {
            Response::Accept(_) => "yes",
            Response::Decline => "no",
            Response::Cancel => "later",
            Response::Result(_) => "result",
        });
        Ok(Answer::text(kinds.collect::<Vec<_>>().join(" ")))
    })
}

fn parked(call: Invocation, seconds: u64) -> Invocation {
    Invocation { park: Some(Duration::from_secs(seconds)), ..call }
}

async fn next(events: &mut CallEvents) -> CallEvent {
    events.next().await.expect("the events have ended").unwrap()
}

async fn asked(events: &mut CallEvents) -> Asked {
    match next(events).await {
        CallEvent::Asked(asked) => asked,
        other => panic!("not a question: {other:?}"),
    }
}

async fn said(events: &mut CallEvents) -> (bool, String) {
    match next(events).await {
        CallEvent::Outcome(outcome) => text(outcome),
        other => panic!("not an outcome: {other:?}"),
    }
}

fn keys(asked: &Asked) -> Vec<&str> {
    asked.requests.iter().map(|request| request.key.as_str()).collect()
}

fn back(asked: &Asked, answers: &[(&str, InputResponse)]) -> Resume {
    Resume {
        principal: principal(),
        run: asked.run.clone(),
        round: asked.round,
        answers: answers.iter().map(|(key, response)| ((*key).to_owned(), response.clone())).collect(),
        client: anything(),
        line: Line::default(),
    }
}

fn somebody_else() -> Principal {
    Principal { caller: Caller::Agent("b".into()), ..principal() }
}

/// Begins a call whose caller hangs up when it is asked; what it was asked.
async fn park(world: &World, call: Invocation) -> Asked {
    let mut events = world.calls().invoke(call).await.unwrap();
    let asked = asked(&mut events).await;
    assert!(events.next().await.is_none(), "the question is the last word");
    asked
}

async fn not_found(world: &World, resume: Resume) {
    let mut events = world.calls().resume(resume).await.unwrap();
    assert!(matches!(events.next().await, Some(Err(Error::Refused(Refusal::NotFound)))));
}

#[tokio::test(start_paused = true)]
async fn a_caller_on_the_line_is_asked_and_answers() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(counts("two", 2)).tool(three()));
    let calls = world.calls();
    let mut events = calls.invoke(call("two", "{}")).await.unwrap();
    let first = asked(&mut events).await;
    assert_eq!((first.round, keys(&first), first.run.len()), (1, vec!["q-1"], 32));
    let respond = async |who: &Principal, run: &str, key: &str, response: InputResponse| {
        calls.respond(who, run, vec![(key.into(), response)]).await
    };
    for (who, run) in [(somebody_else(), first.run.as_str()), (principal(), "x")] {
        let refused = respond(&who, run, "q-1", yes(r#"{"n":1}"#)).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::NotFound))), "{refused:?}");
    }
    // What is not asked changes nothing, and the first answer counts.
    respond(&principal(), &first.run, "q-2", yes(r#"{"n":9}"#)).await.unwrap();
    respond(&principal(), &first.run, "q-1", yes(r#"{"n":4}"#)).await.unwrap();
    let second = asked(&mut events).await;
    assert_eq!((second.round, keys(&second), &second.run), (2, vec!["q-2"], &first.run));
    respond(&principal(), &first.run, "q-1", yes(r#"{"n":5}"#)).await.unwrap();
    // One that does not fit is a decline.
    respond(&principal(), &first.run, "q-2", yes(r#"{"n":"x"}"#)).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "4 no".into()));
    assert!(events.next().await.is_none());

    let mut events = calls.invoke(call("three", "{}")).await.unwrap();
    let all = asked(&mut events).await;
    assert_eq!(keys(&all), ["a", "b", "c"]);
    calls.respond(&principal(), &all.run, vec![("b".into(), InputResponse::Cancel)]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), events.next()).await.unwrap_err();
    let rest = vec![("c".into(), InputResponse::Decline), ("a".into(), yes(r#"{"n":1}"#))];
    calls.respond(&principal(), &all.run, rest).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "yes later no".into()));
    assert_eq!(world.store.completions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_not_answered_in_time_is_declined() {
    let world = World::new();
    let config = Config { input_timeout: Duration::from_secs(20), ..world.config() };
    let _worker = world.run(Worker::new(config).tool(counts("one", 1)));
    let mut events = world.calls().invoke(call("one", "{}")).await.unwrap();
    asked(&mut events).await;
    let start = Instant::now();
    assert_eq!(said(&mut events).await, (false, "no".into()));
    assert!(start.elapsed().abs_diff(Duration::from_secs(20)) < Duration::from_millis(100), "{:?}", start.elapsed());
    // Nor does it count when it comes too late with a caller that was away.
    let away = park(&world, parked(call("one", "{}"), 100)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let mut events = world.calls().resume(back(&away, &[("q-1", yes(r#"{"n":1}"#))])).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "no".into()));
}

#[tokio::test(start_paused = true)]
async fn a_caller_on_the_line_hears_which_questions_are_over_each_at_its_time() {
    let world = World::new();
    let tool = Tool::new("several", async |context: Context, _: NoArguments| {
        let ask = |key: &str, seconds| Ask::form(key, form()).key(key).timeout(Duration::from_secs(seconds));
        let all = context.request_inputs([ask("a", 30), ask("b", 10), ask("c", 20), ask("d", 100)]);
        assert!(tokio::time::timeout(Duration::from_secs(50), all).await.is_err());
        let used = context.request_input(ask("d", 10)).await;
        assert_eq!(used, Err(InputError::KeyUsed("d".into())));
        context.request_input(ask("e", 10)).await?;
        Ok(Answer::text("done"))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let calls = world.calls();
    let mut events = calls.invoke(call("several", "{}")).await.unwrap();
    let all = asked(&mut events).await;
    let start = Instant::now();
    calls.respond(&principal(), &all.run, vec![("c".into(), yes(r#"{"n":1}"#))]).await.unwrap();
    for (key, seconds) in [("b", 10), ("a", 30), ("d", 50)] {
        assert_eq!(next(&mut events).await, CallEvent::Withdrawn(vec![key.into()]));
        let late = start.elapsed().abs_diff(Duration::from_secs(seconds));
        assert!(late < Duration::from_millis(100), "{key}: {:?}", start.elapsed());
    }
    // Too late, and no harm.
    calls.respond(&principal(), &all.run, vec![("d".into(), yes(r#"{"n":1}"#))]).await.unwrap();
    assert_eq!(keys(&asked(&mut events).await), ["e"]);
    calls.respond(&principal(), &all.run, vec![("e".into(), yes(r#"{"n":1}"#))]).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "done".into()));
}

#[tokio::test(start_paused = true)]
async fn a_parked_run_goes_on_without_the_question_that_it_gave_up_on() {
    let world = World::new();
    let tool = Tool::new("brief", async |context: Context, _: NoArguments| {
        let ask = context.request_input(Ask::form("now?", form()));
        assert!(tokio::time::timeout(Duration::from_secs(5), ask).await.is_err());
        Ok(Answer::text("without you"))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let away = park(&world, parked(call("brief", "{}"), 60)).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let mut events = world.calls().resume(back(&away, &[("q-1", yes(r#"{"n":1}"#))])).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "without you".into()));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_while_it_is_asked_ends_the_run() {
    let world = World::new();
    let (send, mut seen) = mpsc::unbounded_channel();
    let tool = Tool::new("asks", move |context: Context, _: NoArguments| {
        let send = send.clone();
        async move {
            let _ = send.send(context.request_input(Ask::form("?", form())).await);
            Ok(Answer::text(""))
        }
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let mut events = world.calls().invoke(call("asks", "{}")).await.unwrap();
    let run = asked(&mut events).await.run;
    drop(events);
    assert_eq!(seen.recv().await, Some(Err(InputError::Ended)));
    let gone = world.calls().respond(&principal(), &run, vec![]).await;
    assert!(matches!(gone, Err(Error::Refused(Refusal::NotFound))), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_parked_run_goes_on_where_its_caller_comes_back() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(counts("two", 2)));
    let first = park(&world, parked(call("two", "{}"), 60)).await;
    assert_eq!((first.round, keys(&first)), (1, vec!["q-1"]));
    tokio::time::sleep(Duration::from_secs(50)).await;
    let answer = [("q-1", yes(r#"{"n":1}"#))];
    not_found(&world, Resume { principal: somebody_else(), ..back(&first, &answer) }).await;
    not_found(&world, Resume { round: 2, ..back(&first, &answer) }).await;
    not_found(&world, Resume { run: "x".into(), ..back(&first, &answer) }).await;
    let on_the_line = world.calls().respond(&principal(), &first.run, vec![("q-1".into(), yes(r#"{"n":9}"#))]).await;
    assert!(matches!(on_the_line, Err(Error::Refused(Refusal::NotFound))));

    // Another connection, and the time to come back begins anew.
    let mut events = world.calls().resume(back(&first, &answer)).await.unwrap();
    let second = asked(&mut events).await;
    assert!(events.next().await.is_none());
    assert_eq!((second.round, keys(&second), &second.run), (2, vec!["q-2"], &first.run));
    not_found(&world, back(&first, &answer)).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    let mut events =
        world.calls().resume(back(&second, &[("q-2", yes(r#"{"n":2}"#)), ("odd", yes("{}"))])).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "1 2".into()));
    not_found(&world, back(&second, &[])).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_is_asked_again_and_nothing_else() {
    let world = World::new();
    let (send, mut heard) = mpsc::unbounded_channel();
    let tool = three().on_input(move |_, key, _| {
        let _ = send.send(key);
        std::future::ready(())
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let first = park(&world, parked(call("three", "{}"), 60)).await;
    let mut events = world.calls().resume(back(&first, &[])).await.unwrap();
    let again = asked(&mut events).await;
    assert_eq!((again.round, &again.requests, &again.run), (2, &first.requests, &first.run));
    let mut events = world.calls().resume(back(&again, &[("b", yes(r#"{"n":1}"#))])).await.unwrap();
    let rest = asked(&mut events).await;
    assert_eq!((rest.round, keys(&rest)), (3, vec!["a", "c"]));
    assert_eq!(heard.recv().await.as_deref(), Some("b"), "it hears of an answer before all are there");
    assert!(events.next().await.is_none());
    // It comes back as a client that can be asked nothing more.
    let resume = Resume { client: ClientCapabilities::default(), ..back(&rest, &[("c", InputResponse::Cancel)]) };
    let mut events = world.calls().resume(resume).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "no yes later".into()));
}

#[tokio::test(start_paused = true)]
async fn a_parked_run_to_which_nobody_comes_back_is_dropped() {
    let world = World::new();
    let (send, mut seen) = mpsc::unbounded_channel();
    let tool = Tool::new("asks", move |context: Context, _: NoArguments| {
        let send = send.clone();
        async move {
            let _ = send.send(context.request_input(Ask::form("?", form())).await);
            Ok(Answer::text(""))
        }
    });
    let config = Config { calls_max: 1, ..world.config() };
    let _worker = world.run(Worker::new(config).tool(tool).with_tools(demo::tools()));
    let left = park(&world, parked(call("asks", "{}"), 60)).await;
    let start = Instant::now();
    assert_eq!(seen.recv().await, Some(Err(InputError::Ended)));
    assert!(start.elapsed().abs_diff(Duration::from_secs(60)) < Duration::from_millis(100), "{:?}", start.elapsed());
    not_found(&world, back(&left, &[("q-1", yes(r#"{"n":1}"#))])).await;
    let mut events = world.calls().invoke(call("echo", "{}")).await.unwrap();
    assert_eq!(said(&mut events).await.1, "{}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_lets_others_run_and_takes_its_turn_again() {
    let world = World::new();
    let config = Config { calls_max: 1, ..world.config() };
    let tool = counts("one", 1).timeout(Duration::from_secs(5));
    let _worker = world.run(Worker::new(config).tool(tool).with_tools(demo::tools()));
    for away in [false, true] {
        let first = call("one", "{}");
        let mut events = world.calls().invoke(if away { parked(first, 600) } else { first }).await.unwrap();
        let question = asked(&mut events).await;
        let calls = world.calls();
        let mut other = calls.invoke(call("countdown", r#"{"seconds":30}"#)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), other.next()).await.unwrap_err();
        let answer = [("q-1", yes(r#"{"n":3}"#))];
        if away {
            events = world.calls().resume(back(&question, &answer)).await.unwrap();
        } else {
            calls.respond(&principal(), &question.run, back(&question, &answer).answers).await.unwrap();
        }
        // There is no room for a third, nor for the first yet.
        let mut third = calls.invoke(call("echo", "{}")).await.unwrap();
        assert!(matches!(third.next().await, Some(Err(Error::NotBegun(_)))));
        tokio::time::timeout(Duration::from_secs(10), events.next()).await.unwrap_err();
        assert_eq!(said(&mut other).await.1, "counted down 30 s");
        assert_eq!(said(&mut events).await, (false, "3".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_run_that_needs_no_answer_any_more_keeps_its_outcome_for_its_caller() {
    let world = World::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let tool = Tool::new("hasty", move |context: Context, _: NoArguments| {
        let counted = counted.clone();
        async move {
            let ask = context.request_input(Ask::form("?", form()));
            let told = tokio::time::timeout(Duration::from_secs(5), ask).await.is_ok();
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Answer::text(told.to_string()))
        }
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let question = park(&world, parked(call("hasty", "{}"), 60)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let mut events = world.calls().resume(back(&question, &[("q-1", yes(r#"{"n":1}"#))])).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "false".into()));
}

#[tokio::test(start_paused = true)]
async fn parked_runs_are_stopped_when_a_draining_worker_has_waited_long_enough() {
    let world = World::new();
    let config = Config { drain_timeout: Duration::from_secs(30), ..world.config() };
    let worker = world.run(Worker::new(config).tool(counts("one", 1)));
    let (gone, comes) =
        (park(&world, parked(call("one", "{}"), 600)).await, park(&world, parked(call("one", "{}"), 600)).await);
    let mut line = world.calls().invoke(call("one", "{}")).await.unwrap();
    asked(&mut line).await;
    let start = Instant::now();
    world.drain.cancel();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let mut refused = world.calls().invoke(call("one", "{}")).await.unwrap();
    assert!(matches!(refused.next().await, Some(Err(Error::NotBegun(_)))));
    let mut events = world.calls().resume(back(&comes, &[("q-1", yes(r#"{"n":1}"#))])).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "1".into()));
    assert_eq!(next(&mut line).await, CallEvent::Outcome(Outcome::Interrupted(Interruption::Drained)));
    worker.await.unwrap().unwrap();
    assert!(start.elapsed().abs_diff(Duration::from_secs(30)) < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_ne!(gone.run, comes.run);
}

#[tokio::test(start_paused = true)]
async fn a_draining_worker_ends_with_its_last_parked_run() {
    let world = World::new();
    let worker = world.run(Worker::new(world.config()).tool(counts("one", 1)));
    let question = park(&world, parked(call("one", "{}"), 600)).await;
    world.drain.cancel();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!worker.is_finished());
    let start = Instant::now();
    let mut events = world.calls().resume(back(&question, &[("q-1", yes(r#"{"n":1}"#))])).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "1".into()));
    worker.await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_can_ask_the_clients_model_and_for_its_roots() {
    let world = World::new();
    let tool = Tool::new("both", async |context: Context, _: NoArguments| {
        let asks = [Ask::sample(&json!({ "messages": [], "maxTokens": 1 })), Ask::roots()];
        let responses = context.request_inputs(asks).await?;
        let shown = responses.into_iter().map(|response| {
            response
                .accepted()
                .map_or_else(|| "no".into(), |content| String::from_utf8(content.json().to_vec()).unwrap())
        });
        Ok(Answer::text(shown.collect::<Vec<_>>().join(" ")))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let calls = world.calls();
    let mut events = calls.invoke(call("both", "{}")).await.unwrap();
    let question = asked(&mut events).await;
    let result = |json: &'static str| InputResponse::Result(json.into());
    let answers = vec![("q-1".into(), result(r#"{"model":"m"}"#)), ("q-2".into(), result(r#"{"roots":[ ]}"#))];
    calls.respond(&principal(), &question.run, answers).await.unwrap();
    assert_eq!(said(&mut events).await.1, r#"{"model":"m"} {"roots":[ ]}"#);
    // One that has no model is not asked for it.
    let client = ClientCapabilities { sampling: false, ..anything() };
    let mut events = calls.invoke(Invocation { client, ..call("both", "{}") }).await.unwrap();
    let question = asked(&mut events).await;
    assert_eq!(keys(&question), ["q-2"]);
    calls.respond(&principal(), &question.run, vec![("q-2".into(), result("{}"))]).await.unwrap();
    assert_eq!(said(&mut events).await.1, "no {}");
}

#[tokio::test(start_paused = true)]
async fn what_is_said_before_a_question_is_heard_before_it() {
    let world = World::new();
    let tool = Tool::new("talks", async |context: Context, _: NoArguments| {
        for step in 0..100 {
            context.progress(step.into(), None, None).await?;
        }
        context.request_input(Ask::form("?", form())).await?;
        Ok(Answer::text(""))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let line = Line { progress: true, log: None };
    let mut events = world.calls().invoke(Invocation { line, ..parked(call("talks", "{}"), 60) }).await.unwrap();
    let mut last = None;
    loop {
        match next(&mut events).await {
            CallEvent::Progress(progress) => last = Some(progress.progress),
            CallEvent::Asked(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last, Some(99.0));
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_hangs_up_on_a_hundred_questions_is_asked_no_more_but_others_are() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(counts("one", 1)));
    let mut hundred = Vec::new();
    for _ in 0..100 {
        hundred.push(park(&world, parked(call("one", "{}"), 60)).await);
    }
    let mut more = world.calls().invoke(parked(call("one", "{}"), 60)).await.unwrap();
    assert_eq!(said(&mut more).await, (false, "no".into()));
    park(&world, Invocation { principal: somebody_else(), ..parked(call("one", "{}"), 60) }).await;
    let mut events = world.calls().resume(back(&hundred[0], &[("q-1", yes(r#"{"n":1}"#))])).await.unwrap();
    assert_eq!(said(&mut events).await, (false, "1".into()));
    park(&world, parked(call("one", "{}"), 60)).await;
}
