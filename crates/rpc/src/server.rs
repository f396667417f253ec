//! Any [`Tasks`], [`Work`], [`Calls`] or [`Control`] as a gRPC server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use longhaul_core::{TenantId, Timestamp};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::TcpIncoming;
use tonic::{Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::Instrument as _;

use crate::audit;
use crate::budgets;
use crate::convert::{self, Bad};
use crate::identity::Guard;
use crate::link::{Listener, ServiceToken, message_bytes_max};
use crate::pb::{self, calls_reply, calls_request, tasks_reply, tasks_request, work_reply, work_request};
use crate::pipe::{DEADLINE, Replies, serve};
use crate::tls::Tls;
use crate::{
    CallEvent, CallEvents, Calls, Control, Error, Page, Position, Report, SessionPosition, Stopped, Tasks, Work,
    credentials, switches,
};

/// HTTP/2 flow-control windows: a result of the largest size fits without a stall.
const STREAM_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// A gRPC server under construction.
pub struct Server {
    token: ServiceToken,
    payload_bytes_max: usize,
    routes: tonic::service::RoutesBuilder,
    health: HealthReporter,
    tasks: TaskTracker,
    drain: CancellationToken,
    tls: Option<Tls>,
}

/// What every service of one server has.
#[derive(Clone)]
struct Served<T: ?Sized> {
    token: ServiceToken,
    tasks: TaskTracker,
    drain: CancellationToken,
    inner: Arc<T>,
}

type Frames<R> = std::pin::Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

impl Server {
    /// A server that asks for `token` and takes payloads up to `payload_bytes_max`. Once `drain` fires, it takes no
    /// more requests, answers those it has, and ends.
    pub fn new(token: ServiceToken, payload_bytes_max: usize, drain: CancellationToken) -> Self {
        let (health, service) = tonic_health::server::health_reporter();
        let mut routes = tonic::service::RoutesBuilder::default();
        routes.add_service(service);
        Self { token, payload_bytes_max, routes, health, tasks: TaskTracker::new(), drain, tls: None }
    }

    /// Accepts TCP connections with certificates alone.
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// The reporter of the gRPC health service (`grpc.health.v1`), for the server as a whole. It says that it serves until
    /// told otherwise, and that it does not once the drain has fired.
    pub fn health(&self) -> Health {
        Health { reporter: self.health.clone(), drain: self.drain.clone() }
    }

    fn served<T: ?Sized>(&self, inner: Arc<T>) -> Served<T> {
        Served { token: self.token.clone(), tasks: self.tasks.clone(), drain: self.drain.clone(), inner }
    }

    fn message_bytes_max(&self) -> usize {
        message_bytes_max(self.payload_bytes_max)
    }

    /// Serves [`Tasks`].
    pub fn tasks(mut self, tasks: Arc<dyn Tasks>) -> Self {
        let service = pb::tasks_server::TasksServer::new(self.served(tasks))
            .max_decoding_message_size(self.message_bytes_max())
            .max_encoding_message_size(self.message_bytes_max());
        self.routes.add_service(service);
        self
    }

    /// Serves [`Work`].
    pub fn work(mut self, work: Arc<dyn Work>) -> Self {
        let service = pb::work_server::WorkServer::new(self.served(work))
            .max_decoding_message_size(self.message_bytes_max())
            .max_encoding_message_size(self.message_bytes_max());
        self.routes.add_service(service);
        self
    }

    /// Serves [`Calls`].
    pub fn calls(mut self, calls: Arc<dyn Calls>) -> Self {
        let service = pb::calls_server::CallsServer::new(self.served(calls))
            .max_decoding_message_size(self.message_bytes_max())
            .max_encoding_message_size(self.message_bytes_max());
        self.routes.add_service(service);
        self
    }

    /// Serves [`Control`].
    pub fn control(mut self, control: Arc<dyn Control>) -> Self {
        let service = pb::control_server::ControlServer::new(self.served(control));
        self.routes.add_service(service);
        self
    }

    /// Runs until `drain` has fired and the last request has its answer.
    pub async fn serve(self, listener: Listener) -> Result<(), Error> {
        let health = self.health.clone();
        let drain = self.drain.clone();
        let stop = async move {
            drain.cancelled().await;
            health.set_service_status("", ServingStatus::NotServing).await;
        };
        let server = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(5)))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(2 * STREAM_WINDOW_BYTES)
            .layer(Guard(self.token))
            .add_routes(self.routes.routes());
        let served = match (listener, self.tls) {
            (Listener::Tcp(listener), Some(tls)) => {
                server.serve_with_incoming_shutdown(tls.accept(listener), stop).await
            }
            (Listener::Tcp(listener), None) => {
                // The server's own setting would be ignored for a listener, and small replies wait 40 ms without it.
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                server.serve_with_incoming_shutdown(incoming, stop).await
            }
            (Listener::Memory(listener), _) => {
                let incoming = ReceiverStream::new(listener.0).map(Ok::<_, std::io::Error>);
                server.serve_with_incoming_shutdown(incoming, stop).await
            }
        };
        self.tasks.close();
        self.tasks.wait().await;
        served.map_err(|error| Error::Fault(format!("the gRPC server ended: {error}")))
    }
}

