use super::*;

fn rules(text: &str) -> Result<Rules, String> {
    Rules::parse(&vec![("data.toml".into(), text.into())])
}

fn found(detector: &str, text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for detector in Detector::named(detector).unwrap() {
        detector.find(text, &mut parts);
    }
    // Some shapes are several things at once.
    parts.dedup();
    parts.into_iter().map(|part| text[part].to_owned()).collect()
}

#[test]
fn each_detector_knows_its_own_and_leaves_what_only_looks_like_it() {
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl";
    let known: [(&str, &[&str]); 9] = [
        (
            "card",
            &[
                "4111111111111111",
                "4111 1111 1111 1111",
                "4111-1111-1111-1111",
                "5555555555554444",
                "2223003122003222",
                "378282246310005",
                "6011111111111117",
                "3530111333300000",
                "30569309025904",
                "6200000000000005",
                "4222222222222",
                "6759649826438453",
            ],
        ),
        (
            "iban",
            &[
                "DE89370400440532013000",
                "DE89 3704 0044 0532 0130 00",
                "gb82west12345698765432",
                "FR1420041010050500013M02606",
                "NO9386011117947",
                "XK051212012345678906",
                "MT84MALT011000012345MTLCAST001S",
            ],
        ),
        ("us_ssn", &["123-45-6789", "001 01 0001"]),
        ("de_steuer_id", &["86095742719", "47036892816", "65 929 970 489"]),
        ("fr_nir", &["255081416802538", "2 55 08 14 168 025 38"]),
        ("es_dni", &["12345678Z", "12345678-z", "X1234567L"]),
        ("br_cpf", &["529.982.247-25", "52998224725"]),
        ("email", &["ann@example.org", "a.b+c@mail.example.co.uk", "jörg@bücher.example"]),
        (
            "secret",
            &[
                "AKIAIOSFODNN7EXAMPLE",
                "ghp_0123456789abcdefghijABCDEFGHIJ012345",
                "xoxb-1234567890-abcdefghij",
                "sk-ant-api03-abcdefghijklmnopqrstuvwxyz",
                "sk-proj-abcdefghijklmnopqrstuvwx",
                "AIzaSyA-0123456789abcdefghijABCDEFGHIJK",
                jwt,
                "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
                "-----BEGIN PRIVATE KEY-----\ncut off",
            ],
        ),
    ];
    for (detector, texts) in known {
        for text in texts {
            assert_eq!(found(detector, text), [*text], "{detector}");
            if !text.starts_with("-----") {
                assert_eq!(found(detector, &format!("x: {text}, y")), [*text], "{detector}");
            }
        }
    }
    for (detector, text) in [
        ("card", "4111111111111112"),
        ("card", "1234567890123456"),
        ("card", "41111111111111110000"),
        ("card", "a4111111111111111"),
        ("card", "4111111111111111b"),
        ("card", "4111  1111  1111  1111"),
        ("card", "0000000000000000"),
        ("iban", "DE89370400440532013001"),
        ("iban", "DE8937040044053201300"),
        ("iban", "ZZ89370400440532013000"),
        ("iban", "XDE89370400440532013000"),
        ("us_ssn", "000-45-6789"),
        ("us_ssn", "666-45-6789"),
        ("us_ssn", "900-45-6789"),
        ("us_ssn", "123-00-6789"),
        ("us_ssn", "123-45-0000"),
        ("us_ssn", "123-45-67890"),
        ("us_ssn", "123456789"),
        ("de_steuer_id", "86095742718"),
        ("de_steuer_id", "12345678903"),
        ("fr_nir", "255081416802539"),
        ("fr_nir", "255151416802538"),
        ("es_dni", "12345678A"),
        ("es_dni", "X1234567M"),
        ("br_cpf", "529.982.247-24"),
        ("br_cpf", "111.111.111-11"),
        ("email", "ann@localhost"),
        ("email", "@example.org"),
        ("secret", "AKIA"),
        ("secret", "sk-short"),
        ("secret", "-----BEGIN PUBLIC KEY-----"),
    ] {
        assert_eq!(found(detector, text), Vec::<String>::new(), "{detector}");
    }
}

#[test]
fn a_card_number_is_found_among_other_numbers() {
    assert_eq!(found("card", "1 4111 1111 1111 1111 2"), ["4111 1111 1111 1111"]);
    assert_eq!(found("card", "12345 378282246310005;4111111111111111"), ["378282246310005", "4111111111111111"]);
    // Hostile text takes no longer than other text.
    assert_eq!(found("card", &"1-".repeat(100_000)), Vec::<String>::new());
}

const REDACT: &str = "[[policies]]\nname = \"a\"\ndetect = [\"card\", \"email\"]\naction = \"redact\"\n";

