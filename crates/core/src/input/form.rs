//! The forms that MCP allows: a flat object of primitives (MCP 2025-11-25 and 2026-07-28, client/elicitation,
//! "Requested Schema"; `PrimitiveSchemaDefinition` in both schemas), and `pattern`, which the prose of 2025-11-25 shows.
//!
//! Whatever else a schema says is refused rather than ignored: a client that knows the keyword would ask its person for
//! something that we do not check. The one exception is a `title` and a `description` of the whole form: they change
//! nothing, and the SDKs for Python and Rust send them with every form that is made from a type.

use super::QUESTION_BYTES_MAX;
use super::format::Format;
use super::json::{Json, Number, repeated};
use super::pattern::Pattern;

/// Fields of one form.
pub const FIELDS_MAX: usize = 50;
/// Fields of one form that have a pattern: each is compiled.
pub const PATTERNS_MAX: usize = 10;
/// Choices of one field.
pub const CHOICES_MAX: usize = 1000;
/// The largest length or number of items that a form may name: 2⁵³, up to which JSON's integers are safe (RFC 8259, §6).
const COUNT_MAX: i128 = 1 << 53;
/// Characters of a name that an error repeats.
const QUOTED_CHARS_MAX: usize = 64;

/// A form that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    pub(super) fields: Vec<Field>,
}

/// Something to fill in.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    pub(super) required: bool,
    pub(super) kind: Kind,
}

/// What it may be filled with.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Text {
        /// In code points.
        chars: Span,
        format: Option<Format>,
        pattern: Option<Pattern>,
        default: Option<String>,
    },
    Number {
        whole: bool,
        minimum: Option<Number>,
        maximum: Option<Number>,
    },
    Boolean,
    /// One of these.
    Choice(Vec<Choice>),
    /// Any of these.
    Choices {
        of: Vec<Choice>,
        items: Span,
    },
}

/// How many there must and may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    min: u64,
    max: Option<u64>,
}

impl Span {
    pub(super) fn contains(self, count: usize) -> bool {
        u64::try_from(count).is_ok_and(|count| self.min <= count && self.max.is_none_or(|max| count <= max))
    }
}

/// A value and how it is shown, if not as itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) value: String,
    pub(super) title: Option<String>,
}

/// Why a schema is no form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a form that MCP allows: {0}")]
pub struct FormError(pub String);

type Read<T> = Result<T, FormError>;

impl Form {
    /// Reads a schema of at most [`QUESTION_BYTES_MAX`] bytes; the error says which keyword of which field is wrong.
    pub fn read(schema: &[u8]) -> Result<Self, FormError> {
        if schema.len() > QUESTION_BYTES_MAX {
            return Err(FormError(format!("the schema has more than {QUESTION_BYTES_MAX} bytes")));
        }
        let json = Json::read(schema).map_err(|error| FormError(format!("the schema cannot be read: {error}")))?;
        let mut root = Keywords::of("the schema".to_owned(), json)?;
        if root.text("type")?.as_deref() != Some("object") {
            return Err(root.wrong("type must be \"object\""));
        }
        root.text("$schema")?;
        let title = root.text("title")?;
        let description = root.text("description")?;
        let Some(Json::Object(properties)) = root.take("properties") else {
            return Err(root.wrong("properties must be an object"));
        };
        if properties.len() > FIELDS_MAX {
            return Err(root.wrong(&format!("there are more than {FIELDS_MAX} properties")));
        }
        let required = root.texts("required")?.unwrap_or_default();
        if let Some(name) = repeated(required.iter().map(String::as_str)) {
            return Err(root.wrong(&format!("required names {} twice", quoted(name))));
        }
        if let Some(name) = required.iter().find(|name| !properties.iter().any(|(known, _)| known == *name)) {
            return Err(root.wrong(&format!("required names {}, which is no property", quoted(name))));
        }
        root.done()?;
        let fields = properties
            .into_iter()
            .map(|(name, schema)| Field::read(required.contains(&name), name, schema))
            .collect::<Read<Vec<_>>>()?;
        let patterns = fields.iter().filter(|field| matches!(field.kind, Kind::Text { pattern: Some(_), .. })).count();
        if patterns > PATTERNS_MAX {
            return Err(FormError(format!("more than {PATTERNS_MAX} fields have a pattern")));
        }
        Ok(Self { title, description, fields })
    }
}

