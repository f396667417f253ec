//! Fuzzing on stable: seeds are replayed, then mutated for a while; what has a new outcome becomes a seed.
//!
//! `LONGHAUL_FUZZ_SECONDS` says how long each target runs (5 if it is not set), `LONGHAUL_FUZZ_SEED` from which random
//! number it starts; the seed is printed, so that a failure can be had again. `make fuzz` runs longer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul_core::input::{Form, InputResponse, Objection, Question, fit, vet};
use serde_json::{Value, json};

use crate::answers::fits;
use crate::urls::is_read_the_same_by_all;
use crate::witness;

const SECONDS: u64 = 5;
/// Inputs kept for mutation.
const SEEDS_MAX: usize = 2000;
/// The longest input, in bytes: short ones are tried more often.
const INPUT_BYTES_MAX: usize = 4096;

#[test]
fn fuzz_urls() {
    let words = [
        "https://",
        "http:",
        "//",
        "/",
        "\\",
        "@",
        ":",
        ":443",
        ":0443",
        ".",
        "..",
        "%2e",
        "%00",
        "%",
        "#",
        "?",
        "[",
        "]",
        "[::1]",
        "0x7f",
        "127",
        "0",
        "example.com",
        "localhost",
        ".local",
        ".internal",
        ".arpa",
        "xn--",
        "xn--bcher-kva",
        "\t",
        "\n",
        "\r",
        " ",
        "\0",
        "。",
        "．",
        "１",
        "ｅ",
        "\u{ad}",
        "\u{200b}",
        "\u{202e}",
        "é",
        "ß",
        "-",
        "_",
        "*",
        "..com",
    ];
    run("urls", include_str!("../corpus/urls.json"), &words, |url| {
        let question = Question::Url { message: String::new(), url: url.to_owned() };
        match vet(&question) {
            Ok(()) => {
                is_read_the_same_by_all(url);
                let kept = fit(&question, InputResponse::Accept(Some(Bytes::copy_from_slice(url.as_bytes()))));
                assert_eq!(kept, InputResponse::Accept(None));
                "shown".to_owned()
            }
            Err(Objection::Url(why)) => why.to_owned(),
            Err(other) => panic!("{other}"),
        }
    });
}

const FORM_WORDS: [&str; 66] = [
    "\"type\":",
    "\"object\"",
    "\"string\"",
    "\"number\"",
    "\"integer\"",
    "\"boolean\"",
    "\"array\"",
    "\"properties\":",
    "\"required\":",
    "\"title\":",
    "\"description\":",
    "\"default\":",
    "\"minLength\":",
    "\"maxLength\":",
    "\"minimum\":",
    "\"maximum\":",
    "\"minItems\":",
    "\"maxItems\":",
    "\"format\":",
    "\"email\"",
    "\"uri\"",
    "\"date\"",
    "\"date-time\"",
    "\"pattern\":",
    "\"enum\":",
    "\"enumNames\":",
    "\"oneOf\":",
    "\"anyOf\":",
    "\"const\":",
    "\"items\":",
    "\"$schema\":",
    "\"$ref\":",
    "\"additionalProperties\":",
    "\"uniqueItems\":",
    "\"a\":",
    "\"a\"",
    "[\"a\"]",
    "[\"a\",\"b\"]",
    "{}",
    "[]",
    "null",
    "true",
    "0",
    "1",
    "-1",
    "1.0",
    "1.5",
    "1e2",
    "1e400",
    "9007199254740993",
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0061",
    "\\ud800",
    "\\\\d",
    "(a|b)",
    "[^a]",
    "{1,2}",
    "+",
    "(?=",
    "😀",
];

#[test]
fn fuzz_forms() {
    let official = witness::official_form();
    let mut random = Random(7);
    run("forms", include_str!("../corpus/forms.json"), &FORM_WORDS, |text| {
        let question = Question::Form { message: String::new(), schema: Bytes::copy_from_slice(text.as_bytes()) };
        let vetted = vet(&question);
        if let Err(error) = Form::read(text.as_bytes()) {
            assert_eq!(vetted, Err(Objection::Form(error.clone())));
            // Without names and positions, which are without end.
            return error.0.split('"').step_by(2).flat_map(|part| part.split(|c: char| c.is_ascii_digit())).collect();
        }
        let schema: Value = serde_json::from_str(text).unwrap();
        assert!(official.is_valid(&schema), "MCP knows no such form: {schema}");
        if !witness::knows_its_patterns(&schema) {
            return "a form with a pattern that is ours alone".to_owned();
        }
        let validator = witness::validator(&schema);
        let mut taken = 0;
        for _ in 0..8 {
            let content = some_content(&schema, &mut random);
            let ours = fits(&schema, &content.to_string());
            let theirs = validator.is_valid(&content);
            let excused = !ours && theirs && witness::is_refused_by_us_alone(&schema, &content);
            assert!(ours == theirs || excused, "we say {ours}, the validator {theirs}: {content} on {schema}");
            taken += usize::from(ours);
        }
        format!("a form of {} fields, {}", schema["properties"].as_object().unwrap().len(), taken > 0)
    });
}

