//! Config: defaults < file < `LONGHAUL_*` < flags. Unknown keys are refused; every secret has a `_file` twin.
//!
//! Names are `LONGHAUL_` and the key in capitals, with `__` between a table and its key:
//! `LONGHAUL_GATEWAY__LISTEN`. docs/CONFIG.md is made from this file by a test.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use longhaul_core::TtlLimits;
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use longhaul_runner::{AgentConfig, ProviderConfig, UpstreamConfig};
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};

use crate::admission::{GuardrailsConfig, RateLimitsConfig, ToolConfig};
use crate::budgets::BudgetConfig;
use crate::callers::IssuerConfig;
use crate::services::{ServiceTokensConfig, TlsConfig};

/// The environment variable that names the config file.
pub const FILE_VARIABLE: &str = "LONGHAUL_CONFIG";
/// What the names of our variables begin with.
const PREFIX: &str = "LONGHAUL_";
/// Variables of the tests' own; no keys.
const TEST_VARIABLES: &str = "LONGHAUL_TEST_";

/// Everything that can be set.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whether calls may become tasks at all. Off, `params.task` is ignored and `tasks/*` are unknown methods.
    pub mcp_tasks_enabled: bool,
    /// Whether tasks are offered to MCP 2025-11-25 clients.
    pub mcp_tasks_legacy_enabled: bool,
    /// Whether tasks are offered to MCP 2026-07-28 clients (the extension `io.modelcontextprotocol/tasks`).
    pub mcp_tasks_extension_enabled: bool,
    /// How long a `tasks/result` without a stream waits, in seconds.
    pub mcp_task_result_wait_s: u64,
    /// How long an answer to a question is waited for, in seconds; then it counts as declined.
    pub mcp_task_input_timeout_s: u64,
    /// How long a task is kept when its client does not say, in milliseconds; 0 is for ever, if the cap is 0 too.
    pub mcp_task_default_ttl_ms: u64,
    /// The least that a task is kept, in milliseconds: clients' libraries ask for a minute by default.
    pub mcp_task_min_ttl_ms: u64,
    /// The most that a task is kept, in milliseconds; 0 is no cap.
    pub mcp_task_max_ttl_ms: u64,
    /// How often clients are asked to poll, in milliseconds.
    pub mcp_task_poll_interval_ms: u64,
    /// Open tasks of one caller; 0 is no limit.
    pub mcp_task_max_open: u32,
    /// Open tasks of one tenant; 0 is no limit.
    pub mcp_task_max_live: u32,
    /// The largest stored result, in bytes; a larger one ends its task as failed.
    pub task_max_result_bytes: usize,
    /// How often a worker renews its leases, in milliseconds. A lease lasts three times as long.
    pub task_heartbeat_ms: u64,
    /// How long audit rows are kept, in days; 0 is for ever. In Postgres they go month by month, each once all of it is older.
    pub audit_retention_days: u32,
    /// Keys of gateways and task-stores that seal session ids, cursors and answers: one base64 of 32 bytes a line, the present one first.
    pub seal_keys_file: Option<PathBuf>,
    /// What the roles show one another; at least 16 characters.
    #[serde(serialize_with = "hidden")]
    pub service_token: Option<SecretString>,
    /// A file with it: one token a line, the present one first, the others still accepted.
    pub service_token_file: Option<PathBuf>,
    /// Tokens of single roles, in place of the one of all.
    pub service_tokens: ServiceTokensConfig,
    /// Mutual TLS between the roles.
    pub tls: TlsConfig,
    /// Where gateways and workers find the task-store. Given twice, an address gets two connections.
    pub taskstore_urls: Vec<String>,
    /// Redis, for hints between replicas; without it they stay in the process, and replicas re-read every 2 s.
    #[serde(serialize_with = "hidden")]
    pub redis_url: Option<SecretString>,
    /// A file with it.
    pub redis_url_file: Option<PathBuf>,
    /// What the names of this installation's Redis channels begin with.
    pub redis_prefix: String,
    /// Probes and metrics.
    pub management_listen: SocketAddr,
    /// What to log, as `RUST_LOG` would say it.
    pub log: String,
    /// `json`, or `pretty` for people.
    pub log_format: LogFormat,
    /// How long a gateway or task-store still serves after SIGTERM before it stops accepting, in milliseconds.
    pub drain_notice_ms: u64,
    /// When a draining gateway or task-store gives up waiting, in seconds.
    pub drain_deadline_s: u64,
    /// A folder with Cedar policies (`*.cedar`), entities (`entities.json`) and more of a schema (`*.cedarschema`): who may do what. Without it whoever has a credential may do everything.
    pub policy_dir: Option<PathBuf>,
    /// Which data may pass in arguments and results (TOML).
    pub data_policies_file: Option<PathBuf>,
    /// What is decided about single tools, by the tools' names.
    pub tools: BTreeMap<String, ToolConfig>,
    /// How often.
    pub rate_limits: RateLimitsConfig,
    /// Which shape a call may have.
    pub guardrails: GuardrailsConfig,
    /// The `/mcp` endpoint.
    pub gateway: GatewayConfig,
    /// The task-store.
    pub taskstore: TaskstoreConfig,
    /// The agent-runner.
    pub runner: RunnerConfig,
    /// What there is to spend.
    pub budgets: Vec<BudgetConfig>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

