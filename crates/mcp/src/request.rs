//! What a client wants, said in no dialect.

use bytes::Bytes;
pub use longhaul_core::{ClientCapabilities, TraceContext};
use longhaul_core::{LogLevel, Target, TaskId, TtlWish};

use crate::jsonrpc::RequestId;

/// A request that is well formed.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Open a session.
    Hello(Hello),
    /// What can you do?
    Discover,
    /// Are you there?
    Ping,
    /// What is there of this kind?
    List {
        /// Which list.
        listing: Listing,
        /// Where the last page ended, sealed.
        cursor: Option<String>,
    },
    /// Call a tool, get a prompt, read a resource, or complete an argument.
    Call(Call),
    /// Tell me when this resource changes (2025-11-25).
    Subscribe {
        /// Its URI.
        uri: String,
    },
    /// No longer tell me (2025-11-25).
    Unsubscribe {
        /// The resource's URI.
        uri: String,
    },
    /// From which level on the session wants log messages (2025-11-25).
    SetLevel(LogLevel),
    /// How is the task?
    Get(TaskRef),
    /// Wait for the task and give me what came of it (2025-11-25).
    Result(TaskRef),
    /// What tasks do I have? (2025-11-25)
    Tasks {
        /// Where the last page ended, sealed.
        cursor: Option<String>,
    },
    /// Stop the task.
    Cancel(TaskRef),
    /// Here is what the task asked for (2026-07-28).
    Update(Update),
    /// Tell me of these, for as long as this stream is open (2026-07-28).
    Listen(Filter),
}

/// What can be listed page by page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Listing {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
}

impl Listing {
    /// The member of a page that holds its items.
    pub(crate) const fn items(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }
}

/// The wish for a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// The version asked for; [`Dialect::negotiate`](crate::Dialect::negotiate) says what it gets.
    pub version: String,
    /// What the client can do.
    pub capabilities: ClientCapabilities,
    /// What the client calls itself, cut short.
    pub client: Option<String>,
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// What is called.
    pub target: Target,
    /// The JSON object of arguments as it came; `{}` if there was none, as for a resource. For a completion, the object of
    /// `argument` and `context`.
    pub arguments: Bytes,
    /// How the caller wants its answer.
    pub wants: Wants,
    /// The JSON string or integer under which the caller wants to hear of progress.
    pub progress_token: Option<Bytes>,
    /// Set if the caller comes back with what it was asked (2026-07-28).
    pub retry: Option<Retry>,
    /// The trace that the call belongs to.
    pub trace: TraceContext,
}

/// How a caller wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// As the response to this request.
    Inline,
    /// As a task, kept so long.
    Task(TtlWish),
    /// As we like: it has declared the tasks extension.
    Either,
}

/// A caller that comes back (MCP 2026-07-28, basic/patterns/mrtr).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// `requestState`, as it came.
    pub state: Option<String>,
    /// `inputResponses`: keys, and their values as JSON.
    pub responses: Vec<(String, Bytes)>,
}

/// `tasks/update`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The task.
    pub task: TaskRef,
    /// `inputResponses`: keys, and their values as JSON.
    pub responses: Vec<(String, Bytes)>,
}

/// What a `subscriptions/listen` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// The list of tools.
    pub tools: bool,
    /// The list of prompts.
    pub prompts: bool,
    /// The lists of resources and templates.
    pub resources: bool,
    /// These resources.
    pub resource_uris: Vec<String>,
    /// These tasks; `None` if it asked for none, which is not an empty list. What cannot be a task id is left out.
    pub tasks: Option<Vec<TaskId>>,
}

/// What a 2026-07-28 request says of its sender, in every request anew.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Envelope {
    /// What it can be asked.
    pub capabilities: ClientCapabilities,
    /// Whether it declares the tasks extension.
    pub tasks: bool,
    /// Whether it declares the tasks of sessions: it is of both eras, and may have made a task in a session.
    pub session_tasks: bool,
    /// From which level on it wants log messages of this request.
    pub log_level: Option<LogLevel>,
    /// What the client calls itself, cut short.
    pub client: Option<String>,
    /// The trace that it belongs to.
    pub trace: TraceContext,
}

/// A task that a client named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRef {
    /// Its id; `None` if what the client wrote cannot be one, which needs no query to be not found.
    pub id: Option<TaskId>,
}

/// A notification from a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// The session is in use.
    Initialized,
    /// The client no longer waits for the answer to a request of this session.
    Cancelled {
        /// Which request.
        request: RequestId,
    },
    /// One that changes nothing here, or makes no sense.
    Other,
}