/// Tells gRPC health checks how the server is.
#[derive(Clone)]
pub struct Health {
    reporter: HealthReporter,
    drain: CancellationToken,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Health")
    }
}

impl Health {
    /// Serving, or not; once the server drains, not.
    pub async fn set(&self, serving: bool) {
        let is_up = serving && !self.drain.is_cancelled();
        let status = if is_up { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status("", status).await;
    }
}

impl<T: ?Sized + Send + Sync + 'static> Served<T> {
    /// Checks the credential and serves a pipe with one span for each verb.
    fn pipe<Q, R>(
        &self,
        request: tonic::Request<Streaming<Q>>,
        span: fn(&Q::Verb) -> tracing::Span,
        verb: fn(Arc<T>, Q::Verb, Replies<R>) -> BoxFuture<'static, ()>,
    ) -> Result<Response<Frames<R>>, Status>
    where
        Q: crate::pipe::Request,
        R: crate::pipe::Reply,
    {
        self.token.check(request.metadata())?;
        let inner = self.inner.clone();
        let frames =
            serve(request.into_inner(), &self.tasks, self.drain.clone(), move |wanted, traceparent, replies| {
                let span = span(&wanted);
                crate::trace::set_parent(&span, traceparent.as_deref());
                Box::pin(verb(inner.clone(), wanted, replies).instrument(span))
            });
        Ok(Response::new(Box::pin(frames)))
    }
}

#[tonic::async_trait]
impl pb::tasks_server::Tasks for Served<dyn Tasks> {
    type PipeStream = Frames<pb::TasksReply>;

    async fn pipe(
        &self,
        request: tonic::Request<Streaming<pb::TasksRequest>>,
    ) -> Result<Response<Self::PipeStream>, Status> {
        self.pipe(request, tasks_span, |tasks, verb, replies| {
            Box::pin(async move {
                let answer = match verb {
                    tasks_request::Verb::Tools(_) => tools_verb(&*tasks, &replies).await,
                    verb => tasks_verb(&*tasks, verb).await,
                };
                replies.send(answer.unwrap_or_else(tasks_reply::Answer::from)).await;
            })
        })
    }
}

fn tasks_span(verb: &tasks_request::Verb) -> tracing::Span {
    use tasks_request::Verb;
    match verb {
        Verb::Create(task) => tracing::info_span!("create", task.id = task.id),
        Verb::Get(task) => tracing::debug_span!("get", task.id = task.id),
        Verb::Result(task) => tracing::debug_span!("result", task.id = task.id),
        Verb::Cancel(task) => tracing::info_span!("cancel", task.id = task.id),
        Verb::List(_) => tracing::debug_span!("list"),
        Verb::Changed(_) => tracing::trace_span!("changed"),
        Verb::Tools(_) => tracing::trace_span!("tools"),
        Verb::Count(_) => tracing::trace_span!("count"),
        Verb::Respond(task) => tracing::info_span!("respond", task.id = task.id),
        Verb::Carry(task) => tracing::trace_span!("carry", task.id = task.id),
        Verb::CancelRequest(_) => tracing::Span::none(),
    }
}

