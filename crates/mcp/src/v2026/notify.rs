//! Notifications to clients. Those of a subscription name it, by the id of the request that opened it (MCP 2026-07-28,
//! basic/patterns/subscriptions).

use bytes::Bytes;
use longhaul_core::{LogMessage, Outcome, Progress, Task};
use serde::Serialize;

use crate::jsonrpc::{RequestId, append, notification_body};
use crate::notification;
use crate::request::{Filter, Listing};
use crate::v2026::write::{Detail, append_open_task};

/// The first word of a subscription: what of its request will be honoured.
pub fn acknowledged(subscription: &RequestId, honoured: &Filter) -> Bytes {
    #[derive(Serialize)]
    struct Acknowledged<'a> {
        notifications: Honoured<'a>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Honoured<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        tools_list_changed: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        prompts_list_changed: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        resources_list_changed: Option<bool>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        resource_subscriptions: &'a [String],
        #[serde(skip_serializing_if = "Option::is_none")]
        task_ids: Option<Vec<String>>,
    }
    let Filter { tools, prompts, resources, resource_uris, tasks } = honoured;
    let said = |flag: &bool| flag.then_some(true);
    let notifications = Honoured {
        tools_list_changed: said(tools),
        prompts_list_changed: said(prompts),
        resources_list_changed: said(resources),
        resource_subscriptions: resource_uris,
        task_ids: tasks.as_ref().map(|ids| ids.iter().map(ToString::to_string).collect()),
    };
    of_subscription("notifications/subscriptions/acknowledged", subscription, Acknowledged { notifications })
}

/// How a task is: what `tasks/get` would say now. `None` if it ended with something to tell, and `outcome` does not tell
/// it.
pub fn task(subscription: &RequestId, task: &Task, outcome: Option<&Outcome>, poll_interval_ms: u64) -> Option<Bytes> {
    let detail = Detail::of(task, outcome)?;
    let mut out = Vec::with_capacity(detail.size() + 512);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"notifications/tasks","params":"#);
    append_open_task(&mut out, task, &detail, poll_interval_ms, None);
    out.extend_from_slice(br#","_meta":"#);
    append(&mut out, &Meta { subscription });
    out.extend_from_slice(b"}}");
    Some(out.into())
}

/// A list has changed.
pub fn list_changed(subscription: &RequestId, listing: Listing) -> Bytes {
    #[derive(Serialize)]
    struct Nothing {}
    of_subscription(notification::list_changed(listing), subscription, Nothing {})
}

/// A resource has changed.
pub fn resource_updated(subscription: &RequestId, uri: &str) -> Bytes {
    #[derive(Serialize)]
    struct Updated<'a> {
        uri: &'a str,
    }
    of_subscription(notification::RESOURCE_UPDATED, subscription, Updated { uri })
}

/// How far a call is, under the token that its caller gave, on its own stream. `None` if it cannot be said in JSON: a
/// progress that is no number, or a token that is no JSON.
pub fn progress(token: &[u8], progress: &Progress) -> Option<Bytes> {
    notification::progress::<()>(token, progress, None)
}

/// Something for the log of a call's caller, on its own stream. `None` if its data is no JSON.
pub fn log(message: &LogMessage) -> Option<Bytes> {
    notification::log(message)
}

#[derive(Serialize)]
struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
    subscription: &'a RequestId,
}

fn of_subscription(method: &str, subscription: &RequestId, rest: impl Serialize) -> Bytes {
    #[derive(Serialize)]
    struct Params<'a, T> {
        #[serde(rename = "_meta")]
        meta: Meta<'a>,
        #[serde(flatten)]
        rest: T,
    }
    notification_body(method, &Params { meta: Meta { subscription }, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_is_named_by_its_request_id_digit_by_digit() {
        for id in ["31", "\"31\"", "-7", "123456789012345678901234567890", "\"é\\\"\""] {
            let stream = RequestId::from_json(id).unwrap();
            assert_eq!(
                list_changed(&stream, Listing::Tools),
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
                )
            );
        }
    }

    #[test]
    fn only_what_is_honoured_is_acknowledged() {
        let stream = RequestId::from_json("1").unwrap();
        let said = acknowledged(&stream, &Filter::default());
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        assert_eq!(said["params"]["notifications"], serde_json::json!({}));
    }
}
