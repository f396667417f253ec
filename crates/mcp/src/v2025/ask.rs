//! Questions to clients, as requests of ours.

use bytes::Bytes;
use longhaul_core::{Question, TaskId};
use serde::Serialize;

use crate::jsonrpc::append;
use crate::question::Asked;
use crate::v2025::write::RelatedMeta;

const TASK_QUESTION: &str = "tiq-task-";

/// The request that asks a client a question: `elicitation/create`, `sampling/createMessage` or `roots/list`. A question
/// of a task names it. The same question under the same `id` is the same request, which may be sent again when its first
/// carrier is gone; `id` names the page of a URL as well.
pub fn ask(id: &str, question: &Question, task: Option<TaskId>) -> Bytes {
    #[derive(Serialize)]
    struct Request<'a> {
        jsonrpc: &'static str,
        id: &'a str,
        #[serde(flatten)]
        asked: Asked<'a, RelatedMeta>,
    }
    let asked = Asked::of(question, Some(id), task.map(RelatedMeta::of));
    let mut out = Vec::with_capacity(512);
    append(&mut out, &Request { jsonrpc: "2.0", id, asked });
    out.into()
}

/// The id of the request that asks the `nth` question of a task.
pub fn task_question_id(task: TaskId, nth: u32) -> String {
    format!("{TASK_QUESTION}{task}-{nth}")
}

/// Reads what [`task_question_id`] wrote, in that spelling alone.
pub fn parse_task_question_id(id: &str) -> Option<(TaskId, u32)> {
    let (task, nth) = id.strip_prefix(TASK_QUESTION)?.rsplit_once('-')?;
    let (task, nth) = (task.parse().ok()?, nth.parse().ok()?);
    (nth > 0 && task_question_id(task, nth) == id).then_some((task, nth))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_request_that_names_its_task() {
        let form = Question::Form {
            message: "Which?".into(),
            schema: Bytes::from_static(br#"{ "type":"object","properties":{"n":{"type":"integer","maximum":1e2}}}"#),
        };
        let url = Question::Url { message: "Link it.".into(), url: "https://example.com/a".into() };
        let sample = Question::Sample { params: Bytes::from_static(br#"{"messages":[],"maxTokens":1.0}"#) };
        let related = r#""_meta":{"io.modelcontextprotocol/related-task":{"taskId":"aaaaaaaaaaaaaaaaaaaaaaaaab"}}"#;
        let task = TaskId::from_random(1);
        for (question, task, asked) in [
            (
                &form,
                Some(task),
                format!(
                    r#""method":"elicitation/create","params":{{"mode":"form","message":"Which?","requestedSchema":{{ "type":"object","properties":{{"n":{{"type":"integer","maximum":1e2}}}}}},{related}}}"#
                ),
            ),
            (
                &url,
                Some(task),
                format!(
                    r#""method":"elicitation/create","params":{{"mode":"url","elicitationId":"i","message":"Link it.","url":"https://example.com/a",{related}}}"#
                ),
            ),
            (
                &url,
                None,
                r#""method":"elicitation/create","params":{"mode":"url","elicitationId":"i","message":"Link it.","url":"https://example.com/a"}"#
                    .to_owned(),
            ),
            (
                &sample,
                None,
                r#""method":"sampling/createMessage","params":{"messages":[],"maxTokens":1.0}"#.to_owned(),
            ),
            (&Question::Roots, None, r#""method":"roots/list","params":{}"#.to_owned()),
        ] {
            assert_eq!(ask("i", question, task), format!(r#"{{"jsonrpc":"2.0","id":"i",{asked}}}"#));
        }
    }

    #[test]
    fn a_question_of_a_task_is_known_by_its_id() {
        let task = TaskId::from_random(1);
        let id = task_question_id(task, 12);
        assert_eq!(id, "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab-12");
        assert_eq!(parse_task_question_id(&id), Some((task, 12)));
        for bad in [
            "",
            "tiq-task-",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab-",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab-0",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab-01",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab-+1",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab--1",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaab-4294967296",
            "tiq-task-AAAAAAAAAAAAAAAAAAAAAAAAAB-1",
            "tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaa-1",
            "TIQ-task-aaaaaaaaaaaaaaaaaaaaaaaaab-1",
        ] {
            assert_eq!(parse_task_question_id(bad), None, "{bad}");
        }
    }
}
