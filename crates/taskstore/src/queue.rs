//! Claims that wait for a task.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_core::TaskId;
use tokio::sync::oneshot;

/// Own new tasks remembered, so that their hints, which come back over the bus, wake nobody a second time.
const OWN_MAX: usize = 4096;

/// Wakes as few waiting claims as new tasks need, so that a task does not wake a whole herd.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    next: u64,
    /// The waiting claims, by the tools they run.
    kinds: HashMap<Arc<[String]>, Kind>,
    own: VecDeque<TaskId>,
    own_set: HashSet<TaskId>,
}

#[derive(Default)]
struct Kind {
    /// The longest-waiting first.
    waiting: VecDeque<Waiting>,
    /// Woken last and has not looked yet: so many more tasks are its to take.
    woken: Option<(u64, u32)>,
}

struct Waiting {
    number: u64,
    max: u32,
    wake: oneshot::Sender<()>,
}

/// A place in the queue; given up when dropped, which is to be before the claim looks.
pub(crate) struct Place<'a> {
    queue: &'a Queue,
    tools: Arc<[String]>,
    number: u64,
    woken: oneshot::Receiver<()>,
    looks: bool,
}

impl Queue {
    /// Queues up for at most `max` tasks, before looking for them: one created between the two would be missed otherwise.
    pub(crate) fn enter(&self, tools: &Arc<[String]>, max: u32) -> Place<'_> {
        let (wake, woken) = oneshot::channel();
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        inner.kinds.entry(tools.clone()).or_default().waiting.push_back(Waiting { number, max, wake });
        Place { queue: self, tools: tools.clone(), number, woken, looks: false }
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
        if let Some((_, kind)) = inner.kinds.iter_mut().find(|(tools, _)| tools.iter().any(|known| known == tool)) {
            kind.wake();
        }
    }

    /// The bus says that a task was created; its tool is not known here, so one claim of each kind looks.
    pub(crate) fn heard_of(&self, id: TaskId) {
        let mut inner = self.lock();
        if !inner.own_set.remove(&id) {
            inner.kinds.values_mut().for_each(Kind::wake);
        }
    }

    /// Hints were lost: one claim of each kind looks.
    pub(crate) fn missed(&self) {
        self.lock().kinds.values_mut().for_each(Kind::wake);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    /// There is one more task.
    fn wake(&mut self) {
        if let Some((_, more @ 1..)) = &mut self.woken {
            *more -= 1;
            return;
        }
        while let Some(Waiting { number, max, wake }) = self.waiting.pop_front() {
            if wake.send(()).is_ok() {
                self.woken = Some((number, max.saturating_sub(1)));
                break;
            }
        }
    }
}

impl Place<'_> {
    /// Waits until there may be a task.
    pub(crate) async fn woken(&mut self) {
        // The sender is dropped only with the queue.
        let _ = (&mut self.woken).await;
        self.looks = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        let Some(kind) = inner.kinds.get_mut(&self.tools) else { return };
        kind.waiting.retain(|waiting| waiting.number != self.number);
        // What is created from now on is not for this one.
        kind.woken.take_if(|(number, _)| *number == self.number);
        // Woken, but gone before it looked: the next one shall look.
        if !self.looks && self.woken.try_recv().is_ok() {
            kind.wake();
        }
        if kind.waiting.is_empty() && kind.woken.is_none() {
            inner.kinds.remove(&self.tools);
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
        let (mut first, mut second, mut other) = (queue.enter(&both, 1), queue.enter(&both, 1), queue.enter(&one, 1));
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
    fn a_claim_of_many_is_woken_once_for_as_many_until_it_looks() {
        let queue = Queue::default();
        let kind = tools(&["a"]);
        let (mut first, mut second, mut third) = (queue.enter(&kind, 3), queue.enter(&kind, 3), queue.enter(&kind, 3));
        for bits in 1..=3 {
            queue.created(TaskId::from_random(bits), "a");
        }
        assert!(first.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_none());
        queue.created(TaskId::from_random(4), "a");
        assert!(second.woken().now_or_never().is_some());
        drop((first, second));
        queue.created(TaskId::from_random(5), "a");
        assert!(third.woken().now_or_never().is_some());
    }

    #[test]
    fn a_claim_that_goes_away_after_it_was_woken_wakes_the_next() {
        let queue = Queue::default();
        let kind = tools(&["a"]);
        let (first, mut second) = (queue.enter(&kind, 1), queue.enter(&kind, 1));
        queue.created(TaskId::from_random(1), "a");
        assert!(second.woken().now_or_never().is_none());
        drop(first);
        assert!(second.woken().now_or_never().is_some());
        drop(second);
        assert!(queue.lock().kinds.is_empty());
    }
}