async fn tasks_verb(tasks: &dyn Tasks, verb: tasks_request::Verb) -> Result<tasks_reply::Answer, Error> {
    use tasks_reply::Answer;
    use tasks_request::Verb;
    let owned =
        |task: pb::OwnedTask| Ok::<_, Bad>((convert::principal_from(task.principal)?, convert::id_from(&task.id)?));
    Ok(match verb {
        Verb::Create(task) => Answer::Task(convert::task_to(tasks.create(convert::new_task_from(task)?).await?)),
        Verb::Get(task) => {
            let (principal, id) = owned(task)?;
            Answer::Task(convert::task_to(tasks.get(&principal, id).await?))
        }
        Verb::Result(task) => {
            let (principal, id) = owned(task)?;
            let (task, outcome) = tasks.result(&principal, id).await?;
            Answer::Result(pb::TaskResult {
                task: Some(convert::task_to(task)),
                outcome: outcome.map(convert::outcome_to),
            })
        }
        Verb::Cancel(task) => {
            let (principal, id) = owned(task)?;
            Answer::Task(convert::task_to(tasks.cancel(&principal, id).await?))
        }
        Verb::List(list) => {
            let after = list.after.map(|after| {
                let id = convert::id_from(&after.id)?;
                Ok::<_, Bad>(Position { created_at: Timestamp::from_micros(after.created_at), id })
            });
            let principal = convert::principal_from(list.principal)?;
            let Page { tasks, more } = tasks.list(&principal, after.transpose()?, list.limit).await?;
            Answer::Page(pb::TaskPage { tasks: tasks.into_iter().map(convert::task_to).collect(), more })
        }
        Verb::Changed(seen) => Answer::Changed(convert::seen_to(tasks.changed(convert::seen_from(seen)?).await?)),
        Verb::Count(_) => {
            let count = tasks.count().await?;
            Answer::Count(pb::TaskCount { stored: count.stored, open: count.open })
        }
        Verb::Respond(respond) => {
            let principal = convert::principal_from(respond.principal)?;
            let answers = convert::keyed_from(respond.answers)?;
            Answer::Task(convert::task_to(tasks.respond(&principal, convert::id_from(&respond.id)?, answers).await?))
        }
        Verb::Carry(carry) => {
            let principal = convert::principal_from(carry.principal)?;
            let (id, lease) = (convert::id_from(&carry.id)?, Duration::from_millis(carry.lease_ms.into()));
            let age = carry.age_us.map(Duration::from_micros);
            Answer::Carried(pb::Carried { granted: tasks.carry(&principal, id, &carry.stream, age, lease).await? })
        }
        Verb::Tools(_) | Verb::CancelRequest(_) => return Err(Bad("verb").into()),
    })
}

async fn tools_verb(tasks: &dyn Tasks, replies: &Replies<pb::TasksReply>) -> Result<tasks_reply::Answer, Error> {
    for worker in tasks.tools().await? {
        replies.send(tasks_reply::Answer::Worker(convert::worker_to(worker))).await;
    }
    Ok(tasks_reply::Answer::End(pb::End {}))
}

#[tonic::async_trait]
impl pb::work_server::Work for Served<dyn Work> {
    type PipeStream = Frames<pb::WorkReply>;

    async fn pipe(
        &self,
        request: tonic::Request<Streaming<pb::WorkRequest>>,
    ) -> Result<Response<Self::PipeStream>, Status> {
        self.pipe(request, work_span, |work, verb, replies| {
            Box::pin(async move {
                if let Err(error) = work_verb(&*work, verb, &replies).await {
                    replies.send(work_reply::Answer::from(error)).await;
                }
            })
        })
    }
}

