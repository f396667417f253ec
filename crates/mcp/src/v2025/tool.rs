//! Tools as this revision lists them.

use bytes::Bytes;
use longhaul_core::{TaskSupport, ToolDef};

use crate::dialect::Dialect;
use crate::json::{self, Edit, Field, Object};

/// A tool for [`Reply::Tools`](crate::Reply::Tools): its definition as it came, with our `execution` instead of any
/// that an upstream wrote, and without an output schema that this revision cannot express. `None` if the definition is
/// not an object.
pub fn tool(dialect: Dialect, def: &ToolDef, tasks_enabled: bool) -> Option<Bytes> {
    let definition = Object::read(&def.definition)?;
    let edit = |field: &Field<'_>| match &*field.name {
        "execution" => Edit::Drop,
        "outputSchema" if !describes_an_object(field.value) => Edit::Drop,
        _ => Edit::Keep,
    };
    let execution = match def.task_support {
        TaskSupport::Forbidden => r#"{"taskSupport":"forbidden"}"#,
        TaskSupport::Optional => r#"{"taskSupport":"optional"}"#,
        TaskSupport::Required => r#"{"taskSupport":"required"}"#,
    };
    let added = (tasks_enabled && dialect.has_tasks()).then_some(("execution", execution));
    let mut out = Vec::with_capacity(def.definition.len() + 64);
    definition.rewrite(&mut out, edit, added);
    Some(out.into())
}

/// Whether a schema's root says `type: "object"`, as the 2025-11-25 schema demands (`Tool.outputSchema`).
fn describes_an_object(schema: &str) -> bool {
    let types = Object::read(schema.as_bytes()).and_then(|schema| schema.get("type"));
    types.and_then(json::string).as_deref() == Some("object")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(dialect: Dialect, tasks: bool, definition: &str) -> Option<String> {
        let definition = Bytes::copy_from_slice(definition.as_bytes());
        let def = ToolDef { name: "x".into(), task_support: TaskSupport::Required, definition };
        tool(dialect, &def, tasks).map(|listed| String::from_utf8(listed.to_vec()).unwrap())
    }

    const PLAIN: &str = r#"{"name":"x","inputSchema":{"type":"object","maximum":1.00,"minimum":123456789012345678901234567890},"x-\u0061":[1e2]}"#;
    const EXECUTION: &str = r#","execution":{"taskSupport":"required"}}"#;

    #[test]
    fn a_definition_comes_through_as_it_is_with_our_execution() {
        let expected = PLAIN.strip_suffix('}').unwrap().to_owned() + EXECUTION;
        assert_eq!(listed(Dialect::V2025_11_25, true, PLAIN), Some(expected.clone()));
        let upstream = PLAIN.replacen('{', r#"{"execution":{"taskSupport":"forbidden"},"#, 1);
        assert_eq!(listed(Dialect::V2025_11_25, true, &upstream), Some(expected));
        for (dialect, tasks) in [(Dialect::V2025_11_25, false), (Dialect::V2025_06_18, true)] {
            assert_eq!(listed(dialect, tasks, &upstream).as_deref(), Some(PLAIN), "no word of tasks");
        }
        for bad in ["", "[]", "{", "null"] {
            assert_eq!(listed(Dialect::V2025_11_25, true, bad), None);
        }
    }

    #[test]
    fn an_output_schema_must_describe_an_object() {
        for (schema, kept) in [
            (r#"{"type":"object"}"#, true),
            (r#"{"properties":{},"type":"object"}"#, true),
            (r#"{"type":"array"}"#, false),
            (r#"{"type":["object","null"]}"#, false),
            ("{}", false),
            ("true", false),
        ] {
            let definition = format!(r#"{{"name":"x","outputSchema":{schema}}}"#);
            let listed = listed(Dialect::V2025_06_18, true, &definition).unwrap();
            assert_eq!(listed == definition, kept, "{listed}");
            assert_eq!(listed == r#"{"name":"x"}"#, !kept, "{listed}");
        }
    }
}
