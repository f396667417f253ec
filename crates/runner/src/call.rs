//! One call of an upstream server, for one run: what the server says meanwhile reaches the caller, and what it asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use longhaul_core::{CallError, LogMessage, Progress, Question};
use longhaul_worker::{Ask, Context, Ended, Failure, InputError, Response};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::upstream::{Asked, Behalf, NEWS_MAX, News, Reply, Upstream};
use crate::wire::{self, INTERNAL_ERROR, INVALID_PARAMS, InputRequired, METHOD_NOT_FOUND, Request};

/// How often a server may ask for something before it has a result.
const ROUNDS_MAX: u32 = 10;
/// Questions of one call that have no answer or whose answers the server has not taken: one that asks and does not read
/// would pile them up.
const ASKING_MAX: usize = NEWS_MAX;
/// Before a call is made again for which nothing had to be asked; longer with each round.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);
/// What a client answers that does not want its model to be used (MCP 2025-11-25, client/sampling, "Error Handling").
const REJECTED: i32 = -1;

/// Makes a call, as often as it takes: the text of its result, or the server's error.
pub(crate) async fn call(
    upstream: &Arc<Upstream>,
    mut request: Request,
    context: &Context,
) -> Result<Result<Bytes, CallError>, Failure> {
    for round in 1..=ROUNDS_MAX {
        match once(upstream, &request, context).await? {
            Ok(Reply::Result(result)) => return Ok(Ok(result)),
            Ok(Reply::Asks(InputRequired { questions, state })) => {
                if questions.is_empty() {
                    tokio::time::sleep(AGAIN_PAUSE * round).await;
                }
                let answers = ask_all(upstream, context, &questions).await?;
                let keys = questions.into_iter().map(|(key, _)| key);
                let answers: Vec<_> = keys.zip(answers).collect();
                request = request.answered(&answers, state);
            }
            Err(error) => match pages(&error) {
                Some(pages) => open(upstream, context, pages).await?,
                None => return Ok(Err(error)),
            },
        }
    }
    Ok(Err(upstream.error(&"asks again and again")))
}

/// What became of a run whose server failed.
pub(crate) fn failure(error: CallError) -> Failure {
    let failure = Failure::protocol(error.code, error.message);
    match error.data.as_deref().map(serde_json::from_slice::<&RawValue>) {
        Some(Ok(data)) => failure.with_data(data),
        _ => failure,
    }
}

async fn once(
    upstream: &Arc<Upstream>,
    request: &Request,
    context: &Context,
) -> Result<Result<Reply, CallError>, Failure> {
    let is_task = context.as_task().is_some();
    let mut client = context.client();
    // Models and roots are out of reach of tasks, and nobody reads a task's log.
    client.sampling &= !is_task;
    client.roots &= !is_task;
    let trace = context.trace();
    let behalf = Behalf { caller: context.principal(), client, logs: !is_task, trace: Some(&trace) };
    let (line, mut news) = mpsc::channel(NEWS_MAX);
    let mut call = std::pin::pin!(upstream.call(request, behalf, line));
    let mut questions = Questions::default();
    loop {
        tokio::select! {
            biased;
            Some(news) = news.recv() => match news {
                News::Progress(progress) => tell(context, &progress).await?,
                News::Log(log) => pass_on(context, &log).await?,
                News::Asked(asked) => questions.ask(context, asked),
                News::Withdrawn(id) => questions.withdraw(&id),
            },
            () = questions.next() => {}
            reply = &mut call => return Ok(reply),
            // Nobody will hear of this. The server does: the call is dropped.
            () = context.cancelled() => return Err(Failure::protocol(INTERNAL_ERROR, "the call was cancelled")),
        }
    }
}

/// Passes on how far a call is; for people too.
async fn tell(context: &Context, news: &Progress) -> Result<(), Ended> {
    context.progress(news.progress, news.total, news.message.as_deref()).await?;
    match (&news.message, news.total) {
        (Some(message), _) => context.set_status_message(message.as_str()).await,
        (None, Some(total)) => context.set_status_message(format!("{} of {total}", news.progress)).await,
        (None, None) => Ok(()),
    }
}

async fn pass_on(context: &Context, log: &LogMessage) -> Result<(), Ended> {
    match serde_json::from_slice::<&RawValue>(&log.data) {
        Ok(data) => context.log(log.level, log.logger.as_deref(), data).await,
        Err(_) => Ok(()),
    }
}

/// The open questions of a server that asks during a call. Dropped with the call: then nobody waits for answers.
#[derive(Default)]
struct Questions {
    asking: FuturesUnordered<futures::future::BoxFuture<'static, Bytes>>,
    open: HashMap<Bytes, CancellationToken>,
}

impl Questions {
    /// Asks the caller. The worker's SDK has a limit for how many there may be.
    fn ask(&mut self, context: &Context, asked: Asked) {
        if self.asking.len() >= ASKING_MAX {
            return asked.refuse("too many questions at once");
        }
        let (context, id, withdrawn) = (context.clone(), asked.id.clone(), CancellationToken::new());
        self.open.insert(id.clone(), withdrawn.clone());
        self.asking.push(Box::pin(async move {
            let answering = async {
                let message = match respond(&context, asked.question.clone()).await {
                    Ok(result) => wire::result_of(&asked.id, &result),
                    Err(No::Refused(code, why)) => wire::refusal(&asked.id, code, &why),
                    Err(No::Ended) => return,
                };
                asked.answer(message).await;
            };
            withdrawn.run_until_cancelled(answering).await;
            id
        }));
    }

