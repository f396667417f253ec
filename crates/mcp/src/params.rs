//! Parameters that mean the same in every dialect. Unknown members are ignored everywhere: real clients repeat some where
//! they do not belong.

use std::borrow::Cow;

use bytes::Bytes;
use longhaul_core::limits::{PROGRESS_TOKEN_BYTES_MAX, TOOL_NAME_BYTES_MAX, cut};
use longhaul_core::{ClientCapabilities, Target};

use crate::dialect::Dialect;
use crate::errors::{Denial, code};
use crate::json::{self, Object};
use crate::jsonrpc::{Params, RpcError};
use crate::reply::Features;
use crate::request::{Listing, TaskRef, TraceContext};
use crate::seal::TOKEN_BYTES_MAX;

/// The longest client name kept, in bytes.
const CLIENT_NAME_BYTES_MAX: usize = 128;
/// The longest name of a prompt, in bytes.
const PROMPT_NAME_BYTES_MAX: usize = 1024;
/// The longest URI or URI template, in bytes.
const URI_BYTES_MAX: usize = 8192;

/// What a method calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callable {
    Tool,
    Prompt,
    Resource,
    Completion,
}

impl Callable {
    /// What the method calls, if that is served.
    pub(crate) fn of_method(method: &str, features: Features) -> Option<Self> {
        match method {
            "tools/call" => Some(Self::Tool),
            "prompts/get" if features.prompts => Some(Self::Prompt),
            "resources/read" if features.resources => Some(Self::Resource),
            "completion/complete" if features.completions => Some(Self::Completion),
            _ => None,
        }
    }
}

/// Which list the method asks for, if that is served.
pub(crate) fn listing(method: &str, features: Features) -> Option<Listing> {
    match method {
        "tools/list" => Some(Listing::Tools),
        "prompts/list" if features.prompts => Some(Listing::Prompts),
        "resources/list" if features.resources => Some(Listing::Resources),
        "resources/templates/list" if features.resources => Some(Listing::Templates),
        _ => None,
    }
}

/// What is called, and with which arguments.
pub(crate) fn target(dialect: Dialect, callable: Callable, params: &Params<'_>) -> Result<(Target, Bytes), RpcError> {
    let nothing = Bytes::from_static(b"{}");
    Ok(match callable {
        Callable::Tool => {
            let name = text(params, "name")?;
            if name.len() > TOOL_NAME_BYTES_MAX {
                return Err(Denial::UnknownTool(cut(&name, TOOL_NAME_BYTES_MAX)).reject(dialect).error);
            }
            (Target::Tool(name.into_owned()), arguments(params)?)
        }
        Callable::Prompt => {
            let name = text(params, "name")?;
            if name.len() > PROMPT_NAME_BYTES_MAX {
                return Err(Denial::UnknownPrompt(cut(&name, PROMPT_NAME_BYTES_MAX)).reject(dialect).error);
            }
            (Target::Prompt(name.into_owned()), arguments(params)?)
        }
        Callable::Resource => (Target::Resource(uri(dialect, params)?), nothing),
        Callable::Completion => completion(params)?,
    })
}

/// The URI of a resource.
pub(crate) fn uri(dialect: Dialect, params: &Params<'_>) -> Result<String, RpcError> {
    let uri = text(params, "uri")?;
    if uri.len() > URI_BYTES_MAX {
        return Err(Denial::UnknownResource(cut(&uri, URI_BYTES_MAX)).reject(dialect).error);
    }
    Ok(uri.into_owned())
}

fn arguments(params: &Params<'_>) -> Result<Bytes, RpcError> {
    match params.get("arguments") {
        None => Ok(Bytes::from_static(b"{}")),
        Some(arguments) if json::is_object(arguments) => Ok(Bytes::copy_from_slice(arguments.as_bytes())),
        Some(_) => Err(invalid("arguments must be an object")),
    }
}