#[test]
fn fuzz_contents() {
    let forms: Vec<String> = serde_json::from_str(include_str!("../corpus/forms.json")).unwrap();
    let forms: Vec<Value> = forms
        .iter()
        .filter(|text| Form::read(text.as_bytes()).is_ok())
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    let validators: Vec<_> = forms.iter().map(witness::validator).collect();
    assert!(forms.len() >= 5);
    let words = [
        "\"name\":",
        "\"party\":",
        "\"email\":",
        "\"homepage\":",
        "\"birthday\":",
        "\"at\":",
        "\"n\":",
        "\"i\":",
        "\"b\":",
        "\"code\":",
        "\"any\":",
        "\"colour\":",
        "\"legacy\":",
        "\"titled\":",
        "\"many\":",
        "\"a@b\"",
        "\"urn:a\"",
        "\"DE-0815\"",
        "\"2024-02-29\"",
        "\"2016-12-31T23:59:60Z\"",
        "\"red\"",
        "[\"a\"]",
        "\"x\"",
        "1",
        "1.0",
        "9007199254740993",
        "1e400",
        "true",
        "null",
        ",",
        ":",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\u0061",
        "\\ud800",
        "\\ud83d\\ude00",
        "é",
        "-",
        "0",
        ".",
        "e",
    ];
    run("contents", include_str!("../corpus/contents.json"), &words, |text| {
        let content: Option<Value> = serde_json::from_str(text).ok();
        let at = text.len() % forms.len();
        let (schema, validator) = (&forms[at], &validators[at]);
        let ours = fits(schema, text);
        match &content {
            None => assert!(!ours, "it is no JSON"),
            Some(content) => {
                let theirs = validator.is_valid(content);
                assert!(!ours || theirs, "the validator refuses it: {schema}");
                // Written anew, no name is repeated.
                let ours = fits(schema, &content.to_string());
                let excused = !ours && theirs && witness::is_refused_by_us_alone(schema, content);
                assert!(ours == theirs || excused, "we say {ours}, the validator {theirs}: {schema}");
            }
        }
        format!("form {at}: {ours}, {}", content.is_some())
    });
}

#[test]
fn fuzz_labels() {
    let words = [
        "pass",
        "word",
        "password",
        "token",
        "count",
        "api",
        "key",
        "Key",
        "PIN",
        "pin code",
        "city",
        "your",
        "enter",
        "please",
        "secret",
        "santa",
        "card",
        "number",
        "16 digit",
        "クレジットカード",
        "番号",
        "密",
        "码",
        "令牌数",
        "p.",
        "a.",
        "s ",
        "\u{200b}",
        "\u{301}",
        "\u{ad}",
        "ｐ",
        "р",
        "ß",
        "ﬁ",
        "ſ",
        "İ",
        "ı",
        "Σ",
        "ς",
        "ﾊﾟ",
        "각",
        "क्ष",
        "👩‍👩‍👧",
        "_",
        "-",
        " ",
        ".",
        "?",
        ":",
        "\n",
        "2fa",
        "0",
        "№",
        "㎏",
        "ﷺ",
        "\u{1d7d8}",
    ];
    let mut random = Random(11);
    run("labels", include_str!("../corpus/labels.json"), &words, |text| {
        let ask = |message: &str, title: &str, kind: &str| {
            let schema = json!({ "type": "object", "properties": { "x": { "type": kind, "title": title } } });
            vet(&Question::Form { message: message.to_owned(), schema: schema.to_string().into() })
        };
        // Nothing that stands before it makes it innocent.
        let kind = *random.pick(&["string", "number", "integer"]);
        let joint = *random.pick(&[" ", "_", ": ", "\n", " p.a.s.s. ", " my"]);
        assert!(matches!(ask("", &format!("{text}{joint}password"), kind), Err(Objection::Secret(_))));
        assert!(matches!(ask(&format!("{text}. Enter your password"), "", "boolean"), Err(Objection::Secret(_))));
        let found = |vetted: Result<(), Objection>| match vetted {
            Ok(()) => String::new(),
            Err(Objection::Secret(found)) => found,
            Err(other) => panic!("{other}"),
        };
        format!("{} {} {}", found(ask(text, "", "string")), found(ask("", text, kind)), found(ask("", text, "boolean")))
    });
}

