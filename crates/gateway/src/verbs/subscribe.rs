//! `resources/subscribe` and `resources/unsubscribe`: of which resources a session hears on its stream (MCP 2025-11-25).

use longhaul_bus::{Control, Hint};
use longhaul_core::Target;
use longhaul_mcp::errors::code;
use longhaul_mcp::{Denial, Reply, RpcError};
use longhaul_rpc::{Error, SUBSCRIPTIONS_MAX};
use serde_json::json;

use crate::endpoint::{Answer, Asked, No};

pub(crate) async fn subscribe(asked: &Asked, uri: String) -> Result<Answer, No> {
    let target = Target::Resource(uri);
    if asked.shared.catalogue.workers_for(&target).is_none() {
        return Err(asked.deny(Denial::UnknownResource(target.name())));
    }
    if !set(asked, target.name().to_owned(), true).await? {
        let message = format!("too many subscriptions ({SUBSCRIPTIONS_MAX} at most)");
        let error = RpcError::with_data(code::LIMIT, message, &json!({ "refused_by": "subscription_limit" }));
        return Err(No::Denied(error.into()));
    }
    Ok(asked.well(&Reply::Done))
}

/// The resource need not be there any more.
pub(crate) async fn unsubscribe(asked: &Asked, uri: String) -> Result<Answer, No> {
    set(asked, uri, false).await?;
    Ok(asked.well(&Reply::Done))
}

/// False if there is no room for it.
async fn set(asked: &Asked, uri: String, subscribed: bool) -> Result<bool, No> {
    let shared = asked.shared.clone();
    let (session, tag) = asked.session.clone().ok_or_else(|| asked.fault())?;
    let setting = {
        let shared = shared.clone();
        async move {
            let session_tag = tag.to_string();
            let taken = shared.control.subscribe(&session_tag, &uri, subscribed, session.expires_at).await?;
            shared.notifier.subscribed(tag);
            shared.bus.publish(Hint::Control(Control::Subscriptions { session: session_tag }));
            Ok::<_, Error>(taken)
        }
    };
    shared.see_through(setting).await.map_err(|error| asked.failed(error))
}
