//! Tasks that ask their owners.

use std::io::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use longhaul_core::{
    ClientCapabilities, InputRequest, InputResponse, Interruption, Outcome, Question, TaskId, Timestamp,
};
use longhaul_rpc::{CallEvent, Calls as _};
use longhaul_worker::{Answer, Ask, Config, Context, Failure, InputError, NoArguments, Response, Tool, Worker, demo};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::outcome::text;
use crate::store::{Asked, Names, World, call, principal, yes};

const FORM: &str = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;

fn form() -> Value {
    serde_json::from_str(FORM).unwrap()
}

/// What a response came to, as text.
fn shown(response: &Response) -> String {
    match response {
        Response::Accept(content) => format!("yes {}", std::str::from_utf8(content.json()).unwrap()),
        Response::Result(content) => format!("result {}", std::str::from_utf8(content.json()).unwrap()),
        Response::Decline => "declined".into(),
        Response::Cancel => "cancelled".into(),
    }
}

/// A tool that asks all of this at once, and answers with what it was told.
fn asks(name: &str, asks: impl Fn() -> Vec<Ask> + Send + Sync + 'static) -> Tool {
    let asks = Arc::new(asks);
    Tool::new(name, move |context: Context, _: NoArguments| {
        let asks = asks.clone();
        async move {
            let responses = context.request_inputs(asks()).await?;
            Ok(Answer::text(responses.iter().map(shown).collect::<Vec<_>>().join(", ")))
        }
    })
}

