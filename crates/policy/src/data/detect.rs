//! What is looked for: kinds of data that can be known by their shape, and by their check digits where they have some.

use std::ops::Range;
use std::sync::LazyLock;

use regex::{Regex, RegexSet};

/// A kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Detector {
    /// The number of a payment card: an issuer's range and the Luhn digit.
    Card,
    /// An IBAN: its country's length and the check digits.
    Iban,
    /// A Social Security Number of the United States, written with its separators.
    UsSsn,
    /// A German tax id.
    DeSteuerId,
    /// A French NIR.
    FrNir,
    /// A Spanish DNI or NIE.
    EsDni,
    /// A Brazilian CPF.
    BrCpf,
    /// An e-mail address.
    Email,
    /// A key or token of a known shape, or a private key.
    Secret,
}

impl Detector {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Card,
        Self::Iban,
        Self::UsSsn,
        Self::DeSteuerId,
        Self::FrNir,
        Self::EsDni,
        Self::BrCpf,
        Self::Email,
        Self::Secret,
    ];

    /// Its name in policies, and in the mark that it leaves.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Iban => "iban",
            Self::UsSsn => "us_ssn",
            Self::DeSteuerId => "de_steuer_id",
            Self::FrNir => "fr_nir",
            Self::EsDni => "es_dni",
            Self::BrCpf => "br_cpf",
            Self::Email => "email",
            Self::Secret => "secret",
        }
    }

    /// Those of a name: one, or the `national_id` of all countries.
    pub(crate) fn named(name: &str) -> Option<Vec<Self>> {
        if name == "national_id" {
            return Some(vec![Self::UsSsn, Self::DeSteuerId, Self::FrNir, Self::EsDni, Self::BrCpf]);
        }
        Self::ALL.into_iter().find(|detector| detector.name() == name).map(|detector| vec![detector])
    }

    /// Adds where it is found in a text.
    pub(crate) fn find(self, text: &str, found: &mut Vec<Range<usize>>) {
        match self {
            Self::Card => cards(text, found),
            Self::Iban => ibans(text, found),
            Self::UsSsn => shaped(&US_SSN, text, is_us_ssn, found),
            Self::DeSteuerId => shaped(&DE_STEUER_ID, text, is_de_steuer_id, found),
            Self::FrNir => shaped(&FR_NIR, text, is_fr_nir, found),
            Self::EsDni => shaped(&ES_DNI, text, is_es_dni, found),
            Self::BrCpf => shaped(&BR_CPF, text, is_br_cpf, found),
            Self::Email if text.contains('@') => shaped(&EMAIL, text, |_| true, found),
            Self::Email => {}
            Self::Secret => secrets(text, found),
        }
    }
}

fn is_part_of_word(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// Whether a part stands alone: no letter and no digit beside it.
fn stands_alone(text: &str, part: &Range<usize>) -> bool {
    let bytes = text.as_bytes();
    !is_part_of_word(part.start.checked_sub(1).and_then(|at| bytes.get(at))) && !is_part_of_word(bytes.get(part.end))
}

/// The matches of a shape that stand alone and whose letters and digits pass a test.
fn shaped(shape: &LazyLock<Regex>, text: &str, test: fn(&[u8]) -> bool, found: &mut Vec<Range<usize>>) {
    let mut at = 0;
    while let Some(one) = shape.find_at(text, at) {
        let part = one.range();
        let plain: Vec<u8> = text[part.clone()].bytes().filter(u8::is_ascii_alphanumeric).collect();
        if stands_alone(text, &part) && test(&plain) {
            at = part.end;
            found.push(part);
        } else {
            // Another may begin inside of what was none; all that matches begins with one byte.
            at = part.start + 1;
        }
    }
}

/// The most digits of a card number, and the fewest.
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;

/// Groups of digits, each one separator from the next, whose digits together are a card number.
fn cards(text: &str, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let card = if is_part_of_word(at.checked_sub(1).and_then(|before| bytes.get(before))) {
            None
        } else {
            card_at(bytes, at)
        };
        match card {
            Some(end) => {
                found.push(at..end);
                at = end;
            }
            // The next group may begin one.
            None => at += bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count(),
        }
    }
}

