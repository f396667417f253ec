//! The patterns of text fields: regular expressions of ECMA-262, as JSON Schema has them, on an engine that takes linear
//! time whatever the pattern.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// The longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 512;
/// The largest compiled pattern, in bytes. With it `^.{0,500}$` can be asked for, and `(a{1000}){1000}` cannot.
const PROGRAM_BYTES_MAX: usize = 1024 * 1024;
/// How deep groups may nest.
const NESTING_MAX: u32 = 32;
/// The longest text that is held against a pattern, in bytes; a longer one does not match.
pub const MATCHED_BYTES_MAX: usize = 4 * 1024;

/// `\s` of ECMA-262 (WhiteSpace and LineTerminator), for the inside of a class.
const SPACE: &str = r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";
/// What is not in [`SPACE`].
const NOT_SPACE: &str = r"\u{0}-\u{8}\u{e}-\u{1f}!-\u{9f}\u{a1}-\u{167f}\u{1681}-\u{1fff}\u{200b}-\u{2027}\u{202a}-\u{202e}\u{2030}-\u{205e}\u{2060}-\u{2fff}\u{3001}-\u{fefe}\u{ff00}-\u{10ffff}";
/// `\w` of ECMA-262.
const WORD: &str = "0-9A-Z_a-z";
/// What is not in [`WORD`].
const NOT_WORD: &str = r"\u{0}-/:-@\[-\^`\{-\u{10ffff}";
/// `\d` of ECMA-262.
const DIGIT: &str = "0-9";
/// What is not in [`DIGIT`].
const NOT_DIGIT: &str = r"\u{0}-/:-\u{10ffff}";

/// A pattern that was read.
#[derive(Debug, Clone)]
pub(super) struct Pattern(Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Pattern {
    /// Reads what both grammars, ECMA-262's with the `u` flag and the engine's, give the same meaning once it is
    /// translated; refuses the rest (look-around, back-references, modifiers, what is an error with that flag).
    pub(super) fn read(pattern: &str) -> Result<Self, &'static str> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err("it has more than 512 bytes");
        }
        let mut reader = Reader { rest: pattern.chars().peekable(), written: String::new(), names: BTreeSet::new() };
        reader.pattern()?;
        RegexBuilder::new(&reader.written)
            .size_limit(PROGRAM_BYTES_MAX)
            .nest_limit(NESTING_MAX)
            .build()
            .map(Self)
            .map_err(|_| "it is wrong, or too large")
    }

    /// Whether it matches anywhere in a text.
    pub(super) fn matches(&self, text: &str) -> bool {
        text.len() <= MATCHED_BYTES_MAX && self.0.is_match(text)
    }
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    /// The same pattern as the engine writes it. Groups capture nothing: nobody asks what they matched.
    written: String,
    names: BTreeSet<String>,
}

/// What stands before a quantifier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Nothing that could be repeated.
    Nothing,
    /// Something that can.
    Atom,
}

type Read<T> = Result<T, &'static str>;

const ENDS_EARLY: &str = "it ends too early";
const ESCAPE: &str = "it has an escape that is not supported";
const RANGE: &str = "it has a class with a wrong range";

