//! A tool: what it is called, what it takes, what it does.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use longhaul_core::limits::TOOL_NAME_BYTES_MAX;
use longhaul_core::{ClientCapabilities, OnInterrupt, Retry, TaskSupport, ToolDef};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::ReplaceBoolSchemas;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::answer::{Answer, Failure};
use crate::ask::Response;
use crate::context::Context;
use crate::definition::Definition;
use crate::function::{Function, Handler, read};
use crate::json::Members;

/// A tool that a worker offers.
#[derive(Clone)]
pub struct Tool {
    definition: Definition,
    task_support: TaskSupport,
    decides: bool,
    needs: ClientCapabilities,
    retry: Retry,
    function: Function,
}

/// The arguments of a tool that takes none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct NoArguments {}

/// Written by hand: a derived one would show clients the doc comment.
impl JsonSchema for NoArguments {
    fn schema_name() -> Cow<'static, str> {
        "NoArguments".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

impl Tool {
    /// A tool of this name: 1 to 128 characters of `[A-Za-z0-9_./-]`, better at most 64, as some clients take no more.
    ///
    /// The input schema comes from the type of the arguments, a struct. Arguments that do not fit it become a tool
    /// error that names the field. `run` must not block its thread: see [`tokio::task::spawn_blocking`].
    pub fn new<A, F, R>(name: impl Into<String>, run: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(Context, A) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Answer, Failure>> + Send + 'static,
    {
        let handler = move |context: Context, arguments: Bytes| -> BoxFuture<'static, _> {
            match read::<A>(&arguments) {
                Ok(arguments) => Box::pin(run(context, arguments)),
                // For the model to correct (MCP 2025-11-25, server/tools, "Error Handling").
                Err(why) => Box::pin(std::future::ready(Err(Failure::tool(why)))),
            }
        };
        let mut tool = Self::build(Definition::default(), Arc::new(handler)).name(name);
        match object_schema::<A>(SchemaSettings::draft2020_12()) {
            Ok(schema) => tool.definition.set("inputSchema", &schema),
            Err(why) => tool.definition.problem = Some(why),
        }
        tool
    }

    /// A tool with a given MCP `Tool` object, and arguments and answers as raw JSON: for tools that are only known at
    /// run time. Unknown members and exact numbers of the definition stay; its `execution` is left out, since
    /// [`task_support`](Self::task_support) says that.
    pub fn raw<F, R>(definition: &[u8], run: F) -> Self
    where
        F: Fn(Context, Bytes) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Answer, Failure>> + Send + 'static,
    {
        let mut definition = Definition::read(definition);
        definition.remove("execution");
        let handler = move |context, arguments| -> BoxFuture<'static, _> { Box::pin(run(context, arguments)) };
        Self::build(definition, Arc::new(handler))
    }

    fn build(definition: Definition, handler: Arc<Handler>) -> Self {
        Self {
            function: Function::new(definition.text("name"), handler),
            definition,
            task_support: TaskSupport::default(),
            decides: false,
            needs: ClientCapabilities::default(),
            retry: Retry::default(),
        }
    }

    /// Another name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.function.name = name.into();
        self.definition.set("name", &self.function.name);
        self
    }

