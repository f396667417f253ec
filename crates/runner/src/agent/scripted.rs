//! No model at all: a script that uses the demo's tools, so that an agent can be tried without any key.

use serde_json::json;

use super::model::{Message, Said, Stop, ToolCall, ToolSpec, Turn, Usage};

/// What each of its answers begins with.
const SIGN: &str = "[scripted demo, no AI model]";

/// The next answer of the script: count down, ask the caller, tell what came of it.
pub(crate) fn turn(turn: &Turn<'_>) -> Said {
    let answers: Vec<_> = turn
        .history
        .iter()
        .filter_map(|message| match message {
            Message::Tools(answers) => answers.first(),
            Message::Person(_) | Message::Model(_) => None,
        })
        .collect();
    let call = |tool: &ToolSpec, arguments: serde_json::Value| ToolCall {
        id: format!("scripted-{}", answers.len()),
        name: tool.name.clone(),
        arguments: arguments.to_string(),
    };
    let named = |name: &str| turn.tools.iter().find(|tool| tool.name == name);
    let (text, calls) = match (answers.as_slice(), named("countdown"), named("ask")) {
        ([], Some(countdown), _) => ("First I count down.", vec![call(countdown, json!({ "seconds": 3 }))]),
        ([], None, Some(ask)) | ([_], _, Some(ask)) => {
            ("Now I ask.", vec![call(ask, json!({ "question": "What should the demo agent tell you?" }))])
        }
        _ => ("", Vec::new()),
    };
    let text = match answers.last() {
        Some(last) if text.is_empty() => format!("{SIGN} I have finished. The last tool answered: {}", last.text),
        None if text.is_empty() => format!("{SIGN} I have no tools, so there is nothing that I can do."),
        Some(_) | None => format!("{SIGN} {text}"),
    };
    Said { text, calls, stop: Stop::Done, usage: Usage::default() }
}
