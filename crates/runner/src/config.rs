//! Which upstream servers there are, as the operator writes it, and what is wrong with it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use longhaul_core::TaskSupport;
use longhaul_core::limits::PAYLOAD_BYTES_MAX;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// Upstream servers of one runner.
pub const UPSTREAMS_MAX: usize = 64;
/// The longest name of an upstream server.
const NAME_BYTES_MAX: usize = 32;
/// Without a word in the config, a call may take an hour.
const TIMEOUT_S_DEFAULT: u64 = 3600;
/// A call may take a week.
const TIMEOUT_S_MAX: u64 = 7 * 24 * 3600;
/// Without a word in the config, so many callers have a session with a server at a time.
const SESSIONS_DEFAULT: usize = 32;
/// Sessions with one server at a time. Over standard input and output, each is a process.
const SESSIONS_MAX: usize = 1000;
/// Without a word in the config, a session ends after five minutes without a call.
const SESSION_IDLE_S_DEFAULT: u64 = 300;
/// A session may wait for a call for a day.
const SESSION_IDLE_S_MAX: u64 = 24 * 3600;
/// Variables that a child process always gets, if the runner has them.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// A runner's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[[runner.upstreams]]`
    pub upstreams: Vec<UpstreamConfig>,
    /// The largest result of a tool, in bytes.
    pub max_result_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { upstreams: Vec::new(), max_result_bytes: PAYLOAD_BYTES_MAX }
    }
}

/// An upstream MCP server: either a command to run or a URL to call. Written out, it hides its secrets.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamConfig {
    /// Its tools and prompts appear as `name.tool`, its resources as `name+uri`; `[a-z0-9_-]{1,32}`.
    pub name: String,
    /// Which MCP it speaks: `2025` (with sessions, 2025-11-25 and before), `2026` (2026-07-28), or `auto`: it is asked.
    #[serde(default)]
    pub era: Speaks,
    /// The program and its arguments, spoken to over its standard input and output. Only the program is printed.
    #[serde(default, serialize_with = "hide_arguments")]
    pub command: Option<Vec<SecretString>>,
    /// What the program finds in its environment beside `PATH` and `HOME`: `NAME=value`, or `NAME` to hand on ours.
    #[serde(default, serialize_with = "hide_all")]
    pub env: Vec<SecretString>,
    /// Variables whose values are in files.
    #[serde(default)]
    pub env_file: BTreeMap<String, PathBuf>,
    /// Where the program starts.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// The endpoint of a Streamable HTTP server. Printed without its query: a secret in its path shows.
    #[serde(default, serialize_with = "hide_query")]
    pub url: Option<SecretString>,
    /// Headers of each request to it.
    #[serde(default, serialize_with = "hide_values")]
    pub headers: BTreeMap<String, SecretString>,
    /// Headers whose values are in files.
    #[serde(default)]
    pub headers_file: BTreeMap<String, PathBuf>,
    /// How long a call may take, in seconds.
    #[serde(default = "timeout_s_default")]
    pub timeout_s: u64,
    /// How many callers may have a session with it at a time (32), unless it is of 2026-07-28. Each caller has their own;
    /// with `command`, each is a process.
    #[serde(default = "sessions_max_default")]
    pub sessions_max: usize,
    /// How long a caller's session lasts without a call, in seconds (300).
    #[serde(default = "session_idle_s_default")]
    pub session_idle_s: u64,
    /// All callers share one session, and whatever the server remembers of them. Then it can ask them nothing.
    #[serde(default)]
    pub shared: bool,
    /// Whether calls may become tasks: `optional`, `required` or `forbidden`.
    #[serde(default)]
    pub task_support: Support,
    /// What is different for some of its tools, by their upstream names.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolConfig>,
}

/// What is printed in place of a secret.
const HIDDEN: &str = "[hidden]";

