//! What a server asks of whoever calls, in both eras, and how it is answered.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use longhaul_core::Question;
use longhaul_core::input::QUESTIONS_MAX;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::json;
use serde_json::value::RawValue;

use super::{raw, reply};

/// A result that says: ask this and call again (MCP 2026-07-28, basic/patterns/mrtr).
#[derive(Debug)]
pub(crate) struct InputRequired {
    /// By the server's keys.
    pub(crate) questions: Vec<(String, Question)>,
    /// To be handed back as it came.
    pub(crate) state: Option<Box<RawValue>>,
}

/// Reads what a server asks; `None` if it is nothing that can be asked. The error is a sentence for the server.
pub(super) fn read_question(
    bytes: &Bytes,
    method: &str,
    params: Option<&RawValue>,
) -> Option<Result<Question, String>> {
    let question = match method {
        "elicitation/create" => params.and_then(|params| read_elicitation(bytes, params)),
        "sampling/createMessage" => params.and_then(read_sample),
        "roots/list" => Some(Question::Roots),
        _ => return None,
    };
    Some(question.ok_or_else(|| "the question cannot be read".to_owned()))
}

fn read_elicitation(bytes: &Bytes, params: &RawValue) -> Option<Question> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        #[serde(borrow, default)]
        mode: Option<Cow<'a, str>>,
        message: String,
        #[serde(borrow, default)]
        requested_schema: Option<&'a RawValue>,
        #[serde(default)]
        url: Option<String>,
    }
    let Members { mode, message, requested_schema, url } = serde_json::from_str(params.get()).ok()?;
    match mode.as_deref() {
        None | Some("form") => {
            Some(Question::Form { message, schema: bytes.slice_ref(requested_schema?.get().as_bytes()) })
        }
        Some("url") => Some(Question::Url { message, url: url? }),
        Some(_) => None,
    }
}

fn read_sample(params: &RawValue) -> Option<Question> {
    let Object(mut members) = serde_json::from_str(params.get()).ok()?;
    // These are between the server and us.
    members.retain(|(member, _)| !matches!(&**member, "_meta" | "task"));
    Some(Question::Sample { params: Box::<str>::from(raw(&Object(members))).into_string().into() })
}

/// Reads the pages that an error of code [`URL_REQUIRED`](super::URL_REQUIRED) asks to open, from its data: `None` if it
/// names none, so that it is an error like any other. What cannot be read leaves none at all.
pub(crate) fn urls_required(data: &Bytes) -> Option<Vec<Question>> {
    #[derive(Deserialize)]
    struct Data<'a> {
        #[serde(borrow)]
        elicitations: &'a RawValue,
    }
    let Data { elicitations } = serde_json::from_slice(data).ok()?;
    let read = || {
        let items: Vec<&RawValue> = serde_json::from_str(elicitations.get()).ok()?;
        let pages = items
            .iter()
            .map(|item| read_elicitation(data, item).filter(|question| matches!(question, Question::Url { .. })));
        pages.collect::<Option<Vec<_>>>().filter(|pages| pages.len() <= QUESTIONS_MAX)
    };
    Some(read().unwrap_or_default())
}

/// Reads whether a result of 2026-07-28 is the last word (`None`) or asks for more. The error is the rest of a sentence
/// that begins with the server.
pub(crate) fn input_required(result: &Bytes) -> Result<Option<InputRequired>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members<'a> {
        #[serde(borrow, default)]
        result_type: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        input_requests: Option<&'a RawValue>,
        #[serde(borrow, default)]
        request_state: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Asked<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        #[serde(borrow, default)]
        params: Option<&'a RawValue>,
    }
    let odd = || "answers in a way that MCP does not foresee".to_owned();
    let members: Members<'_> = serde_json::from_slice(result).map_err(|_| odd())?;
    match members.result_type.as_deref() {
        None | Some("complete") => return Ok(None),
        Some("input_required") => {}
        Some(_) => return Err(odd()),
    }
    let Object(requests) = match members.input_requests {
        Some(requests) => serde_json::from_str(requests.get()).map_err(|_| odd())?,
        None => Object(Vec::new()),
    };
    if requests.len() > QUESTIONS_MAX {
        return Err(format!("asks more than {QUESTIONS_MAX} questions"));
    }
    let question = |(key, asked): (Cow<'_, str>, &RawValue)| {
        let Asked { method, params } = serde_json::from_str(asked.get()).ok()?;
        let question = read_question(result, &method, params)?.ok()?;
        Some((key.into_owned(), question))
    };
    let questions: Option<Vec<_>> = requests.into_iter().map(question).collect();
    let state = members.request_state.map(ToOwned::to_owned);
    let questions = questions.ok_or("asks a question that cannot be read")?;
    if questions.is_empty() && state.is_none() {
        return Err(odd());
    }
    Ok(Some(InputRequired { questions, state }))
}

/// The result of a form that was filled in, or of a page that was opened: that has no content.
pub(crate) fn accepted(content: Option<&RawValue>) -> Box<RawValue> {
    let accept = raw("accept");
    let mut members = vec![("action".into(), &*accept)];
    members.extend(content.map(|content| ("content".into(), content)));
    raw(&Object(members))
}

/// The result of a form or a page that was not accepted: `decline` or `cancel`.
pub(crate) fn action(action: &str) -> Box<RawValue> {
    raw(&json!({ "action": action }))
}

/// The answer to a request of the server's, whose id is JSON text.
pub(crate) fn result_of(id: &Bytes, result: &RawValue) -> Bytes {
    reply(id, Ok(result))
}