impl Reader<'_> {
    fn pattern(&mut self) -> Read<()> {
        let mut last = Last::Nothing;
        while let Some(next) = self.rest.next() {
            last = match next {
                '^' | '$' | '|' => {
                    self.written.push(next);
                    Last::Nothing
                }
                '(' => {
                    self.group()?;
                    Last::Nothing
                }
                // Whether it closes anything is for the engine to say.
                ')' => {
                    self.written.push(')');
                    Last::Atom
                }
                '.' => {
                    self.written.push_str(r"[^\n\r\u{2028}\u{2029}]");
                    Last::Atom
                }
                '[' => self.class()?,
                '\\' => self.escape()?,
                '*' | '+' | '?' | '{' => {
                    if last == Last::Nothing {
                        return Err("it has a quantifier after nothing");
                    }
                    self.quantifier(next)?;
                    Last::Nothing
                }
                ']' | '}' => return Err("it has a bracket that closes nothing"),
                _ => {
                    self.literal(next);
                    Last::Atom
                }
            };
        }
        Ok(())
    }

    fn group(&mut self) -> Read<()> {
        self.written.push_str("(?:");
        if self.rest.next_if_eq(&'?').is_none() {
            return Ok(());
        }
        match self.rest.next() {
            Some(':') => Ok(()),
            Some('<') => {
                let mut name = String::new();
                while let Some(letter) = self.rest.next_if(|next| next.is_ascii_alphanumeric() || *next == '_') {
                    name.push(letter);
                }
                let is_name = name.starts_with(|first: char| !first.is_ascii_digit());
                if self.rest.next() != Some('>') || !is_name {
                    return Err("it looks behind, or has a group with a wrong name");
                }
                if self.names.insert(name) { Ok(()) } else { Err("it has two groups with one name") }
            }
            _ => Err("it looks ahead, or has a group that is not supported"),
        }
    }

    fn quantifier(&mut self, first: char) -> Read<()> {
        self.written.push(first);
        if first == '{' {
            let least = self.digits()?;
            self.written.push_str(&least);
            if self.rest.next_if_eq(&',').is_some() {
                self.written.push(',');
                if self.rest.peek() != Some(&'}') {
                    let most = self.digits()?;
                    self.written.push_str(&most);
                }
            }
            if self.rest.next() != Some('}') {
                return Err("it has a wrong quantifier");
            }
            self.written.push('}');
        }
        if self.rest.next_if_eq(&'?').is_some() {
            self.written.push('?');
        }
        Ok(())
    }

    fn digits(&mut self) -> Read<String> {
        let mut digits = String::new();
        while let Some(digit) = self.rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        if digits.is_empty() { Err("it has a wrong quantifier") } else { Ok(digits) }
    }

    fn escape(&mut self) -> Read<Last> {
        let next = self.rest.next().ok_or(ENDS_EARLY)?;
        match next {
            'b' => self.written.push_str(r"(?-u:\b)"),
            _ => {
                match set(next) {
                    Some(set) => write(&mut self.written, format_args!("[{set}]")),
                    None if matches!(next, 'p' | 'P') => self.property(next)?,
                    None => {
                        let character = self.character(next)?;
                        self.literal(character);
                    }
                }
                return Ok(Last::Atom);
            }
        }
        Ok(Last::Nothing)
    }

    /// The character that an escape stands for, from behind its first letter.
    fn character(&mut self, first: char) -> Read<char> {
        match first {
            't' => Ok('\t'),
            'n' => Ok('\n'),
            'v' => Ok('\u{b}'),
            'f' => Ok('\u{c}'),
            'r' => Ok('\r'),
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => Ok('\0'),
            'c' => match self.rest.next() {
                Some(letter) if letter.is_ascii_alphabetic() => Ok(char::from(letter as u8 % 32)),
                _ => Err(ESCAPE),
            },
            'x' => char::from_u32(self.hex(2)?).ok_or(ESCAPE),
            'u' if self.rest.next_if_eq(&'{').is_some() => {
                let mut value = 0_u32;
                let mut digits = 0;
                while let Some(digit) = self.rest.next_if(char::is_ascii_hexdigit) {
                    value = value.saturating_mul(16).saturating_add(digit.to_digit(16).unwrap_or_default());
                    digits += 1;
                }
                let closed = self.rest.next() == Some('}') && digits > 0;
                char::from_u32(value).filter(|_| closed).ok_or(ESCAPE)
            }
            'u' => match self.hex(4)? {
                high @ 0xD800..=0xDBFF => {
                    let pair = self.rest.next() == Some('\\') && self.rest.next() == Some('u');
                    match if pair { self.hex(4)? } else { 0 } {
                        low @ 0xDC00..=0xDFFF => {
                            char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)).ok_or(ESCAPE)
                        }
                        _ => Err(ESCAPE),
                    }
                }
                value => char::from_u32(value).ok_or(ESCAPE),
            },
            '^' | '$' | '\\' | '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '/' => Ok(first),
            _ => Err(ESCAPE),
        }
    }

    fn hex(&mut self, digits: u32) -> Read<u32> {
        (0..digits).try_fold(0, |value, _| {
            let digit = self.rest.next().and_then(|next| next.to_digit(16)).ok_or(ESCAPE)?;
            Ok(value * 16 + digit)
        })
    }

    /// `\p{…}`, whose names both grammars take from Unicode.
    fn property(&mut self, first: char) -> Read<()> {
        if self.rest.next() != Some('{') {
            return Err(ESCAPE);
        }
        write(&mut self.written, format_args!("\\{first}{{"));
        loop {
            let next = self.rest.next().ok_or(ENDS_EARLY)?;
            self.written.push(next);
            match next {
                '}' => return Ok(()),
                'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '=' => {}
                _ => return Err(ESCAPE),
            }
        }
    }

    fn class(&mut self) -> Read<Last> {
        self.written.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.written.push('^');
        }
        if self.rest.peek() == Some(&']') {
            return Err("it has an empty class");
        }
        loop {
            let from = match self.class_item()? {
                ClassItem::End => {
                    self.written.push(']');
                    return Ok(Last::Atom);
                }
                ClassItem::Set => {
                    // `[\w-]` ends in a hyphen; `[\w-a]` is an error with the `u` flag.
                    let mut ahead = self.rest.clone();
                    if ahead.next() == Some('-') && ahead.next() != Some(']') {
                        return Err(RANGE);
                    }
                    continue;
                }
                ClassItem::Character(from) => from,
            };
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.peek().is_some_and(|next| *next != ']') {
                self.rest.next();
                match self.class_item()? {
                    // Whether they are in order is for the engine to say.
                    ClassItem::Character(to) => {
                        self.literal(from);
                        self.written.push('-');
                        self.literal(to);
                    }
                    ClassItem::Set | ClassItem::End => return Err(RANGE),
                }
            } else {
                self.literal(from);
            }
        }
    }

    fn class_item(&mut self) -> Read<ClassItem> {
        match self.rest.next().ok_or(ENDS_EARLY)? {
            ']' => Ok(ClassItem::End),
            '\\' => {
                let next = self.rest.next().ok_or(ENDS_EARLY)?;
                match next {
                    'b' => Ok(ClassItem::Character('\u{8}')),
                    '-' => Ok(ClassItem::Character('-')),
                    'p' | 'P' => self.property(next).map(|()| ClassItem::Set),
                    _ => match set(next) {
                        Some(set) => {
                            self.written.push_str(set);
                            Ok(ClassItem::Set)
                        }
                        None => self.character(next).map(ClassItem::Character),
                    },
                }
            }
            next => Ok(ClassItem::Character(next)),
        }
    }

    /// A character that stands for itself, in a class as well, whatever the engine's syntax.
    fn literal(&mut self, character: char) {
        if character.is_ascii_alphanumeric() {
            self.written.push(character);
        } else {
            write(&mut self.written, format_args!("\\u{{{:x}}}", u32::from(character)));
        }
    }
}

