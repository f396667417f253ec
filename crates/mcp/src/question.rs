//! Questions as both eras ask them: a method and its parameters.

use longhaul_core::Question;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::json;

/// A question on the wire.
#[derive(Serialize)]
pub(crate) struct Asked<'a, M> {
    pub method: &'static str,
    pub params: Params<'a, M>,
}

/// What is asked. `M` is the `_meta`.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Params<'a, M> {
    #[serde(rename_all = "camelCase")]
    Form {
        mode: &'static str,
        message: &'a str,
        requested_schema: &'a RawValue,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<M>,
    },
    #[serde(rename_all = "camelCase")]
    Url {
        mode: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        elicitation_id: Option<&'a str>,
        message: &'a str,
        url: &'a str,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<M>,
    },
    Sample(&'a RawValue),
    Roots {
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<M>,
    },
}

impl<'a, M> Asked<'a, M> {
    /// `elicitation_id` names a page before 2026-07-28. A question to the client's model goes as it came, without `meta`.
    pub(crate) fn of(question: &'a Question, elicitation_id: Option<&'a str>, meta: Option<M>) -> Self {
        let (method, params) = match question {
            Question::Form { message, schema } => (
                "elicitation/create",
                Params::Form { mode: "form", message, requested_schema: json::raw_object(schema), meta },
            ),
            Question::Url { message, url } => {
                ("elicitation/create", Params::Url { mode: "url", elicitation_id, message, url, meta })
            }
            Question::Sample { params } => ("sampling/createMessage", Params::Sample(json::raw_object(params))),
            Question::Roots => ("roots/list", Params::Roots { meta }),
        };
        Self { method, params }
    }
}
