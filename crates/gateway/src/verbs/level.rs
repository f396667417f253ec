//! `logging/setLevel`: from which level on a session wants log messages (MCP 2025-11-25).

use longhaul_bus::{Control, Hint};
use longhaul_core::LogLevel;
use longhaul_mcp::Reply;
use longhaul_rpc::Error;

use crate::endpoint::{Answer, Asked, No};

pub(crate) async fn set_level(asked: &Asked, level: LogLevel) -> Result<Answer, No> {
    let shared = asked.shared.clone();
    let (session, tag) = asked.session.clone().ok_or_else(|| asked.fault())?;
    let setting = {
        let shared = shared.clone();
        async move {
            shared.sessions.set_log_level(&*shared.control, &session, tag, level).await?;
            shared.bus.publish(Hint::Control(Control::Sessions));
            Ok::<_, Error>(())
        }
    };
    shared.see_through(setting).await.map_err(|error| asked.failed(error))?;
    Ok(asked.well(&Reply::Done))
}
