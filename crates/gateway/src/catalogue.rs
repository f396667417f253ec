//! What is on offer, and which workers have it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use longhaul_core::{ClientCapabilities, Retry, Target, TaskSupport, TemplateDef, WorkerId, WorkerInfo};
use longhaul_mcp::v2026::ParamHeaders;
use longhaul_mcp::{Dialect, Features, Listing, listed};
use longhaul_rpc::client::{self, CallsClient};
use longhaul_rpc::{Error, Links, ServiceToken, Tasks};
use tokio::sync::{Notify, watch};

use crate::config::Config;

/// How much of each kind is offered at most; more is left out, in the order of names.
const OFFERED_MAX: usize = 10_000;

/// The dialects, each of which sees lists of its own.
const DIALECTS: [Dialect; 3] = [Dialect::V2025_06_18, Dialect::V2025_11_25, Dialect::V2026_07_28];

/// How workers are reached.
#[derive(Debug, Clone)]
pub(crate) struct Dial {
    pub(crate) links: Links,
    pub(crate) token: ServiceToken,
    pub(crate) payload_bytes_max: usize,
}

/// A worker that takes calls.
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) client: Arc<CallsClient>,
}

/// Several workers that offer the same.
type Workers = Vec<Arc<Worker>>;

/// Knows what is offered.
pub(crate) struct Catalogue {
    dial: Dial,
    tasks: Switches,
    offer: ArcSwap<Offer>,
    /// One connection for each URL that a worker is at.
    connections: Mutex<HashMap<String, Arc<CallsClient>>>,
    /// Whose turn it is.
    turn: AtomicUsize,
    changes: Changes,
    /// Raised whenever workers have come or gone.
    renewed: watch::Sender<()>,
    /// Asks for a look before it is due.
    pub(crate) look: Notify,
}

/// In which eras there are tasks.
#[derive(Debug, Clone, Copy)]
struct Switches {
    legacy: bool,
    extension: bool,
}

impl Switches {
    fn are_on(self, dialect: Dialect) -> bool {
        let switch = if dialect.is_modern() { self.extension } else { self.legacy };
        switch && dialect.has_tasks()
    }
}

/// Raised when the lists are first known and whenever they have changed.
struct Changes {
    tools: watch::Sender<u64>,
    prompts: watch::Sender<u64>,
    /// Of resources and of templates: clients hear of both in one way.
    resources: watch::Sender<u64>,
}

impl Changes {
    fn of(&self, listing: Listing) -> &watch::Sender<u64> {
        match listing {
            Listing::Tools => &self.tools,
            Listing::Prompts => &self.prompts,
            Listing::Resources | Listing::Templates => &self.resources,
        }
    }
}

/// What is offered at one moment.
#[derive(Default)]
pub(crate) struct Offer {
    loaded: bool,
    /// What it was made of.
    infos: Vec<WorkerInfo>,
    tools: BTreeMap<Arc<str>, Offered>,
    prompts: BTreeMap<Arc<str>, Workers>,
    resources: BTreeMap<Arc<str>, Workers>,
    templates: BTreeMap<Arc<str>, (TemplateDef, Workers)>,
    completes: bool,
    workers: HashMap<WorkerId, Arc<Worker>>,
    lists: HashMap<(Listing, Dialect), Listed>,
}

/// What clients of a dialect see of a list, in the order of names.
#[derive(Default, PartialEq, Eq)]
struct Listed {
    names: Vec<Arc<str>>,
    items: Vec<Bytes>,
}

/// A tool.
pub(crate) struct Offered {
    /// Its name.
    pub(crate) name: Arc<str>,
    /// Whether its calls may become tasks.
    pub(crate) task_support: TaskSupport,
    /// Whether it says itself when a call goes on as a task.
    pub(crate) decides: bool,
    /// What a client must be able to be asked.
    pub(crate) needs: ClientCapabilities,
    /// What becomes of its tasks when a worker is lost.
    pub(crate) retry: Retry,
    /// Which of its arguments are said in headers too (2026-07-28).
    pub(crate) headers: ParamHeaders,
    /// The workers that take calls of it.
    workers: Workers,
}

