//! The changes of a resource, as its worker tells of them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use longhaul_core::Target;
use longhaul_rpc::{Calls as _, Error};

use crate::Shared;
use crate::catalogue::Worker;

/// How long to wait for a worker to say that it watches. One that takes longer is no worse than one that was lost.
const BEGIN_MAX: Duration = Duration::from_millis(250);

/// Says whenever a resource has changed, until dropped. A watch that is lost is begun again, and as nobody knows what
/// happened meanwhile, that counts as a change.
pub(crate) fn updates(shared: &Arc<Shared>, uri: &str) -> BoxStream<'static, ()> {
    Watcher::new(shared, uri).stream()
}

/// The same, once the watch has begun, if that is soon.
pub(crate) async fn updates_begun(shared: &Arc<Shared>, uri: &str) -> BoxStream<'static, ()> {
    let mut watcher = Watcher::new(shared, uri);
    watcher.lost = tokio::time::timeout(BEGIN_MAX, watcher.begin()).await.is_err();
    watcher.stream()
}

/// A watch, and the worker whose connection must outlive it.
type Watch = (BoxStream<'static, Result<(), Error>>, Arc<Worker>);

struct Watcher {
    shared: Arc<Shared>,
    target: Target,
    watch: Option<Watch>,
    lost: bool,
}

impl Watcher {
    fn new(shared: &Arc<Shared>, uri: &str) -> Self {
        Self { shared: shared.clone(), target: Target::Resource(uri.to_owned()), watch: None, lost: false }
    }

    fn stream(self) -> BoxStream<'static, ()> {
        futures::stream::unfold(self, async |mut watcher| {
            watcher.changed().await;
            Some(((), watcher))
        })
        .boxed()
    }

    async fn changed(&mut self) {
        loop {
            let Some((watch, _)) = &mut self.watch else {
                self.begin().await;
                if std::mem::take(&mut self.lost) {
                    return;
                }
                continue;
            };
            match watch.next().await {
                Some(Ok(())) => return,
                Some(Err(error)) => self.over(&error.to_string()),
                None => self.over("it ended"),
            }
        }
    }

    fn over(&mut self, why: &str) {
        tracing::debug!(why, "a watch on a resource was lost");
        (self.watch, self.lost) = (None, true);
    }

    /// Begins a watch, at whichever worker takes it.
    async fn begin(&mut self) {
        loop {
            for worker in self.shared.catalogue.workers_for(&self.target).unwrap_or_default() {
                let Ok(mut watch) = worker.client.watch(self.target.name()).await else { continue };
                // The first word says that it has begun.
                if matches!(watch.next().await, Some(Ok(()))) {
                    self.watch = Some((watch, worker));
                    return;
                }
            }
            // A worker that was away may be back by then, or another has come.
            tokio::time::sleep(self.shared.config.pace.watch_again).await;
        }
    }
}
