//! A prompt: what it is called, what it takes, the messages it gives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use futures::future::BoxFuture;
use longhaul_core::PromptDef;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::answer::{Answer, Failure, INVALID_PARAMS};
use crate::completion::Completions;
use crate::context::Context;
use crate::definition::Definition;
use crate::function::{Function, read};
use crate::json::Members;

/// The longest name of a prompt, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

type Get = dyn Fn(Context, Bytes) -> BoxFuture<'static, Result<Messages, Failure>> + Send + Sync;

/// A prompt that a worker offers.
#[derive(Clone)]
pub struct Prompt {
    definition: Definition,
    arguments: Vec<Argument>,
    get: Arc<Get>,
    timeout: Option<Duration>,
    completions: Completions,
}

/// An argument (MCP 2025-11-25 schema, `PromptArgument`).
#[derive(Debug, Clone, Serialize)]
struct Argument {
    name: String,
    description: String,
    required: bool,
}

impl Prompt {
    /// A prompt of this name. Its arguments, all of them strings, are read into a struct; those that do not fit become a
    /// JSON-RPC error that names the field. Say with [`argument`](Self::argument) what clients should offer. Like a
    /// tool it may ask its caller ([`Context::request_input`]).
    pub fn new<A, F, R>(name: impl Into<String>, get: F) -> Self
    where
        A: DeserializeOwned + Send + 'static,
        F: Fn(Context, A) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Messages, Failure>> + Send + 'static,
    {
        let get = move |context: Context, arguments: Bytes| -> BoxFuture<'static, _> {
            match read::<A>(&arguments) {
                Ok(arguments) => Box::pin(get(context, arguments)),
                Err(why) => Box::pin(std::future::ready(Err(Failure::protocol(INVALID_PARAMS, why)))),
            }
        };
        Self::build(Definition::default(), Arc::new(get)).name(name)
    }

    /// A prompt with a given MCP `Prompt` object, and arguments as raw JSON: for prompts that are only known at run time.
    pub fn raw<F, R>(definition: &[u8], get: F) -> Self
    where
        F: Fn(Context, Bytes) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Messages, Failure>> + Send + 'static,
    {
        let get = move |context, arguments| -> BoxFuture<'static, _> { Box::pin(get(context, arguments)) };
        Self::build(Definition::read(definition), Arc::new(get))
    }

    fn build(definition: Definition, get: Arc<Get>) -> Self {
        Self { definition, arguments: Vec::new(), get, timeout: None, completions: Completions::default() }
    }

    /// Another name: 1 to 256 bytes without control characters.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.definition.set("name", &name.into());
        self
    }

    /// What it is for.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.definition.set("description", &description.into());
        self
    }

    /// A name for people.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.definition.set("title", &title.into());
        self
    }

    /// The definition's `_meta`.
    pub fn meta(mut self, meta: Value) -> Self {
        self.definition.set("_meta", &meta);
        self
    }

    /// One more argument. A call without a required one is a JSON-RPC error.
    pub fn argument(mut self, name: impl Into<String>, description: impl Into<String>, required: bool) -> Self {
        self.arguments.push(Argument { name: name.into(), description: description.into(), required });
        self.definition.set("arguments", &self.arguments);
        self
    }

    /// How long a call may run, without the time it waits for its caller's answers.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Completes an argument while people type it: `complete` is given what there is of the value, and the arguments
    /// that are known already. Callers hear the first 100 values.
    pub fn complete<F, R>(mut self, argument: impl Into<String>, complete: F) -> Self
    where
        F: Fn(Context, String, HashMap<String, String>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<String>> + Send + 'static,
    {
        self.completions.add(argument.into(), complete);
        self
    }

    /// Completes all arguments: `complete` is given the `argument` and `context` of `completion/complete` as a raw JSON
    /// object, and answers with the JSON of the whole result.
    pub fn complete_raw<F, R>(mut self, complete: F) -> Self
    where
        F: Fn(Context, Bytes) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        self.completions.set_raw(complete);
        self
    }

    /// What the worker announces, or what is wrong with it.
    pub(crate) fn announce(&self) -> Result<PromptDef, String> {
        let definition = self.definition.write()?;
        let name = self.called();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(format!("its name must be 1 to {NAME_BYTES_MAX} bytes without control characters"));
        }
        Ok(PromptDef { name, definition })
    }

    pub(crate) fn called(&self) -> String {
        self.definition.text("name")
    }

    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    pub(crate) fn function(&self) -> Function {
        let get = self.get.clone();
        let required: Arc<[String]> =
            self.arguments.iter().filter(|argument| argument.required).map(|argument| argument.name.clone()).collect();
        let handler = move |context, arguments: Bytes| -> BoxFuture<'static, _> {
            let (get, required) = (get.clone(), required.clone());
            Box::pin(async move {
                let bad = |why: String| Failure::protocol(INVALID_PARAMS, why);
                let given = Members::read(&arguments).map_err(|error| bad(format!("Invalid arguments: {error}")))?;
                if let Some(missing) = required.iter().find(|name| given.get(name).is_none()) {
                    return Err(bad(format!("Invalid arguments: missing argument `{missing}`")));
                }
                // A prompt has no result that is an error.
                get(context, arguments).await.and_then(Messages::answer).map_err(Failure::into_protocol)
            })
        };
        Function { timeout: self.timeout, ..Function::new(self.called(), Arc::new(handler)) }
    }
}

