//! One short method per verb.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use longhaul_bus::{Control as ControlHint, Hint};
use longhaul_core::audit::Sealed;
use longhaul_core::input::QUESTIONS_MAX;
use longhaul_core::limits::{HEARTBEAT_LEASES_MAX, JOURNAL_ENTRIES_MAX, PAYLOAD_BYTES_MAX};
use longhaul_core::{
    Amount, BudgetKey, CallError, Change, Fence, InputKey, InputRequest, InputResponse, Lease, LeaseToken, LogLevel,
    NewTask, Outcome, Phase, Principal, Progress, Refusal, Scope, Task, TaskId, TenantId, Timestamp, WorkerId,
    WorkerInfo,
};
use longhaul_rpc::{
    AUDIT_PAGE, Assignment, AuditChain, AuditRange, Batch, BudgetLease, BudgetReturn, BudgetState, BudgetWish,
    CHAINS_PAGE, Changes, Claim, Control, CredentialChange, CredentialInfo, Directive, Directives, Error, KeyDigest,
    NewCredential, Page, Position, Report, SESSION_NOTES_MAX, SESSIONS_PAGE, SUBSCRIPTIONS_MAX, SessionNote,
    SessionPosition, Stopped, Switch, Switched, TaskCount, Tasks, Work,
};
use tokio::time::Instant;

use crate::batch::Item;
use crate::hints::Hints;
use crate::store::{
    Committed, Created, Found, Loaded, NewNote, NewRow, OUTCOME_BYTES_MAX, Recorded, Stored, Wanted, Wish, Write,
    insist, weight,
};
use crate::{TaskStore, answers, budgets, metrics};

/// How often a change is decided anew because the task has moved on.
const CONFLICTS_MAX: u32 = 8;
/// Tasks on a page, whatever was asked for.
const LIST_MAX: u32 = 200;
/// Bytes of open questions on a page, since a page is one message; a single task may have more.
const LIST_BYTES_MAX: usize = PAYLOAD_BYTES_MAX / 2;
/// Tasks asked about in one statement.
const CHANGED_MAX: usize = 1000;
/// The longest that a claim waits for a first task.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a waiting claim looks without a hint: with a bus believed to work, and without.
const CLAIM_LOOK: Duration = Duration::from_secs(10);
const CLAIM_LOOK_DEAF: Duration = Duration::from_secs(2);
/// How soon it looks again if others are just taking all there is: what they leave is for this one.
const CLAIM_LOOK_BUSY: Duration = Duration::from_millis(50);
/// Tasks handed out at once.
const CLAIM_MAX: u32 = 256;
/// Argument bytes handed out at once; a single task may have more.
const CLAIM_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The longest that a question waits.
const INPUT_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Bytes of answers collected at once, since they are one message; a single answer may have more.
const COLLECT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX / 2;
/// The longest that a stream carries a task's questions without saying so again.
const CARRY_MAX: Duration = Duration::from_secs(300);
/// The longest URI of a subscription.
const URI_BYTES_MAX: usize = 8 * 1024;
/// Orphans of a former incarnation ended in one statement, and statements.
const ORPHANS_MAX: u32 = 500;
const ORPHAN_ROUNDS_MAX: u32 = 20;
/// The longest time to live that can be added to any creation time.
const TTL_MS_MAX: u64 = i64::MAX as u64 / 4000;
/// JSON-RPC: internal error.
const INTERNAL_ERROR: i32 = -32603;
/// Journal entries read at once, in bytes; one more may begin below it.
const JOURNAL_PAGE_BYTES: usize = 128 * 1024;
/// What a batch counts a stored result of any size as, before it is read.
const RESULT_WEIGHT: usize = 1024 * 1024;

impl Item for NewRow {
    fn weight(&self) -> usize {
        self.new.arguments.len()
    }
}

impl Item for Wanted {
    fn weight(&self) -> usize {
        match (&self.outcome_for, self.whole) {
            (Some(_), true) => RESULT_WEIGHT,
            (Some(_), false) => OUTCOME_BYTES_MAX as usize,
            (None, _) => 0,
        }
    }
}

