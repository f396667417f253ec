//! One run of an agent: what its steps say is done, and each finished one is in the journal before the next begins.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use longhaul_core::{Outcome, Refusal, Target, limits};
use longhaul_policy::Error;
use longhaul_worker::{Answer, Context, Ended, Failure, JournalError, OnInterrupt, Status, Tool};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::config::Prices;
use super::model::{Said, ToolAnswer, ToolCall, ToolSpec, Turn, Usage};
use super::step::{End, Event, Next, State};
use super::{ASK_AGENT, Agent, Mind};
use crate::inner::Inner;

/// Calls of one answer that are made at a time.
const CALLS_AT_A_TIME: usize = 8;
/// The largest answer of a tool that its model reads, in bytes; the rest is cut off.
const TOOL_TEXT_BYTES_MAX: usize = 64 * 1024;
/// The longest name that providers take for a tool.
const TOOL_NAME_BYTES_MAX: usize = 64;
/// The longest that it waits because a check says when to come back; a budget may say "next month".
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The member of a result's `_meta` that tells what a run has used.
const USAGE: &str = "longhaul.dev/usage";

/// Why a run stopped before its end.
enum Halt {
    Ended,
    JournalFull,
    Failed(String),
}

impl From<Ended> for Halt {
    fn from(_: Ended) -> Self {
        Self::Ended
    }
}

impl From<JournalError> for Halt {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Ended(_) => Self::Ended,
            JournalError::Full | JournalError::TooLarge => Self::JournalFull,
        }
    }
}

/// A run.
pub(super) struct Run<'a> {
    agent: &'a Agent,
    context: &'a Context,
    inner: &'a Inner,
    tools: Toolbox,
    state: State,
}

/// The tools that an agent may use, under the names its model knows.
pub(super) struct Toolbox {
    specs: Vec<ToolSpec>,
    tools: HashMap<String, Tool>,
}

impl Toolbox {
    /// Of all tools, those that are allowed.
    pub(super) fn of<'a>(all: impl IntoIterator<Item = &'a Tool>, is_allowed: impl Fn(&str) -> bool) -> Self {
        let mut allowed: Vec<&Tool> = all.into_iter().filter(|tool| is_allowed(tool.called())).collect();
        allowed.sort_by(|one, other| one.called().cmp(other.called()));
        let (mut specs, mut tools) = (Vec::new(), HashMap::new());
        for tool in allowed {
            let Some((description, parameters)) = tool.announce().ok().and_then(|it| described(&it.definition)) else {
                continue;
            };
            let name = free(tool.called(), &tools);
            tools.insert(name.clone(), tool.clone());
            specs.push(ToolSpec { name, description, parameters });
        }
        Self { specs, tools }
    }
}

fn described(definition: &[u8]) -> Option<(String, Box<RawValue>)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Definition {
        #[serde(default)]
        description: String,
        input_schema: Box<RawValue>,
    }
    let Definition { description, input_schema } = serde_json::from_slice(definition).ok()?;
    Some((description, input_schema))
}

/// A name that providers take and that no other tool has.
fn free(name: &str, taken: &HashMap<String, Tool>) -> String {
    let fit = |char: char| if char.is_ascii_alphanumeric() || "_-".contains(char) { char } else { '_' };
    let plain: String = name.chars().map(fit).take(TOOL_NAME_BYTES_MAX).collect();
    let numbered = |nth: u32| {
        let end = format!("_{nth}");
        format!("{}{end}", &plain[..plain.len().min(TOOL_NAME_BYTES_MAX - end.len())])
    };
    std::iter::once(plain.clone()).chain((2..).map(numbered)).find(|name| !taken.contains_key(name)).unwrap_or_default()
}

impl<'a> Run<'a> {
    pub(super) fn new(
        agent: &'a Agent,
        context: &'a Context,
        inner: &'a Inner,
        tools: Toolbox,
        message: String,
    ) -> Self {
        Self { agent, context, inner, tools, state: State::new(message) }
    }

