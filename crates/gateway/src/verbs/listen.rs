//! `subscriptions/listen`: tells of what its client asked for, for as long as the stream is open (MCP 2026-07-28,
//! basic/patterns/subscriptions, and the tasks extension).
//!
//! Each such stream stands for itself: it is told everything it asked for, whatever other streams are told, and nothing
//! is left of it once it is closed.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt as _, future, stream};
use http::StatusCode;
use longhaul_core::{Ending, Target, Task, TaskId};
use longhaul_mcp::errors::code;
use longhaul_mcp::{Filter, Listing, Reply, RpcError, error_body, sse, v2026};
use longhaul_rpc::{Error, SUBSCRIPTIONS_MAX};
use tokio_stream::StreamMap;
use tokio_stream::wrappers::WatchStream;

use crate::endpoint::{Answer, Asked, No};
use crate::metrics::{Ended, OpenStream, Operation};
use crate::stream::{KeepAlive, Source, frames};
use crate::updates::updates_begun;
use crate::verbs::get::hide;
use crate::watch::Seen;

/// Resources that one stream tells of; others that it is asked for are left out, and it says so. How many tasks may be
/// asked for is a matter of reading the request.
const RESOURCES_MAX: usize = SUBSCRIPTIONS_MAX;
/// Tasks that are looked up at a time when a stream begins.
const LOOKUPS: usize = 16;

pub(crate) async fn listen(asked: &Asked, wanted: Filter, operation: &mut Option<Operation>) -> Result<Answer, No> {
    let shared = &asked.shared;
    if !asked.accepts.stream {
        let error = RpcError::new(code::INVALID_REQUEST, "Accept must allow text/event-stream");
        let (status, how) = (StatusCode::NOT_ACCEPTABLE, Ended::Error(error.code));
        return Ok(Answer::Message { status, body: error_body(Some(&asked.id), &error), how });
    }
    let features = shared.catalogue.features(asked.dialect).ok_or(No::Unavailable)?;
    let is_about_tasks = wanted.tasks.is_some();
    let ends_with_tasks =
        is_about_tasks && !(wanted.tools || wanted.prompts || wanted.resources) && wanted.resource_uris.is_empty();

    let lists = [
        (Listing::Tools, wanted.tools),
        (Listing::Prompts, wanted.prompts && features.prompts),
        (Listing::Resources, wanted.resources && features.resources),
    ];
    let lists = lists
        .into_iter()
        .filter(|(_, is_wanted)| *is_wanted)
        .map(|(listing, _)| WatchStream::from_changes(shared.catalogue.changes(listing)).map(move |_| listing).boxed());
    let lists = stream::select_all(lists);

    let is_there = |uri: &String| shared.catalogue.workers_for(&Target::Resource(uri.clone())).is_some();
    let resource_uris: Vec<_> = wanted.resource_uris.into_iter().filter(is_there).take(RESOURCES_MAX).collect();
    let watches = resource_uris.clone().into_iter().map(|uri| async move {
        let updates = updates_begun(shared, &uri).await;
        (uri, updates)
    });
    let resources: StreamMap<_, _> = future::join_all(watches).await.into_iter().collect();

    let lookups = wanted.tasks.into_iter().flatten().map(|id| async move {
        match shared.watches.open(&asked.principal, id, true).await {
            Ok((watch, first)) => {
                let later = stream::unfold(watch, async |mut watch| Some((watch.next().await, watch)));
                Some(Ok((id, stream::once(future::ready(first)).chain(later).boxed())))
            }
            // Another caller's is as unknown as one that never was.
            Err(Error::Refused(_)) => None,
            Err(error) => Some(Err(error)),
        }
    });
    let tasks: Vec<_> = stream::iter(lookups).buffered(LOOKUPS).filter_map(future::ready).collect().await;
    let tasks = tasks.into_iter().collect::<Result<Vec<(TaskId, _)>, Error>>().map_err(|error| asked.failed(error))?;

    let honoured = Filter {
        tools: wanted.tools,
        prompts: wanted.prompts && features.prompts,
        resources: wanted.resources && features.resources,
        resource_uris,
        tasks: is_about_tasks.then(|| tasks.iter().map(|(id, _)| *id).collect()),
    };
    let acknowledged = sse::message(None, &v2026::notify::acknowledged(&asked.id, &honoured));
    Ok(Answer::Stream(frames(Listening {
        asked: asked.clone(),
        lists,
        resources,
        tasks: tasks.into_iter().collect(),
        told: HashMap::new(),
        queue: [acknowledged].into(),
        ends_with_tasks,
        is_over: false,
        keep_alive: KeepAlive::new(shared.config.pace.keep_alive),
        operation: operation.take(),
        _open: OpenStream::new(shared, "listen"),
    })))
}