/// `[gateway]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// Where `/mcp` listens.
    pub listen: SocketAddr,
    /// Values of `Origin` that browsers may send, like `https://app.example`; a request without one is fine. Their pages are
    /// told so (CORS); if it is empty, no page is told anything.
    pub allowed_origins: Vec<String>,
    /// Values of `Host`; empty means any, unless `listen` is loopback: then only loopback names.
    pub allowed_hosts: Vec<String>,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// How often a quiet stream gets a comment, in seconds.
    pub sse_keepalive_s: u64,
    /// Tools on one page of `tools/list`.
    pub tools_page: usize,
    /// How long a new task of a 2026-07-28 caller is waited for before the caller is given its handle, in milliseconds: one
    /// that ends in time is answered plainly. 0 is off.
    pub task_shortcut_ms: u64,
    /// The most gateways that run at a time, and runners whose tools call other tools: they share the rate limits.
    pub replicas: u32,
    /// Who may call, besides those that have a credential in the task-store.
    pub credentials: Vec<CredentialConfig>,
    /// Where clients reach the gateway, without `/mcp`; needed for issuers: their tokens are made for this server alone.
    pub public_url: Option<String>,
    /// Who vouches for callers.
    pub issuers: Vec<IssuerConfig>,
}

/// `[[gateway.credentials]]`: a bearer key and whose it is; either `agent`, or `app` and `person`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialConfig {
    /// The SHA-256 of the key, in hex: `printf %s KEY | sha256sum`.
    pub sha256: String,
    /// Its tenant.
    pub tenant: String,
    /// The agent credential's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// The person signed in to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
}

/// `[taskstore]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskstoreConfig {
    /// Where gateways and workers reach it.
    pub listen: SocketAddr,
    /// `postgres://…`, or `sqlite:FILE` for a laptop.
    #[serde(serialize_with = "hidden")]
    pub database_url: Option<SecretString>,
    /// A file with it.
    pub database_url_file: Option<PathBuf>,
    /// Connections of this replica.
    pub database_max_connections: u32,
    /// Serve even if Postgres may lose what it acknowledged (fsync or synchronous_commit off): for throwaway data.
    pub allow_unsafe_durability: bool,
}

/// `[runner]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunnerConfig {
    /// Stable across restarts and unlike any other worker's: then a restarted worker's tasks are interrupted at once.
    pub name: Option<String>,
    /// Where gateways reach it for calls that are not tasks.
    pub worker_listen: SocketAddr,
    /// The URL that gateways are told; without it, `http://` (`https://` with `[tls]`) and `worker_listen`.
    pub worker_advertise_url: Option<String>,
    /// Tasks at a time.
    pub slots: u32,
    /// Calls that are not tasks at a time; more are refused.
    pub calls_max: u32,
    /// How long running tasks may go on after SIGTERM, in seconds.
    pub drain_timeout_s: u64,
    /// Offer the tools `echo`, `countdown`, `ask`, `fail` and `panic`, a prompt and a resource to try.
    pub demo_tools: bool,
    /// Upstream MCP servers to wrap.
    pub upstreams: Vec<UpstreamConfig>,
    /// Who runs the models of its agents.
    pub providers: Vec<ProviderConfig>,
    /// Its agents, for `ask_agent`.
    pub agents: Vec<AgentConfig>,
}

