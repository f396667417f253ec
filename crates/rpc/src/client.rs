//! The traits over a connection.

use async_trait::async_trait;
use futures::StreamExt as _;
use longhaul_core::{Fence, NewTask, Outcome, Principal, Task, TaskId, Timestamp, WorkerId, WorkerInfo};
use tonic::transport::Channel;

use crate::convert::{self, Bad};
use crate::link::{Links, ServiceToken, message_bytes_max};
use crate::pb::{self, calls_reply, calls_request, tasks_reply, tasks_request, work_reply, work_request};
use crate::pipe::{Answers, DEADLINE, Open, Pipes};
use crate::{
    Assignment, CallEvent, CallEvents, Calls, Claim, Control, Directive, Directives, Error, Invocation, Page, Position,
    Report, TaskCount, Tasks, Work,
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

/// Builds [`Open`]s: generated clients are one type for each service, so this cannot be a function.
macro_rules! pipes {
    ($target:expr, $module:ident, $client:ident, $pinned:expr) => {{
        let target: &Target = $target;
        let opens = target
            .urls
            .iter()
            .map(|url| {
                let channel = target.links.channel(url)?;
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
        if opens.is_empty() {
            return Err(Error::Fault("no URL to connect to".into()));
        }
        Pipes::new(opens, $pinned)
    }};
}

/// [`Tasks`] over a connection.
pub struct TasksClient(Pipes<pb::TasksRequest, pb::TasksReply>);

impl TasksClient {
    /// Connects in the background.
    pub fn new(target: &Target) -> Result<Self, Error> {
        Ok(Self(pipes!(target, tasks_client, TasksClient, false)))
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
        Ok(Self(pipes!(target, work_client, WorkClient, true)))
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
        Ok(Self(pipes!(target, calls_client, CallsClient, false)))
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
        Ok(futures::stream::unfold(Some(answers), async |answers| {
            let mut answers = answers?;
            let event = match answers.next().await {
                Some(calls_reply::Answer::Progress(progress)) => {
                    return Some((Ok(CallEvent::Progress(convert::progress_from(progress))), Some(answers)));
                }
                Some(calls_reply::Answer::Outcome(outcome)) => {
                    convert::outcome_from(outcome).map(CallEvent::Outcome).map_err(Error::from)
                }
                Some(calls_reply::Answer::Refusal(refusal)) => {
                    Err(convert::refusal_from(refusal).map_or_else(Error::from, Error::from))
                }
                Some(calls_reply::Answer::Fault(fault)) => Err(convert::fault_from(fault)),
                None => Err(Error::Unavailable("the worker's connection broke".into())),
            };
            answers.done();
            Some((event, None))
        })
        .boxed())
    }
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
    async fn end_session(&self, session: &str, expires_at: Timestamp) -> Result<(), Error> {
        let end = pb::EndSessionRequest { session: session.to_owned(), expires_at: expires_at.as_micros() };
        self.ask(|mut client| {
            let request = self.token.sign(tonic::Request::new(end.clone()));
            async move { client.end_session(request).await }
        })
        .await?;
        Ok(())
    }

    async fn ended_sessions(&self, after: &str) -> Result<Vec<String>, Error> {
        let all = self
            .ask(|mut client| {
                let request =
                    self.token.sign(tonic::Request::new(pb::EndedSessionsRequest { after: after.to_owned() }));
                async move { client.ended_sessions(request).await }
            })
            .await?;
        Ok(all.into_inner().sessions)
    }
}

impl From<Bad> for Error {
    fn from(bad: Bad) -> Self {
        Self::Fault(format!("the other side sent a frame without a valid {}", bad.0))
    }
}
