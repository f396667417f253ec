//! Which schemas are forms.

use longhaul_core::input::{CHOICES_MAX, FIELDS_MAX, Form, Objection, PATTERNS_MAX, QUESTION_BYTES_MAX, Question, vet};
use serde_json::{Value, json};

fn read(schema: &Value) -> Result<(), String> {
    Form::read(schema.to_string().as_bytes()).map(drop).map_err(|error| error.0)
}

fn property(schema: &Value) -> Result<(), String> {
    read(&json!({ "type": "object", "properties": { "x": schema } }))
}

#[test]
fn every_kind_of_field_that_mcp_knows_is_read() {
    for schema in [
        json!({ "type": "string" }),
        json!({ "type": "string", "title": "T", "description": "D", "minLength": 1, "maxLength": 5.0, "default": "" }),
        json!({ "type": "string", "format": "email" }),
        json!({ "type": "string", "format": "uri" }),
        json!({ "type": "string", "format": "date" }),
        json!({ "type": "string", "format": "date-time", "default": "tomorrow" }),
        json!({ "type": "string", "pattern": "^[A-Z]{3}-\\d+$" }),
        json!({ "type": "number", "title": "T", "description": "D", "minimum": -1.5, "maximum": 1e300, "default": 0.5 }),
        json!({ "type": "integer", "minimum": 1, "maximum": 1, "default": 1.0 }),
        json!({ "type": "integer", "minimum": 0.5 }),
        json!({ "type": "boolean", "title": "T", "description": "D", "default": false }),
        json!({ "type": "string", "enum": ["a", "b", ""], "default": "a" }),
        json!({ "type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"] }),
        json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }], "default": "a" }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"] } }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a", "b"] }, "minItems": 0, "maxItems": 2,
            "title": "T", "description": "D", "default": ["a", "b"] }),
        json!({ "type": "array", "items": { "anyOf": [{ "const": "a", "title": "A" }] }, "default": [] }),
    ] {
        assert_eq!(property(&schema), Ok(()), "{schema}");
    }
}

#[test]
fn a_form_may_have_no_field_and_what_the_sdks_add() {
    for schema in [
        json!({ "type": "object", "properties": {} }),
        json!({ "type": "object", "properties": {}, "required": [], "$schema": "https://json-schema.org/draft/2020-12/schema" }),
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"], "title": "Booking",
            "description": "D" }),
    ] {
        assert_eq!(read(&schema), Ok(()), "{schema}");
    }
}

#[test]
fn nothing_else_is_a_form() {
    let text = json!({ "type": "string" });
    for schema in [
        json!(null),
        json!([]),
        json!("object"),
        json!(true),
        json!({}),
        json!({ "type": "object" }),
        json!({ "properties": {} }),
        json!({ "type": ["object"], "properties": {} }),
        json!({ "type": "array", "properties": {} }),
        json!({ "type": "object", "properties": [] }),
        json!({ "type": "object", "properties": null }),
        json!({ "type": "object", "properties": {}, "required": "a" }),
        json!({ "type": "object", "properties": {}, "required": null }),
        json!({ "type": "object", "properties": {}, "required": ["a"] }),
        json!({ "type": "object", "properties": { "a": text }, "required": ["a", "a"] }),
        json!({ "type": "object", "properties": { "a": text }, "required": [1] }),
        json!({ "type": "object", "properties": {}, "$schema": 1 }),
        json!({ "type": "object", "properties": {}, "title": 1 }),
        json!({ "type": "object", "properties": {}, "description": {} }),
        json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        json!({ "type": "object", "properties": {}, "additionalProperties": true }),
        json!({ "type": "object", "properties": {}, "minProperties": 1 }),
        json!({ "type": "object", "properties": {}, "patternProperties": {} }),
        json!({ "type": "object", "properties": {}, "propertyNames": {} }),
        json!({ "type": "object", "properties": {}, "dependentRequired": {} }),
        json!({ "type": "object", "properties": {}, "$ref": "file:///etc/passwd" }),
        json!({ "type": "object", "properties": {}, "$defs": {} }),
        json!({ "type": "object", "properties": {}, "$id": "x" }),
        json!({ "type": "object", "properties": {}, "allOf": [] }),
        json!({ "type": "object", "properties": {}, "anyOf": [] }),
        json!({ "type": "object", "properties": {}, "oneOf": [] }),
        json!({ "type": "object", "properties": {}, "not": {} }),
        json!({ "type": "object", "properties": {}, "if": {} }),
        json!({ "type": "object", "properties": {}, "default": {} }),
        json!({ "type": "object", "properties": {}, "examples": [] }),
        json!({ "type": "object", "properties": {}, "x-order": [] }),
        json!({ "type": "object", "properties": {}, "": 1 }),
    ] {
        assert!(read(&schema).is_err(), "{schema}");
    }
}

