//! Kill switches: where operators have switched calls off.

use longhaul_core::{Caller, Scope, TenantId, Timestamp};

use crate::control::Changes;
use crate::convert::Bad;
use crate::credentials::NAME_BYTES_MAX;
use crate::pb::{self, set_switch_response::Set};

/// Changes of switches on one page.
pub const SWITCHES_PAGE: usize = 200;
/// Scopes that are switched off at a time: every call is held against each.
pub const SWITCHES_MAX: usize = 1000;
/// Bytes of the reason that an operator gives.
pub const WHY_BYTES_MAX: usize = 500;
/// Bytes of a caller's spelling.
const CALLER_BYTES_MAX: usize = 1024;

/// What is wrong with a switch, if anything is.
pub fn wrong_switch(scope: &Scope, why: &str) -> Option<&'static str> {
    let fits = |name: &str, max| (1..=max).contains(&name.len()) && !name.contains(char::is_control);
    match () {
        () if !fits(why, WHY_BYTES_MAX) => Some("the reason is empty, longer than 500 bytes, or not plain text"),
        () if scope.tenant.as_ref().is_some_and(|tenant| !fits(tenant.as_str(), NAME_BYTES_MAX)) => {
            Some("the tenant is empty, longer than 256 bytes, or not plain text")
        }
        () if scope.tool.as_ref().is_some_and(|tool| !fits(tool, NAME_BYTES_MAX)) => {
            Some("the tool is empty, longer than 256 bytes, or not plain text")
        }
        () if scope.caller.as_ref().is_some_and(|caller| !fits(&caller.owner(), CALLER_BYTES_MAX)) => {
            Some("the principal is longer than 1024 bytes, or not plain text")
        }
        () => None,
    }
}

/// A switch, as it was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// The number of its last change; a later one is higher.
    pub number: u64,
    /// Where it applies.
    pub scope: Scope,
    /// Whether calls within the scope are refused.
    pub off: bool,
    /// The operator's reason; callers are told.
    pub why: String,
    /// When it was changed last.
    pub changed_at: Timestamp,
}

/// What setting a switch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// It was changed.
    Changed,
    /// It was so already.
    Same,
    /// [`SWITCHES_MAX`] scopes are switched off already.
    Full,
}

pub(crate) fn scope_to(scope: &Scope) -> pb::Scope {
    pb::Scope {
        tenant: scope.tenant.as_ref().map(|tenant| tenant.as_str().to_owned()),
        tool: scope.tool.clone(),
        caller: scope.caller.as_ref().map(Caller::owner),
    }
}

pub(crate) fn scope_from(scope: Option<pb::Scope>) -> Result<Scope, Bad> {
    let pb::Scope { tenant, tool, caller } = scope.ok_or(Bad("scope"))?;
    let caller = caller.map(|caller| Caller::from_owner(&caller).ok_or(Bad("caller"))).transpose()?;
    Ok(Scope { tenant: tenant.map(TenantId::new), tool, caller })
}

pub(crate) fn switched_to(switched: Switched) -> pb::SetSwitchResponse {
    let set = match switched {
        Switched::Changed => Set::Changed,
        Switched::Same => Set::Same,
        Switched::Full => Set::Full,
    };
    pb::SetSwitchResponse { set: set.into() }
}

pub(crate) fn switched_from(response: pb::SetSwitchResponse) -> Result<Switched, Bad> {
    match Set::try_from(response.set).map_err(|_| Bad("set"))? {
        Set::Unspecified => Err(Bad("set")),
        Set::Changed => Ok(Switched::Changed),
        Set::Same => Ok(Switched::Same),
        Set::Full => Ok(Switched::Full),
    }
}

pub(crate) fn changes_to(changes: Changes<Switch>) -> pb::SwitchChangesResponse {
    let one = |switch: Switch| pb::SwitchChange {
        number: switch.number,
        scope: Some(scope_to(&switch.scope)),
        off: switch.off,
        why: switch.why,
        changed_at: switch.changed_at.as_micros(),
    };
    let Changes { changes, forgotten } = changes;
    pb::SwitchChangesResponse { changes: changes.into_iter().map(one).collect(), forgotten }
}

pub(crate) fn changes_from(changes: pb::SwitchChangesResponse) -> Result<Changes<Switch>, Bad> {
    let one = |switch: pb::SwitchChange| {
        Ok(Switch {
            number: switch.number,
            scope: scope_from(switch.scope)?,
            off: switch.off,
            why: switch.why,
            changed_at: Timestamp::from_micros(switch.changed_at),
        })
    };
    let pb::SwitchChangesResponse { changes, forgotten } = changes;
    Ok(Changes { changes: changes.into_iter().map(one).collect::<Result<_, Bad>>()?, forgotten })
}
