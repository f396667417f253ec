//! Whether a form asks for a secret: a password, a token, a key, a card. For these a server must ask to open its own page
//! (MCP 2025-11-25 and 2026-07-28, client/elicitation, "Security Considerations").
//!
//! Words cannot be judged for certain. What is plainly asked for is refused, in whatever spelling; who means harm can
//! still ask for "the word you use on Monday". A field that leaves a choice between given values, or yes and no, can
//! carry no secret, so its labels are read like the message: they must ask in so many words.

mod spelling;
mod words;

use std::sync::LazyLock;

use self::spelling::{Phrase, Word, join_spelled, split, unleet};
use super::Form;
use super::form::{Choice, Field, Kind};

/// A sentence of so many words or fewer can be a label: `Your PIN?`
const LABEL_WORDS_MAX: usize = 4;
/// Characters of a field's name in an objection.
const NAME_CHARS_MAX: usize = 64;

/// The field, or the words, that ask for one.
pub(super) fn look(message: &str, form: &Form) -> Option<String> {
    let has_address = form.fields.iter().any(|field| {
        let name = Text::read(&field.name, false);
        name.words.last().is_some_and(|last| LEXICON.address.contains(&last.text))
    });
    let read = |text: &str| Text::read(text, has_address);
    let about = [Some(message), form.title.as_deref(), form.description.as_deref()];
    about.into_iter().flatten().find_map(|text| asked(text, &read)).or_else(|| {
        form.fields.iter().find_map(|field| {
            let found = in_field(field, &read)?;
            let name: String = field.name.chars().take(NAME_CHARS_MAX).collect();
            Some(format!("{name}: {found}"))
        })
    })
}

type ReadText<'a> = &'a dyn Fn(&str) -> Text;

fn in_field(field: &Field, read: ReadText<'_>) -> Option<String> {
    let short = [Some(field.name.as_str()), field.title.as_deref()].into_iter().flatten();
    let long = field.description.iter().map(String::as_str);
    let labels = |numeric: bool| {
        short
            .clone()
            .find_map(|text| read(text).label(numeric))
            .or_else(|| long.clone().find_map(|text| read(text).prose(numeric)))
    };
    let choices = |of: &[Choice]| {
        let all = of.iter().flat_map(|choice| [Some(choice.value.as_str()), choice.title.as_deref()]);
        all.flatten().find_map(|text| read(text).strong())
    };
    match &field.kind {
        Kind::Text { default, .. } => labels(false).or_else(|| default.as_ref().and_then(|text| read(text).strong())),
        Kind::Number { .. } => labels(true),
        Kind::Boolean => short.chain(long).find_map(|text| asked(text, read)),
        Kind::Choice(of) | Kind::Choices { of, .. } => {
            short.chain(long).find_map(|text| asked(text, read)).or_else(|| choices(of))
        }
    }
}

/// What a text asks for in so many words: in one sentence, a word by which one asks, and what for.
fn asked(text: &str, read: ReadText<'_>) -> Option<String> {
    let says = |text: &Text, phrases: &[Phrase]| phrases.iter().any(|phrase| phrase.is_in(&text.words));
    sentences(text).find_map(|sentence| {
        let is_open = sentence.trim_end().ends_with([':', '?', '：', '？']);
        let sentence = read(sentence);
        if sentence.words.len() <= LABEL_WORDS_MAX && (is_open || says(&sentence, &LEXICON.courtesies)) {
            return sentence.label(false);
        }
        let asks = says(&sentence, &LEXICON.asking)
            || LEXICON.asking_inside.iter().any(|term| sentence.squeezed.iter().any(|chunk| chunk.contains(term)));
        asks.then(|| sentence.prose(false)).flatten()
    })
}

/// A full stop ends a sentence where a space follows: `p.i.n` has none.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut chars = text.char_indices().peekable();
    let mut start = 0;
    let ends = std::iter::from_fn(move || {
        while let Some((at, character)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            let ends = matches!(character, '!' | '?' | '。' | '！' | '？' | '．' | '\n' | ';')
                || character == '.' && next.is_none_or(char::is_whitespace);
            if ends || next.is_none() {
                let range = start..at + character.len_utf8();
                start = range.end;
                return Some(range);
            }
        }
        None
    });
    ends.map(|range| &text[range])
}

/// A text as it is compared.
struct Text {
    words: Vec<Word>,
    /// What is written without a space, as one: for words that are split by other signs, or by none.
    squeezed: Vec<String>,
}

