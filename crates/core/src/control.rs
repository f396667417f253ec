//! What operators decide while everything runs: where calls are switched off.

use std::fmt;

use crate::id::TenantId;
use crate::principal::{Caller, Principal};
use crate::tool::Target;

/// Where a switch applies: to every call that no part excludes; without parts, to all there are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Scope {
    /// Calls of this tenant's callers.
    pub tenant: Option<TenantId>,
    /// Calls of this tool; nothing but tools.
    pub tool: Option<String>,
    /// Calls of this caller; without `tenant`, of the callers of this name in every tenant.
    pub caller: Option<Caller>,
}

impl Scope {
    /// Whether a call is within it.
    pub fn covers(&self, principal: &Principal, target: &Target) -> bool {
        let Self { tenant, tool, caller } = self;
        tenant.as_ref().is_none_or(|tenant| *tenant == principal.tenant)
            && tool.as_ref().is_none_or(|tool| matches!(target, Target::Tool(name) if name == tool))
            && caller.as_ref().is_none_or(|caller| *caller == principal.caller)
    }

    /// The scope as one string, for storage: lengths first, so that no two scopes share a spelling.
    pub fn key(&self) -> String {
        let part = |part: Option<&str>| part.map_or_else(|| "-".to_owned(), |part| format!("{}:{part}", part.len()));
        let (tenant, tool) = (part(self.tenant.as_ref().map(TenantId::as_str)), part(self.tool.as_deref()));
        format!("{tenant} {tool} {}", part(self.caller.as_ref().map(Caller::owner).as_deref()))
    }
}

impl fmt::Display for Scope {
    /// For operators.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(tenant) = &self.tenant {
            parts.push(format!("tenant {:?}", tenant.as_str()));
        }
        if let Some(tool) = &self.tool {
            parts.push(format!("tool {tool:?}"));
        }
        match &self.caller {
            Some(Caller::Agent(agent)) => parts.push(format!("agent {agent:?}")),
            Some(Caller::Person { app, person }) => parts.push(format!("person {person:?} in app {app:?}")),
            None => {}
        }
        if parts.is_empty() { f.write_str("everything") } else { f.write_str(&parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(tenant: &str, agent: &str) -> Principal {
        Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(agent.into()) }
    }

    fn scope(tenant: Option<&str>, tool: Option<&str>, agent: Option<&str>) -> Scope {
        Scope {
            tenant: tenant.map(TenantId::new),
            tool: tool.map(str::to_owned),
            caller: agent.map(|agent| Caller::Agent(agent.into())),
        }
    }

    #[test]
    fn a_scope_covers_what_none_of_its_parts_excludes() {
        let echo = Target::Tool("echo".into());
        for (scope, covers) in [
            (scope(None, None, None), [true, true, true, true, true]),
            (scope(Some("t"), None, None), [true, true, false, true, true]),
            (scope(None, Some("echo"), None), [true, true, true, false, false]),
            (scope(None, None, Some("a")), [true, false, true, true, true]),
            (scope(Some("t"), Some("echo"), Some("a")), [true, false, false, false, false]),
        ] {
            let calls = [
                (agent("t", "a"), echo.clone()),
                (agent("t", "b"), echo.clone()),
                (agent("u", "a"), echo.clone()),
                (agent("t", "a"), Target::Tool("other".into())),
                (agent("t", "a"), Target::Prompt("echo".into())),
            ];
            let covered = calls.map(|(principal, target)| scope.covers(&principal, &target));
            assert_eq!(covered, covers, "{scope}");
        }
        let person = Principal { caller: Caller::Person { app: "a".into(), person: "a".into() }, ..agent("t", "a") };
        assert!(!scope(None, None, Some("a")).covers(&person, &echo));
    }

    #[test]
    fn no_two_scopes_share_a_spelling() {
        let scopes = [
            scope(None, None, None),
            scope(Some("-"), None, None),
            scope(Some("a"), None, None),
            scope(None, Some("a"), None),
            scope(None, None, Some("a")),
            scope(Some("a 1:b"), None, None),
            scope(Some("a"), Some("b"), None),
            scope(Some(""), None, None),
        ];
        for (at, one) in scopes.iter().enumerate() {
            assert!(scopes[at + 1..].iter().all(|other| other.key() != one.key()), "{one}");
        }
    }
}
