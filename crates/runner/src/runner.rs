//! All upstream servers of a runner, and the tools that their worker offers.

use std::ffi::OsString;
use std::sync::Arc;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use longhaul_worker::{Error, Tool, Tools};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ConfigError, UpstreamConfig};
use crate::tool::wrap;
use crate::upstream::{TOOLS_MAX, Upstream};

/// Wraps upstream servers as tools of a worker.
pub struct Runner {
    upstreams: Vec<(Arc<Upstream>, UpstreamConfig)>,
    own: Vec<Tool>,
    tools: Tools,
}

/// How an upstream server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamStatus {
    /// Its configured name.
    pub name: String,
    /// The tools that it last listed.
    pub tools: usize,
    /// Why it is not there, if it is not: the rest of a sentence that begins with the server.
    pub missing: Option<String>,
}

impl Runner {
    /// Reads what the config points to; nothing is started yet. `tools` are the worker's, `own` those of them that are
    /// not an upstream server's; `variable` looks up our environment.
    pub fn build(
        config: &Config,
        variable: impl Fn(&str) -> Option<OsString>,
        tools: Tools,
        own: Vec<Tool>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let max_result_bytes = config.max_result_bytes;
        let upstream = |config: &UpstreamConfig| {
            let reach = config.reach(&variable)?;
            Ok((Arc::new(Upstream::new(&config.name, reach, max_result_bytes)), config.clone()))
        };
        let upstreams = config.upstreams.iter().map(upstream).collect::<Result<_, _>>()?;
        Ok(Self { upstreams, own, tools })
    }

    /// How the upstream servers are: those that are missing hinder nobody else.
    pub fn status(&self) -> Vec<UpstreamStatus> {
        let status = |(upstream, _): &(Arc<Upstream>, UpstreamConfig)| UpstreamStatus {
            name: upstream.name.to_string(),
            tools: upstream.tools().borrow().len(),
            missing: upstream.missing(),
        };
        self.upstreams.iter().map(status).collect()
    }

    /// Starts the servers, keeps their tools on offer, and ends them once `drain` fires. Fire it after the worker has
    /// drained: its last runs need them.
    pub async fn run(&self, drain: CancellationToken) {
        let servers = join_all(self.upstreams.iter().map(|(upstream, _)| upstream.run(&drain)));
        let offering = drain.run_until_cancelled(self.offer());
        tokio::join!(servers, offering);
    }

    /// Offers the tools as they change.
    async fn offer(&self) {
        let mut lists: Vec<_> = self.upstreams.iter().map(|(upstream, _)| upstream.tools()).collect();
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
        let mut tools: Vec<_> = self.own.iter().map(|tool| (None, tool.clone())).collect();
        for (upstream, config) in &self.upstreams {
            for listed in upstream.tools().borrow().iter() {
                if listed.needs_task {
                    tracing::warn!(upstream = %upstream.name, tool = listed.name, "left out: upstream it can only be called as a task, which is not supported");
                } else {
                    tools.push((Some(format!("{}.{}", upstream.name, listed.name)), wrap(upstream, config, listed)));
                }
            }
        }
        if tools.len() > TOOLS_MAX {
            tracing::warn!(TOOLS_MAX, "too many tools: the last ones are left out");
            tools.truncate(TOOLS_MAX);
        }
        // One that cannot be offered must not hinder the others. Each round leaves out one; the last of two of a name.
        while let Err(error) = self.tools.replace(tools.iter().map(|(_, tool)| tool.clone())) {
            tracing::warn!(%error, "a tool cannot be offered");
            let Error::Tool { name: bad, .. } = &error else { return };
            match tools.iter().rposition(|(name, _)| name.as_ref() == Some(bad)) {
                Some(at) => drop(tools.remove(at)),
                None => return,
            }
        }
    }
}
