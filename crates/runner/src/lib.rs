//! Run wrapped MCP servers as tools.
//!
//! Each upstream server of the [`Config`] is started or connected to, and its tools are offered by a worker as
//! `name.tool`. Their calls may become tasks, with no change to the server. What a server says of its tools and answers
//! goes through as it came: unknown members, the order of keys and the digits of numbers included.

mod config;
mod runner;
mod tool;
mod upstream;
mod wire;

pub use config::{Config, ConfigError, Support, ToolConfig, UPSTREAMS_MAX, UpstreamConfig};
pub use runner::{Runner, UpstreamStatus};
