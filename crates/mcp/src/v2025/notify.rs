//! Notifications to clients.

use bytes::Bytes;
use longhaul_core::{Progress, Task, TaskId};
use serde::Serialize;
use serde_json::Number;
use serde_json::value::RawValue;

use crate::jsonrpc::notification_body;
use crate::v2025::write::{RelatedMeta, WireTask};

/// Integers beyond this are not told apart by a double.
const EXACT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// A task has changed. Unlike other messages of a task it names it nowhere else (MCP 2025-11-25,
/// basic/utilities/tasks, "Task Status Notification").
pub fn task_status(task: &Task, poll_interval_ms: u64) -> Bytes {
    notification_body("notifications/tasks/status", &WireTask::of(task, poll_interval_ms))
}

/// How far a call is, under the token that its caller gave. `None` if it cannot be said in JSON: a progress that is no
/// number, or a token that is no JSON.
pub fn progress(token: &[u8], progress: &Progress, task: Option<TaskId>) -> Option<Bytes> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        progress_token: &'a RawValue,
        progress: Number,
        #[serde(skip_serializing_if = "Option::is_none")]
        total: Option<Number>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'a str>,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<RelatedMeta>,
    }
    let params = Params {
        progress_token: serde_json::from_slice(token).ok()?,
        progress: number(progress.progress)?,
        total: progress.total.and_then(number),
        message: progress.message.as_deref(),
        meta: task.map(RelatedMeta::of),
    };
    Some(notification_body("notifications/progress", &params))
}

/// The list of tools has changed.
pub fn tools_list_changed() -> Bytes {
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#)
}

/// Whole numbers are written without a fraction.
fn number(value: f64) -> Option<Number> {
    if value.fract() == 0.0 && value.abs() < EXACT_INTEGER_MAX {
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}

#[cfg(test)]
mod tests {
    use longhaul_core::Phase;

    use super::*;
    use crate::v2025::tests::task;

    fn told(progress: f64, total: Option<f64>) -> Progress {
        Progress { progress, total, message: None }
    }

    #[test]
    fn progress_is_told_under_the_callers_token() {
        let with_message = Progress { message: Some("3 of 10".into()), ..told(3.0, Some(10.0)) };
        assert_eq!(
            progress(b"\"p7\"", &with_message, Some(TaskId::from_random(1))).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p7","progress":3,"total":10,"message":"3 of 10","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"aaaaaaaaaaaaaaaaaaaaaaaaab"}}}}"#
        );
        assert_eq!(
            progress(b"12345678901234567890123", &told(0.5, None), None).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":12345678901234567890123,"progress":0.5}}"#
        );
    }

    #[test]
    fn what_json_cannot_say_is_not_told() {
        for endless in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(progress(b"1", &told(endless, None), None), None);
            let sent = progress(b"1", &told(1e300, Some(endless)), None).unwrap();
            let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
            assert_eq!(sent["params"], serde_json::json!({ "progressToken": 1, "progress": 1e300 }));
        }
        assert_eq!(progress(b"not json", &told(1.0, None), None), None);
    }

    #[test]
    fn a_status_notification_is_the_task_and_nothing_else() {
        let sent: serde_json::Value = serde_json::from_slice(&task_status(&task(Phase::Queued), 1000)).unwrap();
        assert_eq!(sent["method"], "notifications/tasks/status");
        assert_eq!(sent.get("id"), None);
        let names: Vec<_> = sent["params"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(names, ["taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"]);
        let changed: serde_json::Value = serde_json::from_slice(&tools_list_changed()).unwrap();
        assert_eq!(changed, serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    }
}
