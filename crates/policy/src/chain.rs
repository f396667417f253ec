//! The order of the checks.

use bytes::Bytes;
use longhaul_core::{Principal, Refusal, Target};

use crate::admitted::Admitted;

/// What a caller wants done. The checks see the very bytes that the tool will see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What is called.
    pub target: Target,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
}

/// A reason to say no, if it finds one.
type Check = fn(&Principal, &Call) -> Result<(), Refusal>;

/// The checks that come before the task-store's own, in their order. The limits on open tasks are not among them: only
/// the statement that stores a task can count exactly.
const ORDER: [Check; 0] = [];

/// Says yes or no.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chain;

impl Chain {
    /// Lets a call in, or says which check was against it.
    pub fn admit(&self, principal: Principal, call: Call) -> Result<Admitted, Refusal> {
        for check in ORDER {
            check(&principal, &call)?;
        }
        Ok(Admitted::new(principal, call))
    }
}