impl Item for Write {
    fn weight(&self) -> usize {
        weight(self.change.outcome.as_ref()) + self.answers.iter().map(|(_, sealed)| sealed.len()).sum::<usize>()
    }
    fn key(&self) -> Option<u128> {
        Some(self.change.task.id.bits())
    }
}

/// What follows a commit, whoever waits for it.
pub(crate) fn committed(write: &Write, committed: &Committed, hints: &Hints) {
    let task = &write.change.task;
    if let Some(ending) = task.ending() {
        let ran = committed.claimed_at.map(|claimed| between(claimed, committed.updated_at));
        metrics::ended(&task.tool, ending, ran);
        if let (Some(reserved), Some(charged)) = (&task.reserved, task.charged()) {
            reserved.from.iter().for_each(|window| metrics::spent(&window.key.budget, charged));
        }
    }
    hints.changed(task, write.held.is_some());
}

/// What a verb makes of a task.
enum Decided {
    Changed(Change),
    /// There is nothing to change.
    Same(Task),
}

impl From<Change> for Decided {
    fn from(change: Change) -> Self {
        Self::Changed(change)
    }
}

fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::from_micros(u64::try_from(later.as_micros() - earlier.as_micros()).unwrap_or(0))
}

#[async_trait]
impl Tasks for TaskStore {
    async fn create(&self, new: NewTask) -> Result<Task, Error> {
        let owner = new.owner.owner();
        let texts = [&owner, new.owner.tenant.as_str(), &new.tool];
        let trace = [&new.trace.traceparent, &new.trace.tracestate, &new.trace.baggage].map(Option::as_deref);
        let claimed = new
            .claimed
            .iter()
            .flat_map(|claimed| [&*claimed.worker.name, &claimed.worker.incarnation, &claimed.token.0]);
        storable(texts.into_iter().chain(new.session.as_deref()).chain(trace.into_iter().flatten()).chain(claimed))?;
        budgets::check_reserved(&new)?;
        let ttl_ms = self.inner.config.ttl.grant(new.ttl).map(|ms| ms.min(TTL_MS_MAX));
        let created_at = match self.inner.creates.put(NewRow { new: new.clone(), owner, ttl_ms }).await? {
            Created::At(moment) => moment,
            Created::Known => return self.known(&new).await,
            Created::Full(scope) => {
                let limit = match scope {
                    longhaul_core::LimitScope::Caller => self.inner.config.max_open,
                    longhaul_core::LimitScope::Tenant => self.inner.config.max_live,
                };
                return Err(Refusal::TaskLimit { scope, limit }.into());
            }
        };
        let attempt = u32::from(new.claimed.is_some());
        let phase = new.claimed.map_or(Phase::Queued, |claimed| {
            let until = created_at.plus(self.inner.config.lease);
            Phase::Running(Lease { worker: claimed.worker, token: claimed.token, until })
        });
        Ok(Task {
            id: new.id,
            owner: new.owner,
            tool: new.tool,
            phase,
            version: 1,
            attempt,
            status_message: None,
            progress: None,
            progress_token: new.progress_token,
            session: new.session,
            created_at,
            updated_at: created_at,
            ttl_ms,
            client: new.client,
            retry: new.retry,
            inputs: Vec::new(),
            reserved: new.reserved,
            spent: None,
        })
    }

    async fn get(&self, principal: &Principal, id: TaskId) -> Result<Task, Error> {
        Ok(self.owned(principal, self.load(id, None).await?)?.task)
    }

    async fn result(&self, principal: &Principal, id: TaskId) -> Result<(Task, Option<Outcome>), Error> {
        let stored = self.owned(principal, self.load(id, Some(principal)).await?)?;
        Ok((stored.task, stored.outcome))
    }

    async fn list(&self, principal: &Principal, after: Option<Position>, limit: u32) -> Result<Page, Error> {
        let (tenant, owner) = (principal.tenant.as_str(), principal.owner());
        storable([tenant, &owner])?;
        let limit = limit.clamp(1, LIST_MAX);
        let mut tasks = insist(|| self.inner.store.list(tenant, &owner, after, limit + 1)).await?;
        let mut bytes = 0;
        let fit = tasks.iter().take_while(|task| {
            bytes += question_bytes(task);
            bytes <= LIST_BYTES_MAX
        });
        let page = fit.count().clamp(1, limit as usize);
        let more = tasks.len() > page;
        tasks.truncate(page);
        Ok(Page { tasks, more })
    }

