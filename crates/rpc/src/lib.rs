//! Carry core values over gRPC: the seam where the roles meet.
//!
//! A role implements [`Tasks`], [`Work`], [`Calls`] or [`Control`] and is put behind a [`Server`]; another role holds
//! the same trait as a client from [`client`]. Generated types never leave this crate. [`Links`] turns a URL into a
//! connection: `https://host:port` with certificates, `http://host:port` without, or `memory://name` for roles in one
//! process.

#![warn(missing_docs)]

mod audit;
mod budgets;
mod calls;
pub mod client;
mod control;
mod convert;
mod credentials;
mod error;
mod identity;
mod link;
mod pipe;
mod server;
mod switches;
mod tasks;
mod tls;
pub mod trace;
mod work;

pub use audit::{AUDIT_PAGE, AuditChain, AuditRange, Batch, CHAINS_PAGE, RECORDS_MAX};
pub use budgets::{BUDGET_LEASES_MAX, BUDGETS_PAGE, BudgetLease, BudgetReturn, BudgetState, BudgetWish};
pub use calls::{Answers, Asked, CallEvent, CallEvents, Calls, Invocation, Line, Resume};
pub use control::{
    Changes, Control, SESSION_NOTES_MAX, SESSIONS_PAGE, SUBSCRIPTIONS_MAX, SessionNote, SessionPosition, Stopped,
};
pub use credentials::{
    CREDENTIALS_MAX, CREDENTIALS_PAGE, CredentialChange, CredentialInfo, KeyDigest, NAME_BYTES_MAX, NewCredential,
};
pub use error::Error;
pub use identity::Roles;
pub use link::{Links, Listener, MemoryListener, ServiceToken};
pub use server::{Health, Server};
pub use switches::{SWITCHES_MAX, SWITCHES_PAGE, Switch, Switched, WHY_BYTES_MAX, wrong_switch};
pub use tasks::{Page, Position, TaskCount, Tasks};
pub use tls::Tls;
pub use work::{Assignment, Claim, Directive, Directives, Report, Work};

/// The generated types.
pub(crate) mod pb {
    #![expect(
        unused_qualifications,
        clippy::allow_attributes,
        clippy::large_enum_variant,
        reason = "generated from proto/, which has the documentation"
    )]
    tonic::include_proto!("longhaul.v1");
}
