//! Which answers fit.

use bytes::Bytes;
use longhaul_core::input::{ANSWER_BYTES_MAX, InputResponse, MATCHED_BYTES_MAX, Question, fit};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::witness;

/// Whether a form takes a content; what is taken must be what came.
pub fn fits(schema: &Value, content: &str) -> bool {
    let question = Question::Form { message: String::new(), schema: schema.to_string().into() };
    let content = Bytes::copy_from_slice(content.as_bytes());
    match fit(&question, InputResponse::Accept(Some(content.clone()))) {
        InputResponse::Accept(taken) => {
            assert_eq!(taken, Some(content));
            true
        }
        InputResponse::Decline => false,
        other => panic!("{other:?}"),
    }
}

/// Whether a form of one required field takes a value.
fn takes(field: &Value, value: &str) -> bool {
    let schema = json!({ "type": "object", "properties": { "x": field }, "required": ["x"] });
    fits(&schema, &format!("{{\"x\":{value}}}"))
}

fn all_of(field: Value, yes: &[&str], no: &[&str]) {
    for value in yes {
        assert!(takes(&field, value), "{field} should take {value}");
    }
    for value in no {
        assert!(!takes(&field, value), "{field} should not take {value}");
    }
}

#[test]
fn a_value_has_the_type_that_was_asked_for() {
    all_of(
        json!({ "type": "string" }),
        &[r#""""#, r#""a""#, r#""\u0000\ud83d\ude00""#],
        &["1", "null", "true", "[]", "{}"],
    );
    all_of(json!({ "type": "boolean" }), &["true", "false"], &["1", "0", r#""true""#, "null"]);
    all_of(
        json!({ "type": "number" }),
        &["1", "-0", "0.5", "1e300"],
        &[r#""1""#, "null", "true", "[1]", "1e400", "01", "NaN"],
    );
    all_of(
        json!({ "type": "integer" }),
        &["1", "-1", "1.0", "-0.0", "1e2", "120e-1", "18446744073709551616", "1e300"],
        &["0.5", "1.5e0", r#""1""#, "null"],
    );
}

#[test]
fn a_number_is_in_its_range_exactly() {
    all_of(
        json!({ "type": "number", "minimum": 0.1, "maximum": 1 }),
        &["0.1", "1", "1.0", "0.5"],
        &["0", "0.09", "1.0001", "-1e300"],
    );
    all_of(
        json!({ "type": "integer", "minimum": 9007199254740993_i64, "maximum": 9223372036854775807_i64 }),
        &["9007199254740993", "9223372036854775807"],
        &["9007199254740992", "9223372036854775808", "9007199254740992.0"],
    );
    all_of(json!({ "type": "integer", "minimum": 0.5 }), &["1", "1e300"], &["0", "-1e300"]);
}

#[test]
fn a_text_is_as_long_as_asked_for_in_code_points() {
    all_of(
        json!({ "type": "string", "minLength": 2, "maxLength": 3 }),
        &[r#""ab""#, r#""éé""#, r#""😀😀😀""#, r#""e\u0301x""#, r#""\ud83d\ude00a""#],
        &[r#""""#, r#""a""#, r#""😀""#, r#""abcd""#],
    );
}

#[test]
fn a_text_matches_its_pattern_up_to_a_length() {
    all_of(
        json!({ "type": "string", "pattern": "^[A-Z]{2}-\\d+$" }),
        &[r#""DE-12""#],
        &[r#""DE-""#, r#""xDE-12""#, r#""DE-12\n""#],
    );
    let field = json!({ "type": "string", "pattern": "^a+$" });
    assert!(takes(&field, &format!("\"{}\"", "a".repeat(MATCHED_BYTES_MAX))));
    assert!(!takes(&field, &format!("\"{}\"", "a".repeat(MATCHED_BYTES_MAX + 1))));
}

#[test]
fn a_pattern_costs_linear_time_whatever_it_is() {
    let started = std::time::Instant::now();
    for pattern in ["^(a+)+$", "(x+x+)+y", "(a?){30}a{30}$", "(?:(?:a|a?)+){200}b"] {
        let field = json!({ "type": "string", "pattern": pattern });
        let text = "a".repeat(MATCHED_BYTES_MAX - 1) + "!";
        assert!(!takes(&field, &format!("\"{text}\"")), "{pattern}");
    }
    assert!(started.elapsed().as_secs() < 20);
}

#[test]
fn a_choice_is_one_of_those_given() {
    for field in [
        json!({ "type": "string", "enum": ["a", "é"] }),
        json!({ "type": "string", "enum": ["a", "é"], "enumNames": ["A", "E"] }),
        json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }, { "const": "é", "title": "E" }] }),
    ] {
        all_of(field, &[r#""a""#, r#""\u00e9""#], &[r#""A""#, r#""""#, r#""e\u0301""#, r#"["a"]"#, "0", "null"]);
    }
    for items in [
        json!({ "type": "string", "enum": ["a", "b"] }),
        json!({ "anyOf": [{ "const": "a", "title": "A" }, { "const": "b", "title": "B" }] }),
    ] {
        let field = json!({ "type": "array", "items": items, "minItems": 1, "maxItems": 2 });
        all_of(
            field,
            &[r#"["a"]"#, r#"["b","a"]"#, r#"["a","a"]"#],
            &["[]", r#"["a","b","a"]"#, r#"["c"]"#, r#"[["a"]]"#, "[1]", "[null]", r#""a""#, "{}"],
        );
    }
}

#[test]
fn a_format_is_kept() {
    let format = |name: &str| json!({ "type": "string", "format": name });
    let quote = |texts: &[&str]| texts.iter().map(|text| json!(text).to_string()).collect::<Vec<_>>();
    let all_of = |name: &str, yes: &[&str], no: &[&str]| {
        for value in quote(yes) {
            assert!(takes(&format(name), &value), "{value} is a {name}");
        }
        for value in quote(no) {
            assert!(!takes(&format(name), &value), "{value} is no {name}");
        }
    };
    all_of(
        "date",
        &["2026-11-30", "2024-02-29", "2000-02-29", "0000-01-01", "9999-12-31"],
        &[
            "",
            "2026-11-31",
            "2025-02-29",
            "1900-02-29",
            "2026-00-01",
            "2026-13-01",
            "2026-01-00",
            "2026-1-1",
            "26-01-01",
            "20260101",
            "2026-01-01 ",
            "2026-01-01T00:00:00Z",
            "２０２６-01-01",
            "+026-01-01",
        ],
    );
    all_of(
        "date-time",
        &[
            "2026-11-30T23:59:59Z",
            "2026-11-30t23:59:59z",
            "2026-11-30T00:00:00.123456789+05:30",
            "2026-11-30T00:00:00-00:00",
            "2016-12-31T23:59:60Z",
            "2016-12-31T15:59:60-08:00",
            "2017-01-01T05:29:60+05:30",
        ],
        &[
            "",
            "2026-11-30",
            "2026-11-30 00:00:00Z",
            "2026-11-30T00:00:00",
            "2026-11-30T24:00:00Z",
            "2026-11-30T00:60:00Z",
            "2026-11-30T00:00:61Z",
            "2026-11-30T00:00:60Z",
            "2026-11-30T00:00Z",
            "2026-11-30T00:00:00.Z",
            "2026-11-30T00:00:00,5Z",
            "2026-11-30T00:00:00+24:00",
            "2026-11-30T00:00:00+0530",
            "2026-11-30T00:00:00+05:60",
            "2026-02-30T00:00:00Z",
            "2026-11-30T00:00:00Zx",
            "2026-11-30T00:00:00z\n",
            "2026-11-30T٠٠:00:00Z",
        ],
    );
    all_of(
        "email",
        &[
            "a@b",
            "a.b+c@example.com",
            "\"a b@c\"@example.com",
            "\"\"@b",
            "a@[127.0.0.1]",
            "a@[IPv6:::1]",
            "!#$%&'*/=?^_`{|}~-@b.c",
        ],
        &[
            "",
            "a",
            "@",
            "a@",
            "@b",
            "a@b@c",
            ".a@b",
            "a.@b",
            "a..b@c",
            "a b@c",
            "a@b_c",
            "a@-b",
            "a@b.",
            "a@.b",
            "a@[::1]",
            "a@[1.2.3]",
            "a@[IPv6:1.2.3.4]",
            "Jo <a@b>",
            "\"a\"b@c",
            "\"a\\\"@b",
            "é@b.c",
            "a@é.c",
            "a@b\n",
        ],
    );
    let long = "a".repeat(65) + "@b";
    assert!(!takes(&format("email"), &json!(long).to_string()));
    all_of(
        "uri",
        &[
            "https://example.com",
            "http://a:b@[::1]:80/p;x?q#f",
            "urn:isbn:1",
            "mailto:a@b",
            "a:",
            "file:///x",
            "x+y-.1:%20",
            "http://[v1.a:b]/",
            "http://a:/",
            "http://",
        ],
        &[
            "",
            "a",
            "//a",
            "/a",
            "a b:",
            ":a",
            "1a:",
            "http://a b/",
            "http://[::1",
            "http://[::g]/",
            "http://a:x/",
            "http://a/%zz",
            "http://a/é",
            "http://a/\\",
            "http://a#b#c",
            "http://a@b@c/",
            "http://a]/",
            "http://a/[",
            "http://[::1]x/",
            "é:a",
        ],
    );
}

#[test]
fn what_is_required_is_there_and_nothing_else_is() {
    let schema = json!({ "type": "object", "required": ["a"], "properties": {
        "a": { "type": "string" }, "b": { "type": "integer" },
    } });
    for content in [r#"{"a":""}"#, r#"{"b":1,"a":"x"}"#, " {\"\\u0061\" : \"x\"}\n"] {
        assert!(fits(&schema, content), "{content}");
    }
    for content in [
        "{}",
        r#"{"b":1}"#,
        r#"{"a":"x","c":1}"#,
        r#"{"a":"x","a":"x"}"#,
        r#"{"a":"x","\u0061":"x"}"#,
        r#"{"a":"x","A":"x"}"#,
        r#"{"a":null}"#,
        r#"{"a":"x","b":null}"#,
        r#"{"a":{"a":"x"}}"#,
        r#"[{"a":"x"}]"#,
        r#""a""#,
        "null",
        "",
        "{",
        r#"{"a":"x"}}"#,
        r#"{"a":"x",}"#,
        "\u{feff}{\"a\":\"x\"}",
    ] {
        assert!(!fits(&schema, content), "{content}");
    }
}

#[test]
fn an_answer_is_bounded_in_bytes() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
    let content = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
    assert_eq!(content(100).len(), 100);
    assert!(fits(&schema, &content(ANSWER_BYTES_MAX)));
    assert!(!fits(&schema, &content(ANSWER_BYTES_MAX + 1)));
    let deep = "{\"a\":".repeat(50_000);
    assert!(!fits(&schema, &deep));
}

fn form(schema: &Value) -> Question {
    Question::Form { message: String::new(), schema: schema.to_string().into() }
}

fn url() -> Question {
    Question::Url { message: String::new(), url: "https://example.com/".to_owned() }
}

#[test]
fn no_and_not_now_fit_any_question() {
    let strict = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
    for question in [form(&strict), url(), Question::Sample { params: "{}".into() }, Question::Roots] {
        assert_eq!(fit(&question, InputResponse::Decline), InputResponse::Decline);
        assert_eq!(fit(&question, InputResponse::Cancel), InputResponse::Cancel);
    }
}

#[test]
fn yes_without_content_is_an_empty_form() {
    let optional = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
    let mut required = optional.clone();
    required["required"] = json!(["a"]);
    assert_eq!(fit(&form(&optional), InputResponse::Accept(None)), InputResponse::Accept(Some("{}".into())));
    assert_eq!(fit(&form(&required), InputResponse::Accept(None)), InputResponse::Decline);
}

#[test]
fn yes_to_a_url_carries_nothing() {
    for content in [None, Some("{}".into()), Some("{\"a\":\"secret\"}".into()), Some("no json".into())] {
        assert_eq!(fit(&url(), InputResponse::Accept(content)), InputResponse::Accept(None));
    }
}

#[test]
fn only_questions_to_the_client_itself_take_a_result() {
    let result = || InputResponse::Result("{\"roots\":[]}".into());
    for question in [Question::Sample { params: "{}".into() }, Question::Roots] {
        assert_eq!(fit(&question, result()), result());
        assert_eq!(fit(&question, InputResponse::Accept(Some("{}".into()))), InputResponse::Decline);
        assert_eq!(fit(&question, InputResponse::Accept(None)), InputResponse::Decline);
        for other in ["", "[]", "null", "1", "{", "{\"a\":1,\"a\":2}"] {
            assert_eq!(fit(&question, InputResponse::Result(other.into())), InputResponse::Decline, "{other}");
        }
    }
    let any = json!({ "type": "object", "properties": {} });
    assert_eq!(fit(&form(&any), result()), InputResponse::Decline);
    assert_eq!(fit(&url(), result()), InputResponse::Decline);
}

#[test]
fn nothing_fits_a_schema_that_is_no_form() {
    assert_eq!(fit(&form(&json!({})), InputResponse::Accept(Some("{}".into()))), InputResponse::Decline);
    assert_eq!(fit(&form(&json!({})), InputResponse::Accept(None)), InputResponse::Decline);
}

/// We and the validator say the same.
fn agree(schema: &Value, content: &Value) -> Result<(), TestCaseError> {
    let ours = fits(schema, &content.to_string());
    let theirs = witness::validator(schema).is_valid(content);
    let excused = !ours && theirs && witness::is_refused_by_us_alone(schema, content);
    prop_assert!(ours == theirs || excused, "we say {}, the validator {}: {} on {}", ours, theirs, content, schema);
    Ok(())
}

fn maybe<T: std::fmt::Debug + Clone + 'static>(of: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Option<T>> {
    proptest::option::of(of).boxed()
}

fn numbers() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-4_i64..4).prop_map(|number| json!(number)),
        (-8_i32..8).prop_map(|halves| json!(f64::from(halves) / 2.0)),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<f64>().prop_filter("JSON has none else", |number| number.is_finite()).prop_map(|number| json!(number)),
        (9007199254740990_i64..9007199254740996).prop_map(|number| json!(number)),
        (9007199254740990_i64..9007199254740996).prop_map(|number| json!(number as f64)),
        proptest::sample::select(vec![
            json!(u64::MAX),
            json!(u64::MAX as f64),
            json!(i64::MIN),
            json!(1e300),
            json!(-0.0)
        ]),
    ]
}

/// Texts around each format, and any.
fn texts() -> BoxedStrategy<String> {
    prop_oneof![
        "[a-cé😀]{0,4}",
        any::<String>(),
        "[0-9]{4}-(0[0-9]|1[0-3])-([0-2][0-9]|3[0-2])",
        "(19|20)00-02-(28|29|30)",
        "2026-0[19]-[0-3][01][Tt ]([01][0-9]|2[0-4]):[0-6][0-9]:([0-5][0-9]|6[01])(\\.[0-9]{0,2})?(Z|z|[+-][0-2][0-9]:?[0-6][0-9])?",
        "2016-12-31T(23|22|00|15):(59|29|58):60(\\.[0-9])?(Z|[+-](00|08|23):(00|30|59))",
        "[a-zA-Z0-9.!#<>\" \\\\@é-]{0,6}@?[a-z0-9.@\\[\\]:_é-]{0,8}",
        "\"[ -~]{0,4}\"@(b|\\[IPv6:[0-9a-f:]{0,6}\\]|\\[[0-9.]{5,9}\\])",
        "[a-z0-9+.:-]{0,4}:?(//)?[a-z@:0-9%]{0,5}(\\[[0-9a-fv:.]{0,5}\\])?[a-z/?#@:%0-9\\[\\] é]{0,8}",
        "[a-z]{1,3}://[a-z.]{1,5}(:[0-9a]{0,3})?/(%[0-9a-g]{2})?[?#]?[?#]?",
    ]
    .boxed()
}

fn fields() -> impl Strategy<Value = Value> {
    let object = |members: Vec<(&'static str, Option<Value>)>| {
        Value::Object(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    };
    let formats = proptest::sample::select(vec!["email", "uri", "date", "date-time"]);
    let patterns = proptest::sample::select(vec![
        "a",
        "^[a-c]+$",
        "^.{2,3}$",
        "\\d",
        "^\\w*$",
        "\\s|é",
        "^(?:a|[^b-z])*$",
        "😀?b{1,2}$",
    ]);
    let choices =
        proptest::collection::btree_set(texts(), 1..4).prop_map(|set| set.into_iter().collect::<Vec<_>>()).boxed();
    let span = |max: u64| {
        (maybe(0..=max), maybe(0..=max))
            .prop_filter("in order", |(min, max)| min.zip(*max).is_none_or(|(min, max)| min <= max))
    };
    let string = (span(4), maybe(formats), maybe(patterns)).prop_map(move |((min, max), format, pattern)| {
        object(vec![
            ("type", Some(json!("string"))),
            ("minLength", min.map(Value::from)),
            ("maxLength", max.map(|max| json!(max as f64))),
            ("format", format.map(Value::from)),
            ("pattern", pattern.map(Value::from)),
        ])
    });
    let number = (any::<bool>(), maybe(numbers()), maybe(numbers())).prop_map(move |(whole, one, two)| {
        let (min, max) = match (one, two) {
            (Some(one), Some(two)) if one.as_f64() > two.as_f64() => (Some(two), Some(one)),
            (one, two) => (one, two),
        };
        let name = if whole { "integer" } else { "number" };
        object(vec![("type", Some(json!(name))), ("minimum", min), ("maximum", max)])
    });
    let one = (choices.clone(), any::<bool>()).prop_map(|(choices, titled)| {
        if titled {
            let of: Vec<_> = choices.iter().map(|choice| json!({ "const": choice, "title": "T" })).collect();
            json!({ "type": "string", "oneOf": of })
        } else {
            json!({ "type": "string", "enum": choices })
        }
    });
    let many = (choices, any::<bool>(), span(3)).prop_map(move |(choices, titled, (min, max))| {
        let items = if titled {
            let of: Vec<_> = choices.iter().map(|choice| json!({ "const": choice, "title": "T" })).collect();
            json!({ "anyOf": of })
        } else {
            json!({ "type": "string", "enum": choices })
        };
        object(vec![
            ("type", Some(json!("array"))),
            ("items", Some(items)),
            ("minItems", min.map(Value::from)),
            ("maxItems", max.map(Value::from)),
        ])
    });
    prop_oneof![4 => string, 3 => number, 1 => Just(json!({ "type": "boolean" })), 1 => one, 2 => many]
}

/// A value that the field might take, or any.
fn values(field: &Value) -> BoxedStrategy<Value> {
    let pool: Vec<Value> = [&field["enum"], &field["items"]["enum"]]
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .chain(["oneOf", "anyOf"].iter().flat_map(|titled| {
            let of = field[titled].as_array().or(field["items"][titled].as_array());
            of.into_iter().flatten().map(|option| &option["const"])
        }))
        .cloned()
        .collect();
    let bounds: Vec<_> = ["minimum", "maximum"].iter().filter_map(|bound| field.get(bound)).flat_map(around).collect();
    let likely = match field["type"].as_str().unwrap() {
        "string" if pool.is_empty() => texts().prop_map(Value::from).boxed(),
        "string" => proptest::sample::select(pool).boxed(),
        "array" => proptest::collection::vec(proptest::sample::select(pool), 0..5).prop_map(Value::from).boxed(),
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        _ if bounds.is_empty() => numbers().boxed(),
        _ => prop_oneof![numbers(), proptest::sample::select(bounds)].boxed(),
    };
    let any = prop_oneof![
        numbers(),
        texts().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!([null])),
    ];
    prop_oneof![6 => likely, 1 => any].boxed()
}

/// A bound, its neighbours, and the double next to it.
fn around(bound: &Value) -> Vec<Value> {
    let mut near = vec![bound.clone(), json!(bound.as_f64())];
    if let Some(whole) = bound.as_i64() {
        near.extend([json!(whole.saturating_add(1)), json!(whole.saturating_sub(1))]);
    }
    near
}

fn forms_and_contents() -> impl Strategy<Value = (Value, Value)> {
    let names = proptest::collection::btree_set("[abé]{0,2}", 0..4);
    names
        .prop_flat_map(|names| {
            let count = names.len();
            (Just(names), proptest::collection::vec((fields(), any::<bool>()), count))
        })
        .prop_flat_map(|(names, fields)| {
            let required: Vec<_> = names
                .iter()
                .zip(&fields)
                .filter(|(_, (_, required))| *required)
                .map(|(name, _)| name.clone())
                .collect();
            let contents: Vec<_> =
                fields.iter().map(|(field, _)| proptest::option::weighted(0.85, values(field))).collect();
            let properties: serde_json::Map<_, _> =
                names.iter().cloned().zip(fields.into_iter().map(|(field, _)| field)).collect();
            let schema = json!({ "type": "object", "properties": properties, "required": required });
            let extra = proptest::option::weighted(0.05, "[abc]{0,3}");
            (Just(schema), Just(names), contents, extra)
        })
        .prop_map(|(schema, names, values, extra)| {
            let mut content: serde_json::Map<_, _> =
                names.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect();
            content.extend(extra.map(|name| (name, json!(1))));
            (schema, Value::Object(content))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_fits_is_what_a_validator_of_json_schema_accepts((schema, content) in forms_and_contents()) {
        agree(&schema, &content)?;
    }

    #[test]
    fn formats_are_those_of_the_validator(
        format in proptest::sample::select(vec!["email", "uri", "date", "date-time"]),
        text in texts(),
    ) {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "string", "format": format } } });
        agree(&schema, &json!({ "x": text }))?;
    }

    #[test]
    fn numbers_are_compared_as_the_validator_does(
        whole in any::<bool>(),
        bound in numbers(),
        lower in any::<bool>(),
        value in numbers(),
    ) {
        let (kind, keyword) = (if whole { "integer" } else { "number" }, if lower { "minimum" } else { "maximum" });
        let schema = json!({ "type": "object", "properties": { "x": { "type": kind, keyword: bound } } });
        for value in around(&bound).into_iter().chain([value]) {
            agree(&schema, &json!({ "x": value }))?;
        }
    }
}
