//! Which agents and providers there are, as the operator writes them, and what is wrong with them.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// Agents of one runner.
pub const AGENTS_MAX: usize = 64;
/// Providers of one runner.
const PROVIDERS_MAX: usize = 16;
/// The longest name of an agent or a provider.
const NAME_BYTES_MAX: usize = 64;
/// The longest system prompt, in bytes.
const SYSTEM_BYTES_MAX: usize = 64 * 1024;
/// The largest key file, in bytes.
const KEY_BYTES_MAX: usize = 4096;

/// Somebody who runs models, over HTTP. Written out, it hides its key.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// What agents call it.
    pub name: String,
    /// The format it speaks: `openai` (Chat Completions) or `anthropic` (Messages).
    pub speaks: Speech,
    /// Where its API is, up to and without `/chat/completions` or `/v1/messages`; its maker's, unless said.
    #[serde(default)]
    pub base_url: Option<String>,
    /// Its key.
    #[serde(default, serialize_with = "hide")]
    pub api_key: Option<SecretString>,
    /// A file with its key, read again for each request.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// What it calls the largest answer: `max_completion_tokens`, the default, or `max_tokens` for older servers. With `openai` only.
    #[serde(default = "tokens_key")]
    pub tokens_key: String,
}

/// The format a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Speech {
    /// OpenAI's Chat Completions.
    Openai,
    /// Anthropic's Messages.
    Anthropic,
}

/// An agent.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// What callers call it.
    pub name: String,
    /// What it does, for callers.
    pub description: String,
    /// Who runs its model: the name of a provider, or `scripted` for the demo, which has no model.
    pub provider: String,
    /// The model, as the provider calls it.
    #[serde(default)]
    pub model: String,
    /// What it is told before anything else.
    #[serde(default)]
    pub system: String,
    /// A file with the same.
    #[serde(default)]
    pub system_file: Option<PathBuf>,
    /// The tools it may use, by their names here; `*` stands for anything. None, unless said.
    #[serde(default)]
    pub tools: Vec<String>,
    /// How often it may ask its model in a run (50).
    #[serde(default = "max_steps")]
    pub max_steps: u32,
    /// How long a run may work, in seconds, without the time that it waits for people (3600).
    #[serde(default = "max_time_s")]
    pub max_time_s: u64,
    /// Tokens of all its steps together, in and out (1,000,000).
    #[serde(default = "max_tokens")]
    pub max_tokens: u64,
    /// What a run may cost, in USD, by `prices`; 0, the default, is no limit.
    #[serde(default)]
    pub max_usd: f64,
    /// Tokens of one answer of its model (4096).
    #[serde(default = "max_answer_tokens")]
    pub max_answer_tokens: u64,
    /// The largest answer to its caller, in bytes (262,144): the rest is cut off.
    #[serde(default = "max_output_bytes")]
    pub max_output_bytes: usize,
    /// How often its tasks are handed out at most (3).
    #[serde(default = "max_attempts")]
    pub max_attempts: u32,
    /// What its provider charges.
    #[serde(default)]
    pub prices: Prices,
}

/// USD for a million tokens of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// Read anew.
    pub input: f64,
    /// Read from the provider's cache.
    pub cached: f64,
    /// Written to the provider's cache.
    pub cache_written: f64,
    /// Written by the model.
    pub output: f64,
}

fn tokens_key() -> String {
    "max_completion_tokens".into()
}

fn max_steps() -> u32 {
    50
}

fn max_time_s() -> u64 {
    3600
}

fn max_tokens() -> u64 {
    1_000_000
}

fn max_answer_tokens() -> u64 {
    4096
}

fn max_output_bytes() -> usize {
    256 * 1024
}

fn max_attempts() -> u32 {
    3
}

fn hide<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(_) => serializer.serialize_some("[hidden]"),
        None => serializer.serialize_none(),
    }
}

/// Where a provider's key is.
pub(super) enum Key {
    Given(SecretString),
    File(PathBuf),
}

impl Key {
    /// The key, as it is now.
    pub(super) fn read(&self) -> Result<SecretString, String> {
        match self {
            Self::Given(key) => Ok(key.clone()),
            Self::File(path) => {
                let unreadable = |why: &str| format!("api_key_file: {why}");
                let size = std::fs::metadata(path).map_err(|error| unreadable(&error.kind().to_string()))?.len();
                if size > KEY_BYTES_MAX as u64 {
                    return Err(unreadable("it is too large for a key"));
                }
                let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error.kind().to_string()))?;
                Ok(SecretString::from(text.trim()))
            }
        }
    }
}

impl ProviderConfig {
    /// Where a turn is asked for.
    pub(super) fn url(&self) -> Result<reqwest::Url, String> {
        let (base, path) = match self.speaks {
            Speech::Openai => ("https://api.openai.com/v1", "chat/completions"),
            Speech::Anthropic => ("https://api.anthropic.com", "v1/messages"),
        };
        let base = self.base_url.as_deref().unwrap_or(base).trim_end_matches('/');
        let url = reqwest::Url::parse(&format!("{base}/{path}")).map_err(|error| format!("base_url: {error}"))?;
        match matches!(url.scheme(), "http" | "https") && url.has_host() {
            true => Ok(url),
            false => Err("base_url: must begin with http:// or https://".into()),
        }
    }

