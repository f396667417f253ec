//! A tool: what it is called, what it takes, what it does.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use longhaul_core::limits::TOOL_NAME_BYTES_MAX;
use longhaul_core::{TaskSupport, ToolDef};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::answer::{Answer, Failure};
use crate::context::Context;
use crate::json::Members;

/// The largest definition of one tool, in bytes.
const DEFINITION_BYTES_MAX: usize = 256 * 1024;

type Handler = dyn Fn(Context, Bytes) -> BoxFuture<'static, Result<Answer, Failure>> + Send + Sync;
type Hook = dyn Fn(Context) -> BoxFuture<'static, ()> + Send + Sync;

/// A tool that a worker offers.
#[derive(Clone)]
pub struct Tool {
    definition: Members,
    name: String,
    task_support: TaskSupport,
    timeout: Option<Duration>,
    handler: Arc<Handler>,
    on_cancel: Option<Arc<Hook>>,
    /// What is wrong with its making; said when it is given to a worker.
    problem: Option<String>,
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
                Err(failure) => Box::pin(std::future::ready(Err(failure))),
            }
        };
        let mut tool = Self::build(Members::default(), Arc::new(handler)).name(name);
        match object_schema::<A>(SchemaSettings::draft2020_12()) {
            Ok(schema) => tool.define("inputSchema", &schema),
            Err(why) => tool.problem = Some(why),
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
        let (mut members, problem) = match Members::read(definition) {
            Ok(members) => (members, None),
            Err(error) => (Members::default(), Some(format!("its definition cannot be read: {error}"))),
        };
        members.remove("execution");
        let name = members.get("name").and_then(|name| serde_json::from_str(name.get()).ok()).unwrap_or_default();
        let handler = move |context, arguments| -> BoxFuture<'static, _> { Box::pin(run(context, arguments)) };
        Self { name, problem, ..Self::build(members, Arc::new(handler)) }
    }

    fn build(definition: Members, handler: Arc<Handler>) -> Self {
        Self {
            definition,
            name: String::new(),
            task_support: TaskSupport::default(),
            timeout: None,
            handler,
            on_cancel: None,
            problem: None,
        }
    }

    /// Another name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        let name = Value::from(self.name.as_str());
        self.define("name", &name);
        self
    }

    /// What it does, for the model that decides whether to call it.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.define("description", &Value::from(description.into()));
        self
    }

    /// A name for people.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.define("title", &Value::from(title.into()));
        self
    }

    /// Hints about its behaviour (MCP 2025-11-25 schema, `ToolAnnotations`).
    pub fn annotations(mut self, annotations: Value) -> Self {
        self.define("annotations", &annotations);
        self
    }

    /// The definition's `_meta`.
    pub fn meta(mut self, meta: Value) -> Self {
        self.define("_meta", &meta);
        self
    }

    /// Promises that every result has structured content of this type.
    pub fn output<T: JsonSchema>(mut self) -> Self {
        match object_schema::<T>(SchemaSettings::draft2020_12().for_serialize()) {
            Ok(schema) => self.define("outputSchema", &schema),
            Err(why) => self.problem = Some(why),
        }
        self
    }

    /// Whether its calls may become tasks; `Optional` unless said.
    pub fn task_support(mut self, support: TaskSupport) -> Self {
        self.task_support = support;
        self
    }

    /// How long a call may run; without it, as long as its caller or its task's time to live allows.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
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
        self.on_cancel = Some(Arc::new(move |context| Box::pin(hook(context))));
        self
    }

    fn define<T: Serialize>(&mut self, member: &str, value: &T) {
        match to_raw_value(value) {
            Ok(json) => self.definition.set(member, json),
            Err(error) => self.problem = Some(format!("its {member} has no JSON: {error}")),
        }
    }

    /// What the worker announces, or what is wrong with it.
    pub(crate) fn announce(&self) -> Result<ToolDef, String> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
        if self.name.is_empty() || self.name.len() > TOOL_NAME_BYTES_MAX || !self.name.bytes().all(fits) {
            return Err(format!("its name must be 1 to {TOOL_NAME_BYTES_MAX} characters of [A-Za-z0-9_./-]"));
        }
        let schema = self.definition.get("inputSchema").map(RawValue::get).unwrap_or_default();
        if Members::read(schema.as_bytes()).is_err() {
            return Err("its inputSchema must be an object".into());
        }
        let definition = serde_json::to_vec(&self.definition).map_err(|error| error.to_string())?;
        if definition.len() > DEFINITION_BYTES_MAX {
            return Err(format!("its definition is larger than {DEFINITION_BYTES_MAX} bytes"));
        }
        Ok(ToolDef { name: self.name.clone(), task_support: self.task_support, definition: definition.into() })
    }

    pub(crate) fn called(&self) -> &str {
        &self.name
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) async fn run(&self, context: Context, arguments: Bytes) -> Result<Answer, Failure> {
        (self.handler)(context, arguments).await
    }

    pub(crate) async fn cancelled(&self, context: Context) {
        if let Some(hook) = &self.on_cancel {
            hook(context).await;
        }
    }
}

/// Bad arguments are for the model to correct, hence a tool error (MCP 2025-11-25, server/tools, "Error Handling").
fn read<A: DeserializeOwned>(arguments: &[u8]) -> Result<A, Failure> {
    let mut json = serde_json::Deserializer::from_slice(arguments);
    serde_path_to_error::deserialize(&mut json).map_err(|error| match error.path().to_string().as_str() {
        // The whole object: the message names the field that is missing or unknown.
        "." => Failure::tool(format!("Invalid arguments: {}", error.inner())),
        field => Failure::tool(format!("Invalid argument `{field}`: {}", error.inner())),
    })
}

/// The schema of a type that is written as a JSON object.
fn object_schema<T: JsonSchema>(mut settings: SchemaSettings) -> Result<Value, String> {
    // 2020-12 is what MCP takes a schema for that does not say.
    settings.meta_schema = None;
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
            let Err(failure) = read::<Countdown>(arguments.as_bytes()) else { panic!("{arguments} was taken") };
            assert!(format!("{failure:?}").contains(field), "{arguments}: {failure:?}");
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
