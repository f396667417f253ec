//! The stream that tells a client of its run.

use bytes::Bytes;
use longhaul_mcp::errors::{Denial, code};
use longhaul_mcp::{RpcError, error_body, sse};
use tokio_util::sync::CancellationToken;

use super::feed::{End, Listener, Word};
use crate::endpoint::{Asked, No};
use crate::metrics::OpenStream;
use crate::stream::{EventIds, Frames, KeepAlive, Source, frames};

/// Opens the stream of a run that goes on.
pub(super) fn open(asked: &Asked, listener: Listener, stream: u64) -> Frames {
    let holder = asked.shared.runs.keep(asked, stream, &listener.news());
    RunStream::frames(asked, listener, holder, EventIds::of(asked, stream, None))
}

/// Goes on with the stream of a run, if it is on this replica.
pub(crate) fn resume(asked: &Asked, stream: u64, seen: u64) -> Result<Frames, No> {
    match asked.shared.runs.take_over(asked, stream) {
        Some((news, holder)) => {
            let ids = EventIds::of(asked, stream, None).after(seen);
            Ok(RunStream::frames(asked, Listener::new(news, seen, None), holder, ids))
        }
        None if asked.shared.runs.is_ours(stream) => {
            let message = "The answer to this call is no longer kept";
            Err(No::Denied(RpcError::new(code::INTERNAL, message).into()))
        }
        // Another replica may have it, and the client's next try may find that one.
        None => Err(No::Unavailable),
    }
}

struct RunStream {
    asked: Asked,
    listener: Listener,
    holder: CancellationToken,
    ids: EventIds,
    keep_alive: KeepAlive,
    step: Step,
    _open: OpenStream,
}

enum Step {
    Begin,
    Run,
    Done,
}

impl RunStream {
    fn frames(asked: &Asked, listener: Listener, holder: CancellationToken, ids: EventIds) -> Frames {
        let open = OpenStream::new(&asked.shared, "call");
        let keep_alive = KeepAlive::new(asked.shared.config.pace.keep_alive);
        frames(Self { asked: asked.clone(), listener, holder, ids, keep_alive, step: Step::Begin, _open: open })
    }
}

impl Source for RunStream {
    async fn next(&mut self) -> Option<Bytes> {
        match self.step {
            Step::Begin => {
                self.step = Step::Run;
                return Some(self.ids.priming());
            }
            Step::Run => {}
            Step::Done => return None,
        }
        let word = tokio::select! {
            biased;
            () = self.holder.cancelled() => {
                self.step = Step::Done;
                return Some(sse::comment("another stream goes on from here"));
            }
            word = self.listener.next() => word,
            () = self.asked.until.clone().expired() => {
                self.step = Step::Done;
                return Some(self.expired());
            }
            comment = self.keep_alive.due() => return Some(comment),
        };
        self.keep_alive.sent();
        let end = match word {
            Some(Word::Said { frame, .. } | Word::Question { frame, .. } | Word::Withdrawn { frame, .. }) => {
                let id = self.ids.at(self.listener.told());
                return Some(sse::message(id.as_deref(), &frame));
            }
            Some(Word::End(end)) => Some(end),
            // The run tells how it ended before it lets go.
            None => None,
        };
        self.step = Step::Done;
        Some(match end? {
            End::Message { body, .. } => self.ids.last(&body),
            End::Unavailable => {
                let error = Denial::Unavailable.reject(self.asked.dialect).error;
                self.ids.last(&error_body(Some(&self.asked.id), &error))
            }
            End::Unwanted => self.ids.nothing_more(),
        })
    }
}

impl RunStream {
    /// The last frame of a stream whose token has expired. In a session the run goes on, and its client comes back for
    /// what it says; else the run ends with its request.
    fn expired(&mut self) -> Bytes {
        if self.asked.dialect.has_priming() {
            return self.ids.come_back();
        }
        let message = "The token of this request has expired: ask again, and for a task if it takes long";
        self.ids.last(&error_body(Some(&self.asked.id), &RpcError::new(code::INTERNAL, message)))
    }
}