    pub(super) fn key(&self) -> Result<Option<Key>, String> {
        match (&self.api_key, &self.api_key_file) {
            (None, None) => Ok(None),
            (Some(key), None) if key.expose_secret().is_empty() => Err("api_key: is empty".into()),
            (Some(key), None) => Ok(Some(Key::Given(key.clone()))),
            (None, Some(path)) => {
                let key = Key::File(path.clone());
                key.read().map(|_| Some(key))
            }
            (Some(_), Some(_)) => Err("api_key, api_key_file: only one of them".into()),
        }
    }
}

impl AgentConfig {
    /// An agent with the usual limits.
    pub fn new(name: &str, description: &str, provider: &str) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            provider: provider.into(),
            model: String::new(),
            system: String::new(),
            system_file: None,
            tools: Vec::new(),
            max_steps: max_steps(),
            max_time_s: max_time_s(),
            max_tokens: max_tokens(),
            max_usd: 0.0,
            max_answer_tokens: max_answer_tokens(),
            max_output_bytes: max_output_bytes(),
            max_attempts: max_attempts(),
            prices: Prices::default(),
        }
    }

    /// What it is told first.
    pub(super) fn instructions(&self) -> Result<String, String> {
        let text = match &self.system_file {
            None => self.system.clone(),
            Some(_) if !self.system.is_empty() => return Err("system, system_file: only one of them".into()),
            Some(path) => std::fs::read_to_string(path).map_err(|error| format!("system_file: {}", error.kind()))?,
        };
        match text.len() > SYSTEM_BYTES_MAX {
            true => Err(format!("system: more than {SYSTEM_BYTES_MAX} bytes")),
            false => Ok(text),
        }
    }

    pub(super) fn max_time(&self) -> Duration {
        Duration::from_secs(self.max_time_s)
    }

    fn check(&self) -> Result<(), String> {
        let prices = [self.prices.input, self.prices.cached, self.prices.cache_written, self.prices.output];
        if !self.max_usd.is_finite() || self.max_usd < 0.0 || prices.iter().any(|it| !it.is_finite() || *it < 0.0) {
            return Err("max_usd, prices: must be 0 or more".into());
        }
        if self.max_usd > 0.0 && prices.iter().all(|it| *it == 0.0) {
            return Err("max_usd: needs prices".into());
        }
        let at_least_one = [
            ("max_steps", self.max_steps.into()),
            ("max_time_s", self.max_time_s),
            ("max_tokens", self.max_tokens),
            ("max_answer_tokens", self.max_answer_tokens),
            ("max_output_bytes", self.max_output_bytes as u64),
            ("max_attempts", self.max_attempts.into()),
        ];
        match at_least_one.into_iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(format!("{key}: must be 1 or more")),
            None => Ok(()),
        }
    }
}

/// What is wrong with the config; names the agent or the provider, and the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("runner.{list}: {name}: {what}")]
pub struct AgentConfigError {
    list: &'static str,
    name: String,
    what: String,
}

impl AgentConfigError {
    pub(super) fn agent(name: &str, what: String) -> Self {
        Self { list: "agents", name: name.into(), what }
    }

    pub(super) fn provider(name: &str, what: String) -> Self {
        Self { list: "providers", name: name.into(), what }
    }
}

/// Checks what each entry says and what they say together.
pub(super) fn check(providers: &[ProviderConfig], agents: &[AgentConfig]) -> Result<(), AgentConfigError> {
    let plain = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
    };
    let what = format!("name: must be 1 to {NAME_BYTES_MAX} characters of [A-Za-z0-9_.-]");
    if providers.len() > PROVIDERS_MAX {
        return Err(AgentConfigError::provider("all", format!("more than {PROVIDERS_MAX}")));
    }
    if agents.len() > AGENTS_MAX {
        return Err(AgentConfigError::agent("all", format!("more than {AGENTS_MAX}")));
    }
    let mut names = HashSet::from([SCRIPTED]);
    for provider in providers {
        let wrong = |what: String| Err(AgentConfigError::provider(&provider.name, what));
        if !plain(&provider.name) {
            return wrong(what);
        }
        if !names.insert(&provider.name) {
            return wrong("name: used twice".into());
        }
    }
    let mut own = BTreeMap::new();
    for agent in agents {
        let wrong = |what: String| Err(AgentConfigError::agent(&agent.name, what));
        if !plain(&agent.name) {
            return wrong(what);
        }
        if own.insert(&agent.name, ()).is_some() {
            return wrong("name: used twice".into());
        }
        if !names.contains(&*agent.provider) {
            return wrong(format!("provider: there is none called {:?} in runner.providers", agent.provider));
        }
        if agent.provider != SCRIPTED && agent.model.is_empty() {
            return wrong("model: is missing".into());
        }
        if let Err(what) = agent.check() {
            return wrong(what);
        }
    }
    Ok(())
}

