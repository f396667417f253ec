//! Claims tasks for the free slots, and runs them.

use std::sync::Arc;
use std::time::Duration;

use longhaul_core::{Fence, LeaseToken, Target, WorkerId};
use longhaul_rpc::{Assignment, Claim, Error, Work};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::answer::unknown;
use crate::backoff::Backoff;
use crate::closing::Closing;
use crate::context::{Context, Means};
use crate::function::Function;
use crate::leases::{Held, Leases, Liveness};
use crate::metrics::Slots;
use crate::run::{Tasks, run};
use crate::seat::Seat;
use crate::tools::{Set, Tools};

/// How long a claim waits at the task-store for a first task, at most.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(20);
/// How long a claim is waited for once the worker drains or has other tools: it may be handing tasks over at that moment.
const CLAIM_LAST: Duration = Duration::from_millis(500);
/// No tool has this name.
const NO_TOOL: &str = " ";

/// Runs tasks.
pub(crate) struct Pump {
    pub(crate) work: Arc<dyn Work>,
    pub(crate) worker: WorkerId,
    pub(crate) tools: Tools,
    pub(crate) leases: Arc<Leases>,
    pub(crate) means: Arc<Means>,
    pub(crate) closing: Arc<Closing>,
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
            let max = 1 + self.slots.available_permits();
            // Not held while waiting for the answer: a run that waited for its caller may want to go on.
            drop(first);
            let tools = sets.borrow_and_update().claimable();
            if tools.is_empty() {
                let Some(Ok(())) = drain.run_until_cancelled(sets.changed()).await else { return };
                continue;
            }
            let max = u32::try_from(max).unwrap_or(u32::MAX);
            let Some((token, assignments, renewed)) = self.ask(tools, max, &mut sets, drain).await else { return };
            for assignment in assignments {
                self.start(assignment, token.clone(), renewed, self.slots.clone().try_acquire_owned().ok());
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
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let token_of_run = self.tasks.runs.token();
        let task = &assignment.task;
        let span = tracing::info_span!(
            "run",
            otel.name = format!("run {}", task.tool),
            gen_ai.tool.name = task.tool,
            task.id = %task.id,
            tenant.id = task.owner.tenant.as_str(),
        );
        longhaul_rpc::trace::set_parent(&span, assignment.trace.traceparent.as_deref());
        let function = self.tools.get(&Target::Tool(task.tool.clone())).map(|(function, _)| function);
        let limit = function.as_ref().and_then(|function| function.timeout);
        let seat = Seat::new(self.slots.clone(), Some(self.gauge.clone()), limit);
        let fence = Fence { id: task.id, attempt: task.attempt, token };
        let context =
            Context::of_task(self.means.clone(), function.clone(), task, assignment.trace.clone(), fence.clone(), seat);
        let held = Held::new(fence, context, renewed);
        if !self.leases.add(held.clone()) {
            return;
        }
        if let Some(permit) = permit {
            held.context.0.seat.sit(permit);
        }
        let pump = self.clone();
        let running = async move {
            pump.run(function, assignment, &held).await;
            held.context.0.seat.free();
            drop(token_of_run);
        };
        // Not awaited here: drain waits for the tokens.
        self.tasks.spawn(running.instrument(span)).detach();
    }

    async fn run(&self, function: Option<Arc<Function>>, assignment: Assignment, held: &Held) {
        let Assignment { task, arguments, .. } = assignment;
        let Some(function) = function else {
            return self.closing.close(held, Some(unknown(&Target::Tool(task.tool))), None).await;
        };
        // Runs that came back from waiting may have been faster.
        tokio::select! {
            () = held.context.0.seat.take() => {}
            _ = held.context.over() => {}
        }
        let (outcome, remains) = run(function, &held.context, arguments, &self.tasks, self.bytes_max).await;
        self.closing.close(held, outcome, Some(remains)).await;
    }
}

/// The same claim once more, for what was handed over already and no more.
fn last(claim: Claim) -> Claim {
    Claim { tools: vec![NO_TOOL.into()], wait: Duration::ZERO, ..claim }
}
