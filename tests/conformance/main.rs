//! The server that the official conformance suite is run against: gateway and task-store as `longhaul dev` wires them, and
//! a worker, built with the SDK like anybody's, that offers what the suite asks for by name.
//!
//! `scripts/conformance` runs the suite; `USAGE` says what this takes.

mod fixtures;
mod questions;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use longhaul_bus::LocalBus;
use longhaul_cli::compose::Site;
use longhaul_cli::config::Config;
use longhaul_cli::keys::Keys;
use longhaul_core::{Caller, Principal, TenantId};
use longhaul_gateway::Authenticator;
use longhaul_mcp::seal::Keyring;
use longhaul_rpc::client::Target;
use longhaul_rpc::{Links, ServiceToken};
use longhaul_worker::{Listening, Worker};
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::fixtures::Fixtures;

const USAGE: &str = "longhaul-conformance [--port PORT] [--upstreams FILE]
    --port PORT       where to listen on the loopback interface; a free one unless said
    --upstreams FILE  wrap the upstream servers of this TOML file (`[[runner.upstreams]]`) instead of offering fixtures";

const STORE: &str = "store";
const WORKER: &str = "worker";

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(run()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul-conformance: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let (port, upstreams) = arguments()?;
    let folder = tempfile::tempdir()?;
    let mut config = Config { taskstore_urls: vec![format!("memory://{STORE}")], ..Config::default() };
    if let Some(file) = &upstreams {
        config.runner.upstreams = longhaul_cli::config::read(Some(file), [], &[], &[])?.runner.upstreams;
    }
    // The suite starts more tasks than one caller usually has.
    config.mcp_task_max_open = 0;
    let site = Site {
        config: Arc::new(config),
        links: Links::default(),
        token: ServiceToken::new(["a-token-that-never-leaves-this-process"])?,
        bus: Arc::new(LocalBus::new()),
    };
    let drain = CancellationToken::new();
    let keys = Keys::from(Keyring::new(&[1; 32], &[]));
    let database = SecretString::from(format!("sqlite:{}", folder.path().join("longhaul.db").display()));
    let (_store, store) = site.taskstore(&database, keys.clone(), site.links.listen(STORE), drain.clone()).await?;
    let listening = Listening { listener: site.links.listen(WORKER), advertise_url: format!("memory://{WORKER}") };
    let worker = async {
        match upstreams {
            Some(_) => {
                let (_, running) = site.runner(Vec::new(), listening, drain.clone())?;
                running.await
            }
            None => {
                let worker = Worker::new(longhaul_worker::Config {
                    calls: Some(listening),
                    ..longhaul_worker::Config::new(Target {
                        links: site.links.clone(),
                        urls: site.config.taskstore_urls.clone(),
                        token: site.token.clone(),
                        payload_bytes_max: site.config.task_max_result_bytes,
                    })
                });
                let all = Fixtures::of(worker.tools()).all();
                Ok(worker.with_tools(all).run(drain.clone()).await?)
            }
        }
    };
    // The suite cannot show a credential.
    let principal = Principal { tenant: TenantId::new("conformance"), caller: Caller::Agent("suite".into()) };
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await.context("cannot listen")?;
    let address = listener.local_addr()?;
    let (status, gateway) =
        site.gateway(Authenticator::Fixed(Arc::new(principal)), keys.clone(), listener, drain.clone())?;
    let ready = async {
        status.offering().await;
        let mut out = std::io::stdout().lock();
        writeln!(out, "http://{address}/mcp")?;
        out.flush()?;
        anyhow::Ok(())
    };
    let signals = async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        anyhow::Ok(())
    };
    let serve = async { tokio::try_join!(store, worker, gateway, ready) };
    // Nothing of it is kept, so it need not end in order.
    tokio::select! {
        served = serve => served.map(drop),
        ended = signals => ended,
    }
}

fn arguments() -> Result<(u16, Option<PathBuf>)> {
    let (mut port, mut upstreams) = (0, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--port", Some(value)) => port = value.parse().with_context(|| format!("--port {value}"))?,
            ("--upstreams", Some(value)) => upstreams = Some(PathBuf::from(value)),
            _ => bail!("usage: {USAGE}"),
        }
    }
    Ok((port, upstreams))
}
