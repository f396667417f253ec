//! The admission chain, as the config has it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use longhaul_bus::Bus;
use longhaul_core::{Caller, Principal, Target, TenantId};
use longhaul_policy::cedar::{Action, Policies, Tags};
use longhaul_policy::data::DataPolicies;
use longhaul_policy::guardrails::{self, Guardrails};
use longhaul_policy::rates::{Limits, Rate, Rates, RatesConfig};
use longhaul_policy::{Aim, Call, Checks, Source};
use longhaul_taskstore::SystemClock;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Wrong, hidden, secret};

/// `[rate_limits]`: written `60/m`, bursts of 60 and one more each second; the units are `s`, `m`, `h` and `d`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitsConfig {
    /// Calls of each caller.
    pub per_principal: Option<Rate>,
    /// Calls of all callers of a tenant together.
    pub per_tenant: Option<Rate>,
    /// Calls of a tool by its name, whoever calls it.
    pub per_tool: BTreeMap<String, Rate>,
    /// Calls of each caller that become tasks; they count as calls too.
    pub creates_per_principal: Option<Rate>,
    /// The same of all callers of a tenant together.
    pub creates_per_tenant: Option<Rate>,
    /// The same of a tool by its name.
    pub creates_per_tool: BTreeMap<String, Rate>,
    /// How often one task may be asked for (`tasks/get`, `tasks/result`); each gateway counts its share.
    pub polls_per_task: Option<Rate>,
}

/// `[tools.NAME]`: what is said of a tool, whatever worker offers it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolConfig {
    /// What policies may know it by: `resource.tags.contains("money")`.
    pub tags: Vec<String>,
    /// The scopes that a token needs to call it, beside those that every request needs.
    pub scopes: Vec<String>,
    /// Units that a call of it costs; 1 if it is not set.
    pub price_units: u64,
    /// Money that a call of it costs, in US dollars; 0 if it is not set.
    pub price_usd: f64,
}

impl Default for ToolConfig {
    fn default() -> Self {
        Self { tags: Vec::new(), scopes: Vec::new(), price_units: 1, price_usd: 0.0 }
    }
}

/// `[guardrails]`: what the arguments of a call may be; 0 is no limit.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardrailsConfig {
    /// The largest arguments, in bytes.
    pub max_arguments_bytes: usize,
    /// How deep they may nest.
    pub max_depth: usize,
    /// Members of all their objects together.
    pub max_keys: usize,
    /// The longest string in them, in bytes.
    pub max_string_bytes: usize,
    /// What no string in them may match, nor the name of a member: regular expressions that take linear time.
    pub deny_patterns: Vec<String>,
    /// An external judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookConfig>,
}

/// `[guardrails.webhook]`: asked about every call that the other checks let pass.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// Where it is asked, by POST.
    pub url: String,
    /// What is shown there, as a bearer token.
    #[serde(default, serialize_with = "hidden")]
    pub token: Option<SecretString>,
    /// A file with it.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// How long it may take, in milliseconds; 1000 by default.
    #[serde(default = "deadline_ms")]
    pub deadline_ms: u64,
    /// What becomes of a call that it could not judge: `closed`, the default, refuses it as unavailable, and `open` lets it pass.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Calls that it is asked about at a time; 64 by default. More wait within their deadline.
    #[serde(default = "max_concurrent")]
    pub max_concurrent: usize,
}

const fn deadline_ms() -> u64 {
    1000
}

const fn max_concurrent() -> usize {
    64
}

/// What becomes of a call that could not be judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It passes.
    Open,
    /// It does not.
    #[default]
    Closed,
}

/// The chain that the config describes.
pub(crate) fn checks(config: &Config, bus: &dyn Bus) -> Result<Checks, Wrong> {
    Ok(Checks {
        rates: rates(config, bus)?.map(Arc::new),
        // What allows everything need not be asked.
        policies: config.policy_dir.is_some().then(|| policies(config)).transpose()?.map(Arc::new),
        data: config.data_policies_file.as_deref().map(data_policies).transpose()?.map(Arc::new),
        guardrails: Some(Arc::new(guardrails(&config.guardrails)?)),
        ..Checks::default()
    })
}

fn rates(config: &Config, bus: &dyn Bus) -> Result<Option<Rates>, Wrong> {
    let limits = &config.rate_limits;
    if *limits == RateLimitsConfig::default() {
        return Ok(None);
    }
    let RateLimitsConfig { per_principal, per_tenant, per_tool, polls_per_task, .. } = limits.clone();
    let calls = Limits { per_principal, per_tenant, per_tool };
    let creates = Limits {
        per_principal: limits.creates_per_principal,
        per_tenant: limits.creates_per_tenant,
        per_tool: limits.creates_per_tool.clone(),
    };
    let rates = RatesConfig { calls, creates, polls_per_task, replicas: config.gateway.replicas };
    Rates::new(&rates, bus.quotas()).map(Some).map_err(|error| Wrong(format!("rate_limits: {error}")))
}