fn work_span(verb: &work_request::Verb) -> tracing::Span {
    use work_request::Verb;
    let id = |fence: &Option<pb::Fence>| fence.as_ref().map(|fence| fence.id.clone()).unwrap_or_default();
    match verb {
        // These last as long as their connection or their wait: a span would say nothing.
        Verb::Attach(_) | Verb::Claim(_) | Verb::CancelRequest(_) => tracing::Span::none(),
        Verb::Heartbeat(_) => tracing::trace_span!("heartbeat"),
        Verb::Report(report) => tracing::debug_span!("report", task.id = id(&report.fence)),
        Verb::Spend(spend) => tracing::debug_span!("spend", task.id = id(&spend.fence)),
        Verb::RequestInput(request) => tracing::info_span!("request_input", task.id = id(&request.fence)),
        Verb::Withdraw(withdraw) => tracing::info_span!("withdraw", task.id = id(&withdraw.fence)),
        Verb::Collect(collect) => tracing::debug_span!("collect", task.id = id(&collect.fence)),
        Verb::Record(record) => tracing::debug_span!("record", task.id = id(&record.fence)),
        Verb::ReadJournal(read) => tracing::debug_span!("journal", task.id = id(&read.fence)),
        Verb::Complete(complete) => tracing::info_span!("complete", task.id = id(&complete.fence)),
        Verb::Detach(_) => tracing::info_span!("detach"),
    }
}

async fn work_verb(work: &dyn Work, verb: work_request::Verb, replies: &Replies<pb::WorkReply>) -> Result<(), Error> {
    use work_reply::Answer;
    use work_request::Verb;
    let last = match verb {
        Verb::Attach(worker) => {
            let mut directives = work.attach(convert::worker_from(worker)?).await?;
            replies.send(Answer::Directives(pb::Directives::default())).await;
            loop {
                let directive = tokio::select! {
                    directive = directives.next() => directive,
                    () = replies.cancelled.cancelled() => None,
                };
                let Some(directive) = directive else { break };
                if !replies.send(Answer::Directive(convert::directive_to(directive))).await {
                    break;
                }
            }
            Answer::Done(pb::Done {})
        }
        Verb::Claim(claim) => {
            let claim = convert::claim_from(claim)?;
            // A claim that nobody waits for must not take tasks. One that takes some while the server ends is still waited
            // for: its worker may ask another replica before these are committed, and nobody would run them.
            let mut claim = work.claim(claim);
            let wait = tokio::select! {
                biased;
                assignments = &mut claim => Some(assignments?),
                () = replies.cancelled.cancelled() => match replies.drain.is_cancelled() {
                    true => tokio::time::timeout(DEADLINE, claim).await.ok().transpose()?,
                    false => None,
                },
            };
            for assignment in wait.unwrap_or_default() {
                replies.send(Answer::Assignment(convert::assignment_to(assignment))).await;
            }
            Answer::Done(pb::Done {})
        }
        Verb::Heartbeat(beat) => {
            let leases = beat
                .leases
                .into_iter()
                .map(|lease| Ok((convert::id_from(&lease.id)?, lease.attempt)))
                .collect::<Result<_, Bad>>()?;
            let directives = work.heartbeat(&convert::worker_id_from(beat.worker)?, leases).await?;
            let directives = directives.into_iter().map(convert::directive_to).collect();
            Answer::Directives(pb::Directives { directives })
        }
        Verb::Report(report) => {
            let fence = convert::fence_from(report.fence)?;
            let report =
                Report { status_message: report.status_message, progress: report.progress.map(convert::progress_from) };
            Answer::Task(convert::task_to(work.report(fence, report).await?))
        }
        Verb::Spend(spend) => {
            let total = budgets::amount_from(spend.total.ok_or(Bad("total"))?);
            Answer::Task(convert::task_to(work.spend(convert::fence_from(spend.fence)?, total).await?))
        }
        Verb::RequestInput(request) => {
            let requests = convert::requests_from(request.requests)?;
            let (fence, timeout) = (convert::fence_from(request.fence)?, Duration::from_millis(request.timeout_ms));
            Answer::Task(convert::task_to(work.request_input(fence, requests, timeout).await?))
        }
        Verb::Withdraw(withdraw) => {
            Answer::Task(convert::task_to(work.withdraw(convert::fence_from(withdraw.fence)?, withdraw.keys).await?))
        }
        Verb::Collect(collect) => {
            let answers = work.collect(convert::fence_from(collect.fence)?, collect.have).await?;
            Answer::Collected(convert::collected_to(answers))
        }
        Verb::Record(record) => {
            work.record(convert::fence_from(record.fence)?, record.nth, record.entry).await?;
            Answer::Done(pb::Done {})
        }
        Verb::ReadJournal(read) => {
            let entries = work.journal(convert::fence_from(read.fence)?, read.after).await?;
            Answer::Journal(pb::Journal { entries })
        }
        Verb::Complete(complete) => {
            let outcome = convert::outcome_from(complete.outcome.ok_or(Bad("outcome"))?)?;
            Answer::Task(convert::task_to(work.complete(convert::fence_from(complete.fence)?, outcome).await?))
        }
        Verb::Detach(worker) => {
            work.detach(&convert::worker_id_from(Some(worker))?).await?;
            Answer::Done(pb::Done {})
        }
        Verb::CancelRequest(_) => return Err(Bad("verb").into()),
    };
    replies.send(last).await;
    Ok(())
}

