//! `longhaul dev`: the same roles in one process, over in-memory connections and a SQLite file.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_bus::LocalBus;
use longhaul_core::{Caller, Principal, TenantId};
use longhaul_gateway::Authenticator;
use longhaul_rpc::{Links, ServiceToken};
use longhaul_runner::{AgentConfig, SCRIPTED};
use longhaul_worker::Listening;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use crate::compose::{self, Parts, Site};
use crate::config::{Config, Wrong};
use crate::keys::Keys;
use crate::management;

/// How long the parts may take to find one another.
const START_MAX: Duration = Duration::from_secs(30);
const TASKSTORE: &str = "taskstore";
const RUNNER: &str = "runner";

/// What is otherwise than in production.
pub(crate) fn defaults(listen: SocketAddr) -> Vec<(&'static str, String)> {
    [
        ("log", "warn".to_owned()),
        ("log_format", "pretty".to_owned()),
        ("gateway.listen", listen.to_string()),
        ("management_listen", "127.0.0.1:0".to_owned()),
        ("taskstore_urls", format!("[memory://{TASKSTORE}]")),
        ("runner.name", "dev".to_owned()),
        ("runner.demo_tools", "true".to_owned()),
        ("runner.drain_timeout_s", "1".to_owned()),
        ("drain_deadline_s", "5".to_owned()),
    ]
    .into()
}

/// Runs until the drain is over.
pub(crate) async fn run(parts: Parts, data: &Path) -> anyhow::Result<()> {
    let Parts { config, readiness, registry, drain } = parts;
    if !config.gateway.listen.ip().is_loopback() {
        return Err(Wrong(format!(
            "--listen {}: `longhaul dev` asks for no credential, so it listens on loopback only (127.0.0.1 or [::1])",
            config.gateway.listen
        ))
        .into());
    }
    let config = Arc::new(with_agent(&config));
    folder(data).with_context(|| format!("cannot make the data folder {}", data.display()))?;
    // Held until the process ends, however it ends.
    let _lock = lock(data)?;
    let keys = keys(&data.join("seal.key"))?;
    let listener = compose::listen("--listen", config.gateway.listen).await?;
    let management = compose::listen("management_listen", config.management_listen).await?;
    let (mcp, management_address) = (listener.local_addr()?, management.local_addr()?);
    let site = Site {
        config: config.clone(),
        links: Links::default(),
        // Never leaves the process.
        token: ServiceToken::new([STANDARD.encode(random()?).as_str()])?,
        bus: Arc::new(LocalBus::new()),
    };

    // They end one after the other, each before what it needs.
    let (worker_drain, store_drain, stop) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let file = data.join("longhaul.db");
    let database = SecretString::from(format!("sqlite:{}", file.display()));
    let (_, store) = site.taskstore(&database, keys.clone(), site.links.listen(TASKSTORE), store_drain.clone()).await?;
    let listening = Listening { listener: site.links.listen(RUNNER), advertise_url: format!("memory://{RUNNER}") };
    let (mut attached, upstreams, worker) = site.wrapping_runner(Vec::new(), listening, worker_drain.clone())?;
    let principal = Principal { tenant: TenantId::new("dev"), caller: Caller::Agent("dev".into()) };
    let (status, gateway) = site.gateway(Authenticator::Fixed(Arc::new(principal)), keys, listener, drain.clone())?;

    let ready = status.clone();
    readiness.check("gateway", move || {
        let ready = ready.is_ready();
        Box::pin(async move { ready.then_some(()).ok_or_else(|| "starting".into()) })
    });
    readiness.mention(move || compose::missing(&upstreams));
    let rules = status.clone();
    readiness.mention(move || rules.mentions());
    readiness.started();
    let banner = async {
        let up = tokio::time::timeout(START_MAX, async {
            // An error means that the worker has ended; then the others end too.
            let _ = attached.wait_for(|attached| *attached).await;
            status.offering().await;
        });
        if up.await.is_ok() {
            print(mcp, management_address, data, &config).context("the banner could not be printed")?;
        } else {
            tracing::error!("the parts have not found one another; see the log above, and run with --set log=info");
        }
        anyhow::Ok(())
    };
    let gateway = async {
        let ended = gateway.await;
        worker_drain.cancel();
        ended
    };
    let worker = async {
        let ended = worker.await;
        // A worker that failed takes the rest with it.
        drain.cancel();
        store_drain.cancel();
        ended
    };
    let store = async {
        let ended = store.await;
        drain.cancel();
        worker_drain.cancel();
        stop.cancel();
        ended
    };
    let signal = async {
        drain.cancelled().await;
        readiness.drain();
    };
    let serve = management::serve(management, readiness.clone(), registry, stop.clone());
    let (banner, gateway, worker, store, (), ()) = tokio::join!(banner, gateway, worker, store, signal, serve);
    gateway.and(worker).and(store).and(banner)
}

/// There is an agent to try, unless there are others.
fn with_agent(config: &Config) -> Config {
    let mut config = config.clone();
    if config.runner.agents.is_empty() {
        let (provider, agent) = longhaul_runner::demo(&config.runner.providers, |name| std::env::var_os(name));
        config.runner.providers.extend(provider);
        config.runner.agents.push(agent);
    }
    config
}

/// Makes the data folder, for its owner alone: arguments and results are in there.
fn folder(data: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data)?;
    std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o700))
}

/// Two processes on one folder would interrupt each other's tasks: both are the worker `dev`.
fn lock(data: &Path) -> anyhow::Result<std::fs::File> {
    let file = data.join("lock");
    let lock = std::fs::File::create(&file).with_context(|| format!("cannot write {}", file.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => {
            anyhow::bail!(
                "the data folder {} is in use by another `longhaul dev`: end that one, or use --data",
                data.display()
            )
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", file.display()))
        }
    }
}

fn random() -> anyhow::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("the random source: {error}"))?;
    Ok(bytes)
}

/// Reads the key file, or makes one: sessions and cursors outlive a restart.
fn keys(file: &Path) -> anyhow::Result<Keys> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    match made {
        Ok(mut new) => writeln!(new, "{}", STANDARD.encode(random()?)).context("the key file")?,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("cannot write {}", file.display())),
    }
    Keys::read(file).map_err(|Wrong(what)| Wrong(format!("{what}; delete it for a new one")).into())
}

fn print(mcp: SocketAddr, management: SocketAddr, data: &Path, config: &Config) -> std::io::Result<()> {
    let agent = |agent: &AgentConfig| match agent.provider.as_str() {
        SCRIPTED => format!("{}, a script without a model", agent.name),
        provider => format!("{} with {} of {provider}", agent.name, agent.model),
    };
    let agents = config.runner.agents.iter().map(agent).collect::<Vec<_>>().join(", ");
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        r#"longhaul {version}  dev: one process, loopback only, no credential needed
  MCP      http://{mcp}/mcp
  Metrics  http://{management}/metrics
  Data     {data}
  Tools    echo  countdown  ask  fail  panic  and those of your upstream servers
  Agents   {agents}  (ask_agent)

A client's configuration:
  {{"mcpServers": {{"longhaul": {{"type": "http", "url": "http://{mcp}/mcp"}}}}}}

By hand:
  curl -s http://{mcp}/mcp -H 'Content-Type: application/json' -H 'Accept: application/json' -D - \
    -d '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"curl","version":"1"}}}}}}'
"#,
        version = env!("CARGO_PKG_VERSION"),
        data = data.display(),
    )?;
    out.flush()
}
