//! What a call came to.

use longhaul_core::{CallError, Outcome};

/// The text of a result.
pub fn text(outcome: Outcome) -> (bool, String) {
    let Outcome::Result { is_error, body } = outcome else { panic!("no result: {outcome:?}") };
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    (is_error, body["content"][0]["text"].as_str().unwrap().to_owned())
}

/// A JSON-RPC error's code and message.
pub fn error(outcome: Outcome) -> (i32, String) {
    let Outcome::Error(CallError { code, message, .. }) = outcome else { panic!("no error: {outcome:?}") };
    (code, message)
}