impl Field {
    fn read(required: bool, name: String, schema: Json) -> Read<Self> {
        let mut keywords = Keywords::of(format!("property {}", quoted(&name)), schema)?;
        let title = keywords.text("title")?;
        let description = keywords.text("description")?;
        let kind = match keywords.text("type")?.as_deref() {
            Some("string") => keywords.string()?,
            Some("number") => keywords.numeric(false)?,
            Some("integer") => keywords.numeric(true)?,
            Some("boolean") => keywords.boolean()?,
            Some("array") => keywords.array()?,
            _ => return Err(keywords.wrong("type must be string, number, integer, boolean or array")),
        };
        keywords.done()?;
        Ok(Self { name, title, description, required, kind })
    }
}

/// The keywords of a schema that are not yet read.
struct Keywords {
    /// Whose they are.
    of: String,
    left: Vec<(String, Json)>,
}

impl Keywords {
    fn of(of: String, schema: Json) -> Read<Self> {
        match schema {
            Json::Object(left) => Ok(Self { of, left }),
            _ => Err(FormError(format!("{of} must be an object"))),
        }
    }

    fn wrong(&self, why: &str) -> FormError {
        FormError(format!("{}: {why}", self.of))
    }

    fn take(&mut self, keyword: &str) -> Option<Json> {
        let at = self.left.iter().position(|(name, _)| name == keyword)?;
        Some(self.left.remove(at).1)
    }

    fn done(self) -> Read<()> {
        match self.left.first() {
            None => Ok(()),
            Some((keyword, _)) => Err(self.wrong(&format!("{} is not allowed here", quoted(keyword)))),
        }
    }