/// The provider that has no model.
pub const SCRIPTED: &str = "scripted";

/// The agent that `longhaul dev` has without any in the config, and the provider to add for it. It has a real model if the
/// config has a provider or `variable` gives a key (`OPENAI_API_KEY`, `ANTHROPIC_API_KEY`), else a script; the model is
/// `LONGHAUL_DEMO_MODEL`, or a small one.
pub fn demo(
    providers: &[ProviderConfig],
    variable: impl Fn(&str) -> Option<OsString>,
) -> (Option<ProviderConfig>, AgentConfig) {
    let text = |name: &str| variable(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty());
    let keys = [
        (Speech::Openai, "openai", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
        (Speech::Anthropic, "anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    ];
    let found = keys.into_iter().find_map(|(speaks, name, key, base)| {
        let api_key = Some(SecretString::from(text(key)?));
        let (name, base_url) = (name.to_owned(), text(base));
        Some(ProviderConfig { name, speaks, base_url, api_key, api_key_file: None, tokens_key: tokens_key() })
    });
    let new = if providers.is_empty() { found } else { None };
    let about = "Counts down, asks its caller something, and tells what came of it.";
    let mut agent = AgentConfig::new("demo", about, SCRIPTED);
    agent.tools = ["countdown", "ask", "echo"].map(str::to_owned).into();
    agent.max_steps = 10;
    agent.system = "You are the demo agent of Longhaul. Use the tools you have: count down three seconds, ask your \
                    caller what they want to know, and answer in two sentences."
        .into();
    if let Some(provider) = new.as_ref().or(providers.first()) {
        agent.provider.clone_from(&provider.name);
        let small = match provider.speaks {
            Speech::Openai => "gpt-4.1-mini",
            Speech::Anthropic => "claude-haiku-4-5",
        };
        agent.model = text("LONGHAUL_DEMO_MODEL").unwrap_or_else(|| small.into());
    }
    (new, agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Both {
            #[serde(default)]
            providers: Vec<ProviderConfig>,
            #[serde(default)]
            agents: Vec<AgentConfig>,
        }
        let Both { providers, agents } = toml::from_str(text).map_err(|error| error.to_string())?;
        for provider in &providers {
            provider.url().and_then(|_| provider.key()).map_err(|what| format!("{}: {what}", provider.name))?;
        }
        check(&providers, &agents).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let provider = "[[providers]]\nname = \"p\"\nspeaks = \"openai\"\n";
        let agent = "[[agents]]\nname = \"a\"\ndescription = \"d\"\nprovider = \"p\"\nmodel = \"m\"\n";
        read(&format!("{provider}base_url = \"http://127.0.0.1:1/v1/\"\napi_key = \"k\"\n{agent}")).unwrap();
        for (text, named) in [
            (agent.to_owned(), "runner.agents: a: provider"),
            (format!("{provider}{agent}{agent}"), "name: used twice"),
            (format!("{provider}{agent}max_steps = 0"), "max_steps"),
            (format!("{provider}{agent}max_usd = 1"), "needs prices"),
            (format!("{provider}{agent}max_usd = -1"), "max_usd"),
            (format!("{provider}{agent}max_step = 1"), "max_step"),
            (format!("{provider}{agent}").replace("\"m\"", "\"\""), "model: is missing"),
            (format!("{provider}{agent}").replace("\"a\"", "\"a b\""), "name: must be"),
            (format!("{provider}{agent}").replace("openai", "soap"), "soap"),
            (format!("{provider}base_url = \"ftp://h\"\n{agent}"), "base_url"),
            (format!("{provider}api_key = \"\"\n{agent}"), "api_key: is empty"),
            (format!("{provider}api_key_file = \"/nowhere/key\"\n{agent}"), "api_key_file"),
            (format!("{provider}{provider}{agent}"), "runner.providers: p: name: used twice"),
        ] {
            let why = read(&text).unwrap_err();
            assert!(why.contains(named), "{text}: {why}");
        }
    }

    #[test]
    fn the_demo_agent_has_a_real_model_when_there_is_a_key() {
        let none = demo(&[], |_| None);
        assert!(none.0.is_none());
        assert_eq!(none.1.provider, SCRIPTED);
        for (key, model) in [("OPENAI_API_KEY", "gpt-4.1-mini"), ("ANTHROPIC_API_KEY", "claude-haiku-4-5")] {
            let (provider, agent) = demo(&[], |name| (name == key).then(|| "sk-1".into()));
            let provider = provider.unwrap();
            assert_eq!((&agent.provider, &*agent.model), (&provider.name, model));
            check(std::slice::from_ref(&provider), &[agent]).unwrap();
            assert!(!toml::to_string(&provider).unwrap().contains("sk-1"));
            let (none, agent) =
                demo(std::slice::from_ref(&provider), |name| (name == "LONGHAUL_DEMO_MODEL").then(|| "m".into()));
            assert_eq!((none.is_none(), agent.provider, &*agent.model), (true, provider.name, "m"));
        }
    }
}
