//! All upstream servers of a runner, and what their worker offers.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::sync::Arc;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_worker::{Offer, Tools, Worker};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ConfigError, UpstreamConfig};
use crate::upstream::{LISTED_MAX, Upstream};
use crate::wire::Listing;
use crate::wrap::{Entry, Wrapped};

/// Definitions of all upstream servers together, in bytes: a worker announces them in one message, with its own.
const DEFINITIONS_BYTES_MAX: usize = PAYLOAD_BYTES_MAX / 4 * 3;

/// Wraps upstream servers as tools, prompts and resources of a worker.
pub struct Runner {
    upstreams: Vec<Wrapped>,
    own: Vec<Offer>,
    tools: Tools,
}

/// How an upstream server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamStatus {
    /// Its configured name.
    pub name: String,
    /// The tools that it last listed.
    pub tools: usize,
    /// The prompts that it last listed.
    pub prompts: usize,
    /// The resources that it last listed, without what its templates describe.
    pub resources: usize,
    /// The callers that have a session of their own with it.
    pub sessions: usize,
    /// Why it is not there, if it is not: the rest of a sentence that begins with the server.
    pub missing: Option<String>,
}

impl Runner {
    /// Reads what the config points to; nothing is started yet. `worker` is to offer it, beside `own`, which is what it
    /// offers already; `variable` looks up our environment.
    pub fn build(
        config: &Config,
        variable: impl Fn(&str) -> Option<OsString>,
        worker: &Worker,
        own: impl IntoIterator<Item: Into<Offer>>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let max_result_bytes = config.max_result_bytes;
        let resources = worker.resources();
        let upstream = |config: &UpstreamConfig| {
            let reach = config.reach(&variable)?;
            let (resources, prefix) = (resources.clone(), format!("{}+", config.scheme()));
            let updated = Arc::new(move |uri: &str| resources.updated(&format!("{prefix}{uri}")));
            let sharing = config.sharing();
            let upstream = Upstream::new(&config.name, reach, config.era, sharing, max_result_bytes, updated);
            Ok(Wrapped::new(Arc::new(upstream), config))
        };
        let upstreams: Vec<Wrapped> = config.upstreams.iter().map(upstream).collect::<Result<_, _>>()?;
        // The servers know the resources; these must not hold the servers in turn.
        let watched: Vec<_> = upstreams.iter().map(|one| (one.prefix.clone(), Arc::downgrade(&one.upstream))).collect();
        resources.on_watch(move |uri, is_watched| {
            for (prefix, upstream) in &watched {
                if let (Some(own), Some(upstream)) = (uri.strip_prefix(&**prefix), upstream.upgrade()) {
                    if is_watched { upstream.watch_resource(own) } else { upstream.unwatch_resource(own) }
                }
            }
        });
        Ok(Self { upstreams, own: own.into_iter().map(Into::into).collect(), tools: worker.tools() })
    }

    /// How the upstream servers are: those that are missing hinder nobody else.
    pub fn status(&self) -> Vec<UpstreamStatus> {
        let status = |Wrapped { upstream, .. }: &Wrapped| {
            let offer = upstream.offer().borrow().clone();
            UpstreamStatus {
                name: upstream.name.to_string(),
                tools: offer.tools.len(),
                prompts: offer.prompts.len(),
                resources: offer.resources.len(),
                sessions: upstream.sessions(),
                missing: upstream.missing(),
            }
        };
        self.upstreams.iter().map(status).collect()
    }

    /// Starts the servers, keeps what they offer on offer, and ends them once `drain` fires. Fire it after the worker has
    /// drained: its last runs need them.
    pub async fn run(&self, drain: CancellationToken) {
        let servers = join_all(self.upstreams.iter().map(|one| one.upstream.run(&drain)));
        let offering = drain.run_until_cancelled(self.offer());
        tokio::join!(servers, offering);
    }

    /// Offers what there is as it changes.
    async fn offer(&self) {
        let mut lists: Vec<_> = self.upstreams.iter().map(|one| one.upstream.offer()).collect();
        loop {
            for list in &mut lists {
                list.mark_unchanged();
            }
            self.offer_now();
            let mut changes: FuturesUnordered<_> = lists.iter_mut().map(|list| list.changed()).collect();
            // Without upstream servers nothing ever changes.
            if changes.next().await.is_none() {
                return;
            }
        }
    }

    fn offer_now(&self) {
        let mut names = HashSet::new();
        let mut counts: HashMap<Listing, usize> = HashMap::new();
        let (mut bytes, mut is_full) = (0, false);
        let mut fits = |entry: &Entry| {
            // One that cannot be offered must not hinder the others.
            if let Err(error) = Tools::default().add(entry.offer.clone()) {
                tracing::warn!(%error, "cannot be offered");
                return false;
            }
            if !names.insert((entry.listing, entry.name.clone())) {
                tracing::warn!(name = entry.name, "another one is offered under this name");
                return false;
            }
            let count = counts.entry(entry.listing).or_default();
            if *count == LISTED_MAX || bytes + entry.bytes > DEFINITIONS_BYTES_MAX {
                is_full = true;
                return false;
            }
            *count += 1;
            bytes += entry.bytes;
            true
        };
        let entries = self.upstreams.iter().flat_map(Wrapped::entries);
        let offers: Vec<Offer> = entries.filter(|entry| fits(entry)).map(|entry| entry.offer).collect();
        if is_full {
            tracing::warn!(LISTED_MAX, DEFINITIONS_BYTES_MAX, "too much to offer: the last ones are left out");
        }
        // Its own come first, and may have taken a name or a place.
        let mut all: Vec<Offer> = self.own.iter().cloned().chain(offers).collect();
        while let Err(error) = self.tools.replace(all.iter().cloned()) {
            tracing::warn!(%error, "cannot be offered beside the worker's own: the last one is left out");
            if all.len() <= self.own.len() {
                return;
            }
            all.pop();
        }
    }
}