/// The end of the longest card number that begins here.
fn card_at(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut digits, mut at, mut end) = (Vec::with_capacity(20), start, None);
    loop {
        while let Some(byte) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
            digits.push(byte - b'0');
            at += 1;
            if digits.len() > *CARD_DIGITS.end() {
                return end;
            }
        }
        if CARD_DIGITS.contains(&digits.len()) && !is_part_of_word(bytes.get(at)) && is_card(&digits) {
            end = Some(at);
        }
        let separator = bytes.get(at).filter(|byte| matches!(byte, b' ' | b'-' | b'.'));
        if separator.is_none() || !bytes.get(at + 1).is_some_and(u8::is_ascii_digit) {
            return end;
        }
        at += 1;
    }
}

fn is_card(digits: &[u8]) -> bool {
    let first = |count: usize| digits[..count].iter().fold(0_u32, |number, digit| number * 10 + u32::from(*digit));
    let (two, three, four, six) = (first(2), first(3), first(4), first(6));
    let length = digits.len();
    let is_issued = match (two, length) {
        // Visa
        (40..=49, 13 | 16 | 19) => true,
        // Mastercard
        (51..=55, 16) => true,
        // American Express
        (34 | 37, 15) => true,
        // Diners Club, Discover, JCB, UnionPay, Maestro, RuPay, Mir, Troy
        (36 | 38 | 39, 14..=19) | (65 | 62 | 60 | 81 | 82, 16..=19) => true,
        _ => {
            matches!((three, length), (300..=305, 14..=19) | (644..=649, 16..=19) | (508, 16))
                || matches!(
                    (four, length),
                    (2221..=2720, 16) | (2200..=2205, 16..=19) | (3528..=3589, 16..=19) | (9792, 16)
                )
                || matches!((four, length), (5018 | 5020 | 5038 | 5893 | 6304 | 6759 | 6761..=6763, 13..=19))
                || matches!((six, length), (222_100..=272_099, 16))
        }
    };
    is_issued && luhn(digits)
}

fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match (at % 2, u32::from(*digit)) {
            (0, digit) => digit,
            (_, digit @ 0..5) => digit * 2,
            (_, digit) => digit * 2 - 9,
        })
        .sum();
    sum.is_multiple_of(10)
}

/// The countries of the IBAN registry, and how long theirs are.
const IBAN_LENGTHS: [(&[u8; 2], usize); 85] = [
    (b"AD", 24),
    (b"AE", 23),
    (b"AL", 28),
    (b"AT", 20),
    (b"AZ", 28),
    (b"BA", 20),
    (b"BE", 16),
    (b"BG", 22),
    (b"BH", 22),
    (b"BI", 27),
    (b"BR", 29),
    (b"BY", 28),
    (b"CH", 21),
    (b"CR", 22),
    (b"CY", 28),
    (b"CZ", 24),
    (b"DE", 22),
    (b"DJ", 27),
    (b"DK", 18),
    (b"DO", 28),
    (b"EE", 20),
    (b"EG", 29),
    (b"ES", 24),
    (b"FI", 18),
    (b"FK", 18),
    (b"FO", 18),
    (b"FR", 27),
    (b"GB", 22),
    (b"GE", 22),
    (b"GI", 23),
    (b"GL", 18),
    (b"GR", 27),
    (b"GT", 28),
    (b"HN", 28),
    (b"HR", 21),
    (b"HU", 28),
    (b"IE", 22),
    (b"IL", 23),
    (b"IQ", 23),
    (b"IS", 26),
    (b"IT", 27),
    (b"JO", 30),
    (b"KW", 30),
    (b"KZ", 20),
    (b"LB", 28),
    (b"LC", 32),
    (b"LI", 21),
    (b"LT", 20),
    (b"LU", 20),
    (b"LV", 21),
    (b"LY", 25),
    (b"MC", 27),
    (b"MD", 24),
    (b"ME", 22),
    (b"MK", 19),
    (b"MN", 20),
    (b"MR", 27),
    (b"MT", 31),
    (b"MU", 30),
    (b"NI", 28),
    (b"NL", 18),
    (b"NO", 15),
    (b"OM", 23),
    (b"PK", 24),
    (b"PL", 28),
    (b"PS", 29),
    (b"PT", 25),
    (b"QA", 29),
    (b"RO", 24),
    (b"RS", 22),
    (b"RU", 33),
    (b"SA", 24),
    (b"SC", 31),
    (b"SD", 18),
    (b"SE", 24),
    (b"SI", 19),
    (b"SK", 24),
    (b"SM", 27),
    (b"SO", 23),
    (b"ST", 25),
    (b"SV", 28),
    (b"TL", 23),
    (b"TN", 24),
    (b"TR", 26),
    (b"UA", 29),
];

