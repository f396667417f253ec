//! One spelling for all JSON texts that mean the same, for digests.

use crate::json;
use serde_json::value::RawValue;

/// The longest exponent that is reckoned with, in digits; a number with a longer one keeps its spelling.
const EXPONENT_DIGITS_MAX: usize = 17;

/// The one text of all that are equal as JSON: no space, members sorted by name, strings and numbers spelled one way. A
/// number keeps every digit: `1.0`, `1` and `10e-1` are the same, and no two others are. Text that is not JSON comes back
/// as it is.
pub fn canonical(json: &[u8]) -> Vec<u8> {
    // From here on the grammar can be relied on. This does not recurse, and neither does what follows.
    let Ok(text) = serde_json::from_slice::<&RawValue>(json) else { return json.to_vec() };
    let tokens = Tokens(text.get());
    let mut open: Vec<Open> = Vec::new();
    let mut done: Vec<u8> = Vec::new();
    for token in tokens {
        match token {
            "{" => open.push(Open::Object { members: Vec::new(), name: None }),
            "[" => open.push(Open::Array(Vec::new())),
            "," | ":" => {}
            "}" | "]" => match open.pop() {
                Some(container) => add(&mut open, &mut done, container.close()),
                None => break,
            },
            scalar => {
                let spelled = spelled(scalar);
                match open.last_mut() {
                    Some(Open::Object { name: name @ None, .. }) => *name = Some(spelled),
                    _ => add(&mut open, &mut done, spelled),
                }
            }
        }
    }
    done
}

/// An array or object whose end has not been read.
enum Open {
    Array(Vec<Vec<u8>>),
    Object { members: Vec<(Vec<u8>, Vec<u8>)>, name: Option<Vec<u8>> },
}

impl Open {
    fn close(self) -> Vec<u8> {
        let (brackets, parts) = match self {
            Self::Array(values) => (b"[]", values),
            Self::Object { mut members, .. } => {
                members.sort();
                let member = |(mut name, value): (Vec<u8>, Vec<u8>)| {
                    name.push(b':');
                    name.extend_from_slice(&value);
                    name
                };
                (b"{}", members.into_iter().map(member).collect())
            }
        };
        let mut out = vec![brackets[0]];
        out.extend_from_slice(&parts.join(&b','));
        out.push(brackets[1]);
        out
    }
}

fn add(open: &mut [Open], done: &mut Vec<u8>, value: Vec<u8>) {
    match open.last_mut() {
        Some(Open::Array(values)) => values.push(value),
        Some(Open::Object { members, name }) => members.push((name.take().unwrap_or_default(), value)),
        None => *done = value,
    }
}

/// The tokens of a text that is known to be JSON.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0.trim_start_matches([' ', '\t', '\n', '\r']);
        let bytes = rest.as_bytes();
        let length = match bytes.first()? {
            b'{' | b'}' | b'[' | b']' | b',' | b':' => 1,
            b'"' => {
                let mut at = 1;
                while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at + 1
            }
            _ => rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(rest.len()),
        };
        let (token, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(token)
    }
}

fn spelled(scalar: &str) -> Vec<u8> {
    let spelled = match scalar.as_bytes().first() {
        // Half a surrogate pair is no text; it keeps its spelling.
        Some(b'"') => json::string(scalar).map(|text| json::quoted(&text)),
        Some(b'-' | b'0'..=b'9') => number(scalar),
        _ => None,
    };
    spelled.map_or_else(|| scalar.as_bytes().to_vec(), String::into_bytes)
}