#[tonic::async_trait]
impl pb::calls_server::Calls for Served<dyn Calls> {
    type PipeStream = Frames<pb::CallsReply>;

    async fn pipe(
        &self,
        request: tonic::Request<Streaming<pb::CallsRequest>>,
    ) -> Result<Response<Self::PipeStream>, Status> {
        self.pipe(request, calls_span, |calls, verb, replies| {
            Box::pin(async move {
                if let Err(error) = calls_verb(&*calls, verb, &replies).await {
                    replies.send(calls_reply::Answer::from(error)).await;
                }
            })
        })
    }
}

fn calls_span(verb: &calls_request::Verb) -> tracing::Span {
    use calls_request::Verb;
    match verb {
        Verb::Invoke(call) => {
            let tool = match call.target.as_ref().and_then(|target| target.kind.as_ref()) {
                Some(pb::target::Kind::Tool(tool)) => Some(tool.as_str()),
                _ => None,
            };
            tracing::info_span!("invoke", gen_ai.tool.name = tool)
        }
        Verb::Resume(_) => tracing::info_span!("resume"),
        Verb::Respond(_) => tracing::info_span!("respond"),
        Verb::Became(_) => tracing::info_span!("became"),
        // As long as somebody listens.
        Verb::Watch(_) | Verb::CancelRequest(_) => tracing::Span::none(),
    }
}

async fn calls_verb(
    calls: &dyn Calls,
    verb: calls_request::Verb,
    replies: &Replies<pb::CallsReply>,
) -> Result<(), Error> {
    use calls_reply::Answer;
    use calls_request::Verb;
    match verb {
        Verb::Invoke(call) => pass_on(calls.invoke(convert::invocation_from(call)?).await?, replies).await?,
        Verb::Resume(resume) => pass_on(calls.resume(convert::resume_from(resume)?).await?, replies).await?,
        Verb::Respond(respond) => {
            let principal = convert::principal_from(respond.principal)?;
            calls.respond(&principal, &respond.run, convert::answers_from(respond.answers)?).await?;
            replies.send(Answer::Done(pb::CallDone {})).await;
        }
        Verb::Became(became) => {
            calls.became(&became.run, became.task.map(convert::task_from).transpose()?).await?;
            replies.send(Answer::Done(pb::CallDone {})).await;
        }
        Verb::Watch(watch) => {
            let mut updates = calls.watch(&watch.uri).await?;
            loop {
                let update = tokio::select! {
                    update = updates.next() => update,
                    () = replies.cancelled.cancelled() => return Ok(()),
                };
                let answer = match update {
                    Some(Ok(())) => Answer::Updated(pb::ResourceUpdated {}),
                    Some(Err(error)) => return Err(error),
                    None => Answer::Done(pb::CallDone {}),
                };
                let is_last = matches!(answer, Answer::Done(_));
                if !replies.send(answer).await || is_last {
                    return Ok(());
                }
            }
        }
        Verb::CancelRequest(_) => return Err(Bad("verb").into()),
    }
    Ok(())
}

