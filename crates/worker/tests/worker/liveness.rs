//! Runs are stopped when they must, and the worker comes back.

use std::time::Duration;

use longhaul_core::Outcome;
use longhaul_worker::{Config, Context, Ended, Failure, Liveness, NoArguments, Status, Tool, Worker, demo};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::outcome::text;
use crate::store::{Asked, World};

/// What became of a run, and when.
#[derive(Debug, PartialEq)]
enum Seen {
    Cancelled(Status),
    Hook,
    Dropped,
}

/// A tool that says how it is stopped, and stays for as long as it is let.
fn stubborn() -> (Tool, mpsc::UnboundedReceiver<(Instant, Seen)>) {
    struct OnDrop(mpsc::UnboundedSender<(Instant, Seen)>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.send((Instant::now(), Seen::Dropped));
        }
    }
    let (send, receive) = mpsc::unbounded_channel();
    let hook = send.clone();
    let tool = Tool::new("stubborn", move |context: Context, _: NoArguments| {
        let send = send.clone();
        async move {
            let _gone = OnDrop(send.clone());
            context.cancelled().await;
            assert!(context.is_cancelled());
            let _ = send.send((Instant::now(), Seen::Cancelled(context.status())));
            std::future::pending().await
        }
    })
    .on_cancel(move |_| {
        let _ = hook.send((Instant::now(), Seen::Hook));
        std::future::ready(())
    });
    (tool, receive)
}

