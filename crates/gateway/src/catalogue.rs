//! The tools on offer, and which workers have them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use longhaul_core::{TaskSupport, ToolDef, WorkerInfo};
use longhaul_mcp::{Dialect, v2025};
use longhaul_rpc::client::{CallsClient, Target};
use longhaul_rpc::{Error, Links, ServiceToken, Tasks};
use tokio::sync::{Notify, watch};

/// How many tools are offered at most; more are left out, in the order of their names.
const TOOLS_MAX: usize = 10_000;

/// How workers are reached.
#[derive(Debug, Clone)]
pub(crate) struct Dial {
    pub(crate) links: Links,
    pub(crate) token: ServiceToken,
    pub(crate) payload_bytes_max: usize,
}

/// Knows the tools.
pub(crate) struct Catalogue {
    dial: Dial,
    tasks_enabled: bool,
    offer: ArcSwap<Offer>,
    /// One connection for each worker that is there.
    workers: Mutex<HashMap<String, Arc<CallsClient>>>,
    /// Whose turn it is.
    turn: AtomicUsize,
    /// Raised when the lists are first known and whenever they have changed.
    changes: watch::Sender<u64>,
    /// Asks for a look before it is due.
    pub(crate) look: Notify,
}

/// The tools at one moment.
#[derive(Default)]
pub(crate) struct Offer {
    loaded: bool,
    tools: BTreeMap<Arc<str>, Offered>,
    with_tasks: Listed,
    without_tasks: Listed,
}

/// What clients of a dialect see, in the order of names.
#[derive(Default, PartialEq, Eq)]
struct Listed {
    names: Vec<Arc<str>>,
    tools: Vec<Bytes>,
}

/// A tool.
pub(crate) struct Offered {
    /// Its name.
    pub(crate) name: Arc<str>,
    /// Whether its calls may become tasks.
    pub(crate) task_support: TaskSupport,
    /// The workers that take calls of it.
    workers: Vec<Arc<CallsClient>>,
}

impl Catalogue {
    pub(crate) fn new(dial: Dial, tasks_enabled: bool) -> Self {
        Self {
            dial,
            tasks_enabled,
            offer: ArcSwap::default(),
            workers: Mutex::default(),
            turn: AtomicUsize::new(0),
            changes: watch::Sender::new(0),
            look: Notify::new(),
        }
    }

    /// The tools, once they are known.
    pub(crate) fn offer(&self) -> Option<Arc<Offer>> {
        Some(self.offer.load_full()).filter(|offer| offer.loaded)
    }

    /// Hears of every later change of the lists.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Looks again; what was known stays if that fails.
    pub(crate) async fn refresh(&self, tasks: &dyn Tasks) -> Result<(), Error> {
        let workers = tasks.tools().await?;
        let offer = self.offer_of(workers);
        let former = self.offer.load_full();
        let changed =
            !former.loaded || former.with_tasks != offer.with_tasks || former.without_tasks != offer.without_tasks;
        self.offer.store(Arc::new(offer));
        if changed {
            tracing::info!("the list of tools has changed");
            self.changes.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    fn offer_of(&self, mut workers: Vec<WorkerInfo>) -> Offer {
        // The first worker by name defines a tool that several offer: every replica then says the same.
        workers.sort_by(|a, b| (&a.id.name, &a.id.incarnation).cmp(&(&b.id.name, &b.id.incarnation)));
        let mut tools: BTreeMap<Arc<str>, (ToolDef, Vec<Arc<CallsClient>>)> = BTreeMap::new();
        let mut connections = HashMap::new();
        for worker in workers {
            let connection = worker.url.and_then(|url| self.connection(url, &mut connections));
            for tool in worker.tools {
                let (_, workers) = tools.entry(tool.name.as_str().into()).or_insert_with(|| (tool, Vec::new()));
                workers.extend(connection.clone());
            }
        }
        // Connections to workers that are gone close here, or when the last call over them has ended.
        *self.workers.lock().unwrap_or_else(PoisonError::into_inner) = connections;

        let mut offer = Offer { loaded: true, ..Offer::default() };
        for (name, (def, workers)) in tools.into_iter().take(TOOLS_MAX) {
            let shown = |dialect| v2025::tool(dialect, &def, self.tasks_enabled);
            let (Some(newer), Some(older)) = (shown(Dialect::V2025_11_25), shown(Dialect::V2025_06_18)) else {
                tracing::warn!(tool = %name, "a tool's definition is no JSON object: it is not offered");
                continue;
            };
            // A tool that runs as a task only is of no use where there are no tasks.
            let needs_tasks = def.task_support == TaskSupport::Required;
            if self.tasks_enabled || !needs_tasks {
                offer.with_tasks.push(&name, newer);
            }
            if !needs_tasks {
                offer.without_tasks.push(&name, older);
            }
            let tool = Offered { name: name.clone(), task_support: def.task_support, workers };
            offer.tools.insert(name, tool);
        }
        offer
    }

    fn connection(&self, url: String, known: &mut HashMap<String, Arc<CallsClient>>) -> Option<Arc<CallsClient>> {
        if let Some(connection) = known.get(&url) {
            return Some(connection.clone());
        }
        let former = self.workers.lock().unwrap_or_else(PoisonError::into_inner).get(&url).cloned();
        let connection = former.or_else(|| {
            let Dial { links, token, payload_bytes_max } = self.dial.clone();
            match CallsClient::new(&Target { links, urls: vec![url.clone()], token, payload_bytes_max }) {
                Ok(client) => Some(Arc::new(client)),
                Err(error) => {
                    tracing::warn!(%error, "a worker's URL cannot be used");
                    None
                }
            }
        })?;
        known.insert(url, connection.clone());
        Some(connection)
    }

    /// The workers to ask for a tool, the best first: each has its turn, and those that cannot be reached come last.
    pub(crate) fn workers(&self, tool: &Offered) -> Vec<Arc<CallsClient>> {
        let mut workers = tool.workers.clone();
        if !workers.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % workers.len();
            workers.rotate_left(turn);
            workers.sort_by_key(|worker| !worker.up());
        }
        workers
    }
}

impl Offer {
    /// Whether there are no tools.
    pub(crate) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// A tool by name.
    pub(crate) fn tool(&self, name: &str) -> Option<&Offered> {
        self.tools.get(name)
    }

    /// Up to `limit` tools after the name `after`, and the name to go on after, if there is more.
    pub(crate) fn page(&self, dialect: Dialect, after: Option<&str>, limit: usize) -> (&[Bytes], Option<&str>) {
        let listed = if dialect.has_tasks() { &self.with_tasks } else { &self.without_tasks };
        let start = after.map_or(0, |after| listed.names.partition_point(|name| **name <= *after));
        let end = (start + limit).min(listed.names.len());
        let more = (end < listed.names.len()).then(|| &*listed.names[end - 1]);
        (&listed.tools[start..end], more)
    }
}

impl Listed {
    fn push(&mut self, name: &Arc<str>, tool: Bytes) {
        self.names.push(name.clone());
        self.tools.push(tool);
    }
}
