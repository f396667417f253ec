//! A worker: its settings, its life, its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::WorkerId;
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_rpc::client::{Target, WorkClient};
use longhaul_rpc::{Calls, Links, Listener, Server, ServiceToken, Work};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::calls::Inline;
use crate::closing::Closing;
use crate::context::Means;
use crate::leases::{Leases, Liveness};
use crate::line::Runs;
use crate::metrics::Slots;
use crate::prompt::Prompt;
use crate::pump::Pump;
use crate::resolve::{Resolver, SystemResolver};
use crate::resource::Resource;
use crate::run::{STOP_GRACE, Tasks};
use crate::seat::{Places, WAITING_MAX};
use crate::tool::Tool;
use crate::tools::{Offer, Tools};
use crate::updates::Resources;

/// Calls that are not tasks, at a time, by default.
const CALLS_MAX: u32 = 256;
/// How long a question waits for its answer, by default.
const INPUT_TIMEOUT: Duration = Duration::from_secs(600);
/// The most of either slots or calls that can be set: every heartbeat names all tasks in hand.
const AT_ONCE_MAX: u32 = 10_000;
/// How long the last words of a drain may take, after the grace of the runs that it stopped.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// A worker's settings.
#[derive(Debug)]
pub struct Config {
    /// Its name, if it has a lasting one: a worker that comes back under its name ends the tasks that its former self
    /// held at once, not a lease later. No two live workers may share a name. Random by default.
    pub name: Option<String>,
    /// Where the task-store is, and the service token; gateways must show the same token.
    pub task_store: Target,
    /// Where calls that are not tasks are taken; `None` takes tasks only.
    pub calls: Option<Listening>,
    /// How many tasks run at a time.
    pub slots: u32,
    /// How many calls that are not tasks run at a time, or began so; more are refused as unavailable.
    pub calls_max: u32,
    /// How soon death is noticed.
    pub liveness: Liveness,
    /// How long runs may go on once the worker is to end.
    pub drain_timeout: Duration,
    /// The largest answer, in bytes.
    pub max_result_bytes: usize,
    /// How long a question to the caller waits before it counts as declined, unless it says so itself.
    pub input_timeout: Duration,
    /// Looks up the hosts of URLs before people are shown them.
    pub resolver: Arc<dyn Resolver>,
}

/// Where a worker takes calls.
#[derive(Debug)]
pub struct Listening {
    /// Where it accepts connections.
    pub listener: Listener,
    /// Where gateways reach it.
    pub advertise_url: String,
}

impl Config {
    /// The default settings: tasks only, eight at a time.
    pub fn new(task_store: Target) -> Self {
        Self {
            name: None,
            task_store,
            calls: None,
            slots: 8,
            calls_max: CALLS_MAX,
            liveness: Liveness::default(),
            drain_timeout: Duration::from_secs(600),
            max_result_bytes: PAYLOAD_BYTES_MAX,
            input_timeout: INPUT_TIMEOUT,
            resolver: Arc::new(SystemResolver),
        }
    }

    /// The default settings, with a task-store at `url` that asks for the service token `token`.
    pub fn connect(url: &str, token: &str) -> Result<Self, Error> {
        Ok(Self::new(Target {
            links: Links::default(),
            urls: vec![url.to_owned()],
            token: ServiceToken::new([token])?,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        }))
    }
}

impl Config {
    /// Takes calls that are not tasks too, at `address`, where gateways must be able to reach it.
    pub async fn listen(mut self, address: SocketAddr) -> Result<Self, Error> {
        let refused =
            |error: std::io::Error| longhaul_rpc::Error::Fault(format!("cannot listen on {address}: {error}"));
        let listener = tokio::net::TcpListener::bind(address).await.map_err(refused)?;
        let advertise_url = format!("http://{}", listener.local_addr().map_err(refused)?);
        self.calls = Some(Listening { listener: Listener::Tcp(listener), advertise_url });
        Ok(self)
    }
}

/// A process that runs tools.
pub struct Worker {
    config: Config,
    tools: Tools,
    resources: Resources,
    attached: watch::Sender<bool>,
    /// The first thing that could not be added.
    problem: Option<Error>,
}

impl Worker {
    /// A worker without tools.
    pub fn new(config: Config) -> Self {
        let (tools, resources, attached) = (Tools::default(), Resources::default(), watch::Sender::new(false));
        Self { config, tools, resources, attached, problem: None }
    }

    /// Adds a tool. If it cannot be offered, [`run`](Self::run) says why.
    pub fn tool(self, tool: Tool) -> Self {
        self.offer(tool)
    }

    /// Adds a prompt, like a tool.
    pub fn prompt(self, prompt: Prompt) -> Self {
        self.offer(prompt)
    }

    /// Adds a resource, or a family of them, like a tool.
    pub fn resource(self, resource: Resource) -> Self {
        self.offer(resource)
    }

    /// Adds several tools, or several of any kind as [`Offer`]s.
    pub fn with_tools(self, offers: impl IntoIterator<Item: Into<Offer>>) -> Self {
        offers.into_iter().fold(self, Self::offer)
    }

    fn offer(mut self, offer: impl Into<Offer>) -> Self {
        if let Err(error) = self.tools.add(offer) {
            self.problem.get_or_insert(error);
        }
        self
    }

    /// The set of what it offers, to change while it runs.
    pub fn tools(&self) -> Tools {
        self.tools.clone()
    }

    /// Its resources, to say that one has changed.
    pub fn resources(&self) -> Resources {
        self.resources.clone()
    }