async fn stopped(seen: &mut mpsc::UnboundedReceiver<(Instant, Seen)>) -> (Instant, Instant) {
    let mut all = [seen.recv().await.unwrap(), seen.recv().await.unwrap(), seen.recv().await.unwrap()];
    all[..2].sort_by_key(|(_, seen)| *seen == Seen::Hook);
    let [(at, cancelled), (_, hook), (end, dropped)] = all;
    assert_eq!((cancelled, hook, dropped), (Seen::Cancelled(Status::Ended(Ended::Stopped)), Seen::Hook, Seen::Dropped));
    (at, end)
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_stops_its_run_at_once_and_by_force_after_a_grace() {
    let world = World::new();
    let (tool, mut seen) = stubborn();
    let _worker = world.run(Worker::new(world.config()).tool(tool).with_tools(demo::tools()));
    let id = world.store.create("stubborn", "{}");
    world.store.running(id).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    world.store.cancel(id);
    let (cancelled, dropped) = stopped(&mut seen).await;
    assert!(cancelled - start < Duration::from_millis(100), "{:?}", cancelled - start);
    assert!((dropped - cancelled).abs_diff(Duration::from_secs(5)) < Duration::from_millis(100));
    let next = world.store.create("echo", "{}");
    world.store.outcome(next).await;
    assert_eq!(world.store.completions(), 1, "nothing is said of the cancelled one");
}

#[tokio::test(start_paused = true)]
async fn a_directive_that_was_lost_comes_with_the_next_heartbeat() {
    let world = World::new();
    world.store.faults(|faults| faults.mute = true);
    let (tool, mut seen) = stubborn();
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("stubborn", "{}");
    world.store.running(id).await;
    let start = Instant::now();
    world.store.cancel(id);
    let (cancelled, _) = stopped(&mut seen).await;
    assert!(cancelled - start <= Duration::from_millis(10_100), "{:?}", cancelled - start);
    let last = world.store.asked().into_iter().rfind(|(_, asked)| matches!(asked, Asked::Heartbeat(_)));
    assert_ne!(last.unwrap().1, Asked::Heartbeat(vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_asks_stops_when_its_task_has_ended() {
    let world = World::new();
    world.store.faults(|faults| faults.mute = true);
    let (send, mut seen) = mpsc::unbounded_channel();
    let tool = Tool::new("polite", move |context: Context, _: NoArguments| {
        let send = send.clone();
        async move {
            for second in 0_u32.. {
                if let Err(ended) = context.progress(second.into(), None, None).await {
                    let _ = send.send(ended);
                    return Err(Failure::from(ended));
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            unreachable!("it counts for ever")
        }
    });
    let _worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("polite", "{}");
    world.store.heard(2, |asked| matches!(asked, Asked::Report(..))).await;
    world.store.cancel(id);
    assert_eq!(seen.recv().await, Some(Ended::Already(longhaul_core::Ending::Cancelled)));
    assert_eq!(world.store.outcome(id).await, Outcome::Cancelled);
    assert_eq!(world.store.completions(), 0);
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_together_every_ten_seconds() {
    let world = World::new();
    let _worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let ids = [(); 3].map(|()| world.store.create("countdown", r#"{"seconds":60}"#));
    for id in ids {
        world.store.outcome(id).await;
    }
    let beats: Vec<_> = world
        .store
        .asked()
        .into_iter()
        .filter_map(|(at, asked)| match asked {
            Asked::Heartbeat(leases) if leases.len() == 3 => Some(at),
            _ => None,
        })
        .collect();
    assert!((5..=7).contains(&beats.len()), "{}", beats.len());
    for pair in beats.windows(2) {
        assert!((pair[1] - pair[0]).abs_diff(Duration::from_secs(10)) < Duration::from_millis(100));
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_renew_stops_its_runs_in_time() {
    for (factor, self_stop) in [(1.0, Duration::from_secs(25)), (0.1, Duration::from_millis(2500))] {
        let world = World::new();
        let (tool, mut seen) = stubborn();
        let liveness = Liveness::default().scaled(factor);
        let _worker = world.run(Worker::new(Config { liveness, ..world.config() }).tool(tool));
        let id = world.store.create("stubborn", "{}");
        let (last, _) = world.store.heard(3, |asked| *asked == Asked::Heartbeat(vec![(id, 1)])).await;
        world.store.faults(|faults| faults.deaf = true);
        let (cancelled, _) = stopped(&mut seen).await;
        assert!((cancelled - last).abs_diff(self_stop) < Duration::from_millis(20), "{:?}", cancelled - last);
        // It lets go of the lease: a heartbeat that gets through again does not name it.
        world.store.faults(|faults| faults.deaf = false);
        world.store.heard(1, |asked| *asked == Asked::Heartbeat(vec![])).await;
        let after = world.store.asked().into_iter().rev().take_while(|(at, _)| *at > cancelled);
        assert!(after.into_iter().all(|(_, asked)| asked != Asked::Heartbeat(vec![(id, 1)])));
        assert_eq!(world.store.completions(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_attaches_again_after_its_connection_broke_and_its_runs_go_on() {
    let world = World::new();
    let worker = Worker::new(world.config()).with_tools(demo::tools());
    let mut attached = worker.attached();
    let _worker = world.run(worker);
    attached.wait_for(|attached| *attached).await.unwrap();
    let id = world.store.create("countdown", r#"{"seconds":20}"#);
    world.store.running(id).await;
    world.serve();
    attached.wait_for(|attached| !*attached).await.unwrap();
    let (at, _) = world.store.heard(2, |asked| matches!(asked, Asked::Attach(_))).await;
    attached.wait_for(|attached| *attached).await.unwrap();
    // At once: the lease may have run down.
    let beats = |asked: &Asked| *asked == Asked::Heartbeat(vec![(id, 1)]);
    world
        .store
        .until(|store| {
            store
                .asked()
                .iter()
                .any(|(when, asked)| beats(asked) && *when >= at && *when - at < Duration::from_millis(100))
                .then_some(())
        })
        .await;
    assert_eq!(text(world.store.outcome(id).await), (false, "counted down 20 s".into()));
    let cancelled = world.store.create("countdown", r#"{"seconds":20}"#);
    world.store.running(cancelled).await;
    world.store.cancel(cancelled);
    let next = world.store.create("echo", "{}");
    world.store.outcome(next).await;
    assert_eq!(world.store.completions(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_dropped_is_gone_at_once() {
    let world = World::new();
    let (tool, mut seen) = stubborn();
    let worker = world.run(Worker::new(world.config()).tool(tool));
    let id = world.store.create("stubborn", "{}");
    world.store.running(id).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    worker.abort();
    assert_eq!(seen.recv().await.unwrap().1, Seen::Dropped);
    assert_eq!(seen.recv().await, None, "neither asked nor told");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(world.store.asked().iter().all(|(_, asked)| !matches!(asked, Asked::Complete(..) | Asked::Detach)));
}
