//! From a type to a form that MCP allows: what such a form cannot say is left out if it only describes, else an error.

use bytes::Bytes;
use longhaul_core::input::Form;
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

/// Only describe, or say more exactly what deserializing checks anyway.
const LEFT_OUT: [&str; 9] =
    ["$comment", "$id", "examples", "deprecated", "readOnly", "writeOnly", "uniqueItems", "contentEncoding", "$schema"];
/// The formats of a form's strings (MCP 2025-11-25 schema, `StringSchema`).
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// The schema of a form for a type, or why there is none.
pub(crate) fn of<T: JsonSchema>() -> Result<Bytes, String> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.meta_schema = None;
    settings.inline_subschemas = true;
    let schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    let name = T::schema_name();
    let form = fit(schema).map_err(|why| format!("{name} is no form: {why}"))?;
    let form = Bytes::from(form.to_string());
    Form::read(&form).map_err(|error| format!("{name}: {error}"))?;
    Ok(form)
}

fn fit(schema: Value) -> Result<Value, String> {
    let not_flat = || "it is not written as an object with fields".to_owned();
    let Value::Object(mut root) = schema else { return Err(not_flat()) };
    if root.get("type") != Some(&json!("object")) {
        return Err(not_flat());
    }
    let Some(Value::Object(properties)) = root.remove("properties") else { return Err(not_flat()) };
    let mut fields = Map::new();
    for (name, property) in properties {
        let field = field(property).map_err(|why| format!("field `{name}`: {why}"))?;
        fields.insert(name, field);
    }
    let mut form = Map::from_iter([("type".into(), "object".into()), ("properties".into(), fields.into())]);
    if let Some(required) = root.remove("required") {
        form.insert("required".into(), required);
    }
    Ok(form.into())
}

fn field(schema: Value) -> Result<Value, String> {
    let mut field = object(schema)?;
    if field.contains_key("anyOf") {
        field = option(field)?;
    }
    let mut kind = field.get("type").cloned().unwrap_or_default();
    // An optional field is one that may be left out; a form has no null.
    if let Value::Array(kinds) = &mut kind {
        kinds.retain(|kind| kind != "null");
        if let [only] = kinds.as_slice() {
            kind = only.clone();
        }
    }
    if field.get("default") == Some(&Value::Null) {
        field.remove("default");
    }
    if field.contains_key("oneOf") || field.contains_key("enum") || field.contains_key("const") {
        return choice(field, "oneOf");
    }
    let Some(kind) = kind.as_str() else { return Err("it has no single type".into()) };
    let allowed: &[&str] = match kind {
        "string" => &["minLength", "maxLength", "pattern", "format"],
        "integer" | "number" => &["minimum", "maximum"],
        "boolean" => &[],
        "array" => &["minItems", "maxItems", "items"],
        _ => return Err(format!("a form has no fields of type {kind}")),
    };
    let mut fitted = Map::from_iter([("type".into(), kind.into())]);
    for (keyword, value) in field {
        let value = match keyword.as_str() {
            "type" => continue,
            "format" if !value.as_str().is_some_and(|format| kind == "string" && FORMATS.contains(&format)) => continue,
            "items" => {
                let mut items = choice(object(value)?, "anyOf")?;
                let items = items.as_object_mut().ok_or("its items are no choice")?;
                // Titled choices are each a string already.
                items.retain(|keyword, _| matches!(keyword.as_str(), "enum" | "anyOf") || keyword == "type");
                if items.contains_key("anyOf") {
                    items.remove("type");
                }
                std::mem::take(items).into()
            }
            "title" | "description" | "default" => value,
            keyword if allowed.contains(&keyword) => value,
            keyword if LEFT_OUT.contains(&keyword) => continue,
            keyword => return Err(format!("a form cannot say `{keyword}`")),
        };
        fitted.insert(keyword, value);
    }
    if kind == "array" && !fitted.contains_key("items") {
        return Err("a form's lists are of choices: use an enum without data".into());
    }
    Ok(fitted.into())
}

/// The one alternative that is not null, with what is said beside it.
fn option(mut field: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let Some(Value::Array(mut alternatives)) = field.remove("anyOf") else {
        return Err("it has no single type".into());
    };
    alternatives.retain(|one| *one != json!({ "type": "null" }));
    let (Some(only), true) = (alternatives.pop(), alternatives.is_empty()) else {
        return Err("it has several types".into());
    };
    let mut only = object(only)?;
    only.extend(field);
    Ok(only)
}

