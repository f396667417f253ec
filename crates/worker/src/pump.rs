//! Claims tasks for the free slots, runs them, and says how they ended.

use std::sync::Arc;
use std::time::Duration;

use longhaul_core::limits::{STATUS_MESSAGE_BYTES_MAX, cut};
use longhaul_core::{Fence, LeaseToken, Outcome, WorkerId};
use longhaul_rpc::{Assignment, Claim, Error, Report, Work};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::answer::{internal_error, unknown_tool};
use crate::backoff::Backoff;
use crate::context::{Context, Listeners};
use crate::leases::{Held, Leases, Liveness};
use crate::metrics::Slots;
use crate::run::{Tasks, run};
use crate::tool::Tool;
use crate::tools::{Set, Tools};

/// How long a claim waits at the task-store for a first task, at most.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(20);
/// How long a claim is waited for once the worker drains or has other tools: it may be handing tasks over at that moment.
const CLAIM_LAST: Duration = Duration::from_millis(500);
/// No tool has this name.
const NO_TOOL: &str = " ";
/// How many leases long the storing of an outcome is tried: the task-store gives leases some grace after an outage of
/// its own, and the fence refuses what is too late.
const COMPLETE_LEASES_MAX: u32 = 4;

/// Runs tasks.
pub(crate) struct Pump {
    pub(crate) work: Arc<dyn Work>,
    pub(crate) worker: WorkerId,
    pub(crate) tools: Tools,
    pub(crate) leases: Arc<Leases>,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) gauge: Slots,
    pub(crate) tasks: Tasks,
    pub(crate) liveness: Liveness,
    pub(crate) bytes_max: usize,
}

impl Pump {
    /// Claims and starts tasks until `drain` fires.
    pub(crate) async fn claim(self: &Arc<Self>, drain: &CancellationToken) {
        let mut sets = self.tools.watch();
        loop {
            let Some(Ok(first)) = drain.run_until_cancelled(self.slots.clone().acquire_owned()).await else { return };
            let mut free = vec![first];
            while let Ok(permit) = self.slots.clone().try_acquire_owned() {
                free.push(permit);
            }
            let tools = sets.borrow_and_update().claimable();
            if tools.is_empty() {
                drop(free);
                let Some(Ok(())) = drain.run_until_cancelled(sets.changed()).await else { return };
                continue;
            }
            // Slots are not held while waiting for the answer: only this loop takes them.
            let max = u32::try_from(free.len()).unwrap_or(u32::MAX);
            let Some((token, assignments, renewed)) = self.ask(tools, max, &mut sets, drain).await else { return };
            for (assignment, permit) in assignments.into_iter().zip(free) {
                self.start(assignment, token.clone(), renewed, permit);
            }
        }
    }

    /// Asks until there is an answer: under one token, so that tasks whose handing over was not heard are not lost.
    async fn ask(
        &self,
        tools: Vec<String>,
        max: u32,
        sets: &mut watch::Receiver<Arc<Set>>,
        drain: &CancellationToken,
    ) -> Option<(LeaseToken, Vec<Assignment>, Instant)> {
        let mut backoff = Backoff::default();
        let token = loop {
            match crate::random() {
                Ok(token) => break LeaseToken(token),
                Err(error) => tracing::error!(%error, "no claim without a random token"),
            }
            drain.run_until_cancelled(backoff.wait()).await?;
        };
        // As far as is known here, leases run from when the claim was sent, and each must outlast the next heartbeat.
        let Liveness { heartbeat, self_stop, .. } = self.liveness;
        let wait = CLAIM_WAIT_MAX.min(heartbeat);
        let mut claim = Claim { worker: self.worker.clone(), token: token.clone(), tools, max, wait };
        let (mut again, mut draining, mut outdated) = (false, false, false);
        loop {
            let sent = Instant::now();
            let patience = async {
                let drains = tokio::select! {
                    () = drain.cancelled(), if !draining => true,
                    // There are other tools to claim for, under another token.
                    Ok(()) = sets.changed(), if !draining && !outdated => false,
                    else => std::future::pending().await,
                };
                tokio::time::sleep(CLAIM_LAST).await;
                drains
            };
            let answer = tokio::select! {
                answer = self.work.claim(claim.clone()) => answer,
                drains = patience => {
                    draining |= drains;
                    (again, outdated) = (true, true);
                    claim = last(claim);
                    continue;
                }
            };
            let answer = match answer {
                // The handing over may be long past: make sure of it, since leases run from there.
                Ok(assignments) if !assignments.is_empty() && (again || sent.elapsed() + heartbeat > self_stop) => {
                    self.confirm(assignments).await
                }
                answer => answer.map(|assignments| (assignments, sent)),
            };
            match answer {
                Ok((assignments, renewed)) => return Some((token, assignments, renewed)),
                Err(error) => tracing::warn!(%error, "a claim was not answered"),
            }
            again = true;
            if draining {
                return None;
            }
            if drain.run_until_cancelled(backoff.wait()).await.is_none() {
                draining = true;
                claim = last(claim);
            }
        }
    }