impl Catalogue {
    pub(crate) fn new(dial: Dial, config: &Config) -> Self {
        Self {
            dial,
            tasks: Switches { legacy: config.tasks_legacy, extension: config.tasks_extension },
            offer: ArcSwap::default(),
            connections: Mutex::default(),
            turn: AtomicUsize::new(0),
            changes: Changes {
                tools: watch::Sender::new(0),
                prompts: watch::Sender::new(0),
                resources: watch::Sender::new(0),
            },
            renewed: watch::Sender::new(()),
            look: Notify::new(),
        }
    }

    /// What is offered, once it is known.
    pub(crate) fn offer(&self) -> Option<Arc<Offer>> {
        Some(self.offer.load_full()).filter(|offer| offer.loaded)
    }

    /// What is served in a dialect, once it is known: this is what is advertised, and what is not advertised is an unknown
    /// method.
    pub(crate) fn features(&self, dialect: Dialect) -> Option<Features> {
        let offer = self.offer()?;
        Some(Features {
            tasks: self.tasks.are_on(dialect),
            prompts: !offer.prompts.is_empty(),
            resources: !offer.resources.is_empty() || !offer.templates.is_empty(),
            completions: offer.completes,
        })
    }

    /// Hears of every later change of a list.
    pub(crate) fn changes(&self, listing: Listing) -> watch::Receiver<u64> {
        self.changes.of(listing).subscribe()
    }

    /// Looks again; what was known stays if that fails.
    pub(crate) async fn refresh(&self, tasks: &dyn Tasks) -> Result<(), Error> {
        let mut infos = tasks.tools().await?;
        // The first worker by name defines what several offer: every replica then says the same. One that has gone does so
        // only for what nobody else offers.
        infos.sort_by(|a, b| {
            (a.id.is_gone(), &a.id.name, &a.id.incarnation).cmp(&(b.id.is_gone(), &b.id.name, &b.id.incarnation))
        });
        let former = self.offer.load_full();
        if former.loaded && former.infos == infos {
            return Ok(());
        }
        let offer = self.offer_of(infos);
        let changed = |listing| {
            let is_other = |dialect| former.lists.get(&(listing, dialect)) != offer.lists.get(&(listing, dialect));
            !former.loaded || DIALECTS.into_iter().any(is_other)
        };
        let (tools, prompts) = (changed(Listing::Tools), changed(Listing::Prompts));
        let resources = changed(Listing::Resources) || changed(Listing::Templates);
        self.offer.store(Arc::new(offer));
        self.renewed.send_replace(());
        for (listing, name, has_changed) in [
            (Listing::Tools, "tools", tools),
            (Listing::Prompts, "prompts", prompts),
            (Listing::Resources, "resources", resources),
        ] {
            if has_changed {
                tracing::info!(list = name, "what is offered has changed");
                self.changes.of(listing).send_modify(|changes| *changes += 1);
            }
        }
        Ok(())
    }