fn policies(config: &Config) -> Result<Policies, Wrong> {
    let tags: Tags = config.tools.iter().map(|(name, tool)| (name.clone(), tool.tags.clone())).collect();
    let clock = Arc::new(SystemClock);
    let policies = match &config.policy_dir {
        Some(folder) => Policies::read(folder, tags, clock),
        None => Policies::unset(&tags, clock),
    };
    policies.map_err(|error| Wrong(format!("policy_dir: {error}")))
}

fn data_policies(file: &Path) -> Result<DataPolicies, Wrong> {
    DataPolicies::read(file).map_err(|error| Wrong(format!("data_policies_file: {error}")))
}

fn guardrails(config: &GuardrailsConfig) -> Result<Guardrails, Wrong> {
    let webhook = config.webhook.as_ref().map(|webhook| {
        let token = secret("guardrails.webhook.token", webhook.token.as_ref(), webhook.token_file.as_deref())?;
        Ok(guardrails::WebhookConfig {
            url: webhook.url.clone(),
            token: token.map(|token| token.expose_secret().to_owned()),
            deadline: Duration::from_millis(webhook.deadline_ms),
            on_failure: match webhook.on_failure {
                OnFailure::Open => guardrails::Failing::Open,
                OnFailure::Closed => guardrails::Failing::Closed,
            },
            concurrency_max: webhook.max_concurrent,
        })
    });
    let config = guardrails::GuardrailsConfig {
        arguments_bytes_max: config.max_arguments_bytes,
        depth_max: config.max_depth,
        keys_max: config.max_keys,
        string_bytes_max: config.max_string_bytes,
        deny_patterns: config.deny_patterns.clone(),
        webhook: webhook.transpose()?,
    };
    Guardrails::new(config).map_err(|error| Wrong(format!("guardrails: {error}")))
}

/// Looks at the policies.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyVerb {
    /// Says whether the policies would allow something now, and which of them decide.
    Check(Question),
}

/// Who wants to do what.
#[derive(Debug, Args)]
pub(crate) struct Question {
    /// The caller's tenant.
    #[arg(long)]
    tenant: String,
    /// The agent that calls.
    #[arg(long, required_unless_present = "person", conflicts_with_all = ["app", "person"])]
    agent: Option<String>,
    /// The app in which a person calls.
    #[arg(long, requires = "person")]
    app: Option<String>,
    /// The person that calls.
    #[arg(long, requires = "app")]
    person: Option<String>,
    /// What is to be done: call_tool, create_task, get_prompt, read_resource, answer or cancel.
    #[arg(long, default_value = "call_tool")]
    action: String,
    /// The tool.
    #[arg(long, required_unless_present_any = ["prompt", "resource"])]
    tool: Option<String>,
    /// The prompt.
    #[arg(long, conflicts_with = "tool")]
    prompt: Option<String>,
    /// The resource, by its URI.
    #[arg(long, conflicts_with_all = ["tool", "prompt"])]
    resource: Option<String>,
    /// The JSON object of arguments; policies know its digest.
    #[arg(long, default_value = "{}")]
    arguments: String,
}

/// Plays `longhaul policy check`.
pub(crate) fn check(config: &Config, question: Question) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(explained(config, question)?.as_bytes())?)
}

