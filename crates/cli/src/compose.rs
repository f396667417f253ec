//! Wires roles together: used by the processes, by `longhaul dev`, by the tests, and by nobody else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use longhaul_bus::{Bus, LocalBus, RedisBus};
use longhaul_core::{Caller, Principal, TenantId};
use longhaul_gateway::{Authenticator, Credential, Gateway, Pace};
use longhaul_policy::Budgets;
use longhaul_policy::follow::follow;
use longhaul_policy::switch::Switches;
use longhaul_policy::{Chain, Checks, Record, Recorder};
use longhaul_rpc::client::{ControlClient, Target, TasksClient};
use longhaul_rpc::{Health, Links, Listener, Server, ServiceToken, Tasks as _};
use longhaul_runner::{Runner, UpstreamStatus};
use longhaul_taskstore::{SystemClock, TaskStore};
use longhaul_worker::{Listening, Liveness, Offer, Worker, demo};
use prometheus::Registry;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admission;
use crate::callers::callers;
use crate::check;
use crate::config::{Config, CredentialConfig, Wrong, secret};
use crate::keys::{self, Keys};
use crate::management::{self, Readiness};
use crate::{services, shutdown};

/// A lease lasts this many heartbeats.
const HEARTBEATS_PER_LEASE: u32 = 3;

/// What a process has before it plays a role.
pub struct Parts {
    /// Its config.
    pub config: Arc<Config>,
    /// Whether it can serve.
    pub readiness: Readiness,
    /// What `/metrics` shows.
    pub registry: Registry,
    /// Fires when it is to end.
    pub drain: CancellationToken,
}

/// A role, wired and ready: awaited, it runs until its drain is over.
pub type Running = BoxFuture<'static, anyhow::Result<()>>;

/// What the roles of one installation share: how to reach one another and what to show there.
#[derive(Clone)]
pub struct Site {
    /// The config.
    pub config: Arc<Config>,
    /// Turns URLs into connections.
    pub links: Links,
    /// What roles show one another.
    pub token: ServiceToken,
    /// Carries hints.
    pub bus: Arc<dyn Bus>,
}

impl Site {
    /// The site that the config describes, to an operator's eyes.
    pub fn new(config: Arc<Config>) -> anyhow::Result<Self> {
        Self::playing(None, config)
    }

