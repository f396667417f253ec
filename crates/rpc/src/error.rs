//! What can go wrong on the way to another role.

use longhaul_core::Refusal;

/// Why a verb has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The other role said no: a normal answer.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The other role could not be reached, or could not reach what it needs; trying again may help.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// As [`Error::Unavailable`], and what was asked for has surely not begun: somebody else may do it.
    #[error("not begun: {0}")]
    NotBegun(String),
    /// The other role failed; trying again will not help.
    #[error("fault: {0}")]
    Fault(String),
}
