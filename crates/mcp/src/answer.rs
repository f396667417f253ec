//! What clients answer to questions, the same in both eras.

use bytes::Bytes;
use longhaul_core::{InputResponse, Question};

use crate::json::{self, Object};

/// What kind of answer a question wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuestionKind {
    /// `ElicitResult`
    Elicitation,
    /// `CreateMessageResult`
    Sampling,
    /// `ListRootsResult`
    Roots,
}

impl QuestionKind {
    /// The kind of a question.
    pub const fn of(question: &Question) -> Self {
        match question {
            Question::Form { .. } | Question::Url { .. } => Self::Elicitation,
            Question::Sample { .. } => Self::Sampling,
            Question::Roots => Self::Roots,
        }
    }
}

/// Reads an answer, the JSON of a result object. `None` if it is none of this kind. Whether its content fits the question
/// is for [`fit`](longhaul_core::input::fit) to say.
pub fn input_response(kind: QuestionKind, result: &str) -> Option<InputResponse> {
    let object = Object::read(result.as_bytes())?;
    let has = |name: &str, what: fn(&str) -> bool| object.get(name).is_some_and(what);
    match kind {
        QuestionKind::Elicitation => match &*json::string(object.get("action")?)? {
            "accept" => match object.get("content") {
                None | Some("null") => Some(InputResponse::Accept(None)),
                Some(content) => json::is_object(content).then(|| InputResponse::Accept(Some(copied(content)))),
            },
            "decline" => Some(InputResponse::Decline),
            "cancel" => Some(InputResponse::Cancel),
            _ => None,
        },
        QuestionKind::Sampling => {
            let is_message = has("role", is_string)
                && has("model", is_string)
                && has("content", |content| json::is_object(content) || is_array(content));
            is_message.then(|| InputResponse::Result(copied(result)))
        }
        QuestionKind::Roots => has("roots", is_array).then(|| InputResponse::Result(copied(result))),
    }
}

fn copied(json: &str) -> Bytes {
    Bytes::copy_from_slice(json.as_bytes())
}

fn is_string(value: &str) -> bool {
    value.starts_with('"')
}

fn is_array(value: &str) -> bool {
    value.starts_with('[')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_an_elicitation_has_an_action_and_content_only_if_it_accepts() {
        let read = |result| input_response(QuestionKind::Elicitation, result);
        let accepted =
            |content: &'static str| Some(InputResponse::Accept(Some(Bytes::from_static(content.as_bytes()))));
        for (result, expected) in [
            (r#"{"action":"accept","content":{ "a": 1.00 }}"#, accepted(r#"{ "a": 1.00 }"#)),
            (r#"{"content":{},"x":[],"action":"acc\u0065pt","_meta":7}"#, accepted("{}")),
            (r#"{"action":"accept"}"#, Some(InputResponse::Accept(None))),
            (r#"{"action":"accept","content":null}"#, Some(InputResponse::Accept(None))),
            (r#"{"action":"decline","content":7}"#, Some(InputResponse::Decline)),
            (r#"{"action":"cancel","content":{"a":1}}"#, Some(InputResponse::Cancel)),
            (r#"{"action":"accept","content":[]}"#, None),
            (r#"{"action":"accept","content":"x"}"#, None),
            (r#"{"action":"Accept"}"#, None),
            (r#"{"action":true}"#, None),
            (r#"{"content":{}}"#, None),
            ("{}", None),
            ("7", None),
            ("null", None),
            (r#"["accept"]"#, None),
            (r#""accept""#, None),
            ("{", None),
        ] {
            assert_eq!(read(result), expected, "{result}");
        }
    }

    #[test]
    fn an_answer_of_the_client_itself_has_what_its_schema_requires() {
        let message = r#"{"role":"assistant","content":{"type":"text","text":"hi"},"model":"m","stopReason":"x"}"#;
        let roots = r#"{"roots":[{"uri":"file:///a"}] }"#;
        for (kind, good) in [
            (QuestionKind::Sampling, message),
            (QuestionKind::Sampling, r#"{"role":"assistant","content":[],"model":"m"}"#),
            (QuestionKind::Roots, roots),
        ] {
            let expected = InputResponse::Result(Bytes::from_static(good.as_bytes()));
            assert_eq!(input_response(kind, good), Some(expected));
        }
        for (kind, bad) in [
            (QuestionKind::Sampling, roots),
            (QuestionKind::Sampling, r#"{"role":"assistant","content":"hi","model":"m"}"#),
            (QuestionKind::Sampling, r#"{"role":"assistant","content":{}}"#),
            (QuestionKind::Sampling, r#"{"action":"decline"}"#),
            (QuestionKind::Roots, message),
            (QuestionKind::Roots, r#"{"roots":{}}"#),
            (QuestionKind::Roots, "[]"),
        ] {
            assert_eq!(input_response(kind, bad), None, "{bad}");
        }
    }
}
