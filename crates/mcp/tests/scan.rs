//! The scanner against serde_json as a witness, and at its limits.

use std::collections::BTreeSet;
use std::fmt;

use longhaul_mcp::scan::{DEPTH_MAX, Fault, KEYS_MAX, Limit, NUMBER_BYTES_MAX, STRING_BYTES_MAX, scan};
use proptest::prelude::*;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

const REPEATED: &str = "repeated key";

fn check(body: impl AsRef<[u8]>) -> Result<(), Fault> {
    scan(body.as_ref(), "params").1
}

/// What serde_json makes of a body when it decodes every string and looks for repeated keys.
struct Witness;

impl<'de> Deserialize<'de> for Witness {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Witness)
    }
}

impl<'de> Visitor<'de> for Witness {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = BTreeSet::new();
        let mut repeated = false;
        while let Some((key, _)) = map.next_entry::<String, Self>()? {
            repeated |= !keys.insert(key);
        }
        if repeated { Err(A::Error::custom(REPEATED)) } else { Ok(self) }
    }
}

fn agrees_with_the_witness(body: &[u8]) -> Result<(), TestCaseError> {
    let expected = match serde_json::from_slice::<Witness>(body) {
        Ok(_) => Ok(()),
        Err(error) if error.to_string().starts_with(REPEATED) => Err(Fault::Limit(Limit::RepeatedKey)),
        Err(error) if error.to_string().starts_with("number out of range") => Err(Fault::Limit(Limit::Number)),
        Err(_) => Err(Fault::Syntax),
    };
    prop_assert_eq!(check(body), expected, "{:?}", String::from_utf8_lossy(body));
    Ok(())
}

/// With several faults in one body, either may be told first.
fn accepts_as_the_witness_does(body: &[u8]) -> Result<(), TestCaseError> {
    let accepted = serde_json::from_slice::<Witness>(body).is_ok();
    prop_assert_eq!(check(body).is_ok(), accepted, "{:?}", String::from_utf8_lossy(body));
    Ok(())
}

/// Documents, spelled in many ways.
fn document() -> impl Strategy<Value = String> {
    let space = prop::sample::select(vec!["", "", "", " ", "\n", "\t \r"]);
    let string = prop_oneof![
        prop::sample::select(vec!["\"a\"", "\"\\u0061\"", "\"b\"", "\"\"", "\"\\n\\\\\\\"\\/\"", "\"\\ud83d\\ude00\""])
            .prop_map(str::to_owned),
        any::<String>().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    let number = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(|number| format!("{number:e}")),
        prop::sample::select(vec![
            "0",
            "-0",
            "1E+2",
            "0.5e-3",
            "-0.0",
            "123456789012345678901234567890",
            "1e-400",
            "1e400",
            "-2.5e999"
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "true", "false"]).prop_map(str::to_owned),
        number,
        string.clone(),
    ];
    let value = leaf.prop_recursive(6, 64, 12, move |value| {
        let padded =
            (space.clone(), value, space.clone()).prop_map(|(before, value, after)| format!("{before}{value}{after}"));
        let member = (string.clone(), padded.clone()).prop_map(|(name, value)| format!("{name} :{value}"));
        prop_oneof![
            prop::collection::vec(padded, 0..12).prop_map(|values| format!("[{}]", values.join(","))),
            prop::collection::vec(member, 0..12).prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    });
    value.boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn documents_are_judged_as_the_witness_does(document in document()) {
        agrees_with_the_witness(document.as_bytes())?;
    }

    #[test]
    fn damaged_documents_are_judged_as_the_witness_does(
        document in document(),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\",:\\u0e.-+ \n".to_vec())],
        how in 0..3,
    ) {
        let mut body = document.into_bytes();
        let at = at.index(body.len());
        match how {
            0 => body[at] = byte,
            1 => body.insert(at, byte),
            _ => { body.remove(at); }
        }
        accepts_as_the_witness_does(&body)?;
    }

    #[test]
    fn a_soup_of_tokens_is_judged_as_the_witness_does(
        tokens in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"b\"", "1", "-", "0", ".", "e", "true", "null", "\"", "\\", " ",
        ]), 0..12)
    ) {
        accepts_as_the_witness_does(tokens.concat().as_bytes())?;
    }

    #[test]
    fn members_are_found_where_they_are(
        names in prop::collection::btree_set("[a-zé\"\n]{0,4}", 0..12),
        values in prop::collection::vec(document().prop_filter("clean", |document| check(document).is_ok()), 3),
        nested in prop::collection::btree_set("[a-z]{0,4}", 0..4),
    ) {
        let inner: Vec<_> = nested.iter().zip(values.iter().cycle()).map(|(name, value)| format!("\"{name}\": {value}")).collect();
        let mut outer: Vec<_> = names.iter().zip(values.iter().cycle())
            .map(|(name, value)| format!("{} :{value}", serde_json::Value::from(name.as_str())))
            .collect();
        outer.insert(outer.len() / 2, format!("\"par\\u0061ms\":{{{}}}", inner.join(" , ")));
        let body = format!(" {{{}}} ", outer.join(" ,"));
        let (found, result) = scan(body.as_bytes(), "params");
        prop_assert_eq!(result, Ok(()));
        prop_assert!(found.is_object);
        let expected: Vec<(String, &RawValue)> = serde_json::from_str::<Pairs<'_>>(&body).expect("an object").0;
        let got: Vec<_> = found.members.iter().map(|member| (member.name.clone().into_owned(), member.value)).collect();
        prop_assert_eq!(got, expected.iter().map(|(name, value)| (name.clone(), value.get())).collect::<Vec<_>>());
        let got: Vec<_> = found.inner.iter().map(|member| (&*member.name, member.value)).collect();
        let expected: Vec<_> = nested.iter().zip(values.iter().cycle()).map(|(name, value)| (name.as_str(), value.trim())).collect();
        prop_assert_eq!(got, expected);
    }
}

struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[test]
fn text_that_is_not_json_is_refused() {
    let bad: [&[u8]; 24] = [
        b"",
        b" ",
        b"{",
        br#"{"jsonrpc":"2.0","params":{"#,
        b"\"ec\xFFho\"",
        b"\"ping\xC0\x80\"",
        b"\"\xED\xA0\x80\"",
        br#"{"a":"\ud800"}"#,
        br#""\udc00""#,
        br#""\ud800\u0041""#,
        br#""\ud800\n""#,
        b"\xEF\xBB\xBF{}",
        b"\xFF\xFE{\0}\0",
        b"\"ec\0ho\"",
        b"\"a\x1fb\"",
        b"\"tab\there, some way in\"",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"1e",
        b"nul",
        b"{} {}",
        b"[1,]",
    ];
    for body in bad {
        assert_eq!(check(body), Err(Fault::Syntax), "{:?}", String::from_utf8_lossy(body));
    }
    for good in
        [r#""x\u0000y""#, "123456789012345678901234567890", "\"\u{2028}\"", "\"\u{7f}\"", "-0", r#""\ud83d\ude00""#]
    {
        assert_eq!(check(good), Ok(()), "{good}");
    }
}

#[test]
fn each_limit_is_kept_to_the_byte() {
    let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    let keys = |count| {
        let members: Vec<_> = (0..count).map(|at| format!("\"{at}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    let string = |length| format!("\"{}\"", "a".repeat(length));
    let key = |length| format!("{{{}:0}}", string(length));
    for (limit, within, beyond) in [
        (Limit::Depth, nested(DEPTH_MAX), nested(DEPTH_MAX + 1)),
        (Limit::Depth, nested(DEPTH_MAX), nested(200_000)),
        (Limit::Keys, keys(KEYS_MAX), keys(KEYS_MAX + 1)),
        (Limit::String, string(STRING_BYTES_MAX), string(STRING_BYTES_MAX + 1)),
        (Limit::String, key(STRING_BYTES_MAX), key(STRING_BYTES_MAX + 1)),
        (Limit::Number, "1".repeat(NUMBER_BYTES_MAX), "1".repeat(NUMBER_BYTES_MAX + 1)),
        (Limit::Number, "1e308".into(), "1e309".into()),
        (Limit::Number, "[-1e308]".into(), "[-1e400]".into()),
    ] {
        assert_eq!(check(&within), Ok(()));
        assert_eq!(check(&beyond), Err(Fault::Limit(limit)));
    }
}

#[test]
fn a_repeated_key_is_found_at_any_depth_and_in_any_spelling() {
    let many: Vec<_> = (0..100).map(|at| format!("\"{at}\":{{}}")).collect();
    for body in [
        r#"{"a":1,"a":1}"#.to_owned(),
        r#"{"method":1,"x":2,"m\u0065thod":3}"#.to_owned(),
        r#"[[{"x":{"path":1,"path":2}}]]"#.to_owned(),
        r#"{"é":1,"\u00e9":2}"#.to_owned(),
        r#"{"a":{"b":1},"b":{"a":2,"c":[{"a":1}]},"a":3}"#.to_owned(),
        format!("{{{},\"7\":0}}", many.join(",")),
        format!("{{\"\\u0037\":0,{}}}", many.join(",")),
    ] {
        assert_eq!(check(&body), Err(Fault::Limit(Limit::RepeatedKey)), "{body}");
    }
    for body in [
        r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#.to_owned(),
        r#"[{"a":1},{"a":1}]"#.into(),
        format!("{{{}}}", many.join(",")),
    ] {
        assert_eq!(check(&body), Ok(()), "{body}");
    }
}

#[test]
fn what_came_before_a_limit_is_still_found() {
    let (found, result) = scan(br#"{"id":7,"params":{"a":1e999}}"#, "params");
    assert_eq!(result, Err(Fault::Limit(Limit::Number)));
    assert_eq!(found.members.len(), 1);
    assert_eq!((&*found.members[0].name, found.members[0].value), ("id", "7"));
}
