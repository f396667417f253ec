//! Read and write MCP: bytes in, values out.
//!
//! A body becomes a [`jsonrpc::Message`], whose [`era`](fn@era) says who reads it: [`v2025`] or [`v2026`] make a neutral
//! [`Request`] of it; a neutral [`Reply`], or a [`Rejection`], becomes a body again. The rest of Longhaul knows no MCP
//! field name. No HTTP, no async, no clock, no chance: [`seal`] takes its nonces and the time as arguments.

#![warn(missing_docs)]

pub mod answer;
pub mod canonical;
pub mod dialect;
pub mod era;
pub mod errors;
pub mod jsonrpc;
pub mod reply;
pub mod request;
pub mod scan;
pub mod seal;
pub mod sse;
pub mod v2025;
pub mod v2026;

mod json;
mod listed;
mod notification;
mod params;
mod question;
mod time;

pub use answer::{QuestionKind, input_response};
pub use canonical::canonical;
pub use dialect::{Dialect, SUPPORTED_VERSIONS};
pub use era::{Era, Header, Headers, era};
pub use errors::{Denial, Rejection, Status, outcome_status, withheld};
pub use jsonrpc::{Malformed, Message, Params, RequestId, RpcError, Unanswered, error_body};
pub use listed::listed;
pub use reply::{Features, Reply};
pub use request::{
    Call, Envelope, Filter, Listing, Notification, Request, Retry, TaskRef, TraceContext, Update, Wants,
};

use bytes::Bytes;

/// The body of the response to request `id`.
pub fn write(dialect: Dialect, id: &RequestId, reply: &Reply<'_>) -> Bytes {
    match dialect {
        Dialect::V2025_06_18 | Dialect::V2025_11_25 => v2025::write(dialect, id, reply),
        Dialect::V2026_07_28 => v2026::write(id, reply),
    }
}