impl Default for Config {
    fn default() -> Self {
        let ttl = TtlLimits::default();
        Self {
            mcp_tasks_enabled: true,
            mcp_tasks_legacy_enabled: true,
            mcp_tasks_extension_enabled: true,
            mcp_task_result_wait_s: 30,
            mcp_task_input_timeout_s: 600,
            mcp_task_default_ttl_ms: ttl.default_ms,
            mcp_task_min_ttl_ms: ttl.min_ms,
            mcp_task_max_ttl_ms: ttl.max_ms,
            mcp_task_poll_interval_ms: 1000,
            mcp_task_max_open: 20,
            mcp_task_max_live: 1000,
            task_max_result_bytes: PAYLOAD_BYTES_MAX,
            task_heartbeat_ms: 10_000,
            audit_retention_days: 400,
            seal_keys_file: None,
            service_token: None,
            service_token_file: None,
            service_tokens: ServiceTokensConfig::default(),
            tls: TlsConfig::default(),
            taskstore_urls: vec!["http://127.0.0.1:50051".into()],
            redis_url: None,
            redis_url_file: None,
            redis_prefix: "longhaul".into(),
            management_listen: SocketAddr::from(([0, 0, 0, 0], 9090)),
            log: "info".into(),
            log_format: LogFormat::Json,
            drain_notice_ms: 5000,
            drain_deadline_s: 25,
            policy_dir: None,
            data_policies_file: None,
            tools: BTreeMap::new(),
            rate_limits: RateLimitsConfig::default(),
            guardrails: GuardrailsConfig::default(),
            gateway: GatewayConfig::default(),
            taskstore: TaskstoreConfig::default(),
            runner: RunnerConfig::default(),
            budgets: Vec::new(),
        }
    }
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 8080)),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_body_bytes: PAYLOAD_BYTES_MAX,
            sse_keepalive_s: 15,
            tools_page: 100,
            task_shortcut_ms: 0,
            replicas: 2,
            credentials: Vec::new(),
            public_url: None,
            issuers: Vec::new(),
        }
    }
}

impl Default for TaskstoreConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 50051)),
            database_url: None,
            database_url_file: None,
            database_max_connections: 12,
            allow_unsafe_durability: false,
        }
    }
}

impl Default for RunnerConfig {
    fn default() -> Self {
        Self {
            name: None,
            worker_listen: SocketAddr::from(([0, 0, 0, 0], 50052)),
            worker_advertise_url: None,
            slots: 8,
            calls_max: 256,
            drain_timeout_s: 600,
            demo_tools: false,
            upstreams: Vec::new(),
            providers: Vec::new(),
            agents: Vec::new(),
        }
    }
}

/// What is printed in place of a secret.
const HIDDEN: &str = "[hidden]";

pub(crate) fn hidden<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| HIDDEN).serialize(serializer)
}

/// Something is wrong with the config; the process ends with exit code 64.
#[derive(Debug, thiserror::Error)]
#[error("config: {0}")]
pub struct Wrong(pub String);

/// The process's variables as text. Foreign ones that are none are nobody's here; one of ours is refused.
pub fn environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, Wrong> {
    let text = |(name, value): (OsString, OsString)| match (name.into_string(), value.into_string()) {
        (Ok(name), Ok(value)) => Some(Ok((name, value))),
        // Its value may be a secret.
        (Ok(name), Err(_)) if name.starts_with(PREFIX) => Some(Err(Wrong(format!("{name} is not UTF-8")))),
        (Err(name), _) if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) => {
            Some(Err(Wrong(format!("the name of the variable {name:?} is not UTF-8"))))
        }
        _ => None,
    };
    variables.into_iter().filter_map(text).collect()
}

