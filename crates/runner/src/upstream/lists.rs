//! What a server offers: tools, prompts, resources and their templates, listed whole.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use tokio::time::timeout;

use super::ears::Changes;
use super::{Carrier, Fault, LIST_TIMEOUT, Link, Upstream, next_id};
use crate::wire::{self, Era, Listed, Listing, Request};

/// Pages of one list.
const PAGES_MAX: usize = 100;
/// Items of one list of one server, and tools of all together: a worker has no more.
pub(crate) const LISTED_MAX: usize = 1000;

/// What a server offers.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Offer {
    pub(crate) tools: Vec<Listed>,
    pub(crate) prompts: Vec<Listed>,
    pub(crate) resources: Vec<Listed>,
    pub(crate) templates: Vec<Listed>,
    /// It completes arguments.
    pub(crate) completes: bool,
    /// Some arguments of its tools go into headers too.
    pub(crate) mirrors: bool,
}

impl Offer {
    fn list(&mut self, listing: Listing) -> &mut Vec<Listed> {
        match listing {
            Listing::Tools => &mut self.tools,
            Listing::Prompts => &mut self.prompts,
            Listing::Resources => &mut self.resources,
            Listing::Templates => &mut self.templates,
        }
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tools, prompts, resources, templates, .. } = self;
        let [tools, prompts, resources, templates] = [tools, prompts, resources, templates].map(Vec::len);
        write!(f, "{tools} tools, {prompts} prompts, {resources} resources, {templates} resource templates")
    }
}

impl Upstream {
    /// Lists what has changed and makes it known.
    pub(super) async fn list(&self, link: &Link, changes: u8) -> Result<(), Fault> {
        let mut offer = Offer::clone(&self.offer.borrow());
        for listing in Listing::ALL.into_iter().filter(|listing| changes & Changes::of(*listing) != 0) {
            let has = link.hello.abilities.has(listing);
            *offer.list(listing) = if has { self.list_all(link, listing).await? } else { Vec::new() };
        }
        offer.completes = link.hello.abilities.completions;
        offer.mirrors = link.hello.era == Era::Modern && matches!(link.carrier, Carrier::Endpoint(_));
        self.offer.send_if_modified(|former| {
            let is_new = **former != offer;
            if is_new {
                *former = Arc::new(offer);
            }
            is_new
        });
        Ok(())
    }

    async fn list_all(&self, link: &Link, listing: Listing) -> Result<Vec<Listed>, Fault> {
        let what = listing.name();
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        let mut names = HashSet::new();
        for _ in 0..PAGES_MAX {
            let request = Request::list(listing, cursor.as_deref());
            let answer = timeout(LIST_TIMEOUT, link.request(next_id(), &request, link.own_meta())).await;
            let result = match answer.unwrap_or(Err(Fault::Silent))? {
                Ok(result) => result,
                // Many servers have resources and no templates.
                Err(error) if listing == Listing::Templates && error.code == wire::METHOD_NOT_FOUND => break,
                Err(error) => return Err(Fault::refused(&error)),
            };
            let page = wire::read_page(listing, &result);
            let page = page.ok_or_else(|| Fault::Odd(format!("lists no {what} that MCP knows")))?;
            for item in page.items {
                match wire::read_item(listing, item) {
                    None => tracing::warn!(upstream = %self.name, what, "an item of a list without a name is left out"),
                    Some(item) if !names.insert(item.name.clone()) => {
                        tracing::warn!(upstream = %self.name, what, name = item.name, "an item listed twice is left out once");
                    }
                    Some(item) => items.push(item),
                }
            }
            cursor = page.next;
            if cursor.is_none() || items.len() > LISTED_MAX {
                break;
            }
        }
        if cursor.is_some() || items.len() > LISTED_MAX {
            tracing::warn!(upstream = %self.name, what, LISTED_MAX, PAGES_MAX, "too long a list: the last items are left out");
            items.truncate(LISTED_MAX);
        }
        Ok(items)
    }
}
