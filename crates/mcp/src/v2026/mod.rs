//! MCP 2026-07-28 with the extension `io.modelcontextprotocol/tasks`: every request stands for itself.

pub mod notify;

mod envelope;
mod header;
mod param_headers;
mod read;
mod write;

pub use envelope::envelope;
pub use param_headers::ParamHeaders;
pub(crate) use param_headers::without_bad_headers;
pub use read::read;
pub use write::write;

/// The header that names the revision.
pub(crate) const VERSION_HEADER: &str = "mcp-protocol-version";
/// The member of `_meta` that names the revision.
pub(crate) const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` that says from which level on the sender wants log messages.
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The member of `_meta` that names a subscription.
const META_SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