    /// The site that the config describes, as a role sees it, or an operator.
    pub fn playing(role: Option<check::Role>, config: Arc<Config>) -> anyhow::Result<Self> {
        let (token, links) = (services::tokens(&config, role)?, Links::default().with_tls(services::tls(&config)?));
        let bus = bus(&config)?;
        Ok(Self { config, links, token, bus })
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            links: self.links.clone(),
            urls: self.config.taskstore_urls.clone(),
            token: self.token.clone(),
            payload_bytes_max: self.config.task_max_result_bytes.max(self.config.gateway.max_body_bytes),
        }
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.config.task_heartbeat_ms)
    }

    /// A task-store on `database_url` that accepts connections at `listener`, with keys as [`gateway`](Self::gateway) has
    /// them.
    pub async fn taskstore(
        &self,
        database_url: &SecretString,
        keys: impl Into<Keys>,
        listener: Listener,
        drain: CancellationToken,
    ) -> anyhow::Result<(TaskStore, Running)> {
        self.reporting_taskstore(database_url, keys, listener, drain).await.map(|(store, _, running)| (store, running))
    }

    /// The same, and what tells gRPC health checks how it is.
    async fn reporting_taskstore(
        &self,
        database_url: &SecretString,
        keys: impl Into<Keys>,
        listener: Listener,
        drain: CancellationToken,
    ) -> anyhow::Result<(TaskStore, Health, Running)> {
        let config = longhaul_taskstore::Config {
            database_url: database_url.expose_secret().to_owned(),
            max_connections: self.config.taskstore.database_max_connections,
            allow_unsafe_durability: self.config.taskstore.allow_unsafe_durability,
            ttl: self.config.ttl(),
            max_open: self.config.mcp_task_max_open,
            max_live: self.config.mcp_task_max_live,
            max_result_bytes: self.config.task_max_result_bytes,
            lease: self.heartbeat() * HEARTBEATS_PER_LEASE,
            audit_retention_days: self.config.audit_retention_days,
            ..longhaul_taskstore::Config::default()
        };
        let keys = keys.into();
        let store = TaskStore::build(config, self.bus.clone(), keys.ring()).await?;
        let offered = Arc::new(store.clone());
        let server = Server::new(self.token.clone(), self.target().payload_bytes_max, drain.clone())
            .with_tls(self.links.tls())
            .tasks(offered.clone())
            .work(offered.clone())
            .control(offered);
        let (running, health) = (store.clone(), server.health());
        let running = async move {
            // The sweeps and the batches end after the last request that needs them.
            let last = CancellationToken::new();
            let serve = async {
                let mut serve = std::pin::pin!(server.serve(listener));
                let served = tokio::select! {
                    served = &mut serve => served,
                    () = drain.cancelled() => {
                        running.close();
                        serve.await
                    }
                };
                last.cancel();
                served
            };
            let both = async { tokio::join!(serve, running.run(last.clone())) };
            tokio::select! {
                (served, ()) = both => Ok(served?),
                never = keys.follow(keys::LOOK) => match never {},
            }
        };
        Ok((store, health, Box::pin(running)))
    }

    /// A gateway that accepts clients at `listener`, with keys that are those of their file as long as it runs.
    pub fn gateway(
        &self,
        auth: Authenticator,
        keys: impl Into<Keys>,
        listener: TcpListener,
        drain: CancellationToken,
    ) -> anyhow::Result<(longhaul_gateway::Status, Running)> {
        let config = &self.config;
        let gateway = longhaul_gateway::Config {
            allowed_hosts: config.gateway.allowed_hosts.clone(),
            allowed_origins: config.gateway.allowed_origins.clone(),
            tasks_legacy: config.mcp_tasks_enabled && config.mcp_tasks_legacy_enabled,
            tasks_extension: config.mcp_tasks_enabled && config.mcp_tasks_extension_enabled,
            task_shortcut: Duration::from_millis(config.gateway.task_shortcut_ms),
            input_timeout: Duration::from_secs(config.mcp_task_input_timeout_s),
            request_bytes_max: config.gateway.max_body_bytes,
            result_bytes_max: config.task_max_result_bytes,
            result_wait: Duration::from_secs(config.mcp_task_result_wait_s),
            poll_interval_ms: config.mcp_task_poll_interval_ms,
            tools_page: config.gateway.tools_page,
            drain_timeout: Duration::from_secs(config.drain_deadline_s),
            pace: Pace { keep_alive: Duration::from_secs(config.gateway.sse_keepalive_s), ..Pace::default() },
            ..longhaul_gateway::Config::default()
        };
        let (target, keys) = (self.target(), keys.into());
        let checks = admission::checks(config, &*self.bus)?;
        let control = Arc::new(ControlClient::new(&target)?);
        let rules = config.budget_rules()?;
        // Without budgets there is nothing to lease.
        let budgets = (!rules.rules.is_empty()).then(|| Budgets::new(rules, control.clone()));
        let budgets = budgets.transpose().map_err(|bad| Wrong(format!("budgets: {bad}")))?;
        let parts = longhaul_gateway::Parts {
            tasks: Arc::new(TasksClient::new(&target)?),
            control,
            bus: self.bus.clone(),
            links: self.links.clone(),
            token: self.token.to_workers(),
            keyring: keys.ring(),
            auth,
            budgets,
            clock: Arc::new(SystemClock),
            checks,
            recorder: Arc::new(Recorder::new()),
        };
        let gateway = Gateway::build(gateway, parts);
        let status = gateway.status();
        let running = async move {
            tokio::select! {
                ran = gateway.run(listener, drain) => Ok(ran?),
                never = keys.follow(keys::LOOK) => match never {},
            }
        };
        Ok((status, Box::pin(running)))
    }

    /// A worker with what the config has it offer and `more`, that takes calls at `listening`.
    pub fn runner(
        &self,
        more: Vec<Offer>,
        listening: Listening,
        drain: CancellationToken,
    ) -> anyhow::Result<(watch::Receiver<bool>, Running)> {
        self.wrapping_runner(more, listening, drain).map(|(attached, _, running)| (attached, running))
    }

    /// The same, and the upstream servers that it wraps.
    pub(crate) fn wrapping_runner(
        &self,
        more: Vec<Offer>,
        listening: Listening,
        drain: CancellationToken,
    ) -> anyhow::Result<(watch::Receiver<bool>, Arc<Runner>, Running)> {
        let config = &self.config;
        let mut own = more;
        if config.runner.demo_tools {
            own.extend(demo::tools().into_iter().map(Offer::from));
            own.extend(demo::prompts().into_iter().map(Offer::from));
            own.extend(demo::resources().into_iter().map(Offer::from));
        }
        let heartbeat = self.heartbeat();
        let worker = Worker::new(longhaul_worker::Config {
            name: config.runner.name.clone(),
            calls: Some(listening),
            slots: config.runner.slots,
            calls_max: config.runner.calls_max,
            liveness: Liveness {
                heartbeat,
                lease: heartbeat * HEARTBEATS_PER_LEASE,
                // Before others may interrupt its tasks: 25 s of 30.
                self_stop: heartbeat * 5 / 2,
            },
            drain_timeout: Duration::from_secs(config.runner.drain_timeout_s),
            max_result_bytes: config.task_max_result_bytes,
            input_timeout: Duration::from_secs(config.mcp_task_input_timeout_s),
            ..longhaul_worker::Config::new(self.target())
        })
        .with_tools(own.clone());
        // Upstream servers may be given variables of ours by name.
        let variable = |name: &str| std::env::var_os(name);
        let switches = Arc::new(Switches::default());
        let recorder = Arc::new(Recorder::new());
        let record: Option<Arc<dyn Record>> = Some(recorder.clone());
        let checks = Checks { switch: Some(switches.clone()), record, ..admission::checks(config, &*self.bus)? };
        let chain = Arc::new(Chain::new(checks));
        let runner = Runner::build(&upstreams(config), variable, &worker, own, chain);
        let runner = Arc::new(runner.map_err(|error| Wrong(error.to_string()))?);
        let (control, bus) = (ControlClient::new(&self.target())?, self.bus.clone());
        let (attached, upstreams) = (worker.attached(), runner.clone());
        let running = async move {
            // The last runs need the upstream servers.
            let last = CancellationToken::new();
            let work = async {
                let worked = worker.run(drain).await;
                last.cancel();
                worked
            };
            let following = last.run_until_cancelled(follow(&*switches, &control, &*bus));
            let telling = recorder.run(&control, last.clone());
            let (worked, (), _, _) = tokio::join!(work, runner.run(last.clone()), following, telling);
            Ok(worked?)
        };
        Ok((attached, upstreams, Box::pin(running)))
    }
}

