//! The runs whose clients may come back for the answer (MCP 2025-11-25, basic/transports, "Resumability and Redelivery").

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longhaul_mcp::RequestId;
use tokio_util::sync::CancellationToken;

use super::feed::News;
use crate::endpoint::Asked;
use crate::{Shared, random};

/// What runs that are over have said is kept for clients that may come back, in bytes altogether; beyond that nothing is.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The runs whose clients may come back.
pub(crate) struct Runs {
    /// Tells the streams of this process from those of other replicas.
    replica: u32,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    runs: HashMap<u64, KeptRun>,
    bytes: usize,
}

struct KeptRun {
    news: News,
    request: RequestId,
    /// Ends the stream that tells of the run now: each message goes on one stream only.
    holder: CancellationToken,
    /// What it takes once it is over.
    bytes: usize,
}

impl Runs {
    pub(crate) fn new() -> Self {
        Self { replica: u32::from_be_bytes(random()), kept: Mutex::default() }
    }

    pub(super) fn stream_id(&self) -> u64 {
        u64::from(self.replica) << 32 | u64::from(u32::from_be_bytes(random()))
    }

    pub(super) fn is_ours(&self, stream: u64) -> bool {
        stream >> 32 == u64::from(self.replica)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a run whose client was given an event id, and says when another stream has taken it over.
    pub(super) fn keep(&self, asked: &Asked, stream: u64, news: &News) -> CancellationToken {
        let holder = CancellationToken::new();
        let mut kept = self.lock();
        // One that is over already is no longer waited for by anything that would forget it.
        if asked.dialect.has_priming() && !news.borrow().is_over() {
            let run = KeptRun { news: news.clone(), request: asked.id.clone(), holder: holder.clone(), bytes: 0 };
            kept.runs.insert(stream, run);
        }
        holder
    }

    pub(super) fn take_over(&self, asked: &Asked, stream: u64) -> Option<(News, CancellationToken)> {
        let mut kept = self.lock();
        let run = kept.runs.get_mut(&stream).filter(|run| run.request == asked.id)?;
        let holder = CancellationToken::new();
        std::mem::replace(&mut run.holder, holder.clone()).cancel();
        Some((run.news.clone(), holder))
    }

    /// A run is over: keeps what it has said for a while, if there is room.
    pub(super) async fn over(&self, shared: &Shared, stream: u64, bytes: usize) {
        {
            let mut kept = self.lock();
            let has_room = kept.bytes + bytes <= KEPT_BYTES_MAX;
            match kept.runs.get_mut(&stream) {
                None => return,
                Some(run) if has_room => {
                    run.bytes = bytes;
                    kept.bytes += bytes;
                }
                Some(_) => {
                    kept.runs.remove(&stream);
                    return;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(shared.config.pace.answer_kept) => {}
            () = shared.drain.cancelled() => {}
        }
        let mut kept = self.lock();
        if let Some(run) = kept.runs.remove(&stream) {
            kept.bytes -= run.bytes;
        }
    }
}
