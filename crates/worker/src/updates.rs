//! Who hears that a resource has changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use longhaul_rpc::Error;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

/// Resources of one worker that are watched at a time.
const WATCHED_MAX: usize = 10_000;

type Hook = dyn Fn(&str, bool) + Send + Sync;

/// A worker's resources, as those see them who watch them. All clones are the same.
#[derive(Clone, Default)]
pub struct Resources(Arc<Inner>);

#[derive(Default)]
struct Inner {
    watched: Mutex<HashMap<String, Watched>>,
    hook: Mutex<Option<Arc<Hook>>>,
}

/// One URI with its watchers.
struct Watched {
    changes: watch::Sender<()>,
    watchers: usize,
}

impl Resources {
    /// Tells all who watch it that the resource of this URI has changed. Never waits; news that come quickly are one.
    pub fn updated(&self, uri: &str) {
        if let Some(watched) = self.watched().get(uri) {
            watched.changes.send_replace(());
        }
    }

    /// Calls `hook` with a URI and `true` when its first watcher comes, and with `false` when the last one has left; at
    /// once for those that are watched already. It must not block, nor call back. A later hook replaces an earlier one.
    pub fn on_watch(&self, hook: impl Fn(&str, bool) + Send + Sync + 'static) {
        let watched = self.watched();
        watched.keys().for_each(|uri| hook(uri, true));
        *self.0.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    /// The changes of a resource: the first item comes at once.
    pub(crate) fn watch(&self, uri: &str) -> Result<BoxStream<'static, Result<(), Error>>, Error> {
        let mut all = self.watched();
        if all.len() >= WATCHED_MAX && !all.contains_key(uri) {
            return Err(Error::Unavailable("too many resources are watched".into()));
        }
        let watched = all.entry(uri.to_owned()).or_insert_with(|| {
            self.call_hook(uri, true);
            Watched { changes: watch::Sender::new(()), watchers: 0 }
        });
        watched.watchers += 1;
        let leaving = Leaving { resources: self.clone(), uri: uri.to_owned() };
        let changes = WatchStream::new(watched.changes.subscribe());
        Ok(changes
            .map(move |()| {
                let _until_dropped = &leaving;
                Ok(())
            })
            .boxed())
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the watched ones locked, so that the hook hears all in their order.
    fn call_hook(&self, uri: &str, watched: bool) {
        let hook = self.0.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook(uri, watched);
        }
    }
}

/// A watcher, until it is dropped.
struct Leaving {
    resources: Resources,
    uri: String,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut all = self.resources.watched();
        let Some(watched) = all.get_mut(&self.uri) else { return };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            all.remove(&self.uri);
            self.resources.call_hook(&self.uri, false);
        }
    }
}