fn requests(world: &World) -> Vec<InputRequest> {
    let asked = world.store.asked().into_iter();
    asked
        .filter_map(|(_, asked)| if let Asked::Input(_, requests, _) = asked { Some(requests) } else { None })
        .flatten()
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_task_asks_and_goes_on_with_the_answer() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    for (response, told) in [
        (yes(r#"{"answer":"blue"}"#), (false, "You said: blue")),
        (yes(r#"{"answer":7}"#), (true, "declined")),
        (InputResponse::Decline, (true, "declined")),
        (InputResponse::Cancel, (true, "declined")),
    ] {
        let id = world.store.create("ask", r#"{"question":"Which colour?"}"#);
        world.store.asking(id, 1).await;
        let start = Instant::now();
        world.store.respond(id, &[("q-1", response)]);
        let (is_error, words) = text(world.store.outcome(id).await);
        assert_eq!((is_error, words.as_str()), told);
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    }
    let (_, Asked::Input(_, requests, timeout)) = world.store.heard(1, |asked| matches!(asked, Asked::Input(..))).await
    else {
        panic!("nothing was asked")
    };
    assert_eq!(timeout, Duration::from_secs(600));
    let [InputRequest { key, question: Question::Form { message, .. } }] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    assert_eq!((key.as_str(), message.as_str()), ("q-1", "Which colour?"));
}

#[tokio::test(start_paused = true)]
async fn a_form_that_comes_from_a_struct_is_read_back_into_it() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Trip {
        seats: u8,
        window: Option<bool>,
    }
    let world = World::new();
    let tool = Tool::new("book", async |context: Context, _: NoArguments| {
        let response = context.request_input(Ask::form_of::<Trip>("Where to?").timeout(Duration::from_secs(9))).await?;
        let trip: Trip = response.accepted().ok_or_else(|| Failure::tool("no"))?.parse()?;
        assert_eq!(trip, Trip { seats: 2, window: None });
        Ok(Answer::text("booked"))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("book", "{}");
    world.store.asking(id, 1).await;
    world.store.respond(id, &[("q-1", yes(r#"{"seats":2}"#))]);
    assert_eq!(text(world.store.outcome(id).await), (false, "booked".into()));
    world.store.heard(1, |asked| matches!(asked, Asked::Input(_, _, timeout) if timeout.as_secs() == 9)).await;
}

#[tokio::test(start_paused = true)]
async fn several_questions_are_answered_in_any_order_and_the_hook_hears_each_as_it_comes() {
    let world = World::new();
    let (send, mut heard) = mpsc::unbounded_channel();
    let tool = asks("many", || {
        let ask = |message: &str| Ask::form(message, form());
        vec![ask("one"), ask("two").key("second"), ask("three").timeout(Duration::from_secs(60))]
    })
    .on_input(move |context, key, response| {
        let send = send.clone();
        async move {
            assert_eq!(context.tool(), "many");
            let _ = send.send(format!("{key}: {}", shown(&response)));
        }
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("many", "{}");
    world.store.asking(id, 3).await;
    let inputs: Vec<_> = world.store.task(id).inputs.into_iter().map(|input| input.key).collect();
    assert_eq!(inputs, ["q-1", "second", "q-2"]);
    world.store.respond(id, &[("second", yes(r#"{"n":2}"#))]);
    assert_eq!(heard.recv().await.unwrap(), r#"second: yes {"n":2}"#);
    world.store.lapse(id, Timestamp::from_micros(60_000_000));
    assert_eq!(heard.recv().await.unwrap(), "q-2: declined");
    assert_eq!(world.store.task(id).open_inputs().count(), 1);
    world.store.respond(id, &[("q-1", InputResponse::Cancel)]);
    assert_eq!(heard.recv().await.unwrap(), "q-1: cancelled");
    assert_eq!(text(world.store.outcome(id).await), (false, r#"cancelled, yes {"n":2}, declined"#.into()));
}

#[tokio::test(start_paused = true)]
async fn answers_are_deleted_once_they_have_arrived() {
    let world = World::new();
    let tool = Tool::new("patient", async |context: Context, _: NoArguments| {
        context.request_input(Ask::form("now?", form())).await?;
        context.cancelled().await;
        Ok(Answer::text(""))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("patient", "{}");
    world.store.asking(id, 1).await;
    let start = Instant::now();
    world.store.respond(id, &[("q-1", yes(r#"{"n":1}"#))]);
    let (at, _) = world.store.heard(1, |asked| *asked == Asked::Collect(id, vec![1])).await;
    assert!(at - start < Duration::from_millis(100));
    assert_eq!(world.store.uncollected(id), 0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let collects = world.store.asked().into_iter().filter(|(_, asked)| matches!(asked, Asked::Collect(..)));
    assert_eq!(collects.count(), 2, "with nothing open there is nothing to look for");
}

#[tokio::test(start_paused = true)]
async fn a_question_whose_taking_was_not_heard_is_asked_again_as_the_same() {
    let world = World::new();
    // More than a connection repeats on its own account.
    world.store.faults(|faults| faults.input_answers_lost = 20);
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let id = world.store.create("ask", r#"{"question":"Well?"}"#);
    world.store.asking(id, 1).await;
    // Answered before the worker knows that it has asked.
    world.store.respond(id, &[("q-1", yes(r#"{"answer":"so"}"#))]);
    assert_eq!(text(world.store.outcome(id).await), (false, "You said: so".into()));
    let requests = requests(&world);
    assert!(requests.len() > 20 && requests.iter().all(|request| *request == requests[0]));
    assert_eq!(world.store.task(id).inputs.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_spoke_of_is_found_all_the_same() {
    for forgetful in [false, true] {
        let world = World::new();
        world.store.faults(|faults| (faults.mute, faults.forgetful) = (true, forgetful));
        let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
        let id = world.store.create("ask", r#"{"question":"Well?"}"#);
        world.store.asking(id, 1).await;
        tokio::time::sleep(Duration::from_secs(31)).await;
        let start = Instant::now();
        world.store.respond(id, &[("q-1", yes(r#"{"answer":"so"}"#))]);
        world.store.outcome(id).await;
        let took = start.elapsed();
        assert!((Duration::from_secs(1)..=Duration::from_millis(10_100)).contains(&took), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_its_owner_holds_no_slot_and_its_clock_stands_still() {
    let world = World::new();
    let tool = Tool::new("slow", async |context: Context, _: NoArguments| {
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(context.deadline().is_some());
        context.request_input(Ask::form("go on?", form())).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(Answer::text("done"))
    })
    .timeout(Duration::from_secs(10));
    let config = Config { slots: 1, ..world.config() };
    let _worker = world.run(Worker::new(config).tool(tool).with_tools(demo::tools()));
    let waiting = world.store.create("slow", "{}");
    world.store.asking(waiting, 1).await;
    let next = world.store.create("countdown", r#"{"seconds":100}"#);
    world.store.outcome(next).await;
    // The claim for more tasks that is out at this moment holds nobody up.
    let start = Instant::now();
    world.store.respond(waiting, &[("q-1", yes(r#"{"n":1}"#))]);
    assert_eq!(text(world.store.outcome(waiting).await), (false, "done".into()));
    assert!(start.elapsed().abs_diff(Duration::from_secs(2)) < Duration::from_millis(100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_task_goes_on_only_when_a_slot_is_free_and_the_next_one_waits_for_it() {
    let world = World::new();
    let config = Config { slots: 1, ..world.config() };
    let tool = Tool::new("late", async |context: Context, _: NoArguments| {
        context.request_input(Ask::form("go on?", form())).await?;
        tokio::time::sleep(Duration::from_secs(40)).await;
        Ok(Answer::text("done"))
    });
    let _worker = world.run(Worker::new(config).tool(tool).with_tools(demo::tools()));
    let late = world.store.create("late", "{}");
    world.store.asking(late, 1).await;
    let busy = world.store.create("countdown", r#"{"seconds":50}"#);
    world.store.running(busy).await;
    let start = Instant::now();
    world.store.respond(late, &[("q-1", yes(r#"{"n":1}"#))]);
    world.store.outcome(busy).await;
    assert!(start.elapsed() >= Duration::from_secs(49), "{:?}", start.elapsed());
    // It came back while there was a claim for its slot.
    let next = world.store.create("countdown", r#"{"seconds":1}"#);
    world.store.outcome(late).await;
    assert!(start.elapsed() >= Duration::from_secs(89), "{:?}", start.elapsed());
    world.store.outcome(next).await;
    assert!(start.elapsed() >= Duration::from_secs(90), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_handed_over_as_another_comes_back_waits_for_a_slot_under_its_lease() {
    let world = World::new();
    world.store.faults(|faults| faults.mute = true);
    let (send, mut began) = mpsc::unbounded_channel();
    let tool = Tool::new("noted", move |_: Context, _: NoArguments| {
        let _ = send.send(Instant::now());
        async { Ok(Answer::text("")) }
    });
    let late = Tool::new("late", async |context: Context, _: NoArguments| {
        context.request_input(Ask::form("go on?", form())).await?;
        tokio::time::sleep(Duration::from_secs(40)).await;
        Ok(Answer::text("done"))
    });
    let _worker = world.run(Worker::new(Config { slots: 1, ..world.config() }).tool(tool).tool(late));
    let first = world.store.create("late", "{}");
    world.store.asking(first, 1).await;
    world.store.heard(2, |asked| matches!(asked, Asked::Claim(_))).await;
    world.store.faults(|faults| faults.mute = false);
    world.store.respond(first, &[("q-1", yes(r#"{"n":1}"#))]);
    world.store.heard(1, |asked| *asked == Asked::Collect(first, vec![1])).await;
    let start = Instant::now();
    let second = world.store.create("noted", "{}");
    world.store.running(second).await;
    assert!(began.recv().await.unwrap() - start > Duration::from_secs(39));
    let (at, _) = world
        .store
        .heard(1, |asked| {
            *asked == Asked::Heartbeat(vec![(second, 1)]) || matches!(asked, Asked::Heartbeat(all) if all.len() == 2)
        })
        .await;
    assert!(at - start < Duration::from_secs(11), "{:?}", at - start);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_cancelled_while_it_waits_ends_there() {
    let world = World::new();
    let (send, mut seen) = mpsc::unbounded_channel();
    let tool = Tool::new("asks", move |context: Context, _: NoArguments| {
        let send = send.clone();
        async move {
            let _ = send.send(context.request_input(Ask::form("?", form())).await);
            Ok(Answer::text(""))
        }
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool).with_tools(demo::tools()));
    let id = world.store.create("asks", "{}");
    world.store.asking(id, 1).await;
    let start = Instant::now();
    world.store.cancel(id);
    assert_eq!(seen.recv().await, Some(Err(InputError::Ended)));
    assert!(start.elapsed() < Duration::from_millis(100));
    let next = world.store.create("echo", "{}");
    world.store.outcome(next).await;
    assert_eq!(world.store.completions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_draining_worker_waits_for_answers_as_it_waits_for_work() {
    let world = World::new();
    let config = Config { drain_timeout: Duration::from_secs(30), ..world.config() };
    let worker = world.run(Worker::new(config).with_tools(demo::tools()));
    let ids = [(); 2].map(|()| world.store.create("ask", r#"{"question":"?"}"#));
    for id in ids {
        world.store.asking(id, 1).await;
    }
    let start = Instant::now();
    world.drain.cancel();
    world.store.heard(1, |asked| *asked == Asked::Detach).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.store.respond(ids[0], &[("q-1", yes(r#"{"answer":"yes"}"#))]);
    assert_eq!(text(world.store.outcome(ids[0]).await), (false, "You said: yes".into()));
    worker.await.unwrap().unwrap();
    assert!(start.elapsed().abs_diff(Duration::from_secs(30)) < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(world.store.outcome(ids[1]).await, Outcome::Interrupted(Interruption::Drained));
}

/// Runs a tool that asks once in a task of such a client; its words and its status message.
async fn declined(world: &World, client: ClientCapabilities, tool: &str) -> (String, String) {
    let id: TaskId = world.store.create_for(client, tool, "{}");
    let (_, words) = text(world.store.outcome(id).await);
    (words, world.store.task(id).status_message.unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn what_must_not_be_shown_is_declined_unseen_and_the_owner_reads_why() {
    let world = World::new();
    let secret = json!({ "type": "object", "properties": { "password": { "type": "string" } } });
    let nested = json!({ "type": "object", "properties": { "x": { "type": "object" } } });
    let names = Names(vec![
        ("good.longhaul.dev", vec!["93.184.215.14".parse().unwrap(), "2606:2800:21f:cb07::1".parse().unwrap()]),
        ("half.longhaul.dev", vec!["93.184.215.14".parse().unwrap(), IpAddr::from([10, 0, 0, 1])]),
        ("none.longhaul.dev", vec![]),
    ]);
    let config = Config { resolver: Arc::new(names), ..world.config() };
    let url = |name: &'static str, url: &'static str| asks(name, move || vec![Ask::url("Sign in", url)]);
    let worker = Worker::new(config)
        .tool(asks("secret", move || vec![Ask::form("Sign in", secret.clone())]))
        .tool(asks("nested", move || vec![Ask::form("Well?", nested.clone())]))
        .tool(url("plain", "http://good.longhaul.dev/"))
        .tool(url("good", "https://good.longhaul.dev/a"))
        .tool(url("half", "https://half.longhaul.dev/a"))
        .tool(url("none", "https://none.longhaul.dev/a"))
        .tool(url("unknown", "https://unknown.longhaul.dev/a"));
    let _worker = world.run(worker);
    let all = crate::store::anything();
    for (tool, why) in [
        ("secret", "password"),
        ("nested", "form"),
        ("plain", "https"),
        ("half", "not public"),
        ("none", "no address"),
        ("unknown", "no address"),
    ] {
        let (words, status) = declined(&world, all, tool).await;
        assert!(words == "declined" && status.contains(why), "{tool}: {words} {status}");
    }
    for (client, tool) in [
        (ClientCapabilities { elicitation_form: false, ..all }, "nested"),
        (ClientCapabilities { elicitation_url: false, ..all }, "good"),
        (ClientCapabilities::default(), "good"),
    ] {
        assert_eq!(declined(&world, client, tool).await.0, "declined");
    }
    assert_eq!(
        declined(&world, ClientCapabilities::default(), "good").await.1,
        "the client cannot be asked to open a page"
    );
    assert_eq!(requests(&world), [], "none of them was sent");
    let id = world.store.create("good", "{}");
    world.store.asking(id, 1).await;
    world.store.respond(id, &[("q-1", InputResponse::Accept(None))]);
    assert_eq!(text(world.store.outcome(id).await), (false, "yes {}".into()));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_wrong_in_itself_is_an_error_at_once() {
    let world = World::new();
    let tool = Tool::new("wrong", async |context: Context, _: NoArguments| {
        let ask = || Ask::form("?", form());
        let error = async |asks: Vec<Ask>| context.request_inputs(asks).await.unwrap_err();
        assert_eq!(error(vec![Ask::sample(&json!({ "messages": [] }))]).await, InputError::Unsupported);
        assert_eq!(error(vec![ask(), Ask::roots()]).await, InputError::Unsupported);
        assert!(matches!(error(vec![ask().key("a b")]).await, InputError::Invalid(_)));
        assert!(matches!(error(vec![Ask::form_of::<String>("?")]).await, InputError::Invalid(_)));
        assert!(matches!(error(vec![Ask::sample(&[1])]).await, InputError::Invalid(_)));
        assert_eq!(error(vec![ask().key("k"), ask().key("k")]).await, InputError::KeyUsed("k".into()));
        assert_eq!(error((0..33).map(|_| ask()).collect()).await, InputError::TooMany);
        assert_eq!(context.request_inputs([]).await, Ok(vec![]));
        // None of these has taken a key or a place.
        let asks = (0..32).map(|nth| if nth == 0 { ask().key("k") } else { ask() });
        let responses = context.request_inputs(asks).await?;
        assert_eq!(error(vec![ask().key("q-1")]).await, InputError::TooMany);
        Ok(Answer::text(responses.len().to_string()))
    });
    let twice = Tool::new("twice", async |context: Context, _: NoArguments| {
        let ask = || Ask::form("?", form());
        context.request_inputs([ask().key("q-1"), ask()]).await?;
        let used = context.request_input(ask().key("q-2")).await.unwrap_err();
        Ok(Answer::text(used.to_string()))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool).tool(twice));
    for (tool, count, told) in [("wrong", 32, "32"), ("twice", 2, "the key \"q-2\" has been used for another question")]
    {
        let id = world.store.create(tool, "{}");
        world.store.asking(id, count).await;
        world.store.lapse(id, Timestamp::from_micros(i64::MAX));
        assert_eq!(text(world.store.outcome(id).await), (false, told.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn beyond_its_share_of_the_waiting_runs_the_questions_of_a_tenant_are_declined() {
    let world = World::new();
    let config = Config { slots: 100, ..world.config() };
    let _worker = world.run(Worker::new(config).with_tools(demo::tools()));
    let ids: Vec<_> = (0..750).map(|_| world.store.create("ask", r#"{"question":"?"}"#)).collect();
    for id in &ids {
        world.store.asking(*id, 1).await;
    }
    let more = world.store.create("ask", r#"{"question":"?"}"#);
    assert_eq!(text(world.store.outcome(more).await), (true, "declined".into()));
    assert_eq!(world.store.task(more).inputs.len(), 0);
    world.store.respond(ids[0], &[("q-1", yes(r#"{"answer":"so"}"#))]);
    world.store.outcome(ids[0]).await;
    let more = world.store.create("ask", r#"{"question":"?"}"#);
    world.store.asking(more, 1).await;
}

fn withdrawals(world: &World) -> Vec<Vec<String>> {
    let asked = world.store.asked().into_iter();
    asked.filter_map(|(_, asked)| if let Asked::Withdraw(_, keys) = asked { Some(keys) } else { None }).collect()
}

#[tokio::test(start_paused = true)]
async fn a_question_that_its_tool_gives_up_on_is_withdrawn_and_its_key_stays_used() {
    let world = World::new();
    let tool = Tool::new("brief", async |context: Context, _: NoArguments| {
        let ask = |key: &str| Ask::form("now?", form()).key(key);
        // Both of several, and the one of them that was not answered yet.
        let both = context.request_inputs([ask("a"), ask("b")]);
        assert!(tokio::time::timeout(Duration::from_secs(5), both).await.is_err());
        let used = context.request_input(ask("b")).await;
        assert_eq!(used, Err(InputError::KeyUsed("b".into())));
        let last = context.request_input(ask("c")).await?;
        Ok(Answer::text(shown(&last)))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("brief", "{}");
    world.store.asking(id, 2).await;
    world.store.respond(id, &[("a", yes(r#"{"n":1}"#))]);
    let open = |store: &crate::store::Store| -> Vec<String> {
        store.task(id).open_inputs().map(|(_, key, _)| key.to_owned()).collect()
    };
    world.store.until(|store| (open(store) == ["c"]).then_some(())).await;
    let (at, _) = world.store.heard(1, |asked| matches!(asked, Asked::Withdraw(..))).await;
    let (then, _) = world.store.heard(1, |asked| matches!(asked, Asked::Input(..))).await;
    assert!((at - then).abs_diff(Duration::from_secs(5)) < Duration::from_millis(100), "{:?}", at - then);
    assert_eq!(withdrawals(&world), [["b"]], "what was answered needs no withdrawal");
    world.store.respond(id, &[("c", yes(r#"{"n":3}"#))]);
    assert_eq!(text(world.store.outcome(id).await), (false, r#"yes {"n":3}"#.into()));
    assert_eq!(withdrawals(&world).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_given_up_while_it_is_being_asked_does_not_stay_open() {
    let world = World::new();
    // More than a connection repeats on its own account.
    world.store.faults(|faults| faults.input_answers_lost = 100);
    let tool = Tool::new("hasty", async |context: Context, _: NoArguments| {
        let asking = context.request_input(Ask::form("now?", form()).key("k"));
        assert!(tokio::time::timeout(Duration::from_millis(10), asking).await.is_err());
        context.cancelled().await;
        Ok(Answer::text(""))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("hasty", "{}");
    world.store.heard(1, |asked| matches!(asked, Asked::Withdraw(..))).await;
    let is_closed = |store: &crate::store::Store| {
        let task = store.task(id);
        (task.inputs.len() == 1 && !task.is_asking()).then_some(())
    };
    world.store.until(is_closed).await;
    assert_eq!(withdrawals(&world), [["k"]]);
    world.store.cancel(id);
}

/// A log that is kept.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn neither_answers_nor_questions_are_logged() {
    // What is logged for the first time while a logger is being set, on whatever thread, may stay unheard: so once before.
    talk_of_canaries().await;
    let log = Log::default();
    let kept = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || kept.clone());
    let _logging = tracing::subscriber::set_default(subscriber.finish());
    talk_of_canaries().await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("a question was not asked") && log.contains("attached"), "it is a log");
    let spoken: Vec<_> = log.lines().filter(|line| line.contains("canary")).collect();
    assert!(spoken.is_empty(), "{spoken:#?}");
}

async fn talk_of_canaries() {
    let world = World::new();
    let secret = json!({ "type": "object", "properties": { "password": { "type": "string" } } });
    let tool = asks("secret", move || vec![Ask::form("A canary that is not shown", secret.clone())]);
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()).tool(tool));
    let id = world.store.create("ask", r#"{"question":"A canary that asks?"}"#);
    world.store.asking(id, 1).await;
    world.store.respond(id, &[("q-1", yes(r#"{"answer":"a canary that answers"}"#))]);
    assert!(text(world.store.outcome(id).await).1.contains("canary"));
    let id = world.store.create("secret", "{}");
    world.store.outcome(id).await;
    let calls = world.calls();
    let mut events = calls.invoke(call("ask", r#"{"question":"A canary on the line?"}"#)).await.unwrap();
    let Some(Ok(CallEvent::Asked(asked))) = events.next().await else { panic!("not asked") };
    let answers = vec![("q-1".into(), yes(r#"{"answer":"a canary on the line"}"#))];
    calls.respond(&principal(), &asked.run, answers).await.unwrap();
    events.next().await.unwrap().unwrap();
}
