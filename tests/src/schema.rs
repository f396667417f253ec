//! The official JSON schemas, where they are at hand: every frame of the tests is held against them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};

/// The schemas lie beside the project, not in it.
static SCHEMA: LazyLock<Option<Value>> = LazyLock::new(|| {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/spec/schema/2025-11-25.json");
    let text = std::fs::read(file).ok();
    if text.is_none() {
        println!("the official MCP schemas are not at hand: frames are not held against them");
    }
    text.map(|text| serde_json::from_slice(&text).unwrap())
});
static VALIDATORS: LazyLock<Mutex<HashMap<String, Validator>>> = LazyLock::new(Mutex::default);

/// Panics unless `frame` is a valid `definition` of MCP 2025-11-25.
pub fn check(definition: &str, frame: &Value) {
    let Some(schema) = &*SCHEMA else { return };
    let mut validators = VALIDATORS.lock().unwrap();
    let validator = validators.entry(definition.to_owned()).or_insert_with(|| {
        assert!(!schema["$defs"][definition].is_null(), "no such definition: {definition}");
        let root =
            json!({"$schema": schema["$schema"], "$ref": format!("#/$defs/{definition}"), "$defs": schema["$defs"]});
        jsonschema::validator_for(&root).unwrap()
    });
    if let Some(error) = validator.iter_errors(frame).next() {
        panic!("not a valid {definition}: {error} at {}\n{frame:#}", error.instance_path());
    }
}

/// Holds the result of `method` against its own definition.
pub fn check_result(method: &str, task: bool, result: &Value) {
    let definition = match method {
        "initialize" => "InitializeResult",
        "tools/list" => "ListToolsResult",
        "tools/call" if task => "CreateTaskResult",
        "tools/call" | "tasks/result" => "CallToolResult",
        "tasks/get" => "GetTaskResult",
        "tasks/list" => "ListTasksResult",
        "tasks/cancel" => "CancelTaskResult",
        _ => "EmptyResult",
    };
    check(definition, result);
}
