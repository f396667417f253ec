//! What workers offer, and what is asked of them.

use bytes::Bytes;

use crate::client::ClientCapabilities;
use crate::id::WorkerId;
use crate::task::Retry;

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
    /// Where the caller leaves it open whether a call becomes a task: the tool begins as a call, and says itself when it
    /// goes on as a task.
    pub decides: bool,
    /// What a client must be able to be asked, or a call makes no sense.
    pub needs: ClientCapabilities,
    /// What becomes of its tasks when a worker is lost.
    pub retry: Retry,
    /// The MCP `Tool` object as JSON, without `execution`.
    pub definition: Bytes,
}

/// A prompt on offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptDef {
    /// Its name, the same as in `definition`.
    pub name: String,
    /// The MCP `Prompt` object as JSON.
    pub definition: Bytes,
}

/// A resource on offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceDef {
    /// Its URI, the same as in `definition`.
    pub uri: String,
    /// The MCP `Resource` object as JSON.
    pub definition: Bytes,
}

/// A family of resources on offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateDef {
    /// Its URI template (RFC 6570), the same as in `definition`.
    pub uri_template: String,
    /// The MCP `ResourceTemplate` object as JSON.
    pub definition: Bytes,
}

impl TemplateDef {
    /// What every URI of the family begins with.
    pub fn literal(&self) -> &str {
        self.uri_template.split('{').next().unwrap_or_default()
    }
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
    /// Its prompts.
    pub prompts: Vec<PromptDef>,
    /// Its resources.
    pub resources: Vec<ResourceDef>,
    /// Its families of resources.
    pub templates: Vec<TemplateDef>,
    /// Whether it completes arguments of its prompts and templates.
    pub completes: bool,
}

/// What a call is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// Call this tool; the arguments are its own (`tools/call`).
    Tool(String),
    /// Get this prompt; the arguments are its own (`prompts/get`).
    Prompt(String),
    /// Read the resource of this URI; there are no arguments (`resources/read`).
    Resource(String),
    /// Complete an argument of this prompt; the arguments are the `argument` and `context` of `completion/complete`.
    CompletePrompt(String),
    /// Complete a variable of this URI template, as [`CompletePrompt`](Self::CompletePrompt).
    CompleteTemplate(String),
}

impl Target {
    /// The MCP method.
    pub const fn method(&self) -> &'static str {
        match self {
            Self::Tool(_) => "tools/call",
            Self::Prompt(_) => "prompts/get",
            Self::Resource(_) => "resources/read",
            Self::CompletePrompt(_) | Self::CompleteTemplate(_) => "completion/complete",
        }
    }

    /// What is called.
    pub fn name(&self) -> &str {
        match self {
            Self::Tool(name)
            | Self::Prompt(name)
            | Self::Resource(name)
            | Self::CompletePrompt(name)
            | Self::CompleteTemplate(name) => name,
        }
    }
}
