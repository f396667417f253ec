//! Random lists of operations, compared step by step with a model made of the core verbs alone.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_core::{
    Change, Claimed, Fence, InputKey, InputResponse, InputState, LeaseToken, NewTask, Outcome, Phase, Refusal, Task,
    TaskId, Timestamp, TtlLimits, TtlWish,
};
use longhaul_rpc::{Directive, Error, Report, Tasks as _, Work as _};

use crate::on_both_engines;
use crate::world::*;

/// One step of time. The bounds below lie between multiples of it, so that the time that really passes decides nothing.
const STEP: Duration = Duration::from_secs(200);
const TTL_MS: u64 = 900_000;
const TOMBSTONE: Duration = Duration::from_secs(950);
const TIMEOUT: Duration = Duration::from_secs(500);
const OPS: usize = 600;

/// A small generator (PCG): the same seed, the same list.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// What the model knows of a task.
struct Known {
    task: Task,
    outcome: Option<Outcome>,
    /// Answers that have not been collected.
    kept: BTreeMap<u32, InputResponse>,
    /// The step in which it was created.
    born: u64,
    /// The step in which its lease was last renewed.
    renewed: u64,
    purged: bool,
}

impl Known {
    fn take(&mut self, change: Change) {
        self.kept.extend(change.responses);
        if change.outcome.is_some() {
            self.kept.clear();
        }
        (self.task, self.outcome) = (change.task, change.outcome);
    }
    /// What proves that it is held, or would.
    fn fence(&self) -> Fence {
        let token = match &self.task.phase {
            Phase::Running(lease) => lease.token.clone(),
            Phase::Queued | Phase::Ended(_) => LeaseToken("gone".into()),
        };
        Fence { id: self.task.id, attempt: self.task.attempt.max(1), token }
    }
    fn expired(&self, step: u64) -> bool {
        (step - self.born) * STEP.as_secs() * 1000 >= TTL_MS
    }
    fn forgotten(&self, step: u64) -> bool {
        (step - self.born) * STEP.as_secs() * 1000 >= TTL_MS + TOMBSTONE.as_millis() as u64
    }
    fn overdue(&self, step: u64) -> bool {
        matches!(self.task.phase, Phase::Running(_)) && (step - self.renewed) * STEP.as_secs() >= LEASE.as_secs()
    }
    fn access(&self, step: u64) -> Result<Task, Refusal> {
        match (self.expired(step), self.forgotten(step)) {
            (false, _) => Ok(self.task.clone()),
            (true, false) => Err(Refusal::Expired),
            (true, true) => Err(Refusal::NotFound),
        }
    }
}

fn plain<T>(answer: Result<T, Error>) -> Result<T, Refusal> {
    answer.map_err(|error| match error {
        Error::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    })
}

/// Equal but for the stamps of the store.
fn agree(store: &Task, model: &Task) -> bool {
    let mut model = model.clone();
    (model.created_at, model.updated_at) = (store.created_at, store.updated_at);
    if let (Phase::Running(ours), Phase::Running(theirs)) = (&mut model.phase, &store.phase) {
        ours.until = theirs.until;
    }
    for (ours, theirs) in model.inputs.iter_mut().zip(&store.inputs) {
        if let (InputState::Open { until: ours, .. }, InputState::Open { until: theirs, .. }) =
            (&mut ours.state, &theirs.state)
        {
            *ours = *theirs;
        }
    }
    *store == model && store.updated_at >= store.created_at
}

/// The model's own clock.
fn clock(step: u64) -> Timestamp {
    Timestamp::from_micros(0).plus(STEP * step as u32)
}

on_both_engines! {
    async fn the_store_does_what_the_verbs_say(world) {
        for seed in 1..=4 {
            play(&world, seed).await;
        }
    }
}

