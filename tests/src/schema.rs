//! The official JSON schemas, where they are at hand: every frame of the tests is held against those of its era.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::{Value, json};

/// Whose frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schema {
    /// MCP 2025-11-25.
    V2025,
    /// MCP 2026-07-28.
    V2026,
    /// The tasks extension of MCP 2026-07-28.
    Tasks,
}

impl Schema {
    const ALL: [Self; 3] = [Self::V2025, Self::V2026, Self::Tasks];

    /// The schemas lie beside the project, not in it.
    fn file(self) -> &'static str {
        match self {
            Self::V2025 => "2025-11-25.json",
            Self::V2026 => "2026-07-28.json",
            Self::Tasks => "ext-tasks-draft.json",
        }
    }

    /// Panics unless `frame` is a valid `definition`.
    pub fn check(self, definition: &str, frame: &Value) {
        let Some(schema) = SCHEMAS.get(&self) else { return };
        let mut validators = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
        let validator = validators.entry((self, definition.to_owned())).or_insert_with(|| {
            assert!(!schema["$defs"][definition].is_null(), "no such definition: {definition}");
            let root = json!({
                "$schema": schema["$schema"], "$ref": format!("#/$defs/{definition}"), "$defs": schema["$defs"],
            });
            jsonschema::validator_for(&root).unwrap()
        });
        if let Some(error) = validator.iter_errors(frame).next() {
            panic!("not a valid {definition} of {self:?}: {error} at {}\n{frame:#}", error.instance_path());
        }
    }
}

static SCHEMAS: LazyLock<HashMap<Schema, Value>> = LazyLock::new(|| {
    let read = |schema: Schema| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/spec/schema");
        let text = std::fs::read(folder.join(schema.file())).ok()?;
        Some((schema, serde_json::from_slice(&text).unwrap()))
    };
    let schemas: HashMap<_, _> = Schema::ALL.into_iter().filter_map(read).collect();
    if schemas.len() < Schema::ALL.len() {
        println!("the official MCP schemas are not at hand: frames are not held against them");
    }
    schemas
});
static VALIDATORS: LazyLock<Mutex<HashMap<(Schema, String), Validator>>> = LazyLock::new(Mutex::default);

/// Holds the 2025-11-25 result of `method` against its own definition.
pub fn check_result(method: &str, task: bool, result: &Value) {
    let definition = match method {
        "initialize" => "InitializeResult",
        "tools/list" => "ListToolsResult",
        "tools/call" if task => "CreateTaskResult",
        "tools/call" | "tasks/result" => "CallToolResult",
        "tasks/get" => "GetTaskResult",
        "tasks/list" => "ListTasksResult",
        "tasks/cancel" => "CancelTaskResult",
        "prompts/list" => "ListPromptsResult",
        "prompts/get" => "GetPromptResult",
        "resources/list" => "ListResourcesResult",
        "resources/templates/list" => "ListResourceTemplatesResult",
        "resources/read" => "ReadResourceResult",
        "completion/complete" => "CompleteResult",
        _ => "EmptyResult",
    };
    Schema::V2025.check(definition, result);
}

/// Holds the 2026-07-28 result of `method` against its own definition.
pub fn check_modern_result(method: &str, result: &Value) {
    let (schema, definition) = match (method, result["resultType"].as_str().unwrap()) {
        (_, "input_required") => (Schema::V2026, "InputRequiredResult"),
        ("tools/call", "task") => (Schema::Tasks, "CreateTaskResult"),
        ("tasks/get", _) => (Schema::Tasks, "GetTaskResult"),
        ("tasks/update", _) => (Schema::Tasks, "UpdateTaskResult"),
        ("tasks/cancel", _) => (Schema::Tasks, "CancelTaskResult"),
        ("server/discover", _) => (Schema::V2026, "DiscoverResult"),
        ("tools/list", _) => (Schema::V2026, "ListToolsResult"),
        ("tools/call", _) => (Schema::V2026, "CallToolResult"),
        ("prompts/list", _) => (Schema::V2026, "ListPromptsResult"),
        ("prompts/get", _) => (Schema::V2026, "GetPromptResult"),
        ("resources/list", _) => (Schema::V2026, "ListResourcesResult"),
        ("resources/templates/list", _) => (Schema::V2026, "ListResourceTemplatesResult"),
        ("resources/read", _) => (Schema::V2026, "ReadResourceResult"),
        ("completion/complete", _) => (Schema::V2026, "CompleteResult"),
        ("subscriptions/listen", _) => (Schema::V2026, "SubscriptionsListenResult"),
        (other, _) => panic!("2026-07-28 has no {other}"),
    };
    schema.check(definition, result);
}

/// Holds a message that the server sent on a 2026-07-28 stream against its own definition.
pub fn check_modern_message(message: &Value) {
    let definition = match message["method"].as_str() {
        None if message.get("error").is_some() => "JSONRPCErrorResponse",
        None => "JSONRPCResultResponse",
        Some("notifications/tasks") => return Schema::Tasks.check("TaskStatusNotification", message),
        Some("notifications/progress") => "ProgressNotification",
        Some("notifications/message") => "LoggingMessageNotification",
        Some("notifications/subscriptions/acknowledged") => "SubscriptionsAcknowledgedNotification",
        Some("notifications/tools/list_changed") => "ToolListChangedNotification",
        Some("notifications/prompts/list_changed") => "PromptListChangedNotification",
        Some("notifications/resources/list_changed") => "ResourceListChangedNotification",
        Some("notifications/resources/updated") => "ResourceUpdatedNotification",
        Some(other) => panic!("a server of 2026-07-28 never sends {other}: {message}"),
    };
    Schema::V2026.check(definition, message);
}
