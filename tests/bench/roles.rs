//! The product as it is deployed: the release binary's roles as processes, on free ports of 127.0.0.1.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::client::{Ask, Session};
use crate::processes::{Meter, Process};

/// The one caller. These secrets guard throwaway processes on loopback.
pub const KEY: &str = "longhaul-bench-key";
const KEY_SHA256: &str = "84b8fb309542dc79752c24e6169df4512e81dfb6e158aff89883c3e72bf4f263";
/// What the roles show one another.
pub const SERVICE_TOKEN: &str = "longhaul-bench-service-token";
const CONFIG: &str = "longhaul.toml";
const SEAL_KEY: &str = "bG9uZ2hhdWwtYmVuY2gtc2VhbC1rZXktMzItYnl0ZXM=";
/// How long a role may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A gateway, a task-store and a runner.
pub struct Roles {
    /// Where the gateway listens.
    pub address: SocketAddr,
    /// Where the task-store listens.
    pub taskstore_url: String,
    /// The gateway.
    pub gateway: Process,
    /// The task-store.
    pub taskstore: Process,
    /// The runner, with the demonstration tools.
    pub runner: Process,
    folder: TempDir,
}

#[derive(Deserialize)]
struct Tools {
    tools: Vec<Tool>,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
}

impl Roles {
    /// Migrates the database and starts the roles; ready when this returns.
    pub async fn start(binary: &Path, database_url: &str, redis_url: &str, slots: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [gateway, taskstore, worker, gateway_ops, taskstore_ops, runner_ops] = free_ports().await?;
        let seal_keys = folder.path().join("seal-keys");
        fs::write(&seal_keys, SEAL_KEY)?;
        let config = folder.path().join(CONFIG);
        fs::write(
            &config,
            format!(
                r#"
mcp_task_max_open = 0
mcp_task_max_live = 0
log = "warn"
seal_keys_file = {seal_keys:?}
service_token = "{SERVICE_TOKEN}"
taskstore_urls = ["http://{taskstore}"]
redis_url = {redis_url:?}

[gateway]
listen = "{gateway}"
[[gateway.credentials]]
sha256 = "{KEY_SHA256}"
tenant = "bench"
agent = "bench"

[taskstore]
listen = "{taskstore}"
database_url = {database_url:?}

[runner]
name = "bench"
worker_listen = "{worker}"
slots = {slots}
demo_tools = true
"#
            ),
        )?;
        let start = |name: &'static str, management: Option<SocketAddr>| {
            let mut command = Command::new(binary);
            command.arg(name).env_clear().env("LONGHAUL_CONFIG", &config);
            if let Some(address) = management {
                command.env("LONGHAUL_MANAGEMENT_LISTEN", address.to_string());
            }
            Process::start(name, &mut command, folder.path())
        };
        start("migrate", None)?.finish().await?;
        let mut this = Self {
            address: gateway,
            taskstore_url: format!("http://{taskstore}"),
            taskstore: start("taskstore", Some(taskstore_ops))?,
            runner: start("runner", Some(runner_ops))?,
            gateway: start("gateway", Some(gateway_ops))?,
            folder,
        };
        tokio::time::timeout(READY_WITHIN, this.ready([taskstore_ops, runner_ops, gateway_ops]))
            .await
            .with_context(|| format!("not ready within {READY_WITHIN:?}; logs: {}", this.logs()))??;
        Ok(this)
    }

    /// Another gateway, with these variables; it is ready when this returns.
    pub async fn another_gateway(
        &self,
        binary: &Path,
        variables: &[(&'static str, String)],
    ) -> Result<(Process, SocketAddr)> {
        let [address, management] = free_ports().await?;
        let mut command = Command::new(binary);
        command.arg("gateway").env_clear().env("LONGHAUL_CONFIG", self.folder.path().join(CONFIG));
        command.env("LONGHAUL_GATEWAY__LISTEN", address.to_string());
        command.env("LONGHAUL_MANAGEMENT_LISTEN", management.to_string());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut gateway = Process::start("another-gateway", &mut command, self.folder.path())?;
        let ready = async {
            while !is_ready(management).await {
                gateway.check()?;
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
            offers_echo(address).await
        };
        tokio::time::timeout(READY_WITHIN, ready).await.context("the other gateway is not ready in time")??;
        Ok((gateway, address))
    }

    /// An error if one of them has ended.
    pub fn check(&mut self) -> Result<()> {
        self.gateway.check()?;
        self.taskstore.check()?;
        self.runner.check()
    }

    /// Where their CPU time is read.
    pub fn meters(&self) -> Vec<Meter> {
        [&self.gateway, &self.taskstore, &self.runner].into_iter().filter_map(Process::meter).collect()
    }

    /// Ends them.
    pub async fn stop(self) -> Result<()> {
        self.gateway.kill().await?;
        self.runner.kill().await?;
        self.taskstore.kill().await
    }

    async fn ready(&mut self, management: [SocketAddr; 3]) -> Result<()> {
        for address in management {
            while !is_ready(address).await {
                self.check()?;
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
        }
        offers_echo(self.address).await?;
        self.check()
    }

    fn logs(&self) -> String {
        let read = |name| fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default();
        ["taskstore", "runner", "gateway"].map(|name| format!("{name}: {}", read(name))).join("\n")
    }
}

/// Waits until the gateway there offers tools: it learns of them a little later than of their worker.
async fn offers_echo(address: SocketAddr) -> Result<()> {
    let mut session = Session::open(address, KEY).await?;
    let list = Ask { method: "tools/list", name: String::new(), params: String::new(), tasks: false };
    loop {
        let listed: Tools = session.call(&list).await?;
        if listed.tools.iter().any(|tool| tool.name == "echo") {
            return Ok(());
        }
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
    }
}

async fn is_ready(management: SocketAddr) -> bool {
    let ask = async {
        let stream = TcpStream::connect(management).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let request = Request::get("/readyz").header("host", management.to_string()).body(Empty::<Bytes>::new())?;
        let answer = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            response.into_body().collect().await?;
            anyhow::Ok(status)
        };
        tokio::select! {
            status = answer => status,
            ended = connection => bail!("the connection ended: {ended:?}"),
        }
    };
    ask.await.is_ok_and(|status| status == StatusCode::OK)
}

/// Ports that were free a moment ago, each its own.
async fn free_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    let mut listeners = Vec::with_capacity(N);
    for _ in 0..N {
        listeners.push(TcpListener::bind("127.0.0.1:0").await?);
    }
    let addresses: Vec<_> = listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?;
    addresses.try_into().map_err(|_| anyhow::anyhow!("a port is missing"))
}