/// Dropping the events tells the run to stop.
async fn pass_on(mut events: CallEvents, replies: &Replies<pb::CallsReply>) -> Result<(), Error> {
    use calls_reply::Answer;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = replies.cancelled.cancelled() => return Ok(()),
        };
        let (answer, is_last) = match event {
            Some(Ok(CallEvent::Progress(progress))) => (Answer::Progress(convert::progress_to(progress)), false),
            Some(Ok(CallEvent::Log(log))) => (Answer::Log(convert::log_to(log)), false),
            Some(Ok(CallEvent::Asked(asked))) => (Answer::Asked(convert::asked_to(asked)), false),
            Some(Ok(CallEvent::Withdrawn(keys))) => (Answer::Withdrawn(pb::CallWithdrawn { keys }), false),
            Some(Ok(CallEvent::Becoming { run, claimed })) => {
                (Answer::Becoming(pb::Becoming { run, claimed: Some(convert::claimed_to(claimed)) }), false)
            }
            Some(Ok(CallEvent::Spent(spent))) => (Answer::Spent(budgets::amount_to(spent)), false),
            Some(Ok(CallEvent::Outcome(outcome))) => (Answer::Outcome(convert::outcome_to(outcome)), true),
            Some(Err(error)) => return Err(error),
            None => (Answer::Done(pb::CallDone {}), true),
        };
        if !replies.send(answer).await || is_last {
            return Ok(());
        }
    }
}

#[tonic::async_trait]
impl pb::control_server::Control for Served<dyn Control> {
    async fn end_session(
        &self,
        request: tonic::Request<pb::EndSessionRequest>,
    ) -> Result<Response<pb::EndSessionResponse>, Status> {
        self.token.check(request.metadata())?;
        let end = request.into_inner();
        let owner = convert::principal_from(end.owner).map_err(|bad| status(bad.into()))?;
        let expires_at = Timestamp::from_micros(end.expires_at);
        let taken = self.inner.end_session(&owner, &end.session, expires_at).await.map_err(status)?;
        Ok(Response::new(pb::EndSessionResponse { taken }))
    }

    async fn set_log_level(
        &self,
        request: tonic::Request<pb::SetLogLevelRequest>,
    ) -> Result<Response<pb::SetLogLevelResponse>, Status> {
        self.token.check(request.metadata())?;
        let set = request.into_inner();
        let level = convert::level_from(&set.level).map_err(|bad| status(bad.into()))?;
        let expires_at = Timestamp::from_micros(set.expires_at);
        let owner = convert::principal_from(set.owner).map_err(|bad| status(bad.into()))?;
        let taken = self.inner.set_log_level(&owner, &set.session, level, expires_at).await.map_err(status)?;
        Ok(Response::new(pb::SetLogLevelResponse { taken }))
    }

    async fn sessions(
        &self,
        request: tonic::Request<pb::SessionsRequest>,
    ) -> Result<Response<pb::SessionsResponse>, Status> {
        self.token.check(request.metadata())?;
        let pb::SessionsRequest { after, changed_at } = request.into_inner();
        let after = SessionPosition { changed_at: Timestamp::from_micros(changed_at), session: after };
        let notes = self.inner.sessions(&after).await.map_err(status)?;
        Ok(Response::new(pb::SessionsResponse { sessions: convert::notes_to(notes) }))
    }

