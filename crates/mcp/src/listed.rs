//! Definitions of tools, prompts, resources and templates, as each dialect lists them.

use bytes::Bytes;
use longhaul_core::TaskSupport;

use crate::dialect::Dialect;
use crate::json::{self, Edit, Field, Object};
use crate::request::Listing;
use crate::seal::LIST_KEY_BYTES_MAX;
use crate::v2026;

/// A definition for [`Reply::Page`](crate::Reply::Page), as it came but for what the dialect cannot express. `None` if it
/// is not an object, or its name or URI is longer than [`LIST_KEY_BYTES_MAX`], so that no page could end with it.
///
/// A tool loses any `execution` that an upstream wrote; before 2026-07-28 it gets ours (`task_support`, if `tasks` are
/// on), and loses an output schema that does not describe an object; in 2026-07-28 it loses annotations for headers for
/// which clients would drop the tool.
pub fn listed(
    dialect: Dialect,
    listing: Listing,
    definition: &Bytes,
    task_support: Option<TaskSupport>,
    tasks: bool,
) -> Option<Bytes> {
    let object = Object::read(definition)?;
    let key = object.get(match listing {
        Listing::Tools | Listing::Prompts => "name",
        Listing::Resources => "uri",
        Listing::Templates => "uriTemplate",
    });
    if key.and_then(json::string).is_some_and(|key| key.len() > LIST_KEY_BYTES_MAX) {
        return None;
    }
    match listing {
        Listing::Tools => Some(tool(dialect, &object, definition.len(), task_support.filter(|_| tasks))),
        Listing::Prompts | Listing::Resources | Listing::Templates => Some(definition.clone()),
    }
}

fn tool(dialect: Dialect, definition: &Object<'_>, size: usize, task_support: Option<TaskSupport>) -> Bytes {
    let edit = |field: &Field<'_>| match &*field.name {
        "execution" => Edit::Drop,
        "outputSchema" if !can_be_output_schema(dialect, field.value) => Edit::Drop,
        "inputSchema" if dialect.is_modern() => v2026::without_bad_headers(field.value).map_or(Edit::Keep, Edit::Set),
        _ => Edit::Keep,
    };
    let execution = task_support.filter(|_| dialect == Dialect::V2025_11_25).map(|support| match support {
        TaskSupport::Forbidden => r#"{"taskSupport":"forbidden"}"#,
        TaskSupport::Optional => r#"{"taskSupport":"optional"}"#,
        TaskSupport::Required => r#"{"taskSupport":"required"}"#,
    });
    let mut out = Vec::with_capacity(size + 64);
    definition.rewrite(&mut out, edit, execution.map(|execution| ("execution", execution)).as_slice());
    out.into()
}

/// `Tool.outputSchema` of each schema: an object, before 2026-07-28 with `type: "object"` at its root.
fn can_be_output_schema(dialect: Dialect, schema: &str) -> bool {
    if dialect.is_modern() {
        return json::is_object(schema);
    }
    let types = Object::read(schema.as_bytes()).and_then(|schema| schema.get("type"));
    types.and_then(json::string).as_deref() == Some("object")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIALECTS: [Dialect; 3] = [Dialect::V2025_06_18, Dialect::V2025_11_25, Dialect::V2026_07_28];

    fn tool_in(dialect: Dialect, tasks: bool, definition: &str) -> Option<String> {
        let definition = Bytes::copy_from_slice(definition.as_bytes());
        listed(dialect, Listing::Tools, &definition, Some(TaskSupport::Required), tasks)
            .map(|listed| String::from_utf8(listed.to_vec()).unwrap())
    }

    const PLAIN: &str = r#"{"name":"x","inputSchema":{"type":"object","maximum":1.00,"minimum":123456789012345678901234567890},"x-\u0061":[1e2]}"#;
    const EXECUTION: &str = r#","execution":{"taskSupport":"required"}}"#;

    #[test]
    fn a_definition_comes_through_as_it_is_with_our_execution_where_that_is_known() {
        let expected = PLAIN.strip_suffix('}').unwrap().to_owned() + EXECUTION;
        assert_eq!(tool_in(Dialect::V2025_11_25, true, PLAIN), Some(expected.clone()));
        let upstream = PLAIN.replacen('{', r#"{"execution":{"taskSupport":"forbidden"},"#, 1);
        assert_eq!(tool_in(Dialect::V2025_11_25, true, &upstream), Some(expected));
        for (dialect, tasks) in
            [(Dialect::V2025_11_25, false), (Dialect::V2025_06_18, true), (Dialect::V2026_07_28, true)]
        {
            assert_eq!(tool_in(dialect, tasks, &upstream).as_deref(), Some(PLAIN), "no word of tasks");
        }
        for dialect in DIALECTS {
            for bad in ["", "[]", "{", "null"] {
                assert_eq!(tool_in(dialect, true, bad), None);
            }
        }
    }

    #[test]
    fn an_output_schema_must_be_what_the_dialect_knows() {
        for (schema, before, modern) in [
            (r#"{"type":"object"}"#, true, true),
            (r#"{"properties":{},"type":"object"}"#, true, true),
            (r#"{"type":"array"}"#, false, true),
            (r#"{"type":["object","null"]}"#, false, true),
            ("{}", false, true),
            ("true", false, false),
        ] {
            let definition = format!(r#"{{"name":"x","outputSchema":{schema}}}"#);
            for dialect in DIALECTS {
                let kept = if dialect.is_modern() { modern } else { before };
                let expected = if kept { &*definition } else { r#"{"name":"x"}"# };
                assert_eq!(tool_in(dialect, false, &definition).as_deref(), Some(expected), "{dialect:?}");
            }
        }
    }

    #[test]
    fn annotations_that_would_cost_the_tool_go_where_clients_look_for_them() {
        let bad =
            r#"{"name":"x","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}}"#;
        let good = bad.replace(r#","x-mcp-header":"A""#, "");
        for dialect in DIALECTS {
            let expected = if dialect.is_modern() { &*good } else { bad };
            assert_eq!(tool_in(dialect, false, bad).as_deref(), Some(expected));
        }
    }

    #[test]
    fn other_definitions_come_through_as_they_are_unless_no_page_could_end_with_them() {
        for (listing, key) in
            [(Listing::Prompts, "name"), (Listing::Resources, "uri"), (Listing::Templates, "uriTemplate")]
        {
            let definition = |length| Bytes::from(format!(r#"{{ "{key}":"{}","x":1.00}}"#, "a".repeat(length)));
            for dialect in DIALECTS {
                let longest = definition(LIST_KEY_BYTES_MAX);
                assert_eq!(listed(dialect, listing, &longest, None, true), Some(longest));
                assert_eq!(listed(dialect, listing, &definition(LIST_KEY_BYTES_MAX + 1), None, true), None);
                assert_eq!(listed(dialect, listing, &Bytes::from_static(b"[]"), None, true), None);
            }
        }
    }
}