    /// Whether it is attached to the task-store: it then gets tasks.
    pub fn attached(&self) -> watch::Receiver<bool> {
        self.attached.subscribe()
    }

    /// Runs until `drain` has fired and its work is done: no more tasks are claimed, gateways are told to go
    /// elsewhere, and runs may finish within the drain timeout; what is left is ended as interrupted. Dropping the
    /// future ends everything where it stands; the tasks are then interrupted when their leases run out.
    pub async fn run(self, drain: CancellationToken) -> Result<(), Error> {
        let Self { config, tools, resources, attached, problem } = self;
        // Its own: a worker that fails must not end the rest of the process.
        let drain = drain.child_token();
        if let Some(problem) = problem {
            return Err(problem);
        }
        let (slots, calls_max) = (config.slots.clamp(1, AT_ONCE_MAX), config.calls_max.clamp(1, AT_ONCE_MAX));
        let bytes_max = config.max_result_bytes.min(config.task_store.payload_bytes_max);
        let worker = WorkerId { name: config.name.map_or_else(crate::random, Ok)?, incarnation: crate::random()? };
        let work: Arc<dyn Work> = Arc::new(WorkClient::new(&config.task_store)?);
        let tasks = Tasks::new();
        let _gone = tasks.gone.clone().drop_guard();
        let leases = Arc::new(Leases::new(work.clone(), worker.clone(), config.liveness));
        let means = Arc::new(Means {
            work: work.clone(),
            worker: worker.clone(),
            resources,
            resolver: config.resolver,
            input_timeout: config.input_timeout,
            waiting: Places::new(WAITING_MAX),
        });
        let closing = Arc::new(Closing { work: work.clone(), leases: leases.clone(), liveness: config.liveness });
        let pump = Arc::new(Pump {
            work: work.clone(),
            worker: worker.clone(),
            tools: tools.clone(),
            leases: leases.clone(),
            means: means.clone(),
            closing: closing.clone(),
            slots: Arc::new(Semaphore::new(slots as usize)),
            gauge: Slots::new(slots),
            tasks: tasks.clone(),
            liveness: config.liveness,
            bytes_max,
        });
        let calls = Arc::new(Inline {
            tools: tools.clone(),
            means,
            open: Arc::new(Semaphore::new(calls_max as usize)),
            runs: Arc::new(Runs::default()),
            tasks: tasks.clone(),
            cut: CancellationToken::new(),
            bytes_max,
            leases: leases.clone(),
            closing,
        });

        let serving = tasks.gone.child_token();
        let (listener, url) = match config.calls {
            Some(Listening { listener, advertise_url }) => (Some(listener), Some(advertise_url)),
            None => (None, None),
        };
        let server = Server::new(config.task_store.token.clone(), config.task_store.payload_bytes_max, serving.clone())
            .with_tls(config.task_store.links.tls())
            .calls(calls.clone() as Arc<dyn Calls>);
        let health = server.health();
        health.set(false).await;
        let _tell = tasks.spawn({
            let mut attached = attached.subscribe();
            async move {
                loop {
                    let is_attached = *attached.borrow_and_update();
                    health.set(is_attached).await;
                    if attached.changed().await.is_err() {
                        return;
                    }
                }
            }
        });
        let serve = async {
            match listener {
                Some(listener) => server.serve(listener).await,
                None => {
                    serving.cancelled().await;
                    Ok(())
                }
            }
        };
        let mut serve = std::pin::pin!(serve);

        let _beat = tasks.spawn({
            let leases = leases.clone();
            async move { leases.beat().await }
        });
        let _watch = tasks.spawn({
            let leases = leases.clone();
            async move { leases.watch().await }
        });
        let _attach = tasks.spawn({
            let (leases, attached, drain) = (leases.clone(), attached.clone(), drain.clone());
            async move { leases.attach(url.as_deref(), &tools, &attached, &drain).await }
        });
        let claim = tasks.spawn({
            let (pump, drain) = (pump.clone(), drain.clone());
            let mut attached = attached.subscribe();
            async move {
                // Attaching ends what a former self held: first that, then new tasks.
                if drain.run_until_cancelled(attached.wait_for(|attached| *attached)).await.is_some() {
                    pump.claim(&drain).await;
                }
            }
        });

        let served = tokio::select! {
            served = &mut serve => served,
            () = drain.cancelled() => Ok(()),
        };
        let failed = served.is_err();
        // A worker that can no longer be called gives up as if told to.
        drain.cancel();
        let end = async {
            let until = Instant::now() + config.drain_timeout;
            attached.send_replace(false);
            tracing::info!(worker = worker.name, "draining");
            if let Err(error) = work.detach(&worker).await {
                tracing::warn!(%error, "the task-store was not told that the worker ends");
            }
            let idle = async {
                let _ = claim.await;
                // Those that wait for their callers too.
                tasks.runs.close();
                tasks.runs.wait().await;
            };
            let mut idle = std::pin::pin!(idle);
            if tokio::time::timeout_at(until, &mut idle).await.is_err() {
                leases.drain();
                calls.cut.cancel();
                if tokio::time::timeout(STOP_GRACE + LAST_WORDS, idle).await.is_err() {
                    tracing::error!(worker = worker.name, "ended before every task was handed back");
                }
            }
            serving.cancel();
        };
        if failed {
            end.await;
        } else {
            // The server goes on while the rest ends.
            let (last, ()) = tokio::join!(serve, end);
            last?;
        }
        tracing::info!(worker = worker.name, "drained");
        Ok(served?)
    }
}