    /// What it does, for the model that decides whether to call it.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.definition.set("description", &description.into());
        self
    }

    /// A name for people.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.definition.set("title", &title.into());
        self
    }

    /// Hints about its behaviour (MCP 2025-11-25 schema, `ToolAnnotations`).
    pub fn annotations(mut self, annotations: Value) -> Self {
        self.definition.set("annotations", &annotations);
        self
    }

    /// The definition's `_meta`.
    pub fn meta(mut self, meta: Value) -> Self {
        self.definition.set("_meta", &meta);
        self
    }

    /// Promises that every result has structured content of this type.
    pub fn output<T: JsonSchema>(mut self) -> Self {
        match object_schema::<T>(SchemaSettings::draft2020_12().for_serialize()) {
            Ok(schema) => self.definition.set("outputSchema", &schema),
            Err(why) => self.definition.problem = Some(why),
        }
        self
    }

    /// Whether its calls may become tasks; `Optional` unless said.
    pub fn task_support(mut self, support: TaskSupport) -> Self {
        self.task_support = support;
        self
    }

    /// Where the caller leaves it open whether a call becomes a task: the tool begins as a plain call, and says itself
    /// when it goes on as a task ([`Context::become_task`]).
    pub fn decides(mut self) -> Self {
        self.decides = true;
        self
    }

    /// What a client must be able to be asked; calls of one that lacks it are refused before they begin.
    pub fn needs(mut self, needs: ClientCapabilities) -> Self {
        self.needs = needs;
        self
    }

    /// What becomes of its tasks when their worker is lost, or ends before they do; `Fail` unless said. Say
    /// [`Requeue`](OnInterrupt::Requeue) only if a run may happen twice; with [`Resume`](OnInterrupt::Resume) the tool goes
    /// on from its [`journal`](Context::journal).
    pub fn on_interrupt(mut self, policy: OnInterrupt) -> Self {
        self.retry.on_interrupt = policy;
        self
    }

    /// How often such a task is handed out at most; 3 unless said.
    pub fn max_attempts(mut self, max: u32) -> Self {
        self.retry.max_attempts = max;
        self
    }

    /// How long a call may run, without the time it waits for its caller's answers; if not said, as long as its caller or
    /// its task's time to live allows.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.function.timeout = Some(timeout);
        self
    }

    /// Called when a run is told to stop before it is done: its task was cancelled or ended otherwise, its caller went
    /// away, its time ran out, or the worker shuts down. The run itself sees [`Context::cancelled`]; both have a few
    /// seconds.
    pub fn on_cancel<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.function.on_cancel = Some(Arc::new(move |context| Box::pin(hook(context))));
        self
    }

    /// Called for each response to a question of a run, with the question's key, as it arrives: also while others of the
    /// same [`Context::request_inputs`] are still open.
    pub fn on_input<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(Context, String, Response) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.function.on_input = Some(Arc::new(move |context, key, response| Box::pin(hook(context, key, response))));
        self
    }

    /// What a worker announces of it, or what is wrong with it.
    pub fn announce(&self) -> Result<ToolDef, String> {
        let definition = self.definition.write()?;
        let name = self.called();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
        if name.is_empty() || name.len() > TOOL_NAME_BYTES_MAX || !name.bytes().all(fits) {
            return Err(format!("its name must be 1 to {TOOL_NAME_BYTES_MAX} characters of [A-Za-z0-9_./-]"));
        }
        let schema = self.definition.get("inputSchema").map(RawValue::get).unwrap_or_default();
        if Members::read(schema.as_bytes()).is_err() {
            return Err("its inputSchema must be an object".into());
        }
        let Self { task_support, decides, needs, retry, .. } = *self;
        Ok(ToolDef { name: name.to_owned(), task_support, decides, needs, retry, definition })
    }

    /// What it is called.
    pub fn called(&self) -> &str {
        &self.function.name
    }

    pub(crate) fn function(&self) -> Function {
        self.function.clone()
    }
}

