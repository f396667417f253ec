//! Says how tasks ended.

use std::sync::Arc;

use longhaul_core::Outcome;
use longhaul_core::limits::{STATUS_MESSAGE_BYTES_MAX, cut};
use longhaul_rpc::{Error, Report, Work};
use tokio::time::Instant;

use crate::answer::internal_error;
use crate::backoff::Backoff;
use crate::leases::{Held, Leases, Liveness};
use crate::run::Remains;

/// How many leases long the storing of an outcome is tried: the task-store gives leases some grace after an outage of
/// its own, and the fence refuses what is too late.
const COMPLETE_LEASES_MAX: u32 = 4;

/// Where outcomes go.
pub(crate) struct Closing {
    pub(crate) work: Arc<dyn Work>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) liveness: Liveness,
}

impl Closing {
    /// Stores how a task ended, if there is anything to say, and lets go of it; what is left of its run may clean up.
    pub(crate) async fn close(&self, held: &Held, outcome: Option<Outcome>, remains: Option<Remains>) {
        held.answered();
        let complete = async {
            if let Some(outcome) = outcome {
                // A failed task should say why, and many clients never ask for the result of one.
                if let Some(words) = words_of_failure(&outcome) {
                    let report = Report { status_message: Some(words), progress: None };
                    if let Err(error) = self.work.report(held.fence.clone(), report).await {
                        tracing::debug!(%error, "a failure's words were not taken");
                    }
                }
                self.complete(held, outcome).await;
            }
            self.leases.remove(held);
        };
        let end = async {
            if let Some(remains) = remains {
                remains.end().await;
            }
        };
        tokio::join!(complete, end);
    }

    /// What was spent comes first: once the task has ended, nobody asks any more.
    async fn say_all(&self, held: &Held, outcome: Outcome) -> Result<(), Error> {
        if let Some(total) = held.context.unsaid_spend() {
            self.work.spend(held.fence.clone(), total).await?;
            held.context.said_spend();
        }
        self.work.complete(held.fence.clone(), outcome).await.map(drop)
    }

    /// Says how a task ended, until that is acknowledged or nobody will hear it.
    async fn complete(&self, held: &Held, mut outcome: Outcome) {
        let mut backoff = Backoff::default();
        let last = Instant::now() + self.liveness.lease * COMPLETE_LEASES_MAX;
        loop {
            match self.say_all(held, outcome.clone()).await {
                Ok(()) => return,
                Err(Error::Refused(refusal)) => return tracing::debug!(%refusal, "a late outcome was refused"),
                Err(Error::Fault(error)) if !matches!(&outcome, Outcome::Error(_)) => {
                    tracing::error!(error, "an outcome could not be stored");
                    outcome = internal_error("the outcome could not be stored");
                }
                Err(error) if matches!(error, Error::Fault(_)) || Instant::now() >= last => {
                    return tracing::error!(%error, "an outcome was lost");
                }
                Err(error) => {
                    tracing::warn!(%error, "an outcome was not acknowledged");
                    backoff.wait().await;
                }
            }
        }
    }
}

/// The first text of a tool error.
fn words_of_failure(outcome: &Outcome) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Failed<'a> {
        #[serde(borrow)]
        content: Vec<Block<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct Block<'a> {
        r#type: std::borrow::Cow<'a, str>,
        text: Option<String>,
    }
    let Outcome::Result { is_error: true, body } = outcome else { return None };
    let failed: Failed<'_> = serde_json::from_slice(body).ok()?;
    let text = failed.content.into_iter().find(|block| block.r#type == "text")?.text?;
    Some(cut(&text, STATUS_MESSAGE_BYTES_MAX).to_owned())
}
