//! Speak HTTP with MCP clients.
//!
//! A request passes `endpoint` (who, in which era, what), then its verb in `verbs`. The gateway keeps nothing that
//! another replica could miss: tasks are in the task-store, sessions and cursors in their clients' hands (sealed), and
//! hints from the bus only make it look sooner. What it does hold are connections: streams, and the runs of calls that
//! are not tasks.

#![warn(missing_docs)]

mod auth;
mod carry;
mod catalogue;
mod config;
mod cors;
mod credentials;
mod doors;
mod endpoint;
mod http;
mod in_flight;
mod metrics;
mod notify;
mod oauth;
mod reach;
mod release;
mod serve;
mod sessions;
mod stream;
mod until;
mod updates;
mod verbs;
mod watch;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use longhaul_bus::{Bus, Hint};
use longhaul_core::{Clock, Principal};
use longhaul_mcp::Listing;
use longhaul_mcp::seal::{Keyring, Seal as _, Token};
use longhaul_policy::follow::{Freshness, Mirror as _, STALE, follow};
use longhaul_policy::switch::Switches;
use longhaul_policy::{Budget, Budgets, Chain, Checks, Record, Recorder};
use longhaul_rpc::{Control, Error, Links, ServiceToken, Tasks};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use auth::{Authenticator, Credential};
pub use config::{Config, Pace};
pub use doors::{BadEntry, check_allowed};
pub use oauth::{BadIssuer, IssuerConfig, OAuthConfig, ResourceServer, Tenant};

use carry::Carriers;
use catalogue::{Catalogue, Dial};
use credentials::{Credentials, EXPIRE};
use doors::Doors;
use endpoint::Edge;
use in_flight::InFlight;
use metrics::Metrics;
use notify::Notifier;
use reach::Reach;
use sessions::{Sessions, Tag};
use verbs::inline::Runs;
use watch::Watches;

/// How long calls that could not end before the end of a drain have to tell their clients so.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a gateway is made of.
pub struct Parts {
    /// The task-store.
    pub tasks: Arc<dyn Tasks>,
    /// The task-store's control state.
    pub control: Arc<dyn Control>,
    /// Where hints come from and go to.
    pub bus: Arc<dyn Bus>,
    /// How workers are reached.
    pub links: Links,
    /// What is shown to workers.
    pub token: ServiceToken,
    /// The keys of sessions, cursors and event ids; may be replaced at any time.
    pub keyring: Arc<ArcSwap<Keyring>>,
    /// Who the callers are.
    pub auth: Authenticator,
    /// What calls are charged to; without, they cost nothing.
    pub budgets: Option<Budgets>,
    /// When sessions, cursors and event ids expire.
    pub clock: Arc<dyn Clock>,
    /// Who may call what, and what they may see of it, besides what operators switch off.
    pub checks: Checks,
    /// Tells the audit log; the gateway runs it.
    pub recorder: Arc<Recorder>,
}

/// A gateway that is ready to run.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
}

/// Why a gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Without credentials, anyone who reaches the listener is let in.
    #[error("without credentials a gateway listens on the loopback interface only, not on {0}")]
    Open(SocketAddr),
    /// An allow-list makes no sense.
    #[error(transparent)]
    BadEntry(#[from] BadEntry),
    /// The listener has no address.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] std::io::Error),
}

/// Why a gateway cannot serve now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It ends.
    #[error("the gateway ends")]
    Draining,
    /// It has not heard from the task-store yet.
    #[error("not heard from yet: see taskstore_urls")]
    NeverHeard,
    /// It has not heard from the task-store for so long.
    #[error("has not answered for {} s: see its log and taskstore_urls", .0.as_secs())]
    StoreAway(Duration),
}

/// How busy a gateway is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Requests in flight, streams included.
    pub requests: usize,
    /// Open streams.
    pub streams: usize,
    /// Runs of calls that are not tasks.
    pub calls: usize,
}

/// Tells how a running gateway is.
#[derive(Debug, Clone)]
pub struct Status(Arc<Shared>);

impl Status {
    /// Whether it can serve: it has heard from the task-store, not too long ago, and is not ending.
    pub fn is_ready(&self) -> bool {
        self.ready().is_ok()
    }

