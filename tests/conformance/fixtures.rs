//! What the suite asks for by name. What each must answer is said in the suite's own scenarios.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_worker::{
    Answer, Ask, ClientCapabilities, Contents, Context, Failure, LogLevel, Messages, NoArguments, Offer, Prompt,
    Resource, Response, Role, TaskSupport, Tool, Tools,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::questions;

/// A picture of one point.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A sound of one sample.
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";
/// Between two words of a tool that says something.
const BEAT: Duration = Duration::from_millis(50);

/// What a worker with this set offers. Two tools change the set.
#[derive(Clone)]
pub struct Fixtures {
    set: Tools,
    extra: Arc<Mutex<Extra>>,
}

/// What comes and goes.
#[derive(Clone, Copy, Default)]
struct Extra {
    tool: bool,
    prompt: bool,
}

impl Fixtures {
    pub fn of(set: Tools) -> Self {
        Self { set, extra: Arc::default() }
    }

    /// Everything on offer at the moment.
    pub fn all(&self) -> Vec<Offer> {
        let extra = *self.extra.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Offer> = Vec::new();
        for tools in [content(), talking(), tasks(), questions::tools()] {
            all.extend(tools.into_iter().map(Offer::from));
        }
        all.extend(prompts().into_iter().map(Offer::from));
        all.extend(resources().into_iter().map(Offer::from));
        all.push(
            self.change("test_trigger_tool_change", "Changes the list of tools.", |extra| extra.tool ^= true).into(),
        );
        let change =
            self.change("test_trigger_prompt_change", "Changes the list of prompts.", |extra| extra.prompt ^= true);
        all.push(change.into());
        if extra.tool {
            all.push(plain("test_extra_tool", "Comes and goes.", async |_| Ok(Answer::text("here"))).into());
        }
        if extra.prompt {
            let prompt = Prompt::new("test_extra_prompt", async |_, _: NoArguments| Ok(Messages::new().user("here")));
            all.push(prompt.description("Comes and goes.").into());
        }
        all
    }

    fn change(&self, name: &str, description: &str, change: fn(&mut Extra)) -> Tool {
        let fixtures = self.clone();
        plain(name, description, move |_| {
            let fixtures = fixtures.clone();
            async move {
                change(&mut fixtures.extra.lock().unwrap_or_else(PoisonError::into_inner));
                fixtures.set.replace(fixtures.all())?;
                Ok(Answer::text("Mutation triggered"))
            }
        })
    }
}

/// A tool without arguments.
pub fn plain<F, R>(name: &str, description: &str, run: F) -> Tool
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Answer, Failure>> + Send + 'static,
{
    // One that answers at once, as the scenarios of calls want it.
    Tool::new(name, move |context, _: NoArguments| run(context))
        .description(description)
        .task_support(TaskSupport::Forbidden)
}

fn image() -> Value {
    json!({"type": "image", "data": PNG, "mimeType": "image/png"})
}

