//! What is said on the bus.

use longhaul_core::TaskId;

/// Something changed; read again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A task is at this version; version 1 is a new one that waits for a worker.
    Task {
        /// The task.
        id: TaskId,
        /// Its version.
        version: u64,
    },
    /// Something other than a task.
    Control(Control),
    /// This process lost its connection, or has it back: hints were lost, read everything again. Never sent.
    Missed,
}

/// What changed beside tasks. Tags are opaque digests: they name no person and give no right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Control {
    /// The workers or their tools.
    Tools,
    /// What is known of sessions: which have ended, and what they want to hear of logs.
    Sessions,
    /// A session subscribes to other resources than before.
    Subscriptions {
        /// The session's tag.
        session: String,
    },
    /// A session has a new notification stream: older ones on other replicas close.
    StreamOpened {
        /// The session's tag.
        session: String,
        /// The new stream, random.
        stream: String,
    },
    /// A session created a task.
    SessionTask {
        /// The session's tag.
        session: String,
        /// The task.
        id: TaskId,
    },
    /// The client no longer wants the answer of a request that some replica holds.
    RequestCancelled {
        /// A digest of session and request id.
        request: String,
    },
    /// Agent credentials.
    Credentials,
    /// Kill switches.
    Switches,
}