/// More countries, kept apart so that the first table stays in step with its length.
const IBAN_LENGTHS_MORE: [(&[u8; 2], usize); 4] = [(b"VA", 22), (b"VG", 24), (b"XK", 20), (b"YE", 30)];

fn ibans(text: &str, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at + 4 <= bytes.len() {
        let is_start = bytes[at].is_ascii_alphabetic()
            && bytes[at + 1].is_ascii_alphabetic()
            && bytes[at + 2].is_ascii_digit()
            && bytes[at + 3].is_ascii_digit()
            && !is_part_of_word(at.checked_sub(1).and_then(|before| bytes.get(before)));
        match is_start.then(|| iban_at(bytes, at)).flatten() {
            Some(end) => {
                found.push(at..end);
                at = end;
            }
            None => at += 1,
        }
    }
}

/// The end of the IBAN that begins here.
fn iban_at(bytes: &[u8], start: usize) -> Option<usize> {
    let country = [bytes[start].to_ascii_uppercase(), bytes[start + 1].to_ascii_uppercase()];
    let mut lengths = IBAN_LENGTHS.iter().chain(&IBAN_LENGTHS_MORE);
    let (_, length) = lengths.find(|(name, _)| **name == country)?;
    let (mut said, mut at) = (Vec::with_capacity(*length), start);
    while said.len() < *length {
        let byte = *bytes.get(at)?;
        if byte.is_ascii_alphanumeric() {
            said.push(byte.to_ascii_uppercase());
        } else if !matches!(byte, b' ' | b'-') || !bytes.get(at + 1)?.is_ascii_alphanumeric() {
            return None;
        }
        at += 1;
    }
    // ISO 7064 MOD 97-10, with the country and the check digits last and letters as two digits.
    let remainder = said[4..].iter().chain(&said[..4]).fold(0_u32, |rest, byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        _ => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
    });
    (remainder == 1 && !is_part_of_word(bytes.get(at))).then_some(at)
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("invariant: a pattern of ours")
}

static US_SSN: LazyLock<Regex> = LazyLock::new(|| regex(r"[0-9]{3}(?:-[0-9]{2}-| [0-9]{2} )[0-9]{4}"));
static DE_STEUER_ID: LazyLock<Regex> = LazyLock::new(|| regex(r"[1-9][0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}"));
static FR_NIR: LazyLock<Regex> =
    LazyLock::new(|| regex(r"[1-478] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[ABab]) ?[0-9]{3} ?[0-9]{3}[ -]?[0-9]{2}"));
static ES_DNI: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?:[0-9]{8}|[0-9]{2}\.[0-9]{3}\.[0-9]{3}|[XYZxyz]-?[0-9]{7})[ -]?[A-Za-z]"));
static BR_CPF: LazyLock<Regex> = LazyLock::new(|| regex(r"[0-9]{3}\.?[0-9]{3}\.?[0-9]{3}-?[0-9]{2}"));
static EMAIL: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)[\p{L}\p{N}][\p{L}\p{N}._%+'-]{0,63}@(?:[\p{L}\p{N}](?:[\p{L}\p{N}-]{0,61}[\p{L}\p{N}])?\.)+[\p{L}]{2,24}",
    )
});

