//! `tools/list`.

use bytes::Bytes;
use longhaul_mcp::seal::ToolCursor;
use longhaul_mcp::{Denial, Reply, v2025};

use crate::endpoint::{Asked, No};
use crate::verbs::CURSOR_LIFE;

pub(crate) fn tools(asked: &Asked, cursor: Option<&str>) -> Result<Bytes, No> {
    let shared = &asked.shared;
    let after = match cursor {
        None => None,
        Some(cursor) => {
            let cursor: ToolCursor = shared.open(&asked.principal, cursor).ok_or(Denial::BadCursor)?;
            Some(cursor.after)
        }
    };
    let offer = shared.catalogue.offer().ok_or(No::Unavailable)?;
    let (tools, more) = offer.page(asked.dialect(), after.as_deref(), shared.config.tools_page);
    let next = more.map(|after| {
        let expires_at = shared.clock.now().plus(CURSOR_LIFE);
        shared.seal(&asked.principal, &ToolCursor { after: after.to_owned(), expires_at })
    });
    Ok(v2025::write(asked.dialect(), &asked.id, &Reply::Tools { tools, next_cursor: next.as_deref() }))
}
