//! The order of the checks.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_core::{Principal, Refusal, Target};

use crate::admitted::Admitted;
use crate::switch::Switches;

/// What a caller wants done. The checks see the very bytes that the tool will see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What is called.
    pub target: Target,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
}

/// Says yes or no: whether an operator has switched the call off. The limits on open tasks are not among the checks: only the
/// statement that stores a task can count exactly.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    switches: Option<Arc<Switches>>,
}

impl Chain {
    /// A chain with this copy of what is switched off.
    pub fn new(switches: Arc<Switches>) -> Self {
        Self { switches: Some(switches) }
    }

    /// Lets a call in, or says which check was against it.
    pub fn admit(&self, principal: Principal, call: Call) -> Result<Admitted, Refusal> {
        if let Some(switches) = &self.switches {
            switches.check(&principal, &call.target).map_err(Refusal::Denied)?;
        }
        Ok(Admitted::new(principal, call))
    }
}
