//! Tell the audit log what no change of a task records: what was refused, and what came of tasks and went out.
//!
//! Whoever has something to tell does not wait: it is kept here, and said to the task-store once a second. The same refusal
//! again within that second is counted, so that a flood of them is one row.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::audit::{Record, Refused, RefusedBy, called};
use longhaul_core::{Denied, Principal, Target, TaskId};
use longhaul_rpc::{Batch, Control, Error, RECORDS_MAX};
use opentelemetry::metrics::Counter;
use opentelemetry::{KeyValue, global};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::hooks;

/// How often what is kept is said.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// How long the last of it may take, when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Kinds of refusals kept at a time; of more, those that come are left out.
const REFUSED_MAX: usize = 10_000;
/// Retrieved tasks kept at a time; more are left out.
const RETRIEVED_MAX: usize = 10_000;
/// Tasks that are known, of each of two generations, to have been told of: a client polls on.
const TOLD_MAX: usize = 10_000;

/// What has not been said yet.
pub struct Recorder {
    kept: Mutex<Kept>,
    dropped: Counter<u64>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

#[derive(Default)]
struct Kept {
    refused: HashMap<(Principal, String, RefusedBy), Counted>,
    retrieved: Vec<(Instant, TaskId)>,
    told: HashSet<TaskId>,
    told_before: HashSet<TaskId>,
}

struct Counted {
    first: Instant,
    trace_id: Option<String>,
    times: u32,
}

/// A batch on its way, with when each thing happened.
struct Unsaid {
    id: u128,
    records: Vec<(Instant, Record)>,
}

impl Unsaid {
    /// As it is said now.
    fn batch(&self) -> Batch {
        let aged = |(since, record): &(Instant, Record)| match record.clone() {
            Record::Refused(refused) => Record::Refused(Refused { ago: since.elapsed(), ..refused }),
            Record::Retrieved(task) => Record::Retrieved(task),
        };
        Batch { id: self.id, records: self.records.iter().map(aged).collect() }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl hooks::Record for Recorder {
    fn refused(&self, principal: &Principal, target: &Target, denied: &Denied, traceparent: Option<&str>) {
        self.refused(principal, target, denied, traceparent);
    }
}

impl Recorder {
    /// Its instrument comes from the global meter provider, which must be set by then.
    pub fn new() -> Self {
        let dropped = global::meter("longhaul")
            .u64_counter("longhaul_audit_dropped")
            .with_description("Events that the audit log lacks, because too many waited to be recorded.")
            .build();
        Self { kept: Mutex::default(), dropped }
    }

    /// A check has refused a call, in the trace of this `traceparent`. Never waits.
    pub fn refused(&self, principal: &Principal, target: &Target, denied: &Denied, traceparent: Option<&str>) {
        self.keep(principal, target, RefusedBy::Check(denied.by), traceparent);
    }

    /// A call was refused because there are too many open tasks. Never waits.
    pub fn full(&self, principal: &Principal, target: &Target, traceparent: Option<&str>) {
        self.keep(principal, target, RefusedBy::TaskLimit, traceparent);
    }

    /// What came of a task went out to its owner. Never waits.
    pub fn retrieved(&self, task: TaskId) {
        let mut kept = self.lock();
        if kept.told.contains(&task) || kept.told_before.contains(&task) {
            return;
        }
        if kept.retrieved.len() >= RETRIEVED_MAX {
            // The next time that it goes out, perhaps.
            self.drop_some(1, "retrieved");
            return;
        }
        kept.retrieved.push((Instant::now(), task));
        if kept.told.len() >= TOLD_MAX {
            kept.told_before = mem::take(&mut kept.told);
        }
        kept.told.insert(task);
    }

    /// Says what is kept, again and again until `stop` fires, and then once more.
    pub async fn run(&self, control: &dyn Control, stop: CancellationToken) {
        self.tell(|batch| control.record(batch), stop).await;
    }

    async fn tell<F: Future<Output = Result<(), Error>>>(&self, record: impl Fn(Batch) -> F, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SAY_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unsaid = None;
        let saying = async {
            loop {
                ticks.tick().await;
                self.say(&record, &mut unsaid).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = saying => {}
        }
        // What was interrupted is said again, which is no harm.
        if tokio::time::timeout(LAST_WORDS, self.say(&record, &mut unsaid)).await.is_err() || unsaid.is_some() {
            let left = unsaid.map_or(0, |unsaid| unsaid.records.len());
            tracing::warn!(left, "the last events were not recorded: the task-store does not answer");
            self.drop_some(left as u64, "unsaid");
        }
    }

    /// Says all there is, unless it is not heard.
    async fn say<F: Future<Output = Result<(), Error>>>(
        &self,
        record: &impl Fn(Batch) -> F,
        unsaid: &mut Option<Unsaid>,
    ) {
        loop {
            if unsaid.is_none() {
                *unsaid = self.take();
            }
            let Some(now) = unsaid else { return };
            match record(now.batch()).await {
                Ok(()) => *unsaid = None,
                Err(error @ (Error::Unavailable(_) | Error::NotBegun(_))) => {
                    tracing::debug!(%error, "what is to be recorded is kept");
                    return;
                }
                Err(error @ (Error::Fault(_) | Error::Refused(_))) => {
                    tracing::error!(%error, records = now.records.len(), "what was to be recorded is lost");
                    self.drop_some(now.records.len() as u64, "fault");
                    *unsaid = None;
                }
            }
        }
    }

    /// The next batch.
    fn take(&self) -> Option<Unsaid> {
        let mut kept = self.lock();
        let some: Vec<_> = kept.refused.keys().take(RECORDS_MAX).cloned().collect();
        let mut records = Vec::with_capacity(some.len());
        for key in some {
            let Some(Counted { first, trace_id, times }) = kept.refused.remove(&key) else { continue };
            let (principal, called, by) = key;
            records.push((
                first,
                Record::Refused(Refused { principal, called, by, trace_id, times, ago: Duration::ZERO }),
            ));
        }
        let more = kept.retrieved.len().min(RECORDS_MAX - records.len());
        records.extend(kept.retrieved.drain(..more).map(|(since, task)| (since, Record::Retrieved(task))));
        drop(kept);
        if records.is_empty() {
            return None;
        }
        // In the order in which it happened.
        records.sort_by_key(|(since, _)| *since);
        let mut id = [0; 16];
        getrandom::fill(&mut id).expect("invariant: the operating system has a random source");
        Some(Unsaid { id: u128::from_be_bytes(id), records })
    }

    fn keep(&self, principal: &Principal, target: &Target, by: RefusedBy, traceparent: Option<&str>) {
        let key = (principal.clone(), called(target).to_owned(), by);
        let mut kept = self.lock();
        if let Some(counted) = kept.refused.get_mut(&key) {
            counted.times = counted.times.saturating_add(1);
        } else if kept.refused.len() < REFUSED_MAX {
            let trace_id = traceparent.and_then(|parent| parent.split('-').nth(1)).map(str::to_owned);
            kept.refused.insert(key, Counted { first: Instant::now(), trace_id, times: 1 });
        } else {
            self.drop_some(1, "refused");
        }
    }

    fn drop_some(&self, events: u64, why: &'static str) {
        self.dropped.add(events, &[KeyValue::new("what", why)]);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};

    use longhaul_core::{Caller, Check, TenantId};
    use tokio::sync::mpsc;

    use super::*;

    /// A task-store that gives these answers, the last one first, and then takes everything; and what it hears.
    fn store(answers: Vec<Error>) -> (impl Fn(Batch) -> Ready<Result<(), Error>>, mpsc::UnboundedReceiver<Batch>) {
        let (heard, hears) = mpsc::unbounded_channel();
        let answers = Mutex::new(answers);
        let record = move |batch| {
            heard.send(batch).unwrap();
            ready(answers.lock().unwrap().pop().map_or(Ok(()), Err))
        };
        (record, hears)
    }

    fn agent(name: &str) -> Principal {
        Principal { tenant: TenantId::new("t"), caller: Caller::Agent(name.into()) }
    }

    fn denied(by: Check) -> Denied {
        Denied { by, message: "no".into(), retry_after: None }
    }

    fn task(bits: u128) -> TaskId {
        TaskId::from_random(bits)
    }

    fn told(batch: &Batch) -> Vec<(String, &'static str, u32)> {
        let refused = |record: &Record| match record {
            Record::Refused(refused) => Some((refused.called.clone(), refused.by.name(), refused.times)),
            Record::Retrieved(_) => None,
        };
        batch.records.iter().filter_map(refused).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_counted_and_each_other_is_told_by_itself() {
        let (store, mut hears) = store(Vec::new());
        let (recorder, stop) = (Recorder::new(), CancellationToken::new());
        let echo = Target::Tool("echo".into());
        let says = async {
            let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
            recorder.refused(&agent("a"), &echo, &denied(Check::RateLimit), Some(parent));
            tokio::time::advance(Duration::from_millis(1)).await;
            for _ in 0..999 {
                recorder.refused(&agent("a"), &echo, &denied(Check::RateLimit), None);
            }
            recorder.full(&agent("a"), &echo, None);
            tokio::time::advance(Duration::from_millis(1)).await;
            recorder.refused(&agent("b"), &Target::Resource("file:///secret".into()), &denied(Check::Policy), None);
            let batch = hears.recv().await.unwrap();
            let resource = ("resources/read".to_owned(), "policy", 1);
            let echo = |by, times| ("echo".to_owned(), by, times);
            assert_eq!(told(&batch), [echo("rate_limit", 1000), echo("task_limit", 1), resource]);
            let Record::Refused(first) = &batch.records[0] else { panic!("{batch:?}") };
            assert_eq!(first.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
            assert!(first.ago >= Duration::from_millis(2), "{first:?}");
            // The next second is another row.
            recorder.full(&agent("a"), &Target::Tool("echo".into()), None);
            assert_eq!(told(&hears.recv().await.unwrap()), [echo("task_limit", 1)]);
            stop.cancel();
        };
        tokio::join!(recorder.tell(&store, stop.clone()), says);
        assert!(hears.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_heard_is_said_again_as_the_same_batch_and_a_fault_loses_only_that() {
        let answers =
            vec![Error::Fault("odd".into()), Error::NotBegun("full".into()), Error::Unavailable("away".into())];
        let (store, mut hears) = store(answers);
        let (recorder, stop) = (Recorder::new(), CancellationToken::new());
        let says = async {
            recorder.full(&agent("a"), &Target::Tool("echo".into()), None);
            let batches = [hears.recv().await.unwrap(), hears.recv().await.unwrap(), hears.recv().await.unwrap()];
            assert!(batches.iter().all(|batch| batch.id == batches[0].id && told(batch) == told(&batches[0])));
            let agos = batches.map(|batch| match &batch.records[0] {
                Record::Refused(refused) => refused.ago,
                Record::Retrieved(_) => Duration::ZERO,
            });
            assert!(agos[0] < agos[1] && agos[1] < agos[2], "{agos:?}: it gets older");
            recorder.retrieved(task(1));
            let next = hears.recv().await.unwrap();
            assert_eq!(next.records, [Record::Retrieved(task(1))]);
            stop.cancel();
        };
        tokio::join!(recorder.tell(&store, stop.clone()), says);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_is_told_of_once_and_the_last_words_are_said() {
        let (store, mut hears) = store(Vec::new());
        let (recorder, stop) = (Recorder::new(), CancellationToken::new());
        for _ in 0..3 {
            (1..=3).for_each(|bits| recorder.retrieved(task(bits)));
        }
        stop.cancel();
        recorder.tell(&store, stop.clone()).await;
        recorder.retrieved(task(2));
        recorder.retrieved(task(4));
        recorder.tell(&store, stop).await;
        let all = [hears.try_recv().unwrap(), hears.try_recv().unwrap()].map(|batch| batch.records);
        assert_eq!(all[0], [1, 2, 3].map(|bits| Record::Retrieved(task(bits))));
        assert_eq!(all[1], [Record::Retrieved(task(4))]);
        assert!(hears.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn while_nobody_listens_no_more_is_kept_than_there_is_room_for() {
        let (store, mut hears) = store(Vec::new());
        let recorder = Recorder::new();
        for nth in 0..2 * REFUSED_MAX {
            recorder.full(&agent(&nth.to_string()), &Target::Tool("echo".into()), None);
            recorder.retrieved(task(nth as u128));
        }
        let stop = CancellationToken::new();
        stop.cancel();
        recorder.tell(&store, stop).await;
        let mut records = 0;
        while let Ok(batch) = hears.try_recv() {
            assert!(batch.records.len() <= RECORDS_MAX);
            records += batch.records.len();
        }
        assert_eq!(records, REFUSED_MAX + RETRIEVED_MAX);
    }
}