    /// Goes on from the journal until it is over.
    pub(super) async fn go(mut self) -> Result<Answer, Failure> {
        let context = self.context;
        let end = tokio::select! {
            biased;
            () = context.cancelled() => return Err(Ended::Stopped.into()),
            end = self.drive() => end,
        };
        match end {
            Ok(end) => Ok(self.answer(end)),
            Err(Halt::Ended) => Err(Ended::Stopped.into()),
            Err(Halt::JournalFull) => Ok(self.stopped("its journal is full")),
            Err(Halt::Failed(why)) => Ok(self.stopped(&why)),
        }
    }

    async fn drive(&mut self) -> Result<End, Halt> {
        if self.context.as_task().is_some_and(|task| task.attempt > self.agent.attempts) {
            return Err(Halt::Failed("its workers were lost too often".into()));
        }
        for entry in self.context.journal().await? {
            let event = serde_json::from_slice(&entry).map_err(|_| Halt::Failed("its journal is unreadable".into()))?;
            self.state.apply(event);
        }
        for call in self.state.lost() {
            let text = "The outcome of this call is unknown: the worker was lost while it was made. It may have had its \
                        effect. It was not made again.";
            self.happened(Event::Answered { call, answer: error(text), worked_ms: 0 }).await?;
        }
        let left = self.agent.max_time.saturating_sub(Duration::from_millis(self.state.worked_ms()));
        let (context, end) = (self.context, self.context.worked() + left);
        tokio::select! {
            biased;
            end = self.steps() => end,
            () = context.until_worked(end) => Ok(End::Time),
        }
    }

    async fn steps(&mut self) -> Result<End, Halt> {
        let before = self.state.worked_ms();
        let started = self.context.worked();
        let context = self.context;
        let worked = || before + u64::try_from((context.worked() - started).as_millis()).unwrap_or(u64::MAX);
        loop {
            match self.state.next(&self.agent.limits, self.cost()) {
                Next::Ask { tokens_max } => {
                    self.tell("asks its model").await?;
                    let said = self.ask(tokens_max).await?;
                    self.happened(Event::Said { said, worked_ms: worked() }).await?;
                }
                Next::Call(calls) => self.call(calls, &worked).await?,
                Next::End(end) => return Ok(end),
            }
        }
    }

    async fn ask(&self, tokens_max: u64) -> Result<Said, Halt> {
        let itself = Target::Tool(ASK_AGENT.into());
        while let Err(error) = self.inner.go_on(self.context.principal(), &itself) {
            self.wait_out(error).await?.map_err(|error| Halt::Failed(refused(&error)))?;
        }
        let turn =
            Turn { system: &self.agent.system, tools: &self.tools.specs, history: self.state.history(), tokens_max };
        match &self.agent.mind {
            Mind::Remote(model) => model.turn(&turn).await.map_err(|error| Halt::Failed(error.to_string())),
            Mind::Scripted => Ok(super::scripted::turn(&turn)),
        }
    }