/// A content with something for most fields, often what they ask for.
fn some_content(schema: &Value, random: &mut Random) -> Value {
    let mut content = serde_json::Map::new();
    for (name, field) in schema["properties"].as_object().unwrap() {
        let likely = ["enum", "default", "minimum", "maximum"]
            .iter()
            .filter_map(|keyword| field.get(keyword))
            .chain(field["items"].get("enum"))
            .chain(field["oneOf"].as_array().into_iter().flatten().filter_map(|option| option.get("const")));
        let mut pool: Vec<Value> = likely.cloned().collect();
        pool.extend(
            [&field["enum"], &field["items"]["enum"]].into_iter().filter_map(Value::as_array).flatten().cloned(),
        );
        pool.extend([json!(null), json!(true), json!(""), json!("a"), json!("ab😀"), json!(0), json!(1.0), json!(1.5)]);
        pool.extend([
            json!("2024-02-29"),
            json!("2024-02-29T12:00:00Z"),
            json!("a@b"),
            json!("a:b"),
            json!([]),
            json!(["a"]),
        ]);
        if random.below(8) != 0 {
            content.insert(name.clone(), random.pick(&pool).clone());
        }
    }
    if random.below(16) == 0 {
        content.insert("a".to_owned(), json!("a"));
    }
    Value::Object(content)
}

/// Replays the corpus, a JSON array of texts, and then mutates it; `target` says what became of a text, or panics.
fn run(name: &str, corpus: &str, words: &[&str], mut target: impl FnMut(&str) -> String) {
    let mut seeds: Vec<String> = serde_json::from_str(corpus).unwrap();
    let seed = variable("LONGHAUL_FUZZ_SEED").unwrap_or(1);
    let mut seen = BTreeSet::new();
    let mut attempt = |text: &str| {
        let _shown = Shown { name, seed, text };
        seen.insert(target(text))
    };
    for text in &seeds {
        attempt(text);
    }
    let mut random = Random(seed);
    let until = Instant::now() + Duration::from_secs(variable("LONGHAUL_FUZZ_SECONDS").unwrap_or(SECONDS));
    let mut runs = 0_u64;
    while Instant::now() < until {
        let text = mutated(&seeds, words, &mut random);
        if attempt(&text) && seeds.len() < SEEDS_MAX {
            seeds.push(text);
        }
        runs += 1;
    }
    assert!(runs > 0 && seen.len() > 1, "{name}: {runs} runs, {} outcomes", seen.len());
    println!("{name}: {runs} runs from seed {seed}, {} different outcomes", seen.len());
}

/// Prints the text that a target panicked at.
struct Shown<'a> {
    name: &'a str,
    seed: u64,
    text: &'a str,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{} from seed {}: {}", self.name, self.seed, json!(self.text));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests' own, set by `make fuzz`")]
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn mutated(seeds: &[String], words: &[&str], random: &mut Random) -> String {
    let mut text = random.pick(seeds).clone().into_bytes();
    for _ in 0..=random.below(4) {
        let (at, to) = (random.below(text.len() + 1), random.below(text.len() + 1));
        let (from, to) = (at.min(to), at.max(to));
        match random.below(8) {
            0 => text.splice(from..from, random.pick(words).bytes()).for_each(drop),
            1 => text.splice(from..to.min(from + 8), random.pick(words).bytes()).for_each(drop),
            2 => text.drain(from..to.min(from + 16)).for_each(drop),
            3 => {
                let again = text[from..to].to_vec();
                text.splice(to..to, again).for_each(drop);
            }
            4 => {
                let other = random.pick(seeds).as_bytes();
                let part = random.below(other.len() + 1)..other.len();
                text.splice(from..text.len(), other[part].iter().copied()).for_each(drop);
            }
            5 if from < text.len() => text[from] ^= 1 << random.below(8),
            6 if from < text.len() => text[from] = b' ' + u8::try_from(random.below(95)).unwrap_or_default(),
            _ => text.splice(from..from, random.pick(words).bytes()).for_each(drop),
        }
        text.truncate(INPUT_BYTES_MAX);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap_or_default()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