enum ClassItem {
    End,
    /// Written already.
    Set,
    /// To be written.
    Character(char),
}

/// The inside of the class that a letter stands for.
fn set(letter: char) -> Option<&'static str> {
    match letter {
        'd' => Some(DIGIT),
        'D' => Some(NOT_DIGIT),
        's' => Some(SPACE),
        'S' => Some(NOT_SPACE),
        'w' => Some(WORD),
        'W' => Some(NOT_WORD),
        _ => None,
    }
}

fn write(to: &mut String, what: std::fmt::Arguments<'_>) {
    to.write_fmt(what).expect("invariant: a string takes all that is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_what_it_means_in_ecma_262() {
        let all = |pattern: &str, yes: &[&str], no: &[&str]| {
            let read = Pattern::read(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            for text in yes {
                assert!(read.matches(text), "{pattern} on {text:?}");
            }
            for text in no {
                assert!(!read.matches(text), "{pattern} on {text:?}");
            }
        };
        all("b", &["abc"], &["xyz"]);
        all("^[A-Z]{2}-\\d{4}$", &["DE-0815"], &["DE-٠٨١٥", "XDE-0815", "DE-08155", "DE-0815\n"]);
        all(r"^\w{1,500}$", &["a_9"], &["", "é", "a b"]);
        all(r"^\W$", &["é", " ", "`", "\u{10ffff}"], &["_", "a", "0", "Z"]);
        all(r"^\s\S$", &["\u{a0}x", "\u{feff}é", "\u{2029}\u{200b}"], &["  ", "x ", "\u{85}x"]);
        all(r"^[\s\d]+$", &["1\u{3000}2"], &["1a"]);
        all(r"^[^\S]$", &[" "], &["a"]);
        all(r"^[\D]$", &["a", "/", ":", "٣"], &["5"]);
        all("^.$", &["a", "\u{85}", "😀"], &["\n", "\r", "\u{2028}", "\u{2029}"]);
        all(r"\bcat\b", &["a cat.", "écat"], &["cats", "_cat"]);
        all(r"^\u0041\x42\u{1F600}\uD83D\uDE00\cJ\0$", &["AB😀😀\n\0"], &["AB"]);
        all("^[[&&a]+$", &["[&a"], &["b"]);
        all("^[~~-]$", &["~", "-"], &["a"]);
        all("^[+--]$", &["+", ",", "-"], &["a", "*"]);
        all(r"^[\w\-.]+@x$", &["a-b.c@x"], &["a b@x"]);
        all("^(?:a|b)(?<n>c)??(d){2,}e{1}f{0,1}$", &["acdde", "bdddef"], &["ade", "addeff"]);
        all("^(a+)+$", &["aaaa"], &["aaaa!"]);
        all(r"^\p{Lu}\P{L}\p{Script=Greek}$", &["É1α"], &["é1α", "ÉÉα", "É1a"]);
        all("^#x y$", &["#x y"], &["xy"]);
        all("", &["", "x"], &[]);
    }

    #[test]
    fn what_the_engines_would_read_differently_or_not_at_all_is_refused() {
        let patterns = [
            "(x+x+)+y(?<!z)",
            "(?=a)b",
            "(?!a)b",
            "(?<=a)b",
            r"(a)\1",
            r"(?<n>a)\k<n>",
            "(?<n>a)(?<n>b)",
            "(?<1>a)",
            "(?i)a",
            "(?i:a)",
            "(?P<n>a)",
            "(?x: a)",
            "(",
            ")",
            "a)",
            "(a",
            "[",
            "[]",
            "[^]",
            "[a",
            "[z-a]",
            r"[\w-a]",
            r"[a-\d]",
            "*",
            "a**",
            "a++",
            "a{2}{3}",
            "^*",
            "(?:*)",
            "|+",
            "a{",
            "a{,2}",
            "a{2,1}",
            "a{1",
            "a{x}",
            "{",
            "}",
            "]",
            "a]",
            "\\",
            r"\a",
            r"\A",
            r"\z",
            r"\Z",
            r"\Q",
            r"\e",
            r"\_",
            r"\-",
            r"\ ",
            r"\01",
            r"\1",
            r"\x4",
            r"\xZZ",
            r"\x{41}",
            r"\u00",
            r"\u{}",
            r"\u{110000}",
            r"\u{41",
            r"\uD83D",
            r"\uDE00",
            r"\c1",
            r"\B",
            r"\pL",
            r"\p{",
            r"\p{^L}",
            r"\p{Nonsense}",
            r"[\B]",
            "(a{1000}){1000}",
            "a{1000000}",
            "a{99999999999}",
        ];
        for pattern in patterns {
            assert!(Pattern::read(pattern).is_err(), "{pattern}");
        }
        assert!(Pattern::read(&"(".repeat(250)).is_err());
        assert!(Pattern::read(&format!("{}{}", "(".repeat(250), ")".repeat(250))).is_err());
        assert!(Pattern::read(&"a".repeat(PATTERN_BYTES_MAX)).is_ok());
        assert_eq!(Pattern::read(&"a".repeat(PATTERN_BYTES_MAX + 1)), Err("it has more than 512 bytes"));
    }

    #[test]
    fn forms_as_people_write_them_are_within_the_limits() {
        for pattern in ["^.{0,500}$", r"^[\p{L}\p{M}' -]{1,20}$", r"^[^\s@]+@[^\s@]+\.[^\s@]+$", r"^\+?[1-9]\d{1,14}$"]
        {
            Pattern::read(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
        }
    }

    #[test]
    fn a_text_too_long_to_be_held_against_a_pattern_does_not_match() {
        let pattern = Pattern::read("^a*$").unwrap();
        assert!(pattern.matches(&"a".repeat(MATCHED_BYTES_MAX)));
        assert!(!pattern.matches(&"a".repeat(MATCHED_BYTES_MAX + 1)));
    }
}
