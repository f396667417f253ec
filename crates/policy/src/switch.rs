//! The first check: whether an operator has switched a call off.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use longhaul_bus::Control as ControlHint;
use longhaul_core::{Check, Denied, Principal, Scope, Target};
use longhaul_rpc::{Changes, Control, Error, Switch};
use opentelemetry::metrics::Gauge;
use opentelemetry::{KeyValue, global};

use crate::follow::{Freshness, Mirror};
use crate::hooks;

/// When to try again while it is not known yet what is switched off.
const UNKNOWN_AGAIN: Duration = Duration::from_secs(1);

/// What is switched off: a copy of the task-store's word, kept by [`follow`](crate::follow::follow).
#[derive(Debug)]
pub struct Switches {
    off: ArcSwap<Vec<Switch>>,
    freshness: Freshness,
    active: Gauge<u64>,
}

impl Default for Switches {
    /// Nothing is known yet. Its instruments come from the global meter provider, which must be set by then.
    fn default() -> Self {
        let active = global::meter("longhaul")
            .u64_gauge("longhaul_kill_switch_active")
            .with_description("Scopes that are switched off, by their narrowest part.")
            .build();
        Self { off: ArcSwap::default(), freshness: Freshness::default(), active }
    }
}

impl Switches {
    /// Whether a call may be made, as far as operators' switches are concerned. As long as it is not known, it may not.
    pub fn check(&self, principal: &Principal, target: &Target) -> Result<(), Denied> {
        let denied = |message, retry_after| Denied { by: Check::KillSwitch, message, retry_after };
        if !self.freshness.is_there() {
            let message = "It is not known yet whether this call is switched off: try again.".to_owned();
            return Err(denied(message, Some(UNKNOWN_AGAIN)));
        }
        match self.off.load().iter().find(|switch| switch.scope.covers(principal, target)) {
            None => Ok(()),
            Some(Switch { scope, why, .. }) => {
                let message = format!(
                    "An operator has switched this off ({scope}): {why}. Do not try again until it is switched on; ask \
                     your operator when that will be."
                );
                Err(denied(message, None))
            }
        }
    }
}

impl hooks::Switch for Switches {
    fn check(&self, principal: &Principal, target: &Target) -> Result<(), Denied> {
        self.check(principal, target)
    }
}

impl Mirror for Switches {
    type Change = Switch;

    const NAME: &'static str = "switches";
    const HINT: ControlHint = ControlHint::Switches;

    async fn read(control: &dyn Control, since: u64) -> Result<Changes<Switch>, Error> {
        control.switch_changes(since).await
    }

    fn number(change: &Switch) -> u64 {
        change.number
    }

    fn take(&self, changes: Vec<Switch>, whole: bool) {
        if changes.is_empty() && !whole {
            return;
        }
        let mut off = if whole { Vec::new() } else { (**self.off.load()).clone() };
        for change in changes {
            off.retain(|other| other.scope != change.scope);
            if change.off {
                off.push(change);
            }
        }
        for part in Part::ALL {
            let count = off.iter().filter(|switch| Part::of(&switch.scope) == part).count();
            self.active.record(count as u64, &[KeyValue::new("scope", part.name())]);
        }
        self.off.store(Arc::new(off));
    }

    fn freshness(&self) -> &Freshness {
        &self.freshness
    }
}

/// What narrows a scope most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Tenant,
    Tool,
    Principal,
}

impl Part {
    const ALL: [Self; 4] = [Self::All, Self::Tenant, Self::Tool, Self::Principal];

    fn of(scope: &Scope) -> Self {
        match scope {
            Scope { caller: Some(_), .. } => Self::Principal,
            Scope { tool: Some(_), .. } => Self::Tool,
            Scope { tenant: Some(_), .. } => Self::Tenant,
            Scope { tenant: None, tool: None, caller: None } => Self::All,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Tenant => "tenant",
            Self::Tool => "tool",
            Self::Principal => "principal",
        }
    }
}
