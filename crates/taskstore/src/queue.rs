//! Claims that wait for a task.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_core::TaskId;
use tokio::sync::oneshot;

/// Own new tasks remembered, so that their hints, which come back over the bus, wake nobody a second time.
const OWN_MAX: usize = 4096;

/// Wakes one waiting claim for each new task, so that a task does not wake a whole herd.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    next: u64,
    /// Waiting claims, the longest-waiting first, by the tools they run.
    waiting: HashMap<Arc<[String]>, VecDeque<Waiting>>,
    own: VecDeque<TaskId>,
    own_set: HashSet<TaskId>,
}

/// A place's number, and how to wake who is there.
type Waiting = (u64, oneshot::Sender<()>);

/// A place in the queue; given up when dropped.
pub(crate) struct Place<'a> {
    queue: &'a Queue,
    tools: Arc<[String]>,
    number: u64,
    woken: oneshot::Receiver<()>,
}

impl Queue {
    /// Queues up, before looking for tasks: one created between the two would be missed otherwise.
    pub(crate) fn enter(&self, tools: &Arc<[String]>) -> Place<'_> {
        let (wake, woken) = oneshot::channel();
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        inner.waiting.entry(tools.clone()).or_default().push_back((number, wake));
        Place { queue: self, tools: tools.clone(), number, woken }
    }

    /// This task-store has created a task.
    pub(crate) fn created(&self, id: TaskId, tool: &str) {
        let mut inner = self.lock();
        inner.own.push_back(id);
        inner.own_set.insert(id);
        if inner.own.len() > OWN_MAX
            && let Some(old) = inner.own.pop_front()
        {
            inner.own_set.remove(&old);
        }
        let able = inner.waiting.keys().find(|tools| tools.iter().any(|known| known == tool)).cloned();
        if let Some(tools) = able {
            inner.wake(&tools);
        }
    }

    /// The bus says that a task was created; its tool is not known here, so one claim of each kind looks.
    pub(crate) fn heard_of(&self, id: TaskId) {
        let mut inner = self.lock();
        if inner.own_set.remove(&id) {
            return;
        }
        inner.wake_each();
    }

    /// Hints were lost: one claim of each kind looks.
    pub(crate) fn missed(&self) {
        self.lock().wake_each();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn wake_each(&mut self) {
        let kinds: Vec<_> = self.waiting.keys().cloned().collect();
        for tools in kinds {
            self.wake(&tools);
        }
    }

    fn wake(&mut self, tools: &Arc<[String]>) {
        let Some(waiting) = self.waiting.get_mut(tools) else { return };
        while let Some((_, wake)) = waiting.pop_front() {
            if wake.send(()).is_ok() {
                break;
            }
        }
        if waiting.is_empty() {
            self.waiting.remove(tools);
        }
    }
}

impl Place<'_> {
    /// Waits until there may be a task.
    pub(crate) async fn woken(&mut self) {
        // The sender is dropped only with the queue.
        let _ = (&mut self.woken).await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        if let Some(waiting) = inner.waiting.get_mut(&self.tools) {
            waiting.retain(|(number, _)| *number != self.number);
            if waiting.is_empty() {
                inner.waiting.remove(&self.tools);
            }
        }
        // Woken, but gone before it looked: the next one shall look.
        if self.woken.try_recv().is_ok() {
            inner.wake(&self.tools);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn tools(names: &[&str]) -> Arc<[String]> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_new_task_wakes_the_longest_waiting_claim_that_runs_its_tool_and_no_other() {
        let queue = Queue::default();
        let (both, one) = (tools(&["a", "b"]), tools(&["c"]));
        let (mut first, mut second, mut other) = (queue.enter(&both), queue.enter(&both), queue.enter(&one));
        let id = TaskId::from_random(1);
        queue.created(id, "b");
        // Its hint, which comes back over the bus, is no news.
        queue.heard_of(id);
        assert!(first.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_none());
        assert!(other.woken().now_or_never().is_none());
        queue.heard_of(TaskId::from_random(2));
        assert!(second.woken().now_or_never().is_some());
        assert!(other.woken().now_or_never().is_some());
    }

    #[test]
    fn a_claim_that_goes_away_after_it_was_woken_wakes_the_next() {
        let queue = Queue::default();
        let kind = tools(&["a"]);
        let (first, mut second) = (queue.enter(&kind), queue.enter(&kind));
        queue.created(TaskId::from_random(1), "a");
        assert!(second.woken().now_or_never().is_none());
        drop(first);
        assert!(second.woken().now_or_never().is_some());
        drop(second);
        assert!(queue.lock().waiting.is_empty());
    }
}
