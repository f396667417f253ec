//! What a server offers, list by list.

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A list of what a server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Listing {
    Tools,
    Prompts,
    Resources,
    /// Families of resources.
    Templates,
}

/// A page of a list, and where the next one starts.
pub(crate) struct Page {
    pub(crate) items: Vec<Bytes>,
    pub(crate) next: Option<String>,
}

/// An item of a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Listed {
    /// What it is called upstream: a name, a URI or a URI template.
    pub(crate) name: String,
    /// The whole of it, as it came.
    pub(crate) definition: Bytes,
    /// It can only be called as a task, of the upstream server.
    pub(crate) needs_task: bool,
}

impl Listing {
    pub(crate) const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// What it is called in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resource templates",
        }
    }

    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// The member of a subscription's filter.
    pub(super) fn filter(self) -> &'static str {
        match self {
            Self::Tools => "toolsListChanged",
            Self::Prompts => "promptsListChanged",
            Self::Resources | Self::Templates => "resourcesListChanged",
        }
    }
}

/// Reads the result of a list.
pub(crate) fn read_page(listing: Listing, result: &Bytes) -> Option<Page> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        #[serde(borrow, default)]
        tools: Option<&'a RawValue>,
        #[serde(borrow, default)]
        prompts: Option<&'a RawValue>,
        #[serde(borrow, default)]
        resources: Option<&'a RawValue>,
        #[serde(borrow, default)]
        resource_templates: Option<&'a RawValue>,
        #[serde(default)]
        next_cursor: Option<String>,
    }
    let page: Members<'_> = serde_json::from_slice(result).ok()?;
    let items = match listing {
        Listing::Tools => page.tools,
        Listing::Prompts => page.prompts,
        Listing::Resources => page.resources,
        Listing::Templates => page.resource_templates,
    };
    let items: Vec<&RawValue> = serde_json::from_str(items?.get()).ok()?;
    let items = items.iter().map(|item| result.slice_ref(item.get().as_bytes())).collect();
    Some(Page { items, next: page.next_cursor })
}

/// Reads an item.
pub(crate) fn read_item(listing: Listing, definition: Bytes) -> Option<Listed> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow, default)]
        execution: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Execution {
        task_support: String,
    }
    let name = serde_json::from_str(key(listing, &definition)?.get()).ok()?;
    let Members { execution } = serde_json::from_slice(&definition).ok()?;
    let execution = execution.and_then(|execution| serde_json::from_str::<Execution>(execution.get()).ok());
    let needs_task =
        listing == Listing::Tools && execution.is_some_and(|execution| execution.task_support == "required");
    Some(Listed { name, definition, needs_task })
}

/// The definition of an item with `prefix` before its name; nothing else changes. The prefix must need no escapes.
pub(crate) fn prefixed(listing: Listing, definition: &Bytes, prefix: &str) -> Option<Bytes> {
    let at = inside(definition, key(listing, definition)?)?;
    Some(insert(definition, &[at], prefix))
}

/// The result of `resources/read` with `prefix` before the URI of each content; nothing else changes. `None` if it is no
/// such result.
pub(crate) fn prefix_contents(result: &Bytes, prefix: &str) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow)]
        contents: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Content<'a> {
        #[serde(borrow)]
        uri: &'a RawValue,
    }
    let Members { contents } = serde_json::from_slice(result).ok()?;
    let at = |content: &&RawValue| {
        let start = result.slice_ref(content.get().as_bytes());
        let Content { uri } = serde_json::from_slice(&start).ok()?;
        Some(offset(result, &start) + inside(&start, uri)?)
    };
    let places: Vec<usize> = contents.iter().map(at).collect::<Option<_>>()?;
    Some(insert(result, &places, prefix))
}

/// The member that names an item.
fn key(listing: Listing, definition: &[u8]) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Name<'a> {
        #[serde(borrow)]
        name: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Uri<'a> {
        #[serde(borrow)]
        uri: &'a RawValue,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Template<'a> {
        #[serde(borrow)]
        uri_template: &'a RawValue,
    }
    match listing {
        Listing::Tools | Listing::Prompts => serde_json::from_slice(definition).ok().map(|Name { name }| name),
        Listing::Resources => serde_json::from_slice(definition).ok().map(|Uri { uri }| uri),
        Listing::Templates => serde_json::from_slice(definition).ok().map(|Template { uri_template }| uri_template),
    }
}

