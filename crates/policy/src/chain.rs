//! The order of the checks.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_core::{Principal, Refusal, Target};
use longhaul_rpc::Error;

use crate::admitted::Admitted;
use crate::budget::{Budgets, Reservation};
use crate::switch::Switches;

/// What a caller wants done. The checks see the very bytes that the tool will see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What is called.
    pub target: Target,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
}

/// Says yes or no: whether an operator has switched the call off, and whether there is enough to pay for it. The limits on open
/// tasks are not among the checks: only the statement that stores a task can count exactly.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    switches: Option<Arc<Switches>>,
    budgets: Option<Budgets>,
}

impl Chain {
    /// A chain with this copy of what is switched off, that charges these budgets.
    pub fn new(switches: Arc<Switches>, budgets: Option<Budgets>) -> Self {
        Self { switches: Some(switches), budgets }
    }

    /// Lets a call in, or says which check was against it. What cannot be evaluated is unavailable.
    pub async fn admit(&self, principal: Principal, call: Call) -> Result<Admitted, Error> {
        if let Some(switches) = &self.switches {
            switches.check(&principal, &call.target).map_err(Refusal::Denied)?;
        }
        let reservation = match &self.budgets {
            Some(budgets) => budgets.reserve(&principal, &call.target).await?,
            None => Reservation::none(),
        };
        Ok(Admitted::new(principal, call, reservation))
    }
}
