//! Tools that ask their caller.

use longhaul_worker::{Answer, Ask, Context, Failure, Response, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use longhaul_worker::TaskSupport;

use crate::fixtures::plain;

#[derive(Deserialize, JsonSchema)]
struct Prompt {
    /// What to ask the model.
    prompt: String,
}

#[derive(Deserialize, JsonSchema)]
struct Message {
    /// What to ask the person.
    message: String,
}

/// A field of an accepted form, or "unknown".
pub fn text(response: Response, field: &str) -> String {
    let content = response.accepted().and_then(|content| content.parse::<Value>().ok()).unwrap_or_default();
    content[field].as_str().unwrap_or("unknown").to_owned()
}

/// A form of one field.
fn form(field: &str, kind: &str) -> Value {
    json!({"type": "object", "properties": {field: {"type": kind}}, "required": [field]})
}

fn sample(words: &str, tokens: u32) -> Ask {
    Ask::sample(&json!({
        "messages": [{"role": "user", "content": {"type": "text", "text": words}}],
        "maxTokens": tokens,
    }))
}

/// What the model said.
fn said(response: Response) -> String {
    let result = response.accepted().and_then(|content| content.parse::<Value>().ok()).unwrap_or_default();
    result["content"]["text"].as_str().unwrap_or("No response").to_owned()
}

/// How many roots the client has.
fn roots(response: Response) -> usize {
    let result = response.accepted().and_then(|content| content.parse::<Value>().ok()).unwrap_or_default();
    result["roots"].as_array().map_or(0, Vec::len)
}

/// What the suite expects to read of an answered form.
fn told(what: &str, response: Response) -> Answer {
    let (action, content) = match response {
        Response::Accept(content) => ("accept", String::from_utf8_lossy(content.json()).into_owned()),
        Response::Decline => ("decline", "{}".to_owned()),
        Response::Cancel => ("cancel", "{}".to_owned()),
        Response::Result(_) => ("result", "{}".to_owned()),
    };
    Answer::text(format!("{what}: action={action}, content={content}"))
}

pub fn tools() -> Vec<Tool> {
    [in_sessions(), coming_back()].concat()
}

/// Of MCP 2025-11-25.
fn in_sessions() -> Vec<Tool> {
    let defaults = json!({"type": "object", "required": [], "properties": {
        "name": {"type": "string", "description": "User name", "default": "John Doe"},
        "age": {"type": "integer", "description": "User age", "default": 30},
        "score": {"type": "number", "description": "User score", "default": 95.5},
        "status": {"type": "string", "description": "User status", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "description": "Verification status", "default": true},
    }});
    let titled = |values: [(&str, &str); 3]| values.map(|(value, title)| json!({"const": value, "title": title}));
    let names = [("value1", "First Option"), ("value2", "Second Option"), ("value3", "Third Option")];
    let enums = json!({"type": "object", "required": [], "properties": {
        "untitledSingle": {"type": "string", "description": "Select one option", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "description": "Select one option with titles", "oneOf": titled(names)},
        "legacyEnum": {
            "type": "string", "description": "Select one option (legacy)",
            "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {
            "type": "array", "description": "Select multiple options", "minItems": 1, "maxItems": 3,
            "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
        },
        "titledMulti": {
            "type": "array", "description": "Select multiple options with titles", "minItems": 1, "maxItems": 3,
            "items": {"anyOf": titled(names)},
        },
    }});
    let asking = |name: &str, message: &'static str, schema: Value| {
        plain(name, "Asks by a form.", move |context: Context| {
            let ask = Ask::form(message, schema.clone());
            async move { Ok(told("Elicitation completed", context.request_input(ask).await?)) }
        })
    };
    vec![
        Tool::new("test_sampling", async |context: Context, Prompt { prompt }: Prompt| {
            let response = context.request_input(sample(&prompt, 100)).await?;
            Ok(Answer::text(format!("LLM response: {}", said(response))))
        })
        .description("Asks the client's model.")
        .task_support(TaskSupport::Forbidden),
        Tool::new("test_elicitation", async |context: Context, Message { message }: Message| {
            let form = json!({
                "type": "object",
                "properties": {"response": {"type": "string", "description": "User's response"}},
                "required": ["response"],
            });
            Ok(told("User response", context.request_input(Ask::form(message, form)).await?))
        })
        .description("Asks the person.")
        .task_support(TaskSupport::Forbidden),
        asking("test_elicitation_sep1034_defaults", "Please review and update the form fields with defaults", defaults),
        asking("test_elicitation_sep1330_enums", "Please select options from the enum fields", enums),
    ]
}

