//! Publish after commit; listen, and look again.

use std::sync::Arc;

use futures::future::join_all;
use longhaul_bus::{Bus, Hint};
use longhaul_core::{NewTask, Phase, Task};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::batch::Batcher;
use crate::leases::Leases;
use crate::queue::Queue;
use crate::store::{Found, Loaded, Wanted};

/// Tasks looked at together after a burst of hints.
const LOOK_MAX: usize = 256;

/// Everyone in this process who wants to hear of a change, and the bus for all others.
pub(crate) struct Hints {
    pub bus: Arc<dyn Bus>,
    pub queue: Queue,
    pub leases: Leases,
}

impl Hints {
    /// A task was created here.
    pub(crate) fn created(&self, new: &NewTask) {
        match &new.claimed {
            None => {
                self.queue.created(new.id, &new.tool);
                self.bus.publish(Hint::Task { id: new.id, version: 1 });
            }
            // No hint: there is nothing to claim, and as yet nobody who waits for it.
            Some(claimed) => self.leases.runs(&claimed.worker, std::iter::once((new.id, 1))),
        }
    }

    /// A change was committed here; `own` if by the word of the worker that runs the task.
    pub(crate) fn changed(&self, task: &Task, own: bool) {
        self.leases.is_now(task, own);
        self.bus.publish(Hint::Task { id: task.id, version: task.version });
        if task.phase == Phase::Queued {
            // It is to be claimed again, as if it were new.
            self.queue.created(task.id, &task.tool);
            self.bus.publish(Hint::Task { id: task.id, version: 1 });
        }
    }

    /// Hears what other replicas did, for as long as there is a bus.
    pub(crate) async fn listen(&self, mut heard: broadcast::Receiver<Hint>, loads: &Batcher<Wanted, Loaded>) {
        loop {
            let mut look = Vec::new();
            let mut next = heard.recv().await;
            loop {
                match next {
                    Ok(Hint::Task { id, version: 1 }) => self.queue.heard_of(id),
                    Ok(Hint::Task { id, version }) if self.leases.is_news(id, version) => look.push(id),
                    Ok(Hint::Task { .. } | Hint::Control(_)) => {}
                    Ok(Hint::Missed) | Err(RecvError::Lagged(_)) => {
                        self.queue.missed();
                        look = self.leases.running();
                    }
                    Err(RecvError::Closed) => return,
                }
                if look.len() >= LOOK_MAX {
                    break;
                }
                match heard.try_recv() {
                    Ok(hint) => next = Ok(hint),
                    Err(_) => break,
                }
            }
            for ids in look.chunks(LOOK_MAX) {
                join_all(ids.iter().map(|id| async {
                    // Without an answer nothing is lost: the worker's next heartbeat asks the same.
                    let loaded = loads.put(Wanted { id: *id, outcome_for: None, whole: false }).await;
                    if let Ok(Loaded { found: Found::Task(stored), .. }) = loaded {
                        self.leases.is_now(&stored.task, false);
                    }
                }))
                .await;
            }
        }
    }
}