/// Reads the config from `file`, the process's `environment` and `flags` of the form `key=value`, over the role's own
/// `defaults`.
pub fn read(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: &[String],
    defaults: &[(&'static str, String)],
) -> Result<Config, Wrong> {
    let wrong = |error: config::ConfigError| Wrong(error.to_string());
    let environment: Vec<(String, String)> = environment.into_iter().collect();
    let named = environment.iter().find(|(name, _)| name == FILE_VARIABLE).map(|(_, value)| PathBuf::from(value));
    let mut builder = config::Config::builder();
    for (key, value) in defaults {
        builder = builder.set_default(*key, plain(value)).map_err(wrong)?;
    }
    if let Some(file) = file.map(Path::to_owned).or(named) {
        builder = builder.add_source(config::File::from(file).format(config::FileFormat::Toml));
    }
    for (name, value) in &environment {
        let Some(key) = name.strip_prefix(PREFIX) else { continue };
        if name != FILE_VARIABLE && !name.starts_with(TEST_VARIABLES) {
            let key = key.to_lowercase().replace("__", ".");
            builder = builder.set_override(key, plain(value)).map_err(wrong)?;
        }
    }
    for flag in flags {
        let (key, value) = flag.split_once('=').ok_or_else(|| Wrong(format!("--set takes KEY=VALUE, not {flag:?}")))?;
        builder = builder.set_override(key, plain(value)).map_err(wrong)?;
    }
    let config: Config = builder.build().and_then(config::Config::try_deserialize).map_err(wrong)?;
    config.check()?;
    Ok(config)
}

/// A variable or a flag is text, but what is written `[a, b]` is a list.
fn plain(value: &str) -> config::Value {
    match value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some("") => config::Value::from(Vec::<String>::new()),
        Some(items) => config::Value::from(
            items.split(',').map(|item| item.trim().trim_matches('"').to_owned()).collect::<Vec<_>>(),
        ),
        None => config::Value::from(value),
    }
}

impl Config {
    /// What serde cannot see.
    fn check(&self) -> Result<(), Wrong> {
        let both = [
            ("service_token", self.service_token.is_some() && self.service_token_file.is_some()),
            ("redis_url", self.redis_url.is_some() && self.redis_url_file.is_some()),
            (
                "taskstore.database_url",
                self.taskstore.database_url.is_some() && self.taskstore.database_url_file.is_some(),
            ),
            (
                "guardrails.webhook.token",
                self.guardrails
                    .webhook
                    .as_ref()
                    .is_some_and(|webhook| webhook.token.is_some() && webhook.token_file.is_some()),
            ),
        ];
        if let Some((key, _)) = both.iter().find(|(_, both)| *both) {
            return Err(Wrong(format!("{key} and {key}_file are both set: keep one")));
        }
        let zero = [
            ("task_heartbeat_ms", self.task_heartbeat_ms == 0),
            ("task_max_result_bytes", self.task_max_result_bytes == 0),
            ("mcp_task_poll_interval_ms", self.mcp_task_poll_interval_ms == 0),
            ("mcp_task_input_timeout_s", self.mcp_task_input_timeout_s == 0),
            ("gateway.max_body_bytes", self.gateway.max_body_bytes == 0),
            ("gateway.sse_keepalive_s", self.gateway.sse_keepalive_s == 0),
            ("gateway.tools_page", self.gateway.tools_page == 0),
            ("gateway.replicas", self.gateway.replicas == 0),
            ("runner.slots", self.runner.slots == 0),
            ("runner.calls_max", self.runner.calls_max == 0),
            ("taskstore.database_max_connections", self.taskstore.database_max_connections == 0),
        ];
        if let Some((key, _)) = zero.iter().find(|(_, zero)| *zero) {
            return Err(Wrong(format!("{key} must be above 0")));
        }
        if self.mcp_task_default_ttl_ms == 0 && self.mcp_task_max_ttl_ms != 0 {
            return Err(Wrong("mcp_task_default_ttl_ms = 0 (for ever) needs mcp_task_max_ttl_ms = 0 (no cap)".into()));
        }
        self.budget_rules()?;
        let retention_ms = u64::from(self.audit_retention_days) * 24 * 3600 * 1000;
        if retention_ms > 0 && self.mcp_task_max_ttl_ms > retention_ms {
            return Err(Wrong(
                "audit_retention_days is shorter than mcp_task_max_ttl_ms: a task would outlive its audit rows".into(),
            ));
        }
        let mut names = BTreeMap::new();
        for upstream in &self.runner.upstreams {
            if names.insert(&upstream.name, ()).is_some() {
                return Err(Wrong(format!("runner.upstreams: two are called {:?}", upstream.name)));
            }
        }
        Ok(())
    }

    /// The bounds on a task's time to live.
    pub fn ttl(&self) -> TtlLimits {
        TtlLimits {
            default_ms: self.mcp_task_default_ttl_ms,
            min_ms: self.mcp_task_min_ttl_ms,
            max_ms: self.mcp_task_max_ttl_ms,
        }
    }
}

/// The secret of a setting: its own value, or what its file holds, without the line's end.
pub fn secret(key: &str, value: Option<&SecretString>, file: Option<&Path>) -> Result<Option<SecretString>, Wrong> {
    match (value, file) {
        (Some(value), _) => Ok(Some(value.clone())),
        (None, None) => Ok(None),
        (None, Some(file)) => std::fs::read_to_string(file)
            .map(|text| Some(text.trim_end_matches(['\r', '\n']).into()))
            .map_err(|error| Wrong(format!("{key}_file: {}: {error}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn flags_win_over_the_environment_over_the_file_over_defaults() {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(
            file.path(),
            "mcp_task_max_open = 1\nmcp_task_max_live = 1\nlog = \"warn\"\n[gateway]\nallowed_origins = [\"https://a.example\"]\n",
        )
        .unwrap();
        let variables = env(&[
            ("LONGHAUL_MCP_TASK_MAX_OPEN", "2"),
            ("LONGHAUL_MCP_TASK_MAX_LIVE", "2"),
            ("LONGHAUL_GATEWAY__LISTEN", "127.0.0.1:1"),
            ("LONGHAUL_TASKSTORE_URLS", "[http://a:1, http://b:2]"),
            ("LONGHAUL_TEST_POSTGRES", "ignored"),
            ("PATH", "/bin"),
        ]);
        let config = read(
            Some(file.path()),
            variables,
            &["mcp_task_max_open=3".into()],
            &[("log", "debug".into()), ("redis_prefix", "dev".into())],
        )
        .unwrap();
        assert_eq!(config.mcp_task_max_open, 3);
        assert_eq!(config.mcp_task_max_live, 2);
        assert_eq!(config.log, "warn");
        assert_eq!(config.gateway.listen.to_string(), "127.0.0.1:1");
        assert_eq!(config.gateway.allowed_origins, ["https://a.example"]);
        assert_eq!(config.taskstore_urls, ["http://a:1", "http://b:2"]);
        assert_eq!(config.redis_prefix, "dev");
        assert_eq!(config.mcp_task_result_wait_s, 30);
    }

    #[test]
    fn an_unknown_key_is_refused_by_its_name() {
        for (variables, flags, name) in [
            (env(&[("LONGHAUL_MCP_TASK_MAX_OPNE", "1")]), vec![], "mcp_task_max_opne"),
            (env(&[("LONGHAUL_GATEWAY__LISTNE", "x")]), vec![], "listne"),
            (env(&[]), vec!["runner.slotz=1".to_owned()], "slotz"),
        ] {
            let error = read(None, variables, &flags, &[]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for flag in [
            "task_heartbeat_ms=0",
            "runner.calls_max=0",
            "mcp_task_default_ttl_ms=0",
            "audit_retention_days=0.5",
            "mcp_task_max_ttl_ms=34560000001",
            "mcp_task_max_open=-1",
            "mcp_task_max_open=many",
            "gateway.listen=nowhere",
            "log_format=xml",
            "no-value",
        ] {
            assert!(read(None, env(&[]), &[flag.to_owned()], &[]).is_err(), "{flag}");
        }
        let both = ["redis_url=redis://x".to_owned(), "redis_url_file=/x".to_owned()];
        assert!(read(None, env(&[]), &both, &[]).unwrap_err().to_string().contains("redis_url_file"));
    }

    #[test]
    fn a_secret_is_never_printed() {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        let upstreams = r#"
            [[runner.upstreams]]
            name = "a"
            command = ["server", "--token=canary", "canary"]
            [[runner.upstreams]]
            name = "b"
            url = "https://canary:canary@host.example/mcp?key=canary#canary"
        "#;
        std::fs::write(file.path(), upstreams).unwrap();
        let variables = env(&[("LONGHAUL_REDIS_URL", "redis://:canary@x/")]);
        let config = read(Some(file.path()), variables, &[], &[]).unwrap();
        assert_eq!(config.redis_url.as_ref().unwrap().expose_secret(), "redis://:canary@x/");
        let toml = toml::to_string(&config).unwrap();
        let printed = format!("{config:?}{}{toml}", serde_json::to_string(&config).unwrap());
        assert!(!printed.contains("canary"), "{printed}");
        for shown in ["[\"server\", \"[hidden]\", \"[hidden]\"]", "https://[hidden]@host.example/mcp?[hidden]"] {
            assert!(toml.contains(shown), "{shown}: {toml}");
        }
    }

    #[test]
    fn a_variable_that_is_not_text_is_refused_if_it_is_ours_and_ignored_if_not() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = |start: &str| OsString::from_vec([start.as_bytes(), b"canary\xff"].concat());
        let all = [("A".into(), odd("")), (odd("B"), "b".into()), ("LONGHAUL_LOG".into(), "info".into())];
        assert_eq!(environment(all).unwrap(), env(&[("LONGHAUL_LOG", "info")]));
        let refused = environment([("LONGHAUL_SERVICE_TOKEN".into(), odd(""))]).unwrap_err().to_string();
        assert!(refused.contains("LONGHAUL_SERVICE_TOKEN") && !refused.contains("canary"), "{refused}");
        assert!(environment([(odd("LONGHAUL_"), "x".into())]).is_err());
    }
}
