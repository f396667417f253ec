//! Words as they are compared: whatever their case, accents, joints and letters that look alike.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Joined, the words of a phrase are looked for at the end of a longer word if they have so many bytes: `myapikey`.
const JOINED_BYTES_MIN: usize = 6;
/// So many letters one by one are a word: `p.i.n`.
const SPELLED_MIN: usize = 3;

/// A run of letters or of digits, folded. Empty where something innocent was.
#[derive(Clone)]
pub(super) struct Word {
    pub(super) text: String,
    /// Whether no space is between it and the word before.
    pub(super) glued: bool,
}

/// One or more words in a row.
pub(super) struct Phrase {
    /// Each with whether any ending fits.
    words: Vec<(String, bool)>,
    pub(super) joined: String,
}

impl Phrase {
    pub(super) fn of(written: &str) -> Self {
        let part = |part: &str| {
            let (stem, open) = part.strip_suffix('*').map_or((part, false), |stem| (stem, true));
            let words = split(stem);
            let last = words.len().saturating_sub(1);
            words.into_iter().enumerate().map(move |(at, word)| (word.text, open && at == last)).collect::<Vec<_>>()
        };
        let words: Vec<_> = written.split(' ').flat_map(part).collect();
        let joined = words.iter().map(|(word, _)| word.as_str()).collect();
        Self { words, joined }
    }

    pub(super) fn written(&self) -> String {
        self.words.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Whether it stands anywhere in these words.
    pub(super) fn is_in(&self, words: &[Word]) -> bool {
        (0..words.len()).any(|at| self.at(&words[at..]).is_some())
    }

    /// Where it begins, if these words end in it.
    pub(super) fn ends(&self, words: &[Word]) -> Option<usize> {
        [self.words.len(), 1]
            .into_iter()
            .filter_map(|len| words.len().checked_sub(len))
            .find(|start| self.at(&words[*start..]) == Some(words.len() - start))
    }

    /// Of how many of these words it is the beginning.
    pub(super) fn at(&self, words: &[Word]) -> Option<usize> {
        let (last, open) = self.words.last()?;
        let is_last = |word: &str| {
            word.strip_prefix(last.as_str()).is_some_and(|ending| *open || matches!(ending, "" | "s" | "es"))
        };
        let before = self.words.len() - 1;
        let in_row = words.len() > before
            && self.words[..before]
                .iter()
                .zip(words)
                .all(|((text, open), word)| word.text == *text || *open && word.text.starts_with(text))
            && is_last(&words[before].text);
        if in_row {
            return Some(self.words.len());
        }
        let first = words.first()?.text.as_str();
        let singular = first.strip_suffix('s').unwrap_or(first);
        let joined = if self.joined.len() < JOINED_BYTES_MIN {
            before > 0 && singular == self.joined
        } else {
            before > 0 && singular.ends_with(&self.joined)
        };
        joined.then_some(1)
    }
}

/// The words of a text, folded so that spellings that look alike are alike.
pub(super) fn split(text: &str) -> Vec<Word> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Class {
        Upper,
        Other,
        Digit,
    }
    let mut words = Vec::<Word>::new();
    let mut last: Option<Class> = None;
    let mut spaced = true;
    let mut chars = text.nfkd().filter(|character| !is_invisible(*character)).peekable();
    while let Some(character) = chars.next() {
        if !character.is_alphanumeric() {
            // `card #` says the word; in `p#a#s#s` it is a joint like any other.
            let ends_a_word = chars.peek().is_none_or(|next| !next.is_alphanumeric());
            let is_behind_a_word = |word: &Word| word.text.chars().nth(1).is_some_and(char::is_alphabetic);
            if character == '#' && ends_a_word && words.last().is_none_or(is_behind_a_word) {
                words.push(Word { text: "number".to_owned(), glued: !spaced });
            }
            last = None;
            spaced |= character.is_whitespace();
            continue;
        }
        let class = if character.is_numeric() {
            Class::Digit
        } else if character.is_uppercase() {
            Class::Upper
        } else {
            Class::Other
        };
        // `newPin`, `2fa`, and the last capital of `PINCode`.
        let begins = match (last, class) {
            (None, _) => true,
            (Some(Class::Other), Class::Upper) => true,
            (Some(Class::Upper), Class::Upper) => chars.peek().is_some_and(|next| next.is_lowercase()),
            (Some(before), _) => (before == Class::Digit) != (class == Class::Digit),
        };
        if begins {
            words.push(Word { text: String::new(), glued: !spaced });
        }
        if let Some(word) = words.last_mut() {
            character.to_lowercase().for_each(|lower| fold(lower, &mut word.text));
        }
        spaced = false;
        last = Some(class);
    }
    words
}

/// Marks (accents, vowel signs) and what shows nothing at all (Unicode's `Default_Ignorable_Code_Point`).
fn is_invisible(character: char) -> bool {
    is_combining_mark(character)
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fff8}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Letters that decompose to none of ours but look or are read like one.
fn fold(character: char, to: &mut String) {
    let alike = match character {
        'ß' => "ss",
        'æ' => "ae",
        'œ' => "oe",
        'ø' => "o",
        'ł' => "l",
        'đ' | 'ԁ' => "d",
        'ı' | 'і' | 'ι' => "i",
        'ɑ' | 'а' | 'α' => "a",
        'в' | 'β' => "b",
        'с' => "c",
        'е' | 'ε' => "e",
        'ɡ' => "g",
        'н' | 'һ' | 'η' => "h",
        'ј' => "j",
        'к' | 'κ' => "k",
        'м' | 'μ' => "m",
        'о' | 'ο' => "o",
        'р' | 'ρ' => "p",
        'ѕ' => "s",
        'т' | 'τ' => "t",
        'υ' => "u",
        'ν' => "v",
        'ԝ' => "w",
        'х' | 'χ' => "x",
        'у' => "y",
        _ => return to.push(character),
    };
    to.push_str(alike);
}

/// The letter that a digit is written for.
pub(super) fn unleet(character: char) -> char {
    match character {
        '0' => 'o',
        '1' => 'i',
        '3' => 'e',
        '4' => 'a',
        '5' => 's',
        '7' => 't',
        _ => character,
    }
}

/// Makes a word of letters that stand alone.
pub(super) fn join_spelled(words: Vec<Word>) -> Vec<Word> {
    let is_letter = |word: &Word| word.text.len() == 1 && word.text.bytes().all(|byte| byte.is_ascii_lowercase());
    let mut joined = Vec::with_capacity(words.len());
    let mut rest = words.into_iter().peekable();
    while let Some(word) = rest.next() {
        let mut run = vec![word];
        while is_letter(&run[0])
            && let Some(next) = rest.next_if(is_letter)
        {
            run.push(next);
        }
        if run.len() >= SPELLED_MIN {
            let glued = run[0].glued;
            joined.push(Word { text: run.into_iter().map(|word| word.text).collect(), glued });
        } else {
            joined.append(&mut run);
        }
    }
    joined
}