async fn play(world: &World, seed: u64) {
    let store = world
        .store_with(|config| {
            config.ttl = TtlLimits { default_ms: TTL_MS, min_ms: 0, max_ms: TTL_MS };
            config.tombstone = TOMBSTONE;
            config.max_open = 0;
        })
        .await;
    let (owner, other) = (agent("acme", &format!("ann{seed}")), agent("acme", "bob"));
    let tool = format!("tool{seed}");
    let name = worker(&format!("w{seed}"));
    let mut chance = Chance(seed);
    let mut model: BTreeMap<TaskId, Known> = BTreeMap::new();
    let (mut step, mut order) = (0u64, Vec::new());
    store.interrupt().await.unwrap();
    for op in 0..OPS {
        let at = format!("seed {seed}, operation {op}");
        let some = (!order.is_empty()).then(|| order[order.len() - 1 - chance.below(order.len().min(12))]);
        match (chance.below(29), some) {
            (0..4, _) | (_, None) => {
                let claimed = Claimed { worker: name.clone(), token: LeaseToken(format!("{seed}-{op}")) };
                let claimed = (chance.below(4) == 0).then_some(claimed);
                let new = NewTask { tool: tool.clone(), ttl: TtlWish::Unsaid, claimed, ..new_task(&owner) };
                let task = store.create(new.clone()).await.unwrap();
                assert_eq!(store.create(new).await.unwrap(), task, "{at}");
                order.push(task.id);
                let kept = BTreeMap::new();
                model.insert(task.id, Known { task, outcome: None, kept, born: step, renewed: step, purged: false });
            }
            (4..8, _) => {
                let token = format!("{seed}-{op}");
                let max = 1 + chance.below(3) as u32;
                let claim = longhaul_rpc::Claim { tools: vec![tool.clone()], ..wish(&name, &token, max) };
                let got = store.claim(claim).await.unwrap();
                let queued = |known: &Known| known.task.phase == Phase::Queued && !known.expired(step);
                let waiting: Vec<_> = order.iter().filter(|id| queued(&model[id])).copied().collect();
                let expected = &waiting[..waiting.len().min(max as usize)];
                assert_eq!(got.iter().map(|one| one.task.id).collect::<Vec<_>>(), expected, "{at}");
                for assignment in got {
                    let known = model.get_mut(&assignment.task.id).unwrap();
                    let Phase::Running(lease) = assignment.task.phase.clone() else { panic!("{at}") };
                    assert_eq!(lease.token, LeaseToken(token.clone()), "{at}");
                    known.task = known.task.clone().claim(lease).unwrap().task;
                    known.renewed = step;
                    assert!(agree(&assignment.task, &known.task), "{at}");
                }
            }
            (kind @ 8..13, Some(id)) => {
                let known = model.get_mut(&id).unwrap();
                let mut fence = known.fence();
                if chance.below(5) == 0 {
                    fence.attempt += 1;
                }
                let (answer, verb) = if kind < 11 {
                    let outcome =
                        [done("{\"a\":1}"), Outcome::Result { is_error: true, body: "{}".into() }][kind % 2].clone();
                    let verb = known.task.clone().complete(&fence, outcome.clone());
                    (plain(store.complete(fence, outcome).await), verb)
                } else {
                    let report = Report { status_message: Some(op.to_string()), progress: None };
                    let verb = known.task.clone().report(&fence, report.status_message.clone(), None);
                    (plain(store.report(fence, report).await), verb)
                };
                match (answer, verb) {
                    (Ok(task), Ok(change)) => {
                        assert!(agree(&task, &change.task), "{at}: {task:?}, not {:?}", change.task);
                        known.take(change);
                    }
                    // A worker hears of a purged task that it has expired, while that is remembered.
                    (Err(refusal), Err(_)) if known.purged => {
                        assert!(matches!(refusal, Refusal::Expired | Refusal::NotFound), "{at}");
                    }
                    (answer, verb) => assert_eq!(answer.unwrap_err(), verb.unwrap_err(), "{at}"),
                }
            }
            (13, Some(id)) => {
                let known = model.get_mut(&id).unwrap();
                let verb = known.access(step).and_then(Task::cancel);
                match (plain(store.cancel(&owner, id).await), verb) {
                    (Ok(task), Ok(change)) => {
                        assert!(agree(&task, &change.task), "{at}");
                        known.take(change);
                    }
                    (answer, verb) => assert_eq!(answer.unwrap_err(), verb.unwrap_err(), "{at}"),
                }
            }
            (14, Some(_)) => {
                let running = |known: &&mut Known| matches!(known.task.phase, Phase::Running(_));
                let (mut beat, mut answered) = (Vec::new(), Vec::new());
                for known in model.values_mut().filter(running) {
                    known.renewed = step;
                    beat.push((known.task.id, known.task.attempt));
                    if !known.kept.is_empty() {
                        answered.push(Directive::Answered(known.task.id));
                    }
                }
                assert_eq!(store.heartbeat(&name, beat).await.unwrap(), answered, "{at}");
            }
            (15, Some(_)) => {
                store.advance_clock(STEP).await.unwrap();
                step += 1;
            }
            (16, Some(_)) => {
                let mut ended = 0;
                for known in model.values_mut().filter(|known| known.overdue(step)) {
                    let Phase::Running(lease) = &known.task.phase else { continue };
                    let change = known.task.clone().interrupt(lease.until).unwrap();
                    known.take(change);
                    ended += 1;
                }
                assert_eq!(store.interrupt().await.unwrap(), ended, "{at}");
            }
            (17, Some(_)) => {
                let mut ended = 0;
                for known in model.values_mut().filter(|known| known.expired(step) && known.task.ending().is_none()) {
                    let end = known.task.expires_at().unwrap();
                    let change = known.task.clone().expire(end).unwrap();
                    known.take(change);
                    ended += 1;
                }
                assert_eq!(store.expire().await.unwrap(), ended, "{at}");
                let mut purged = 0;
                for known in model.values_mut().filter(|known| known.expired(step) && !known.purged) {
                    known.purged = true;
                    purged += 1;
                }
                assert_eq!(store.purge().await.unwrap(), purged, "{at}");
            }
            (18, Some(_)) => {
                let listed = store.list(&owner, None, 200).await.unwrap().tasks;
                let expected: Vec<_> = order.iter().rev().filter(|id| !model[id].expired(step)).copied().collect();
                assert_eq!(listed.iter().map(|task| task.id).collect::<Vec<_>>(), expected, "{at}");
                assert!(listed.iter().all(|task| agree(task, &model[&task.id].task)), "{at}");
            }
            (19..22, Some(id)) => {
                let known = model.get_mut(&id).unwrap();
                let mut fence = known.fence();
                if chance.below(5) == 0 {
                    fence.token = LeaseToken("another".into());
                }
                let mut request = || form(["a", "b", "c", "d"][chance.below(4)], ["One?", "Two?"][chance.below(6) / 5]);
                let requests = vec![request(), request()];
                let answer = plain(store.request_input(fence.clone(), requests.clone(), TIMEOUT).await);
                let verb = known.task.held_under(&fence).and_then(|()| match known.task.has_asked(&requests) {
                    true => Ok(None),
                    false => known.task.clone().request_input(&fence, requests, clock(step).plus(TIMEOUT)).map(Some),
                });
                match (answer, verb) {
                    (Ok(task), Ok(change)) => {
                        change.into_iter().for_each(|change| known.take(change));
                        assert!(agree(&task, &known.task), "{at}: {task:?}, not {:?}", known.task);
                    }
                    (Err(refusal), Err(_)) if known.purged => {
                        assert!(matches!(refusal, Refusal::Expired | Refusal::NotFound), "{at}");
                    }
                    (answer, verb) => assert_eq!(answer.unwrap_err(), verb.unwrap_err(), "{at}"),
                }
            }
            (22..24, Some(id)) => {
                let known = model.get_mut(&id).unwrap();
                let key = match chance.below(2) {
                    0 => InputKey::Named(["a", "b", "c", "e"][chance.below(4)].into()),
                    _ => InputKey::Nth(chance.below(4) as u32),
                };
                let answers = vec![(key, colour(&op.to_string())), (InputKey::Nth(2), InputResponse::Cancel)];
                let verb = known.access(step).map(|task| task.respond(answers.clone()));
                match (plain(store.respond(&owner, id, answers).await), verb) {
                    (Ok(task), Ok(verb)) => {
                        // Late, repeated and unknown answers change nothing.
                        verb.into_iter().for_each(|change| known.take(change));
                        assert!(agree(&task, &known.task), "{at}: {task:?}, not {:?}", known.task);
                    }
                    (answer, verb) => assert_eq!(answer.unwrap_err(), verb.unwrap_err(), "{at}"),
                }
            }
            (24..26, Some(id)) => {
                let known = model.get_mut(&id).unwrap();
                let have: Vec<u32> = (0..4).filter(|_| chance.below(3) == 0).collect();
                match (plain(store.collect(known.fence(), have.clone()).await), known.task.held_under(&known.fence())) {
                    (Ok(kept), Ok(())) => {
                        known.kept.retain(|nth, _| !have.contains(nth));
                        assert_eq!(kept, known.kept.clone().into_iter().collect::<Vec<_>>(), "{at}");
                    }
                    (Err(refusal), Err(_)) if known.purged => {
                        assert!(matches!(refusal, Refusal::Expired | Refusal::NotFound), "{at}");
                    }
                    (answer, verb) => assert_eq!(answer.unwrap_err(), verb.unwrap_err(), "{at}"),
                }
            }
            (26, Some(_)) => {
                let mut lapsed = 0;
                for known in model.values_mut() {
                    if let Ok(change) = known.task.clone().lapse(clock(step)) {
                        known.take(change);
                        lapsed += 1;
                    }
                }
                assert_eq!(store.lapse().await.unwrap(), lapsed, "{at}");
            }
            (27, Some(id)) => {
                let known = model.get_mut(&id).unwrap();
                let keys = vec![["a", "b", "c", "d", "e"][chance.below(5)].to_owned(), "b".to_owned()];
                let verb = known.task.clone().withdraw(&known.fence(), &keys);
                match (plain(store.withdraw(known.fence(), keys).await), verb) {
                    (Ok(task), verb @ (Ok(_) | Err(Refusal::NotAsked))) => {
                        verb.into_iter().for_each(|change| known.take(change));
                        assert!(agree(&task, &known.task), "{at}: {task:?}, not {:?}", known.task);
                    }
                    (Err(refusal), Err(_)) if known.purged => {
                        assert!(matches!(refusal, Refusal::Expired | Refusal::NotFound), "{at}");
                    }
                    (answer, verb) => assert_eq!(answer.unwrap_err(), verb.unwrap_err(), "{at}"),
                }
            }
            (_, Some(id)) => {
                let known = &model[&id];
                match (plain(store.result(&owner, id).await), known.access(step)) {
                    (Ok((task, outcome)), Ok(model)) => {
                        assert!(agree(&task, &model), "{at}");
                        assert_eq!(outcome, known.outcome, "{at}");
                    }
                    (answer, model) => assert_eq!(answer.unwrap_err(), model.unwrap_err(), "{at}"),
                }
                assert_eq!(plain(store.get(&other, id).await), Err(Refusal::NotFound), "{at}");
            }
        }
    }
    // In the end the counters agree with the rows.
    store.purge().await.unwrap();
    let count = store.count().await.unwrap();
    let rows = world.texts("SELECT CAST(count(*) AS text) FROM tasks WHERE phase <> 'ended'").await;
    let counted = world.texts("SELECT CAST(coalesce(sum(open), 0) AS text) FROM counters WHERE owner = ''").await;
    assert_eq!(rows, counted, "seed {seed}");
    assert!(count.open <= count.stored, "seed {seed}");
    let kept: usize = model.values().map(|known| known.kept.len()).sum();
    assert_eq!(world.texts("SELECT CAST(count(*) AS text) FROM answers").await, [kept.to_string()], "seed {seed}");
    for task in order {
        // Out of the way of the next seed's sweeps.
        let _ = store.cancel(&owner, task).await;
    }
    store.advance_clock(20 * STEP).await.unwrap();
    store.expire().await.unwrap();
    store.purge().await.unwrap();
    assert_eq!(store.count().await.unwrap().stored, 0, "seed {seed}");
}
