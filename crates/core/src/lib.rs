//! What a task is and what may happen to it.
//!
//! No clock, no chance, no I/O: the same input gives the same output. A verb ([`verbs`]) takes the present [`Task`]
//! and answers with the next one, as a [`Change`], or with a [`Refusal`].
//!
//! The words: a *task* belongs to a *principal*; its *phase* is queued, running or ended; an ended task has an
//! *outcome*; a running one is held by a *worker* under a *lease*, in its n-th *attempt*; every visible change raises
//! its *version*.

#![warn(missing_docs)]

pub mod audit;
pub mod budget;
pub mod client;
pub mod control;
pub mod id;
pub mod input;
pub mod limits;
pub mod new_task;
pub mod principal;
pub mod refusal;
pub mod task;
pub mod time;
pub mod tool;
pub mod trace;
pub mod verbs;

pub use audit::Event;
pub use budget::{Amount, BudgetKey, BudgetWindow, Delta, Limit, Reserved, Window};
pub use client::{ClientCapabilities, LogLevel, LogMessage};
pub use control::Scope;
pub use id::{LeaseToken, TaskId, TenantId, WorkerId};
pub use input::{Input, InputKey, InputRequest, InputResponse, InputState, Question};
pub use new_task::{Claimed, NewTask, TtlLimits, TtlWish};
pub use principal::{Caller, Principal};
pub use refusal::{Check, Denied, LimitScope, Refusal};
pub use task::{CallError, Ending, Fence, Interruption, Lease, OnInterrupt, Outcome, Phase, Progress, Retry, Task};
pub use time::{Clock, TestClock, Timestamp};
pub use tool::{PromptDef, ResourceDef, Target, TaskSupport, TemplateDef, ToolDef, WorkerInfo};
pub use trace::TraceContext;
pub use verbs::Change;
