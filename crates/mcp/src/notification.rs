//! Notifications that are the same in both eras but for their `_meta`.

use bytes::Bytes;
use longhaul_core::{LogMessage, Progress};
use serde::Serialize;
use serde_json::Number;
use serde_json::value::RawValue;

use crate::jsonrpc::notification_body;
use crate::request::Listing;

/// Integers beyond this are not told apart by a double.
const EXACT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// How far a call is. `None` if it cannot be said in JSON: a progress that is no number, or a token that is no JSON.
pub(crate) fn progress<M: Serialize>(token: &[u8], progress: &Progress, meta: Option<M>) -> Option<Bytes> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a, M> {
        progress_token: &'a RawValue,
        progress: Number,
        #[serde(skip_serializing_if = "Option::is_none")]
        total: Option<Number>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'a str>,
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<M>,
    }
    let params = Params {
        progress_token: serde_json::from_slice(token).ok()?,
        progress: number(progress.progress)?,
        total: progress.total.and_then(number),
        message: progress.message.as_deref(),
        meta,
    };
    Some(notification_body("notifications/progress", &params))
}

/// Something for the client's log. `None` if its data is no JSON.
pub(crate) fn log(message: &LogMessage) -> Option<Bytes> {
    #[derive(Serialize)]
    struct Params<'a> {
        level: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logger: Option<&'a str>,
        data: &'a RawValue,
    }
    let params = Params {
        level: message.level.name(),
        logger: message.logger.as_deref(),
        data: serde_json::from_slice(&message.data).ok()?,
    };
    Some(notification_body("notifications/message", &params))
}

/// The method that says that a list has changed. Resources and templates share one.
pub(crate) const fn list_changed(listing: Listing) -> &'static str {
    match listing {
        Listing::Tools => "notifications/tools/list_changed",
        Listing::Prompts => "notifications/prompts/list_changed",
        Listing::Resources | Listing::Templates => "notifications/resources/list_changed",
    }
}

/// The method that says that a resource has changed.
pub(crate) const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// Whole numbers are written without a fraction.
fn number(value: f64) -> Option<Number> {
    if value.fract() == 0.0 && value.abs() < EXACT_INTEGER_MAX {
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}