impl Text {
    fn read(text: &str, has_address: bool) -> Self {
        let found = join_spelled(split(text));
        let mut words = Vec::with_capacity(found.len());
        let mut rest = found.as_slice();
        while let [word, behind @ ..] = rest {
            let postal = LEXICON.postal.iter().filter(|_| has_address);
            match LEXICON.innocent.iter().chain(postal).filter_map(|phrase| phrase.at(rest)).max() {
                Some(len) => {
                    words.push(Word { text: String::new(), glued: false });
                    rest = &rest[len..];
                }
                None => {
                    words.push(word.clone());
                    rest = behind;
                }
            }
        }
        let mut squeezed = Vec::<String>::new();
        let mut glue = false;
        for word in &words {
            match squeezed.last_mut() {
                // Scripts without spaces are looked through as a whole.
                Some(chunk) if glue && word.glued || !word.text.is_ascii() && !chunk.is_ascii() => {
                    chunk.push_str(&word.text);
                }
                _ => squeezed.push(word.text.clone()),
            }
            glue = !word.text.is_empty();
        }
        for chunk in &mut squeezed {
            for innocent in &LEXICON.innocent_inside {
                *chunk = chunk.replace(innocent, " ");
            }
            if chunk.bytes().any(|byte| byte.is_ascii_alphabetic()) {
                *chunk = chunk.chars().map(unleet).collect();
            }
        }
        Self { words, squeezed }
    }

    fn find(&self, phrases: &[Phrase]) -> Option<String> {
        phrases.iter().find(|phrase| phrase.is_in(&self.words)).map(Phrase::written)
    }

    fn strong(&self) -> Option<String> {
        let inside = || LEXICON.inside.iter().find(|term| self.squeezed.iter().any(|chunk| chunk.contains(*term)));
        self.find(&LEXICON.strong).or_else(|| inside().cloned())
    }

    fn prose(&self, numeric: bool) -> Option<String> {
        self.strong().or_else(|| if numeric { None } else { self.find(&LEXICON.label) })
    }

    fn label(&self, numeric: bool) -> Option<String> {
        self.prose(numeric).or_else(|| {
            let is_filler = |word: &Word| {
                word.text.bytes().all(|byte| byte.is_ascii_digit()) || LEXICON.fillers.contains(&word.text)
            };
            let end = self.words.iter().rposition(|word| !is_filler(word))? + 1;
            let head = |phrase: &&Phrase| {
                phrase.ends(&self.words[..end]).is_some_and(|start| {
                    start.checked_sub(1).is_none_or(|before| !LEXICON.neutral.contains(&self.words[before].text))
                })
            };
            let exact = |phrase: &&Phrase| {
                phrase.ends(&self.words[..end]).is_some_and(|at| self.words[..at].iter().all(is_filler))
            };
            let heads = LEXICON.head.iter().chain(LEXICON.text_head.iter().filter(|_| !numeric));
            heads.into_iter().find(head).or_else(|| LEXICON.exact.iter().find(exact)).map(Phrase::written)
        })
    }
}

/// The words, folded.
struct Lexicon {
    strong: Vec<Phrase>,
    label: Vec<Phrase>,
    head: Vec<Phrase>,
    text_head: Vec<Phrase>,
    exact: Vec<Phrase>,
    innocent: Vec<Phrase>,
    postal: Vec<Phrase>,
    asking: Vec<Phrase>,
    courtesies: Vec<Phrase>,
    neutral: Vec<String>,
    fillers: Vec<String>,
    address: Vec<String>,
    inside: Vec<String>,
    innocent_inside: Vec<String>,
    asking_inside: Vec<String>,
}

static LEXICON: LazyLock<Lexicon> = LazyLock::new(|| {
    let phrases = |list: &[&str]| list.iter().map(|written| Phrase::of(written)).collect();
    let folded = |list: &[&str]| list.iter().map(|written| Phrase::of(written).joined).collect();
    Lexicon {
        strong: phrases(words::STRONG),
        label: phrases(words::LABEL),
        head: phrases(words::HEAD),
        text_head: phrases(words::TEXT_HEAD),
        exact: phrases(words::EXACT),
        innocent: phrases(words::INNOCENT),
        postal: phrases(words::POSTAL),
        asking: phrases(words::ASKING),
        courtesies: phrases(words::COURTESIES),
        neutral: folded(words::NEUTRAL),
        fillers: folded(words::FILLERS),
        address: folded(words::ADDRESS),
        inside: folded(words::INSIDE),
        innocent_inside: folded(words::INNOCENT_INSIDE),
        asking_inside: folded(words::ASKING_INSIDE),
    }
});
