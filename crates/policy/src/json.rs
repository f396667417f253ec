//! JSON as its tokens, each with its place, so that everything between them can stay as it came.
//!
//! The text has been checked where it came in; what is no JSON after all is still looked through as far as it goes.

use std::borrow::Cow;
use std::ops::Range;

/// A token of interest, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// `{` or `[`
    Open,
    /// `}` or `]`
    Close,
    /// The name of a member, in quotes.
    Key(Range<usize>),
    /// A string, in quotes.
    Text(Range<usize>),
    /// A number.
    Number(Range<usize>),
}

/// The tokens of a text, in order.
pub(crate) struct Tokens<'a> {
    json: &'a [u8],
    at: usize,
}

pub(crate) fn tokens(json: &[u8]) -> Tokens<'_> {
    Tokens { json, at: 0 }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        loop {
            let start = self.at;
            self.at += 1;
            match *self.json.get(start)? {
                b'{' | b'[' => return Some(Token::Open),
                b'}' | b']' => return Some(Token::Close),
                b'"' => {
                    let mut end = self.at;
                    while let Some(&byte) = self.json.get(end) {
                        match byte {
                            b'"' => break,
                            b'\\' => end += 2,
                            _ => end += 1,
                        }
                    }
                    self.at = (end + 1).min(self.json.len());
                    let is_key = self.json[self.at..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
                    let place = start..self.at;
                    return Some(if is_key { Token::Key(place) } else { Token::Text(place) });
                }
                b'-' | b'0'..=b'9' => {
                    let of_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                    self.at += self.json[self.at..].iter().take_while(|byte| of_number(byte)).count();
                    return Some(Token::Number(start..self.at));
                }
                _ => {}
            }
        }
    }
}

/// What a string says, spelt so that the same digits look the same, and where each byte of that was written.
pub(crate) struct Said<'a> {
    /// Escapes are resolved; digits, dashes and spaces of other scripts are the ASCII ones; what has no width is gone.
    pub(crate) text: Cow<'a, str>,
    /// For each byte of the text, and for its end, the place in the JSON text; `None` if it was written as it is.
    places: Option<Vec<usize>>,
    start: usize,
}

impl<'a> Said<'a> {
    /// Reads a string in quotes at `place`.
    pub(crate) fn string(json: &'a [u8], place: &Range<usize>) -> Self {
        let start = place.start + 1;
        let end = place.end.saturating_sub(1).max(start);
        let inside = &json[start.min(json.len())..end.min(json.len())];
        match std::str::from_utf8(inside) {
            Ok(text) if text.is_ascii() && !text.contains('\\') => {
                Self { text: Cow::Borrowed(text), places: None, start }
            }
            _ => Self::spelt(&String::from_utf8_lossy(inside), start),
        }
    }

    /// Text that was not in a JSON string.
    pub(crate) fn plain(text: &'a str) -> Self {
        Self { text: Cow::Borrowed(text), places: None, start: 0 }
    }

    fn spelt(inside: &str, start: usize) -> Self {
        let (mut text, mut places) = (String::with_capacity(inside.len()), Vec::with_capacity(inside.len() + 1));
        let mut rest = inside;
        while let Some(first) = rest.chars().next() {
            let at = start + inside.len() - rest.len();
            let (said, length) = if first == '\\' { escaped(rest) } else { (first, first.len_utf8()) };
            rest = rest.get(length..).unwrap_or_default();
            if let Some(plain) = plain(said) {
                text.push(plain);
                places.extend(std::iter::repeat_n(at, plain.len_utf8()));
            }
        }
        places.push(start + inside.len());
        Self { text: Cow::Owned(text), places: Some(places), start }
    }

    /// Where in the JSON text a part of this text was written.
    pub(crate) fn place(&self, part: &Range<usize>) -> Range<usize> {
        match &self.places {
            None => self.start + part.start..self.start + part.end,
            Some(places) => places[part.start]..places[part.end],
        }
    }
}

