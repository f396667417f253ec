//! How roles know one another: tokens, and certificates.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_rpc::{Roles, ServiceToken, Tls};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use crate::check::Role;
use crate::compose::Running;
use crate::config::{Config, Wrong, secret};
use crate::keys::LOOK;

/// `[service_tokens]`: tokens of single roles, each a file like `service_token_file`. With them, a role that is taken over
/// can do no more than it could. A process needs those of its own edges alone.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceTokensConfig {
    /// What gateways show the task-store.
    pub gateway_file: Option<PathBuf>,
    /// What runners show the task-store.
    pub runner_file: Option<PathBuf>,
    /// What the command line shows the task-store: only with this may credentials and switches be changed.
    pub admin_file: Option<PathBuf>,
    /// What gateways show runners.
    pub calls_file: Option<PathBuf>,
}

/// `[tls]`: mutual TLS on every gRPC connection between roles; all three files, or none. They are looked at every 5 s.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// This role's certificate in PEM, and those between it and the authority. It names the role: `gateway`, `runner`,
    /// `taskstore` or `admin`, as the end of a SPIFFE id or as the first label of a DNS name.
    pub cert_file: Option<PathBuf>,
    /// Its private key in PEM.
    pub key_file: Option<PathBuf>,
    /// The authorities in PEM whose certificates are accepted: of this installation alone.
    pub ca_file: Option<PathBuf>,
}

/// Whether there is any token.
pub fn has_tokens(config: &Config) -> bool {
    let ServiceTokensConfig { gateway_file, runner_file, admin_file, calls_file } = &config.service_tokens;
    let single = [gateway_file, runner_file, admin_file, calls_file];
    config.service_token.is_some() || config.service_token_file.is_some() || single.iter().any(|file| file.is_some())
}

/// What a role shows the others, and what it accepts of them; without a role, what an operator's command shows.
pub fn tokens(config: &Config, role: Option<Role>) -> Result<ServiceToken, Wrong> {
    let ServiceTokensConfig { gateway_file, runner_file, admin_file, calls_file } = &config.service_tokens;
    let all = secret("service_token", config.service_token.as_ref(), config.service_token_file.as_deref())?;
    let all = all.as_ref().map(|text| parse("service_token", Roles::ALL, text)).transpose()?;
    let of = |key: &str, roles: Roles, file: &Option<PathBuf>| {
        let key = format!("service_tokens.{key}");
        let text = secret(&key, None, file.as_deref())?;
        text.as_ref().map(|text| parse(&key, roles, text)).transpose()
    };
    let gateway = || of("gateway", Roles::GATEWAY, gateway_file);
    let runner = || of("runner", Roles::RUNNER, runner_file);
    let admin = || of("admin", Roles::ADMIN, admin_file);
    let calls = || of("calls", Roles::GATEWAY, calls_file);
    let needed = |token: Option<ServiceToken>, key: &str| {
        let what = format!(
            "service_token_file (or service_tokens.{key}) is needed: what the roles show one another, at least 16 characters"
        );
        token.ok_or(Wrong(what))
    };
    match role {
        Some(Role::Gateway) => {
            let (own, calls) = (gateway()?, calls()?.or_else(|| all.clone()));
            let own = needed(own.or_else(|| all.clone()), "gateway_file and calls_file")?;
            Ok(own.showing_workers(&needed(calls, "calls_file")?))
        }
        Some(Role::Runner) => {
            let (own, calls) = (runner()?.or_else(|| all.clone()), calls()?);
            // It shows its own, and accepts what gateways show it.
            let own = needed(own, "runner_file and calls_file")?;
            let accepted: Vec<_> = [calls, all].into_iter().flatten().collect();
            if accepted.is_empty() {
                return needed(None, "calls_file");
            }
            Ok(accepted.iter().fold(own.accepting_none(), |own, other| own.accepting(other)))
        }
        Some(Role::Taskstore) => {
            let mut accepted = [all, gateway()?, runner()?, admin()?].into_iter().flatten();
            let first = needed(accepted.next(), "gateway_file, runner_file and admin_file")?;
            Ok(accepted.fold(first, |all, other| all.accepting(&other)))
        }
        None => needed(admin()?.or(all), "admin_file"),
    }
}

fn parse(key: &str, roles: Roles, text: &SecretString) -> Result<ServiceToken, Wrong> {
    let lines = text.expose_secret().lines().map(str::trim).filter(|line| !line.is_empty());
    ServiceToken::of(roles, lines).map_err(|error| Wrong(format!("{key}: {error}")))
}

/// The files of a certificate.
#[derive(Clone)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

impl Files {
    fn of(config: &TlsConfig) -> Result<Option<Self>, Wrong> {
        match (&config.cert_file, &config.key_file, &config.ca_file) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), Some(ca)) => {
                Ok(Some(Self { cert: cert.clone(), key: key.clone(), ca: ca.clone() }))
            }
            _ => Err(Wrong("tls.cert_file, tls.key_file and tls.ca_file are needed together".into())),
        }
    }

    /// The certificates, the key and the authorities.
    fn read(&self) -> Result<[Vec<u8>; 3], String> {
        let read = |file: &Path| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
        Ok([read(&self.cert)?, read(&self.key)?, read(&self.ca)?])
    }
}

/// What the connections between roles are secured with, if they are.
pub fn tls(config: &Config) -> Result<Option<Tls>, Wrong> {
    let Some(files) = Files::of(&config.tls)? else { return Ok(None) };
    let made = files.read().and_then(|[cert, key, ca]| Tls::new(&cert, &key, &ca).map_err(|error| error.to_string()));
    made.map(Some).map_err(|error| Wrong(format!("tls: {error}")))
}

/// The same role, and for as long as it runs, its certificate is that of its file.
pub fn following(config: &Config, tls: Option<Tls>, running: Running) -> Result<Running, Wrong> {
    let (Some(tls), Some(files)) = (tls, Files::of(&config.tls)?) else { return Ok(running) };
    Ok(Box::pin(async move {
        tokio::select! {
            ran = running => ran,
            never = follow(files, tls, LOOK) => match never {},
        }
    }))
}

/// Takes over what changes in the files. What cannot be used changes nothing: half of a new pair may be there already.
async fn follow(files: Files, tls: Tls, every: Duration) -> Infallible {
    let mut looks = interval(every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = None;
    loop {
        looks.tick().await;
        let reading = files.clone();
        let found = tokio::task::spawn_blocking(move || reading.read()).await;
        let found = found.unwrap_or_else(|error| Err(error.to_string()));
        if seen.as_ref() == Some(&found) {
            continue;
        }
        let used = match &found {
            Ok([cert, key, ca]) => tls.replace(cert, key, ca).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        match used {
            // The first look finds what the role began with.
            Ok(()) if seen.is_none() => {}
            Ok(()) => tracing::info!(file = %files.cert.display(), "the certificate has changed"),
            Err(error) => {
                tracing::warn!(file = %files.cert.display(), error, "the certificate cannot be used: the former one stays");
            }
        }
        seen = Some(found);
    }
}

#[cfg(test)]
mod tests;
