//! The requests that may still be called off: by a client that changed its mind (`notifications/cancelled`), or, if they
//! are ours to a client, by its answer, which any replica may get.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_mcp::RequestId;
use tokio_util::sync::CancellationToken;

use crate::sessions::{Tag, digest};

/// A request of a session, in a form that may travel on the bus: it names nobody and gives no right.
pub(crate) fn request_digest(session: Tag, request: &RequestId) -> u128 {
    digest(&[b"request", session.to_string().as_bytes(), request.to_json().as_bytes()])
}

/// The same of a request of ours. Its id is unique.
pub(crate) fn question_digest(id: &str) -> u128 {
    digest(&[b"question", id.as_bytes()])
}

/// The same of a stream, which the client may open anew where it was lost.
pub(crate) fn stream_digest(session: Tag, stream: u64) -> u128 {
    digest(&[b"stream", session.to_string().as_bytes(), &stream.to_be_bytes()])
}

/// The requests in flight on this replica. A careless client may use an id twice at a time.
#[derive(Default)]
pub(crate) struct InFlight {
    requests: Mutex<HashMap<u128, Vec<CancellationToken>>>,
}

impl InFlight {
    /// Adds a request, for as long as the entry lives.
    pub(crate) fn enter(self: &Arc<Self>, session: Tag, request: &RequestId) -> Entry {
        self.enter_as(request_digest(session, request))
    }

    /// Adds what has this digest, for as long as the entry lives.
    pub(crate) fn enter_as(self: &Arc<Self>, digest: u128) -> Entry {
        let cancelled = CancellationToken::new();
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.entry(digest).or_default().push(cancelled.clone());
        Entry { all: self.clone(), digest, cancelled }
    }

    /// Calls a request off; false if it is not here.
    pub(crate) fn cancel(&self, digest: u128) -> bool {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        // Removed at once: a later request may use the id again.
        let found = requests.remove(&digest).unwrap_or_default();
        found.iter().for_each(CancellationToken::cancel);
        !found.is_empty()
    }
}

/// A request in flight.
pub(crate) struct Entry {
    all: Arc<InFlight>,
    digest: u128,
    cancelled: CancellationToken,
}

impl Entry {
    /// Fires when the client no longer wants the answer.
    pub(crate) fn cancelled(&self) -> CancellationToken {
        self.cancelled.clone()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A token is told from others by nothing but what is done to it.
        self.cancelled.cancel();
        let mut requests = self.all.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokens) = requests.get_mut(&self.digest) {
            tokens.retain(|token| !token.is_cancelled());
            if tokens.is_empty() {
                requests.remove(&self.digest);
            }
        }
    }
}
