//! Who may call: keys of ours, and those for whom an issuer vouches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::TenantId;
use longhaul_gateway::{Authenticator, OAuthConfig, ResourceServer, Tenant};
use serde::{Deserialize, Serialize};

use crate::compose::authenticator;
use crate::config::{Config, Wrong};

/// `[[gateway.issuers]]`: an OAuth 2.1 authorization server, and whose people it vouches for; either `tenant` or
/// `tenant_claim`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct IssuerConfig {
    /// Its name, exactly as its tokens write it in `iss`: an https URL.
    pub issuer: String,
    /// Where its keys are; without it, where its own metadata says (RFC 8414 or OpenID Connect).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// What its tokens for us have in `aud`; without it, `gateway.public_url` and `/mcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// The tenant of all its people. No two issuers vouch for the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The claim that names the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_claim: Option<String>,
    /// The tenants that the claim may name; needed beside other issuers.
    #[serde(default)]
    pub tenants: BTreeSet<String>,
    /// What its tokens may be signed with: RS256 to RS512, PS256 to PS512, ES256, ES384, EdDSA; RS256 and ES256 by default.
    #[serde(default = "algorithms")]
    pub algorithms: Vec<String>,
    /// The scopes that every request needs; `mcp:tools` by default.
    #[serde(default = "scopes_required")]
    pub scopes_required: Vec<String>,
    /// How far its clock may be off, in seconds; 30 by default, at most 300.
    #[serde(default = "leeway_s")]
    pub leeway_s: u64,
}

fn algorithms() -> Vec<String> {
    ["RS256", "ES256"].map(str::to_owned).into()
}

fn scopes_required() -> Vec<String> {
    vec!["mcp:tools".into()]
}

fn leeway_s() -> u64 {
    30
}

/// Who may call, as the config says.
pub fn callers(config: &Config) -> Result<Authenticator, Wrong> {
    let gateway = &config.gateway;
    let others = authenticator(&gateway.credentials)?;
    if gateway.issuers.is_empty() {
        return Ok(others);
    }
    let issuers = gateway.issuers.iter().map(issuer).collect::<Result<_, _>>()?;
    let public_url = gateway.public_url.clone().ok_or_else(|| {
        Wrong("gateway.public_url is needed beside gateway.issuers: tokens name the server that they are for".into())
    })?;
    let tool_scopes = config.tools.iter().map(|(name, rules)| (name.clone(), rules.scopes.clone())).collect();
    let oauth = OAuthConfig { public_url, issuers, tool_scopes, fetch_again: OAuthConfig::FETCH_AGAIN };
    let server = ResourceServer::new(oauth).map_err(|error| Wrong(format!("gateway: {error}")))?;
    Ok(Authenticator::OAuth(Arc::new(server), Box::new(others)))
}

fn issuer(config: &IssuerConfig) -> Result<longhaul_gateway::IssuerConfig, Wrong> {
    let IssuerConfig {
        issuer,
        jwks_url,
        audience,
        tenant,
        tenant_claim,
        tenants,
        algorithms,
        scopes_required,
        leeway_s,
    } = config.clone();
    let tenant = match (tenant, tenant_claim) {
        (Some(tenant), None) if tenants.is_empty() => Tenant::Fixed(TenantId::new(tenant)),
        (None, Some(name)) => Tenant::Claim { name, among: tenants },
        _ => {
            return Err(Wrong(format!("gateway.issuers: {issuer}: set either tenant, or tenant_claim (and tenants)")));
        }
    };
    let (scopes, leeway) = (scopes_required, Duration::from_secs(leeway_s));
    Ok(longhaul_gateway::IssuerConfig { issuer, jwks_url, audience, tenant, algorithms, scopes, leeway })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    fn build(text: &str) -> Result<Authenticator, Wrong> {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), text).unwrap();
        callers(&read(Some(file.path()), [], &[], &[])?)
    }

    #[test]
    fn issuers_are_read_from_the_config_and_wrong_ones_are_refused() {
        let good = r#"
            [gateway]
            public_url = "https://mcp.example"
            [[gateway.issuers]]
            issuer = "https://login.example/realms/acme"
            tenant = "acme"
            [[gateway.issuers]]
            issuer = "https://partner.example"
            jwks_url = "https://partner.example/keys"
            tenant_claim = "org"
            tenants = ["umbrella"]
            algorithms = ["PS256"]
            [tools."files.Delete"]
            scopes = ["files:write"]
        "#;
        assert!(matches!(build(good), Ok(Authenticator::OAuth(..))));
        for (from, to, says) in [
            ("public_url = \"https://mcp.example\"", "", "public_url"),
            ("https://mcp.example", "http://mcp.example", "public_url"),
            ("tenant = \"acme\"", "", "either tenant"),
            ("tenant = \"acme\"", "tenant = \"acme\"\ntenant_claim = \"org\"", "either tenant"),
            ("tenant = \"acme\"", "tenant = \"umbrella\"", "the same tenant"),
            ("PS256", "HS256", "HS256"),
            ("\"umbrella\"", "", "must be listed"),
            ("jwks_url = \"https", "jwks_url = \"http", "https URL"),
            ("scopes = ", "scopez = ", "scopez"),
        ] {
            let Err(Wrong(what)) = build(&good.replace(from, to)) else { panic!("{to}") };
            assert!(what.contains(says), "{what}");
        }
        assert!(
            matches!(build(include_str!("../../../deploy/longhaul.toml")), Ok(Authenticator::OAuth(..))),
            "the sample"
        );
    }
}
