//! What a config alone says against the start of a role: each role asks this before it touches anything else, and
//! `longhaul config print` tells of all of them. What it takes to know more (databases, ports) is found at the start.

use longhaul_bus::RedisBus;
use longhaul_rpc::client;
use secrecy::ExposeSecret as _;

use crate::config::{Config, Wrong};
use crate::{callers, compose, services, telemetry};

/// A role that a config is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `longhaul gateway`
    Gateway,
    /// `longhaul taskstore`
    Taskstore,
    /// `longhaul runner`
    Runner,
}

use Role::{Gateway, Runner, Taskstore};

impl Role {
    /// The command that plays it.
    pub fn name(self) -> &'static str {
        match self {
            Gateway => "gateway",
            Taskstore => "taskstore",
            Runner => "runner",
        }
    }
}

/// What is asked, and which roles ask it.
type Check = (fn(&Config) -> Result<(), Wrong>, &'static [Role]);

const CHECKS: [Check; 14] = [
    (|config| telemetry::filter(&config.log).map(drop), &[Gateway, Taskstore, Runner]),
    (|config| callers::callers(config).map(drop), &[Gateway]),
    (allow_lists, &[Gateway]),
    (database_url, &[Taskstore]),
    (|config| compose::advertise_url(config, config.runner.worker_listen).map(drop), &[Runner]),
    (upstreams, &[Runner]),
    (any_token, &[Gateway, Taskstore, Runner]),
    (|config| tokens(config, Gateway), &[Gateway]),
    (|config| tokens(config, Taskstore), &[Taskstore]),
    (|config| tokens(config, Runner), &[Runner]),
    (|config| services::tls(config).map(drop), &[Gateway, Taskstore, Runner]),
    (taskstore_urls, &[Gateway, Runner]),
    (redis_url, &[Gateway, Taskstore, Runner]),
    (|config| compose::keys(config).map(drop), &[Gateway, Taskstore]),
];

/// What every role misses is said once.
fn any_token(config: &Config) -> Result<(), Wrong> {
    if services::has_tokens(config) { Ok(()) } else { services::tokens(config, None).map(drop) }
}

fn tokens(config: &Config, role: Role) -> Result<(), Wrong> {
    if services::has_tokens(config) { services::tokens(config, Some(role)).map(drop) } else { Ok(()) }
}

fn allow_lists(config: &Config) -> Result<(), Wrong> {
    let gateway = &config.gateway;
    longhaul_gateway::check_allowed(&gateway.allowed_hosts, &gateway.allowed_origins)
        .map_err(|error| Wrong(format!("gateway.{error}")))
}

fn database_url(config: &Config) -> Result<(), Wrong> {
    longhaul_taskstore::check_url(compose::database_url(config)?.expose_secret())
        .map_err(|error| Wrong(format!("taskstore.database_url: {error}")))
}

fn upstreams(config: &Config) -> Result<(), Wrong> {
    longhaul_runner::Runner::check(&compose::upstreams(config), |name| std::env::var_os(name))
        .map_err(|error| Wrong(error.to_string()))
}

fn taskstore_urls(config: &Config) -> Result<(), Wrong> {
    client::check_urls(&config.taskstore_urls).map_err(|error| Wrong(format!("taskstore_urls: {error}")))
}

fn redis_url(config: &Config) -> Result<(), Wrong> {
    let Some(url) = compose::redis_url(config)? else { return Ok(()) };
    RedisBus::check(url.expose_secret()).map_err(|error| Wrong(format!("redis_url: {error}")))
}

/// The first thing that stops a role.
pub fn role(role: Role, config: &Config) -> Result<(), Wrong> {
    let mut asked = CHECKS.iter().filter(|(_, roles)| roles.contains(&role));
    asked.try_for_each(|(check, _)| check(config))
}

/// All that stops any role, each with the roles that it stops.
pub fn all(config: &Config) -> Vec<(&'static [Role], Wrong)> {
    CHECKS.iter().filter_map(|(check, roles)| Some((*roles, check(config).err()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    /// What is wrong with a config with these settings, and whom it stops.
    fn wrong(set: &[&str]) -> Vec<(Vec<&'static str>, String)> {
        let set: Vec<_> = set.iter().map(|set| (*set).to_owned()).collect();
        let config = read(None, [], &set, &[]).unwrap();
        let named = |(roles, wrong): (&[Role], Wrong)| (roles.iter().map(|role| role.name()).collect(), wrong.0);
        all(&config).into_iter().map(named).collect()
    }

    #[test]
    fn each_role_is_stopped_by_what_it_needs_and_by_nothing_else() {
        let missing = wrong(&[]);
        for (key, roles) in [
            ("taskstore.database_url", &["taskstore"][..]),
            ("runner.worker_advertise_url", &["runner"]),
            ("service_token_file", &["gateway", "taskstore", "runner"]),
            ("seal_keys_file", &["gateway", "taskstore"]),
        ] {
            let found: Vec<_> = missing.iter().filter(|(_, what)| what.contains(key)).collect();
            assert_eq!(found.len(), 1, "{key}: {missing:?}");
            assert_eq!(found[0].0, roles, "{key}");
        }
        assert_eq!(missing.len(), 4, "{missing:?}");
        for (set, roles) in [
            ("log=a=b=c", &["gateway", "taskstore", "runner"][..]),
            ("gateway.allowed_origins=[name]", &["gateway"]),
            ("gateway.allowed_hosts=[https://name]", &["gateway"]),
            ("taskstore_urls=[name:50051]", &["gateway", "runner"]),
            ("taskstore_urls=[]", &["gateway", "runner"]),
            ("service_token=short", &["gateway"]),
            ("service_token=short", &["taskstore"]),
            ("tls.cert_file=x", &["gateway", "taskstore", "runner"]),
            ("redis_url=http://x", &["gateway", "taskstore", "runner"]),
            ("taskstore.database_url=mysql://x", &["taskstore"]),
        ] {
            let key = set.split('=').next().unwrap();
            let all = wrong(&[set]);
            assert!(all.iter().any(|(stops, what)| what.starts_with(key) && stops == roles), "{set}: {all:?}");
        }
    }

    #[test]
    fn a_config_that_has_what_a_role_needs_does_not_stop_it() {
        let keys = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(keys.path(), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
        let set = [
            "service_token=a-token-for-the-tests".to_owned(),
            "taskstore.database_url=postgres://127.0.0.1/x".to_owned(),
            format!("seal_keys_file={}", keys.path().display()),
        ];
        let config = read(None, [], &set, &[]).unwrap();
        role(Taskstore, &config).unwrap();
        role(Gateway, &config).unwrap();
        assert!(role(Runner, &config).unwrap_err().0.starts_with("runner.worker_advertise_url"));
    }
}