#[test]
fn nothing_else_is_a_field() {
    for schema in [
        json!(null),
        json!(true),
        json!("string"),
        json!({}),
        json!({ "type": "null" }),
        json!({ "type": "object" }),
        json!({ "type": "object", "properties": {} }),
        json!({ "type": ["string", "null"] }),
        json!({ "type": "String" }),
        json!({ "enum": ["a"] }),
        json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }),
        json!({ "$ref": "#/properties/y" }),
        json!({ "type": "string", "title": 1 }),
        json!({ "type": "string", "description": null }),
        json!({ "type": "string", "minLength": -1 }),
        json!({ "type": "string", "minLength": 1.5 }),
        json!({ "type": "string", "minLength": "1" }),
        json!({ "type": "string", "maxLength": null }),
        json!({ "type": "string", "maxLength": 1e300 }),
        json!({ "type": "string", "minLength": 3, "maxLength": 2 }),
        json!({ "type": "string", "format": "password" }),
        json!({ "type": "string", "format": "hostname" }),
        json!({ "type": "string", "format": "Email" }),
        json!({ "type": "string", "format": null }),
        json!({ "type": "string", "default": 1 }),
        json!({ "type": "string", "default": null }),
        json!({ "type": "string", "pattern": "(?=a)" }),
        json!({ "type": "string", "pattern": "(a)\\1" }),
        json!({ "type": "string", "pattern": "(a{1000}){1000}" }),
        json!({ "type": "string", "pattern": "[" }),
        json!({ "type": "string", "pattern": 1 }),
        json!({ "type": "string", "minimum": 1 }),
        json!({ "type": "string", "writeOnly": true }),
        json!({ "type": "string", "readOnly": true }),
        json!({ "type": "string", "const": "a" }),
        json!({ "type": "string", "examples": ["a"] }),
        json!({ "type": "string", "placeholder": "a" }),
        json!({ "type": "string", "contentEncoding": "base64" }),
        json!({ "type": "string", "deprecated": true }),
        json!({ "type": "string", "$comment": "a" }),
        json!({ "type": "string", "items": {} }),
        json!({ "type": "string", "properties": {} }),
        json!({ "type": "string", "enum": [] }),
        json!({ "type": "string", "enum": "a" }),
        json!({ "type": "string", "enum": [1] }),
        json!({ "type": "string", "enum": ["a", null] }),
        json!({ "type": "string", "enum": ["a", "a"] }),
        json!({ "type": "string", "enum": ["a"], "enumNames": [] }),
        json!({ "type": "string", "enum": ["a"], "enumNames": ["A", "B"] }),
        json!({ "type": "string", "enum": ["a"], "enumNames": [1] }),
        json!({ "type": "string", "enum": ["a"], "default": "b" }),
        json!({ "type": "string", "enum": ["a"], "default": ["a"] }),
        json!({ "type": "string", "enum": ["a"], "minLength": 1 }),
        json!({ "type": "string", "enum": ["a"], "format": "email" }),
        json!({ "type": "string", "enum": ["a"], "oneOf": [{ "const": "a", "title": "A" }] }),
        json!({ "type": "string", "enumNames": ["A"] }),
        json!({ "type": "string", "oneOf": [] }),
        json!({ "type": "string", "oneOf": {} }),
        json!({ "type": "string", "oneOf": ["a"] }),
        json!({ "type": "string", "oneOf": [{ "const": "a" }] }),
        json!({ "type": "string", "oneOf": [{ "title": "A" }] }),
        json!({ "type": "string", "oneOf": [{ "const": 1, "title": "A" }] }),
        json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A", "description": "D" }] }),
        json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }, { "const": "a", "title": "B" }] }),
        json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }], "default": "b" }),
        json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }], "enumNames": ["A"] }),
        json!({ "type": "string", "anyOf": [{ "const": "a", "title": "A" }] }),
        json!({ "type": "number", "minimum": "1" }),
        json!({ "type": "number", "minimum": 2, "maximum": 1 }),
        json!({ "type": "integer", "minimum": 9007199254740993_i64, "maximum": 9007199254740992_i64 }),
        json!({ "type": "number", "default": "1" }),
        json!({ "type": "integer", "default": 1.5 }),
        json!({ "type": "number", "exclusiveMinimum": 1 }),
        json!({ "type": "number", "multipleOf": 1 }),
        json!({ "type": "number", "enum": [1] }),
        json!({ "type": "integer", "format": "date" }),
        json!({ "type": "number", "minLength": 1 }),
        json!({ "type": "boolean", "default": "true" }),
        json!({ "type": "boolean", "default": null }),
        json!({ "type": "boolean", "enum": [true] }),
        json!({ "type": "array" }),
        json!({ "type": "array", "items": {} }),
        json!({ "type": "array", "items": true }),
        json!({ "type": "array", "items": { "type": "string" } }),
        json!({ "type": "array", "items": { "enum": ["a"] } }),
        json!({ "type": "array", "items": { "type": "number", "enum": [1] } }),
        json!({ "type": "array", "items": { "type": "string", "enum": [] } }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a", "a"] } }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"], "enumNames": ["A"] } }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"], "title": "T" } }),
        json!({ "type": "array", "items": { "type": "string", "anyOf": [{ "const": "a", "title": "A" }] } }),
        json!({ "type": "array", "items": { "oneOf": [{ "const": "a", "title": "A" }] } }),
        json!({ "type": "array", "items": { "type": "array", "items": { "type": "string", "enum": ["a"] } } }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "minItems": 2, "maxItems": 1 }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "minItems": -1 }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "uniqueItems": true }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "default": "a" }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "default": ["b"] }),
        json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "enum": [["a"]] }),
    ] {
        assert!(property(&schema).is_err(), "{schema}");
    }
}