fn screened(rules: &Rules, json: &str) -> String {
    match rules.screen(Passage::Arguments, "acme", "files.read", &Bytes::copy_from_slice(json.as_bytes())) {
        Verdict::Clean => "clean".into(),
        Verdict::Blocked => "blocked".into(),
        Verdict::Redacted(json) => String::from_utf8(json.to_vec()).unwrap(),
    }
}

#[test]
fn what_is_taken_out_leaves_a_mark_and_every_other_byte() {
    let rules = rules(REDACT).unwrap();
    for (json, expected) in [
        (r#"{ "a" :1e2,  "b": "x" }"#, "clean"),
        (r#"{ "a" :1e2,  "b": "4111111111111111 \u00e9!" }"#, r#"{ "a" :1e2,  "b": "[redacted:card] \u00e9!" }"#),
        (r#"["\u0034111111111111111\n"]"#, r#"["[redacted:card]\n"]"#),
        ("[\"４111-1111\u{2010}1111\u{a0}111\u{200b}1\"]", r#"["[redacted:card]"]"#),
        (r#"{"n":4111111111111111,"m":-4.111111111111111e15}"#, r#"{"n":"[redacted:card]","m":"[redacted:card]"}"#),
        (r#"{"n":4111111111111111.0}"#, r#"{"n":"[redacted:card]"}"#),
        (r#"{"ann@example.org":1,"bob@example.org":2}"#, r#"{"[redacted:email-1]":1,"[redacted:email-2]":2}"#),
        (r#"{"a":"{\"n\":\"4111111111111111\"}"}"#, r#"{"a":"{\"n\":\"[redacted:card]\"}"}"#),
        (r#"["ann@example.org 4111111111111111"]"#, r#"["[redacted:email] [redacted:card]"]"#),
        (r#"["4111111111111111@example.org"]"#, r#"["[redacted:email]"]"#),
    ] {
        assert_eq!(screened(&rules, json), expected, "{json}");
        if expected != "clean" {
            serde_json::from_str::<serde_json::Value>(expected).unwrap();
        }
    }
}

#[test]
fn of_policies_that_look_for_the_same_the_first_that_applies_counts() {
    let rules = rules(
        r#"
        [[policies]]
        name = "the bank may"
        tenants = ["bank"]
        detect = ["card"]
        action = "allow"
        [[policies]]
        name = "results"
        on = ["results"]
        tools = ["files.*"]
        detect = ["card", "national_id"]
        action = "redact"
        [[policies]]
        name = "all"
        detect = ["card"]
        patterns = ["(?i)project [a-z]+"]
        action = "block"
        "#,
    )
    .unwrap();
    let screen = |passage, tenant: &str, tool: &str, json: &'static str| {
        rules.screen(passage, tenant, tool, &Bytes::from_static(json.as_bytes()))
    };
    let card = r#"["4111111111111111"]"#;
    let redacted = |json: &'static str| Verdict::Redacted(Bytes::from_static(json.as_bytes()));
    for (passage, tenant, tool, json, verdict) in [
        (Passage::Arguments, "bank", "x", card, Verdict::Clean),
        (Passage::Results, "bank", "files.read", card, Verdict::Clean),
        (Passage::Arguments, "acme", "files.read", card, Verdict::Blocked),
        (Passage::Results, "acme", "files.read", card, redacted(r#"["[redacted:card]"]"#)),
        (Passage::Results, "acme", "files.read", r#"["123-45-6789"]"#, redacted(r#"["[redacted:us_ssn]"]"#)),
        (Passage::Results, "acme", "other", card, Verdict::Blocked),
        (Passage::Arguments, "bank", "x", r#"["Project Apollo"]"#, Verdict::Blocked),
    ] {
        assert_eq!(screen(passage, tenant, tool, json), verdict, "{passage:?} {tenant} {tool} {json}");
    }
}

#[test]
fn a_file_that_makes_no_sense_is_refused_by_what_is_wrong() {
    for (text, what) in [
        ("x", "TOML"),
        ("[[policies]]\nname = \"a\"\naction = \"block\"\n", "looks for nothing"),
        ("[[policies]]\nname = \"a\"\ndetect = [\"cards\"]\naction = \"block\"\n", "\"cards\""),
        ("[[policies]]\nname = \"a\"\npatterns = [\"(\"]\naction = \"block\"\n", "unclosed"),
        ("[[policies]]\nname = \"a\"\npatterns = [\"((a{1000}){1000})\"]\naction = \"block\"\n", "size"),
        ("[[policies]]\nname = \"a\"\npatterns = [\"a\"]\naction = \"allow\"\n", "allow"),
        ("[[policies]]\nname = \"a\"\ndetect = [\"card\"]\naction = \"shout\"\n", "shout"),
        ("[[policies]]\nname = \"a\"\ndetect = [\"card\"]\naction = \"block\"\nnot = 1\n", "not"),
    ] {
        let wrong = rules(text).unwrap_err();
        assert!(wrong.contains(what), "{wrong}");
    }
    assert!(rules("").unwrap().0.is_empty());
}
