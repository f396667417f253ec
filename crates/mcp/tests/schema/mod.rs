//! The official JSON schemas, where they are at hand: every golden frame is held against them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};

/// By schema and definition; nothing where the schemas are not at hand.
static VALIDATORS: LazyLock<Mutex<HashMap<String, Option<Validator>>>> = LazyLock::new(Mutex::default);

/// Panics unless `frame` is a valid `definition` of the schema of this name.
pub fn check(schema: &str, definition: &str, frame: &Value) {
    let mut validators = VALIDATORS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let key = format!("{schema}/{definition}");
    let Some(validator) = validators.entry(key).or_insert_with(|| validator(schema, definition)) else { return };
    if let Some(error) = validator.iter_errors(frame).next() {
        panic!("not a valid {definition}: {error} at {}\n{frame:#}", error.instance_path());
    }
}

/// The schemas lie beside the project, not in it.
fn validator(schema: &str, definition: &str) -> Option<Validator> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec/schema");
    let Ok(text) = std::fs::read(folder.join(schema).with_extension("json")) else {
        println!("the official MCP schema {schema} is not at hand: frames are not held against it");
        return None;
    };
    let schema: Value = serde_json::from_slice(&text).expect("JSON");
    assert!(!schema["$defs"][definition].is_null(), "no such definition: {definition}");
    let root =
        json!({ "$schema": schema["$schema"], "$ref": format!("#/$defs/{definition}"), "$defs": schema["$defs"] });
    Some(jsonschema::validator_for(&root).expect("a schema"))
}
