//! What runs say that they have used.

use futures::StreamExt as _;
use longhaul_core::{Amount, OnInterrupt};
use longhaul_rpc::{CallEvent, Calls as _};
use longhaul_worker::{Answer, Context, NoArguments, Tool, Worker};

use crate::outcome::text;
use crate::store::{World, call};

fn amount(units: u64) -> Amount {
    Amount { units, micro_usd: 10 * units }
}

/// Spends twice.
fn spender() -> Tool {
    Tool::new("spend", async |context: Context, _: NoArguments| {
        context.spend(amount(1)).await?;
        context.spend(amount(2)).await?;
        Ok(Answer::text("done"))
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_task_spends_is_known_before_it_ends() {
    let world = World::new();
    world.store.faults(|faults| faults.spend_answers_lost = 3);
    let _worker = world.run(Worker::new(world.config()).tool(spender()));
    let id = world.store.create("spend", "{}");
    assert_eq!(text(world.store.outcome(id).await).1, "done");
    assert_eq!(world.store.task(id).spent, Some(amount(3)));
}

#[tokio::test(start_paused = true)]
async fn a_second_attempt_adds_to_what_the_first_one_spent() {
    let world = World::new();
    let (sender, mut lost) = tokio::sync::mpsc::unbounded_channel();
    let tool = Tool::new("again", move |context: Context, _: NoArguments| {
        let sender = sender.clone();
        async move {
            context.spend(amount(5)).await?;
            if context.as_task().is_some_and(|task| task.attempt == 1) {
                sender.send(()).unwrap();
                context.cancelled().await;
            }
            Ok(Answer::text("done"))
        }
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool.on_interrupt(OnInterrupt::Requeue)));
    let id = world.store.create_again("again", OnInterrupt::Requeue);
    lost.recv().await;
    world.store.until(|store| (store.task(id).spent == Some(amount(5))).then_some(())).await;
    world.store.lose(id);
    assert_eq!(text(world.store.outcome(id).await).1, "done");
    assert_eq!(world.store.task(id).spent, Some(amount(10)));
}

#[tokio::test(start_paused = true)]
async fn a_call_tells_its_caller_what_it_spent_before_it_answers() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).tool(spender()));
    let events = world.calls().invoke(call("spend", "{}")).await.unwrap();
    let events: Vec<_> = events.map(Result::unwrap).collect().await;
    let spent = events.iter().rev().find_map(|event| match event {
        CallEvent::Spent(total) => Some(*total),
        _ => None,
    });
    assert_eq!(spent, Some(amount(3)), "{events:?}");
    assert!(matches!(events.last(), Some(CallEvent::Outcome(_))));
}