    /// Makes calls of the model's last answer, and answers those that cannot be made.
    async fn call(&mut self, calls: Vec<usize>, worked: &impl Fn() -> u64) -> Result<(), Halt> {
        let (mut ready, mut once, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for at in calls {
            match self.prepare(at).await? {
                Ok((tool, arguments)) => {
                    let is_idempotent =
                        tool.announce().is_ok_and(|tool| tool.retry.on_interrupt == OnInterrupt::Requeue);
                    if !is_idempotent {
                        once.push(at);
                    }
                    names.push(tool.called().to_owned());
                    ready.push((at, tool, arguments));
                }
                Err(why) => {
                    self.happened(Event::Answered { call: at, answer: error(&why), worked_ms: worked() }).await?;
                }
            }
        }
        if ready.is_empty() {
            return Ok(());
        }
        self.tell(&format!("calls {}", names.join(", "))).await?;
        if !once.is_empty() {
            self.happened(Event::Begun { calls: once }).await?;
        }
        let (context, steps, mut left) = (self.context, self.state.steps(), ready.into_iter());
        let inner = self.inner;
        let make = |(at, tool, arguments): (usize, Tool, Bytes)| async move {
            let key = format!("s{steps}-{at}");
            let outcome = tool.run_within(context, &key, arguments, limits::PAYLOAD_BYTES_MAX).await;
            let target = Target::Tool(tool.called().into());
            let answer = match inner.release(context.principal(), &target, &outcome) {
                Ok(released) => read(released.unwrap_or(outcome)),
                Err(denied) => error(&denied.message),
            };
            (at, answer)
        };
        let mut running: FuturesUnordered<_> = left.by_ref().take(CALLS_AT_A_TIME).map(make).collect();
        while let Some((call, answer)) = running.next().await {
            // A run that is over makes calls fail: that is not their answer.
            if let Status::Ended(ended) = self.context.status() {
                return Err(ended.into());
            }
            running.extend(left.next().map(make));
            self.happened(Event::Answered { call, answer, worked_ms: worked() }).await?;
        }
        Ok(())
    }

    /// The tool and the arguments of a call, or why it cannot be made: for the model to read.
    async fn prepare(&self, at: usize) -> Result<Result<(Tool, Bytes), String>, Halt> {
        let (tool, arguments) = match self.named(at) {
            Ok(named) => named,
            Err(why) => return Ok(Err(why)),
        };
        let target = Target::Tool(tool.called().into());
        loop {
            match self.inner.admit(self.context.principal(), target.clone(), arguments.clone()).await {
                Ok(admitted) => return Ok(Ok((tool.clone(), admitted.arguments().clone()))),
                Err(error) => {
                    if let Err(error) = self.wait_out(error).await? {
                        return Ok(Err(format!("{} The call was not made.", refused(&error))));
                    }
                }
            }
        }
    }

    fn named(&self, at: usize) -> Result<(&Tool, Bytes), String> {
        let Some(ToolCall { name, arguments, .. }) = self.state.call(at) else {
            return Err("There is no such call.".into());
        };
        if State::is_too_many(at) {
            return Err("Too many calls at once. It was not made.".into());
        }
        let Some(tool) = self.tools.tools.get(name) else {
            return Err(format!("There is no tool {name:?}. Use one of those that you were given."));
        };
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        match serde_json::from_str::<Map<String, Value>>(arguments) {
            Ok(_) => Ok((tool, Bytes::copy_from_slice(arguments.as_bytes()))),
            Err(why) => Err(format!("The arguments are no JSON object: {why}. The call was not made.")),
        }
    }

    /// Waits where a check says when to come back, since the run has time; an error it cannot wait for it gives back.
    async fn wait_out(&self, error: Error) -> Result<Result<(), Error>, Halt> {
        let Error::Refused(Refusal::Denied(denied)) = &error else { return Ok(Err(error)) };
        let Some(after) = denied.retry_after.filter(|after| *after <= WAIT_MAX) else { return Ok(Err(error)) };
        self.tell(&format!("may go on in {} s", after.as_secs() + 1)).await?;
        tokio::time::sleep(after).await;
        Ok(Ok(()))
    }

    /// Writes down what has happened, and only then goes on from it.
    async fn happened(&mut self, event: Event) -> Result<(), Halt> {
        let entry = serde_json::to_vec(&event).map_err(|error| Halt::Failed(error.to_string()))?;
        self.context.record(entry).await?;
        self.state.apply(event);
        Ok(())
    }

    async fn tell(&self, what: &str) -> Result<(), Ended> {
        let (steps, usage) = (self.state.steps(), self.state.usage());
        let step = steps + 1;
        let used = if usage.tokens() > 0 { format!(" ({} tokens so far)", usage.tokens()) } else { String::new() };
        let sentence = format!("step {step}: {what}{used}");
        self.context.set_status_message(&sentence).await?;
        self.context.progress(steps.into(), None, Some(&sentence)).await
    }

    fn cost(&self) -> u64 {
        micro_usd(&self.agent.prices, self.state.usage())
    }

    fn answer(&self, end: End) -> Answer {
        let agent = self.agent;
        match end {
            End::Done => self.signed(Answer::text(cut(self.state.last(), agent.output_bytes))),
            End::Refused => self.signed(Answer::text(cut(self.state.last(), agent.output_bytes)).failed()),
            End::Length => self.stopped("its model's answer became too long (max_answer_tokens)"),
            End::Steps => self.stopped(&format!("it has taken {} steps, as many as it may", agent.limits.steps)),
            End::Tokens => self.stopped(&format!("it has used {} tokens, as many as it may", agent.limits.tokens)),
            End::Money => self.stopped("it has cost as much as it may"),
            End::Time => self.stopped(&format!("it has worked for {} s, as long as it may", agent.max_time.as_secs())),
        }
    }

    /// An error that keeps what was found.
    fn stopped(&self, why: &str) -> Answer {
        let found = self.state.found();
        let found = cut(&found, self.agent.output_bytes);
        let sentence = format!("The agent {} was stopped: {why}.", self.agent.name);
        let answer = Answer::text(sentence).failed();
        self.signed(if found.is_empty() { answer } else { answer.with_text(format!("Found so far:\n\n{found}")) })
    }

    fn signed(&self, answer: Answer) -> Answer {
        let Usage { input, cached, cache_written, output, is_estimated } = *self.state.usage();
        let mut usage = json!({
            "steps": self.state.steps(),
            "inputTokens": input,
            "cachedTokens": cached,
            "cacheWrittenTokens": cache_written,
            "outputTokens": output,
        });
        if is_estimated {
            usage["estimated"] = true.into();
        }
        if self.agent.prices != Prices::default() {
            usage["costMicroUsd"] = self.cost().into();
        }
        answer.with_meta(json!({ USAGE: usage }))
    }
}

/// What tokens cost: USD for a million of them are millionths of a USD for each.
pub(super) fn micro_usd(prices: &Prices, usage: &Usage) -> u64 {
    let cost = |tokens: u64, price: f64| tokens as f64 * price;
    let all = cost(usage.input, prices.input)
        + cost(usage.cached, prices.cached)
        + cost(usage.cache_written, prices.cache_written)
        + cost(usage.output, prices.output);
    all.ceil() as u64
}

/// What a check said, as a sentence.
fn refused(error: &Error) -> String {
    match error {
        Error::Refused(Refusal::Denied(denied)) => denied.message.clone(),
        _ => "What may be done cannot be checked at the moment.".into(),
    }
}

fn error(text: &str) -> ToolAnswer {
    ToolAnswer { text: text.into(), is_error: true }
}

/// A tool's answer as its model reads it.
fn read(outcome: Outcome) -> ToolAnswer {
    match outcome {
        Outcome::Result { is_error, body } => ToolAnswer { text: cut(&text(&body), TOOL_TEXT_BYTES_MAX), is_error },
        Outcome::Error(refused) => error(&cut(&refused.message, TOOL_TEXT_BYTES_MAX)),
        Outcome::Cancelled | Outcome::Interrupted(_) => error("The call was stopped."),
    }
}

fn text(result: &[u8]) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Result {
        #[serde(default)]
        content: Vec<Block>,
        structured_content: Option<Box<RawValue>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Block {
        r#type: String,
        text: Option<String>,
        mime_type: Option<String>,
        uri: Option<String>,
        resource: Option<Resource>,
    }
    #[derive(Deserialize)]
    struct Resource {
        uri: String,
        text: Option<String>,
    }
    let Ok(Result { content, structured_content }) = serde_json::from_slice(result) else {
        return "The tool answered with something that is no tool result.".into();
    };
    let block = |block: Block| match block {
        Block { text: Some(text), .. } => text,
        Block { resource: Some(Resource { text: Some(text), uri }), .. } => format!("{uri}:\n{text}"),
        Block { resource: Some(Resource { uri, .. }), .. } => format!("[a resource that is no text: {uri}]"),
        Block { uri: Some(uri), .. } => format!("[a link: {uri}]"),
        Block { r#type, mime_type, .. } => format!("[{type} {}]", mime_type.unwrap_or_default()),
    };
    let texts: Vec<String> = content.into_iter().map(block).collect();
    match (texts.is_empty(), structured_content) {
        (true, Some(structured)) => structured.get().to_owned(),
        (true, None) => "The tool has done it, and says nothing.".into(),
        (false, _) => texts.join("\n"),
    }
}

/// So much of a text, and how much is missing.
fn cut(text: &str, max: usize) -> String {
    match limits::cut(text, max) {
        whole if whole.len() == text.len() => text.to_owned(),
        part => format!("{part}\n[cut off: {} bytes more]", text.len() - part.len()),
    }
}
