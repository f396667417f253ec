//! Tasks are claimed, run and completed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_core::{Ending, Outcome, Phase, TaskSupport};
use longhaul_worker::{Answer, Config, Context, NoArguments, Tool, Worker, demo};

use crate::outcome::{error, text};
use crate::store::{Asked, World, principal};

fn claim(asked: &Asked) -> bool {
    matches!(asked, Asked::Claim(_))
}

#[tokio::test(start_paused = true)]
async fn a_task_is_claimed_run_and_completed() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let id = world.store.create("countdown", r#"{"seconds":3}"#);
    assert_eq!(text(world.store.outcome(id).await), (false, "counted down 3 s".into()));
    let task = world.store.task(id);
    assert_eq!(task.status_message.as_deref(), Some("done"), "the last word is stored before the outcome");
    assert_eq!(task.progress.unwrap().progress, 3.0);
    let asked = world.store.asked();
    let Asked::Attach(info) = &asked[0].1 else { panic!("it attaches first: {asked:?}") };
    assert_eq!((info.id.name.as_str(), info.url.as_deref()), ("w", Some("memory://worker")));
    assert_eq!(
        info.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(),
        ["echo", "countdown", "ask", "fail", "panic"]
    );
    let Some((_, Asked::Claim(claim))) = asked.iter().find(|(_, asked)| claim(asked)) else { panic!("no claim") };
    assert_eq!((claim.max, claim.tools.len()), (8, 5));
    assert_eq!(world.store.completions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_knows_its_task() {
    let world = World::new();
    let tool = Tool::new("who", async |context: Context, _: NoArguments| {
        let task = context.as_task().unwrap();
        assert_eq!(Some(task.id), context.task_id());
        assert_eq!((task.attempt, task.expires_at.unwrap().as_micros()), (1, 1_000_000));
        assert_eq!((context.principal(), context.tool()), (&principal(), "who"));
        Ok(Answer::text(task.id.to_string()))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("who", "{}");
    assert_eq!(text(world.store.outcome(id).await), (false, id.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_its_own_task_at_once_and_nothing_else() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let other = world.store.create("countdown", r#"{"seconds":5}"#);
    let start = tokio::time::Instant::now();
    let id = world.store.create("panic", "{}");
    assert_eq!(error(world.store.outcome(id).await), (-32603, "the tool panicked".into()));
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(!text(world.store.outcome(other).await).0);
    let next = world.store.create("echo", "{}");
    assert_eq!(text(world.store.outcome(next).await).1, "{}");
}

#[tokio::test(start_paused = true)]
async fn bad_arguments_are_a_tool_error_that_names_the_field() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let id = world.store.create("countdown", r#"{"seconds":"soon"}"#);
    let (is_error, text) = text(world.store.outcome(id).await);
    assert!(is_error && text.contains("`seconds`"), "{text}");
    assert_eq!(world.store.task(id).status_message, Some(text), "a failed task says why");
    assert_eq!(world.store.task(id).phase, Phase::Ended(Ending::Result { is_error: true }));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_takes_too_long_ends_with_its_limit() {
    let world = World::new();
    let stopped = Arc::new(AtomicUsize::new(0));
    let seen = stopped.clone();
    let tool = Tool::new("slow", async |context: Context, _: NoArguments| {
        context.cancelled().await;
        std::future::pending().await
    })
    .timeout(Duration::from_millis(2500))
    .on_cancel(move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        std::future::ready(())
    });
    let _worker = world.run(Worker::new(Config { slots: 1, ..world.config() }).tool(tool));
    let start = tokio::time::Instant::now();
    let (first, second) = (world.store.create("slow", "{}"), world.store.create("slow", "{}"));
    assert_eq!(error(world.store.outcome(first).await), (-32603, "timed out after 2.5 s".into()));
    assert!(start.elapsed() < Duration::from_secs(3), "the outcome does not wait for the cleaning up");
    // The slot does.
    world.store.running(second).await;
    assert!(start.elapsed() >= Duration::from_millis(7500), "{:?}", start.elapsed());
    assert_eq!(stopped.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_above_the_limit_ends_the_task_with_a_clear_message() {
    let world = World::new();
    let _worker = world.run(Worker::new(Config { max_result_bytes: 1000, ..world.config() }).with_tools(demo::tools()));
    let id = world.store.create("echo", &format!(r#"{{"text":"{}"}}"#, "x".repeat(1000)));
    let (code, message) = error(world.store.outcome(id).await);
    assert!(code == -32603 && message.contains("too large") && message.contains("1000 at most"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn as_many_tasks_run_as_there_are_slots_and_no_more() {
    let world = World::new();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, highest) = (now.clone(), most.clone());
    let tool = Tool::new("count", move |_, _: NoArguments| {
        let (now, most) = (counted.clone(), highest.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(Answer::text(""))
        }
    });
    let _worker = world.run(Worker::new(Config { slots: 3, ..world.config() }).tool(tool));
    let ids: Vec<_> = (0..10).map(|_| world.store.create("count", "{}")).collect();
    for id in ids {
        world.store.outcome(id).await;
    }
    assert_eq!((now.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_asked_again_under_its_token() {
    let world = World::new();
    world.store.faults(|faults| faults.claim_answers_lost = 1);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let tool = Tool::new("once", move |_, _: NoArguments| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Answer::text("")))
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("once", "{}");
    world.store.outcome(id).await;
    let asked = world.store.asked();
    let tokens: Vec<_> = asked
        .iter()
        .filter_map(|(_, asked)| match asked {
            Asked::Claim(claim) => Some(&claim.token),
            _ => None,
        })
        .collect();
    assert_eq!(tokens[0], tokens[1]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    // Its lease may be old by then: it is confirmed before the run.
    let confirmed = asked.iter().position(|(_, asked)| *asked == Asked::Heartbeat(vec![(id, 1)])).unwrap();
    assert!(asked[..confirmed].iter().filter(|(_, asked)| claim(asked)).count() >= 2);
    // And the next claim is another one.
    let (_, Asked::Claim(next)) = world.store.heard(3, claim).await else { panic!("not a claim") };
    assert_ne!(next.token, *tokens[0]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_cancelled_while_its_claim_was_lost_does_not_run() {
    let world = World::new();
    world.store.faults(|faults| (faults.claim_answers_lost, faults.mute) = (1, true));
    let tool = Tool::new("never", async |_, _: NoArguments| panic!("it ran"));
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("never", "{}");
    world.store.running(id).await;
    world.store.cancel(id);
    world.store.heard(3, claim).await;
    assert_eq!(world.store.completions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_repeated_until_it_is_acknowledged() {
    let world = World::new();
    world.store.faults(|faults| faults.complete_answers_lost = 100);
    let _worker = world.run(Worker::new(Config { slots: 1, ..world.config() }).with_tools(demo::tools()));
    let id = world.store.create("echo", "{}");
    world.store.until(|store| (store.completions() > 20).then_some(())).await;
    world.store.faults(|faults| faults.complete_answers_lost = 0);
    let next = world.store.create("echo", "{}");
    world.store.outcome(next).await;
    let outcomes: Vec<_> = world
        .store
        .asked()
        .into_iter()
        .filter(|(_, asked)| matches!(asked, Asked::Complete(fence, _) if fence.id == id))
        .collect();
    assert!(outcomes.iter().all(|(_, asked)| *asked == outcomes[0].1), "always the same one");
}

#[tokio::test(start_paused = true)]
async fn a_late_completion_is_refused_and_the_worker_goes_on() {
    let world = World::new();
    world.store.faults(|faults| faults.mute = true);
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let id = world.store.create("countdown", r#"{"seconds":2,"steps":1}"#);
    world.store.heard(1, |asked| matches!(asked, Asked::Report(..))).await;
    world.store.cancel(id);
    world.store.heard(1, |asked| matches!(asked, Asked::Complete(..))).await;
    let next = world.store.create("echo", "{}");
    world.store.outcome(next).await;
    assert_eq!(world.store.outcome(id).await, Outcome::Cancelled);
    assert_eq!(world.store.completions(), 2);
}

#[tokio::test(start_paused = true)]
async fn tools_may_change_while_the_worker_runs() {
    let world = World::new();
    let tool = |name: &str| Tool::new(name, async |_, _: NoArguments| Ok(Answer::text("")));
    let worker = Worker::new(world.config()).tool(tool("old").task_support(TaskSupport::Forbidden));
    let tools = worker.tools();
    let _worker = world.run(worker);
    world.store.heard(1, |asked| matches!(asked, Asked::Attach(_))).await;
    let id = world.store.create("new", "{}");
    tools.replace([tool("new")]).unwrap();
    world.store.outcome(id).await;
    let attach = world.store.heard(2, |asked| matches!(asked, Asked::Attach(_))).await;
    let Asked::Attach(info) = attach.1 else { panic!("not an attach") };
    assert_eq!(info.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["new"]);
    // A tool that takes no tasks is not claimed for.
    let (_, Asked::Claim(first)) = world.store.heard(1, claim).await else { panic!("not a claim") };
    assert_eq!(first.tools, ["new"]);

    // Nor does the claim that waits for tasks of former tools keep those of later ones waiting.
    let start = tokio::time::Instant::now();
    tools.add(tool("newer")).unwrap();
    let id = world.store.create("newer", "{}");
    world.store.outcome(id).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_cannot_be_offered_keeps_the_worker_from_running() {
    let world = World::new();
    let tool = Tool::new("a b", async |_, _: NoArguments| Ok(Answer::text("")));
    let error = Worker::new(world.config()).tool(tool).run(world.drain.clone()).await.unwrap_err();
    assert!(error.to_string().starts_with("tool \"a b\": its name must be"), "{error}");
    assert!(world.store.asked().is_empty());
}
