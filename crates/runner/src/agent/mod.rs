//! `ask_agent`: whole agents as one tool.
//!
//! An agent is a model, what it is told, and the tools it may use. A run of it is a tool call like any other: it may be a
//! task, its tools ask its caller, and when its worker is lost another one goes on from the journal. What a tool answers is
//! data to the model: which tools there are is decided here, whatever the model says.

mod anthropic;
mod config;
mod model;
mod openai;
mod run;
mod scripted;
mod step;
mod stream;

use std::sync::Arc;
use std::time::Duration;

pub use config::{AgentConfig, AgentConfigError, Prices, ProviderConfig, SCRIPTED, Speech, demo};
use longhaul_policy::glob;
use longhaul_worker::{Answer, Context, Failure, OnInterrupt, Tool};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use self::run::{Run, Toolbox};
use self::step::Limits;
use self::stream::Remote;
use crate::inner::Inner;

/// What the tool is called.
pub const ASK_AGENT: &str = "ask_agent";
/// The longest message to an agent, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// An agent, ready to run.
struct Agent {
    name: String,
    description: String,
    system: String,
    mind: Mind,
    tools: Vec<String>,
    limits: Limits,
    max_time: Duration,
    attempts: u32,
    output_bytes: usize,
    prices: Prices,
}

enum Mind {
    Remote(Remote),
    /// No model.
    Scripted,
}

impl Agent {
    fn new(config: &AgentConfig, providers: &[ProviderConfig]) -> Result<Self, AgentConfigError> {
        let wrong = |what| AgentConfigError::agent(&config.name, what);
        let mind = match providers.iter().find(|provider| provider.name == config.provider) {
            Some(provider) => {
                let remote = Remote::new(provider, &config.model);
                Mind::Remote(remote.map_err(|what| AgentConfigError::provider(&provider.name, what))?)
            }
            None => Mind::Scripted,
        };
        Ok(Self {
            name: config.name.clone(),
            description: config.description.clone(),
            system: config.instructions().map_err(wrong)?,
            mind,
            tools: config.tools.clone(),
            limits: Limits {
                steps: config.max_steps,
                tokens: config.max_tokens,
                micro_usd: (config.max_usd * 1e6) as u64,
                answer_tokens: config.max_answer_tokens,
            },
            max_time: config.max_time(),
            attempts: config.max_attempts,
            output_bytes: config.max_output_bytes,
            prices: config.prices,
        })
    }

    /// Whether it may use a tool. None may call agents in turn.
    fn may_use(&self, tool: &str) -> bool {
        tool != ASK_AGENT && glob::any(&self.tools, tool)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    agent: String,
    message: String,
}

/// The tool, if there are agents. `tools` is all that the runner has, as it changes; their calls pass `inner`.
pub(crate) fn tool(
    providers: &[ProviderConfig],
    agents: &[AgentConfig],
    tools: watch::Receiver<Arc<[Tool]>>,
    inner: Inner,
) -> Result<Option<Tool>, AgentConfigError> {
    config::check(providers, agents)?;
    for provider in providers {
        Remote::new(provider, "").map_err(|what| AgentConfigError::provider(&provider.name, what))?;
    }
    let ready: Arc<[Agent]> = agents.iter().map(|config| Agent::new(config, providers)).collect::<Result<_, _>>()?;
    let Some(attempts) = agents.iter().map(|agent| agent.max_attempts).max() else { return Ok(None) };
    let definition = definition(&ready).to_string();
    let run = move |context: Context, arguments: bytes::Bytes| {
        let (agents, tools, inner) = (ready.clone(), tools.clone(), inner.clone());
        async move { ask(&agents, &tools, &inner, context, &arguments).await }
    };
    Ok(Some(Tool::raw(definition.as_bytes(), run).on_interrupt(OnInterrupt::Resume).max_attempts(attempts)))
}

fn definition(agents: &[Agent]) -> serde_json::Value {
    let one = |agent: &Agent| json!({ "const": agent.name, "description": agent.description });
    json!({
        "name": ASK_AGENT,
        "title": "Ask an agent",
        "description": "Has an agent work on something, with tools of its own, until it has an answer. This may take long.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "agent": {
                    "type": "string",
                    "description": "Which agent.",
                    "oneOf": agents.iter().map(one).collect::<Vec<_>>(),
                },
                "message": { "type": "string", "description": "What it is to do, with all that it has to know." },
            },
            "required": ["agent", "message"],
            "additionalProperties": false,
        },
    })
}

async fn ask(
    agents: &[Agent],
    tools: &watch::Receiver<Arc<[Tool]>>,
    inner: &Inner,
    context: Context,
    arguments: &[u8],
) -> Result<Answer, Failure> {
    let Arguments { agent, message } =
        serde_json::from_slice(arguments).map_err(|error| Failure::tool(format!("Invalid arguments: {error}")))?;
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Failure::tool(format!("`message` is longer than {MESSAGE_BYTES_MAX} bytes")));
    }
    let Some(agent) = agents.iter().find(|known| known.name == agent) else {
        let names = agents.iter().map(|agent| &*agent.name).collect::<Vec<_>>().join(", ");
        return Err(Failure::tool(format!("There is no agent {agent:?}. There are: {names}.")));
    };
    let toolbox = Toolbox::of(tools.borrow().iter(), |name| agent.may_use(name));
    Run::new(agent, &context, inner, toolbox, message).go().await
}
