//! `initialize`: opens a session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::{ClientCapabilities, Principal};
use longhaul_mcp::reply::Welcome;
use longhaul_mcp::request::Hello;
use longhaul_mcp::seal::{Session, SessionId};
use longhaul_mcp::{Dialect, Reply, RequestId, write};

use crate::{Shared, random};

/// How long a session lasts, whether it is used or not.
const SESSION_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// What we say of ourselves; `None` as long as it is not known what is offered.
pub(crate) fn welcome(shared: &Shared, dialect: Dialect) -> Option<Welcome<'_>> {
    Some(Welcome {
        name: "longhaul",
        version: env!("CARGO_PKG_VERSION"),
        instructions: shared.config.instructions.as_deref(),
        features: shared.catalogue.features(dialect)?,
    })
}

/// The answer, and the session as its client will show it; `None` as long as it is not known what is offered.
pub(crate) fn hello(
    shared: &Arc<Shared>,
    principal: &Principal,
    id: &RequestId,
    hello: &Hello,
) -> Option<(Bytes, String)> {
    let dialect = Dialect::negotiate(&hello.version);
    let welcome = welcome(shared, dialect)?;
    // Before 2025-11-25 nobody was asked to open a URL.
    let elicitation_url = hello.capabilities.elicitation_url && dialect != Dialect::V2025_06_18;
    let session = Session {
        id: SessionId::from_random(u128::from_be_bytes(random())),
        dialect,
        capabilities: ClientCapabilities { elicitation_url, ..hello.capabilities },
        prompts: welcome.features.prompts,
        resources: welcome.features.resources,
        expires_at: shared.clock.now().plus(SESSION_LIFE),
    };
    tracing::debug!(client = hello.client, version = dialect.version(), "a session begins");
    Some((write(dialect, id, &Reply::Hello(welcome)), shared.seal(principal, &session)))
}
