//! What is counted. Labels come from closed sets only.

use std::time::Instant;

use longhaul_mcp::errors::code;
use opentelemetry::metrics::{Counter, Histogram, UpDownCounter};
use opentelemetry::{KeyValue, global};

/// The boundaries that the semantic conventions give for `mcp.server.operation.duration`, in seconds.
const DURATIONS: [f64; 14] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// What stands for a name that is not ours.
const OTHER: &str = "_other";

/// The gateway's instruments.
#[derive(Debug)]
pub(crate) struct Metrics {
    operations: Histogram<f64>,
    refusals: Counter<u64>,
    inputs: Counter<u64>,
    streams: UpDownCounter<i64>,
}

impl Metrics {
    /// Takes them from the meter provider that is installed by now.
    pub(crate) fn new() -> Self {
        let meter = global::meter("longhaul");
        Self {
            operations: meter
                .f64_histogram("mcp_server_operation_duration_seconds")
                .with_description("How long MCP requests took, up to the end of their answer.")
                .with_boundaries(DURATIONS.to_vec())
                .build(),
            refusals: meter
                .u64_counter("longhaul_task_refusals")
                .with_description("Calls that were refused, by what refused them.")
                .build(),
            inputs: meter
                .u64_counter("longhaul_input_delivery")
                .with_description("Questions that were put to clients, by what carried them.")
                .build(),
            streams: meter.i64_up_down_counter("longhaul_streams").with_description("Open streams.").build(),
        }
    }

    /// A call was refused.
    pub(crate) fn refused(&self, by: &'static str) {
        self.refusals.add(1, &[KeyValue::new("refused_by", by)]);
    }

    /// A client was asked.
    pub(crate) fn asked(&self, carrier: &'static str) {
        self.inputs.add(1, &[KeyValue::new("carrier", carrier)]);
    }

    fn stream(&self, change: i64, kind: &'static str) {
        self.streams.add(change, &[KeyValue::new("kind", kind)]);
    }
}

/// The name of a method as a label.
pub(crate) fn method_label(method: &str) -> &'static str {
    const KNOWN: [&str; 20] = [
        "initialize",
        "server/discover",
        "ping",
        "logging/setLevel",
        "tools/list",
        "tools/call",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "completion/complete",
        "subscriptions/listen",
        "tasks/get",
        "tasks/result",
        "tasks/list",
        "tasks/cancel",
        "tasks/update",
    ];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or(OTHER)
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Well.
    Well,
    /// With a result that says `isError`.
    ToolError,
    /// With a JSON-RPC error.
    Error(i32),
    /// Nobody waited for the answer any more.
    Abandoned,
}

/// An operation that is timed until it ends, or until nobody waits for it.
#[derive(Debug)]
pub(crate) struct Operation {
    gateway: std::sync::Arc<crate::Shared>,
    started: Instant,
    method: &'static str,
    version: &'static str,
    tool: Option<std::sync::Arc<str>>,
    ended: Ended,
}

impl Operation {
    pub(crate) fn start(gateway: &std::sync::Arc<crate::Shared>, method: &'static str, version: &'static str) -> Self {
        let gateway = gateway.clone();
        Self { gateway, started: Instant::now(), method, version, tool: None, ended: Ended::Abandoned }
    }

    /// Names the tool: a registered one, or `None`.
    pub(crate) fn tool(&mut self, name: Option<std::sync::Arc<str>>) {
        self.tool = Some(name.unwrap_or_else(|| OTHER.into()));
    }

    /// It has ended.
    pub(crate) fn end(mut self, how: Ended) {
        self.ended = how;
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let mut labels =
            vec![KeyValue::new("mcp_method_name", self.method), KeyValue::new("mcp_protocol_version", self.version)];
        if let Some(tool) = self.tool.take() {
            labels.push(KeyValue::new("gen_ai_tool_name", tool));
        }
        match self.ended {
            Ended::Well => {}
            Ended::ToolError => labels.push(KeyValue::new("error_type", "tool_error")),
            Ended::Abandoned => labels.push(KeyValue::new("error_type", "abandoned")),
            Ended::Error(code) => labels.push(KeyValue::new("error_type", error_label(code))),
        }
        self.gateway.metrics.operations.record(self.started.elapsed().as_secs_f64(), &labels);
    }
}

/// A tool may answer with any code; only ours become labels.
fn error_label(error: i32) -> &'static str {
    match error {
        code::PARSE => "-32700",
        code::INVALID_REQUEST => "-32600",
        code::METHOD_NOT_FOUND => "-32601",
        code::INVALID_PARAMS => "-32602",
        code::INTERNAL => "-32603",
        code::RESOURCE_NOT_FOUND => "-32002",
        code::HEADER_MISMATCH => "-32020",
        code::MISSING_CAPABILITY => "-32021",
        code::UNSUPPORTED_VERSION => "-32022",
        code::WAIT_LAPSED => "-31408",
        code::REFUSED => "-31403",
        code::LIMIT => "-31429",
        code::CANCELLED => "-31499",
        _ => OTHER,
    }
}

/// Counts a stream for as long as it lives.
#[derive(Debug)]
pub(crate) struct OpenStream {
    gateway: std::sync::Arc<crate::Shared>,
    kind: &'static str,
}

impl OpenStream {
    pub(crate) fn new(gateway: &std::sync::Arc<crate::Shared>, kind: &'static str) -> Self {
        gateway.streams.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        gateway.metrics.stream(1, kind);
        Self { gateway: gateway.clone(), kind }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.gateway.streams.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        self.gateway.metrics.stream(-1, self.kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_from_closed_sets() {
        for method in ["tools/call", "server/discover", "subscriptions/listen", "tasks/update", "logging/setLevel"] {
            assert_eq!(method_label(method), method);
        }
        assert_eq!(method_label("tools/destroy"), OTHER);
        assert_eq!((error_label(-32021), error_label(7)), ("-32021", OTHER));
    }
}