/// The schema of a type that is written as a JSON object.
fn object_schema<T: JsonSchema>(mut settings: SchemaSettings) -> Result<Value, String> {
    // 2020-12 is what MCP takes a schema for that does not say.
    settings.meta_schema = None;
    // In MCP 2025-11-25 a property's schema is an object: `{}`, where JSON Schema may say `true`.
    let mut booleans = ReplaceBoolSchemas::default();
    booleans.skip_additional_properties = true;
    let settings = settings.with_transform(booleans);
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    let rust_name = T::schema_name();
    let Some(object) = schema.as_object_mut() else { return Err(format!("{rust_name} is not a struct")) };
    if object.get("title").and_then(Value::as_str) == Some(&*rust_name) {
        object.remove("title");
    }
    match object.get("type").and_then(Value::as_str) {
        Some("object") => {}
        // An enum of structs: each alternative says that it is an object, MCP wants it said at the root.
        None if ["oneOf", "anyOf", "allOf", "$ref"].iter().any(|key| object.contains_key(*key)) => {
            object.insert("type".into(), "object".into());
        }
        _ => return Err(format!("{rust_name} is not written as a JSON object: use a struct")),
    }
    Ok(schema)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::DEFINITION_BYTES_MAX;

    /// How long.
    #[derive(Deserialize, JsonSchema)]
    struct Countdown {
        /// From here to zero.
        seconds: u32,
        #[serde(default)]
        marks: Vec<Mark>,
    }

    #[derive(Deserialize, JsonSchema)]
    struct Mark {
        at: u32,
    }

    fn tool(name: &str) -> Tool {
        Tool::new(name, async |_, _: NoArguments| Ok(Answer::text("")))
    }

    fn definition(tool: &Tool) -> Value {
        serde_json::from_slice(&tool.announce().unwrap().definition).unwrap()
    }

    #[test]
    fn the_input_schema_comes_from_the_type() {
        let none = tool("none").description("d").title("t").annotations(json!({ "readOnlyHint": true }));
        assert_eq!(
            String::from_utf8(none.announce().unwrap().definition.to_vec()).unwrap(),
            r#"{"name":"none","inputSchema":{"type":"object"},"description":"d","title":"t","annotations":{"readOnlyHint":true}}"#
        );
        let countdown =
            Tool::new("c", async |_, c: Countdown| Ok(Answer::text(format!("{} {}", c.seconds, c.marks.len()))));
        let schema = &definition(&countdown)["inputSchema"];
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["required"], json!(["seconds"]));
        assert_eq!(schema["properties"]["seconds"]["description"], "From here to zero.");
        assert_eq!(schema["$defs"]["Mark"]["type"], "object");
        assert_eq!(schema.get("$schema"), None);
    }

    #[test]
    fn bad_arguments_name_the_field() {
        for (arguments, field) in [
            (r#"{}"#, "`seconds`"),
            (r#"{"seconds":"x"}"#, "`seconds`"),
            (r#"{"seconds":-1}"#, "`seconds`"),
            (r#"{"seconds":1,"marks":[{"at":1},{"at":{}}]}"#, "`marks[1].at`"),
            (r#"{"seconds":1,"marks":[{}]}"#, "`at`"),
        ] {
            let Err(why) = read::<Countdown>(arguments.as_bytes()) else { panic!("{arguments} was taken") };
            assert!(why.contains(field), "{arguments}: {why}");
        }
        assert_eq!(read::<Countdown>(br#"{"seconds":3,"marks":[{"at":2}],"more":1}"#).unwrap().marks[0].at, 2);
    }

    #[test]
    fn a_tool_that_cannot_be_offered_says_why() {
        for name in ["", "é", "a b", "a\n", &"x".repeat(129)] {
            assert!(tool(name).announce().unwrap_err().contains("name"), "{name}");
        }
        for name in ["a", "files/read.v2_x-y", &"x".repeat(128)] {
            assert_eq!(tool(name).announce().unwrap().name, name);
        }
        let scalar = Tool::new("s", async |_, text: String| Ok(Answer::text(text)));
        assert!(scalar.announce().unwrap_err().contains("use a struct"));
        for bad in ["[]", "{", r#"{"inputSchema":{}}"#, r#"{"name":"x"}"#, r#"{"name":"x","inputSchema":[]}"#] {
            assert!(Tool::raw(bad.as_bytes(), async |_, _| Answer::raw("{}")).announce().is_err(), "{bad}");
        }
        let large = tool("large").description("x".repeat(DEFINITION_BYTES_MAX));
        assert!(large.announce().unwrap_err().contains("larger"));
    }

    #[test]
    fn a_raw_definition_keeps_what_it_does_not_know() {
        let upstream = br#"{"name":"add","odd":[1.10,1e2],"execution":{"taskSupport":"forbidden"},"inputSchema":{"type":"object","x":12345678901234567890123}}"#;
        let tool = Tool::raw(upstream, async |_, arguments| Answer::raw(arguments)).name("up.add");
        let announced = tool.announce().unwrap();
        assert_eq!((announced.name.as_str(), announced.task_support), ("up.add", TaskSupport::Optional));
        assert_eq!(
            announced.definition,
            r#"{"name":"up.add","odd":[1.10,1e2],"inputSchema":{"type":"object","x":12345678901234567890123}}"#
        );
    }
}