fn content() -> Vec<Tool> {
    let embedded = |uri: &str, media_type: &str, text: &str| json!({"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "text": text}});
    let answer = |name: &str, description: &str, blocks: Vec<Value>| {
        plain(name, description, move |_| {
            let blocks = blocks.clone();
            async move { Ok(Answer::content(blocks)) }
        })
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let dialect = json!({
        "name": "json_schema_2020_12_tool",
        "description": "Has a schema with much of JSON Schema 2020-12 in it.",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }},
            "properties": {
                "name": {"type": "string"},
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"},
                "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": false,
        },
    });
    let region = json!({
        "name": "test_region",
        "description": "Has a parameter that is in a header too.",
        "inputSchema": {
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
            "required": ["region"],
        },
    });
    let echo = |definition: &Value| {
        Tool::raw(definition.to_string().as_bytes(), async |_, arguments| {
            Ok(Answer::text(String::from_utf8_lossy(&arguments).into_owned()))
        })
        .task_support(TaskSupport::Forbidden)
    };
    vec![
        // The suite calls the first tool of the list to see what it makes of headers.
        answer("a_simple_text", "Answers with text.", vec![text("This is the first tool.")]),
        answer("test_simple_text", "Answers with text.", vec![text("This is a simple text response for testing.")]),
        answer("test_image_content", "Answers with a picture.", vec![image()]),
        answer(
            "test_audio_content",
            "Answers with a sound.",
            vec![json!({"type": "audio", "data": WAV, "mimeType": "audio/wav"})],
        ),
        answer(
            "test_embedded_resource",
            "Answers with a resource.",
            vec![embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
        ),
        answer(
            "test_multiple_content_types",
            "Answers with text, a picture and a resource.",
            vec![
                text("Multiple content types test:"),
                image(),
                embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
            ],
        ),
        plain("test_error_handling", "Fails.", async |_| {
            Err(Failure::tool("This tool intentionally returns an error for testing"))
        }),
        echo(&dialect),
        echo(&region),
    ]
}

fn talking() -> Vec<Tool> {
    let sampling = ClientCapabilities { sampling: true, ..ClientCapabilities::default() };
    vec![
        plain("test_tool_with_logging", "Logs while it runs.", async |context: Context| {
            for words in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                context.log(LogLevel::Info, None, words).await?;
                tokio::time::sleep(BEAT).await;
            }
            Ok(Answer::text("Tool with logging executed successfully"))
        }),
        plain("test_logging_tool", "Logs once.", async |context: Context| {
            context.log(LogLevel::Info, Some("test"), "a word").await?;
            Ok(Answer::text("Logging evaluated"))
        }),
        plain("test_tool_with_progress", "Says how far it is.", async |context: Context| {
            for step in [0, 50, 100] {
                let words = format!("Completed step {step} of 100");
                context.progress(f64::from(step), Some(100.0), Some(&words)).await?;
                tokio::time::sleep(BEAT).await;
            }
            Ok(Answer::text("Progress completed"))
        }),
        plain("test_missing_capability", "Needs the client's model.", async |_| Ok(Answer::text("Success")))
            .needs(sampling),
        plain("test_reconnection", "Takes so long that its stream may be lost.", async |context: Context| {
            // A call that has nothing to say is answered without a stream.
            context.log(LogLevel::Info, None, "It takes a while").await?;
            tokio::time::sleep(2 * BEAT).await;
            Ok(Answer::text("Reconnection test completed successfully"))
        }),
    ]
}

#[derive(Deserialize, JsonSchema)]
struct Greet {
    /// Whom.
    name: String,
}

#[derive(Deserialize, JsonSchema)]
struct Compute {
    /// How long.
    seconds: f64,
    /// What for.
    label: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Delete {
    /// What.
    filename: String,
}

fn tasks() -> Vec<Tool> {
    vec![
        Tool::new("greet", async |_, Greet { name }: Greet| Ok(Answer::text(format!("Hello, {name}!"))))
            .description("Greets.")
            .task_support(TaskSupport::Forbidden),
        Tool::new("slow_compute", async |context: Context, Compute { seconds, label }: Compute| {
            let length = Duration::try_from_secs_f64(seconds).map_err(|_| Failure::tool("no such time"))?;
            tokio::select! {
                () = tokio::time::sleep(length) => {}
                () = context.cancelled() => return Err(Failure::tool("stopped")),
            }
            Ok(Answer::text(format!("{} computed in {seconds} s", label.unwrap_or_default())))
        })
        .description("Takes a while."),
        Tool::new("failing_job", async |_, _: NoArguments| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err(Failure::tool("The job failed"))
        })
        .description("Fails after a second.")
        .task_support(TaskSupport::Required),
        Tool::new("protocol_error_job", async |_, _: NoArguments| {
            Err::<Answer, _>(Failure::protocol(-32603, "The job broke"))
        })
        .description("Fails with a protocol error."),
        Tool::new("confirm_delete", async |context: Context, Delete { filename }: Delete| {
            let form =
                json!({"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]});
            let sure = context.request_input(Ask::form(format!("Delete {filename}?"), form)).await?;
            let sure = match sure {
                Response::Accept(content) => content.parse::<Value>()?["confirm"] == true,
                Response::Decline | Response::Cancel | Response::Result(_) => false,
            };
            Ok(Answer::text(if sure { format!("Deleted {filename}") } else { format!("Kept {filename}") }))
        })
        .description("Asks before it deletes."),
        Tool::new("multi_input", async |context: Context, _: NoArguments| {
            // The suite gives each of them the same answer.
            let form =
                json!({"type": "object", "properties": {"name": {"type": "string"}, "confirm": {"type": "boolean"}}});
            let asks = ["first", "second"].map(|which| Ask::form(format!("The {which}?"), form.clone()).key(which));
            let responses = context.request_inputs(asks).await?;
            Ok(Answer::text(format!("{} answers", responses.len())))
        })
        .description("Asks two questions at once."),
        Tool::new("test_tool_with_task", async |context: Context, _: NoArguments| {
            let form = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
            let name = context.request_input(Ask::form("What is your name?", form).key("user_name")).await?;
            let name = questions::text(name, "name");
            context.become_task().await?;
            Ok(Answer::text(format!("Hello, {name}!")))
        })
        .description("Asks, and then goes on as a task.")
        .task_support(TaskSupport::Required)
        .decides(),
    ]
}

fn prompts() -> Vec<Prompt> {
    let with_arguments = Prompt::new("test_prompt_with_arguments", async |_, Two { arg1, arg2 }: Two| {
        Ok(Messages::new().user(format!("Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")))
    });
    let with_resource = Prompt::new("test_prompt_with_embedded_resource", async |_, One { resource_uri }: One| {
        let words = "Embedded resource content for testing.";
        Ok(Messages::new()
            .resource(Role::User, &resource_uri, "text/plain", words)
            .user("Please process the embedded resource above."))
    });
    vec![
        Prompt::new("test_simple_prompt", async |_, _: NoArguments| {
            Ok(Messages::new().user("This is a simple prompt for testing."))
        })
        .description("Has no arguments."),
        with_arguments
            .description("Has arguments.")
            .argument("arg1", "The first", true)
            .argument("arg2", "The second", true)
            .complete("arg1", async |_, value: String, _| {
                let known = ["paris", "park", "party"].into_iter().filter(|known| known.starts_with(&*value));
                known.map(str::to_owned).collect()
            }),
        with_resource.description("Has a resource.").argument("resourceUri", "Which", true),
        Prompt::new("test_prompt_with_image", async |_, _: NoArguments| {
            Ok(Messages::new().block(Role::User, image()).user("Please analyze the image above."))
        })
        .description("Has a picture."),
        Prompt::new("test_input_required_result_prompt", async |context: Context, _: NoArguments| {
            let form =
                json!({"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]});
            let ask = Ask::form("What context should the prompt use?", form).key("user_context");
            let response = context.request_input(ask).await?;
            Ok(Messages::new().user(format!("Prompt with context: {}", questions::text(response, "context"))))
        })
        .description("Asks for what it needs."),
    ]
}

#[derive(Deserialize)]
struct Two {
    arg1: String,
    arg2: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct One {
    resource_uri: String,
}

#[derive(Deserialize)]
struct Id {
    id: String,
}

fn resources() -> Vec<Resource> {
    vec![
        Resource::new("test://static-text", "static-text", async |_| {
            Ok(Contents::text("This is the content of the static text resource."))
        })
        .media_type("text/plain")
        .description("Text that never changes."),
        Resource::new("test://static-binary", "static-binary", async |_| Ok(Contents::blob(&STANDARD.decode(PNG)?)))
            .media_type("image/png")
            .description("A picture that never changes."),
        Resource::new("test://watched-resource", "watched-resource", async |_| Ok(Contents::text("Watched.")))
            .media_type("text/plain")
            .description("Text that may be watched."),
        Resource::template("test://template/{id}/data", "template", async |_, Id { id }: Id| {
            let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            Ok(Contents::text(text.to_string()))
        })
        .media_type("application/json")
        .description("Data by id."),
    ]
}
