//! A strict reader of request bodies: JSON's grammar and our limits, checked once, before anything else looks at them.
//!
//! Written by hand because no parser at hand checks what is kept as raw text: serde_json lets a
//! [`RawValue`](serde_json::value::RawValue) or an ignored member nest without end and repeat its keys, so that the
//! policy might see another value than the tool. It does not recurse, so no nesting can exhaust the stack.
//!
//! On its way it notes where the members of the outer object are, and those of one of its members, so that an envelope
//! and its `params` need no second reading.

use std::borrow::Cow;

/// How deep arrays and objects may nest.
pub const DEPTH_MAX: usize = 64;
/// How many keys an object may have.
pub const KEYS_MAX: usize = 10_000;
/// The longest string, in bytes as written.
pub const STRING_BYTES_MAX: usize = 1024 * 1024;
/// The longest number, in bytes as written.
pub const NUMBER_BYTES_MAX: usize = 64;

/// Objects with at most so many keys are checked for repeated ones pair by pair; sorting pays later.
const PAIRWISE_KEYS_MAX: usize = 8;

/// What is wrong with a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is not JSON.
    Syntax,
    /// It is JSON of a kind that we do not read.
    Limit(Limit),
}

/// A limit that a body breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Nested deeper than [`DEPTH_MAX`].
    Depth,
    /// More than [`KEYS_MAX`] keys in an object.
    Keys,
    /// The same key twice in an object, however it is spelled.
    RepeatedKey,
    /// A string longer than [`STRING_BYTES_MAX`].
    String,
    /// A number longer than [`NUMBER_BYTES_MAX`], or beyond what a double can hold.
    Number,
}

impl Limit {
    /// A sentence for the client.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Depth => "Invalid Request: nested too deeply",
            Self::Keys => "Invalid Request: too many keys in an object",
            Self::RepeatedKey => "Invalid Request: a key is repeated in an object",
            Self::String => "Invalid Request: a string is too long",
            Self::Number => "Invalid Request: a number is beyond a double, or longer than 64 characters",
        }
    }
}

/// A member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name, decoded.
    pub name: Cow<'a, str>,
    /// Its value, as written.
    pub value: &'a str,
}

/// What was found, up to the first fault.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found<'a> {
    /// Whether the text is an object.
    pub is_object: bool,
    /// The members of that object.
    pub members: Vec<Member<'a>>,
    /// The members of its member with the name asked for, if that is an object.
    pub inner: Vec<Member<'a>>,
}

/// Reads `body` and notes the members of its outer object and of that object's member `inner`.
pub fn scan<'a>(body: &'a [u8], inner: &str) -> (Found<'a>, Result<(), Fault>) {
    // The library checks UTF-8 many bytes at a time; what follows then looks at ASCII only.
    let Ok(text) = std::str::from_utf8(body) else { return (Found::default(), Err(Fault::Syntax)) };
    let mut scanner =
        Scanner { text, bytes: body, at: 0, levels: Vec::new(), keys: Vec::new(), found: Found::default() };
    let result = scanner.document(inner);
    (scanner.found, result)
}

/// An array or object that is still open.
struct Level<'a> {
    /// For an object: where its keys start in the list of keys.
    keys_from: Option<usize>,
    /// Where its members are noted, and the one that is being read.
    noted: Option<Noted>,
    reading: Option<(Cow<'a, str>, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Noted {
    Outer,
    Inner,
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    levels: Vec<Level<'a>>,
    /// The keys of all open objects, the innermost last.
    keys: Vec<Cow<'a, str>>,
    found: Found<'a>,
}

impl<'a> Scanner<'a> {
    fn document(&mut self, inner: &str) -> Result<(), Fault> {
        self.space();
        self.found.is_object = self.peek() == Some(b'{');
        loop {
            // Here a value starts.
            if self.value(inner)? {
                continue;
            }
            // Here one has ended.
            loop {
                if let Some(level) = self.levels.last_mut()
                    && let (Some(noted), Some((name, start))) = (level.noted, level.reading.take())
                {
                    let member = Member { name, value: &self.text[start..self.at] };
                    match noted {
                        Noted::Outer => self.found.members.push(member),
                        Noted::Inner => self.found.inner.push(member),
                    }
                }
                self.space();
                let Some(&Level { keys_from, .. }) = self.levels.last() else {
                    return if self.at == self.bytes.len() { Ok(()) } else { Err(Fault::Syntax) };
                };
                match (self.next(), keys_from) {
                    (Some(b','), Some(_)) => {
                        self.space();
                        self.key()?;
                        break;
                    }
                    (Some(b','), None) => {
                        self.space();
                        break;
                    }
                    (Some(b'}'), Some(from)) => self.close_object(from)?,
                    (Some(b']'), None) => {
                        self.levels.pop();
                    }
                    _ => return Err(Fault::Syntax),
                }
            }
        }
    }

