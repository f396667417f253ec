//! What a run has finished, for whoever goes on with its task.

use std::sync::OnceLock;

use bytes::Bytes;
use longhaul_core::limits::{JOURNAL_BYTES_MAX, JOURNAL_ENTRIES_MAX, PAYLOAD_BYTES_MAX};
use longhaul_core::{OnInterrupt, Refusal, Task};
use longhaul_rpc::Error;

use crate::backoff::Backoff;
use crate::context::{Context, Ended};

/// Why an entry is not in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum JournalError {
    /// The run is over.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The journal is as long as it may be.
    #[error("a journal has at most {JOURNAL_ENTRIES_MAX} entries and {JOURNAL_BYTES_MAX} bytes")]
    Full,
    /// The entry is larger than any may be.
    #[error("a journal's entry has at most {PAYLOAD_BYTES_MAX} bytes")]
    TooLarge,
}

/// The journal of a run; empty if it is no task, or one that is not gone on with.
pub(crate) type Journal = OnceLock<tokio::sync::Mutex<Written>>;

/// How many entries there are, if that is known.
pub(crate) struct Written(Option<u32>);

/// The journal of a task that this worker takes up.
pub(crate) fn of(task: &Task) -> Journal {
    match task.retry.on_interrupt {
        OnInterrupt::Resume => OnceLock::from(tokio::sync::Mutex::new(Written((task.attempt == 1).then_some(0)))),
        OnInterrupt::Fail | OnInterrupt::Requeue => OnceLock::new(),
    }
}

impl Context {
    /// What former attempts at this task recorded, and this one so far, in order; empty at the first attempt, in a call
    /// that is not a task, and for a tool that does not [resume](crate::Tool::on_interrupt).
    pub async fn journal(&self) -> Result<Vec<Bytes>, Ended> {
        let (Some(journal), Some(fence), None) = (self.0.journal.get(), self.fence(), &self.1) else {
            self.alive()?;
            return Ok(Vec::new());
        };
        let mut written = journal.lock().await;
        let mut entries = Vec::new();
        loop {
            let page = self.until_over(|| self.0.means.work.journal(fence.clone(), entries.len() as u32)).await;
            let page = page.map_err(|no| no.unwrap_or(Ended::Stopped))?;
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        written.0 = Some(entries.len() as u32);
        Ok(entries)
    }

    /// Adds an entry, and waits until it is committed: whoever goes on with the task will read it. Where there is no
    /// [`journal`](Self::journal) nothing is kept.
    pub async fn record(&self, entry: impl Into<Bytes>) -> Result<(), JournalError> {
        let entry = entry.into();
        if entry.len() > PAYLOAD_BYTES_MAX {
            return Err(JournalError::TooLarge);
        }
        let (Some(journal), Some(fence), None) = (self.0.journal.get(), self.fence(), &self.1) else {
            return Ok(self.alive()?);
        };
        if journal.lock().await.0.is_none() {
            self.journal().await?;
        }
        let mut written = journal.lock().await;
        let nth = written.0.unwrap_or_default() + 1;
        let recorded = self.until_over(|| self.0.means.work.record(fence.clone(), nth, entry.clone())).await;
        recorded.map_err(|no| no.map_or(JournalError::Full, JournalError::Ended))?;
        written.0 = Some(nth);
        Ok(())
    }

    /// Says a verb again until it is answered or the run is over; `None` if the journal is full.
    async fn until_over<T, F>(&self, verb: impl Fn() -> F) -> Result<T, Option<Ended>>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut backoff = Backoff::default();
        loop {
            self.alive().map_err(Some)?;
            let answer = tokio::select! {
                answer = verb() => answer,
                ended = self.over() => return Err(Some(ended)),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Error::Refused(Refusal::JournalFull)) => return Err(None),
                Err(Error::Refused(refusal)) => {
                    self.refused(&refusal);
                    return Err(self.alive().err());
                }
                Err(error) => {
                    tracing::warn!(%error, "a journal was not answered for");
                    tokio::select! {
                        () = backoff.wait() => {}
                        ended = self.over() => return Err(Some(ended)),
                    }
                }
            }
        }
    }
}