fn explained(config: &Config, question: Question) -> Result<String, Wrong> {
    let Question { tenant, agent, app, person, action, tool, prompt, resource, arguments } = question;
    let named = Action::from_name(&action).ok_or_else(|| {
        let all = Action::ALL.map(Action::name).join(", ");
        Wrong(format!("--action {action}: there is {all}"))
    })?;
    let caller = match (agent, app, person) {
        (Some(agent), ..) => Caller::Agent(agent),
        (None, Some(app), Some(person)) => Caller::Person { app, person },
        _ => return Err(Wrong("name either --agent, or --app and --person".into())),
    };
    let target = match (tool, prompt, resource) {
        (Some(tool), ..) => Target::Tool(tool),
        (None, Some(prompt), _) => Target::Prompt(prompt),
        (None, None, Some(uri)) => Target::Resource(uri),
        (None, None, None) => return Err(Wrong("name a --tool, a --prompt or a --resource".into())),
    };
    let principal = Principal { tenant: TenantId::new(tenant.as_str()), caller };
    let arguments = Bytes::from(arguments);
    let call = Call { target: target.clone(), arguments, aim: Aim::Answer, source: Source::Client };
    let explained = policies(config)?.explain(named, &principal, &target, Some(&call)).map_err(Wrong)?;
    let mut said = String::from(if explained.allowed { "allow\n" } else { "deny\n" });
    for policy in &explained.policies {
        said += &format!("because of {policy}\n");
    }
    for error in &explained.errors {
        said += &format!("because it fails: {error}\n");
    }
    if !explained.allowed && explained.policies.is_empty() && explained.errors.is_empty() {
        said += "because no policy permits it\n";
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use longhaul_bus::{DeafBus, LocalBus};

    use super::*;
    use crate::config;

    fn read(text: &str) -> Result<Config, Wrong> {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), text).unwrap();
        config::read(Some(file.path()), [], &[], &[])
    }

    #[test]
    fn the_sections_of_the_chain_are_read_as_they_are_written() {
        let config = read(
            r#"
            [gateway]
            replicas = 3
            [rate_limits]
            per_principal = "60/m"
            creates_per_tenant = "5/h"
            [rate_limits.per_tool]
            "Files.read" = "10/s"
            [tools."Files.read"]
            tags = ["files"]
            [guardrails]
            max_depth = 8
            [guardrails.webhook]
            url = "https://judge.example/"
            token = "secret"
            "#,
        )
        .unwrap();
        assert_eq!(config.rate_limits.per_tool["Files.read"].to_string(), "10/s");
        assert_eq!(config.tools["Files.read"].tags, ["files"]);
        let webhook = config.guardrails.webhook.as_ref().unwrap();
        assert_eq!((webhook.deadline_ms, webhook.max_concurrent), (1000, 64));
        assert_eq!(webhook.on_failure, OnFailure::Closed);
        assert!(!toml::to_string(&config).unwrap().contains("secret"));
        checks(&config, &LocalBus::new()).unwrap();
        checks(&Config::default(), &DeafBus::new()).unwrap();
    }

    #[test]
    fn what_cannot_be_is_named_by_its_key() {
        for (text, key) in [
            ("policy_dir = \"no/such/folder\"", "policy_dir"),
            ("data_policies_file = \"no/such/file\"", "data_policies_file"),
            ("[rate_limits]\nper_tenant = \"often\"", "often"),
            ("[rate_limits]\nper_tenant = \"1/d\"", "1/d"),
            ("[gateway]\nreplicas = 0", "gateway.replicas"),
            ("[guardrails]\ndeny_patterns = [\"(\"]", "guardrails"),
            ("[guardrails.webhook]\nurl = \"nowhere\"", "guardrails"),
            ("[guardrails.webhook]\nurl = \"http://x/\"\ntoken_file = \"no/such\"", "guardrails.webhook.token_file"),
            (
                "[guardrails.webhook]\nurl = \"http://x/\"\ntoken_file = \"a\"\ntoken = \"b\"",
                "guardrails.webhook.token",
            ),
        ] {
            let wrong =
                read(text).and_then(|config| checks(&config, &DeafBus::new()).map(drop)).unwrap_err().to_string();
            assert!(wrong.contains(key), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_decision_is_explained_by_the_policies_that_make_it() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            question: Question,
        }
        let folder = tempfile::tempdir().unwrap();
        let rules = r#"@id("bots") permit (principal in Tenant::"acme", action, resource is Tool);
            forbid (principal, action, resource is Tool) when { resource.tags.contains("money") };"#;
        std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
        let tags = vec!["money".to_owned()];
        let config = Config {
            policy_dir: Some(folder.path().to_owned()),
            tools: [("pay".to_owned(), ToolConfig { tags, ..ToolConfig::default() })].into(),
            ..Config::default()
        };
        let ask = |words: &str| {
            let words = ["check"].into_iter().chain(words.split(' '));
            explained(&config, Words::try_parse_from(words).map_err(|error| Wrong(error.to_string()))?.question)
        };
        for (words, said) in [
            ("--tenant acme --agent a --tool echo", "allow\nbecause of bots\n"),
            ("--tenant acme --app chat --person ann --tool echo --action answer", "allow\nbecause of bots\n"),
            ("--tenant acme --agent a --tool pay", "deny\nbecause of rules.cedar#2\n"),
            ("--tenant evil --agent a --tool echo", "deny\nbecause no policy permits it\n"),
            ("--tenant acme --agent a --prompt p --action get_prompt", "deny\nbecause no policy permits it\n"),
        ] {
            assert_eq!(ask(words).unwrap(), said, "{words}");
        }
        for words in
            ["--tenant acme --tool echo", "--tenant acme --agent a", "--tenant a --agent a --tool x --action fly"]
        {
            assert!(ask(words).is_err(), "{words}");
        }
    }
}