    /// The assignments that are still this worker's, and since when.
    async fn confirm(&self, assignments: Vec<Assignment>) -> Result<(Vec<Assignment>, Instant), Error> {
        let sent = Instant::now();
        let attempts = assignments.iter().map(|one| (one.task.id, one.task.attempt)).collect();
        let held = self.leases.confirm(attempts).await?;
        Ok((assignments.into_iter().filter(|one| held.contains(&one.task.id)).collect(), sent))
    }

    fn start(
        self: &Arc<Self>,
        assignment: Assignment,
        token: LeaseToken,
        renewed: Instant,
        permit: OwnedSemaphorePermit,
    ) {
        let task = &assignment.task;
        let span = tracing::info_span!(
            "run",
            otel.name = format!("run {}", task.tool),
            gen_ai.tool.name = task.tool,
            task.id = %task.id,
            tenant.id = task.owner.tenant.as_str(),
        );
        longhaul_rpc::trace::set_parent(&span, assignment.traceparent.as_deref());
        let tool = self.tools.get(&task.tool);
        let limit = tool.as_ref().and_then(|tool| tool.limit());
        let fence = Fence { id: task.id, attempt: task.attempt, token };
        let held = Held::new(fence, Context::of_task(task, limit), renewed);
        if !self.leases.add(held.clone()) {
            return;
        }
        let pump = self.clone();
        let busy = self.gauge.busy();
        let running = async move {
            pump.run(tool, assignment, &held).await;
            drop((permit, busy));
        };
        // Not awaited here: the slots are what drain waits for.
        self.tasks.spawn(running.instrument(span)).detach();
    }

    async fn run(&self, tool: Option<Arc<Tool>>, assignment: Assignment, held: &Held) {
        let Assignment { task, arguments, .. } = assignment;
        let Some(tool) = tool else {
            held.answered();
            self.complete(held, unknown_tool(&task.tool)).await;
            return self.leases.remove(held);
        };
        let listeners = Listeners::Task(self.work.clone(), held.fence.clone());
        let (outcome, remains) = run(tool, &held.context, arguments, &listeners, &self.tasks, self.bytes_max).await;
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
        tokio::join!(complete, remains.end());
    }

    /// Says how a task ended, until that is acknowledged or nobody will hear it.
    async fn complete(&self, held: &Held, mut outcome: Outcome) {
        let mut backoff = Backoff::default();
        let last = Instant::now() + self.liveness.lease * COMPLETE_LEASES_MAX;
        loop {
            match self.work.complete(held.fence.clone(), outcome.clone()).await {
                Ok(_) => return,
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

/// The same claim once more, for what was handed over already and no more.
fn last(claim: Claim) -> Claim {
    Claim { tools: vec![NO_TOOL.into()], wait: Duration::ZERO, ..claim }
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