/// Where hints go, if that is Redis.
pub(crate) fn redis_url(config: &Config) -> Result<Option<SecretString>, Wrong> {
    secret("redis_url", config.redis_url.as_ref(), config.redis_url_file.as_deref())
}

/// The upstream servers of a runner.
pub(crate) fn upstreams(config: &Config) -> longhaul_runner::Config {
    longhaul_runner::Config {
        upstreams: config.runner.upstreams.clone(),
        providers: config.runner.providers.clone(),
        agents: config.runner.agents.clone(),
        max_result_bytes: config.task_max_result_bytes,
    }
}

/// The URL that gateways are told of a runner that listens there.
pub(crate) fn advertise_url(config: &Config, address: SocketAddr) -> Result<String, Wrong> {
    match &config.runner.worker_advertise_url {
        Some(url) => Ok(url.clone()),
        None if address.ip().is_unspecified() => {
            Err(Wrong("runner.worker_advertise_url is needed: the URL under which gateways reach this worker".into()))
        }
        None if config.tls.cert_file.is_some() => Ok(format!("https://{address}")),
        None => Ok(format!("http://{address}")),
    }
}

/// The task-store's control state, for an operator.
pub(crate) fn control(config: Arc<Config>) -> anyhow::Result<ControlClient> {
    let (token, links) = (services::tokens(&config, None)?, Links::default().with_tls(services::tls(&config)?));
    // An operator's command needs no hints.
    let site = Site { config, links, token, bus: Arc::new(LocalBus::alone()) };
    Ok(ControlClient::new(&site.target())?)
}

fn bus(config: &Config) -> anyhow::Result<Arc<dyn Bus>> {
    Ok(match redis_url(config)? {
        Some(url) => Arc::new(
            RedisBus::connect(url.expose_secret(), &config.redis_prefix)
                .map_err(|error| Wrong(format!("redis_url: {error}")))?,
        ),
        None => {
            tracing::warn!("redis_url is not set: other replicas hear of changes up to 2 s later");
            Arc::new(LocalBus::alone())
        }
    })
}

/// Who may call, as the config says; and whoever has a credential in the task-store.
pub fn authenticator(credentials: &[CredentialConfig]) -> Result<Authenticator, Wrong> {
    let credentials = credentials
        .iter()
        .enumerate()
        .map(|(at, credential)| {
            let wrong = |what: &str| Wrong(format!("gateway.credentials[{at}]: {what}"));
            let caller = match (&credential.agent, &credential.app, &credential.person) {
                (Some(agent), None, None) => Caller::Agent(agent.clone()),
                (None, Some(app), Some(person)) => Caller::Person { app: app.clone(), person: person.clone() },
                _ => return Err(wrong("names either an agent, or an app and a person")),
            };
            if credential.tenant.is_empty() {
                return Err(wrong("tenant is empty"));
            }
            let sha256 = sha256(&credential.sha256).ok_or_else(|| wrong("sha256 is not 64 hex digits"))?;
            let principal = Arc::new(Principal { tenant: TenantId::new(credential.tenant.as_str()), caller });
            Ok(Credential { sha256, principal })
        })
        .collect::<Result<Arc<[_]>, Wrong>>()?;
    Ok(Authenticator::Bearer(credentials))
}