fn number(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// Which areas, groups and serials are never given out (20 CFR 422.103).
fn is_us_ssn(plain: &[u8]) -> bool {
    let (area, group, serial) = (number(&plain[..3]), number(&plain[3..5]), number(&plain[5..]));
    area != 0 && area != 666 && area < 900 && group != 0 && serial != 0
}

/// ISO 7064 MOD 11,10; of the first ten digits one appears twice or three times, and the others once at most.
fn is_de_steuer_id(plain: &[u8]) -> bool {
    let mut counts = [0_u8; 10];
    plain[..10].iter().for_each(|digit| counts[usize::from(digit - b'0')] += 1);
    let repeated: Vec<u8> = counts.into_iter().filter(|count| *count > 1).collect();
    let product = plain[..10].iter().fold(10, |product, digit| {
        let sum = (u32::from(digit - b'0') + product) % 10;
        (if sum == 0 { 10 } else { sum }) * 2 % 11
    });
    matches!(repeated[..], [2 | 3]) && (11 - product) % 10 == u32::from(plain[10] - b'0')
}

/// The key is 97 less the rest of the number; Corsica's letters stand for 19 and 18.
fn is_fr_nir(plain: &[u8]) -> bool {
    let mut digits = plain.to_vec();
    match digits[6].to_ascii_uppercase() {
        b'A' => (digits[5], digits[6]) = (b'1', b'9'),
        b'B' => (digits[5], digits[6]) = (b'1', b'8'),
        _ => {}
    }
    let month = number(&digits[3..5]);
    let is_month = matches!(month, 1..=12 | 20 | 30..=42 | 50..=99);
    is_month && 97 - number(&digits[..13]) % 97 == number(&digits[13..])
}

/// The letter follows from the number modulo 23; X, Y and Z stand for 0, 1 and 2.
fn is_es_dni(plain: &[u8]) -> bool {
    let (mut digits, letter) = (plain[..8].to_vec(), plain[8].to_ascii_uppercase());
    if let at @ b'X'..=b'Z' = digits[0].to_ascii_uppercase() {
        digits[0] = b'0' + (at - b'X');
    }
    let nth = usize::try_from(number(&digits) % 23).unwrap_or_default();
    b"TRWAGMYFPDXBNJZSQVHLCKE"[nth] == letter
}

fn is_br_cpf(plain: &[u8]) -> bool {
    let check = |count: usize| {
        let weights = (2..=count as u32 + 1).rev();
        let sum: u32 = plain[..count].iter().zip(weights).map(|(digit, weight)| u32::from(digit - b'0') * weight).sum();
        sum * 10 % 11 % 10
    };
    let digit = |at: usize| u32::from(plain[at] - b'0');
    plain.iter().any(|digit| digit != &plain[0]) && check(9) == digit(9) && check(10) == digit(10)
}

/// Keys and tokens: AWS, GitHub, GitLab, Slack, Anthropic, OpenAI, Google, Stripe, npm, Longhaul's own, JWT, private keys.
const SECRETS: [&str; 16] = [
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b",
    r"\bgithub_pat_[A-Za-z0-9_]{36,255}\b",
    r"\bglpat-[A-Za-z0-9_-]{20,255}\b",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}",
    r"\bxapp-[0-9]-[A-Za-z0-9-]{10,255}",
    r"hooks\.slack\.com/services/[A-Za-z0-9/_-]{20,255}",
    r"\bsk-ant-[A-Za-z0-9]{3,16}-[A-Za-z0-9_-]{20,255}",
    r"\bsk-(?:proj-|svcacct-|admin-|None-)?[A-Za-z0-9_-]{20,255}",
    r"\bAIza[A-Za-z0-9_-]{35}",
    r"\bGOCSPX-[A-Za-z0-9_-]{20,64}",
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,255}\b",
    r"\bnpm_[A-Za-z0-9]{36}\b",
    r"\blh_[A-Za-z0-9]{32,128}\b",
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\z)",
];

static SECRET_SHAPES: LazyLock<(RegexSet, Vec<Regex>)> = LazyLock::new(|| {
    let all = RegexSet::new(SECRETS).expect("invariant: patterns of ours");
    (all, SECRETS.iter().map(|pattern| regex(pattern)).collect())
});

fn secrets(text: &str, found: &mut Vec<Range<usize>>) {
    let (all, each) = &*SECRET_SHAPES;
    for nth in &all.matches(text) {
        found.extend(each[nth].find_iter(text).map(|one| one.range()));
    }
}
