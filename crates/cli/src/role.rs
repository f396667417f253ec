//! The command line: which role this process plays.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use longhaul_rpc::client::ControlClient;

use crate::admission::{self, PolicyVerb};
use crate::config::{self, Config, Wrong};
use crate::management::Readiness;
use crate::telemetry::Telemetry;
use crate::{audit, budgets, check, compose, credentials, dev, shutdown, switch};

/// Durable tasks for long MCP tool calls.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version)]
pub struct Arguments {
    /// The config file (TOML).
    #[arg(long, global = true, env = config::FILE_VARIABLE, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets one key, over the file and the environment; may be repeated.
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves /mcp.
    Gateway,
    /// Keeps the tasks.
    Taskstore,
    /// Runs tools.
    Runner,
    /// The whole system in one process, for a laptop: SQLite, loopback, no credentials.
    Dev {
        /// Where /mcp listens; a loopback address.
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
        /// Where the data is kept.
        #[arg(long, default_value = ".longhaul")]
        data: PathBuf,
    },
    /// Brings the database's schema up to date.
    Migrate,
    /// Looks at the config.
    Config {
        #[command(subcommand)]
        what: ConfigVerb,
    },
    /// Looks at the policies.
    Policy {
        #[command(subcommand)]
        what: PolicyVerb,
    },
    /// Looks at the budgets.
    Budget {
        #[command(subcommand)]
        what: BudgetVerb,
    },
    /// Looks at the stored tasks.
    Tasks {
        #[command(subcommand)]
        what: TasksVerb,
    },
    /// Manages the keys that agents show.
    Credentials {
        #[command(subcommand)]
        what: credentials::Verb,
    },
    /// Switches calls off, and on again.
    Switch {
        #[command(subcommand)]
        what: switch::Verb,
    },
    /// Proves and reads the audit log.
    Audit {
        #[command(subcommand)]
        what: audit::Verb,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Prints the effective config, secrets hidden, and on stderr which roles would not start with it, and why.
    Print,
}

#[derive(Debug, Subcommand)]
enum BudgetVerb {
    /// Prints what is taken of each budget in its present window, of how much, and when it begins anew.
    Status,
}

#[derive(Debug, Subcommand)]
enum TasksVerb {
    /// Prints how many tasks are stored and how many of them are open.
    Count,
}

impl Arguments {
    /// Plays the role to its end. `environment` is the process's.
    pub fn run(self, environment: Vec<(String, String)>) -> anyhow::Result<()> {
        let defaults = if let Role::Dev { listen, .. } = &self.role { dev::defaults(*listen) } else { Vec::new() };
        let config = config::read(self.config.as_deref(), environment.clone(), &self.set, &defaults)?;
        match self.role {
            Role::Config { what: ConfigVerb::Print } => print(&config),
            Role::Policy { what: PolicyVerb::Check(question) } => admission::check(&config, question),
            role => tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .context("the async runtime")?
                .block_on(play(role, config, environment)),
        }
    }
}

fn print(config: &Config) -> anyhow::Result<()> {
    use std::io::Write as _;
    let text = toml::to_string(config).context("the config cannot be printed")?;
    std::io::stdout().write_all(text.as_bytes())?;
    // One machine needs what its own role needs: what another lacks is no failure.
    for (roles, Wrong(what)) in check::all(config) {
        let roles: Vec<_> = roles.iter().map(|role| role.name()).collect();
        writeln!(std::io::stderr(), "longhaul: this config does not start {}: {what}", roles.join(", "))?;
    }
    Ok(())
}

async fn play(role: Role, config: Config, environment: Vec<(String, String)>) -> anyhow::Result<()> {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
    let telemetry = Telemetry::start(&config.log, config.log_format, &environment)?;
    let drain = shutdown::on_signal()?;
    let readiness = Readiness::default();
    let parts = compose::Parts { config: Arc::new(config), readiness, registry: telemetry.registry(), drain };
    let played = match role {
        Role::Gateway => compose::gateway(parts).await,
        Role::Taskstore => compose::taskstore(parts).await,
        Role::Runner => compose::runner(parts).await,
        Role::Dev { data, .. } => dev::run(parts, &data).await,
        Role::Migrate => compose::migrate(parts).await,
        Role::Budget { what: BudgetVerb::Status } => budgets::status(parts).await,
        Role::Tasks { what: TasksVerb::Count } => compose::count(parts).await,
        Role::Credentials { what } => {
            let work =
                async |control| credentials::run(what, &control, &mut std::io::stdout(), &mut std::io::stderr()).await;
            operate(parts, work).await
        }
        Role::Switch { what } => {
            operate(parts, async |control| switch::run(what, &control, &mut std::io::stdout()).await).await
        }
        Role::Config { .. } | Role::Policy { .. } => Err(Wrong("this needs no runtime".into()).into()),
        Role::Audit { what } => tokio::select! {
            done = audit::run(what, parts.config, std::io::stdout()) => done,
            () = parts.drain.cancelled() => Err(anyhow::anyhow!("interrupted")),
        },
    };
    tokio::task::spawn_blocking(move || telemetry.stop()).await?;
    played
}

/// An operator's command, until it is done or interrupted.
async fn operate(
    parts: compose::Parts,
    work: impl AsyncFnOnce(ControlClient) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let control = compose::control(parts.config)?;
    tokio::select! {
        done = work(control) => done,
        () = parts.drain.cancelled() => anyhow::bail!("interrupted: what was said so far is done"),
    }
}
