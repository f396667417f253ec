//! Arguments of tools that clients repeat in headers (`x-mcp-header`; MCP 2026-07-28, basic/transports/streamable-http,
//! "Custom Headers from Tool Parameters").

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::canonical::canonical;
use crate::dialect::Dialect;
use crate::era::{Header, Headers};
use crate::errors::{Denial, Rejection};
use crate::json::{self, Edit, Field, Object};
use crate::v2026::header::decoded;

const ANNOTATION: &str = "x-mcp-header";
const PREFIX: &str = "mcp-param-";
/// How deep schemas are searched for annotations, in objects and arrays; what is deeper is left as it is.
const DEPTH_MAX: usize = 64;

/// The headers that a tool's calls must have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParamHeaders(Vec<ParamHeader>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct ParamHeader {
    /// In lower case, with its prefix.
    name: String,
    /// The names of the properties that lead to the argument.
    path: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    String,
    Integer,
    Boolean,
}

impl ParamHeaders {
    /// Those of a tool's definition: the annotations that [`listed`](crate::listed()) leaves in it.
    pub fn of(tool_definition: &[u8]) -> Self {
        let mut found = Self::default();
        if let Some(schema) = Object::read(tool_definition).and_then(|tool| tool.get("inputSchema")) {
            walk(schema, Some(&mut Vec::new()), &mut found, 0);
        }
        found
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether each header says what its argument is: the last of the header checks (docs/PROTOCOL.md, "Order of the checks"). Where there is no
    /// argument, or null, there must be no header either, or something between us could be misled by it.
    pub fn check(&self, headers: &dyn Headers, arguments: &[u8]) -> Result<(), Rejection> {
        let no = |what| Err(Denial::BadHeader(what).reject(Dialect::V2026_07_28));
        for header in &self.0 {
            let argument = std::str::from_utf8(arguments).ok().and_then(|text| at(text, &header.path));
            match (headers.header(&header.name).trimmed(), argument.filter(|value| *value != "null")) {
                (Header::Absent, None) => {}
                (Header::Absent, Some(_)) => return no("An Mcp-Param header is missing whose argument is there"),
                (Header::Bad, _) => return no("An Mcp-Param header must be there once, and be text"),
                (Header::One(_), None) => return no("An Mcp-Param header is there whose argument is not"),
                (Header::One(value), Some(argument)) => match decoded(value) {
                    None => return no("An Mcp-Param header is malformed"),
                    Some(said) if !header.kind.is_same(&said, argument) => {
                        return no("An Mcp-Param header does not match its argument");
                    }
                    Some(_) => {}
                },
            }
        }
        Ok(())
    }
}

impl Kind {
    fn of(schema: &Object<'_>) -> Option<Self> {
        match &*json::string(schema.get("type")?)? {
            "string" => Some(Self::String),
            "integer" => Some(Self::Integer),
            "boolean" => Some(Self::Boolean),
            _ => None,
        }
    }

    /// Whether a header says the same as an argument. An argument of another type is for the tool to refuse; its header
    /// must be its JSON.
    fn is_same(self, said: &str, argument: &str) -> bool {
        match (self, json::string(argument)) {
            (_, Some(text)) => text == said,
            (Self::Integer, None) => {
                said == argument || is_number(said) && canonical(said.as_bytes()) == canonical(argument.as_bytes())
            }
            (Self::String | Self::Boolean, None) => said == argument,
        }
    }
}

fn is_number(text: &str) -> bool {
    // No space around it, as JSON would allow.
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && serde_json::from_str::<&RawValue>(text).is_ok_and(|value| value.get() == text)
}

/// The value at a path of properties.
fn at<'a>(value: &'a str, path: &[String]) -> Option<&'a str> {
    path.iter().try_fold(value, |value, name| Object::read(value.as_bytes())?.get(name))
}

/// An input schema without the annotations for which clients must drop the whole tool; `None` if it has none of those.
pub(crate) fn without_bad_headers(schema: &str) -> Option<String> {
    walk(schema, Some(&mut Vec::new()), &mut ParamHeaders::default(), 0)
}

