//! Run wrapped MCP servers.
//!
//! Each upstream server of the [`Config`] is started or connected to, and what it offers is offered by a worker: tools and
//! prompts as `name.tool`, resources and their URI templates as `name+uri`. Calls of tools may become tasks, with no
//! change to the server. What a server says of these things and answers goes through as it came: unknown members, the
//! order of keys and the digits of numbers included. What it asks during a call, it asks whoever calls.

mod agent;
mod call;
mod config;
mod inner;
mod runner;
mod upstream;
mod wire;
mod wrap;

pub use agent::{ASK_AGENT, AgentConfig, AgentConfigError, Prices, ProviderConfig, SCRIPTED, Speech, demo};
pub use config::{Config, ConfigError, Interrupted, Speaks, Support, ToolConfig, UPSTREAMS_MAX, UpstreamConfig};
pub use runner::{BuildError, Runner, UpstreamStatus};