fn hide_all<S: Serializer>(secrets: &[SecretString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(secrets.iter().map(|_| HIDDEN))
}

fn hide_arguments<S: Serializer>(command: &Option<Vec<SecretString>>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(command) = command else { return serializer.serialize_none() };
    let word =
        |(at, word): (usize, &SecretString)| if at == 0 { word.expose_secret().to_owned() } else { HIDDEN.into() };
    serializer.serialize_some(&command.iter().enumerate().map(word).collect::<Vec<_>>())
}

fn hide_query<S: Serializer>(url: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(url) = url else { return serializer.serialize_none() };
    let shown = match reqwest::Url::parse(url.expose_secret()) {
        Ok(url) if url.has_host() => {
            let user = if url.username().is_empty() && url.password().is_none() { "" } else { "[hidden]@" };
            let query = if url.query().or(url.fragment()).is_none() { "" } else { "?[hidden]" };
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            format!("{}://{user}{}{port}{}{query}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
        }
        // Whatever it is, it will be refused.
        _ => HIDDEN.to_owned(),
    };
    serializer.serialize_some(&shown)
}

fn hide_values<S: Serializer>(secrets: &BTreeMap<String, SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(secrets.keys().map(|name| (name, HIDDEN)))
}

/// What is different for one tool.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolConfig {
    /// Whether its calls may become tasks.
    pub task_support: Option<Support>,
    /// How long a call may take, in seconds.
    pub timeout_s: Option<u64>,
}

/// Which MCP a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum Speaks {
    /// It is asked.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// 2025-11-25 or one of the revisions before it, with sessions.
    #[serde(rename = "2025")]
    Sessions,
    /// 2026-07-28.
    #[serde(rename = "2026")]
    Modern,
}

/// [`TaskSupport`] in the words of the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// Never.
    Forbidden,
    /// If the client asks.
    #[default]
    Optional,
    /// Always.
    Required,
}

impl From<Support> for TaskSupport {
    fn from(support: Support) -> Self {
        match support {
            Support::Forbidden => Self::Forbidden,
            Support::Optional => Self::Optional,
            Support::Required => Self::Required,
        }
    }
}

/// Who shares a connection to a server with sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing {
    pub(crate) is_shared: bool,
    pub(crate) sessions_max: usize,
    /// How long a session lasts without a call.
    pub(crate) idle: Duration,
}

/// What is wrong with the config; names the upstream and the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("runner.upstreams: {upstream}: {what}")]
pub struct ConfigError {
    upstream: String,
    what: String,
}

/// How an upstream server is reached, with everything read that the config points to.
#[derive(Clone)]
pub(crate) enum Reach {
    Command { argv: Vec<String>, env: Vec<(OsString, OsString)>, cwd: Option<PathBuf> },
    Url { url: reqwest::Url, headers: HeaderMap },
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment and the headers hold secrets, arguments and queries may.
        match self {
            Self::Command { argv, .. } => write!(f, "command {:?}", argv.first()),
            Self::Url { url, .. } => write!(f, "url {:?}", url.host_str()),
        }
    }
}

impl Config {
    /// Checks what one upstream alone cannot show.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |upstream: &str, what: &str| Err(ConfigError { upstream: upstream.into(), what: what.into() });
        if self.upstreams.len() > UPSTREAMS_MAX {
            return wrong("all", &format!("more than {UPSTREAMS_MAX}"));
        }
        let mut names = HashSet::new();
        if let Some(upstream) = self.upstreams.iter().find(|upstream| !names.insert(&upstream.name)) {
            return wrong(&upstream.name, "name: used twice");
        }
        let mut schemes = HashSet::new();
        match self.upstreams.iter().find(|upstream| !schemes.insert(upstream.scheme())) {
            Some(upstream) => wrong(&upstream.name, "name: too much like another one for a URI scheme"),
            None => Ok(()),
        }
    }
}

