//! Notifications to clients.

use bytes::Bytes;
use longhaul_core::{LogMessage, Progress, Task, TaskId};
use serde_json::json;

use crate::jsonrpc::{append, notification_body};
use crate::notification;
use crate::request::Listing;
use crate::v2025::write::{RelatedMeta, WireTask};

/// A task has changed. Unlike other messages of a task it names it nowhere else (MCP 2025-11-25,
/// basic/utilities/tasks, "Task Status Notification").
pub fn task_status(task: &Task, poll_interval_ms: u64) -> Bytes {
    notification_body("notifications/tasks/status", &WireTask::of(task, poll_interval_ms))
}

/// How far a call is, under the token that its caller gave. `None` if it cannot be said in JSON: a progress that is no
/// number, or a token that is no JSON.
pub fn progress(token: &[u8], progress: &Progress, task: Option<TaskId>) -> Option<Bytes> {
    notification::progress(token, progress, task.map(RelatedMeta::of))
}

/// Something for the client's log. `None` if its data is no JSON.
pub fn log(message: &LogMessage) -> Option<Bytes> {
    notification::log(message)
}

/// A list has changed.
pub fn list_changed(listing: Listing) -> Bytes {
    let mut out = Vec::with_capacity(128);
    append(&mut out, &json!({ "jsonrpc": "2.0", "method": notification::list_changed(listing) }));
    out.into()
}

/// A resource has changed that the session subscribed to.
pub fn resource_updated(uri: &str) -> Bytes {
    notification_body(notification::RESOURCE_UPDATED, &json!({ "uri": uri }))
}

/// We no longer wait for the answer to this request of ours.
pub fn cancelled(request_id: &str) -> Bytes {
    notification_body("notifications/cancelled", &json!({ "requestId": request_id }))
}

#[cfg(test)]
mod tests {
    use longhaul_core::{LogLevel, Phase};

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
    }

    #[test]
    fn each_change_has_its_notification() {
        for (listing, method) in [
            (Listing::Tools, "tools"),
            (Listing::Prompts, "prompts"),
            (Listing::Resources, "resources"),
            (Listing::Templates, "resources"),
        ] {
            let method = format!("notifications/{method}/list_changed");
            assert_eq!(list_changed(listing), format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#));
        }
        assert_eq!(
            resource_updated("test://\""),
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://\""}}"#
        );
        assert_eq!(
            cancelled("tiq-task-x-1"),
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"tiq-task-x-1"}}"#
        );
    }

    #[test]
    fn a_log_message_says_its_data_as_it_came() {
        let message = |data: &'static str, logger: Option<&str>| LogMessage {
            level: LogLevel::Notice,
            logger: logger.map(str::to_owned),
            data: Bytes::from_static(data.as_bytes()),
        };
        assert_eq!(
            log(&message(r#"{ "a":1.00 }"#, Some("db"))).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"notice","logger":"db","data":{ "a":1.00 }}}"#
        );
        assert_eq!(
            log(&message("\"x\"", None)).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"notice","data":"x"}}"#
        );
        assert_eq!(log(&message("{", None)), None);
    }
}
