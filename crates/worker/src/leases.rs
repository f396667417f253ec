//! What the worker holds, and how it keeps hold of it.
//!
//! Three loops, each on its own task: one renews all leases at once, one stops what could not be renewed in time
//! before anyone else may think it free, and one listens to what the task-store says on its own account.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::try_join_all;
use longhaul_core::limits::HEARTBEAT_LEASES_MAX;
use longhaul_core::{Fence, TaskId, WorkerId, WorkerInfo};
use longhaul_rpc::{Directive, Error, Work};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::context::{Context, Ended, Stop};
use crate::tools::{Announcement, Tools};

/// How soon death is noticed. All three scale together, and with the task-store's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// How often all leases are renewed.
    pub heartbeat: Duration,
    /// How long a lease lasts; the task-store's setting.
    pub lease: Duration,
    /// How long after the sending of the last heartbeat that was acknowledged a run is stopped; less than a lease.
    pub self_stop: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(10), lease: Duration::from_secs(30), self_stop: Duration::from_secs(25) }
    }
}

impl Liveness {
    /// All three times `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            heartbeat: self.heartbeat.mul_f64(factor),
            lease: self.lease.mul_f64(factor),
            self_stop: self.self_stop.mul_f64(factor),
        }
    }
}

/// A task in hand.
pub(crate) struct Held {
    pub(crate) fence: Fence,
    pub(crate) context: Context,
    hold: Mutex<Hold>,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    /// When the word that last renewed the lease was sent.
    renewed: Instant,
    /// Whether the tool still works. An answer waiting to be stored does no harm when it is late: the fence decides.
    working: bool,
}

impl Held {
    pub(crate) fn new(fence: Fence, context: Context, renewed: Instant) -> Arc<Self> {
        Arc::new(Self { fence, context, hold: Mutex::new(Hold { renewed, working: true }) })
    }