fn sha256(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

/// The keys that seal what clients and the database keep for us.
pub fn keys(config: &Config) -> Result<Keys, Wrong> {
    let file = config.seal_keys_file.as_ref().ok_or_else(|| {
        Wrong(
            "seal_keys_file is needed: a file with one line from `openssl rand -base64 32`, the same for every gateway and task-store"
                .into(),
        )
    })?;
    Keys::read(file).map_err(|Wrong(what)| Wrong(format!("seal_keys_file: {what}")))
}

/// Opens a listener, or says which key to change.
pub async fn listen(key: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} ({key}); is it in use?"))
}

/// The database of the config.
pub fn database_url(config: &Config) -> Result<SecretString, Wrong> {
    let taskstore = &config.taskstore;
    secret("taskstore.database_url", taskstore.database_url.as_ref(), taskstore.database_url_file.as_deref())?
        .ok_or_else(|| Wrong("taskstore.database_url is needed: postgres://… or sqlite:FILE".into()))
}

impl Parts {
    /// Plays a role beside its management listener. `role` is given the drain that comes after the notice.
    async fn play<F>(
        self,
        notice: Duration,
        role: impl FnOnce(Arc<Config>, Readiness, CancellationToken) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<Running>>,
    {
        let Self { config, readiness, registry, drain } = self;
        let management = listen("management_listen", config.management_listen).await?;
        let stop = CancellationToken::new();
        let serve = management::serve(management, readiness.clone(), registry, stop.clone());
        let noticed = CancellationToken::new();
        let play = async {
            let running = tokio::select! {
                running = role(config, readiness.clone(), noticed.clone()) => running?,
                // It has promised nobody anything yet.
                () = drain.cancelled() => return Ok(()),
            };
            readiness.started();
            let signal = async {
                drain.cancelled().await;
                readiness.drain();
                shutdown::notice(notice).await;
                noticed.cancel();
                std::future::pending().await
            };
            tokio::select! {
                played = running => played,
                () = signal => Ok(()),
            }
        };
        let ended = async {
            let played = play.await;
            stop.cancel();
            played
        };
        let (played, ()) = tokio::join!(ended, serve);
        played
    }
}

/// Plays `longhaul gateway`.
pub async fn gateway(parts: Parts) -> anyhow::Result<()> {
    let notice = Duration::from_millis(parts.config.drain_notice_ms);
    parts
        .play(notice, async |config, readiness, drain| {
            check::role(check::Role::Gateway, &config)?;
            let (auth, keys) = (callers(&config)?, keys(&config)?);
            let listener = listen("gateway.listen", config.gateway.listen).await?;
            tracing::info!(address = %listener.local_addr()?, "gateway");
            let site = Site::playing(Some(check::Role::Gateway), config.clone())?;
            let (status, running) = site.gateway(auth, keys, listener, drain)?;
            let running = services::following(&config, site.links.tls(), running)?;
            let known = status.clone();
            readiness.mention(move || known.mentions());
            readiness.check("task-store", move || {
                let readiness = status.ready();
                Box::pin(async move { readiness.map_err(|why| why.to_string()) })
            });
            Ok(running)
        })
        .await
}

/// Plays `longhaul taskstore`.
pub async fn taskstore(parts: Parts) -> anyhow::Result<()> {
    let notice = Duration::from_millis(parts.config.drain_notice_ms);
    parts
        .play(notice, async |config, readiness, drain| {
            check::role(check::Role::Taskstore, &config)?;
            let database = database_url(&config)?;
            let deadline = Duration::from_secs(config.drain_deadline_s);
            let site = Site::playing(Some(check::Role::Taskstore), config.clone())?;
            let keys = keys(&config)?;
            let listener = listen("taskstore.listen", config.taskstore.listen).await?;
            tracing::info!(address = %listener.local_addr()?, "task-store");
            let listener = Listener::Tcp(listener);
            let (store, health, running) = site.reporting_taskstore(&database, keys, listener, drain.clone()).await?;
            readiness.check("database", move || {
                let store = store.clone();
                Box::pin(async move {
                    store
                        .ready()
                        .await
                        .then_some(())
                        .ok_or_else(|| "does not answer: see taskstore.database_url".into())
                })
            });
            let running = async move {
                tokio::select! {
                    ran = running => ran,
                    never = readiness.tell(health) => match never {},
                }
            };
            let running = Box::pin(shutdown::within(deadline, drain, running)) as Running;
            Ok(services::following(&config, site.links.tls(), running)?)
        })
        .await
}

/// Plays `longhaul runner`.
pub async fn runner(parts: Parts) -> anyhow::Result<()> {
    // It accepts no clients of its own that would need a notice.
    parts
        .play(Duration::ZERO, async |config, readiness, drain| {
            check::role(check::Role::Runner, &config)?;
            let listener = listen("runner.worker_listen", config.runner.worker_listen).await?;
            let address = listener.local_addr()?;
            let advertise_url = advertise_url(&config, address)?;
            tracing::info!(%address, advertise_url, "runner");
            let listening = Listening { listener: Listener::Tcp(listener), advertise_url };
            let site = Site::playing(Some(check::Role::Runner), config.clone())?;
            let (attached, upstreams, running) = site.wrapping_runner(Vec::new(), listening, drain)?;
            let running = services::following(&config, site.links.tls(), running)?;
            let rules = upstreams.clone();
            readiness.mention(move || rules.mentions());
            readiness.mention(move || missing(&upstreams));
            readiness.check("task-store", move || {
                let attached = *attached.borrow();
                Box::pin(async move { attached.then_some(()).ok_or_else(|| "not attached: see taskstore_urls".into()) })
            });
            Ok(running)
        })
        .await
}

/// A line for each upstream server that is not there: the others and the worker's own tools are on offer all the same.
pub(crate) fn missing(runner: &Runner) -> Vec<String> {
    let missing = |status: UpstreamStatus| Some(format!("upstream {}: {}", status.name, status.missing?));
    runner.status().into_iter().filter_map(missing).collect()
}

/// Plays `longhaul migrate`.
pub async fn migrate(parts: Parts) -> anyhow::Result<()> {
    longhaul_taskstore::migrate(database_url(&parts.config)?.expose_secret()).await?;
    tracing::info!("the schema is up to date");
    Ok(())
}

/// Plays `longhaul tasks count`.
pub async fn count(parts: Parts) -> anyhow::Result<()> {
    use std::io::Write as _;
    let count = TasksClient::new(&Site::new(parts.config)?.target())?.count().await?;
    Ok(writeln!(std::io::stdout(), "stored {}\nopen {}", count.stored, count.open)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(drain: &CancellationToken) -> Parts {
        let config = Config { management_listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
        Parts {
            config: Arc::new(config),
            readiness: Readiness::default(),
            registry: Registry::new(),
            drain: drain.clone(),
        }
    }

    #[tokio::test]
    async fn a_role_is_not_ready_before_it_is_there_and_a_drain_ends_it_at_any_time() {
        let drain = CancellationToken::new();
        let (parts, begin) = (parts(&drain), tokio::sync::Notify::new());
        let readiness = parts.readiness.clone();
        let (begun, mut is_begun) = watch::channel(false);
        let begin = &begin;
        let played = parts.play(Duration::ZERO, async move |_, readiness: Readiness, drain| {
            begin.notified().await;
            assert_eq!(readiness.report().await, (false, "[-] starting\n".to_owned()));
            let running: Running = Box::pin(async move {
                begun.send_replace(true);
                drain.cancelled().await;
                Ok(())
            });
            Ok(running)
        });
        let looks = async {
            assert!(!readiness.report().await.0);
            begin.notify_one();
            is_begun.wait_for(|begun| *begun).await.unwrap();
            assert_eq!(readiness.report().await, (true, String::new()));
            drain.cancel();
        };
        let (played, ()) = tokio::join!(played, looks);
        played.unwrap();
    }

    #[tokio::test]
    async fn an_upstream_server_that_is_away_is_mentioned() {
        let upstream = r#"{"name": "files", "command": ["/no/such/program"]}"#;
        let config = longhaul_runner::Config {
            upstreams: vec![serde_json::from_str(upstream).unwrap()],
            ..longhaul_runner::Config::default()
        };
        let url = longhaul_worker::Config::connect("http://127.0.0.1:1", "a-token-for-the-tests").unwrap();
        let runner = Runner::build(&config, |_| None, &Worker::new(url), Vec::<Offer>::new(), Arc::default()).unwrap();
        assert_eq!(missing(&runner), ["upstream files: is being started"]);
    }
}