    async fn cancel(&self, principal: &Principal, id: TaskId) -> Result<Task, Error> {
        self.change("cancel", id, None, |loaded| self.owned(principal, loaded), |task, _| task.cancel()).await
    }

    async fn respond(
        &self,
        principal: &Principal,
        id: TaskId,
        answers: Vec<(InputKey, InputResponse)>,
    ) -> Result<Task, Error> {
        let decide = |task: Task, _| match task.clone().respond(answers.clone()) {
            // Late, repeated and unknown answers change nothing.
            Err(Refusal::NotAsked | Refusal::AlreadyEnded(_)) => Ok(Decided::Same(task)),
            change => change.map(Decided::Changed),
        };
        self.change("respond", id, None, |loaded| self.owned(principal, loaded), decide).await
    }

    /// False too for an ended task, which asks nothing; letting go is always granted.
    async fn carry(
        &self,
        principal: &Principal,
        id: TaskId,
        stream: &str,
        age: Option<Duration>,
        lease: Duration,
    ) -> Result<bool, Error> {
        storable([stream])?;
        let task = self.owned(principal, self.load(id, None).await?)?.task;
        if task.ending().is_some() && !lease.is_zero() {
            return Ok(false);
        }
        Ok(insist(|| self.inner.store.carry(id, stream, age, lease.min(CARRY_MAX))).await?)
    }

    async fn changed(&self, seen: Vec<(TaskId, u64)>) -> Result<Vec<(TaskId, u64)>, Error> {
        let mut changed = Vec::new();
        for seen in seen.chunks(CHANGED_MAX) {
            changed.extend(insist(|| self.inner.store.changed(seen)).await?);
        }
        Ok(changed)
    }

    async fn tools(&self) -> Result<Vec<WorkerInfo>, Error> {
        let workers = insist(|| self.inner.store.workers(self.inner.config.lease)).await?;
        metrics::know(workers.iter().flat_map(|worker| &worker.tools).map(|tool| &*tool.name));
        Ok(workers)
    }

    async fn count(&self) -> Result<TaskCount, Error> {
        Ok(insist(|| self.inner.store.count()).await?)
    }
}