/// A number as its digits without zeros at either end, and an exponent if it is not 0.
fn number(written: &str) -> Option<String> {
    let (sign, rest) = written.strip_prefix('-').map_or(("", written), |rest| ("-", rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some("0".to_owned());
    }
    let (exponent_sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => (-1, exponent),
        None => (1, exponent.strip_prefix('+').unwrap_or(exponent)),
    };
    let exponent = match exponent.trim_start_matches('0') {
        "" => 0,
        digits if digits.len() > EXPONENT_DIGITS_MAX => return None,
        digits => exponent_sign * digits.parse::<i64>().ok()?,
    };
    let dropped = i64::try_from(digits.len() - significant.len()).ok()?;
    let exponent = exponent - i64::try_from(fraction.len()).ok()? + dropped;
    Some(if exponent == 0 { format!("{sign}{significant}") } else { format!("{sign}{significant}e{exponent}") })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    fn text(json: &str) -> String {
        String::from_utf8(canonical(json.as_bytes())).unwrap()
    }

    #[test]
    fn equal_texts_have_one_spelling() {
        for (spelling, others) in [
            ("null", &["null", " null\n"][..]),
            ("1", &["1", "1.0", "1e0", "10e-1", "0.1E+1", "1.000", "100e-02"]),
            ("0", &["0", "-0", "0.0", "-0e5", "0e-99999999999999999999"]),
            ("-15e-1", &["-1.5", "-15e-1", "-0.15e1", "-1.50"]),
            ("12e2", &["1200", "1.2e3", "12E2"]),
            ("123456789012345678901234567890123", &["123456789012345678901234567890123.0"]),
            ("1e-400", &["1e-400", "0.1e-399"]),
            (r#""aé😀\n""#, &[r#""aé😀\n""#, r#""\u0061\u00e9\ud83d\ude00\u000a""#]),
            (r#""/""#, &[r#""\/""#]),
            (r#"{"a":[1,{}],"b":"\"","é":[]}"#, &["{ \"b\":\"\\u0022\", \"\\u00e9\" : [ ] ,\n\"a\":[1.0,\t{ }]}"]),
            ("[[],[[]],{}]", &["[ [ ] , [ [ ] ],{ } ]"]),
        ] {
            for other in others {
                assert_eq!(text(other), spelling, "{other}");
                assert_eq!(text(spelling), spelling);
            }
        }
    }

    #[test]
    fn what_differs_keeps_differing() {
        let texts = [
            "1",
            "-1",
            "10",
            "1e400",
            "\"1\"",
            "[1]",
            "[[1]]",
            "{\"1\":1}",
            "true",
            "false",
            "null",
            "\"\"",
            "[]",
            "{}",
            "\"a,b\"",
            "[\"a\",\"b\"]",
            "9007199254740993",
            "9007199254740992",
            "0.1",
            "0.10000000000000001",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            "\"\\ud800\"",
            "[1,2]",
            "[2,1]",
            "[12]",
        ];
        for (at, one) in texts.iter().enumerate() {
            for other in &texts[at + 1..] {
                assert_ne!(text(one), text(other));
            }
        }
    }

    #[test]
    fn other_text_comes_back_as_it_is() {
        for bad in [&b""[..], b"{", b"[1,]", b"\xff", b"1 2", b"\"a"] {
            assert_eq!(canonical(bad), bad);
        }
    }

    #[test]
    fn no_depth_is_too_deep() {
        let deep = format!("{} 1.0 {}", "[".repeat(20_000), "]".repeat(20_000));
        assert_eq!(text(&deep), deep.replace(" 1.0 ", "1"));
    }

    /// Values whose numbers doubles tell apart.
    fn value() -> impl Strategy<Value = Value> {
        let number = prop_oneof![
            (-1000i64..1000).prop_map(Value::from),
            (-1000i64..1000).prop_map(|quarters| Value::from(quarters as f64 / 4.0)),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            number,
            "[a-c\"\\\\é\n]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |value| {
            prop_oneof![
                prop::collection::vec(value.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[ab\"é]{0,2}", value), 0..4)
                    .prop_map(|members| members.into_iter().collect::<Map<_, _>>().into()),
            ]
        })
    }

    /// The witness: numbers as doubles, so that 1 and 1.0 are the same.
    fn plain(value: &Value) -> Value {
        match value {
            Value::Number(number) => Value::from(number.as_f64().unwrap() + 0.0),
            Value::Array(values) => values.iter().map(plain).collect(),
            Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
            other => other.clone(),
        }
    }

    /// Another spelling of the same value.
    fn respelled(value: &Value, odd: bool) -> String {
        match value {
            Value::Number(number) if odd => {
                let tenths = number.as_f64().unwrap() * 100.0;
                format!("{tenths:.0}.0E-2")
            }
            Value::String(text) if odd => {
                let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
                format!("\"{escaped}\"")
            }
            Value::Array(values) => {
                let values: Vec<_> = values.iter().map(|value| respelled(value, !odd)).collect();
                format!("[ {} ]", values.join(" ,\n"))
            }
            Value::Object(members) => {
                let member = |(name, value): (&String, &Value)| {
                    format!("{}\t:{}", respelled(&Value::from(name.as_str()), odd), respelled(value, !odd))
                };
                let members: Vec<_> = members.iter().rev().map(member).collect();
                format!("{{{}\r}}", members.join(", "))
            }
            other => other.to_string(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn two_texts_have_one_spelling_if_and_only_if_they_are_equal(one in value(), other in value(), odd in any::<bool>()) {
            prop_assert_eq!(plain(&one) == plain(&other), text(&one.to_string()) == text(&other.to_string()));
            let again = respelled(&one, odd);
            prop_assert_eq!(text(&again), text(&one.to_string()), "{}", again);
            let spelled: Value = serde_json::from_str(&text(&one.to_string())).unwrap();
            prop_assert_eq!(plain(&spelled), plain(&one));
        }
    }
}
