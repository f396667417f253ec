//! What we are held against: another JSON Schema validator, and another reading of URLs.

use jsonschema::{Draft, PatternOptions, Validator};
use longhaul_core::input::MATCHED_BYTES_MAX;
use serde_json::{Value, json};

/// The validator of a form: JSON Schema 2020-12 with formats asserted. That a content has no other fields is MCP's rule
/// (`content` holds "values matching the requested schema"), so the schema is told.
pub fn validator(schema: &Value) -> Validator {
    let mut closed = schema.clone();
    closed["additionalProperties"] = json!(false);
    // Whatever dialect it names, our keywords mean the same in all of them.
    closed.as_object_mut().unwrap().remove("$schema");
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .should_validate_formats(true)
        .with_pattern_options(PatternOptions::regex())
        .build(&closed)
        .unwrap_or_else(|error| panic!("a form that we read is no schema: {error}\n{schema}"))
}

/// Whether a content is one of the few that we refuse and the validator accepts: a text too long for a pattern; an e-mail
/// address with a name beside it, which the validator's library takes for one (RFC 5321, §4.1.2 has none).
pub fn is_refused_by_us_alone(schema: &Value, content: &Value) -> bool {
    let fields = schema["properties"].as_object().unwrap();
    fields.iter().any(|(name, field)| {
        let Some(text) = content.get(name).and_then(Value::as_str) else { return false };
        let long = field.get("pattern").is_some() && text.len() > MATCHED_BYTES_MAX;
        let named = field["format"] == "email" && text.contains('<');
        long || named
    })
}

/// The host of a URL by RFC 3986, appendix B, which knows no repairs.
pub fn host(url: &str) -> &str {
    let rest = url.split_once("://").unwrap().1;
    let authority = rest.split(['/', '?', '#']).next().unwrap();
    authority.strip_suffix(":443").unwrap_or(authority)
}

/// `ElicitRequestFormParams.requestedSchema` of both eras, closed: each definition with the keywords that it names and no
/// other, `pattern` added; and a title and a description of the whole.
pub fn official_form() -> Validator {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let texts = json!({ "type": "array", "items": text, "minItems": 1, "uniqueItems": true });
    let names = json!({ "type": "array", "items": text });
    let closed = |kind: Value, more: Value, required: Value| {
        let mut properties = json!({ "type": kind, "title": text, "description": text });
        properties.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    };
    let option = json!({ "type": "object", "properties": { "const": text, "title": text }, "required": ["const", "title"],
        "additionalProperties": false });
    let options = json!({ "type": "array", "items": option, "minItems": 1, "uniqueItems": true });
    let untitled = json!({ "type": "object", "properties": { "type": { "const": "string" }, "enum": texts },
        "required": ["type", "enum"], "additionalProperties": false });
    let titled = json!({ "type": "object", "properties": { "anyOf": options }, "required": ["anyOf"],
        "additionalProperties": false });
    let string = json!({ "const": "string" });
    let format = json!({ "enum": ["email", "uri", "date", "date-time"] });
    let field = json!({ "oneOf": [
        closed(string.clone(), json!({ "minLength": count, "maxLength": count, "format": format, "pattern": text,
            "default": text }), json!(["type"])),
        closed(string.clone(), json!({ "enum": texts, "enumNames": names, "default": text }), json!(["type", "enum"])),
        closed(string, json!({ "oneOf": options, "default": text }), json!(["type", "oneOf"])),
        closed(json!({ "const": "number" }), json!({ "minimum": { "type": "number" }, "maximum": { "type": "number" },
            "default": { "type": "number" } }), json!(["type"])),
        closed(json!({ "const": "integer" }), json!({ "minimum": { "type": "number" }, "maximum": { "type": "number" },
            "default": { "type": "integer" } }), json!(["type"])),
        closed(json!({ "const": "boolean" }), json!({ "default": { "type": "boolean" } }), json!(["type"])),
        closed(json!({ "const": "array" }), json!({ "items": { "oneOf": [untitled, titled] }, "minItems": count,
            "maxItems": count, "default": names }), json!(["type", "items"])),
    ] });
    let form = json!({ "type": "object", "required": ["type", "properties"], "additionalProperties": false, "properties": {
        "$schema": text, "type": { "const": "object" }, "title": text, "description": text,
        "properties": { "type": "object", "additionalProperties": field },
        "required": { "type": "array", "items": text, "uniqueItems": true },
    } });
    jsonschema::options().with_draft(Draft::Draft202012).build(&form).unwrap()
}

/// Whether the validator's translation of the form's patterns is to be trusted: it passes most escapes on to an engine
/// that reads them in its own way.
pub fn knows_its_patterns(schema: &Value) -> bool {
    let fields = schema["properties"].as_object().unwrap().values();
    fields.filter_map(|field| field["pattern"].as_str()).all(|pattern| {
        let mut chars = pattern.chars();
        let mut known = true;
        while let Some(next) = chars.next() {
            known &= next != '\\' || chars.next().is_some_and(|escaped| "dDwWsS.^$()[]".contains(escaped));
        }
        known
    })
}