/// Where the text of a string begins, after its quotation mark.
fn inside(whole: &[u8], string: &RawValue) -> Option<usize> {
    let string = string.get().as_bytes();
    string.starts_with(b"\"").then(|| offset(whole, string) + 1)
}

/// Where a part begins in the whole that it is a part of.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

/// The bytes with `more` at each of the places, which rise.
fn insert(bytes: &Bytes, places: &[usize], more: &str) -> Bytes {
    let mut all = BytesMut::with_capacity(bytes.len() + places.len() * more.len());
    let mut from = 0;
    for place in places {
        all.extend_from_slice(&bytes[from..*place]);
        all.extend_from_slice(more.as_bytes());
        from = *place;
    }
    all.extend_from_slice(&bytes[from..]);
    all.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_cut_into_the_texts_of_its_items() {
        let tool = r#"{ "title":"T", "name" : "a\u002db" ,"inputSchema":{"type":"object","maximum":1e2,"x-n":-0}, "new":1.0 }"#;
        let page = read_page(Listing::Tools, &format!(r#"{{"tools":[ {tool} , 1],"nextCursor":"n","more":0}}"#).into())
            .unwrap();
        assert_eq!(page.items, [tool, "1"]);
        assert_eq!(page.next.as_deref(), Some("n"));

        let listed = read_item(Listing::Tools, page.items[0].clone()).unwrap();
        assert_eq!(listed, Listed { name: "a-b".into(), definition: tool.into(), needs_task: false });
        assert!(
            read_item(Listing::Tools, r#"{"name":"a","execution":{"taskSupport":"required"}}"#.into())
                .unwrap()
                .needs_task
        );
        for bad in ["1", r#"{"title":"a"}"#, r#"{"name":1}"#, "[]", r#"{"name":"a","name":"b"}"#] {
            assert_eq!(read_item(Listing::Tools, bad.into()), None);
        }
        assert!(read_page(Listing::Prompts, &r#"{"tools":[]}"#.into()).is_none());
    }

    #[test]
    fn a_prefix_changes_nothing_but_the_name() {
        for (listing, definition, named) in [
            (
                Listing::Prompts,
                r#"{ "n":1e2, "name" : "a\u002db", "arguments":[{"name":"x"}] }"#,
                r#"{ "n":1e2, "name" : "up+a\u002db", "arguments":[{"name":"x"}] }"#,
            ),
            (
                Listing::Resources,
                r#"{"name":"x","uri":"test://a","size":-0}"#,
                r#"{"name":"x","uri":"up+test://a","size":-0}"#,
            ),
            (
                Listing::Templates,
                r#"{"uriTemplate":"{scheme}:\/\/a/{+path}{?q*}","name":"x"}"#,
                r#"{"uriTemplate":"up+{scheme}:\/\/a/{+path}{?q*}","name":"x"}"#,
            ),
        ] {
            assert_eq!(prefixed(listing, &definition.into(), "up+").unwrap(), named);
        }
        assert_eq!(prefixed(Listing::Resources, &r#"{"uri":1}"#.into(), "up+"), None);
    }

    #[test]
    fn contents_keep_every_byte_but_for_their_uri() {
        let result = concat!(
            r#"{ "contents" : [ {"uri":"a:\u002f","text":"\"uri\":\"b:\"","n":123456789012345678901234567890},"#,
            r#" {"blob":"AAH/","x":{"uri":"c:"},"uri" : "" } ], "uri":"d:", "z":-0 }"#
        );
        let expected = concat!(
            r#"{ "contents" : [ {"uri":"up+a:\u002f","text":"\"uri\":\"b:\"","n":123456789012345678901234567890},"#,
            r#" {"blob":"AAH/","x":{"uri":"c:"},"uri" : "up+" } ], "uri":"d:", "z":-0 }"#
        );
        assert_eq!(prefix_contents(&result.into(), "up+").unwrap(), expected);
        assert_eq!(prefix_contents(&r#"{"contents":[]}"#.into(), "up+").unwrap(), r#"{"contents":[]}"#);
        for bad in [
            "[]",
            "{}",
            r#"{"contents":{}}"#,
            r#"{"contents":[1]}"#,
            r#"{"contents":[{}]}"#,
            r#"{"contents":[{"uri":1}]}"#,
        ] {
            assert_eq!(prefix_contents(&bad.into(), "up+"), None, "{bad}");
        }
    }
}