/// Who speaks in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// What a prompt gives: messages for the model.
#[derive(Debug, Clone)]
pub struct Messages(Form);

#[derive(Debug, Clone)]
enum Form {
    Built(Body),
    Raw(Bytes),
}

/// A `prompts/get` result (MCP 2025-11-25 schema, `GetPromptResult`).
#[derive(Debug, Clone, Default, Serialize)]
struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    messages: Vec<Value>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<Value>,
}

impl Default for Messages {
    fn default() -> Self {
        Self::new()
    }
}

impl Messages {
    /// None yet.
    pub fn new() -> Self {
        Self(Form::Built(Body::default()))
    }

    /// The JSON of a whole `prompts/get` result: an object, sent on byte for byte.
    pub fn raw(result: impl Into<Bytes>) -> Self {
        Self(Form::Raw(result.into()))
    }

    /// One more text, said by the person.
    pub fn user(self, text: impl Into<String>) -> Self {
        self.block(Role::User, json!({ "type": "text", "text": text.into() }))
    }

    /// One more text, said by the model.
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.block(Role::Assistant, json!({ "type": "text", "text": text.into() }))
    }

    /// One more image, of the given media type.
    pub fn image(self, role: Role, image: &[u8], media_type: &str) -> Self {
        let data = base64::engine::general_purpose::STANDARD.encode(image);
        self.block(role, json!({ "type": "image", "data": data, "mimeType": media_type }))
    }

    /// One more resource, with its text.
    pub fn resource(self, role: Role, uri: &str, media_type: &str, text: &str) -> Self {
        let resource = json!({ "uri": uri, "mimeType": media_type, "text": text });
        self.block(role, json!({ "type": "resource", "resource": resource }))
    }

    /// One more content block, as MCP writes it. Raw messages stay as they are.
    pub fn block(self, role: Role, block: Value) -> Self {
        self.change(|body| body.messages.push(json!({ "role": role, "content": block })))
    }

    /// What the messages are for. Raw messages stay as they are.
    pub fn description(self, description: impl Into<String>) -> Self {
        self.change(|body| body.description = Some(description.into()))
    }

    /// The result's `_meta`. Raw messages stay as they are.
    pub fn meta(self, meta: Value) -> Self {
        self.change(|body| body.meta = Some(meta))
    }

    fn change(mut self, change: impl FnOnce(&mut Body)) -> Self {
        if let Form::Built(body) = &mut self.0 {
            change(body);
        }
        self
    }

    fn answer(self) -> Result<Answer, Failure> {
        match self.0 {
            Form::Built(body) => Ok(Answer::object(&body)),
            Form::Raw(body) => Answer::raw(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(name: &str) -> Prompt {
        Prompt::new(name, async |_, _: HashMap<String, String>| Ok(Messages::new()))
    }

    #[test]
    fn a_prompt_is_announced_as_mcp_writes_it() {
        let prompt = prompt("greet").title("Greet").argument("name", "Whom", true).description("d");
        let announced = prompt.announce().unwrap();
        assert_eq!(announced.name, "greet");
        assert_eq!(
            announced.definition,
            r#"{"name":"greet","title":"Greet","arguments":[{"name":"name","description":"Whom","required":true}],"description":"d"}"#
        );
        let raw = Prompt::raw(br#"{"name":"x","odd":1.10}"#, async |_, _| Ok(Messages::raw("{}"))).name("up.x");
        assert_eq!(raw.announce().unwrap().definition, r#"{"name":"up.x","odd":1.10}"#);
    }

    #[test]
    fn a_prompt_that_cannot_be_offered_says_why() {
        for name in ["", "a\nb", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(prompt(name).announce().unwrap_err().contains("name"), "{name:?}");
        }
        assert!(Prompt::raw(b"[]", async |_, _| Ok(Messages::new())).announce().is_err());
    }
}