#[async_trait]
impl Work for TaskStore {
    /// The name of a worker is one process's at a time: an operator who gives two live processes the same name makes each
    /// of them end the other's tasks.
    async fn attach(&self, worker: WorkerInfo) -> Result<Directives, Error> {
        let names = worker.tools.iter().map(|tool| &*tool.name);
        storable([&*worker.id.name, &worker.id.incarnation].into_iter().chain(worker.url.as_deref()).chain(names))?;
        metrics::know(worker.tools.iter().map(|tool| &*tool.name));
        let directives = self.inner.hints.leases.attach(worker.id.clone());
        let this = self.clone();
        self.shielded(async move {
            let store = &this.inner.store;
            insist(|| store.attach(&worker)).await?;
            for _ in 0..ORPHAN_ROUNDS_MAX {
                let orphans = insist(|| store.orphans(&worker.id, ORPHANS_MAX)).await?;
                let last = orphans.len() < ORPHANS_MAX as usize;
                // The process that held them is gone, so their leases are over, whatever time they had left.
                this.apply(orphans, Timestamp::from_micros(i64::MAX), Task::interrupt, false).await?;
                if last {
                    break;
                }
            }
            this.inner.hints.bus.publish(Hint::Control(ControlHint::Tools));
            Ok(())
        })
        .await?;
        Ok(directives)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Assignment>, Error> {
        let Claim { worker, token, mut tools, max, wait } = claim;
        storable([&*worker.name, &worker.incarnation, &token.0])?;
        tools.retain(|tool| storable([&**tool]).is_ok());
        tools.sort();
        tools.dedup();
        if max == 0 || tools.is_empty() {
            return Ok(Vec::new());
        }
        let kind: Arc<[String]> = tools.clone().into();
        let (max, lease) = (max.min(CLAIM_MAX), self.inner.config.lease);
        let wish = Wish { worker, token, tools, max, lease, bytes_max: CLAIM_BYTES_MAX };
        let end = Instant::now() + wait.min(CLAIM_WAIT_MAX);
        loop {
            let mut place = self.inner.hints.queue.enter(&kind, max);
            let assignments = self.claim_now(wish.clone()).await?;
            if !assignments.is_empty() || Instant::now() >= end {
                return Ok(assignments);
            }
            let look = match insist(|| self.inner.store.queued(&kind)).await? {
                true => CLAIM_LOOK_BUSY,
                false if self.inner.hints.bus.healthy() => CLAIM_LOOK,
                false => CLAIM_LOOK_DEAF,
            };
            tokio::select! {
                () = place.woken() => {}
                () = tokio::time::sleep_until(end.min(Instant::now() + look)) => {}
                () = self.inner.closing.cancelled() => return Ok(Vec::new()),
            }
        }
    }

    async fn heartbeat(&self, worker: &WorkerId, leases: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error> {
        storable([&*worker.name, &worker.incarnation])?;
        if leases.len() > HEARTBEAT_LEASES_MAX {
            return Err(Error::Fault(format!("a heartbeat of more than {HEARTBEAT_LEASES_MAX} leases")));
        }
        let (this, worker) = (self.clone(), worker.clone());
        self.shielded(async move {
            let (store, known) = (&this.inner.store, &this.inner.hints.leases);
            let held = insist(|| store.heartbeat(&worker, &leases, this.inner.config.lease)).await?;
            known.runs(&worker, held.keys().map(|id| (*id, 0)));
            let directives = leases.into_iter().filter_map(|(id, _)| match held.get(&id) {
                Some(answered) => answered.then_some(Directive::Answered(id)),
                None => {
                    known.forget(id);
                    Some(Directive::Stop(id))
                }
            });
            Ok(directives.collect())
        })
        .await
    }

    async fn report(&self, fence: Fence, report: Report) -> Result<Task, Error> {
        let finite = |progress: &Progress| progress.progress.is_finite() && progress.total.is_none_or(f64::is_finite);
        let progress = report.progress.filter(finite);
        let held = Some((fence.attempt, fence.token.clone()));
        let decide = |task: Task, _| task.report(&fence, report.status_message.clone(), progress.clone());
        self.change("report", fence.id, held, anyones, decide).await
    }

    async fn spend(&self, fence: Fence, total: Amount) -> Result<Task, Error> {
        let held = Some((fence.attempt, fence.token.clone()));
        self.change("spend", fence.id, held, anyones, |task, _| task.spend(&fence, total)).await
    }

    async fn request_input(&self, fence: Fence, requests: Vec<InputRequest>, timeout: Duration) -> Result<Task, Error> {
        let timeout = timeout.min(INPUT_TIMEOUT_MAX);
        let held = Some((fence.attempt, fence.token.clone()));
        let decide = |task: Task, now: Timestamp| {
            task.held_under(&fence)?;
            match task.has_asked(&requests) {
                true => Ok(Decided::Same(task)),
                false => task.request_input(&fence, requests.clone(), now.plus(timeout)).map(Decided::Changed),
            }
        };
        self.change("request_input", fence.id, held, anyones, decide).await
    }

    async fn withdraw(&self, fence: Fence, keys: Vec<String>) -> Result<Task, Error> {
        let held = Some((fence.attempt, fence.token.clone()));
        let decide = |task: Task, _| match task.clone().withdraw(&fence, &keys) {
            // All of them are closed already.
            Err(Refusal::NotAsked) => Ok(Decided::Same(task)),
            change => change.map(Decided::Changed),
        };
        self.change("withdraw", fence.id, held, anyones, decide).await
    }

    async fn collect(&self, fence: Fence, mut have: Vec<u32>) -> Result<Vec<(u32, InputResponse)>, Error> {
        have.retain(|nth| (1..=QUESTIONS_MAX as u32).contains(nth));
        have.sort_unstable();
        have.dedup();
        for _ in 0..CONFLICTS_MAX {
            let task = anyones(self.load(fence.id, None).await?)?.task;
            task.held_under(&fence)?;
            // If it ended in between, the next look says how.
            let Some(kept) = insist(|| self.inner.store.collect(&fence, &have)).await? else { continue };
            let mut bytes = 0;
            let fit = kept.iter().enumerate().take_while(|(at, (_, sealed))| {
                bytes += sealed.len();
                *at == 0 || bytes <= COLLECT_BYTES_MAX
            });
            let keyring = self.inner.keyring.load();
            let opened = fit.map(|(_, (nth, sealed))| {
                let response = answers::open(&keyring, &task, *nth, sealed).unwrap_or_else(|| {
                    tracing::error!(
                        task.id = %task.id,
                        nth,
                        "an answer cannot be opened, and counts as declined: is its key gone?"
                    );
                    // A fault would be one for ever, and the run would wait for as long.
                    InputResponse::Decline
                });
                (*nth, response)
            });
            return Ok(opened.collect());
        }
        Err(Error::Unavailable("the task keeps changing".into()))
    }

    async fn record(&self, fence: Fence, nth: u32, entry: Bytes) -> Result<(), Error> {
        if !(1..=JOURNAL_ENTRIES_MAX).contains(&nth) {
            return Err(Refusal::JournalFull.into());
        }
        for _ in 0..CONFLICTS_MAX {
            let task = anyones(self.load(fence.id, None).await?)?.task;
            task.held_under(&fence)?;
            let sealed = answers::seal_entry(&self.inner.keyring.load(), &task, nth, &entry);
            let (this, fence) = (self.clone(), fence.clone());
            let recording = async move { Ok(insist(|| this.inner.store.record(&fence, nth, &sealed)).await?) };
            match self.shielded(recording).await? {
                Recorded::There => return Ok(()),
                Recorded::Full => return Err(Refusal::JournalFull.into()),
                Recorded::Gap => return Err(Error::Fault(format!("entry {nth} is not the journal's next one"))),
                // It changed in between: the next look says how.
                Recorded::NotHeld => {}
            }
        }
        Err(Error::Unavailable("the task keeps changing".into()))
    }

    async fn journal(&self, fence: Fence, after: u32) -> Result<Vec<Bytes>, Error> {
        for _ in 0..CONFLICTS_MAX {
            let task = anyones(self.load(fence.id, None).await?)?.task;
            task.held_under(&fence)?;
            let after = after.min(JOURNAL_ENTRIES_MAX);
            let page = insist(|| self.inner.store.journal(&fence, after, JOURNAL_PAGE_BYTES)).await?;
            let Some(page) = page else { continue };
            let keyring = self.inner.keyring.load();
            let open = |(nth, sealed): &(u32, Vec<u8>)| {
                let entry = answers::open_entry(&keyring, &task, *nth, sealed).map(Bytes::from);
                entry
                    .ok_or_else(|| Error::Fault(format!("entry {nth} of a journal cannot be opened: is its key gone?")))
            };
            return page.iter().map(open).collect();
        }
        Err(Error::Unavailable("the task keeps changing".into()))
    }

    async fn complete(&self, fence: Fence, outcome: Outcome) -> Result<Task, Error> {
        let outcome = self.bounded(outcome);
        let held = Some((fence.attempt, fence.token.clone()));
        let decide = |task: Task, _| task.complete(&fence, outcome.clone());
        match self.change("complete", fence.id, held, anyones, decide).await {
            Err(Error::Refused(refusal @ Refusal::AlreadyEnded(ending))) if ending == outcome.ending() => {
                self.repeated(&fence, &outcome).await?.ok_or(refusal.into())
            }
            answer => answer,
        }
    }

    async fn detach(&self, worker: &WorkerId) -> Result<(), Error> {
        storable([&*worker.name, &worker.incarnation])?;
        let (this, worker) = (self.clone(), worker.clone());
        self.shielded(async move {
            insist(|| this.inner.store.detach(&worker)).await?;
            this.inner.hints.leases.detach(&worker);
            this.inner.hints.bus.publish(Hint::Control(ControlHint::Tools));
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl Control for TaskStore {
    async fn end_session(&self, owner: &Principal, session: &str, expires_at: Timestamp) -> Result<bool, Error> {
        self.note(owner, session, true, None, expires_at).await
    }

    async fn set_log_level(
        &self,
        owner: &Principal,
        session: &str,
        level: LogLevel,
        expires_at: Timestamp,
    ) -> Result<bool, Error> {
        self.note(owner, session, false, Some(level), expires_at).await
    }

    async fn sessions(&self, after: &SessionPosition) -> Result<Vec<SessionNote>, Error> {
        storable([&*after.session])?;
        Ok(insist(|| self.inner.store.sessions(after, SESSIONS_PAGE)).await?)
    }

    async fn subscribe(
        &self,
        session: &str,
        uri: &str,
        subscribed: bool,
        expires_at: Timestamp,
    ) -> Result<bool, Error> {
        storable([session, uri])?;
        if uri.len() > URI_BYTES_MAX {
            return Err(Error::Fault(format!("a URI of more than {URI_BYTES_MAX} bytes")));
        }
        let (this, session, uri) = (self.clone(), session.to_owned(), uri.to_owned());
        self.shielded(async move {
            let store = &this.inner.store;
            let taken = match subscribed {
                true => insist(|| store.subscribe(&session, &uri, SUBSCRIPTIONS_MAX, expires_at)).await?,
                false => insist(|| store.unsubscribe(&session, &uri)).await.map(|()| true)?,
            };
            if taken {
                this.inner.hints.bus.publish(Hint::Control(ControlHint::Subscriptions { session }));
            }
            Ok(taken)
        })
        .await
    }

    async fn subscriptions(&self, session: &str) -> Result<Vec<String>, Error> {
        storable([session])?;
        Ok(insist(|| self.inner.store.subscriptions(session)).await?)
    }

    async fn create_credential(&self, new: NewCredential) -> Result<Option<CredentialInfo>, Error> {
        self.add_credential(new).await
    }

    async fn rotate_credential(
        &self,
        id: &str,
        sha256: KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Result<Option<CredentialInfo>, Error> {
        self.rekey_credential(id, sha256, overlap, expires_in).await
    }

    async fn revoke_credential(&self, id: &str) -> Result<Option<CredentialInfo>, Error> {
        self.end_credential(id).await
    }

    async fn credentials(&self, tenant: Option<&str>, after: &str) -> Result<Vec<CredentialInfo>, Error> {
        self.list_credentials(tenant, after).await
    }

    async fn credential_changes(&self, since: u64) -> Result<Changes<CredentialChange>, Error> {
        self.read_credential_changes(since).await
    }

    async fn set_switch(&self, scope: &Scope, off: bool, why: &str) -> Result<Switched, Error> {
        self.turn_switch(scope, off, why).await
    }

    async fn switch_changes(&self, since: u64) -> Result<Changes<Switch>, Error> {
        self.read_switch_changes(since).await
    }

    async fn stop_running(&self, scope: &Scope) -> Result<Stopped, Error> {
        self.stop_within(scope).await
    }

    async fn lease_budget(&self, wishes: Vec<BudgetWish>) -> Result<Vec<BudgetLease>, Error> {
        self.lease(wishes).await
    }

    async fn return_budget(&self, returns: Vec<BudgetReturn>) -> Result<(), Error> {
        self.give_back(returns).await
    }

    async fn budgets(&self, after: Option<BudgetKey>) -> Result<Vec<BudgetState>, Error> {
        self.stands(after).await
    }

    async fn record(&self, batch: Batch) -> Result<(), Error> {
        self.record_batch(batch).await
    }

    async fn audit_chains(&self, from: Option<&TenantId>) -> Result<Vec<AuditChain>, Error> {
        storable(from.map(TenantId::as_str))?;
        Ok(insist(|| self.inner.store.chains(from, CHAINS_PAGE)).await?)
    }

    async fn audit_rows(&self, range: AuditRange) -> Result<Vec<Sealed>, Error> {
        storable([range.tenant.as_str()])?;
        Ok(insist(|| self.inner.store.audit_rows(&range, AUDIT_PAGE)).await?)
    }
}

impl TaskStore {
    async fn note(
        &self,
        owner: &Principal,
        session: &str,
        ended: bool,
        log_level: Option<LogLevel>,
        expires_at: Timestamp,
    ) -> Result<bool, Error> {
        let (tenant, owner) = (owner.tenant.as_str().to_owned(), owner.owner());
        storable([session, &tenant, &owner])?;
        let note = NewNote { session: session.to_owned(), tenant, owner, ended, log_level, expires_at };
        let this = self.clone();
        self.shielded(async move {
            let taken = insist(|| this.inner.store.note_session(&note, SESSION_NOTES_MAX)).await?;
            if taken {
                this.inner.hints.bus.publish(Hint::Control(ControlHint::Sessions));
            }
            Ok(taken)
        })
        .await
    }

    /// A change as it is committed: its answers sealed.
    pub(crate) fn write(&self, mut change: Change, held: Option<(u32, LeaseToken)>, overdue: bool) -> Write {
        let responses = std::mem::take(&mut change.responses);
        let keyring = self.inner.keyring.load();
        let seal =
            |(nth, response): &(u32, InputResponse)| (*nth, answers::seal(&keyring, &change.task, *nth, response));
        Write { answers: responses.iter().map(seal).collect(), change, held, overdue }
    }

    async fn load(&self, id: TaskId, principal: Option<&Principal>) -> Result<Loaded, Error> {
        let outcome_for = principal.map(|owner| (owner.tenant.as_str().to_owned(), owner.owner()));
        if let Some((tenant, owner)) = &outcome_for {
            storable([&**tenant, owner])?;
        }
        let mut wanted = Wanted { id, outcome_for, whole: false };
        let loaded = self.inner.loads.put(wanted.clone()).await?;
        let is_left_out = |stored: &Stored| {
            stored.outcome.is_none()
                && stored.task.ending().is_some()
                && principal.is_some_and(|p| stored.task.owner == *p)
        };
        match &loaded.found {
            Found::Task(stored) if is_left_out(stored) => {
                wanted.whole = true;
                self.inner.loads.put(wanted).await
            }
            Found::Task(_) | Found::Tombstone { .. } | Found::Nothing => Ok(loaded),
        }
    }

    /// A task as its owner may see it. Not yours and not there are one answer.
    fn owned(&self, principal: &Principal, loaded: Loaded) -> Result<Stored, Refusal> {
        let remembered = |end: Timestamp| end.plus(self.inner.config.tombstone) > loaded.now;
        match loaded.found {
            Found::Task(stored) if stored.task.owner == *principal => match stored.task.expires_at() {
                Some(end) if end <= loaded.now && remembered(end) => Err(Refusal::Expired),
                Some(end) if end <= loaded.now => Err(Refusal::NotFound),
                Some(_) | None => Ok(*stored),
            },
            Found::Tombstone { tenant, owner, gone_at }
                if tenant == principal.tenant.as_str() && owner == principal.owner() && remembered(gone_at) =>
            {
                Err(Refusal::Expired)
            }
            Found::Task(_) | Found::Tombstone { .. } | Found::Nothing => Err(Refusal::NotFound),
        }
    }

    /// Read, decide, commit; again if the task has moved on meanwhile. (The hint follows the commit by itself.)
    async fn change<D: Into<Decided>>(
        &self,
        verb: &'static str,
        id: TaskId,
        held: Option<(u32, LeaseToken)>,
        access: impl Fn(Loaded) -> Result<Stored, Refusal>,
        decide: impl Fn(Task, Timestamp) -> Result<D, Refusal>,
    ) -> Result<Task, Error> {
        let mut wanted: Option<Task> = None;
        for _ in 0..CONFLICTS_MAX {
            let loaded = self.load(id, None).await?;
            let now = loaded.now;
            let present = access(loaded)?.task;
            if wanted.is_some_and(|wanted| same(wanted, &present)) {
                // The commit whose answer was lost has taken effect after all; nobody has been told of it yet.
                self.inner.hints.changed(&present, held.is_some());
                return Ok(present);
            }
            let change = match decide(present, now)?.into() {
                Decided::Changed(change) => change,
                Decided::Same(task) => return Ok(task),
            };
            // A result is compared with what is stored, where it matters.
            let bare = weight(change.outcome.as_ref()) == 0;
            let mut task = change.task.clone();
            let (committed, repeated) = self.inner.commits.put(self.write(change, held.clone(), false)).await?;
            if let Some(committed) = committed {
                task.updated_at = committed.updated_at;
                return Ok(task);
            }
            // Only a statement that was repeated can have been beaten by itself; else somebody else did the same.
            wanted = (bare && repeated).then_some(task);
            metrics::conflict(verb);
        }
        Err(Error::Unavailable("the task keeps changing".into()))
    }

    /// The task, if it ended by this very completion.
    async fn repeated(&self, fence: &Fence, outcome: &Outcome) -> Result<Option<Task>, Error> {
        let Found::Task(stored) = self.load(fence.id, None).await?.found else { return Ok(None) };
        let Found::Task(stored) = self.load(fence.id, Some(&stored.task.owner)).await?.found else { return Ok(None) };
        let same = stored.task.attempt == fence.attempt
            && stored.token.as_ref() == Some(&fence.token)
            && stored.outcome.as_ref() == Some(outcome);
        if same {
            self.inner.hints.changed(&stored.task, true);
        }
        Ok(same.then_some(stored.task))
    }

    /// The answer to a create whose id is there already.
    async fn known(&self, new: &NewTask) -> Result<Task, Error> {
        let task = self.owned(&new.owner, self.load(new.id, None).await?);
        match task {
            Ok(stored) if stored.task.tool == new.tool => {
                // If the answer to the first create was lost, so was its hint.
                if match &stored.task.phase {
                    Phase::Queued => new.claimed.is_none(),
                    Phase::Running(_) => new.claimed.is_some(),
                    Phase::Ended(_) => false,
                } {
                    self.inner.hints.created(new);
                }
                Ok(stored.task)
            }
            Err(Refusal::Expired) => Err(Refusal::Expired.into()),
            Ok(_) | Err(_) => Err(Error::Fault("the task id is taken".into())),
        }
    }

    async fn claim_now(&self, wish: Wish) -> Result<Vec<Assignment>, Error> {
        // Before the shield: a request that goes away while it waits here must not take tasks.
        let turn = self.inner.claims.clone().acquire_owned().await;
        let this = self.clone();
        self.shielded(async move {
            let _turn = turn;
            let assignments = insist(|| this.inner.store.claim(&wish)).await?;
            for Assignment { task, .. } in &assignments {
                metrics::claimed(&task.tool, between(task.created_at, task.updated_at));
            }
            // No hint: that a task has found a worker is nothing that its owner sees.
            let runs = assignments.iter().map(|assignment| (assignment.task.id, assignment.task.version));
            this.inner.hints.leases.runs(&wish.worker, runs);
            Ok(assignments)
        })
        .await
    }

    fn bounded(&self, outcome: Outcome) -> Outcome {
        let (bytes, max) = (weight(Some(&outcome)), self.inner.config.max_result_bytes);
        if bytes <= max {
            return outcome;
        }
        let message = format!("result too large: {bytes} bytes, at most {max} (task_max_result_bytes)");
        Outcome::Error(CallError { code: INTERNAL_ERROR, message, data: None })
    }

    /// Runs on, even if the request that wants it is dropped.
    pub(crate) async fn shielded<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        match self.inner.tasks.spawn(work).await {
            Ok(answer) => answer,
            Err(error) => Err(Error::Fault(format!("a bug: {error}"))),
        }
    }
}

/// A task as a worker may see it: the fence says what it may do.
fn anyones(loaded: Loaded) -> Result<Stored, Refusal> {
    match loaded.found {
        Found::Task(stored) => Ok(*stored),
        Found::Tombstone { .. } => Err(Refusal::Expired),
        Found::Nothing => Err(Refusal::NotFound),
    }
}

fn question_bytes(task: &Task) -> usize {
    task.open_inputs().map(|(_, _, question)| question.bytes()).sum()
}

/// Whether two values of a task differ at most in what the store stamps.
fn same(mut one: Task, other: &Task) -> bool {
    one.updated_at = other.updated_at;
    if let (Phase::Running(one), Phase::Running(other)) = (&mut one.phase, &other.phase) {
        one.until = other.until;
    }
    one == *other
}

/// Names go into columns of text, which PostgreSQL keeps without NUL.
pub(crate) fn storable<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    match names.into_iter().any(|name| name.contains('\0')) {
        true => Err(Error::Fault("a name with a NUL character".into())),
        false => Ok(()),
    }
}