/// `completion/complete`: the argument and its context go on as they came.
fn completion(params: &Params<'_>) -> Result<(Target, Bytes), RpcError> {
    let reference = object(params, "ref")?;
    let part = |name: &str, max| reference.get(name).and_then(json::string).filter(|text| text.len() <= max);
    let target = match reference.get("type").and_then(json::string).as_deref() {
        Some("ref/prompt") => part("name", PROMPT_NAME_BYTES_MAX).map(Cow::into_owned).map(Target::CompletePrompt),
        Some("ref/resource") => part("uri", URI_BYTES_MAX).map(Cow::into_owned).map(Target::CompleteTemplate),
        _ => None,
    };
    let target = target.ok_or_else(|| invalid("ref must name a prompt or a resource template"))?;
    let argument = object(params, "argument")?;
    if ["name", "value"].iter().any(|name| argument.get(name).and_then(json::string).is_none()) {
        return Err(invalid("argument must have a name and a value, both strings"));
    }
    let argument = params.get("argument").unwrap_or("{}");
    let arguments = match params.get("context") {
        None => format!(r#"{{"argument":{argument}}}"#),
        Some(context) if json::is_object(context) => format!(r#"{{"argument":{argument},"context":{context}}}"#),
        Some(_) => return Err(invalid("context must be an object")),
    };
    Ok((target, arguments.into()))
}

/// The JSON string or integer under which a caller wants to hear of progress.
pub(crate) fn progress_token(meta: &Object<'_>) -> Result<Option<Bytes>, RpcError> {
    match meta.get("progressToken") {
        None => Ok(None),
        Some(token) if token.len() > PROGRESS_TOKEN_BYTES_MAX => Err(invalid("_meta.progressToken is too long")),
        Some(token) if token.starts_with('"') || json::is_integer(token) => {
            Ok(Some(Bytes::copy_from_slice(token.as_bytes())))
        }
        Some(_) => Err(invalid("_meta.progressToken must be a string or an integer")),
    }
}

/// The trace context in a `_meta` (SEP-414).
pub(crate) fn trace(meta: &Object<'_>) -> TraceContext {
    let text = |name| meta.get(name).and_then(json::string);
    TraceContext::new(text("traceparent").as_deref(), text("tracestate").as_deref(), text("baggage").as_deref())
}

/// What a client declares that it can be asked.
pub(crate) fn capabilities(declared: &Object<'_>) -> ClientCapabilities {
    let elicitation = declared.get("elicitation").and_then(|value| Object::read(value.as_bytes()));
    let mode = |name| elicitation.as_ref().is_some_and(|modes| modes.get(name).is_some());
    ClientCapabilities {
        // `elicitation: {}` means forms only (client/elicitation, "Capabilities").
        elicitation_form: mode("form") || elicitation.as_ref().is_some_and(|modes| modes.fields.is_empty()),
        elicitation_url: mode("url"),
        sampling: declared.get("sampling").is_some_and(json::is_object),
        roots: declared.get("roots").is_some_and(json::is_object),
    }
}

/// What a client calls itself.
pub(crate) fn client_name(info: &Object<'_>) -> Option<String> {
    info.get("name").and_then(json::string).map(|name| cut(&name, CLIENT_NAME_BYTES_MAX).to_owned())
}

/// The task that a request names; only `params.taskId` does.
pub(crate) fn task_ref(params: &Params<'_>) -> Result<TaskRef, RpcError> {
    text(params, "taskId").map(|id| TaskRef { id: id.parse().ok() })
}

/// Where the last page ended.
pub(crate) fn cursor(dialect: Dialect, params: &Params<'_>) -> Result<Option<String>, RpcError> {
    match params.get("cursor").map(json::string) {
        None => Ok(None),
        Some(Some(cursor)) if cursor.len() <= TOKEN_BYTES_MAX => Ok(Some(cursor.into_owned())),
        Some(_) => Err(Denial::BadCursor.reject(dialect).error),
    }
}

/// A string in `params`.
pub(crate) fn text<'a>(params: &Params<'a>, name: &'static str) -> Result<Cow<'a, str>, RpcError> {
    params.get(name).and_then(json::string).ok_or_else(|| invalid(format!("{name} must be a string")))
}

/// An object in `params`; an empty one if it is absent.
pub(crate) fn object<'a>(params: &Params<'a>, name: &'static str) -> Result<Object<'a>, RpcError> {
    let text = params.get(name).unwrap_or("{}");
    Object::read(text.as_bytes()).ok_or_else(|| invalid(format!("{name} must be an object")))
}

pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> RpcError {
    RpcError::new(code::INVALID_PARAMS, format!("Invalid params: {}", what.into()))
}