    /// Reads a value, or the beginning of one that has others in it; true if it stands before the first of those.
    fn value(&mut self, inner: &str) -> Result<bool, Fault> {
        match self.next().ok_or(Fault::Syntax)? {
            b'{' => {
                let noted = match self.levels.as_slice() {
                    [] => Some(Noted::Outer),
                    [Level { noted: Some(Noted::Outer), reading: Some((name, _)), .. }] if name == inner => {
                        Some(Noted::Inner)
                    }
                    _ => None,
                };
                self.open(Level { keys_from: Some(self.keys.len()), noted, reading: None })?;
                self.space();
                if self.peek() == Some(b'}') {
                    self.at += 1;
                    self.levels.pop();
                    return Ok(false);
                }
                self.key()?;
                Ok(true)
            }
            b'[' => {
                self.open(Level { keys_from: None, noted: None, reading: None })?;
                self.space();
                if self.peek() == Some(b']') {
                    self.at += 1;
                    self.levels.pop();
                    return Ok(false);
                }
                Ok(true)
            }
            b'"' => self.string().map(|_| false),
            first @ (b'-' | b'0'..=b'9') => self.number(first).map(|()| false),
            b't' => self.literal("rue"),
            b'f' => self.literal("alse"),
            b'n' => self.literal("ull"),
            _ => Err(Fault::Syntax),
        }
    }

    fn open(&mut self, level: Level<'a>) -> Result<(), Fault> {
        if self.levels.len() == DEPTH_MAX {
            return Err(Fault::Limit(Limit::Depth));
        }
        self.levels.push(level);
        Ok(())
    }

    fn close_object(&mut self, keys_from: usize) -> Result<(), Fault> {
        let keys = &mut self.keys[keys_from..];
        let repeated = if keys.len() <= PAIRWISE_KEYS_MAX {
            keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key))
        } else {
            // Sorted rather than hashed: without chance, a hash could be made to collide.
            keys.sort_unstable();
            keys.windows(2).any(|pair| pair[0] == pair[1])
        };
        if repeated {
            return Err(Fault::Limit(Limit::RepeatedKey));
        }
        self.keys.truncate(keys_from);
        self.levels.pop();
        Ok(())
    }

    /// Reads a key and its colon, up to where its value starts.
    fn key(&mut self) -> Result<(), Fault> {
        let start = self.at;
        if self.next() != Some(b'"') {
            return Err(Fault::Syntax);
        }
        let escaped = self.string()?;
        let written = &self.text[start..self.at];
        let key = if escaped {
            Cow::Owned(serde_json::from_str(written).map_err(|_| Fault::Syntax)?)
        } else {
            Cow::Borrowed(&written[1..written.len() - 1])
        };
        self.space();
        if self.next() != Some(b':') {
            return Err(Fault::Syntax);
        }
        self.space();
        let level = self.levels.last_mut().expect("invariant: a key is read in an object");
        let from = level.keys_from.expect("invariant: a key is read in an object");
        if level.noted.is_some() {
            level.reading = Some((key.clone(), self.at));
        }
        if self.keys.len() - from == KEYS_MAX {
            return Err(Fault::Limit(Limit::Keys));
        }
        self.keys.push(key);
        Ok(())
    }

    /// Reads a string from behind its opening quote; true if it has escapes.
    fn string(&mut self) -> Result<bool, Fault> {
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at += plain_prefix(&self.bytes[self.at..]);
            match self.next() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                // A control character, or the end.
                _ => return Err(Fault::Syntax),
            }
        }
        if self.at - 1 - start > STRING_BYTES_MAX { Err(Fault::Limit(Limit::String)) } else { Ok(escaped) }
    }

    fn escape(&mut self) -> Result<(), Fault> {
        match self.next() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
            Some(b'u') => match self.hex4()? {
                // A high surrogate must be followed by a low one.
                0xD800..=0xDBFF => {
                    let pair = self.next() == Some(b'\\') && self.next() == Some(b'u');
                    if pair && matches!(self.hex4()?, 0xDC00..=0xDFFF) { Ok(()) } else { Err(Fault::Syntax) }
                }
                0xDC00..=0xDFFF => Err(Fault::Syntax),
                _ => Ok(()),
            },
            _ => Err(Fault::Syntax),
        }
    }

    fn hex4(&mut self) -> Result<u32, Fault> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(Fault::Syntax)?;
            value = value << 4 | digit;
        }
        Ok(value)
    }

    /// Reads a number from behind its first byte.
    fn number(&mut self, first: u8) -> Result<(), Fault> {
        let start = self.at - 1;
        let leading = if first == b'-' { self.next() } else { Some(first) };
        match leading {
            Some(b'0') => {}
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(Fault::Syntax),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        let has_exponent = matches!(self.peek(), Some(b'e' | b'E'));
        if has_exponent {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        let written = &self.text[start..self.at];
        // Without an exponent, a number this short is far within a double's range.
        let finite = || !has_exponent || written.parse::<f64>().is_ok_and(f64::is_finite);
        if written.len() <= NUMBER_BYTES_MAX && finite() { Ok(()) } else { Err(Fault::Limit(Limit::Number)) }
    }

    fn some_digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        self.digits();
        if self.at == start { Err(Fault::Syntax) } else { Ok(()) }
    }

    fn digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn literal(&mut self, rest: &str) -> Result<bool, Fault> {
        if !self.bytes[self.at..].starts_with(rest.as_bytes()) {
            return Err(Fault::Syntax);
        }
        self.at += rest.len();
        Ok(false)
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }
}

/// How many bytes there are before the first quote, backslash or control character: eight at a time.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    // The lowest bit set by this classic test is always right; those above it may be false.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let mut at = 0;
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let special =
            below(word, 0x20) | below(word ^ (ONES * u64::from(b'"')), 1) | below(word ^ (ONES * u64::from(b'\\')), 1);
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1F);
    at + bytes[at..].iter().position(special).unwrap_or(bytes.len() - at)
}
