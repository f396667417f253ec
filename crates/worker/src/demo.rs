//! Tools, a prompt and a resource to try a system with.

use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::{Answer, Ask, Contents, Context, Failure, Messages, NoArguments, Prompt, Resource, Response, Tool};

/// The longest countdown, in seconds.
const SECONDS_MAX: f64 = 86_400.0;
/// The most steps of a countdown.
const STEPS_MAX: u32 = 1_000;

const ECHO: &[u8] = br#"{
    "name": "echo",
    "description": "Answers with its arguments, exactly as they came.",
    "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } } },
    "annotations": { "readOnlyHint": true, "idempotentHint": true }
}"#;

/// `echo`, `countdown`, `ask`, `fail` and `panic`.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::raw(ECHO, echo),
        Tool::new("countdown", countdown).description("Counts down to zero and says how far it is. Can be cancelled."),
        Tool::new("ask", ask).description("Asks its caller, and answers with what it was told."),
        Tool::new("fail", fail)
            .description("Fails: with a tool error, or with a JSON-RPC error if it is given a code."),
        Tool::new("panic", panic).description("Has a bug: it panics."),
    ]
}

/// `greeting`.
pub fn prompts() -> Vec<Prompt> {
    let greeting = Prompt::new("greeting", async |_, Greeting { name }| {
        Ok(Messages::new().user(format!("Greet {name} in one sentence.")).description("A greeting"))
    });
    let names = async |_, value: String, _| {
        ["Ada", "Alan", "Grace"].iter().filter(|name| name.starts_with(&value)).map(|name| (*name).to_owned()).collect()
    };
    vec![greeting.description("Has somebody greeted.").argument("name", "Whom to greet", true).complete("name", names)]
}

/// `demo://welcome`.
pub fn resources() -> Vec<Resource> {
    let welcome = async |_| Ok(Contents::text("Welcome to Longhaul: tool calls that take their time."));
    vec![Resource::new("demo://welcome", "welcome", welcome).description("A welcome.").media_type("text/plain")]
}

#[derive(Deserialize)]
struct Greeting {
    name: String,
}

async fn echo(_: Context, arguments: Bytes) -> Result<Answer, Failure> {
    Ok(Answer::structured(serde_json::from_slice::<&RawValue>(&arguments)?))
}

#[derive(Deserialize, JsonSchema)]
struct Countdown {
    /// From here to zero.
    #[schemars(range(min = 0.0, max = 86_400.0))]
    seconds: f64,
    /// In so many steps; one for each second unless said.
    #[schemars(range(min = 1, max = 1_000))]
    steps: Option<u32>,
}

async fn countdown(context: Context, Countdown { seconds, steps }: Countdown) -> Result<Answer, Failure> {
    if !(0.0..=SECONDS_MAX).contains(&seconds) {
        return Err(Failure::tool(format!("`seconds` must be from 0 to {SECONDS_MAX}")));
    }
    let steps = steps.unwrap_or(seconds.ceil().min(STEPS_MAX.into()) as u32).max(1);
    if steps > STEPS_MAX {
        return Err(Failure::tool(format!("`steps` must be from 1 to {STEPS_MAX}")));
    }
    for step in 0..steps {
        let left = seconds * f64::from(steps - step) / f64::from(steps);
        let sentence = format!("{left:.1} s left");
        context.set_status_message(&sentence).await?;
        context.progress(f64::from(step), Some(steps.into()), Some(&sentence)).await?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(seconds / f64::from(steps))) => {}
            () = context.cancelled() => return Err(Failure::tool("stopped")),
        }
    }
    context.set_status_message("done").await?;
    context.progress(steps.into(), Some(steps.into()), Some("done")).await?;
    Ok(Answer::text(format!("counted down {seconds} s")))
}

#[derive(Deserialize, JsonSchema)]
struct Question {
    /// What to ask.
    question: String,
}

#[derive(Deserialize)]
struct Told {
    answer: String,
}

async fn ask(context: Context, Question { question }: Question) -> Result<Answer, Failure> {
    let form = json!({ "type": "object", "properties": { "answer": { "type": "string" } }, "required": ["answer"] });
    match context.request_input(Ask::form(question, form)).await? {
        Response::Accept(content) => {
            let Told { answer } = content.parse()?;
            Ok(Answer::text(format!("You said: {answer}")))
        }
        Response::Decline | Response::Cancel | Response::Result(_) => Err(Failure::tool("declined")),
    }
}

#[derive(Deserialize, JsonSchema)]
struct Fail {
    /// What to say.
    message: Option<String>,
    /// A JSON-RPC error code.
    code: Option<i32>,
    /// The JSON-RPC error's data.
    data: Option<Value>,
}

async fn fail(_: Context, Fail { message, code, data }: Fail) -> Result<Answer, Failure> {
    let message = message.unwrap_or_else(|| "it failed, as asked".into());
    Err(match (code, data) {
        (Some(code), Some(data)) => Failure::protocol(code, message).with_data(&data),
        (Some(code), None) => Failure::protocol(code, message),
        (None, _) => Failure::tool(message),
    })
}

async fn panic(_: Context, _: NoArguments) -> Result<Answer, Failure> {
    panic!("as asked")
}