/// Collects the good annotations in a schema, and answers with the schema without the bad ones, if there are any. `path`:
/// by which properties it is reached; `None` if otherwise, where no annotation is good.
fn walk(schema: &str, mut path: Option<&mut Vec<String>>, found: &mut ParamHeaders, depth: usize) -> Option<String> {
    let object = Object::read(schema.as_bytes()).filter(|_| depth < DEPTH_MAX)?;
    let mut changed = false;
    let edit = |field: &Field<'_>| {
        let new = match &*field.name {
            ANNOTATION => {
                let good = path.as_deref().and_then(|path| annotation(&object, field.value, path, found));
                if let Some(good) = good {
                    found.0.push(good);
                    return Edit::Keep;
                }
                changed = true;
                return Edit::Drop;
            }
            "properties" => map(field.value, |name, schema| match path.as_deref_mut() {
                Some(path) => {
                    path.push(name.to_owned());
                    let new = walk(schema, Some(path), found, depth + 1);
                    path.pop();
                    new
                }
                None => walk(schema, None, found, depth + 1),
            }),
            "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                map(field.value, |_, schema| walk(schema, None, found, depth + 1))
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => list(field.value, found, depth),
            "items" if !json::is_object(field.value) => list(field.value, found, depth),
            "items"
            | "additionalItems"
            | "unevaluatedItems"
            | "contains"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contentSchema" => walk(field.value, None, found, depth + 1),
            // Whatever else there is, is no schema: values such as `default` may look as they like.
            _ => None,
        };
        new.map_or(Edit::Keep, |new| {
            changed = true;
            Edit::Set(new)
        })
    };
    let mut out = Vec::with_capacity(schema.len());
    object.rewrite(&mut out, edit, &[]);
    changed.then(|| text(out))
}

/// A good annotation: a name that headers can have and no other argument has, of a value that headers can say.
fn annotation(schema: &Object<'_>, value: &str, path: &[String], found: &ParamHeaders) -> Option<ParamHeader> {
    let name = json::string(value).filter(|name| is_token(name))?;
    let name = format!("{PREFIX}{}", name.to_ascii_lowercase());
    let is_first = !path.is_empty() && found.0.iter().all(|other| other.name != name);
    let kind = Kind::of(schema).filter(|_| is_first)?;
    Some(ParamHeader { name, path: path.to_owned(), kind })
}

/// RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// An object of schemas, each changed; `None` if none is.
fn map(value: &str, mut change: impl FnMut(&str, &str) -> Option<String>) -> Option<String> {
    let object = Object::read(value.as_bytes())?;
    let mut changed = false;
    let edit = |field: &Field<'_>| match change(&field.name, field.value) {
        Some(new) => {
            changed = true;
            Edit::Set(new)
        }
        None => Edit::Keep,
    };
    let mut out = Vec::with_capacity(value.len());
    object.rewrite(&mut out, edit, &[]);
    changed.then(|| text(out))
}

/// An array of schemas, each changed; `None` if none is.
fn list(value: &str, found: &mut ParamHeaders, depth: usize) -> Option<String> {
    let schemas: Vec<&RawValue> = serde_json::from_str(value).ok()?;
    let new: Vec<_> = schemas
        .iter()
        .map(|schema| walk(schema.get(), None, found, depth + 1).map_or(Cow::Borrowed(schema.get()), Cow::Owned))
        .collect();
    let changed = new.iter().any(|schema| matches!(schema, Cow::Owned(_)));
    changed.then(|| format!("[{}]", new.join(",")))
}

fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).expect("invariant: made of strings")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::era::tests::Given;

    fn tool(schema: &str) -> String {
        format!(r#"{{"name":"x","inputSchema":{schema}}}"#)
    }

    /// The headers that a tool with this schema wants, and the schema as it is listed.
    fn read(schema: &str) -> (Vec<String>, String) {
        let ParamHeaders(found) = ParamHeaders::of(tool(schema).as_bytes());
        let names: Vec<_> =
            found.into_iter().map(|header| format!("{} {}", header.name, header.path.join("."))).collect();
        let listed = without_bad_headers(schema).unwrap_or_else(|| schema.to_owned());
        let again = ParamHeaders::of(tool(&listed).as_bytes());
        let same = ParamHeaders::of(tool(schema).as_bytes());
        assert_eq!(again, same, "what is listed wants what is checked");
        (names, listed)
    }

    #[test]
    fn good_annotations_are_kept_and_their_headers_wanted() {
        for (schema, wants) in [
            (r#"{"type":"object"}"#, vec![]),
            (
                r#"{ "type":"object","properties":{"region":{"type":"string", "x-mcp-header":"Region"}}}"#,
                vec!["mcp-param-region region"],
            ),
            (
                r#"{"properties":{"a":{"x-mcp-header":"Method","type":"integer"},"b":{"type":"boolean","x-mcp-header":"X!#$%&'*+-.^_`|~9"}}}"#,
                vec!["mcp-param-method a", "mcp-param-x!#$%&'*+-.^_`|~9 b"],
            ),
            (
                r#"{"properties":{"a":{"type":"object","properties":{"b":{"properties":{"c":{"type":"string","x-mcp-header":"C"}}}}}}}"#,
                vec!["mcp-param-c a.b.c"],
            ),
            // Not annotations: a property of that name, and values.
            (r#"{"properties":{"x-mcp-header":{"type":"number"}}}"#, vec![]),
            (
                r#"{"properties":{"a":{"default":{"x-mcp-header":""},"enum":[{"x-mcp-header":1}],"const":{"x-mcp-header":[]},"examples":[{"x-mcp-header":"A"}]}}}"#,
                vec![],
            ),
        ] {
            assert_eq!(read(schema), (wants.iter().map(|name| (*name).to_owned()).collect(), schema.to_owned()));
        }
        for bad in ["", "[]", "{", "{}", r#"{"inputSchema":7}"#] {
            assert!(ParamHeaders::of(bad.as_bytes()).is_empty());
        }
    }

    #[test]
    fn bad_annotations_are_dropped_and_nothing_else() {
        let long = "a".repeat(5000);
        for value in [
            r#""""#,
            r#""My Region""#,
            r#""Region:Primary""#,
            r#""Région""#,
            r#""Region\t1""#,
            r#""a\r\nb""#,
            "7",
            "null",
            "true",
            "{}",
        ] {
            let with = |annotation: &str| {
                format!(r#"{{"properties":{{"a":{{ "maxLength": 1e2{annotation},"type":"string"}}}},"z":"{long}"}}"#)
            };
            let (wants, listed) = read(&with(&format!(r#","x-mcp-header":{value}"#)));
            assert_eq!((wants, listed), (vec![], with("")), "{value}");
        }
        for typed in [
            r#""type":"number""#,
            r#""type":"array""#,
            r#""type":"object""#,
            r#""type":"null""#,
            r#""type":["string","null"]"#,
            r#""description":"no type""#,
        ] {
            let schema = format!(r#"{{"properties":{{"a":{{{typed},"x-mcp-header":"A"}}}}}}"#);
            assert_eq!(read(&schema), (vec![], format!(r#"{{"properties":{{"a":{{{typed}}}}}}}"#)));
        }
    }

    #[test]
    fn an_annotation_is_good_only_where_properties_alone_lead_to_it() {
        let good = r#"{"type":"string","x-mcp-header":"A"}"#;
        let plain = r#"{"type":"string"}"#;
        for around in [
            r#"{"properties":{"p":{"items":@}}}"#,
            r#"{"properties":{"p":{"items":[@, @]}}}"#,
            r#"{"properties":{"p":{"prefixItems":[{},@]}}}"#,
            r#"{"properties":{"p":{"items":{"properties":{"q":@}}}}}"#,
            r#"{"oneOf":[{"properties":{"p":@}}]}"#,
            r#"{"anyOf":[true,{"properties":{"p":@}}]}"#,
            r#"{"allOf":[@]}"#,
            r#"{"not":{"properties":{"p":@}}}"#,
            r#"{"if":{"properties":{"p":@}},"then":@,"else":@}"#,
            r##"{"$defs":{"d":@},"properties":{"p":{"$ref":"#/$defs/d"}}}"##,
            r#"{"definitions":{"d":@}}"#,
            r#"{"patternProperties":{"^a":@}}"#,
            r#"{"additionalProperties":@}"#,
            r#"{"dependentSchemas":{"d":@}}"#,
            r#"{"properties":{"p":{"contains":@,"unevaluatedItems":@,"propertyNames":@,"unevaluatedProperties":@}}}"#,
            r#"{"properties":{"p":{"contentSchema":@,"additionalItems":@}}}"#,
        ] {
            let (wants, listed) = read(&around.replace('@', good));
            assert_eq!(wants, Vec::<String>::new(), "{around}");
            let expected: serde_json::Value = serde_json::from_str(&around.replace('@', plain)).unwrap();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&listed).unwrap(), expected, "{around}");
        }
        assert_eq!(read(r#"{"type":"string","x-mcp-header":"A"}"#), (vec![], plain.to_owned()), "at the root");
    }

    #[test]
    fn of_two_annotations_with_one_name_the_first_is_kept() {
        let schema = |second: &str| {
            format!(
                r#"{{"properties":{{"a":{{"type":"string","x-mcp-header":"Region"}},"b":{{"properties":{{"c":{{"type":"string"{second}}}}}}}}}}}"#
            )
        };
        for second in ["Region", "REGION"] {
            let (wants, listed) = read(&schema(&format!(r#","x-mcp-header":"{second}""#)));
            assert_eq!((wants, listed), (vec!["mcp-param-region a".to_owned()], schema("")));
        }
    }

    #[test]
    fn no_schema_is_too_deep() {
        let annotated = r#"{"type":"number","x-mcp-header":"A"}"#;
        for depth in [2, 62, 63, 64, 1000] {
            let schema = r#"{"properties":{"p":"#.repeat(depth) + annotated + &"}}".repeat(depth);
            let (wants, listed) = read(&schema);
            assert!(wants.is_empty());
            assert_eq!(listed == schema, depth >= DEPTH_MAX, "{depth}");
        }
    }

    #[test]
    fn each_header_says_what_its_argument_is() {
        let schema = r#"{"properties":{
            "s":{"type":"string","x-mcp-header":"S"},
            "n":{"type":"object","properties":{"i":{"type":"integer","x-mcp-header":"I"}}},
            "b":{"type":"boolean","x-mcp-header":"B"}}}"#;
        let headers = ParamHeaders::of(tool(schema).as_bytes());
        assert!(!headers.is_empty());
        let (s, i, b) = ("mcp-param-s", "mcp-param-i", "mcp-param-b");
        for (arguments, given, good) in [
            // Present and not null: wanted and equal.
            (r#"{"s":"us-west1"}"#, vec![(s, Some("us-west1"))], true),
            (r#"{"s":"us-west1"}"#, vec![(s, Some(" us-west1\t"))], true),
            (r#"{"s":"us west 1"}"#, vec![(s, Some("us west 1"))], true),
            (r#"{"s":"\u0061"}"#, vec![(s, Some("a"))], true),
            (r#"{"s":""}"#, vec![(s, Some(""))], true),
            (r#"{"s":"us-west1"}"#, vec![], false),
            (r#"{"s":""}"#, vec![], false),
            (r#"{"s":"us-west1"}"#, vec![(s, Some("us-east1"))], false),
            (r#"{"s":"us-west1"}"#, vec![(s, Some("US-WEST1"))], false),
            (r#"{"s":"us-west1"}"#, vec![(s, None)], false),
            (r#"{"s":"x"}"#, vec![(s, Some("x")), (s, Some("x"))], false),
            // Absent or null: not to be there.
            ("{}", vec![], true),
            (r#"{"s":null}"#, vec![], true),
            ("{}", vec![(s, Some("x"))], false),
            (r#"{"s":null}"#, vec![(s, Some("null"))], false),
            (r#"{"s":null}"#, vec![(s, Some(""))], false),
            // Wrapped.
            (r#"{"s":"Hello"}"#, vec![(s, Some("=?base64?SGVsbG8=?="))], true),
            (r#"{"s":"Hello"}"#, vec![(s, Some("=?base64?SGVsbG8?="))], false),
            (r#"{"s":"Hello"}"#, vec![(s, Some("=?base64?SGVs!!!bG8=?="))], false),
            (r#"{"s":"SGVsbG8="}"#, vec![(s, Some("SGVsbG8="))], true),
            (r#"{"s":"=?base64?SGVsbG8="}"#, vec![(s, Some("=?base64?SGVsbG8="))], true),
            (r#"{"s":"=?BASE64?SGVsbG8=?="}"#, vec![(s, Some("=?BASE64?SGVsbG8=?="))], true),
            (r#"{"s":"日本語"}"#, vec![(s, Some("=?base64?5pel5pys6Kqe?="))], true),
            (r#"{"s":"日本語"}"#, vec![(s, Some("日本語"))], false),
            (r#"{"s":" us-west1 "}"#, vec![(s, Some("=?base64?IHVzLXdlc3QxIA==?="))], true),
            (r#"{"s":" us-west1 "}"#, vec![(s, Some(" us-west1 "))], false),
            (r#"{"s":"line1\r\nline2"}"#, vec![(s, Some("=?base64?bGluZTENCmxpbmUy?="))], true),
            (r#"{"s":"\tindented"}"#, vec![(s, Some("=?base64?CWluZGVudGVk?="))], true),
            // Integers by their value, booleans by their word.
            (r#"{"n":{"i":42}}"#, vec![(i, Some("42"))], true),
            (r#"{"n":{"i":42}}"#, vec![(i, Some("42.0"))], true),
            (r#"{"n":{"i":42.0}}"#, vec![(i, Some("42"))], true),
            (r#"{"n":{"i":4.2e1}}"#, vec![(i, Some("42"))], true),
            (r#"{"n":{"i":-7}}"#, vec![(i, Some("-7"))], true),
            (r#"{"n":{"i":9007199254740993}}"#, vec![(i, Some("9007199254740992"))], false),
            (r#"{"n":{"i":42}}"#, vec![(i, Some("43"))], false),
            (r#"{"n":{"i":42}}"#, vec![(i, Some("0x2a"))], false),
            (r#"{"n":{"i":42}}"#, vec![(i, Some("4 2"))], false),
            (r#"{"n":{"i":42}}"#, vec![(i, Some(""))], false),
            (r#"{"n":{"i":42}}"#, vec![], false),
            (r#"{"n":{}}"#, vec![], true),
            (r#"{"n":7}"#, vec![], true),
            (r#"{"b":true}"#, vec![(b, Some("true"))], true),
            (r#"{"b":false}"#, vec![(b, Some("false"))], true),
            (r#"{"b":true}"#, vec![(b, Some("True"))], false),
            (r#"{"b":true}"#, vec![(b, Some("1"))], false),
            // An argument of another type is the tool's to refuse, but says the same in its header.
            (r#"{"s":7}"#, vec![(s, Some("7"))], true),
            (r#"{"s":7}"#, vec![(s, Some("8"))], false),
            (r#"{"n":{"i":"42"}}"#, vec![(i, Some("42"))], true),
            // What no property wants is nobody's business.
            ("{}", vec![("mcp-param-other", Some("x"))], true),
            (r#"{"s":"a","b":true,"n":{"i":1}}"#, vec![(s, Some("a")), (b, Some("true")), (i, Some("1"))], true),
        ] {
            let shown = format!("{arguments} {given:?}");
            let result = headers.check(&Given(given), arguments.as_bytes());
            assert_eq!(result.is_ok(), good, "{shown}");
            if let Err(rejection) = result {
                assert_eq!((rejection.status, rejection.error.code), (crate::Status::BadRequest, -32020), "{shown}");
            }
        }
    }
}
