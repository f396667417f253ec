//! What gateways ask of workers: calls that are not tasks.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use longhaul_core::{Outcome, Principal, Progress};

use crate::Error;

/// A worker, as a gateway sees it.
#[async_trait]
pub trait Calls: Send + Sync {
    /// Runs a tool. Dropping the events abandons the call, and the run is told to stop.
    async fn invoke(&self, call: Invocation) -> Result<CallEvents, Error>;
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Invocation {
    /// Whose call it is.
    pub principal: Principal,
    /// The tool.
    pub tool: String,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
    /// Whether the caller wants to hear of progress.
    pub progress: bool,
}

/// What a call brings, in order: any progress, then one outcome. An error means that the worker is gone.
pub type CallEvents = BoxStream<'static, Result<CallEvent, Error>>;

/// One word from a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallEvent {
    /// How far it is.
    Progress(Progress),
    /// The last word.
    Outcome(Outcome),
}
