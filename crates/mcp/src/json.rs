//! Members of JSON objects that are kept as text, and objects with some members changed and all else as it came.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// An object, as written.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    text: &'a [u8],
    /// Its members, in order.
    pub fields: Vec<Field<'a>>,
}

/// A member of an object.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    /// Its name, decoded.
    pub name: Cow<'a, str>,
    /// Its value, as written.
    pub value: &'a str,
    /// Where its name starts in the object's text, in quotes.
    start: usize,
    /// Where its value is in the object's text.
    at: Range<usize>,
}

/// What becomes of a member.
pub(crate) enum Edit {
    Keep,
    Drop,
    Set(String),
}

impl<'a> Object<'a> {
    /// Reads an object; `None` if `text` is not one. Values may nest as deep as they like.
    pub(crate) fn read(text: &'a [u8]) -> Option<Self> {
        let Members(members) = serde_json::from_slice(text).ok()?;
        // Both are borrowed from `text`, so that the addresses tell where they are in it.
        let offset = |part: &str| part.as_ptr().addr() - text.as_ptr().addr();
        let field = |(name, value): (&'a RawValue, &'a RawValue)| {
            let (name, value) = (name.get(), value.get());
            let at = offset(value)..offset(value) + value.len();
            // A name with half a surrogate pair is no text, and no name of ours.
            Field { name: string(name).unwrap_or(Cow::Borrowed(name)), value, start: offset(name), at }
        };
        Some(Self { text, fields: members.into_iter().map(field).collect() })
    }

    /// The value of a member.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.fields.iter().find(|field| field.name == name).map(|field| field.value)
    }

    /// Appends the object with each member kept, dropped or set, and with `added` after them. Every other byte is as
    /// it came.
    pub(crate) fn rewrite(&self, out: &mut Vec<u8>, mut edit: impl FnMut(&Field<'a>) -> Edit, added: &[(&str, &str)]) {
        // Up to the first member there is a brace and maybe space; between two, a comma and maybe space.
        let brace = || self.text.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
        let mut end = self.fields.first().map_or_else(brace, |first| first.start);
        out.extend_from_slice(&self.text[..end]);
        let mut is_first = true;
        for field in &self.fields {
            let between = end..field.start;
            end = field.at.end;
            let edit = edit(field);
            if matches!(edit, Edit::Drop) {
                continue;
            }
            if !is_first {
                out.extend_from_slice(&self.text[between]);
            }
            is_first = false;
            match edit {
                Edit::Set(value) => {
                    out.extend_from_slice(&self.text[field.start..field.at.start]);
                    out.extend_from_slice(value.as_bytes());
                }
                Edit::Keep | Edit::Drop => out.extend_from_slice(&self.text[field.start..end]),
            }
        }
        for (name, value) in added {
            if !is_first {
                out.push(b',');
            }
            is_first = false;
            out.extend_from_slice(quoted(name).as_bytes());
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
        }
        out.extend_from_slice(&self.text[end..]);
    }
}

/// The object with this member set, and everything else in it as it came; text that is no object counts as an empty one.
pub(crate) fn with_member(object: &str, name: &str, value: &str) -> String {
    let Some(object) = Object::read(object.as_bytes()) else { return format!("{{{}:{value}}}", quoted(name)) };
    let edit = |field: &Field<'_>| if field.name == name { Edit::Drop } else { Edit::Keep };
    let mut out = Vec::new();
    object.rewrite(&mut out, edit, &[(name, value)]);
    String::from_utf8(out).expect("invariant: made of strings")
}

/// The text of a JSON string.
pub(crate) fn string(value: &str) -> Option<Cow<'_, str>> {
    let inside = value.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') { serde_json::from_str(value).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inside)) }
}

/// Text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Whether a value is an object.
pub(crate) fn is_object(value: &str) -> bool {
    value.starts_with('{')
}

/// An object as it came; an empty one if it is none.
pub(crate) fn raw_object(text: &[u8]) -> &RawValue {
    let object = serde_json::from_slice::<&RawValue>(text).ok().filter(|value| is_object(value.get()));
    object.unwrap_or_else(|| serde_json::from_str("{}").expect("invariant: this is JSON"))
}

/// Whether a value is written as an integer, without fraction or exponent.
pub(crate) fn is_integer(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 4] = ["\"keep\"", "\"drop\"", "\"set\"", "\"\\u0064rop\""];
    const VALUES: [&str; 6] =
        ["1.00", "{ \"drop\" : [ ] }", "\"a,b}\\\"\"", "[1 , 2]", "123456789012345678901234567890", "\"\\ud800\""];

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn only_what_is_named_changes(
            members in prop::collection::vec((0..NAMES.len(), 0..VALUES.len()), 0..8),
            space in prop::sample::select(vec!["", " ", "\n\t"]),
            add in any::<bool>(),
        ) {
            let joined = |members: &[String]| members.join(&format!("{space},{space}"));
            let written: Vec<_> =
                members.iter().map(|(name, value)| format!("{}{space}:{space}{}", NAMES[*name], VALUES[*value])).collect();
            let text = format!("{{{space}{}{space}}}", joined(&written));
            let object = Object::read(text.as_bytes()).unwrap();
            let edit = |field: &Field<'_>| match &*field.name {
                "drop" => Edit::Drop,
                "set" => Edit::Set("null".to_owned()),
                _ => Edit::Keep,
            };
            let mut out = Vec::new();
            object.rewrite(&mut out, edit, if add { &[("new", "0"), ("and", "1")] } else { &[] });

            let mut expected: Vec<(String, String)> = Vec::new();
            for (name, value) in &members {
                match *name {
                    0 => expected.push(("keep".into(), VALUES[*value].into())),
                    2 => expected.push(("set".into(), "null".into())),
                    _ => {}
                }
            }
            if add {
                expected.extend([("new".into(), "0".into()), ("and".into(), "1".into())]);
            }
            let after = Object::read(&out).unwrap();
            let got: Vec<_> =
                after.fields.iter().map(|field| (field.name.clone().into_owned(), field.value.to_owned())).collect();
            prop_assert_eq!(got, expected);

            let mut same = Vec::new();
            object.rewrite(&mut same, |_| Edit::Keep, &[]);
            prop_assert_eq!(same, text.as_bytes());
        }
    }

    #[test]
    fn only_an_object_is_one() {
        for bad in ["", "[]", "null", "{", "{}{}", "{\"a\":}", "{\"a\":1,}", "\u{feff}{}"] {
            assert!(Object::read(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(Object::read(b"{\"a\":\"\xff\"}").is_none());
    }
}
