//! An upstream server's tool as a tool of our worker.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_core::{CallError, Progress};
use longhaul_worker::{Answer, Context, Ended, Failure, Tool};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::config::UpstreamConfig;
use crate::upstream::Upstream;
use crate::wire::{INTERNAL_ERROR, Listed};

/// News of one call that nobody has looked at yet; later ones are dropped.
const PROGRESS_MAX: usize = 64;

/// The tool, as `name.tool`. Its calls may be tasks, though the server knows of none.
pub(crate) fn wrap(upstream: &Arc<Upstream>, config: &UpstreamConfig, listed: &Listed) -> Tool {
    let (upstream, name) = (upstream.clone(), Arc::<str>::from(&*listed.name));
    let public = format!("{}.{name}", upstream.name);
    let run = move |context: Context, arguments: Bytes| {
        let (upstream, name) = (upstream.clone(), name.clone());
        async move { run(&upstream, &name, &context, &arguments).await }
    };
    Tool::raw(&listed.definition, run)
        .name(public)
        .task_support(config.support_of(&listed.name))
        .timeout(config.timeout_of(&listed.name))
}

async fn run(upstream: &Upstream, tool: &str, context: &Context, arguments: &[u8]) -> Result<Answer, Failure> {
    let (progress, mut news) = mpsc::channel(PROGRESS_MAX);
    let traceparent = context.traceparent();
    let mut call = std::pin::pin!(upstream.call(tool, arguments, traceparent.as_deref(), progress));
    loop {
        tokio::select! {
            biased;
            Some(progress) = news.recv() => tell(context, &progress).await?,
            answer = &mut call => return answer.map_err(failure).and_then(Answer::raw),
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

fn failure(error: CallError) -> Failure {
    let failure = Failure::protocol(error.code, error.message);
    match error.data.as_deref().map(serde_json::from_slice::<&RawValue>) {
        Some(Ok(data)) => failure.with_data(data),
        _ => failure,
    }
}