#[test]
fn a_repeated_name_or_broken_json_is_no_form() {
    for schema in [
        r#"{"type":"object","type":"object","properties":{}}"#,
        r#"{"type":"object","properties":{},"p\u0072operties":{}}"#,
        r#"{"type":"object","properties":{"a":{"type":"string"},"a":{"type":"boolean"}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"string","type":"string"}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"number","minimum":1e400}}}"#,
        r#"{"type":"object","properties":{}"#,
        r#"{"type":"object","properties":{}} {}"#,
        "",
    ] {
        assert!(Form::read(schema.as_bytes()).is_err(), "{schema}");
    }
    assert!(Form::read(b"{\"type\":\"object\",\"properties\":{\"\xff\":{\"type\":\"string\"}}}").is_err());
    assert!(Form::read("[".repeat(QUESTION_BYTES_MAX).as_bytes()).is_err());
}

#[test]
fn a_form_is_bounded_in_fields_patterns_choices_and_bytes() {
    let fields = |count: usize, field: &Value| {
        let properties: serde_json::Map<_, _> = (0..count).map(|at| (format!("f{at}"), field.clone())).collect();
        json!({ "type": "object", "properties": properties })
    };
    let text = json!({ "type": "string" });
    assert_eq!(read(&fields(FIELDS_MAX, &text)), Ok(()));
    assert_eq!(read(&fields(FIELDS_MAX + 1, &text)), Err("the schema: there are more than 50 properties".to_owned()));
    let pattern = json!({ "type": "string", "pattern": "a" });
    assert_eq!(read(&fields(PATTERNS_MAX, &pattern)), Ok(()));
    assert!(read(&fields(PATTERNS_MAX + 1, &pattern)).is_err());
    let choices = |count: usize| {
        let values: Vec<_> = (0..count).map(|at| at.to_string()).collect();
        json!({ "type": "string", "enum": values })
    };
    assert_eq!(property(&choices(CHOICES_MAX)), Ok(()));
    assert!(property(&choices(CHOICES_MAX + 1)).is_err());
    let long = json!({ "type": "object", "properties": {}, "description": "a".repeat(QUESTION_BYTES_MAX) });
    assert!(read(&long).is_err());
    let message = "a".repeat(QUESTION_BYTES_MAX);
    let question = Question::Form { message, schema: json!({ "type": "object", "properties": {} }).to_string().into() };
    assert_eq!(vet(&question), Err(Objection::TooLarge));
}

#[test]
fn an_objection_says_what_is_wrong_where_and_stays_short() {
    let schema = json!({ "type": "object", "properties": { "age": { "type": "integer", "multipleOf": 2 } } });
    let question = Question::Form { message: String::new(), schema: schema.to_string().into() };
    assert_eq!(
        vet(&question).unwrap_err().to_string(),
        r#"not a form that MCP allows: property "age": "multipleOf" is not allowed here"#
    );
    let name = "\u{1}".repeat(9000);
    let schema = json!({ "type": "object", "properties": { &name: { &name: 1, "type": "string" } } });
    assert!(read(&schema).unwrap_err().len() < 1500);
}

/// The other rules of a question are the same for a form and for what is asked of the client itself.
#[test]
fn questions_to_the_client_itself_are_bounded_alone() {
    assert_eq!(vet(&Question::Roots), Ok(()));
    assert_eq!(vet(&Question::Sample { params: "{}".into() }), Ok(()));
    let params = "a".repeat(QUESTION_BYTES_MAX + 1).into();
    assert_eq!(vet(&Question::Sample { params }), Err(Objection::TooLarge));
}
