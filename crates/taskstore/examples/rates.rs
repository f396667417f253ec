//! How many tasks a second the task-store alone keeps: `cargo run --release -p longhaul-taskstore --example rates -- URL [CLIENTS…]`.
//!
//! The database at URL must be empty or migrated, and its loss must not matter. Gateways, workers and gRPC are left out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::future::join_all;
use longhaul_bus::{Bus as _, Hint, LocalBus};
use longhaul_core::{
    Caller, ClientCapabilities, Fence, LeaseToken, NewTask, Outcome, Principal, TaskId, TenantId, TraceContext,
    TtlWish, WorkerId,
};
use longhaul_rpc::{Claim, Tasks as _, Work as _};
use longhaul_seal::{KEY_BYTES, Keyring};
use longhaul_taskstore::{Config, TaskStore};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

const SPAN: Duration = Duration::from_secs(5);
const WORKERS: usize = 8;
const SLOTS: u32 = 16;

fn task(client: usize, turn: usize) -> NewTask {
    let bits = (client as u128) << 96 | (turn as u128) << 32 | u128::from(std::process::id());
    NewTask {
        // Spread like a random one.
        id: TaskId::from_random(bits.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
        owner: Principal { tenant: TenantId::new("bench"), caller: Caller::Agent(format!("a{client}")) },
        tool: "echo".into(),
        arguments: Bytes::from(vec![b' '; 512]),
        ttl: TtlWish::Unsaid,
        progress_token: None,
        session: None,
        trace: TraceContext::default(),
        client: ClientCapabilities::default(),
        retry: longhaul_core::Retry::default(),
        claimed: None,
        reserved: None,
    }
}

/// Runs `work` with `clients` at once; prints the rate and the times of single calls.
async fn measure<F>(name: &str, clients: usize, work: impl Fn(usize, usize) -> F + Send + Sync + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (work, tracker, start) = (Arc::new(work), TaskTracker::new(), Instant::now());
    let runs = (0..clients).map(|client| {
        let work = work.clone();
        tracker.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < SPAN {
                let begin = Instant::now();
                work(client, times.len()).await;
                times.push(begin.elapsed().as_micros());
            }
            times
        })
    });
    let mut times: Vec<_> = join_all(runs).await.into_iter().flat_map(|times| times.expect("no panic")).collect();
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    println!("{name:28} {clients:3} clients {rate:8.0}/s  p50 {:6} us  p99 {:6} us", at(0.5), at(0.99));
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("which database URL?"))?;
    if url.starts_with("postgres") {
        longhaul_taskstore::migrate(&url).await?;
    }
    let config = Config { database_url: url, max_open: 0, max_live: 0, ..Config::default() };
    let bus = Arc::new(LocalBus::new());
    let mut heard = bus.subscribe();
    let keyring = Arc::new(ArcSwap::from_pointee(Keyring::new(&[1; KEY_BYTES], &[])));
    let store = TaskStore::build(config, bus, keyring).await?;
    // Who waits for which task, as a gateway has it. A task that ends at once is at version 3.
    let ends: Arc<Mutex<HashMap<TaskId, oneshot::Sender<()>>>> = Arc::default();
    let waiting = ends.clone();
    TaskTracker::new().spawn(async move {
        loop {
            match heard.recv().await {
                Ok(Hint::Task { id, version: 3 }) => {
                    waiting.lock().expect("no panic").remove(&id).map(|tell| tell.send(()));
                }
                Ok(_) => {}
                Err(error) => return println!("the hints end: {error}"),
            }
        }
    });
    let clients: Vec<usize> = std::env::args().skip(2).map(|clients| clients.parse()).collect::<Result<_, _>>()?;
    let clients = if clients.is_empty() { vec![1, 16, 64] } else { clients };
    for (round, clients) in clients.into_iter().enumerate() {
        let base = round * 1_000_000;
        let creator = store.clone();
        let create = move |client, turn| {
            let store = creator.clone();
            async move { drop(store.create(task(base + client, turn)).await.expect("created")) }
        };
        measure("create", clients, create).await;
        let getter = store.clone();
        let get = move |client, turn| {
            let (store, task) = (getter.clone(), task(base + client, turn % 50));
            async move { drop(store.get(&task.owner, task.id).await.expect("there")) }
        };
        measure("get", clients, get).await;
        // What the first measure queued.
        let (queued, start) = (store.count().await?.open, Instant::now());
        let (tracker, stop) = (TaskTracker::new(), tokio_util::sync::CancellationToken::new());
        for number in 0..WORKERS {
            let (store, stop) = (store.clone(), stop.clone());
            tracker.spawn(async move { stop.run_until_cancelled(work(store, number, round)).await });
        }
        while store.count().await?.open > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let rate = queued as f64 / start.elapsed().as_secs_f64();
        println!("{:28} {WORKERS:3} workers {rate:8.0}/s", "claim and complete");
        let (caller, ends) = (store.clone(), ends.clone());
        let whole = move |client, turn| {
            let (store, ends, task) = (caller.clone(), ends.clone(), task(base + 500_000 + client, turn));
            async move {
                let (owner, id) = (task.owner.clone(), task.id);
                let (tell, told) = oneshot::channel();
                ends.lock().expect("no panic").insert(id, tell);
                store.create(task).await.expect("created");
                told.await.expect("told");
                assert!(store.result(&owner, id).await.expect("there").1.is_some());
            }
        };
        measure("create, run, see the result", clients, whole).await;
        stop.cancel();
        tracker.close();
        tracker.wait().await;
    }
    Ok(())
}

/// A worker whose tool is instant.
async fn work(store: TaskStore, number: usize, round: usize) {
    let worker = WorkerId { name: format!("w{number}"), incarnation: round.to_string() };
    for turn in 0.. {
        let token = LeaseToken(format!("{round}-{number}-{turn}"));
        let claim = Claim {
            worker: worker.clone(),
            token: token.clone(),
            tools: vec!["echo".into()],
            max: SLOTS,
            wait: Duration::from_secs(20),
        };
        let tasks = store.claim(claim).await.expect("claimed");
        let completes = tasks.into_iter().map(|one| {
            let fence = Fence { id: one.task.id, attempt: one.task.attempt, token: token.clone() };
            let body = Bytes::from(vec![b' '; 512]);
            store.complete(fence, Outcome::Result { is_error: false, body })
        });
        for done in join_all(completes).await {
            done.expect("completed");
        }
    }
}
