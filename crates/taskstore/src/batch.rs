//! Group commit: what arrives while a statement is in flight goes out together in the next one.
//!
//! When nothing is in flight a single item goes straight through; there is no timer. Writers run on the store's task set,
//! so that a caller that goes away never cancels a commit.

use std::sync::Arc;

use futures::future::BoxFuture;
use longhaul_rpc::Error;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics;
use crate::store::Fault;

/// Items in one statement.
const ITEMS_MAX: usize = 64;
/// Payload bytes in one statement; a single item may have more.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Items that wait for the next statement.
const WAITING_MAX: usize = 4096;

/// What can be put into a batch.
pub(crate) trait Item: Clone + Send + Sync + 'static {
    /// The bytes of payload that it moves.
    fn weight(&self) -> usize;
    /// Items with the same key never share a statement.
    fn key(&self) -> Option<u128> {
        None
    }
}

struct Waiting<I, O> {
    item: I,
    answer: oneshot::Sender<Result<O, Fault>>,
}

/// Takes items one by one and puts them into statements together.
pub(crate) struct Batcher<I, O> {
    name: &'static str,
    queue: mpsc::Sender<Waiting<I, O>>,
}

/// A statement over a batch: one answer per item, in order.
pub(crate) type Statement<I, O> = Arc<dyn Fn(Arc<[I]>) -> BoxFuture<'static, Result<Vec<O>, Fault>> + Send + Sync>;

impl<I: Item, O: Send + 'static> Batcher<I, O> {
    /// Starts `writers` that each have one statement in flight at a time, until `stop` fires and nothing waits.
    pub(crate) fn start(
        name: &'static str,
        writers: usize,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        statement: Statement<I, O>,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        let source = Arc::new(Mutex::new(Source { waiting, next: None }));
        for _ in 0..writers {
            let (source, stop, statement) = (source.clone(), stop.clone(), statement.clone());
            tasks.spawn(async move {
                loop {
                    let batch = source.lock().await.batch(&stop).await;
                    if batch.is_empty() {
                        break;
                    }
                    write(name, batch, &statement).await;
                }
            });
        }
        Self { name, queue }
    }

    /// Puts an item into the next statement and waits for its answer.
    pub(crate) async fn put(&self, item: I) -> Result<O, Error> {
        let (answer, answered) = oneshot::channel();
        self.queue.try_send(Waiting { item, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                metrics::overload(self.name);
                Error::NotBegun("the task-store is overloaded".into())
            }
            mpsc::error::TrySendError::Closed(_) => Error::NotBegun("the task-store is shutting down".into()),
        })?;
        Ok(answered.await.map_err(|_| Error::Unavailable("the task-store is shutting down".into()))??)
    }
}

/// The items that wait.
struct Source<I, O> {
    waiting: mpsc::Receiver<Waiting<I, O>>,
    /// Did not fit into the last batch.
    next: Option<Waiting<I, O>>,
}

impl<I: Item, O> Source<I, O> {
    /// The next batch, as soon as there is an item; empty when all is done.
    async fn batch(&mut self, stop: &CancellationToken) -> Vec<Waiting<I, O>> {
        let first = match self.next.take() {
            Some(first) => Some(first),
            None => tokio::select! {
                biased;
                first = self.waiting.recv() => first,
                () = stop.cancelled() => None,
            },
        };
        let Some(first) = first else {
            self.waiting.close();
            return Vec::new();
        };
        let mut bytes = first.item.weight();
        let mut batch = vec![first];
        while batch.len() < ITEMS_MAX {
            let Ok(item) = self.waiting.try_recv() else { break };
            bytes += item.item.weight();
            let key = item.item.key();
            if bytes > BYTES_MAX || (key.is_some() && batch.iter().any(|other| other.item.key() == key)) {
                self.next = Some(item);
                break;
            }
            batch.push(item);
        }
        batch
    }
}

async fn write<I: Item, O: Send + 'static>(name: &'static str, batch: Vec<Waiting<I, O>>, statement: &Statement<I, O>) {
    let (items, answers): (Vec<_>, Vec<_>) = batch.into_iter().map(|waiting| (waiting.item, waiting.answer)).unzip();
    let items: Arc<[I]> = items.into();
    metrics::batch(name, items.len());
    // A caller that has gone away does not hear the answer; what was committed stays.
    match statement(items.clone()).await {
        Ok(outcomes) => {
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                let _ = answer.send(Ok(outcome));
            }
        }
        // One of them is at fault: alone, it fails alone.
        Err(Fault::Failed(_) | Fault::Taken(_)) if items.len() > 1 => {
            for (item, answer) in items.iter().zip(answers) {
                let outcome = statement([item.clone()].into()).await;
                let _ = answer.send(outcome.and_then(|outcomes| {
                    outcomes.into_iter().next().ok_or_else(|| Fault::Failed("a statement without an answer".into()))
                }));
            }
        }
        Err(fault) => {
            tracing::error!(statement = name, %fault, items = items.len(), "a statement failed");
            for answer in answers {
                let _ = answer.send(Err(fault.clone()));
            }
        }
    }
}