    /// The same, with the reason.
    pub fn ready(&self) -> Result<(), NotReady> {
        let Shared { catalogue, sessions, reach, drain, .. } = &*self.0;
        if drain.is_cancelled() {
            Err(NotReady::Draining)
        } else if catalogue.offer().is_none() || !sessions.loaded() || !self.0.can_judge() {
            Err(NotReady::NeverHeard)
        } else if reach.is_away() {
            Err(NotReady::StoreAway(self.0.config.pace.store_away))
        } else {
            Ok(())
        }
    }

    /// Waits until it can serve and offers any tool.
    pub async fn offering(&self) {
        let (mut changes, mut loads) = (self.0.catalogue.changes(Listing::Tools), self.0.sessions.loads());
        // An error means that the gateway is gone.
        let _ = loads.wait_for(|loaded| *loaded).await;
        self.0.switches.freshness().there().await;
        if self.0.auth.takes_stored() {
            self.0.credentials.freshness().there().await;
        }
        while self.0.catalogue.offer().is_none_or(|offer| offer.is_empty()) && changes.changed().await.is_ok() {}
    }

    /// What operators should know of what they have decided: each line says which rule is wrong, or what has not been read
    /// for long; what was read last holds.
    pub fn mentions(&self) -> Vec<String> {
        let line = |what: &str, freshness: &Freshness| {
            let age = freshness.age().filter(|age| *age > STALE)?;
            Some(format!("{what}: as they were {} s ago, since the task-store cannot be asked", age.as_secs()))
        };
        let credentials = Some(self.0.credentials.freshness()).filter(|_| self.0.auth.takes_stored());
        let all = [line("switches", self.0.switches.freshness()), credentials.and_then(|age| line("credentials", age))];
        all.into_iter().flatten().chain(self.0.chain.mentions()).collect()
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let in_use = |semaphore: &Semaphore| self.0.config.requests_max - semaphore.available_permits();
        Load {
            requests: in_use(&self.0.requests),
            streams: self.0.streams.load(Ordering::Relaxed),
            calls: in_use(&self.0.calls),
        }
    }
}

