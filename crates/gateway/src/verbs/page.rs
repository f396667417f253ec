//! `tools/list`, `prompts/list`, `resources/list` and `resources/templates/list`: in the order of names.

use longhaul_mcp::seal::ListCursor;
use longhaul_mcp::{Denial, Listing, Reply};

use crate::endpoint::{Answer, Asked, No};
use crate::verbs::CURSOR_LIFE;

pub(crate) fn page(asked: &Asked, listing: Listing, cursor: Option<&str>) -> Result<Answer, No> {
    let shared = &asked.shared;
    let after = match cursor {
        None => None,
        Some(cursor) => {
            let cursor = shared.open::<ListCursor>(&asked.principal, cursor);
            let cursor = cursor.filter(|cursor| cursor.listing == listing);
            Some(cursor.ok_or_else(|| asked.deny(Denial::BadCursor))?.after)
        }
    };
    let offer = shared.catalogue.offer().ok_or(No::Unavailable)?;
    let (items, more) = offer.page(listing, asked.dialect, after.as_deref(), shared.config.tools_page);
    let next = more.map(|after| {
        let expires_at = shared.clock.now().plus(CURSOR_LIFE);
        shared.seal(&asked.principal, &ListCursor { listing, after: after.to_owned(), expires_at })
    });
    Ok(asked.well(&Reply::Page { listing, items, next_cursor: next.as_deref() }))
}