struct Listening {
    asked: Asked,
    lists: SelectAll<BoxStream<'static, Listing>>,
    resources: StreamMap<String, BoxStream<'static, ()>>,
    /// Those that have not ended, as far as the client was told.
    tasks: StreamMap<TaskId, BoxStream<'static, Seen>>,
    /// What the client knows of each task.
    told: HashMap<TaskId, Told>,
    /// At most a few frames of one piece of news.
    queue: VecDeque<Bytes>,
    /// Whether there is nothing more to tell once all tasks have ended.
    ends_with_tasks: bool,
    is_over: bool,
    keep_alive: KeepAlive,
    operation: Option<Operation>,
    _open: OpenStream,
}

/// What a client can see of a task in a notification, beside times.
#[derive(PartialEq)]
struct Told {
    ending: Option<Ending>,
    message: Option<String>,
    open: Vec<u32>,
    ttl_ms: Option<u64>,
}

impl Told {
    fn of(task: &Task) -> Self {
        Self {
            ending: task.ending(),
            message: task.status_message.clone(),
            open: task.open_inputs().map(|(nth, _, _)| nth).collect(),
            ttl_ms: task.ttl_ms,
        }
    }
}

impl Source for Listening {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let over = self.asked.until.clone().over();
            if let Some(frame) = self.queue.pop_front() {
                self.keep_alive.sent();
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            if self.ends_with_tasks && self.tasks.is_empty() {
                self.end();
                continue;
            }
            tokio::select! {
                biased;
                () = over => self.end(),
                Some((id, seen)) = self.tasks.next() => self.tell(id, &seen),
                Some(listing) = self.lists.next() => {
                    let frame = v2026::notify::list_changed(&self.asked.id, listing);
                    self.queue.push_back(sse::message(None, &frame));
                }
                Some((uri, ())) = self.resources.next() => {
                    let frame = v2026::notify::resource_updated(&self.asked.id, &uri);
                    self.queue.push_back(sse::message(None, &frame));
                }
                comment = self.keep_alive.due() => return Some(comment),
            }
        }
    }
}

impl Listening {
    /// Tells what `tasks/get` would say now.
    fn tell(&mut self, id: TaskId, seen: &Seen) {
        let Seen::Task { task, outcome } = seen else {
            self.tasks.remove(&id);
            return;
        };
        // Its outcome comes with the next look.
        if task.ending().is_some() && outcome.is_none() {
            return;
        }
        let mut task = (**task).clone();
        hide(&mut task, self.asked.envelope.capabilities);
        let now = Told::of(&task);
        if self.told.get(&id) != Some(&now) {
            let Asked { shared, id: subscription, .. } = &self.asked;
            let outcome = shared.show(&mut task, outcome.as_deref());
            let frame = v2026::notify::task(subscription, &task, outcome.as_deref(), shared.config.poll_interval_ms);
            if outcome.is_some() {
                shared.recorder.retrieved(id);
            }
            self.queue.extend(frame.map(|frame| sse::message(None, &frame)));
        }
        if now.ending.is_some() {
            self.tasks.remove(&id);
        }
        self.told.insert(id, now);
    }

    fn end(&mut self) {
        self.queue.push_back(sse::message(None, &self.asked.write(&Reply::ListenEnded)));
        self.is_over = true;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A stream that its client closes has done what it was for.
        if let Some(operation) = self.operation.take() {
            operation.end(Ended::Well);
        }
    }
}
