//! A worker that is to end.

use std::time::Duration;

use futures::StreamExt as _;
use longhaul_core::{Interruption, Outcome};
use longhaul_rpc::Calls as _;
use longhaul_rpc::client::is_serving;
use longhaul_worker::{Config, Worker, demo};
use tokio::time::Instant;

use crate::outcome::text;
use crate::store::{Asked, World, call};

#[tokio::test(start_paused = true)]
async fn an_idle_worker_ends_at_once() {
    let world = World::new();
    let worker = Worker::new(world.config()).with_tools(demo::tools());
    let mut attached = worker.attached();
    let worker = world.run(worker);
    attached.wait_for(|attached| *attached).await.unwrap();
    world.store.heard(1, |asked| matches!(asked, Asked::Claim(_))).await;
    let start = Instant::now();
    world.drain.cancel();
    worker.await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    world.store.heard(1, |asked| *asked == Asked::Detach).await;
}

#[tokio::test(start_paused = true)]
async fn a_draining_worker_finishes_its_runs_and_claims_no_more() {
    let world = World::new();
    let worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let id = world.store.create("countdown", r#"{"seconds":300}"#);
    world.store.running(id).await;
    let drained = Instant::now();
    world.drain.cancel();
    world.store.heard(1, |asked| *asked == Asked::Detach).await;
    let (last, _) = world.store.heard(1, |asked| matches!(asked, Asked::Claim(claim) if claim.wait.is_zero())).await;
    assert!(last - drained < Duration::from_secs(1), "{:?}", last - drained);
    let late = world.store.create("echo", "{}");
    worker.await.unwrap().unwrap();
    assert_eq!(text(world.store.outcome(id).await), (false, "counted down 300 s".into()));
    assert_eq!(world.store.task(late).attempt, 0, "another worker's");
    let beats = world.store.asked().into_iter().filter(|(_, asked)| *asked == Asked::Heartbeat(vec![(id, 1)]));
    assert!(beats.count() >= 29, "leases are renewed to the end");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_done_in_time_is_handed_back_as_drained() {
    let world = World::new();
    let worker = world.run(
        Worker::new(Config { drain_timeout: Duration::from_secs(30), ..world.config() }).with_tools(demo::tools()),
    );
    let (long, short) =
        (world.store.create("countdown", r#"{"seconds":300}"#), world.store.create("countdown", r#"{"seconds":20}"#));
    world.store.running(short).await;
    let start = Instant::now();
    world.drain.cancel();
    worker.await.unwrap().unwrap();
    assert!(start.elapsed().abs_diff(Duration::from_secs(30)) < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(world.store.outcome(long).await, Outcome::Interrupted(Interruption::Drained));
    assert!(!text(world.store.outcome(short).await).0);
    assert_eq!(world.store.completions(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_just_being_handed_over_is_not_lost() {
    let world = World::new();
    world.store.faults(|faults| faults.claims_stall = true);
    let worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let id = world.store.create("echo", "{}");
    world.store.running(id).await;
    world.drain.cancel();
    worker.await.unwrap().unwrap();
    assert_eq!(text(world.store.outcome(id).await), (false, "{}".into()));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_stops_even_while_its_worker_drains() {
    let world = World::new();
    let worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    let id = world.store.create("countdown", r#"{"seconds":300}"#);
    world.store.running(id).await;
    world.drain.cancel();
    world.store.heard(1, |asked| *asked == Asked::Detach).await;
    let start = Instant::now();
    world.store.cancel(id);
    worker.await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(world.store.completions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_being_answered_is_heard_out() {
    let world = World::new();
    world.store.faults(|faults| faults.claim_delay = Duration::from_millis(200));
    let worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    world.store.heard(1, |asked| matches!(asked, Asked::Claim(_))).await;
    let id = world.store.create("echo", "{}");
    // The store has taken it up, but not handed it over.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.store.task(id).attempt, 0);
    world.drain.cancel();
    worker.await.unwrap().unwrap();
    assert_eq!(text(world.store.outcome(id).await), (false, "{}".into()));
}

#[tokio::test(start_paused = true)]
async fn grpc_health_checks_hear_whether_the_worker_is_attached_and_that_it_drains() {
    let world = World::new();
    let target = world.target("worker");
    let becomes = async |serving| {
        while is_serving(&target).await.ok() != Some(serving) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    world.stop_serving();
    let worker = world.run(Worker::new(world.config()).with_tools(demo::tools()));
    becomes(false).await;
    world.serve();
    becomes(true).await;
    let mut call = world.calls().invoke(call("countdown", r#"{"seconds":20}"#)).await.unwrap();
    world.drain.cancel();
    becomes(false).await;
    assert!(!worker.is_finished(), "a call goes on");
    assert!(call.next().await.unwrap().is_ok());
    worker.await.unwrap().unwrap();
}