    fn offer_of(&self, infos: Vec<WorkerInfo>) -> Offer {
        let mut connections = HashMap::new();
        let mut offer = Offer { loaded: true, infos: infos.clone(), ..Offer::default() };
        let (mut tools, mut prompts, mut resources, mut templates) = Default::default();
        for info in infos {
            let connection = info.url.and_then(|url| self.connection(url, &mut connections));
            let worker = connection.map(|client| Arc::new(Worker { id: info.id.clone(), client }));
            offer.workers.extend(worker.clone().map(|worker| (info.id, worker)));
            offer.completes |= info.completes;
            gather(&mut tools, info.tools, |tool| &tool.name, &worker);
            gather(&mut prompts, info.prompts, |prompt| &prompt.name, &worker);
            gather(&mut resources, info.resources, |resource| &resource.uri, &worker);
            gather(&mut templates, info.templates, |template| &template.uri_template, &worker);
        }
        // Connections to workers that are gone close here, or when the last call over them has ended.
        *self.connections.lock().unwrap_or_else(PoisonError::into_inner) = connections;

        for (name, (def, workers)) in tools.into_iter().take(OFFERED_MAX) {
            if !self.list(&mut offer, Listing::Tools, &name, &def.definition, Some(def.task_support)) {
                continue;
            }
            let (task_support, decides, needs, retry) = (def.task_support, def.decides, def.needs, def.retry);
            let headers = ParamHeaders::of(&def.definition);
            let tool = Offered { name: name.clone(), task_support, decides, needs, retry, headers, workers };
            offer.tools.insert(name, tool);
        }
        for (name, (def, workers)) in prompts.into_iter().take(OFFERED_MAX) {
            if self.list(&mut offer, Listing::Prompts, &name, &def.definition, None) {
                offer.prompts.insert(name, workers);
            }
        }
        for (uri, (def, workers)) in resources.into_iter().take(OFFERED_MAX) {
            if self.list(&mut offer, Listing::Resources, &uri, &def.definition, None) {
                offer.resources.insert(uri, workers);
            }
        }
        for (uri_template, (def, workers)) in templates.into_iter().take(OFFERED_MAX) {
            if self.list(&mut offer, Listing::Templates, &uri_template, &def.definition, None) {
                offer.templates.insert(uri_template, (def, workers));
            }
        }
        offer
    }

    /// Adds a definition to the lists of all dialects; false if it is none.
    fn list(
        &self,
        offer: &mut Offer,
        listing: Listing,
        name: &Arc<str>,
        definition: &Bytes,
        support: Option<TaskSupport>,
    ) -> bool {
        let shown = DIALECTS.map(|dialect| listed(dialect, listing, definition, support, self.tasks.are_on(dialect)));
        if shown.iter().any(Option::is_none) {
            tracing::warn!(%name, "a definition is no JSON object: it is not offered");
            return false;
        }
        for (dialect, item) in DIALECTS.into_iter().zip(shown) {
            // A tool that runs as a task only is of no use where there are no tasks.
            let is_of_use = support != Some(TaskSupport::Required) || self.tasks.are_on(dialect);
            if let (Some(item), true) = (item, is_of_use) {
                let listed = offer.lists.entry((listing, dialect)).or_default();
                listed.names.push(name.clone());
                listed.items.push(item);
            }
        }
        true
    }