    /// The server no longer wants to know.
    fn withdraw(&mut self, id: &Bytes) {
        if let Some(withdrawn) = self.open.remove(id) {
            withdrawn.cancel();
        }
    }

    /// Goes on until a question has its answer; for ever, if there is none.
    async fn next(&mut self) {
        match self.asking.next().await {
            Some(id) => drop(self.open.remove(&id)),
            None => std::future::pending().await,
        }
    }
}

/// Why a question has no answer.
enum No {
    /// The run is over.
    Ended,
    /// With the code and the sentence for the server.
    Refused(i32, String),
}

/// Asks one question: the result of the server's request.
async fn respond(context: &Context, question: Question) -> Result<Box<RawValue>, No> {
    let refused = |code, why: &str| Err(No::Refused(code, why.to_owned()));
    if is_for_the_client(&question) && !context.client().can_answer(&question) {
        return refused(METHOD_NOT_FOUND, "not supported");
    }
    match context.request_input(Ask::from(question.clone())).await {
        Ok(response) => result(&question, &response).ok_or(No::Refused(REJECTED, "declined".into())),
        Err(InputError::Ended) => Err(No::Ended),
        Err(InputError::Unsupported) => refused(METHOD_NOT_FOUND, "not supported"),
        Err(InputError::Invalid(why)) => refused(INVALID_PARAMS, &why),
        Err(error @ (InputError::TooMany | InputError::KeyUsed(_))) => refused(INTERNAL_ERROR, &error.to_string()),
    }
}

/// Asks several questions at once: the results of what the server would have requested.
async fn ask_all(
    upstream: &Upstream,
    context: &Context,
    questions: &[(String, Question)],
) -> Result<Vec<Box<RawValue>>, Failure> {
    if questions.is_empty() {
        return Ok(Vec::new());
    }
    let no = |why: &str| failure(upstream.error(&format!("asks something that has no answer: {why}")));
    let asks = |(key, question): &(String, Question)| Ask::from(question.clone()).key(key);
    let responses = match context.request_inputs(questions.iter().map(asks)).await {
        // The server's keys are good for one round of any length; ours, for a whole run.
        Err(InputError::KeyUsed(_) | InputError::Invalid(_)) => {
            context.request_inputs(questions.iter().map(|(_, question)| Ask::from(question.clone()))).await
        }
        other => other,
    };
    let responses = responses.map_err(|error| no(&error.to_string()))?;
    let results = questions.iter().zip(&responses).map(|((_, question), response)| result(question, response));
    // There is no way to say no for the client itself but not to make the call again.
    results.collect::<Option<_>>().ok_or_else(|| no("declined"))
}

/// A response as the result of the server's request. A client that declines for itself has none.
fn result(question: &Question, response: &Response) -> Option<Box<RawValue>> {
    let json = |content: &longhaul_worker::Content| content.parse::<Box<RawValue>>().ok();
    match (response, question) {
        (Response::Accept(content), Question::Form { .. }) => Some(wire::accepted(Some(&*json(content)?))),
        (Response::Accept(_), Question::Url { .. }) => Some(wire::accepted(None)),
        (Response::Decline, Question::Form { .. } | Question::Url { .. }) => Some(wire::action("decline")),
        (Response::Cancel, Question::Form { .. } | Question::Url { .. }) => Some(wire::action("cancel")),
        (Response::Result(content), Question::Sample { .. } | Question::Roots) => json(content),
        (Response::Result(_), Question::Form { .. } | Question::Url { .. })
        | (Response::Accept(_) | Response::Decline | Response::Cancel, Question::Sample { .. } | Question::Roots) => {
            None
        }
    }
}

fn is_for_the_client(question: &Question) -> bool {
    match question {
        Question::Sample { .. } | Question::Roots => true,
        Question::Form { .. } | Question::Url { .. } => false,
    }
}

/// The pages that have to be opened before a call can be made.
fn pages(error: &CallError) -> Option<Vec<Question>> {
    if error.code != wire::URL_REQUIRED {
        return None;
    }
    wire::urls_required(error.data.as_ref()?)
}

/// Has pages opened. The server's own error would show them unvetted, so it goes no further.
async fn open(upstream: &Upstream, context: &Context, pages: Vec<Question>) -> Result<(), Failure> {
    let no =
        |why: &str| Failure::tool(format!("the upstream server {} wants a page opened first: {why}", upstream.name));
    if pages.is_empty() {
        return Err(no("it does not say which"));
    }
    let responses = context.request_inputs(pages.into_iter().map(Ask::from)).await;
    let responses = responses.map_err(|error| no(&error.to_string()))?;
    let are_open = responses.iter().all(|response| matches!(response, Response::Accept(_)));
    if are_open { Ok(()) } else { Err(no("that was declined")) }
}
