//! Whether an answer fits its question.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::form::{Choice, Field, Kind};
use super::json::Json;
use super::{ANSWER_BYTES_MAX, Form, InputResponse, Question};

/// The answer as it counts: one that does not fit is a decline.
///
/// - A form takes content as it asks for (`ElicitResult` of both eras); yes without content is yes with an empty form,
///   which fits if no field is required.
/// - A URL takes no content ("omitted for out-of-band mode responses"): what comes is dropped.
/// - A question to the client itself takes a result, a JSON object.
/// - No, and not now, fit any question.
pub fn fit(question: &Question, response: InputResponse) -> InputResponse {
    match (question, response) {
        (_, InputResponse::Decline) => InputResponse::Decline,
        (_, InputResponse::Cancel) => InputResponse::Cancel,
        (Question::Form { schema, .. }, InputResponse::Accept(content)) => {
            let content = content.unwrap_or(Bytes::from_static(b"{}"));
            match Form::read(schema) {
                Ok(form) if form.allows(&content) => InputResponse::Accept(Some(content)),
                _ => InputResponse::Decline,
            }
        }
        (Question::Url { .. }, InputResponse::Accept(_)) => InputResponse::Accept(None),
        (Question::Sample { .. } | Question::Roots, InputResponse::Result(result)) => match Json::read(&result) {
            Ok(Json::Object(_)) => InputResponse::Result(result),
            _ => InputResponse::Decline,
        },
        (Question::Form { .. } | Question::Url { .. }, InputResponse::Result(_))
        | (Question::Sample { .. } | Question::Roots, InputResponse::Accept(_)) => InputResponse::Decline,
    }
}

impl Form {
    /// Whether it may be filled in so: with what its schema allows, and with no field that it does not have.
    fn allows(&self, content: &[u8]) -> bool {
        if content.len() > ANSWER_BYTES_MAX {
            return false;
        }
        let Ok(Json::Object(members)) = Json::read(content) else { return false };
        let value = |name: &str| members.iter().find(|(member, _)| member == name).map(|(_, value)| value);
        members.iter().all(|(name, _)| self.fields.iter().any(|field| field.name == *name))
            && self.fields.iter().all(|field| value(&field.name).map_or(!field.required, |value| field.allows(value)))
    }
}

impl Field {
    fn allows(&self, value: &Json) -> bool {
        match (&self.kind, value) {
            (Kind::Text { chars, format, pattern, .. }, Json::String(text)) => {
                chars.contains(text.chars().count())
                    && format.is_none_or(|format| format.allows(text))
                    && pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
            }
            (Kind::Number { whole, minimum, maximum }, Json::Number(number)) => {
                (!whole || number.is_whole())
                    && minimum.is_none_or(|minimum| number.compare(minimum).is_ge())
                    && maximum.is_none_or(|maximum| number.compare(maximum).is_le())
            }
            (Kind::Boolean, Json::Bool(_)) => true,
            (Kind::Choice(choices), Json::String(text)) => choices.iter().any(|choice| choice.value == *text),
            // One choice may be taken twice: `uniqueItems` is no keyword of MCP's forms.
            (Kind::Choices { of, items }, Json::Array(values)) => {
                let known = of.iter().map(|Choice { value, .. }| value.as_str()).collect::<BTreeSet<_>>();
                items.contains(values.len())
                    && values.iter().all(|value| matches!(value, Json::String(text) if known.contains(text.as_str())))
            }
            (
                Kind::Text { .. } | Kind::Number { .. } | Kind::Boolean | Kind::Choice(_) | Kind::Choices { .. },
                Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) | Json::Object(_),
            ) => false,
        }
    }
}