/// What all requests of a gateway share.
pub(crate) struct Shared {
    config: Config,
    tasks: Arc<dyn Tasks>,
    control: Arc<dyn Control>,
    bus: Arc<dyn Bus>,
    keyring: Arc<ArcSwap<Keyring>>,
    auth: Authenticator,
    credentials: Credentials,
    switches: Arc<Switches>,
    clock: Arc<dyn Clock>,
    chain: Arc<Chain>,
    budgets: Option<Budgets>,
    recorder: Arc<Recorder>,
    catalogue: Catalogue,
    sessions: Sessions,
    reach: Reach,
    watches: Arc<Watches>,
    notifier: Notifier,
    carriers: Carriers,
    in_flight: Arc<InFlight>,
    runs: Runs,
    metrics: Metrics,
    streams: AtomicUsize,
    requests: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    /// What must outlive the request that began it.
    tracker: TaskTracker,
    /// Streams end, so that their clients go elsewhere.
    drain: CancellationToken,
    /// Calls end, done or not.
    give_up: CancellationToken,
    /// A sweep runs.
    sweeping: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Gateway {
    /// Puts a gateway together. Its instruments come from the global meter provider, which must be set by then.
    pub fn build(config: Config, parts: Parts) -> Self {
        let Parts { tasks, control, bus, links, token, keyring, auth, budgets, clock, checks, recorder } = parts;
        let tracker = TaskTracker::new();
        let switches = Arc::new(Switches::default());
        let budget = budgets.clone().map(|budgets| Arc::new(budgets) as Arc<dyn Budget>);
        let record: Option<Arc<dyn Record>> = Some(recorder.clone());
        let checks = Checks { switch: Some(switches.clone()), budget, record, ..checks };
        let dial = Dial { links, token, payload_bytes_max: config.result_bytes_max.max(config.request_bytes_max) };
        let shared = Shared {
            catalogue: Catalogue::new(dial, &config),
            sessions: Sessions::default(),
            reach: Reach::new(),
            watches: Arc::new(Watches::new(tasks.clone(), tracker.clone())),
            notifier: Notifier::new(),
            carriers: Carriers::default(),
            in_flight: Arc::default(),
            runs: Runs::new(),
            metrics: Metrics::new(),
            streams: AtomicUsize::new(0),
            requests: Arc::new(Semaphore::new(config.requests_max)),
            bodies: Arc::new(Semaphore::new(config.bodies_bytes_max)),
            calls: Arc::new(Semaphore::new(config.requests_max)),
            tracker,
            drain: CancellationToken::new(),
            give_up: CancellationToken::new(),
            sweeping: AtomicBool::new(false),
            chain: Arc::new(Chain::new(checks)),
            switches,
            credentials: Credentials::new(clock.clone()),
            budgets,
            recorder,
            config,
            tasks,
            control,
            bus,
            keyring,
            auth,
            clock,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Tells how it is, from now on.
    pub fn status(&self) -> Status {
        Status(self.shared.clone())
    }

    /// Serves clients until `drain` fires; then takes no more connections, ends streams so that their clients come back
    /// elsewhere, lets calls end, and returns within the configured time.
    pub async fn run(self, listener: TcpListener, drain: CancellationToken) -> Result<(), StartError> {
        let shared = self.shared;
        let address = listener.local_addr()?;
        let on_loopback = address.ip().is_loopback();
        if !on_loopback && shared.auth.is_open() {
            return Err(StartError::Open(address));
        }
        let doors = Doors::new(&shared.config.allowed_hosts, &shared.config.allowed_origins, on_loopback)?;
        let edge = Arc::new(Edge { shared: shared.clone(), doors });
        let cors = axum::middleware::from_fn_with_state(edge.clone(), cors::cors);
        let mut router = Router::new().route("/mcp", axum::routing::any(endpoint::mcp));
        if let Some(issuers) = shared.auth.resource_server() {
            router = router.merge(oauth::routes(issuers));
        }
        let router = router.layer(cors).with_state(edge);

        let stop = CancellationToken::new();
        let background = TaskTracker::new();
        background.spawn(stop.clone().run_until_cancelled_owned(hear(shared.clone())));
        background.spawn(stop.clone().run_until_cancelled_owned(look_at_offers(shared.clone())));
        background.spawn(stop.clone().run_until_cancelled_owned(look_at_sessions(shared.clone())));
        // It has something to do when everything else has ended.
        if let Some(budgets) = shared.budgets.clone() {
            let stop = stop.clone();
            background.spawn(async move { budgets.run(stop).await });
        }
        let (watching, patience) = (shared.clone(), shared.config.pace.store_away);
        background.spawn(stop.clone().run_until_cancelled_owned(async move { watching.reach.watch(patience).await }));
        background.spawn(stop.clone().run_until_cancelled_owned(follow_control(shared.clone())));
        let chain = shared.chain.clone();
        background.spawn(stop.clone().run_until_cancelled_owned(async move { match chain.run().await {} }));
        if let Some(issuers) = shared.auth.resource_server() {
            background.spawn(stop.clone().run_until_cancelled_owned(issuers.clone().follow()));
        }
        let (telling, ends) = (shared.clone(), stop.clone());
        background.spawn(async move { telling.recorder.run(&*telling.control, ends).await });

        let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
        serve::serve(listener, router, &shared.config, &connections, &drain, &cut).await;
        tracing::info!("draining");
        shared.drain.cancel();
        connections.close();
        shared.tracker.close();
        let over = async {
            connections.wait().await;
            shared.tracker.wait().await;
        };
        let patience = shared.config.drain_timeout.saturating_sub(LAST_WORDS);
        if tokio::time::timeout(patience, over).await.is_err() {
            tracing::warn!(
                calls = shared.config.requests_max - shared.calls.available_permits(),
                "the drain took too long"
            );
            shared.give_up.cancel();
            let _ = tokio::time::timeout(LAST_WORDS, connections.wait()).await;
            cut.cancel();
            connections.wait().await;
        }
        stop.cancel();
        background.close();
        background.wait().await;
        Ok(())
    }
}

impl Shared {
    /// Whether it is known who may call, and what is switched off.
    fn can_judge(&self) -> bool {
        self.switches.freshness().is_there() && (!self.auth.takes_stored() || self.credentials.freshness().is_there())
    }

    /// Seals a token for a principal.
    fn seal<T: Token>(&self, principal: &Principal, token: &T) -> String {
        self.keyring.load().seal(principal, token, random())
    }

    /// Opens a token of a principal.
    fn open<T: Token>(&self, principal: &Principal, token: &str) -> Option<T> {
        self.keyring.load().open(principal, token, self.clock.now())
    }

    /// Does something to its end, even if the request that began it is dropped meanwhile.
    async fn see_through<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        use tracing::Instrument as _;
        let work = self.tracker.spawn(work.in_current_span());
        work.await.unwrap_or_else(|error| Err(Error::Fault(format!("a bug: {error}"))))
    }

    /// Looks at all watched tasks, unless that is being done.
    fn sweep(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        self.tracker.spawn(async move {
            shared.watches.sweep().await;
            shared.sweeping.store(false, Ordering::Release);
        });
    }
}

/// Random bytes from the operating system.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("invariant: the operating system has a random source");
    bytes
}

/// Hears hints and passes them on; without hints, looks at watched tasks on a timer.
async fn hear(shared: Arc<Shared>) {
    let mut hints = shared.bus.subscribe();
    let pace = shared.config.pace;
    let mut tick = tokio::time::interval(pace.floor_deaf);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut swept = tokio::time::Instant::now();
    loop {
        let hint = tokio::select! {
            hint = hints.recv() => hint,
            _ = tick.tick() => {
                if !shared.bus.healthy() || swept.elapsed() >= pace.floor {
                    swept = tokio::time::Instant::now();
                    shared.sweep();
                }
                continue;
            }
        };
        match hint {
            Ok(Hint::Task { id, version }) => shared.watches.heard(id, version),
            Ok(Hint::Control(control)) => heard(&shared, control),
            Ok(Hint::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => {
                shared.sweep();
                shared.notifier.look();
                shared.catalogue.look.notify_one();
                shared.sessions.look.notify_one();
            }
            // The bus lives for as long as it is held here.
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn heard(shared: &Arc<Shared>, control: longhaul_bus::Control) {
    use longhaul_bus::Control;
    match control {
        Control::Tools => shared.catalogue.look.notify_one(),
        Control::Sessions => shared.sessions.look.notify_one(),
        Control::Subscriptions { session } => {
            if let Some(session) = Tag::parse(&session) {
                shared.notifier.subscribed(session);
            }
        }
        Control::StreamOpened { session, stream } => {
            if let Some(session) = Tag::parse(&session) {
                shared.notifier.opened(session, &stream);
            }
        }
        Control::SessionTask { session, id } => {
            if let Some(session) = Tag::parse(&session) {
                shared.notifier.created(session, id);
            }
        }
        Control::RequestCancelled { request } => {
            if let Ok(request) = u128::from_str_radix(&request, 16) {
                shared.in_flight.cancel(request);
            }
        }
        // Their copies hear for themselves.
        Control::Credentials | Control::Switches => {}
    }
}

async fn look_at_offers(shared: Arc<Shared>) {
    loop {
        match shared.catalogue.refresh(&*shared.tasks).await {
            Ok(()) => shared.reach.heard(),
            Err(error) => tracing::debug!(%error, "what is offered could not be read"),
        }
        let _ = tokio::time::timeout(shared.config.pace.tools, shared.catalogue.look.notified()).await;
    }
}

async fn look_at_sessions(shared: Arc<Shared>) {
    let control = &shared.control;
    let page = |after| async move { control.sessions(&after).await };
    loop {
        match shared.sessions.refresh(page, shared.clock.now()).await {
            Ok(()) => {
                shared.reach.heard();
                shared.notifier.close_ended(&shared.sessions);
            }
            Err(error) => tracing::debug!(%error, "what is known of sessions could not be read"),
        }
        let _ = tokio::time::timeout(shared.config.pace.sessions, shared.sessions.look.notified()).await;
    }
}

/// Keeps the copies of what operators decide.
async fn follow_control(shared: Arc<Shared>) {
    let (control, bus) = (&*shared.control, &*shared.bus);
    let credentials = async {
        if !shared.auth.takes_stored() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(EXPIRE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let expire = async {
            loop {
                ticks.tick().await;
                shared.credentials.expire();
            }
        };
        tokio::select! {
            never = follow(&shared.credentials, control, bus) => never,
            never = expire => never,
        }
    };
    tokio::select! {
        never = follow(&*shared.switches, control, bus) => match never {},
        never = credentials => match never {},
    }
}
