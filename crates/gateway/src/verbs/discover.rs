//! `server/discover`: what we can do, for clients that open no session.

use longhaul_mcp::Reply;

use crate::endpoint::{Answer, Asked, No};
use crate::verbs::hello::welcome;

pub(crate) fn discover(asked: &Asked) -> Result<Answer, No> {
    let welcome = welcome(&asked.shared, asked.dialect).ok_or(No::Unavailable)?;
    Ok(asked.well(&Reply::Discovered(welcome)))
}
