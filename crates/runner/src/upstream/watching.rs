//! Who watches a server's resources, and how the server is told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

use super::ears::Changes;
use super::{Backoff, Fault, LIST_TIMEOUT, Link, Pending, Upstream, next_id};
use crate::wire::{Era, Listen, Request};

/// Resources of one server that are watched at a time; of more, nobody hears.
const WATCHED_MAX: usize = 1000;
/// How long a subscription outlives the one that takes its place: what it has on the way still comes.
const OVERLAP: Duration = Duration::from_secs(1);
/// How soon a subscription that was refused is asked for again.
const REFUSED_PAUSE: Duration = Duration::from_secs(300);

impl Upstream {
    /// Somebody begins to watch a resource, by its URI upstream.
    pub(crate) fn watch_resource(&self, uri: &str) {
        self.watched.send_if_modified(|watched| {
            if watched.len() >= WATCHED_MAX && !watched.contains(uri) {
                tracing::warn!(upstream = %self.name, WATCHED_MAX, "too many resources are watched: one is not");
                return false;
            }
            watched.insert(uri.to_owned())
        });
    }

    /// Nobody watches it any more.
    pub(crate) fn unwatch_resource(&self, uri: &str) {
        self.watched.send_if_modified(|watched| watched.remove(uri));
    }

    /// Tells a server with sessions which resources are watched, where that is news. One that is refused is not asked for
    /// again in this session.
    pub(super) async fn subscribe(&self, link: &Link, wanted: &BTreeSet<String>, subscribed: &mut BTreeSet<String>) {
        if link.hello.era == Era::Modern || !link.hello.abilities.subscribe {
            return;
        }
        for uri in wanted.difference(subscribed) {
            self.ask(link, &Request::subscribe(uri)).await;
        }
        for uri in subscribed.difference(wanted) {
            self.ask(link, &Request::unsubscribe(uri)).await;
        }
        subscribed.clone_from(wanted);
    }
}

/// Listens to a server without sessions (MCP 2026-07-28, basic/patterns/subscriptions) until it is given up.
pub(super) async fn listen(link: Arc<Link>, mut watched: watch::Receiver<BTreeSet<String>>) {
    let closed = link.carrier.closed().clone();
    let listening = async {
        let mut pauses = Backoff::new();
        // The newest, and those that it takes the place of until they have said their last.
        let mut subscriptions = FuturesUnordered::new();
        loop {
            let abilities = link.hello.abilities;
            let resources = watched.borrow_and_update().iter().filter(|_| abilities.subscribe).cloned().collect();
            let wanted = Listen { lists: abilities.changing(), resources };
            let id = next_id();
            if wanted == Listen::default() {
                link.ears().confirmed.send_replace(id);
            } else {
                subscriptions.push(subscription(&link, id, wanted));
            }
            let mut confirmations = link.ears().confirmed.subscribe();
            let confirmed = async { drop(confirmations.wait_for(|newest| *newest >= id).await) };
            let confirmed = timeout(LIST_TIMEOUT, confirmed);
            let mut confirmed = std::pin::pin!(confirmed);
            let mut is_confirmed = false;
            loop {
                tokio::select! {
                    _ = &mut confirmed, if !is_confirmed => is_confirmed = true,
                    // One change after another: not one subscription for each of a thousand.
                    changed = watched.changed(), if is_confirmed => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    Some(ended) = subscriptions.next() => {
                        if ended == id {
                            pauses.wait().await;
                            // What changed while nobody listened is found by looking.
                            link.ears().changes.mark(Changes::LISTS | Changes::MISSED);
                            break;
                        }
                    }
                }
            }
        }
    };
    closed.run_until_cancelled(listening).await;
}

/// Keeps a subscription until the server ends it or a newer one is there; answers its id.
async fn subscription(link: &Link, id: u64, wanted: Listen) -> u64 {
    let request = Request::listen(&wanted);
    let mut pending = Pending { link, id, is_answered: false };
    let mut confirmed = link.ears().confirmed.subscribe();
    let replaced = async {
        let _ = confirmed.wait_for(|newest| *newest > id).await;
        tokio::time::sleep(OVERLAP).await;
    };
    let mut replaced = std::pin::pin!(replaced);
    let answer = tokio::select! {
        answer = link.request(id, &request, link.own_meta()) => answer,
        () = &mut replaced => return id,
    };
    pending.is_answered = answer.is_ok();
    let upstream = &link.ears().upstream;
    match answer {
        Ok(Ok(_)) => tracing::debug!(%upstream, "the upstream server has ended a subscription"),
        Ok(Err(error)) => {
            tracing::warn!(%upstream, "what changes is not heard of: the upstream server {}", Fault::refused(&error));
            // Asking for the same soon would not help.
            let _ = timeout(REFUSED_PAUSE, replaced).await;
        }
        Err(fault) => tracing::debug!(%upstream, "a subscription broke: the upstream server {fault}"),
    }
    id
}
