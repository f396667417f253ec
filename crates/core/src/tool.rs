//! What workers offer.

use bytes::Bytes;

use crate::id::WorkerId;

/// Whether a tool's calls may become tasks (`execution.taskSupport`, MCP 2025-11-25 schema, `ToolExecution`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TaskSupport {
    /// Never.
    Forbidden,
    /// If the client asks.
    #[default]
    Optional,
    /// Always.
    Required,
}

/// A tool on offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolDef {
    /// Its name, the same as in `definition`.
    pub name: String,
    /// Whether its calls may become tasks.
    pub task_support: TaskSupport,
    /// The MCP `Tool` object as JSON, without `execution`.
    pub definition: Bytes,
}

/// A worker and what it offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Who it is.
    pub id: WorkerId,
    /// Where gateways reach it for calls that are not tasks; `None` if it takes tasks only.
    pub url: Option<String>,
    /// Its tools.
    pub tools: Vec<ToolDef>,
}
