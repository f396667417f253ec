//! `tasks/list`: newest first.

use longhaul_core::limits::LIST_PAGE;
use longhaul_mcp::seal::TaskCursor;
use longhaul_mcp::{Denial, Reply};
use longhaul_rpc::Position;

use crate::endpoint::{Answer, Asked, No};
use crate::verbs::CURSOR_LIFE;

pub(crate) async fn tasks(asked: &Asked, cursor: Option<&str>) -> Result<Answer, No> {
    let shared = &asked.shared;
    let after = match cursor {
        None => None,
        Some(cursor) => {
            let cursor = shared.open(&asked.principal, cursor);
            let TaskCursor { created_at, id, .. } = cursor.ok_or_else(|| asked.deny(Denial::BadCursor))?;
            Some(Position { created_at, id })
        }
    };
    let mut page = shared.tasks.list(&asked.principal, after, LIST_PAGE).await.map_err(|error| asked.failed(error))?;
    let next = page.tasks.last().filter(|_| page.more).map(|last| {
        let expires_at = shared.clock.now().plus(CURSOR_LIFE);
        shared.seal(&asked.principal, &TaskCursor { created_at: last.created_at, id: last.id, expires_at })
    });
    for task in &mut page.tasks {
        shared.show(task, None);
    }
    Ok(asked.well(&Reply::Tasks {
        tasks: &page.tasks,
        poll_interval_ms: shared.config.poll_interval_ms,
        next_cursor: next.as_deref(),
    }))
}