impl UpstreamConfig {
    /// Checks the config and reads what it points to. `variable` looks up our own environment.
    pub(crate) fn reach(&self, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Reach, ConfigError> {
        self.resolve(variable).map_err(|what| ConfigError { upstream: self.name.clone(), what })
    }

    fn resolve(&self, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Reach, String> {
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.bytes().all(plain) {
            return Err(format!("name: must be 1 to {NAME_BYTES_MAX} characters of a-z, 0-9, _ and -"));
        }
        let timeouts = self.tools.values().filter_map(|tool| tool.timeout_s).chain([self.timeout_s]);
        if timeouts.into_iter().any(|seconds| !(1..=TIMEOUT_S_MAX).contains(&seconds)) {
            return Err(format!("timeout_s: must be 1 to {TIMEOUT_S_MAX}"));
        }
        if !(1..=SESSIONS_MAX).contains(&self.sessions_max) {
            return Err(format!("sessions_max: must be 1 to {SESSIONS_MAX}"));
        }
        if !(1..=SESSION_IDLE_S_MAX).contains(&self.session_idle_s) {
            return Err(format!("session_idle_s: must be 1 to {SESSION_IDLE_S_MAX}"));
        }
        match (&self.command, &self.url) {
            (Some(argv), None) if argv.first().is_some_and(|program| !program.expose_secret().is_empty()) => {
                if !self.headers.is_empty() || !self.headers_file.is_empty() {
                    return Err("headers: only with url".into());
                }
                let argv = argv.iter().map(|word| word.expose_secret().to_owned()).collect();
                Ok(Reach::Command { argv, env: self.environment(variable)?, cwd: self.cwd.clone() })
            }
            (Some(_), None) => Err("command: has no program".into()),
            (None, Some(url)) => {
                if !self.env.is_empty() || !self.env_file.is_empty() || self.cwd.is_some() {
                    return Err("env, cwd: only with command".into());
                }
                Ok(Reach::Url { url: endpoint(url.expose_secret())?, headers: self.header_map()? })
            }
            _ => Err("needs exactly one of command and url".into()),
        }
    }

    /// What its URIs begin with, before a plus sign: its name, made fit for a scheme (RFC 3986, 3.1).
    pub(crate) fn scheme(&self) -> String {
        let is_fit = self.name.starts_with(|first: char| first.is_ascii_lowercase());
        format!("{}{}", if is_fit { "" } else { "x-" }, self.name.replace('_', "."))
    }

    pub(crate) fn sharing(&self) -> Sharing {
        let idle = Duration::from_secs(self.session_idle_s);
        Sharing { is_shared: self.shared, sessions_max: self.sessions_max, idle }
    }

    /// Whether calls of a tool may become tasks.
    pub(crate) fn support_of(&self, tool: &str) -> TaskSupport {
        self.tools.get(tool).and_then(|tool| tool.task_support).unwrap_or(self.task_support).into()
    }

    /// How long calls of a tool may take.
    pub(crate) fn timeout_of(&self, tool: &str) -> Duration {
        Duration::from_secs(self.tools.get(tool).and_then(|tool| tool.timeout_s).unwrap_or(self.timeout_s))
    }

    /// How long calls of its prompts and resources may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }

    fn environment(&self, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<(OsString, OsString)>, String> {
        let named = |name: &str| Some((OsString::from(name), variable(name)?));
        let mut env: Vec<_> = INHERITED.into_iter().filter_map(named).collect();
        for entry in &self.env {
            let entry = entry.expose_secret();
            env.push(match entry.split_once('=') {
                Some((name, value)) if is_variable(name) => (name.into(), value.into()),
                None if is_variable(entry) => named(entry).ok_or_else(|| format!("env: {entry} is not set"))?,
                // The entry itself may be a secret in the wrong place.
                _ => return Err("env: an entry is neither NAME nor NAME=value".into()),
            });
        }
        for (name, path) in &self.env_file {
            if !is_variable(name) {
                return Err("env_file: a key is not the name of a variable".into());
            }
            env.push((name.into(), read("env_file", name, path)?.into()));
        }
        Ok(env)
    }

    fn header_map(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        let mut add = |key: &str, name: &str, value: &str| {
            let parsed = HeaderName::try_from(name).map_err(|_| format!("{key}: {name} is not a header's name"))?;
            let mut value = HeaderValue::try_from(value)
                .map_err(|_| format!("{key}: {name} has a value that no header can have"))?;
            value.set_sensitive(true);
            match headers.insert(parsed, value) {
                None => Ok(()),
                Some(_) => Err(format!("{key}: {name} is there twice")),
            }
        };
        for (name, value) in &self.headers {
            add("headers", name, value.expose_secret())?;
        }
        for (name, path) in &self.headers_file {
            add("headers_file", name, &read("headers_file", name, path)?)?;
        }
        Ok(headers)
    }
}

fn endpoint(url: &str) -> Result<reqwest::Url, String> {
    let url = reqwest::Url::parse(url).map_err(|error| format!("url: {error}"))?;
    let fit = matches!(url.scheme(), "http" | "https") && url.has_host();
    if !fit || !url.username().is_empty() || url.password().is_some() {
        return Err("url: must be http or https, without a user name".into());
    }
    Ok(url)
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// The text of a file without the line break at its end.
fn read(key: &str, name: &str, path: &PathBuf) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{key}: {name}: {error}"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn timeout_s_default() -> u64 {
    TIMEOUT_S_DEFAULT
}

fn sessions_max_default() -> usize {
    SESSIONS_DEFAULT
}

fn session_idle_s_default() -> u64 {
    SESSION_IDLE_S_DEFAULT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(json: &str) -> UpstreamConfig {
        serde_json::from_str(json).unwrap()
    }

    fn variable(name: &str) -> Option<OsString> {
        matches!(name, "PATH" | "TOKEN").then(|| format!("our {name}").into())
    }

    #[test]
    fn a_child_sees_only_what_is_configured() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from a file\n").unwrap();
        let config = format!(
            r#"{{"name": "a", "command": ["server", "--x"], "env": ["TOKEN", "MODE=a=b"], "env_file": {{"KEY": {:?}}}}}"#,
            file.path()
        );
        let Reach::Command { argv, env, cwd } = upstream(&config).reach(&variable).unwrap() else { panic!() };
        assert_eq!(argv, ["server", "--x"]);
        assert_eq!(cwd, None);
        let expected = [("PATH", "our PATH"), ("TOKEN", "our TOKEN"), ("MODE", "a=b"), ("KEY", "from a file")]
            .map(|(name, value)| (name.into(), value.into()));
        assert_eq!(env, expected);
    }

    #[test]
    fn a_tool_may_differ_from_its_server() {
        let config = upstream(
            r#"{"name": "a", "command": ["x"], "timeout_s": 60, "tools": {"slow": {"timeout_s": 600, "task_support": "required"}, "odd": {}}}"#,
        );
        assert_eq!(
            (config.support_of("slow"), config.timeout_of("slow")),
            (TaskSupport::Required, Duration::from_secs(600))
        );
        for tool in ["odd", "other"] {
            assert_eq!(
                (config.support_of(tool), config.timeout_of(tool)),
                (TaskSupport::Optional, Duration::from_secs(60))
            );
        }
    }

    #[test]
    fn a_name_is_made_fit_for_a_scheme() {
        for (name, scheme) in [("files", "files"), ("my_files-2", "my.files-2"), ("2files", "x-2files"), ("-", "x--")] {
            assert_eq!(upstream(&format!(r#"{{"name": "{name}", "command": ["x"]}}"#)).scheme(), scheme);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, says) in [
            (r#"{"name": "A", "command": ["x"]}"#, "a: name"),
            (r#"{"name": "", "command": ["x"]}"#, "name"),
            (r#"{"name": "a"}"#, "exactly one of command and url"),
            (r#"{"name": "a", "command": ["x"], "url": "http://x/"}"#, "exactly one of command and url"),
            (r#"{"name": "a", "command": []}"#, "has no program"),
            (r#"{"name": "a", "command": ["x"], "env": ["ABSENT"]}"#, "ABSENT is not set"),
            (r#"{"name": "a", "command": ["x"], "env": ["hunter 2"]}"#, "neither NAME nor NAME=value"),
            (r#"{"name": "a", "command": ["x"], "timeout_s": 0}"#, "timeout_s"),
            (r#"{"name": "a", "command": ["x"], "sessions_max": 0}"#, "sessions_max"),
            (r#"{"name": "a", "command": ["x"], "session_idle_s": 0}"#, "session_idle_s"),
            (r#"{"name": "a", "command": ["x"], "headers": {"a": "b"}}"#, "only with url"),
            (r#"{"name": "a", "url": "file:///etc/passwd"}"#, "must be http or https"),
            (r#"{"name": "a", "url": "http://user:pass@host/"}"#, "without a user name"),
            (r#"{"name": "a", "url": "http://x/", "headers": {"a b": "c"}}"#, "not a header's name"),
            (r#"{"name": "a", "url": "http://x/", "headers": {"a": "hunter\n2"}}"#, "no header can have"),
            (r#"{"name": "a", "url": "http://x/", "cwd": "/"}"#, "only with command"),
        ] {
            let error = upstream(json).reach(&variable).unwrap_err().to_string();
            assert!(error.to_lowercase().contains(&says.to_lowercase()), "{json}: {error}");
            assert!(!error.contains("hunter"), "{error}");
        }
        let two = Config { upstreams: vec![upstream(r#"{"name": "a", "command": ["x"]}"#); 2], ..Config::default() };
        assert!(two.check().unwrap_err().to_string().contains("used twice"));
        let [one, other] = ["1a", "x-1a"].map(|name| upstream(&format!(r#"{{"name": "{name}", "command": ["x"]}}"#)));
        let alike = Config { upstreams: vec![one, other], ..Config::default() };
        assert!(alike.check().unwrap_err().to_string().contains("too much like"));
        assert!(serde_json::from_str::<UpstreamConfig>(r#"{"name": "a", "comand": ["x"]}"#).is_err());
    }

    #[test]
    fn secrets_are_not_printed() {
        let config =
            upstream(r#"{"name": "a", "url": "http://x/?key=hunter2", "headers": {"authorization": "hunter2"}}"#);
        assert!(!format!("{:?} {:?}", config.headers, config.reach(&variable).unwrap()).contains("hunter2"));
    }
}