    async fn subscribe(
        &self,
        request: tonic::Request<pb::SubscribeRequest>,
    ) -> Result<Response<pb::SubscribeResponse>, Status> {
        self.token.check(request.metadata())?;
        let pb::SubscribeRequest { session, uri, subscribed, expires_at } = request.into_inner();
        let expires_at = Timestamp::from_micros(expires_at);
        let taken = self.inner.subscribe(&session, &uri, subscribed, expires_at).await.map_err(status)?;
        Ok(Response::new(pb::SubscribeResponse { taken }))
    }

    async fn subscriptions(
        &self,
        request: tonic::Request<pb::SubscriptionsRequest>,
    ) -> Result<Response<pb::SubscriptionsResponse>, Status> {
        self.token.check(request.metadata())?;
        let uris = self.inner.subscriptions(&request.into_inner().session).await.map_err(status)?;
        Ok(Response::new(pb::SubscriptionsResponse { uris }))
    }

    async fn create_credential(
        &self,
        request: tonic::Request<pb::CreateCredentialRequest>,
    ) -> Result<Response<pb::CreateCredentialResponse>, Status> {
        self.token.check(request.metadata())?;
        let new = credentials::new_from(request.into_inner()).map_err(|bad| status(bad.into()))?;
        let made = self.inner.create_credential(new).await.map_err(status)?;
        Ok(Response::new(pb::CreateCredentialResponse { credential: made.map(credentials::info_to) }))
    }

    async fn rotate_credential(
        &self,
        request: tonic::Request<pb::RotateCredentialRequest>,
    ) -> Result<Response<pb::RotateCredentialResponse>, Status> {
        self.token.check(request.metadata())?;
        let rotate = credentials::rotate_from(request.into_inner());
        let (id, sha256, overlap, expires_in) = rotate.map_err(|bad| status(bad.into()))?;
        let rotated = self.inner.rotate_credential(&id, sha256, overlap, expires_in).await.map_err(status)?;
        Ok(Response::new(pb::RotateCredentialResponse { credential: rotated.map(credentials::info_to) }))
    }

    async fn revoke_credential(
        &self,
        request: tonic::Request<pb::RevokeCredentialRequest>,
    ) -> Result<Response<pb::RevokeCredentialResponse>, Status> {
        self.token.check(request.metadata())?;
        let revoked = self.inner.revoke_credential(&request.into_inner().id).await.map_err(status)?;
        Ok(Response::new(pb::RevokeCredentialResponse { credential: revoked.map(credentials::info_to) }))
    }

    async fn list_credentials(
        &self,
        request: tonic::Request<pb::ListCredentialsRequest>,
    ) -> Result<Response<pb::ListCredentialsResponse>, Status> {
        self.token.check(request.metadata())?;
        let pb::ListCredentialsRequest { tenant, after } = request.into_inner();
        let page = self.inner.credentials(tenant.as_deref(), &after).await.map_err(status)?;
        let credentials = page.into_iter().map(credentials::info_to).collect();
        Ok(Response::new(pb::ListCredentialsResponse { credentials }))
    }

    async fn credential_changes(
        &self,
        request: tonic::Request<pb::CredentialChangesRequest>,
    ) -> Result<Response<pb::CredentialChangesResponse>, Status> {
        self.token.check(request.metadata())?;
        let page = self.inner.credential_changes(request.into_inner().since).await.map_err(status)?;
        Ok(Response::new(credentials::changes_to(page)))
    }

    async fn set_switch(
        &self,
        request: tonic::Request<pb::SetSwitchRequest>,
    ) -> Result<Response<pb::SetSwitchResponse>, Status> {
        self.token.check(request.metadata())?;
        let pb::SetSwitchRequest { scope, off, why } = request.into_inner();
        let scope = switches::scope_from(scope).map_err(|bad| status(bad.into()))?;
        let switched = self.inner.set_switch(&scope, off, &why).await.map_err(status)?;
        Ok(Response::new(switches::switched_to(switched)))
    }