/// Of MCP 2026-07-28.
fn coming_back() -> Vec<Tool> {
    let name = || Ask::form("What is your name?", form("name", "string")).key("user_name");
    let confirm = || Ask::form("Please confirm", form("ok", "boolean")).key("confirm");
    vec![
        plain("test_input_required_result_elicitation", "Asks for a name.", move |context: Context| async move {
            let name = text(context.request_input(name()).await?, "name");
            Ok(Answer::text(format!("Hello, {name}!")))
        }),
        plain("test_input_required_result_sampling", "Asks the client's model.", async |context: Context| {
            let ask = sample("What is the capital of France?", 100).key("capital_question");
            Ok(Answer::text(said(context.request_input(ask).await?)))
        }),
        plain("test_input_required_result_list_roots", "Asks for roots.", async |context: Context| {
            let found = roots(context.request_input(Ask::roots().key("client_roots")).await?);
            Ok(Answer::text(format!("Found {found} root(s)")))
        }),
        plain("test_input_required_result_request_state", "Has a state.", move |context: Context| async move {
            context.request_input(confirm()).await?;
            Ok(Answer::text("state-ok: the run goes on where it asked"))
        }),
        plain(
            "test_input_required_result_multiple_inputs",
            "Asks three at once.",
            move |context: Context| async move {
                let asks =
                    vec![name(), sample("Generate a greeting", 50).key("greeting"), Ask::roots().key("client_roots")];
                let responses = context.request_inputs(asks).await?;
                let Ok([name, greeting, found]) = <[Response; 3]>::try_from(responses) else {
                    return Err(Failure::tool("three questions, three answers"));
                };
                let (name, greeting, found) = (text(name, "name"), said(greeting), roots(found));
                Ok(Answer::text(format!("Name: {name}; Greeting: {greeting}; Roots: {found}")))
            },
        ),
        plain("test_input_required_result_multi_round", "Asks twice.", async |context: Context| {
            let ask = Ask::form("Step 1: What is your name?", form("name", "string")).key("step1");
            let name = text(context.request_input(ask).await?, "name");
            let ask = Ask::form("Step 2: What is your favorite color?", form("color", "string")).key("step2");
            let colour = text(context.request_input(ask).await?, "color");
            Ok(Answer::text(format!("Multi-round complete for {name} who likes {colour}")))
        }),
        plain("test_input_required_result_tampered_state", "Has a sealed state.", move |context: Context| async move {
            context.request_input(confirm()).await?;
            Ok(Answer::text("integrity-ok: state verified"))
        }),
        plain(
            "test_input_required_result_capabilities",
            "Asks what the client can answer.",
            async |context: Context| {
                let value = Ask::form("Elicitation input", form("value", "string")).key("elicit_input");
                let asks = vec![value, sample("Sample request", 50).key("sample_input")];
                let answered = context.request_inputs(asks).await?;
                let answered = answered.iter().filter(|response| !matches!(response, Response::Decline)).count();
                Ok(Answer::text(format!("capabilities-ok: {answered} answered")))
            },
        ),
        plain("test_streaming_elicitation", "Asks, after a word.", async |context: Context| {
            context.progress(50.0, Some(100.0), None).await?;
            let ask = Ask::form("Go on?", form("ok", "boolean"));
            context.request_input(ask).await?;
            Ok(Answer::text("Streaming complete"))
        }),
    ]
}