/// The character of an escape at the start of `text`, and how long the escape is.
fn escaped(text: &str) -> (char, usize) {
    let unit = |at: usize| text.get(at..at + 4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    match text.as_bytes().get(1) {
        Some(b'n') => ('\n', 2),
        Some(b't') => ('\t', 2),
        Some(b'r') => ('\r', 2),
        Some(b'b') => ('\u{8}', 2),
        Some(b'f') => ('\u{c}', 2),
        Some(b'u') => match unit(2) {
            Some(high @ 0xd800..0xdc00) if text.get(6..8) == Some("\\u") => match unit(8) {
                Some(low @ 0xdc00..0xe000) => {
                    let both = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                    (char::from_u32(both).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
                }
                _ => (char::REPLACEMENT_CHARACTER, 6),
            },
            Some(unit) => (char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), 6),
            None => (char::REPLACEMENT_CHARACTER, 2),
        },
        Some(other) if other.is_ascii() => (char::from(*other), 2),
        _ => (char::REPLACEMENT_CHARACTER, 1),
    }
}

/// The zeros of scripts whose digits follow them.
const ZEROS: [u32; 8] = [0x660, 0x6f0, 0x966, 0x9e6, 0xff10, 0x1d7ce, 0x1d7d8, 0x1d7ec];

/// The character that a detector is to see; none for what cannot be seen.
fn plain(said: char) -> Option<char> {
    match said {
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' => None,
        '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{ff0d}' => Some('-'),
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => Some(' '),
        '\u{ff20}' => Some('@'),
        other if other.is_ascii() => Some(other),
        other => {
            let digit = ZEROS.iter().find_map(|zero| u32::from(other).checked_sub(*zero).filter(|digit| *digit < 10));
            Some(digit.and_then(|digit| char::from_digit(digit, 10)).unwrap_or(other))
        }
    }
}

/// Digits of a whole number beyond which none is written out.
const DIGITS_MAX: usize = 40;

/// A number with a point or an exponent that is whole, without them.
pub(crate) fn whole(number: &str) -> Option<String> {
    let number = number.strip_prefix('-').unwrap_or(number);
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i64 = exponent.parse().ok()?;
    let digits = format!("{before}{after}");
    // How many of the digits are before the point.
    let point = usize::try_from(i64::try_from(before.len()).ok()?.checked_add(exponent)?).ok()?;
    let (mut whole, rest) = digits.split_at_checked(point).map_or((digits.clone(), ""), |(a, b)| (a.to_owned(), b));
    if point > DIGITS_MAX || rest.bytes().any(|digit| digit != b'0') {
        return None;
    }
    while whole.len() < point {
        whole.push('0');
    }
    Some(whole.trim_start_matches('0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_their_places() {
        let json = br#"{ "a" : [1, -2.5e3, "x\"]"], "b":{"c":null,"d":true} }"#;
        let show = |token: Token| {
            let text = |place: Range<usize>| String::from_utf8_lossy(&json[place]).into_owned();
            match token {
                Token::Open => "<".into(),
                Token::Close => ">".into(),
                Token::Key(place) => format!("key {}", text(place)),
                Token::Text(place) => format!("text {}", text(place)),
                Token::Number(place) => format!("number {}", text(place)),
            }
        };
        let all: Vec<String> = tokens(json).map(show).collect();
        assert_eq!(
            all,
            [
                "<",
                "key \"a\"",
                "<",
                "number 1",
                "number -2.5e3",
                "text \"x\\\"]\"",
                ">",
                "key \"b\"",
                "<",
                "key \"c\"",
                "key \"d\"",
                ">",
                ">"
            ]
        );
    }

    #[test]
    fn what_is_no_json_is_looked_through_as_far_as_it_goes() {
        for broken in ["", "\"", "\"a\\", "{\"a", "-", "\"\\u12", "\"\\ud83d\\u", "\"\u{e9}\\"] {
            for token in tokens(broken.as_bytes()) {
                if let Token::Key(place) | Token::Text(place) = token {
                    let said = Said::string(broken.as_bytes(), &place);
                    said.place(&(0..said.text.len()));
                }
            }
        }
    }

    #[test]
    fn a_string_is_read_as_it_is_meant_and_its_parts_are_found_as_they_are_written() {
        let json = "\"a\\u0034\\n\u{ff11}\\ud83d\\ude00\u{200b}z\"";
        let said = Said::string(json.as_bytes(), &(0..json.len()));
        assert_eq!(said.text, "a4\n1\u{1f600}z");
        assert_eq!(&json[said.place(&(1..2))], "\\u0034");
        assert_eq!(&json[said.place(&(3..4))], "\u{ff11}");
        assert_eq!(&json[said.place(&(4..8))], "\\ud83d\\ude00\u{200b}");
        assert_eq!(&json[said.place(&(0..said.text.len()))], &json[1..json.len() - 1]);
        let plain = "\"abc\"";
        assert_eq!(&plain[Said::string(plain.as_bytes(), &(0..5)).place(&(1..2))], "b");
    }

    #[test]
    fn a_whole_number_is_written_out() {
        for (number, whole_number) in [
            ("4.111e3", Some("4111")),
            ("41110E-1", Some("4111")),
            ("4111.00", Some("4111")),
            ("-4e2", Some("400")),
            ("0.4111e4", Some("4111")),
            ("4.5", None),
            ("1e400", None),
            ("1e-5", None),
            ("1e99999999999999999999", None),
        ] {
            assert_eq!(whole(number).as_deref(), whole_number, "{number}");
        }
    }
}
