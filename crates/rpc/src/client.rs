//! The traits over a connection.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use longhaul_core::audit::Sealed;
use longhaul_core::{
    Amount, BudgetKey, Fence, InputKey, InputRequest, InputResponse, LogLevel, NewTask, Outcome, Principal, Scope,
    Task, TaskId, TenantId, Timestamp, WorkerId, WorkerInfo,
};
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::audit::{self, AuditChain, AuditRange, Batch};
use crate::budgets::{self, BudgetLease, BudgetReturn, BudgetState, BudgetWish};
use crate::convert::{self, Bad};
use crate::identity::Roles;
use crate::link::{Links, ServiceToken, message_bytes_max};
use crate::pb::{self, calls_reply, calls_request, tasks_reply, tasks_request, work_reply, work_request};
use crate::pipe::{Answers, DEADLINE, Open, Pipes};
use crate::{
    Answers as CallAnswers, Assignment, CallEvent, CallEvents, Calls, Changes, Claim, Control, CredentialChange,
    CredentialInfo, Directive, Directives, Error, Invocation, KeyDigest, NewCredential, Page, Position, Report, Resume,
    SessionNote, SessionPosition, Stopped, Switch, Switched, TaskCount, Tasks, Work, credentials, switches,
};

/// How to reach the replicas of a role.
#[derive(Debug, Clone)]
pub struct Target {
    /// Turns URLs into connections.
    pub links: Links,
    /// One URL for each replica, or one for all behind a balancer; given twice, it gets two connections.
    pub urls: Vec<String>,
    /// What to show there.
    pub token: ServiceToken,
    /// The largest payload, in bytes.
    pub payload_bytes_max: usize,
}

/// Whether these can be the URLs of replicas, wherever they lead.
pub fn check_urls(urls: &[String]) -> Result<(), Error> {
    if urls.is_empty() {
        return Err(Error::Fault("no URL to connect to".into()));
    }
    urls.iter().try_for_each(|url| crate::link::check_url(url))
}

/// Builds [`Open`]s: generated clients are one type for each service, so this cannot be a function.
macro_rules! pipes {
    ($target:expr, $role:expr, $module:ident, $client:ident, $pinned:expr) => {{
        let target: &Target = $target;
        check_urls(&target.urls)?;
        let opens = target
            .urls
            .iter()
            .map(|url| {
                let channel = target.links.channel_to(url, $role)?;
                let (token, max) = (target.token.clone(), message_bytes_max(target.payload_bytes_max));
                let open: Open<_, _> = Box::new(move |requests| {
                    let mut client = pb::$module::$client::<Channel>::new(channel.clone())
                        .max_decoding_message_size(max)
                        .max_encoding_message_size(max);
                    let request = token.sign(tonic::Request::new(requests));
                    Box::pin(async move { client.pipe(request).await.map(tonic::Response::into_inner) })
                });
                Ok(open)
            })
            .collect::<Result<Vec<_>, Error>>()?;
        Pipes::new(opens, $pinned)
    }};
}

/// [`Tasks`] over a connection.
pub struct TasksClient(Pipes<pb::TasksRequest, pb::TasksReply>);

impl TasksClient {
    /// Connects in the background.
    pub fn new(target: &Target) -> Result<Self, Error> {
        Ok(Self(pipes!(target, Roles::TASKSTORE, tasks_client, TasksClient, false)))
    }

    /// Whether any replica can be reached at this moment.
    pub fn up(&self) -> bool {
        self.0.up()
    }

    async fn call(&self, verb: tasks_request::Verb) -> Result<tasks_reply::Answer, Error> {
        use tasks_reply::Answer;
        match self.0.call(verb).await? {
            Answer::Refusal(refusal) => Err(convert::refusal_from(refusal)?.into()),
            Answer::Fault(fault) => Err(convert::fault_from(fault)),
            answer => Ok(answer),
        }
    }
}

fn unexpected<T>() -> Result<T, Error> {
    Err(Error::Fault("the other side answered another question".into()))
}

fn owned(principal: &Principal, id: TaskId) -> pb::OwnedTask {
    pb::OwnedTask { principal: Some(convert::principal_to(principal)), id: id.to_string() }
}

