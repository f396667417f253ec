//! JSON that hides nothing: an object that repeats a name is refused, and numbers compare exactly.

use std::cmp::Ordering;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A JSON value; objects keep their order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads a whole text. Nesting is limited by the parser, to 127.
    pub(super) fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(Number::Whole(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(Number::Whole(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(Number::of(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::<(String, Json)>::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        match repeated(members.iter().map(|(name, _)| name.as_str())) {
            Some(_) => Err(A::Error::custom("a name is repeated in an object")),
            None => Ok(Json::Object(members)),
        }
    }
}

/// A text that occurs more than once.
pub(super) fn repeated<'a>(texts: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut sorted: Vec<_> = texts.collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// A JSON number. `1.0` and `1` are the same: JSON Schema 2020-12, "Instance Data Model", knows integers by their value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    /// Without a fraction, and less than [`HUGE`] from zero.
    Whole(i128),
    /// Any other: with a fraction and so less than 2⁵³ from zero, or huge.
    Other(f64),
}

/// 2¹⁰⁰: beyond it lie doubles alone, all of them whole.
const HUGE: f64 = (1_i128 << 100) as f64;

impl Number {
    fn of(value: f64) -> Self {
        if value.fract() == 0.0 && value.abs() < HUGE { Self::Whole(value as i128) } else { Self::Other(value) }
    }

    /// Whether it is an integer by JSON Schema.
    pub(super) fn is_whole(self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Other(value) => value.abs() >= HUGE,
        }
    }

    /// Exactly, where casting a large integer to a double would round.
    pub(super) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Whole(left), Self::Whole(right)) => left.cmp(&right),
            (Self::Other(left), Self::Other(right)) => left.total_cmp(&right),
            (Self::Whole(whole), Self::Other(value)) => whole_with_other(whole, value),
            (Self::Other(value), Self::Whole(whole)) => whole_with_other(whole, value).reverse(),
        }
    }
}

fn whole_with_other(whole: i128, other: f64) -> Ordering {
    // The cast is exact for what has a fraction, and saturates beyond all whole numbers for what is huge.
    if whole <= other.floor() as i128 { Ordering::Less } else { Ordering::Greater }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        match Json::read(text.as_bytes()).unwrap() {
            Json::Number(number) => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_compare_by_their_exact_value() {
        let ascending = [
            "-1e300",
            "-18446744073709551615",
            "-9223372036854775808",
            "-1.5",
            "-1",
            "-0.5",
            "-0",
            "5e-324",
            "0.5",
            "1",
            "1.5",
            "9007199254740992",
            "9007199254740993",
            "9223372036854775807",
            "18446744073709551615",
            "18446744073709551616",
            "1e29",
            "1e31",
            "1e300",
        ];
        for (at, left) in ascending.iter().enumerate() {
            for (other, right) in ascending.iter().enumerate() {
                assert_eq!(number(left).compare(number(right)), at.cmp(&other), "{left} and {right}");
            }
        }
    }

    #[test]
    fn a_number_is_whole_by_its_value_and_not_by_its_spelling() {
        for whole in ["1", "1.0", "-0.0", "1e2", "120e-1", "1e30", "1e308", "18446744073709551616"] {
            assert!(number(whole).is_whole(), "{whole}");
        }
        for not in ["0.5", "-1.25", "1e-9"] {
            assert!(!number(not).is_whole(), "{not}");
        }
        assert_eq!(number("1.0"), number("1"));
        assert_eq!(number("-0"), number("0"));
    }

    #[test]
    fn an_object_that_repeats_a_name_is_refused_at_any_depth_and_in_any_spelling() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":2}"#, r#"[{"b":{"a":1,"c":2,"a":3}}]"#] {
            assert!(Json::read(text.as_bytes()).unwrap_err().to_string().starts_with("a name is repeated"), "{text}");
        }
        assert!(Json::read(br#"{"a":{"a":1},"b":{"a":1}}"#).is_ok());
    }

    #[test]
    fn what_is_not_json_or_nests_too_deeply_or_is_no_double_is_refused() {
        let deep = "[".repeat(200_000);
        for text in ["", "{", "nul", "1e400", "\"\\ud800\"", "{} {}", "{\"a\":01}", "[1,]", &deep] {
            assert!(Json::read(text.as_bytes()).is_err(), "{:.20}", text);
        }
        assert!(Json::read(b"\"\xff\"").is_err());
    }
}
