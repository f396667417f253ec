//! Maxima that more than one role must agree on.

/// The largest stored result by default, and the largest request body, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a gRPC message may carry beside its payload, in bytes.
pub const MESSAGE_OVERHEAD_BYTES: usize = 256 * 1024;
/// The longest status or progress message kept, in bytes; longer ones are cut at a character.
pub const STATUS_MESSAGE_BYTES_MAX: usize = 1024;
/// The longest progress token accepted, in bytes of JSON.
pub const PROGRESS_TOKEN_BYTES_MAX: usize = 256;
/// The longest tool name (MCP 2025-11-25, server/tools).
pub const TOOL_NAME_BYTES_MAX: usize = 128;
/// Leases in one heartbeat; a worker that holds more sends several.
pub const HEARTBEAT_LEASES_MAX: usize = 10_000;
/// Entries in the journal of a task.
pub const JOURNAL_ENTRIES_MAX: u32 = 1_000;
/// Bytes of them together.
pub const JOURNAL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Tasks on one page of a list.
pub const LIST_PAGE: u32 = 50;

/// Cuts `text` to at most `max` bytes, at a character.
pub fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