#[async_trait]
impl Tasks for TasksClient {
    async fn create(&self, task: NewTask) -> Result<Task, Error> {
        match self.call(tasks_request::Verb::Create(convert::new_task_to(task))).await? {
            tasks_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn get(&self, principal: &Principal, id: TaskId) -> Result<Task, Error> {
        match self.call(tasks_request::Verb::Get(owned(principal, id))).await? {
            tasks_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn result(&self, principal: &Principal, id: TaskId) -> Result<(Task, Option<Outcome>), Error> {
        match self.call(tasks_request::Verb::Result(owned(principal, id))).await? {
            tasks_reply::Answer::Result(pb::TaskResult { task: Some(task), outcome }) => {
                Ok((convert::task_from(task)?, outcome.map(convert::outcome_from).transpose()?))
            }
            _ => unexpected(),
        }
    }

    async fn list(&self, principal: &Principal, after: Option<Position>, limit: u32) -> Result<Page, Error> {
        let list = pb::ListTasks {
            principal: Some(convert::principal_to(principal)),
            limit,
            after: after
                .map(|after| pb::ListPosition { created_at: after.created_at.as_micros(), id: after.id.to_string() }),
        };
        match self.call(tasks_request::Verb::List(list)).await? {
            tasks_reply::Answer::Page(page) => {
                let tasks = page.tasks.into_iter().map(convert::task_from).collect::<Result<_, _>>()?;
                Ok(Page { tasks, more: page.more })
            }
            _ => unexpected(),
        }
    }

    async fn cancel(&self, principal: &Principal, id: TaskId) -> Result<Task, Error> {
        match self.call(tasks_request::Verb::Cancel(owned(principal, id))).await? {
            tasks_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn respond(
        &self,
        principal: &Principal,
        id: TaskId,
        answers: Vec<(InputKey, InputResponse)>,
    ) -> Result<Task, Error> {
        let respond = pb::Respond {
            principal: Some(convert::principal_to(principal)),
            id: id.to_string(),
            answers: convert::keyed_to(answers),
        };
        match self.call(tasks_request::Verb::Respond(respond)).await? {
            tasks_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn carry(
        &self,
        principal: &Principal,
        id: TaskId,
        stream: &str,
        age: Option<Duration>,
        lease: Duration,
    ) -> Result<bool, Error> {
        let carry = pb::Carry {
            principal: Some(convert::principal_to(principal)),
            id: id.to_string(),
            stream: stream.to_owned(),
            lease_ms: u32::try_from(lease.as_millis()).unwrap_or(u32::MAX),
            age_us: age.map(|age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX)),
        };
        match self.call(tasks_request::Verb::Carry(carry)).await? {
            tasks_reply::Answer::Carried(carried) => Ok(carried.granted),
            _ => unexpected(),
        }
    }

    async fn changed(&self, seen: Vec<(TaskId, u64)>) -> Result<Vec<(TaskId, u64)>, Error> {
        match self.call(tasks_request::Verb::Changed(convert::seen_to(seen))).await? {
            tasks_reply::Answer::Changed(changed) => Ok(convert::seen_from(changed)?),
            _ => unexpected(),
        }
    }

    async fn tools(&self) -> Result<Vec<WorkerInfo>, Error> {
        use tasks_reply::Answer;
        let mut answers = self.0.open(tasks_request::Verb::Tools(pb::Tools {})).await?;
        let gather = async {
            let mut workers = Vec::new();
            loop {
                match answers.next().await {
                    Some(Answer::Worker(worker)) => workers.push(convert::worker_from(worker)?),
                    Some(Answer::End(_)) => break,
                    Some(Answer::Fault(fault)) => return Err(convert::fault_from(fault)),
                    Some(_) => return unexpected(),
                    None => return Err(Error::Unavailable("the connection broke".into())),
                }
            }
            answers.done();
            Ok(workers)
        };
        tokio::time::timeout(DEADLINE, gather).await.map_err(|_| Error::Unavailable("no answer in time".into()))?
    }

    async fn count(&self) -> Result<TaskCount, Error> {
        match self.call(tasks_request::Verb::Count(pb::Count {})).await? {
            tasks_reply::Answer::Count(count) => Ok(TaskCount { stored: count.stored, open: count.open }),
            _ => unexpected(),
        }
    }
}

/// [`Work`] over a connection; stays with one replica for as long as it answers, since directives come from there.
pub struct WorkClient(Pipes<pb::WorkRequest, pb::WorkReply>);

impl WorkClient {
    /// Connects in the background.
    pub fn new(target: &Target) -> Result<Self, Error> {
        Ok(Self(pipes!(target, Roles::TASKSTORE, work_client, WorkClient, true)))
    }

    /// Whether any replica can be reached at this moment.
    pub fn up(&self) -> bool {
        self.0.up()
    }

    async fn call(&self, verb: work_request::Verb) -> Result<work_reply::Answer, Error> {
        plain_work(self.0.call(verb).await?)
    }
}

fn plain_work(answer: work_reply::Answer) -> Result<work_reply::Answer, Error> {
    match answer {
        work_reply::Answer::Refusal(refusal) => Err(convert::refusal_from(refusal)?.into()),
        work_reply::Answer::Fault(fault) => Err(convert::fault_from(fault)),
        answer => Ok(answer),
    }
}

async fn next_work(answers: &mut Answers<pb::WorkRequest, pb::WorkReply>) -> Result<work_reply::Answer, Error> {
    match answers.next().await {
        Some(answer) => plain_work(answer),
        None => Err(Error::Unavailable("the connection broke".into())),
    }
}

#[async_trait]
impl Work for WorkClient {
    async fn attach(&self, worker: WorkerInfo) -> Result<Directives, Error> {
        let mut answers = self.0.open(work_request::Verb::Attach(convert::worker_to(worker))).await?;
        let first = tokio::time::timeout(DEADLINE, next_work(&mut answers)).await;
        match first.map_err(|_| Error::Unavailable("no answer in time".into()))?? {
            work_reply::Answer::Directives(_) => {}
            _ => return unexpected(),
        }
        Ok(futures::stream::unfold(answers, async |mut answers| match next_work(&mut answers).await {
            Ok(work_reply::Answer::Directive(directive)) => Some((convert::directive_from(directive).ok()?, answers)),
            _ => None,
        })
        .fuse()
        .boxed())
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Assignment>, Error> {
        let patience = claim.wait + DEADLINE;
        let mut answers = self.0.open(work_request::Verb::Claim(convert::claim_to(claim))).await?;
        let gather = async {
            let mut assignments = Vec::new();
            loop {
                match next_work(&mut answers).await? {
                    work_reply::Answer::Assignment(assignment) => {
                        assignments.push(convert::assignment_from(assignment)?);
                    }
                    work_reply::Answer::Done(_) => break,
                    _ => return unexpected(),
                }
            }
            answers.done();
            Ok(assignments)
        };
        tokio::time::timeout(patience, gather).await.map_err(|_| Error::Unavailable("no answer in time".into()))?
    }

    async fn heartbeat(&self, worker: &WorkerId, leases: Vec<(TaskId, u32)>) -> Result<Vec<Directive>, Error> {
        let leases = leases.into_iter().map(|(id, attempt)| pb::Attempt { id: id.to_string(), attempt }).collect();
        let beat = pb::Heartbeat { worker: Some(convert::worker_id_to(worker)), leases };
        match self.call(work_request::Verb::Heartbeat(beat)).await? {
            work_reply::Answer::Directives(all) => {
                Ok(all.directives.into_iter().map(convert::directive_from).collect::<Result<_, _>>()?)
            }
            _ => unexpected(),
        }
    }

    async fn report(&self, fence: Fence, report: Report) -> Result<Task, Error> {
        let report = pb::Report {
            fence: Some(convert::fence_to(fence)),
            status_message: report.status_message,
            progress: report.progress.map(convert::progress_to),
        };
        match self.call(work_request::Verb::Report(report)).await? {
            work_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn spend(&self, fence: Fence, total: Amount) -> Result<Task, Error> {
        let spend = pb::Spend { fence: Some(convert::fence_to(fence)), total: Some(budgets::amount_to(total)) };
        match self.call(work_request::Verb::Spend(spend)).await? {
            work_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn request_input(&self, fence: Fence, requests: Vec<InputRequest>, timeout: Duration) -> Result<Task, Error> {
        let request = pb::RequestInput {
            fence: Some(convert::fence_to(fence)),
            requests: convert::requests_to(requests),
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        };
        match self.call(work_request::Verb::RequestInput(request)).await? {
            work_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn withdraw(&self, fence: Fence, keys: Vec<String>) -> Result<Task, Error> {
        let withdraw = pb::Withdraw { fence: Some(convert::fence_to(fence)), keys };
        match self.call(work_request::Verb::Withdraw(withdraw)).await? {
            work_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn collect(&self, fence: Fence, have: Vec<u32>) -> Result<Vec<(u32, InputResponse)>, Error> {
        let collect = pb::Collect { fence: Some(convert::fence_to(fence)), have };
        match self.call(work_request::Verb::Collect(collect)).await? {
            work_reply::Answer::Collected(collected) => Ok(convert::collected_from(collected)?),
            _ => unexpected(),
        }
    }

    async fn record(&self, fence: Fence, nth: u32, entry: Bytes) -> Result<(), Error> {
        let record = pb::Record { fence: Some(convert::fence_to(fence)), nth, entry };
        match self.call(work_request::Verb::Record(record)).await? {
            work_reply::Answer::Done(_) => Ok(()),
            _ => unexpected(),
        }
    }

    async fn journal(&self, fence: Fence, after: u32) -> Result<Vec<Bytes>, Error> {
        let read = pb::ReadJournal { fence: Some(convert::fence_to(fence)), after };
        match self.call(work_request::Verb::ReadJournal(read)).await? {
            work_reply::Answer::Journal(journal) => Ok(journal.entries),
            _ => unexpected(),
        }
    }

    async fn complete(&self, fence: Fence, outcome: Outcome) -> Result<Task, Error> {
        let complete =
            pb::Complete { fence: Some(convert::fence_to(fence)), outcome: Some(convert::outcome_to(outcome)) };
        match self.call(work_request::Verb::Complete(complete)).await? {
            work_reply::Answer::Task(task) => Ok(convert::task_from(task)?),
            _ => unexpected(),
        }
    }

    async fn detach(&self, worker: &WorkerId) -> Result<(), Error> {
        match self.call(work_request::Verb::Detach(convert::worker_id_to(worker))).await? {
            work_reply::Answer::Done(_) => Ok(()),
            _ => unexpected(),
        }
    }
}

/// [`Calls`] over a connection to one worker.
pub struct CallsClient(Pipes<pb::CallsRequest, pb::CallsReply>);

impl CallsClient {
    /// Connects in the background.
    pub fn new(target: &Target) -> Result<Self, Error> {
        Ok(Self(pipes!(target, Roles::RUNNER, calls_client, CallsClient, false)))
    }

    /// Whether the worker can be reached at this moment.
    pub fn up(&self) -> bool {
        self.0.up()
    }
}

#[async_trait]
impl Calls for CallsClient {
    async fn invoke(&self, call: Invocation) -> Result<CallEvents, Error> {
        let answers = self.0.open(calls_request::Verb::Invoke(convert::invocation_to(call))).await?;
        Ok(events(answers))
    }

    async fn resume(&self, resume: Resume) -> Result<CallEvents, Error> {
        let answers = self.0.open(calls_request::Verb::Resume(convert::resume_to(resume))).await?;
        Ok(events(answers))
    }

    async fn respond(&self, principal: &Principal, run: &str, answers: CallAnswers) -> Result<(), Error> {
        let respond = pb::RespondCall {
            principal: Some(convert::principal_to(principal)),
            run: run.to_owned(),
            answers: convert::answers_to(answers),
        };
        self.done(calls_request::Verb::Respond(respond)).await
    }

    async fn became(&self, run: &str, task: Option<Task>) -> Result<(), Error> {
        let became = pb::Became { run: run.to_owned(), task: task.map(convert::task_to) };
        self.done(calls_request::Verb::Became(became)).await
    }

    async fn watch(&self, uri: &str) -> Result<BoxStream<'static, Result<(), Error>>, Error> {
        let answers = self.0.open(calls_request::Verb::Watch(pb::Watch { uri: uri.to_owned() })).await?;
        Ok(futures::stream::unfold(Some(answers), async |answers| {
            let mut answers = answers?;
            let error = match answers.next().await {
                Some(calls_reply::Answer::Updated(_)) => return Some((Ok(()), Some(answers))),
                Some(calls_reply::Answer::Done(_)) => {
                    answers.done();
                    return None;
                }
                Some(answer) => plain_call(answer).err().unwrap_or_else(|| Error::Fault("not an update".into())),
                None => Error::Unavailable("the worker's connection broke".into()),
            };
            answers.done();
            Some((Err(error), None))
        })
        .fuse()
        .boxed())
    }
}

impl CallsClient {
    async fn done(&self, verb: calls_request::Verb) -> Result<(), Error> {
        match plain_call(self.0.call(verb).await?)? {
            calls_reply::Answer::Done(_) => Ok(()),
            _ => unexpected(),
        }
    }
}

fn plain_call(answer: calls_reply::Answer) -> Result<calls_reply::Answer, Error> {
    match answer {
        calls_reply::Answer::Refusal(refusal) => Err(convert::refusal_from(refusal)?.into()),
        calls_reply::Answer::Fault(fault) => Err(convert::fault_from(fault)),
        answer => Ok(answer),
    }
}

fn events(answers: Answers<pb::CallsRequest, pb::CallsReply>) -> CallEvents {
    futures::stream::unfold(Some(answers), async |answers| {
        let mut answers = answers?;
        let read = match answers.next().await {
            // The worker hangs up on a run that is parked or has become a task.
            Some(calls_reply::Answer::Done(_)) => {
                answers.done();
                return None;
            }
            Some(answer) => plain_call(answer).and_then(|answer| Ok(event_from(answer)?)),
            None => Err(Error::Unavailable("the worker's connection broke".into())),
        };
        let is_last = matches!(read, Err(_) | Ok(CallEvent::Outcome(_)));
        if is_last {
            answers.done();
        }
        Some((read, (!is_last).then_some(answers)))
    })
    .fuse()
    .boxed()
}

fn event_from(answer: calls_reply::Answer) -> Result<CallEvent, Bad> {
    use calls_reply::Answer;
    Ok(match answer {
        Answer::Progress(progress) => CallEvent::Progress(convert::progress_from(progress)),
        Answer::Log(log) => CallEvent::Log(convert::log_from(log)?),
        Answer::Asked(asked) => CallEvent::Asked(convert::asked_from(asked)?),
        Answer::Withdrawn(withdrawn) => CallEvent::Withdrawn(withdrawn.keys),
        Answer::Becoming(pb::Becoming { run, claimed }) => {
            CallEvent::Becoming { run, claimed: convert::claimed_from(claimed.ok_or(Bad("claimed"))?)? }
        }
        Answer::Spent(spent) => CallEvent::Spent(budgets::amount_from(spent)),
        Answer::Outcome(outcome) => CallEvent::Outcome(convert::outcome_from(outcome)?),
        Answer::Refusal(_) | Answer::Fault(_) | Answer::Done(_) | Answer::Updated(_) => return Err(Bad("event")),
    })
}

/// [`Control`] over a connection.
pub struct ControlClient {
    clients: Vec<pb::control_client::ControlClient<Channel>>,
    token: ServiceToken,
}

impl ControlClient {
    /// Connects when first used.
    pub fn new(target: &Target) -> Result<Self, Error> {
        let clients = target
            .urls
            .iter()
            .map(|url| Ok(pb::control_client::ControlClient::new(target.links.channel(url)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Self { clients, token: target.token.clone() })
    }

    /// Asks one replica after another until one answers.
    async fn ask<F, T>(&self, mut verb: impl FnMut(pb::control_client::ControlClient<Channel>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let mut last = Error::Unavailable("no replica can be reached".into());
        for client in &self.clients {
            match tokio::time::timeout(DEADLINE / self.clients.len() as u32, verb(client.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => last = Error::Unavailable(status.message().to_owned()),
                Err(_) => last = Error::Unavailable("no answer in time".into()),
            }
        }
        Err(last)
    }
}

#[async_trait]
impl Control for ControlClient {
    async fn end_session(&self, owner: &Principal, session: &str, expires_at: Timestamp) -> Result<bool, Error> {
        let end = pb::EndSessionRequest {
            session: session.to_owned(),
            expires_at: expires_at.as_micros(),
            owner: Some(convert::principal_to(owner)),
        };
        let taken = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(end.clone()));
                async move { client.end_session(request).await }
            })
            .await?;
        Ok(taken.into_inner().taken)
    }

    async fn set_log_level(
        &self,
        owner: &Principal,
        session: &str,
        level: LogLevel,
        expires_at: Timestamp,
    ) -> Result<bool, Error> {
        let set = pb::SetLogLevelRequest {
            session: session.to_owned(),
            level: level.name().to_owned(),
            expires_at: expires_at.as_micros(),
            owner: Some(convert::principal_to(owner)),
        };
        let taken = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(set.clone()));
                async move { client.set_log_level(request).await }
            })
            .await?;
        Ok(taken.into_inner().taken)
    }

    async fn sessions(&self, after: &SessionPosition) -> Result<Vec<SessionNote>, Error> {
        let all = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(pb::SessionsRequest {
                    after: after.session.clone(),
                    changed_at: after.changed_at.as_micros(),
                }));
                async move { client.sessions(request).await }
            })
            .await?;
        Ok(convert::notes_from(all.into_inner().sessions)?)
    }

    async fn subscribe(
        &self,
        session: &str,
        uri: &str,
        subscribed: bool,
        expires_at: Timestamp,
    ) -> Result<bool, Error> {
        let subscribe = pb::SubscribeRequest {
            session: session.to_owned(),
            uri: uri.to_owned(),
            subscribed,
            expires_at: expires_at.as_micros(),
        };
        let taken = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(subscribe.clone()));
                async move { client.subscribe(request).await }
            })
            .await?;
        Ok(taken.into_inner().taken)
    }

    async fn subscriptions(&self, session: &str) -> Result<Vec<String>, Error> {
        let all = self
            .ask(|mut client| {
                let request =
                    self.token.sign(tonic::Request::new(pb::SubscriptionsRequest { session: session.to_owned() }));
                async move { client.subscriptions(request).await }
            })
            .await?;
        Ok(all.into_inner().uris)
    }

    async fn create_credential(&self, new: NewCredential) -> Result<Option<CredentialInfo>, Error> {
        let made = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(credentials::new_to(&new)));
                async move { client.create_credential(request).await }
            })
            .await?;
        Ok(made.into_inner().credential.map(credentials::info_from))
    }

    async fn rotate_credential(
        &self,
        id: &str,
        sha256: KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Result<Option<CredentialInfo>, Error> {
        let rotate = credentials::rotate_to(id, sha256, overlap, expires_in);
        let rotated = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(rotate.clone()));
                async move { client.rotate_credential(request).await }
            })
            .await?;
        Ok(rotated.into_inner().credential.map(credentials::info_from))
    }

    async fn revoke_credential(&self, id: &str) -> Result<Option<CredentialInfo>, Error> {
        let revoked = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(pb::RevokeCredentialRequest { id: id.to_owned() }));
                async move { client.revoke_credential(request).await }
            })
            .await?;
        Ok(revoked.into_inner().credential.map(credentials::info_from))
    }

    async fn credentials(&self, tenant: Option<&str>, after: &str) -> Result<Vec<CredentialInfo>, Error> {
        let list = pb::ListCredentialsRequest { tenant: tenant.map(str::to_owned), after: after.to_owned() };
        let page = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(list.clone()));
                async move { client.list_credentials(request).await }
            })
            .await?;
        Ok(page.into_inner().credentials.into_iter().map(credentials::info_from).collect())
    }

    async fn credential_changes(&self, since: u64) -> Result<Changes<CredentialChange>, Error> {
        let page = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(pb::CredentialChangesRequest { since }));
                async move { client.credential_changes(request).await }
            })
            .await?;
        Ok(credentials::changes_from(page.into_inner())?)
    }

    async fn set_switch(&self, scope: &Scope, off: bool, why: &str) -> Result<Switched, Error> {
        let set = pb::SetSwitchRequest { scope: Some(switches::scope_to(scope)), off, why: why.to_owned() };
        let set = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(set.clone()));
                async move { client.set_switch(request).await }
            })
            .await?;
        Ok(switches::switched_from(set.into_inner())?)
    }

    async fn switch_changes(&self, since: u64) -> Result<Changes<Switch>, Error> {
        let page = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(pb::SwitchChangesRequest { since }));
                async move { client.switch_changes(request).await }
            })
            .await?;
        Ok(switches::changes_from(page.into_inner())?)
    }

    async fn stop_running(&self, scope: &Scope) -> Result<Stopped, Error> {
        let stop = pb::StopRunningRequest { scope: Some(switches::scope_to(scope)) };
        let pb::StopRunningResponse { stopped, more } = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(stop.clone()));
                async move { client.stop_running(request).await }
            })
            .await?
            .into_inner();
        Ok(Stopped { stopped, more })
    }

    async fn lease_budget(&self, wishes: Vec<BudgetWish>) -> Result<Vec<BudgetLease>, Error> {
        let count = wishes.len();
        let lease = pb::LeaseBudgetRequest { wishes: wishes.into_iter().map(budgets::wish_to).collect() };
        let leases = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(lease.clone()));
                async move { client.lease_budget(request).await }
            })
            .await?;
        let leases = leases.into_inner().leases.into_iter().map(budgets::lease_from).collect::<Result<Vec<_>, _>>()?;
        if leases.len() != count { unexpected() } else { Ok(leases) }
    }

    async fn return_budget(&self, returns: Vec<BudgetReturn>) -> Result<(), Error> {
        let back = pb::ReturnBudgetRequest { returns: returns.into_iter().map(budgets::return_to).collect() };
        self.ask(|mut client| {
            let request = self.token.sign(tonic::Request::new(back.clone()));
            async move { client.return_budget(request).await }
        })
        .await?;
        Ok(())
    }

    async fn record(&self, batch: Batch) -> Result<(), Error> {
        let record = audit::batch_to(&batch);
        self.ask(|mut client| {
            let request = self.token.sign(tonic::Request::new(record.clone()));
            async move { client.record(request).await }
        })
        .await?;
        Ok(())
    }

    async fn budgets(&self, after: Option<BudgetKey>) -> Result<Vec<BudgetState>, Error> {
        let after = budgets::after_to(after);
        let states = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(after.clone()));
                async move { client.budgets(request).await }
            })
            .await?;
        Ok(states.into_inner().budgets.into_iter().map(budgets::state_from).collect::<Result<_, _>>()?)
    }

    async fn audit_chains(&self, from: Option<&TenantId>) -> Result<Vec<AuditChain>, Error> {
        let from = from.map(|tenant| tenant.as_str().to_owned());
        let chains = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(pb::AuditChainsRequest { from: from.clone() }));
                async move { client.audit_chains(request).await }
            })
            .await?;
        Ok(audit::chains_from(chains.into_inner())?)
    }

    async fn audit_rows(&self, range: AuditRange) -> Result<Vec<Sealed>, Error> {
        let rows = self
            .ask(|mut client| {
                let request = self.token.sign(tonic::Request::new(audit::range_to(&range)));
                async move { client.audit_rows(request).await }
            })
            .await?;
        Ok(audit::rows_from(rows.into_inner())?)
    }
}

/// Whether the first replica of a role says that it serves (`grpc.health.v1`, for the server as a whole). Needs no token.
pub async fn is_serving(target: &Target) -> Result<bool, Error> {
    let url = target.urls.first().ok_or_else(|| Error::Fault("no URL to connect to".into()))?;
    let mut client = HealthClient::new(target.links.channel(url)?);
    let ask = client.check(HealthCheckRequest { service: String::new() });
    let answer =
        tokio::time::timeout(DEADLINE, ask).await.map_err(|_| Error::Unavailable("no answer in time".into()))?;
    let answer = answer.map_err(|status| Error::Unavailable(status.message().to_owned()))?;
    Ok(answer.into_inner().status() == ServingStatus::Serving)
}

impl From<Bad> for Error {
    fn from(bad: Bad) -> Self {
        Self::Fault(format!("the other side sent a frame without a valid {}", bad.0))
    }
}
