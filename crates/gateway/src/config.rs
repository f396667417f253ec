//! What the operator decides.

use std::time::Duration;

use longhaul_core::limits::PAYLOAD_BYTES_MAX;

/// The gateway's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The names under which clients may reach the gateway (`Host`), with or without a port. Empty: those of the
    /// loopback interface if it listens there, else any.
    pub allowed_hosts: Vec<String>,
    /// The web origins whose pages may call the gateway (`Origin`). Empty: those of the loopback interface if it listens
    /// there, else none.
    pub allowed_origins: Vec<String>,
    /// `mcp_tasks_enabled` and `mcp_tasks_legacy_enabled`: whether calls of 2025-11-25 may become tasks.
    pub tasks_legacy: bool,
    /// `mcp_tasks_enabled` and `mcp_tasks_extension_enabled`: whether calls of 2026-07-28 may become tasks.
    pub tasks_extension: bool,
    /// How long the creation of a task of 2026-07-28 waits for its end, to answer with the result instead of the task.
    /// Zero: it does not wait.
    pub task_shortcut: Duration,
    /// `mcp_task_input_timeout_s`: how long a call that is no task waits for the answers to its questions.
    pub input_timeout: Duration,
    /// The largest request body, in bytes.
    pub request_bytes_max: usize,
    /// The largest result of a call, in bytes.
    pub result_bytes_max: usize,
    /// `mcp_task_result_wait_s`: how long a caller of `tasks/result` that takes no stream waits.
    pub result_wait: Duration,
    /// `mcp_task_poll_interval_ms`: how often clients are told to ask for a task.
    pub poll_interval_ms: u64,
    /// Items on one page of `tools/list` and of the other lists of what is offered.
    pub tools_page: usize,
    /// What `initialize` and `server/discover` say for the model's ears.
    pub instructions: Option<String>,
    /// Connections at a time; more wait to be accepted.
    pub connections_max: usize,
    /// Requests in flight, streams included; more are refused with 503.
    pub requests_max: usize,
    /// Bytes of request bodies in memory; requests beyond that are refused with 503.
    pub bodies_bytes_max: usize,
    /// From the start of a drain until the last connection is cut.
    pub drain_timeout: Duration,
    /// How often and how long; tests scale them down.
    pub pace: Pace,
}

/// How often things are done and how long they may take.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between two comments on a quiet stream, shorter than the idle timeout of any proxy.
    pub keep_alive: Duration,
    /// How long a call may take before its answer becomes a stream.
    pub stream_after: Duration,
    /// How long a client may refuse to read before its connection is cut.
    pub write_stall: Duration,
    /// How long a new connection may take to its first request.
    pub first_request: Duration,
    /// How long a request's body may take.
    pub body: Duration,
    /// How often watched tasks are read again although hints arrive.
    pub floor: Duration,
    /// How often watched tasks are read again while hints do not arrive.
    pub floor_deaf: Duration,
    /// How often the list of tools is read again without a hint.
    pub tools: Duration,
    /// How long the task-store may be out of reach before the gateway says that it cannot serve.
    pub store_away: Duration,
    /// How often what is known of sessions is read again without a hint.
    pub sessions: Duration,
    /// How long a call that is no task waits for a worker while there is none.
    pub worker_wait: Duration,
    /// How long to wait before a lost watch on a resource is begun again.
    pub watch_again: Duration,
    /// How long a stream carries the questions of a task unless it renews that.
    pub carry: Duration,
    /// How often it does.
    pub carry_again: Duration,
    /// How long a session's stream leaves the questions of a task to a stream that waits for its result.
    pub carry_grace: Duration,
    /// How long the answer of a call is kept for a client that lost its stream.
    pub answer_kept: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(15),
            stream_after: Duration::from_secs(1),
            write_stall: Duration::from_secs(30),
            first_request: Duration::from_secs(10),
            body: Duration::from_secs(30),
            floor: Duration::from_secs(10),
            floor_deaf: Duration::from_secs(2),
            tools: Duration::from_secs(5),
            // Longer than one request that is lost, and the next.
            store_away: Duration::from_secs(15),
            sessions: Duration::from_secs(2),
            worker_wait: Duration::from_secs(5),
            watch_again: Duration::from_secs(1),
            carry: Duration::from_secs(5),
            carry_again: Duration::from_secs(2),
            carry_grace: Duration::from_secs(1),
            answer_kept: Duration::from_secs(60),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tasks_legacy: true,
            tasks_extension: true,
            task_shortcut: Duration::ZERO,
            input_timeout: Duration::from_secs(600),
            request_bytes_max: PAYLOAD_BYTES_MAX,
            result_bytes_max: PAYLOAD_BYTES_MAX,
            result_wait: Duration::from_secs(30),
            poll_interval_ms: 1000,
            tools_page: 50,
            instructions: None,
            connections_max: 20_000,
            requests_max: 20_000,
            bodies_bytes_max: 256 * 1024 * 1024,
            drain_timeout: Duration::from_secs(25),
            pace: Pace::default(),
        }
    }
}
