//! `tasks/list`: newest first.

use bytes::Bytes;
use longhaul_core::limits::LIST_PAGE;
use longhaul_mcp::seal::TaskCursor;
use longhaul_mcp::{Denial, Reply, v2025};
use longhaul_rpc::Position;

use crate::endpoint::{Asked, No};
use crate::verbs::CURSOR_LIFE;

pub(crate) async fn list(asked: &Asked, cursor: Option<&str>) -> Result<Bytes, No> {
    let shared = &asked.shared;
    let after = match cursor {
        None => None,
        Some(cursor) => {
            let TaskCursor { created_at, id, .. } = shared.open(&asked.principal, cursor).ok_or(Denial::BadCursor)?;
            Some(Position { created_at, id })
        }
    };
    let page = shared.tasks.list(&asked.principal, after, LIST_PAGE).await?;
    let next = page.tasks.last().filter(|_| page.more).map(|last| {
        let expires_at = shared.clock.now().plus(CURSOR_LIFE);
        shared.seal(&asked.principal, &TaskCursor { created_at: last.created_at, id: last.id, expires_at })
    });
    let reply = Reply::Tasks {
        tasks: &page.tasks,
        poll_interval_ms: shared.config.poll_interval_ms,
        next_cursor: next.as_deref(),
    };
    Ok(v2025::write(asked.dialect(), &asked.id, &reply))
}
