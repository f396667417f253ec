//! `logging/setLevel`: from which level on a session wants log messages (MCP 2025-11-25).

use longhaul_bus::{Control, Hint};
use longhaul_core::LogLevel;
use longhaul_mcp::errors::code;
use longhaul_mcp::{Reply, RpcError};
use longhaul_rpc::{Error, SESSION_NOTES_MAX};
use serde_json::json;

use crate::endpoint::{Answer, Asked, No};

pub(crate) async fn set_level(asked: &Asked, level: LogLevel) -> Result<Answer, No> {
    let shared = asked.shared.clone();
    let (session, tag) = asked.session.clone().ok_or_else(|| asked.fault())?;
    let setting = {
        let shared = shared.clone();
        let owner = asked.principal.clone();
        async move {
            let taken = shared.sessions.set_log_level(&*shared.control, &owner, &session, tag, level).await?;
            shared.bus.publish(Hint::Control(Control::Sessions));
            Ok::<_, Error>(taken)
        }
    };
    if !shared.see_through(setting).await.map_err(|error| asked.failed(error))? {
        return Err(No::Denied(too_many_sessions().into()));
    }
    Ok(asked.well(&Reply::Done))
}

/// So much is remembered of a caller's sessions that there is no room for more.
pub(crate) fn too_many_sessions() -> RpcError {
    let message = format!(
        "too many sessions have ended or set a log level ({SESSION_NOTES_MAX} at most): each is forgotten a day after it began"
    );
    RpcError::with_data(code::LIMIT, message, &json!({ "refused_by": "session_limit" }))
}