    fn connection(&self, url: String, known: &mut HashMap<String, Arc<CallsClient>>) -> Option<Arc<CallsClient>> {
        if let Some(connection) = known.get(&url) {
            return Some(connection.clone());
        }
        let former = self.connections.lock().unwrap_or_else(PoisonError::into_inner).get(&url).cloned();
        let connection = former.or_else(|| {
            let Dial { links, token, payload_bytes_max } = self.dial.clone();
            match CallsClient::new(&client::Target { links, urls: vec![url.clone()], token, payload_bytes_max }) {
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

    /// The workers to ask for this, the best first: each has its turn, and those that cannot be reached come last. `None`
    /// if it is not on offer, or nothing is known yet.
    pub(crate) fn workers_for(&self, target: &Target) -> Option<Workers> {
        let mut workers = self.offer()?.workers(target)?.clone();
        if !workers.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % workers.len();
            workers.rotate_left(turn);
            workers.sort_by_key(|worker| !worker.client.up());
        }
        Some(workers)
    }

    /// The same, as soon as there is one: the last may have gone just now, and the next be about to come. None if there is
    /// none for so long.
    pub(crate) async fn next_workers_for(&self, target: &Target, patience: Duration) -> Workers {
        let mut renewed = self.renewed.subscribe();
        let next = async {
            loop {
                match self.workers_for(target) {
                    Some(workers) if workers.is_empty() => {}
                    // Nobody waits for what is no longer on offer.
                    workers => return workers.unwrap_or_default(),
                }
                // An error means that the catalogue is gone.
                let _ = renewed.changed().await;
            }
        };
        tokio::time::timeout(patience, next).await.unwrap_or_default()
    }

    /// A worker that is there and takes calls.
    pub(crate) fn worker(&self, id: &WorkerId) -> Option<Arc<Worker>> {
        self.offer()?.workers.get(id).cloned()
    }
}

/// Adds what a worker offers to what others offer.
fn gather<T>(
    all: &mut BTreeMap<Arc<str>, (T, Workers)>,
    offered: Vec<T>,
    name: impl Fn(&T) -> &str,
    worker: &Option<Arc<Worker>>,
) {
    for one in offered {
        let (_, workers) = all.entry(name(&one).into()).or_insert_with(|| (one, Vec::new()));
        workers.extend(worker.clone());
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

    /// The workers that have this; `None` if it is not on offer.
    fn workers(&self, target: &Target) -> Option<&Workers> {
        match target {
            Target::Tool(name) => self.tools.get(&**name).map(|tool| &tool.workers),
            Target::Prompt(name) | Target::CompletePrompt(name) => self.prompts.get(&**name),
            Target::Resource(uri) => self.resources.get(&**uri).or_else(|| self.family(uri)),
            Target::CompleteTemplate(uri) => {
                let template = self.templates.get(&**uri).map(|(_, workers)| workers);
                template.or_else(|| self.resources.get(&**uri))
            }
        }
    }

    /// The workers of the family of resources that a URI most likely belongs to: only they can tell whether it does.
    fn family(&self, uri: &str) -> Option<&Workers> {
        let candidates = self.templates.values().filter(|(template, _)| uri.starts_with(template.literal()));
        let best = candidates.max_by_key(|(template, _)| (may_be_of(uri, template), template.literal().len()));
        best.map(|(_, workers)| workers)
    }

    /// Up to `limit` items after the name `after`, and the name to go on after, if there is more.
    pub(crate) fn page(
        &self,
        listing: Listing,
        dialect: Dialect,
        after: Option<&str>,
        limit: usize,
    ) -> (&[Bytes], Option<&str>) {
        let Some(listed) = self.lists.get(&(listing, dialect)) else { return (&[], None) };
        let start = after.map_or(0, |after| listed.names.partition_point(|name| **name <= *after));
        let end = (start + limit).min(listed.names.len());
        let more = (end < listed.names.len()).then(|| &*listed.names[end - 1]);
        (&listed.items[start..end], more)
    }
}

/// Whether the fixed parts of a template stand in a URI, in their order, whatever is between them.
fn may_be_of(uri: &str, template: &TemplateDef) -> bool {
    let fixed = |part: &'_ str| part.split_once('}').map_or(part, |(_, fixed)| fixed).to_owned();
    let mut parts = template.uri_template.split('{').map(fixed);
    let Some(mut rest) = parts.next().and_then(|first| uri.strip_prefix(&*first)) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(&part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    match last {
        Some(part) => part.is_empty() || uri.ends_with(&part),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_may_be_of_a_family_whose_fixed_parts_it_has() {
        for (template, uri, may_be) in [
            ("test://template/{id}/data", "test://template/1/data", true),
            ("test://template/{id}/data", "test://template/1/other", false),
            ("test://template/{id}/data", "test://template/1", false),
            ("a://{x}-{y}", "a://1-2", true),
            ("a://{x}-{y}", "a://12", false),
            ("a://{x}", "a://", true),
            ("{+any}", "a://b", true),
            ("a://b", "a://b", true),
            ("a://b", "a://bc", false),
            ("a://{x}/b", "b://1/b", false),
            ("a://{x", "a://1", false),
        ] {
            let definition = TemplateDef { uri_template: template.into(), definition: Bytes::new() };
            assert_eq!(may_be_of(uri, &definition), may_be, "{template} {uri}");
        }
    }
}
