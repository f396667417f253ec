//! What happens without anybody asking: leases run out, time to live ends, old rows go.
//!
//! Each sweep is a function that tests call; its loop is three lines. Any number of replicas may sweep at once.

use std::future::Future;
use std::time::Duration;

use futures::future::join_all;
use longhaul_core::{Change, Refusal, Task, Timestamp};
use longhaul_rpc::Error;
use tokio::time::MissedTickBehavior;

use crate::TaskStore;
use crate::control::KEPT;
use crate::metrics;
use crate::store::{Fault, Retention, insist};

/// Tasks ended or purged in one statement.
const SWEEP_ROWS: u32 = 500;
/// Tasks whose questions lapse at once: each may carry two megabytes of them.
const LAPSE_ROWS: u32 = 50;
/// Statements of one sweep; the rest is left to the next one.
const ROUNDS_MAX: u32 = 200;
/// How often expired rows are deleted and the gauges set.
pub(crate) const PURGE_EVERY: Duration = Duration::from_secs(60);
pub(crate) const GAUGES_EVERY: Duration = Duration::from_secs(5);
/// A worker not heard of for so long is forgotten. Much longer than any outage, because only a new attach brings it back.
const WORKERS_KEPT: Duration = Duration::from_secs(24 * 3600);

impl TaskStore {
    /// Ends the tasks whose lease has run out as interrupted; answers how many. After a time in which no task-store looked,
    /// as when the database was away, every lease gets its full length again: an outage by itself interrupts nothing.
    pub async fn interrupt(&self) -> Result<u64, Error> {
        let (store, lease) = (&self.inner.store, self.inner.config.lease);
        let mut ended = 0;
        if !insist(|| store.tick(3 * self.inner.config.sweep(), lease)).await? {
            return Ok(ended);
        }
        for _ in 0..ROUNDS_MAX {
            let (now, tasks) = insist(|| store.overdue(SWEEP_ROWS)).await?;
            let full = tasks.len() >= SWEEP_ROWS as usize;
            ended += self.apply(tasks, now, Task::interrupt, true).await?;
            if !full {
                break;
            }
        }
        Ok(ended)
    }

    /// Ends the open tasks whose time to live has run out; answers how many.
    pub async fn expire(&self) -> Result<u64, Error> {
        let mut ended = 0;
        for _ in 0..ROUNDS_MAX {
            let (now, tasks) = insist(|| self.inner.store.expired(SWEEP_ROWS)).await?;
            let full = tasks.len() >= SWEEP_ROWS as usize;
            ended += self.apply(tasks, now, Task::expire, false).await?;
            if !full {
                break;
            }
        }
        Ok(ended)
    }

    /// Closes the questions whose time has run out, as declined; answers of how many tasks.
    pub async fn lapse(&self) -> Result<u64, Error> {
        let mut lapsed = 0;
        for _ in 0..ROUNDS_MAX {
            let (now, tasks) = insist(|| self.inner.store.unanswered(LAPSE_ROWS)).await?;
            let full = tasks.len() >= LAPSE_ROWS as usize;
            lapsed += self.apply(tasks, now, Task::lapse, false).await?;
            if !full {
                break;
            }
        }
        Ok(lapsed)
    }

    /// Deletes expired tasks, and whatever else is past its retention; answers how many tasks.
    pub async fn purge(&self) -> Result<u64, Error> {
        let (store, config) = (&self.inner.store, &self.inner.config);
        let (mut purged, mut rows) = (0, SWEEP_ROWS);
        for _ in 0..ROUNDS_MAX {
            match store.purge(rows).await {
                Ok(some) => {
                    metrics::purged(some);
                    purged += some;
                    if some < u64::from(rows) {
                        break;
                    }
                }
                // Large results may be too much for one statement's time.
                Err(Fault::Unknown(why)) if rows > 1 => {
                    tracing::warn!(why, rows, "a purge is tried again with fewer rows");
                    rows = (rows / 8).max(1);
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        let retention = Retention { tombstones: config.tombstone, workers: WORKERS_KEPT, rows_max: SWEEP_ROWS };
        for _ in 0..ROUNDS_MAX {
            if !insist(|| store.prune(&retention)).await? {
                break;
            }
        }
        for _ in 0..ROUNDS_MAX {
            if !insist(|| store.prune_control(KEPT, SWEEP_ROWS)).await? {
                break;
            }
        }
        for _ in 0..ROUNDS_MAX {
            if !insist(|| store.prune_budgets(SWEEP_ROWS)).await? {
                break;
            }
        }
        self.prune_audit().await?;
        Ok(purged)
    }

    /// Sets the gauges.
    pub(crate) async fn gauge(&self) -> Result<u64, Error> {
        let store = &self.inner.store;
        metrics::phases(insist(|| store.phases()).await?, store.connections());
        metrics::stored(insist(|| store.count()).await?.stored);
        Ok(0)
    }

    /// Changes tasks by a verb and answers how many; one that has moved on meanwhile is left as it is.
    pub(crate) async fn apply(
        &self,
        tasks: Vec<Task>,
        now: Timestamp,
        verb: fn(Task, Timestamp) -> Result<Change, Refusal>,
        overdue: bool,
    ) -> Result<u64, Error> {
        let changes = tasks.into_iter().filter_map(|task| verb(task, now).ok());
        let commits = changes.map(|change| self.inner.commits.put(self.write(change, None, overdue)));
        let mut changed = 0;
        for committed in join_all(commits).await {
            changed += u64::from(committed?.0.is_some());
        }
        Ok(changed)
    }
}

/// Sweeps again and again; for as long as it fails, the next time tries again.
pub(crate) async fn every<F: Future<Output = Result<u64, Error>>>(
    period: Duration,
    name: &'static str,
    sweep: impl Fn() -> F,
) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match sweep().await {
            Ok(0) => {}
            Ok(tasks) => tracing::info!(sweep = name, tasks, "swept"),
            Err(error) => tracing::warn!(sweep = name, %error, "a sweep failed"),
        }
    }
}
