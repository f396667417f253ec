//! Which task runs on which worker that is attached to this replica, and what such workers are told.
//!
//! Only a hint: what is forgotten or dropped here is repeated in the answer to the worker's next heartbeat.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use longhaul_core::{InputState, Phase, Task, TaskId, WorkerId};
use longhaul_rpc::{Directive, Directives};
use tokio::sync::mpsc;

/// Directives that a slow connection has not taken yet; more are dropped.
const UNSENT_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Leases(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    attached: HashMap<WorkerId, mpsc::Sender<Directive>>,
    running: HashMap<TaskId, Run>,
}

struct Run {
    worker: WorkerId,
    /// The newest version that is known to be still running.
    version: u64,
    /// How many of its questions are known to be closed.
    closed: usize,
}

impl Leases {
    /// A worker's connection; a newer one replaces an older one.
    pub(crate) fn attach(&self, worker: WorkerId) -> Directives {
        let (directives, sent) = mpsc::channel(UNSENT_MAX);
        let mut inner = self.lock();
        // Broken connections are noticed here: then their tasks need not be watched either.
        inner.attached.retain(|_, directives| !directives.is_closed());
        inner.attached.insert(worker, directives);
        let Inner { attached, running } = &mut *inner;
        running.retain(|_, run| attached.contains_key(&run.worker));
        tokio_stream::wrappers::ReceiverStream::new(sent).boxed()
    }

    /// The worker has said goodbye; it still hears of the tasks that it is finishing, until it hangs up.
    pub(crate) fn detach(&self, worker: &WorkerId) {
        let mut inner = self.lock();
        if inner.attached.get(worker).is_some_and(mpsc::Sender::is_closed) {
            inner.attached.remove(worker);
        }
    }

    /// The worker runs these tasks, at these versions at least.
    pub(crate) fn runs(&self, worker: &WorkerId, tasks: impl Iterator<Item = (TaskId, u64)>) {
        let mut inner = self.lock();
        if inner.attached.contains_key(worker) {
            for (id, version) in tasks {
                let run = inner.running.entry(id).or_insert_with(|| Run { worker: worker.clone(), version, closed: 0 });
                run.worker.clone_from(worker);
                run.version = run.version.max(version);
            }
        }
    }

    /// The worker does not run this task any more.
    pub(crate) fn forget(&self, id: TaskId) {
        self.lock().running.remove(&id);
    }

    /// The task is now so: if it is no longer running, its worker is told to stop (`own`: by the worker's own word, so it
    /// knows); if it was answered, to collect.
    pub(crate) fn is_now(&self, task: &Task, own: bool) {
        let mut inner = self.lock();
        let Inner { attached, running } = &mut *inner;
        let (worker, directive) = if !matches!(task.phase, Phase::Running(_)) {
            let Some(run) = running.remove(&task.id) else { return };
            (run.worker, (!own).then_some(Directive::Stop(task.id)))
        } else {
            let Some(run) = running.get_mut(&task.id) else { return };
            run.version = run.version.max(task.version);
            let closed = task.inputs.iter().filter(|input| input.state == InputState::Closed).count();
            let answered = closed > run.closed;
            run.closed = run.closed.max(closed);
            (run.worker.clone(), answered.then_some(Directive::Answered(task.id)))
        };
        if let (Some(directive), Some(directives)) = (directive, attached.get(&worker)) {
            // Full or broken: the next heartbeat's answer says it again.
            let _ = directives.try_send(directive);
        }
    }

    /// Whether a task that is said to be at `version` should be looked at.
    pub(crate) fn is_news(&self, id: TaskId, version: u64) -> bool {
        self.lock().running.get(&id).is_some_and(|run| version > run.version)
    }

    /// All tasks watched here.
    pub(crate) fn running(&self) -> Vec<TaskId> {
        self.lock().running.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