/// The error that a request of the server's is answered with.
pub(crate) fn refusal(id: &Bytes, code: i32, message: &str) -> Bytes {
    reply::<()>(id, Err((code, message)))
}

/// Members of an object, in their order.
struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A member's name, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (member, value) in &self.0 {
            map.serialize_entry(member, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &str, params: &str) -> Option<Result<Question, String>> {
        let bytes = Bytes::copy_from_slice(params.as_bytes());
        let params: &RawValue = serde_json::from_slice(&bytes).unwrap();
        read_question(&bytes, method, Some(params))
    }

    #[test]
    fn questions_are_read_as_they_came() {
        let schema = r#"{ "type":"object", "properties":{"n":{"type":"number","maximum":1e2}} }"#;
        let form = Question::Form { message: "é".into(), schema: schema.into() };
        for mode in ["", r#""mode":"form","#] {
            let params = format!(r#"{{{mode}"message":"\u00e9","requestedSchema":{schema},"task":{{"ttl":1}}}}"#);
            assert_eq!(read("elicitation/create", &params), Some(Ok(form.clone())));
        }
        let page = r#"{"mode":"url","message":"m","url":"https:\/\/a.dev","elicitationId":"e"}"#;
        let url = Question::Url { message: "m".into(), url: "https://a.dev".into() };
        assert_eq!(read("elicitation/create", page), Some(Ok(url)));
        let sample = r#"{ "messages":[1e2], "_meta":{"progressToken":1}, "task":{}, "new":-0 }"#;
        let params = Bytes::from_static(br#"{"messages":[1e2],"new":-0}"#);
        assert_eq!(read("sampling/createMessage", sample), Some(Ok(Question::Sample { params })));
        assert_eq!(read_question(&Bytes::new(), "roots/list", None), Some(Ok(Question::Roots)));
        for (method, params) in [
            ("elicitation/create", r#"{"message":"m"}"#),
            ("elicitation/create", r#"{"requestedSchema":{}}"#),
            ("elicitation/create", r#"{"mode":"url","message":"m"}"#),
            ("elicitation/create", r#"{"mode":"voice","message":"m","requestedSchema":{}}"#),
            ("sampling/createMessage", "[]"),
        ] {
            assert!(matches!(read(method, params), Some(Err(_))), "{params}");
        }
        assert_eq!(read("tasks/list", "{}"), None);
    }

    #[test]
    fn only_pages_can_be_wanted_by_an_error() {
        let pages = |data: &str| urls_required(&Bytes::copy_from_slice(data.as_bytes()));
        let page = r#"{"mode":"url","message":"m","url":"https://a.dev"}"#;
        assert_eq!(pages(&format!(r#"{{"elicitations":[{page},{page}],"more":1}}"#)).unwrap().len(), 2);
        let many = format!(r#"{{"elicitations":[{}]}}"#, vec![page; QUESTIONS_MAX + 1].join(","));
        for odd in [
            r#"{"elicitations":1}"#,
            r#"{"elicitations":[1]}"#,
            r#"{"elicitations":[{"mode":"form","message":"m","requestedSchema":{}}]}"#,
            &many,
        ] {
            assert_eq!(pages(odd), Some(Vec::new()), "{odd}");
        }
        for other in ["{}", "[]", "1"] {
            assert_eq!(pages(other), None);
        }
    }

    #[test]
    fn a_result_is_the_last_word_or_asks_for_more() {
        let read = |result: &str| input_required(&Bytes::copy_from_slice(result.as_bytes()));
        for last in ["{}", r#"{"resultType":"complete","inputRequests":1}"#] {
            assert!(matches!(read(last), Ok(None)), "{last}");
        }
        let asks = r#"{"resultType":"input_required","requestState":"\u0061","inputRequests":{"k\"":{"method":"roots/list"}}}"#;
        let Ok(Some(InputRequired { questions, state })) = read(asks) else { panic!() };
        assert_eq!(questions, [("k\"".to_owned(), Question::Roots)]);
        assert_eq!(state.unwrap().get(), r#""\u0061""#);
        let requests = |requests: &str| format!(r#"{{"resultType":"input_required","inputRequests":{requests}}}"#);
        let many: Vec<_> = (0..=QUESTIONS_MAX).map(|at| format!(r#""{at}":{{"method":"roots/list"}}"#)).collect();
        for odd in [
            r#"{"resultType":"task"}"#.to_owned(),
            r#"{"resultType":"input_required"}"#.to_owned(),
            r#"{"resultType":1}"#.to_owned(),
            requests("{}"),
            requests("[]"),
            requests(r#"{"a":1}"#),
            requests(r#"{"a":{"method":"ping"}}"#),
            requests(r#"{"a":{"method":"elicitation/create"}}"#),
            requests(&format!("{{{}}}", many.join(","))),
        ] {
            assert!(read(&odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn answers_are_written_as_mcp_asks() {
        let content = RawValue::from_string(r#"{"n":1e2}"#.into()).unwrap();
        let id = Bytes::from_static(br#""a\u002db""#);
        assert_eq!(
            result_of(&id, &accepted(Some(&content))),
            r#"{"jsonrpc":"2.0","id":"a\u002db","result":{"action":"accept","content":{"n":1e2}}}"#
        );
        assert_eq!(accepted(None).get(), r#"{"action":"accept"}"#);
        assert_eq!(action("decline").get(), r#"{"action":"decline"}"#);
        assert_eq!(refusal(&id, -1, "no"), r#"{"jsonrpc":"2.0","id":"a\u002db","error":{"code":-1,"message":"no"}}"#);
    }
}
