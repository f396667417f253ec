//! `initialize`: opens a session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::Principal;
use longhaul_mcp::reply::Welcome;
use longhaul_mcp::request::Hello;
use longhaul_mcp::seal::{Session, SessionId};
use longhaul_mcp::{Dialect, Reply, RequestId, v2025};

use crate::{Shared, random};

/// How long a session lasts, whether it is used or not.
const SESSION_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// The answer, and the session as its client will show it.
pub(crate) fn hello(shared: &Arc<Shared>, principal: &Principal, id: &RequestId, hello: &Hello) -> (Bytes, String) {
    let dialect = Dialect::negotiate(&hello.version);
    let session = Session {
        id: SessionId::from_random(u128::from_be_bytes(random())),
        dialect,
        capabilities: hello.capabilities,
        expires_at: shared.clock.now().plus(SESSION_LIFE),
    };
    let welcome = Welcome {
        name: "longhaul",
        version: env!("CARGO_PKG_VERSION"),
        instructions: shared.config.instructions.as_deref(),
        tools_list_changed: true,
        tasks: shared.config.tasks_enabled,
    };
    tracing::debug!(client = hello.client, version = dialect.version(), "a session begins");
    (v2025::write(dialect, id, &Reply::Hello(welcome)), shared.seal(principal, &session))
}
