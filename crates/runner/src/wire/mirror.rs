//! Arguments of tools that go into headers too (MCP 2026-07-28, basic/transports/streamable-http, "Custom Headers from
//! Tool Parameters").

use std::collections::{HashMap, HashSet};

use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::request::header_value;

const ANNOTATION: &str = "x-mcp-header";
const PREFIX: &str = "mcp-param-";
/// Arguments of one tool that go into headers; servers have limits for headers of their own.
const MIRRORED_MAX: usize = 32;
/// The longest value that goes into a header, in bytes.
const VALUE_BYTES_MAX: usize = 4096;
/// Keywords whose values are schemas, or lists or maps of schemas; an annotation in them is in the wrong place.
const NESTING: [&str; 23] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "propertyNames",
    "dependentSchemas",
    "dependencies",
    "oneOf",
    "anyOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "$defs",
    "definitions",
    "contentSchema",
    "extends",
    "disallow",
];

/// Which arguments of a tool go into which headers.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Mirror(Vec<(HeaderName, Vec<String>)>);

impl Mirror {
    /// Reads a tool's definition. The error says why its annotations are invalid: such a tool must not be used.
    pub(crate) fn of(definition: &[u8]) -> Result<Self, &'static str> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Members {
            input_schema: Value,
        }
        let Ok(Members { input_schema }) = serde_json::from_slice(definition) else { return Ok(Self::default()) };
        let mut mirror = Self::default();
        mirror.walk(&input_schema, &mut Vec::new())?;
        let names: HashSet<_> = mirror.0.iter().map(|(name, _)| name).collect();
        if names.len() < mirror.0.len() {
            return Err("two arguments share a header");
        }
        if mirror.0.len() > MIRRORED_MAX {
            return Err("too many arguments go into headers");
        }
        Ok(mirror)
    }

    fn walk(&mut self, schema: &Value, path: &mut Vec<String>) -> Result<(), &'static str> {
        let Some(schema) = schema.as_object() else { return Ok(()) };
        if let Some(annotation) = schema.get(ANNOTATION) {
            let is_plain =
                schema.get("type").is_some_and(|kind| kind == "string" || kind == "integer" || kind == "boolean");
            if path.is_empty() || !is_plain {
                return Err("only a string, an integer or a boolean may go into a header");
            }
            let name = annotation.as_str().filter(|name| !name.is_empty());
            let name = name.and_then(|name| HeaderName::try_from(format!("{PREFIX}{name}")).ok());
            self.0.push((name.ok_or("an argument's header has no valid name")?, path.clone()));
        }
        for (keyword, value) in schema {
            match keyword.as_str() {
                "properties" => {
                    for (name, schema) in value.as_object().into_iter().flatten() {
                        path.push(name.clone());
                        self.walk(schema, path)?;
                        path.pop();
                    }
                }
                keyword if NESTING.contains(&keyword) && is_annotated(value) => {
                    return Err("an argument that goes into a header must be reached through properties alone");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The headers of a call with these arguments. An argument that is absent or null has none; one of another type than
    /// the schema says has none either, for the server to refuse.
    pub(crate) fn headers(&self, arguments: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, path) in &self.0 {
            if let Some(text) = at(arguments, path).as_deref().and_then(scalar)
                && text.len() <= VALUE_BYTES_MAX
            {
                headers.insert(name, header_value(&text));
            }
        }
        headers
    }
}

/// Whether there is an annotation in a schema, or in a list or map of schemas.
fn is_annotated(value: &Value) -> bool {
    match value {
        Value::Array(schemas) => schemas.iter().any(is_annotated),
        Value::Object(members) => {
            members.contains_key(ANNOTATION)
                || members.iter().any(|(member, value)| {
                    // What is data may look like anything.
                    !matches!(member.as_str(), "default" | "const" | "enum" | "examples") && is_annotated(value)
                })
        }
        _ => false,
    }
}

fn at(arguments: &[u8], path: &[String]) -> Option<Box<RawValue>> {
    let mut value: Box<RawValue> = serde_json::from_slice(arguments).ok()?;
    for step in path {
        let mut members: HashMap<String, Box<RawValue>> = serde_json::from_str(value.get()).ok()?;
        value = members.remove(step)?;
    }
    Some(value)
}

/// A string, an integer or a boolean as text.
fn scalar(value: &RawValue) -> Option<String> {
    match serde_json::from_str(value.get()).ok()? {
        Value::String(text) => Some(text),
        Value::Bool(is) => Some(is.to_string()),
        // Written as it came: 42.0 and 42 are one number, and no digit gets lost.
        Value::Number(_) => Some(value.get().to_owned()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(schema: &str) -> String {
        format!(r#"{{"name":"t","inputSchema":{{"type":"object",{schema}}}}}"#)
    }

    #[test]
    fn annotated_arguments_go_into_headers() {
        let schema = concat!(
            r#""properties":{"region":{"type":"string","x-mcp-header":"Region"},"x-mcp-header":{"type":"number"},"#,
            r#""in":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"},"ok":{"type":"boolean","x-mcp-header":"Ok"}}},"#,
            r#""other":{"type":"object","default":{"items":{"x-mcp-header":"data"}}}}"#
        );
        let mirror = Mirror::of(tool(schema).as_bytes()).unwrap();
        let headers = |arguments: &str| {
            let headers = mirror.headers(arguments.as_bytes());
            let mut all: Vec<_> =
                headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
            all.sort();
            all
        };
        assert_eq!(
            headers(r#"{"region":"é","in":{"n":-7,"ok":true}}"#),
            ["mcp-param-n: -7", "mcp-param-ok: true", "mcp-param-region: =?base64?w6k=?="]
        );
        assert_eq!(headers(r#"{"region":null,"in":{"n":9007199254740993}}"#), ["mcp-param-n: 9007199254740993"]);
        for none in ["{}", r#"{"region":{}}"#, r#"{"in":[]}"#, "[]", "x"] {
            assert!(headers(none).is_empty(), "{none}");
        }
        assert_eq!(Mirror::of(br#"{"name":"t"}"#), Ok(Mirror::default()));
    }

    #[test]
    fn an_invalid_annotation_is_refused() {
        for schema in [
            r#""x-mcp-header":"Root""#,
            r#""properties":{"a":{"type":"string","x-mcp-header":""}}"#,
            r#""properties":{"a":{"type":"string","x-mcp-header":1}}"#,
            r#""properties":{"a":{"type":"string","x-mcp-header":"a b"}}"#,
            r#""properties":{"a":{"type":"string","x-mcp-header":"a\r\nb: c"}}"#,
            r#""properties":{"a":{"type":"number","x-mcp-header":"A"}}"#,
            r#""properties":{"a":{"type":"object","x-mcp-header":"A"}}"#,
            r#""properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}"#,
            r#""properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}"#,
            r#""oneOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]"#,
            r#""$defs":{"d":{"type":"string","x-mcp-header":"A"}}"#,
        ] {
            assert!(Mirror::of(tool(schema).as_bytes()).is_err(), "{schema}");
        }
    }
}