/// A choice among strings: `enum`, or with titles under `titled`.
fn choice(field: Map<String, Value>, titled: &str) -> Result<Value, String> {
    let mut fitted = Map::from_iter([("type".into(), Value::from("string"))]);
    let mut choices = Vec::new();
    let mut has_titles = false;
    for (keyword, value) in field {
        match keyword.as_str() {
            "type" => {}
            "title" | "description" | "default" => drop(fitted.insert(keyword, value)),
            "const" | "enum" => untitled(&value, &mut choices)?,
            "oneOf" => {
                for one in value.as_array().into_iter().flatten() {
                    let one = one.as_object().ok_or("its choices are not objects")?;
                    let title = one.get("title").or(one.get("description")).and_then(Value::as_str);
                    let before = choices.len();
                    for keyword in ["const", "enum"] {
                        one.get(keyword).map_or(Ok(()), |value| untitled(value, &mut choices))?;
                    }
                    if choices.len() == before {
                        return Err("it has a choice that is not a plain string".into());
                    }
                    for (_, known) in &mut choices[before..] {
                        *known = title.map(str::to_owned);
                        has_titles |= title.is_some();
                    }
                }
            }
            keyword if LEFT_OUT.contains(&keyword) => {}
            keyword => return Err(format!("a form cannot say `{keyword}`")),
        }
    }
    if choices.is_empty() {
        return Err("a form's lists are of choices: use an enum without data".into());
    }
    if has_titles {
        let choices = choices.into_iter().map(|(choice, title)| {
            let title = title.unwrap_or_else(|| choice.clone());
            json!({ "const": choice, "title": title })
        });
        fitted.insert(titled.to_owned(), choices.collect());
    } else {
        fitted.insert("enum".into(), choices.into_iter().map(|(choice, _)| Value::from(choice)).collect());
    }
    Ok(fitted.into())
}

fn untitled(value: &Value, choices: &mut Vec<(String, Option<String>)>) -> Result<(), String> {
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    for value in values.iter().filter(|value| !value.is_null()) {
        let choice = value.as_str().ok_or("a form's choices are strings")?;
        choices.push((choice.to_owned(), None));
    }
    Ok(())
}

fn object(schema: Value) -> Result<Map<String, Value>, String> {
    match schema {
        Value::Object(object) => Ok(object),
        _ => Err("it may be anything".into()),
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;

    fn form<T: JsonSchema>() -> Value {
        serde_json::from_slice(&of::<T>().unwrap()).unwrap()
    }

    /// Said at the root, where a form has no place for it.
    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its schema counts")]
    struct Trip {
        /// As in the passport.
        #[schemars(length(min = 1, max = 80))]
        name: String,
        #[schemars(email)]
        mail: Option<String>,
        #[schemars(extend("format" = "date"))]
        day: String,
        #[schemars(range(min = 1, max = 9))]
        seats: u8,
        #[serde(default = "half")]
        share: f64,
        window: Option<bool>,
        class: Class,
        #[serde(default)]
        meal: Option<Meal>,
        extras: Vec<Class>,
        #[schemars(length(min = 1))]
        courses: Vec<Meal>,
        #[serde(default)]
        note: Option<String>,
    }

    fn half() -> f64 {
        0.5
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    enum Class {
        Second,
        First,
    }

    /// What to eat.
    #[derive(Deserialize, Serialize, JsonSchema)]
    enum Meal {
        /// With meat.
        Meat,
        #[schemars(title = "Vegan, please")]
        Vegan,
        None,
    }

    #[test]
    fn a_struct_becomes_a_form_that_says_all_that_a_form_can() {
        let meals = json!([
            { "const": "None", "title": "None" },
            { "const": "Meat", "title": "With meat." },
            { "const": "Vegan", "title": "Vegan, please" }
        ]);
        assert_eq!(
            form::<Trip>(),
            json!({
                "type": "object",
                "properties": {
                    "name": { "type": "string", "description": "As in the passport.", "minLength": 1, "maxLength": 80 },
                    "mail": { "type": "string", "format": "email" },
                    "day": { "type": "string", "format": "date" },
                    "seats": { "type": "integer", "minimum": 1, "maximum": 9 },
                    "share": { "type": "number", "default": 0.5 },
                    "window": { "type": "boolean" },
                    "class": { "type": "string", "enum": ["Second", "First"] },
                    "meal": { "type": "string", "description": "What to eat.", "oneOf": meals },
                    "extras": { "type": "array", "items": { "type": "string", "enum": ["Second", "First"] } },
                    "courses": { "type": "array", "items": { "anyOf": meals }, "minItems": 1 },
                    "note": { "type": "string" }
                },
                "required": ["name", "day", "seats", "class", "extras", "courses"]
            })
        );
    }

    #[test]
    fn a_type_that_is_no_form_says_which_field_is_at_fault() {
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema counts")]
        struct Nested {
            trip: Trip,
        }
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema counts")]
        struct Free {
            words: Vec<String>,
        }
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema counts")]
        struct Odd {
            #[schemars(extend("multipleOf" = 2))]
            even: u8,
        }
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema counts")]
        struct Data {
            kind: Kind,
        }
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema counts")]
        enum Kind {
            Plain,
            With(u8),
        }
        for (why, field) in [
            (of::<Nested>(), "`trip`"),
            (of::<Free>(), "`words`"),
            (of::<Odd>(), "`multipleOf`"),
            (of::<Data>(), "`kind`"),
            (of::<String>(), "not written as an object"),
            (of::<Value>(), "not written as an object"),
        ] {
            let why = why.unwrap_err();
            assert!(why.contains(field), "{field}: {why}");
        }
    }
}