    async fn switch_changes(
        &self,
        request: tonic::Request<pb::SwitchChangesRequest>,
    ) -> Result<Response<pb::SwitchChangesResponse>, Status> {
        self.token.check(request.metadata())?;
        let page = self.inner.switch_changes(request.into_inner().since).await.map_err(status)?;
        Ok(Response::new(switches::changes_to(page)))
    }

    async fn stop_running(
        &self,
        request: tonic::Request<pb::StopRunningRequest>,
    ) -> Result<Response<pb::StopRunningResponse>, Status> {
        self.token.check(request.metadata())?;
        let scope = switches::scope_from(request.into_inner().scope).map_err(|bad| status(bad.into()))?;
        let Stopped { stopped, more } = self.inner.stop_running(&scope).await.map_err(status)?;
        Ok(Response::new(pb::StopRunningResponse { stopped, more }))
    }

    async fn lease_budget(
        &self,
        request: tonic::Request<pb::LeaseBudgetRequest>,
    ) -> Result<Response<pb::LeaseBudgetResponse>, Status> {
        self.token.check(request.metadata())?;
        let wishes = request.into_inner().wishes.into_iter().map(budgets::wish_from).collect::<Result<_, _>>();
        let leases = self.inner.lease_budget(wishes.map_err(bad)?).await.map_err(status)?;
        Ok(Response::new(pb::LeaseBudgetResponse { leases: leases.into_iter().map(budgets::lease_to).collect() }))
    }

    async fn return_budget(
        &self,
        request: tonic::Request<pb::ReturnBudgetRequest>,
    ) -> Result<Response<pb::ReturnBudgetResponse>, Status> {
        self.token.check(request.metadata())?;
        let returns = request.into_inner().returns.into_iter().map(budgets::return_from).collect::<Result<_, _>>();
        self.inner.return_budget(returns.map_err(bad)?).await.map_err(status)?;
        Ok(Response::new(pb::ReturnBudgetResponse {}))
    }

    async fn budgets(
        &self,
        request: tonic::Request<pb::BudgetsRequest>,
    ) -> Result<Response<pb::BudgetsResponse>, Status> {
        self.token.check(request.metadata())?;
        let after = budgets::after_from(request.into_inner()).map_err(bad)?;
        let states = self.inner.budgets(after).await.map_err(status)?;
        Ok(Response::new(pb::BudgetsResponse { budgets: states.into_iter().map(budgets::state_to).collect() }))
    }

    async fn record(&self, request: tonic::Request<pb::RecordRequest>) -> Result<Response<pb::RecordResponse>, Status> {
        self.token.check(request.metadata())?;
        let batch = audit::batch_from(request.into_inner()).map_err(|bad| status(bad.into()))?;
        self.inner.record(batch).await.map_err(status)?;
        Ok(Response::new(pb::RecordResponse {}))
    }

    async fn audit_chains(
        &self,
        request: tonic::Request<pb::AuditChainsRequest>,
    ) -> Result<Response<pb::AuditChainsResponse>, Status> {
        self.token.check(request.metadata())?;
        let from = request.into_inner().from.map(TenantId::new);
        let chains = self.inner.audit_chains(from.as_ref()).await.map_err(status)?;
        Ok(Response::new(audit::chains_to(chains)))
    }

    async fn audit_rows(
        &self,
        request: tonic::Request<pb::AuditRowsRequest>,
    ) -> Result<Response<pb::AuditRowsResponse>, Status> {
        self.token.check(request.metadata())?;
        let rows = self.inner.audit_rows(audit::range_from(request.into_inner())).await.map_err(status)?;
        Ok(Response::new(audit::rows_to(rows)))
    }
}

fn bad(bad: Bad) -> Status {
    status(bad.into())
}

fn status(error: Error) -> Status {
    match error {
        Error::Refused(refusal) => Status::failed_precondition(refusal.name()),
        Error::Unavailable(message) | Error::NotBegun(message) => Status::unavailable(message),
        Error::Fault(message) => Status::internal(message),
    }
}