    fn hold(&self) -> Hold {
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Hold)) {
        change(&mut self.hold.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The tool has answered.
    pub(crate) fn answered(&self) {
        self.change(|hold| hold.working = false);
    }
}

/// The tasks in hand: those that run in a slot, those that wait for their callers, and calls that became tasks.
pub(crate) struct Leases {
    work: Arc<dyn Work>,
    worker: WorkerId,
    liveness: Liveness,
    held: Mutex<HashMap<TaskId, Arc<Held>>>,
    /// There is one more.
    added: Notify,
    /// Renew now, whatever the time.
    hurry: Notify,
}

impl Leases {
    pub(crate) fn new(work: Arc<dyn Work>, worker: WorkerId, liveness: Liveness) -> Self {
        Self { work, worker, liveness, held: Mutex::default(), added: Notify::new(), hurry: Notify::new() }
    }

    fn locked<T>(&self, with: impl FnOnce(&mut HashMap<TaskId, Arc<Held>>) -> T) -> T {
        with(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn all(&self) -> Vec<Arc<Held>> {
        self.locked(|held| held.values().cloned().collect())
    }

    /// Adds a task; false if this very attempt is in hand already.
    pub(crate) fn add(&self, new: Arc<Held>) -> bool {
        let former = self.locked(|held| match held.get(&new.fence.id) {
            Some(same) if same.fence.attempt == new.fence.attempt => Err(()),
            Some(_) | None => Ok(held.insert(new.fence.id, new)),
        });
        let Ok(former) = former else { return false };
        if let Some(former) = former {
            former.context.stop(Stop::Ended(Ended::Stopped));
        }
        self.added.notify_one();
        true
    }

    /// Lets go of a task.
    pub(crate) fn remove(&self, gone: &Held) {
        self.locked(|held| {
            if held.get(&gone.fence.id).is_some_and(|held| held.fence == gone.fence) {
                held.remove(&gone.fence.id);
            }
        });
    }

    /// What is held under this fence, if it still is.
    pub(crate) fn held(&self, fence: &Fence) -> Option<Arc<Held>> {
        self.locked(|held| held.get(&fence.id).filter(|held| held.fence == *fence).cloned())
    }

    fn stop(&self, held: &Held) {
        self.remove(held);
        held.context.stop(Stop::Ended(Ended::Stopped));
    }

    /// Ends every run as the worker's own doing.
    pub(crate) fn drain(&self) {
        for held in self.all() {
            held.context.stop(Stop::Drained);
        }
    }

    fn obey(&self, directive: Directive) {
        let (Directive::Stop(id) | Directive::Answered(id)) = directive;
        let Some(held) = self.locked(|held| held.get(&id).cloned()) else { return };
        match directive {
            // It may mean an earlier attempt, which this worker had too: a heartbeat tells.
            Directive::Stop(_) if held.fence.attempt > 1 => self.hurry.notify_one(),
            Directive::Stop(_) => self.stop(&held),
            Directive::Answered(_) => held.context.answered(),
        }
    }

    /// Renews the leases of `held`, and lets go of those that are lost.
    async fn renew(&self, held: &[Arc<Held>]) -> Result<(), Error> {
        let sent = Instant::now();
        let leases = held.iter().map(|held| (held.fence.id, held.fence.attempt)).collect();
        let answer = tokio::time::timeout(self.liveness.heartbeat, self.heartbeat(leases)).await;
        let directives = answer.map_err(|_| Error::Unavailable("no answer in time".into()))??;
        for held in held {
            held.change(|hold| hold.renewed = sent);
        }
        let held: HashMap<TaskId, &Arc<Held>> = held.iter().map(|held| (held.fence.id, held)).collect();
        for directive in directives {
            match directive {
                Directive::Stop(id) => held.get(&id).into_iter().for_each(|held| self.stop(held)),
                Directive::Answered(_) => self.obey(directive),
            }
        }
        Ok(())
    }

    /// One heartbeat, in as many parts as it takes; acknowledged if all of them are.
    async fn heartbeat(&self, leases: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error> {
        // One without leases is a sign of life.
        let mut parts: Vec<_> = leases.chunks(HEARTBEAT_LEASES_MAX).map(<[_]>::to_vec).collect();
        parts.resize(parts.len().max(1), Vec::new());
        let parts = parts.into_iter().map(|part| self.work.heartbeat(&self.worker, part));
        Ok(try_join_all(parts).await?.concat())
    }

    /// Which of these attempts the worker still holds, asked of the task-store; renews them too.
    pub(crate) async fn confirm(&self, attempts: Vec<(TaskId, u32)>) -> Result<Vec<TaskId>, Error> {
        let lost = self.heartbeat(attempts.clone()).await?;
        let held = attempts.into_iter().map(|(id, _)| id).filter(|id| !lost.contains(&Directive::Stop(*id)));
        Ok(held.collect())
    }

    /// Sends heartbeats, for ever.
    pub(crate) async fn beat(&self) {
        // The first one is due when the worker has attached.
        let mut next = Instant::now() + self.liveness.heartbeat;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.hurry.notified() => {}
            }
            let sent = Instant::now();
            next = sent + self.liveness.heartbeat;
            if let Err(error) = self.renew(&self.all()).await {
                tracing::warn!(%error, "a heartbeat was not acknowledged");
                // Sooner than usual, since leases run out meanwhile.
                next = Instant::now() + self.liveness.heartbeat / 10;
            }
        }
    }

    /// Stops the runs whose leases could not be renewed, for ever.
    pub(crate) async fn watch(&self) {
        loop {
            let now = Instant::now();
            let mut next = None;
            for held in self.all() {
                let hold = held.hold();
                let end = hold.renewed + self.liveness.self_stop;
                if !hold.working {
                    continue;
                }
                if end <= now {
                    tracing::warn!(task.id = %held.fence.id, "stopped a run whose lease could not be renewed");
                    self.remove(&held);
                    held.context.stop(Stop::Ended(Ended::Stopped));
                } else {
                    next = Some(next.map_or(end, |next: Instant| next.min(end)));
                }
            }
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.added.notified() => {}
            }
        }
    }

    /// Announces the worker, again whenever what it offers changes or the connection broke, and obeys directives. Once
    /// `drain` fires it announces nothing more, but listens for as long as the connection holds.
    pub(crate) async fn attach(
        &self,
        url: Option<&str>,
        tools: &Tools,
        attached: &watch::Sender<bool>,
        drain: &CancellationToken,
    ) {
        let mut sets = tools.watch();
        let mut backoff = Backoff::default();
        loop {
            let Announcement { tools, prompts, resources, templates, completes } = sets.borrow_and_update().announced();
            let (id, url) = (self.worker.clone(), url.map(str::to_owned));
            let info = WorkerInfo { id, url, tools, prompts, resources, templates, completes };
            let Some(attach) = drain.run_until_cancelled(self.work.attach(info)).await else { return };
            match attach {
                Ok(mut directives) => {
                    tracing::info!(worker = self.worker.name, "attached to the task-store");
                    attached.send_replace(!drain.is_cancelled());
                    // Leases may have run down while nothing could be heard.
                    self.hurry.notify_one();
                    let since = Instant::now();
                    let changed = loop {
                        tokio::select! {
                            directive = directives.next() => match directive {
                                Some(directive) => self.obey(directive),
                                None => break false,
                            },
                            Ok(()) = sets.changed(), if !drain.is_cancelled() => break true,
                        }
                    };
                    if changed {
                        continue;
                    }
                    tracing::info!(worker = self.worker.name, "lost the task-store's directives");
                    attached.send_replace(false);
                    backoff.lasted(since.elapsed());
                }
                Err(error) => tracing::warn!(%error, "could not attach to the task-store"),
            }
            if drain.run_until_cancelled(backoff.wait()).await.is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use bytes::Bytes;
    use longhaul_core::{Amount, InputRequest, InputResponse, Outcome, Task};
    use longhaul_rpc::{Assignment, Claim, Directives, Report};

    use super::*;

    /// A task-store that keeps the sizes of heartbeats, and wants the first task of each stopped.
    #[derive(Default)]
    struct Beaten(Mutex<Vec<usize>>);

    #[async_trait]
    impl Work for Beaten {
        async fn heartbeat(&self, _: &WorkerId, leases: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error> {
            self.0.lock().unwrap().push(leases.len());
            Ok(leases.first().map(|(id, _)| Directive::Stop(*id)).into_iter().collect())
        }

        async fn attach(&self, _: WorkerInfo) -> Result<Directives, Error> {
            unreachable!()
        }

        async fn claim(&self, _: Claim) -> Result<Vec<Assignment>, Error> {
            unreachable!()
        }

        async fn report(&self, _: Fence, _: Report) -> Result<Task, Error> {
            unreachable!()
        }

        async fn spend(&self, _: Fence, _: Amount) -> Result<Task, Error> {
            unreachable!()
        }

        async fn request_input(&self, _: Fence, _: Vec<InputRequest>, _: Duration) -> Result<Task, Error> {
            unreachable!()
        }

        async fn withdraw(&self, _: Fence, _: Vec<String>) -> Result<Task, Error> {
            unreachable!()
        }

        async fn collect(&self, _: Fence, _: Vec<u32>) -> Result<Vec<(u32, InputResponse)>, Error> {
            unreachable!()
        }

        async fn record(&self, _: Fence, _: u32, _: Bytes) -> Result<(), Error> {
            unreachable!()
        }

        async fn journal(&self, _: Fence, _: u32) -> Result<Vec<Bytes>, Error> {
            unreachable!()
        }

        async fn complete(&self, _: Fence, _: Outcome) -> Result<Task, Error> {
            unreachable!()
        }

        async fn detach(&self, _: &WorkerId) -> Result<(), Error> {
            unreachable!()
        }
    }

    #[tokio::test]
    async fn a_heartbeat_with_more_leases_than_a_task_store_takes_goes_out_in_parts() {
        let beaten = Arc::new(Beaten::default());
        let worker = WorkerId { name: "w".into(), incarnation: "1".into() };
        let leases = Leases::new(beaten.clone(), worker, Liveness::default());
        let attempts = |count: usize| (0..count).map(|nth| (TaskId::from_random(nth as u128), 1)).collect::<Vec<_>>();
        for (count, parts) in [
            (0, vec![0]),
            (HEARTBEAT_LEASES_MAX, vec![HEARTBEAT_LEASES_MAX]),
            (2 * HEARTBEAT_LEASES_MAX + 1, vec![HEARTBEAT_LEASES_MAX, HEARTBEAT_LEASES_MAX, 1]),
        ] {
            let all = attempts(count);
            let stopped: Vec<_> = all.chunks(HEARTBEAT_LEASES_MAX).map(|part| Directive::Stop(part[0].0)).collect();
            assert_eq!(leases.heartbeat(all).await.unwrap(), stopped);
            assert_eq!(std::mem::take(&mut *beaten.0.lock().unwrap()), parts);
        }
    }
}