    fn text(&mut self, keyword: &str) -> Read<Option<String>> {
        match self.take(keyword) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(&format!("{keyword} must be a string"))),
        }
    }

    fn texts(&mut self, keyword: &str) -> Read<Option<Vec<String>>> {
        let Some(value) = self.take(keyword) else { return Ok(None) };
        let texts = match value {
            Json::Array(items) => items
                .into_iter()
                .map(|item| match item {
                    Json::String(text) => Some(text),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        };
        texts.map(Some).ok_or_else(|| self.wrong(&format!("{keyword} must be an array of strings")))
    }

    fn number(&mut self, keyword: &str) -> Read<Option<Number>> {
        match self.take(keyword) {
            None => Ok(None),
            Some(Json::Number(number)) => Ok(Some(number)),
            Some(_) => Err(self.wrong(&format!("{keyword} must be a number"))),
        }
    }

    fn count(&mut self, keyword: &str) -> Read<Option<u64>> {
        match self.number(keyword)? {
            None => Ok(None),
            Some(Number::Whole(count @ 0..=COUNT_MAX)) => Ok(u64::try_from(count).ok()),
            Some(_) => Err(self.wrong(&format!("{keyword} must be a whole number from 0 to {COUNT_MAX}"))),
        }
    }

    fn span(&mut self, min: &str, max: &str) -> Read<Span> {
        let span = Span { min: self.count(min)?.unwrap_or(0), max: self.count(max)? };
        if span.max.is_some_and(|most| span.min > most) {
            return Err(self.wrong(&format!("{min} is greater than {max}")));
        }
        Ok(span)
    }

    /// `StringSchema`, `UntitledSingleSelectEnumSchema`, `LegacyTitledEnumSchema` or `TitledSingleSelectEnumSchema`.
    fn string(&mut self) -> Read<Kind> {
        if let Some(values) = self.texts("enum")? {
            let titles = self.texts("enumNames")?;
            let choices = match titles {
                None => values.into_iter().map(|value| Choice { value, title: None }).collect(),
                Some(titles) if titles.len() == values.len() => {
                    values.into_iter().zip(titles).map(|(value, title)| Choice { value, title: Some(title) }).collect()
                }
                Some(_) => return Err(self.wrong("enumNames must have as many items as enum")),
            };
            return self.choice(choices);
        }
        if let Some(choices) = self.titled("oneOf")? {
            return self.choice(choices);
        }
        let chars = self.span("minLength", "maxLength")?;
        let format = match self.text("format")? {
            None => None,
            Some(name) => {
                Some(Format::named(&name).ok_or_else(|| self.wrong("format must be email, uri, date or date-time"))?)
            }
        };
        let pattern = match self.text("pattern")? {
            None => None,
            Some(pattern) => {
                Some(Pattern::read(&pattern).map_err(|why| self.wrong(&format!("pattern is not supported: {why}")))?)
            }
        };
        Ok(Kind::Text { chars, format, pattern, default: self.text("default")? })
    }

    fn choice(&mut self, choices: Vec<Choice>) -> Read<Kind> {
        self.check_choices(&choices)?;
        match self.text("default")? {
            Some(default) if !choices.iter().any(|choice| choice.value == default) => {
                Err(self.wrong("default is none of the choices"))
            }
            _ => Ok(Kind::Choice(choices)),
        }
    }

    fn check_choices(&self, choices: &[Choice]) -> Read<()> {
        if choices.is_empty() {
            return Err(self.wrong("there are no choices"));
        }
        if choices.len() > CHOICES_MAX {
            return Err(self.wrong(&format!("there are more than {CHOICES_MAX} choices")));
        }
        match repeated(choices.iter().map(|choice| choice.value.as_str())) {
            Some(value) => Err(self.wrong(&format!("the choice {} is there twice", quoted(value)))),
            None => Ok(()),
        }
    }

    /// An array of `{const, title}`.
    fn titled(&mut self, keyword: &str) -> Read<Option<Vec<Choice>>> {
        let Some(value) = self.take(keyword) else { return Ok(None) };
        let Json::Array(items) = value else {
            return Err(self.wrong(&format!("{keyword} must be an array")));
        };
        let of = format!("{}: each of {keyword}", self.of);
        let choices = items.into_iter().map(|item| {
            let mut option = Self::of(of.clone(), item)?;
            let (Some(value), Some(title)) = (option.text("const")?, option.text("title")?) else {
                return Err(option.wrong("const and title must be there"));
            };
            option.done()?;
            Ok(Choice { value, title: Some(title) })
        });
        choices.collect::<Read<_>>().map(Some)
    }

    /// `NumberSchema`.
    fn numeric(&mut self, whole: bool) -> Read<Kind> {
        let (minimum, maximum) = (self.number("minimum")?, self.number("maximum")?);
        if let (Some(least), Some(most)) = (minimum, maximum)
            && least.compare(most).is_gt()
        {
            return Err(self.wrong("minimum is greater than maximum"));
        }
        if self.number("default")?.is_some_and(|default| whole && !default.is_whole()) {
            return Err(self.wrong("default must be an integer"));
        }
        Ok(Kind::Number { whole, minimum, maximum })
    }

    /// `BooleanSchema`.
    fn boolean(&mut self) -> Read<Kind> {
        match self.take("default") {
            None | Some(Json::Bool(_)) => Ok(Kind::Boolean),
            Some(_) => Err(self.wrong("default must be true or false")),
        }
    }

    /// `UntitledMultiSelectEnumSchema` or `TitledMultiSelectEnumSchema`.
    fn array(&mut self) -> Read<Kind> {
        let items = self.take("items").ok_or_else(|| self.wrong("items must be there"))?;
        let mut item = Self::of(format!("{}: items", self.of), items)?;
        let of = match item.titled("anyOf")? {
            Some(choices) => choices,
            None => {
                if item.text("type")?.as_deref() != Some("string") {
                    return Err(item.wrong("type must be \"string\""));
                }
                let values = item.texts("enum")?.ok_or_else(|| item.wrong("enum or anyOf must be there"))?;
                values.into_iter().map(|value| Choice { value, title: None }).collect()
            }
        };
        item.check_choices(&of)?;
        item.done()?;
        let items = self.span("minItems", "maxItems")?;
        let default = self.texts("default")?.unwrap_or_default();
        if !default.iter().all(|value| of.iter().any(|choice| choice.value == *value)) {
            return Err(self.wrong("default is none of the choices"));
        }
        Ok(Kind::Choices { of, items })
    }
}

/// A name as an error repeats it.
fn quoted(name: &str) -> String {
    let short: String = name.chars().take(QUOTED_CHARS_MAX).collect();
    format!("{short:?}")
}
