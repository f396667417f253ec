//! Read and write MCP: bytes in, values out.
//!
//! A body becomes a [`jsonrpc::Message`], then a neutral [`Request`] or [`Notification`]; a neutral [`Reply`], or an
//! [`RpcError`], becomes a body again. The rest of Longhaul knows no MCP field name. No HTTP, no async, no clock, no
//! chance: [`seal`] takes its nonces and the time as arguments.

#![warn(missing_docs)]

pub mod dialect;
pub mod errors;
pub mod jsonrpc;
pub mod reply;
pub mod request;
pub mod scan;
pub mod seal;
pub mod sse;
pub mod v2025;

mod json;

pub use dialect::Dialect;
pub use errors::Denial;
pub use jsonrpc::{Malformed, Message, Params, RequestId, RpcError, error_body};
pub use reply::Reply;
pub use request::{Call, Notification, Request, TaskRef, TraceContext, Wants};
