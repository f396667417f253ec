//! The notification stream of a session (`GET` without a request to go on with): its tasks, the lists of what is offered,
//! and the resources it subscribed to. It also carries the questions of its caller's tasks if no other stream does: real
//! clients poll a task to its end and never wait for its result meanwhile.
//!
//! A session has one such stream over all replicas: a message must not arrive twice (MCP 2025-11-25,
//! basic/transports, "Multiple Connections"), and of two streams the older is most likely dead.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use longhaul_bus::{Control, Hint};
use longhaul_core::limits::LIST_PAGE;
use longhaul_core::{ClientCapabilities, Ending, Principal, Task, TaskId};
use longhaul_mcp::seal::Session;
use longhaul_mcp::{Listing, sse, v2025};
use longhaul_rpc::{Position, SUBSCRIPTIONS_MAX};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamMap;
use tokio_util::sync::CancellationToken;

use crate::carry::{Carrier, Kind};
use crate::metrics::OpenStream;
use crate::sessions::{Sessions, Tag};
use crate::stream::{EventIds, Frames, KeepAlive, Source, frames};
use crate::until::Until;
use crate::updates::updates;
use crate::watch::Seen;
use crate::{Shared, random};

/// New tasks that a stream has not looked at yet; with more it reads the list instead.
const CREATED_MAX: usize = 64;
/// Tasks that one stream tells of at a time; later ones are left out until others have ended.
const FOLLOWED_MAX: usize = 256;

/// The open notification streams of this replica.
pub(crate) struct Notifier {
    /// Tells its own streams from those of other replicas.
    replica: u64,
    open: Mutex<HashMap<Tag, Slot>>,
}

struct Slot {
    /// Begins with the replica.
    stream: String,
    created: mpsc::Sender<TaskId>,
    look: Arc<Notify>,
    /// It subscribes to other resources than before.
    subscribed: Arc<Notify>,
    close: CancellationToken,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self { replica: u64::from_be_bytes(random()), open: Mutex::default() }
    }

    fn prefix(&self) -> String {
        format!("{:016x}", self.replica)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Tag, Slot>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has a new task.
    pub(crate) fn created(&self, session: Tag, task: TaskId) {
        if let Some(slot) = self.lock().get(&session)
            && slot.created.try_send(task).is_err()
        {
            slot.look.notify_one();
        }
    }

    /// A session subscribes to other resources than before.
    pub(crate) fn subscribed(&self, session: Tag) {
        if let Some(slot) = self.lock().get(&session) {
            slot.subscribed.notify_one();
        }
    }

    /// A session has a new stream, as is heard now: if that one is elsewhere, ours is the older. Clocks have no say.
    pub(crate) fn opened(&self, session: Tag, stream: &str) {
        if !stream.starts_with(&self.prefix())
            && let Some(slot) = self.lock().get(&session)
        {
            slot.close.cancel();
        }
    }

    /// Hints were missed: all streams look for themselves.
    pub(crate) fn look(&self) {
        for slot in self.lock().values() {
            slot.look.notify_one();
            slot.subscribed.notify_one();
        }
    }

    /// Closes the streams of sessions that have ended.
    pub(crate) fn close_ended(&self, sessions: &Sessions) {
        for (session, slot) in &*self.lock() {
            if sessions.has_ended(*session) {
                slot.close.cancel();
            }
        }
    }

    fn leave(&self, session: Tag, stream: &str) {
        let mut open = self.lock();
        if open.get(&session).is_some_and(|slot| slot.stream == stream) {
            open.remove(&session);
        }
    }
}

/// Opens the stream of a session.
pub(crate) fn open(
    shared: &Arc<Shared>,
    principal: Arc<Principal>,
    session: Session,
    tag: Tag,
    until: Until,
) -> Frames {
    let stream = format!("{}{:016x}", shared.notifier.prefix(), u64::from_be_bytes(random()));
    let (tell, created) = mpsc::channel(CREATED_MAX);
    let (look, subscribed, close) = (Arc::new(Notify::new()), Arc::new(Notify::new()), CancellationToken::new());
    let slot = Slot {
        stream: stream.clone(),
        created: tell,
        look: look.clone(),
        subscribed: subscribed.clone(),
        close: close.clone(),
    };
    // It begins with a look at what was subscribed to before.
    subscribed.notify_one();
    if let Some(older) = shared.notifier.lock().insert(tag, slot) {
        older.close.cancel();
    }
    shared.bus.publish(Hint::Control(Control::StreamOpened { session: tag.to_string(), stream: stream.clone() }));
    let ids = EventIds::new(shared, &principal, &session, u64::from_be_bytes(random()), None, None);
    frames(Standalone {
        shared: shared.clone(),
        principal,
        tag,
        has_tasks: shared.config.tasks_legacy && session.dialect.has_tasks(),
        client: session.capabilities,
        hears_prompts: session.prompts,
        hears_resources: session.resources,
        stream,
        created,
        look,
        subscribed,
        close,
        tools: shared.catalogue.changes(Listing::Tools),
        prompts: shared.catalogue.changes(Listing::Prompts),
        resources: shared.catalogue.changes(Listing::Resources),
        updates: StreamMap::new(),
        watched: StreamMap::new(),
        followed: HashMap::new(),
        queue: VecDeque::new(),
        ids,
        keep_alive: KeepAlive::new(shared.config.pace.keep_alive),
        look_due: Instant::now(),
        is_stale: false,
        step: Step::Begin,
        until,
        _open: OpenStream::new(shared, "get"),
    })
}

enum Step {
    Begin,
    Run,
    Done,
}

struct Standalone {
    shared: Arc<Shared>,
    principal: Arc<Principal>,
    tag: Tag,
    has_tasks: bool,
    client: ClientCapabilities,
    /// What its client was told of; a list of anything else is no news to it.
    hears_prompts: bool,
    hears_resources: bool,
    stream: String,
    created: mpsc::Receiver<TaskId>,
    look: Arc<Notify>,
    subscribed: Arc<Notify>,
    close: CancellationToken,
    tools: watch::Receiver<u64>,
    prompts: watch::Receiver<u64>,
    resources: watch::Receiver<u64>,
    /// Of the resources that the session subscribed to.
    updates: StreamMap<String, BoxStream<'static, ()>>,
    watched: StreamMap<TaskId, BoxStream<'static, Seen>>,
    /// The same tasks, and what the client knows of each.
    followed: HashMap<TaskId, Followed>,
    /// At most a few frames of one piece of news.
    queue: VecDeque<Bytes>,
    ids: EventIds,
    keep_alive: KeepAlive,
    look_due: Instant,
    /// What the session subscribes to could not be read.
    is_stale: bool,
    step: Step,
    until: Until,
    _open: OpenStream,
}

/// A task that is told of, or whose questions may be asked here.
struct Followed {
    /// As it was seen last.
    task: Arc<Task>,
    /// What the client knows; nothing is told of the tasks of other sessions.
    told: Option<Told>,
    carrier: Option<Carrier>,
}

/// What a client can see of a task in a notification.
#[derive(Default, PartialEq)]
struct Told {
    ending: Option<Ending>,
    is_asking: bool,
    message: Option<String>,
    progress: Option<f64>,
}

impl Told {
    fn of(task: &Task) -> Self {
        Self {
            ending: task.ending(),
            is_asking: task.is_asking(),
            message: task.status_message.clone(),
            progress: task.progress.as_ref().map(|progress| progress.progress),
        }
    }
}

enum News {
    Created(TaskId),
    Seen(TaskId, Seen),
    List(Listing),
    Updated(String),
    Subscribed,
    Look,
    /// It may be time to ask, or to say that one still does.
    Carry,
}

impl Source for Standalone {
    async fn next(&mut self) -> Option<Bytes> {
        match self.step {
            Step::Begin => {
                self.step = Step::Run;
                return Some(self.ids.priming());
            }
            Step::Run => {}
            Step::Done => return None,
        }
        loop {
            if let Some(frame) = self.queue.pop_front() {
                self.keep_alive.sent();
                return Some(frame);
            }
            let over = self.until.clone().over();
            let carry_due = self.followed.values().filter_map(|followed| followed.carrier.as_ref()?.due()).min();
            let news = tokio::select! {
                () = self.close.cancelled() => {
                    self.step = Step::Done;
                    return Some(sse::comment("closed: a newer stream has taken over, or the session has ended"));
                }
                () = over => {
                    self.step = Step::Done;
                    return Some(self.ids.come_back());
                }
                Some((id, seen)) = self.watched.next() => News::Seen(id, seen),
                Some(id) = self.created.recv() => News::Created(id),
                Ok(()) = self.tools.changed() => News::List(Listing::Tools),
                Ok(()) = self.prompts.changed(), if self.hears_prompts => News::List(Listing::Prompts),
                Ok(()) = self.resources.changed(), if self.hears_resources => News::List(Listing::Resources),
                Some((uri, ())) = self.updates.next() => News::Updated(uri),
                () = self.subscribed.notified() => News::Subscribed,
                () = self.look.notified() => News::Look,
                () = tokio::time::sleep_until(self.look_due) => News::Look,
                () = tokio::time::sleep_until(carry_due.unwrap_or(self.look_due)), if carry_due.is_some() => News::Carry,
                comment = self.keep_alive.due() => return Some(comment),
            };
            match news {
                News::Created(id) => self.follow(id, Some(Told::default())).await,
                News::Seen(id, seen) => self.tell(id, seen).await,
                News::List(listing) => self.send(&v2025::notify::list_changed(listing)),
                News::Updated(uri) => self.send(&v2025::notify::resource_updated(&uri)),
                News::Subscribed => self.subscribe().await,
                News::Look => self.look().await,
                News::Carry => self.carry().await,
            }
        }
    }
}

impl Standalone {
    fn send(&mut self, frame: &[u8]) {
        self.queue.push_back(sse::message(None, frame));
    }

    /// Begins to tell of a task of which the client knows `told`, or to ask its questions alone.
    async fn follow(&mut self, id: TaskId, told: Option<Told>) {
        if self.followed.contains_key(&id) || self.followed.len() >= FOLLOWED_MAX {
            return;
        }
        // What cannot be read now is found at the next look.
        let Ok((watch, first)) = self.shared.watches.open(&self.principal, id, false).await else { return };
        let Seen::Task { task, .. } = &first else { return };
        let kind = Kind::Session { is_creator: told.is_some() };
        let carrier =
            can_be_asked(self.client).then(|| Carrier::new(&self.shared, &self.principal, id, self.client, kind));
        self.followed.insert(id, Followed { task: task.clone(), told, carrier });
        let later = futures::stream::unfold(watch, async |mut watch| Some((watch.next().await, watch)));
        self.watched.insert(id, later.boxed());
        self.tell(id, first).await;
    }

    /// Finds the session's open tasks, whatever was heard of them, and what other sessions of its caller are asked: among
    /// as many tasks as can be followed, the newest first.
    async fn look(&mut self) {
        let pace = self.shared.config.pace;
        let is_deaf = !self.shared.bus.healthy();
        self.look_due = Instant::now() + if is_deaf { pace.floor_deaf } else { pace.floor };
        if is_deaf || self.is_stale {
            self.subscribe().await;
        }
        if !self.has_tasks {
            return;
        }
        let (tag, mut after) = (self.tag.to_string(), None);
        for _ in 0..FOLLOWED_MAX.div_ceil(LIST_PAGE as usize) {
            let Ok(page) = self.shared.tasks.list(&self.principal, after, LIST_PAGE).await else { return };
            after = page.tasks.last().map(|last| Position { created_at: last.created_at, id: last.id });
            for task in page.tasks {
                if task.ending().is_some() {
                    continue;
                }
                match &task.session {
                    Some(session) if *session == tag => self.follow(task.id, Some(Told::of(&task))).await,
                    Some(_) if task.is_asking() && can_be_asked(self.client) => self.follow(task.id, None).await,
                    // A caller without sessions hears of its questions when it asks for its task.
                    Some(_) | None => {}
                }
            }
            if !page.more {
                break;
            }
        }
    }

    /// Watches the resources that the session subscribes to now.
    async fn subscribe(&mut self) {
        let known = self.shared.control.subscriptions(&self.tag.to_string()).await;
        let mut uris = match known {
            Ok(uris) => uris,
            Err(error) => {
                tracing::debug!(%error, "the subscriptions of a session could not be read");
                self.look_due = Instant::now() + self.shared.config.pace.watch_again;
                self.is_stale = true;
                return;
            }
        };
        self.is_stale = false;
        uris.truncate(SUBSCRIPTIONS_MAX);
        let former: Vec<_> = self.updates.keys().filter(|uri| !uris.contains(uri)).cloned().collect();
        for uri in former {
            self.updates.remove(&uri);
        }
        for uri in uris {
            if !self.updates.contains_key(&uri) {
                let watch = updates(&self.shared, &uri);
                self.updates.insert(uri, watch);
            }
        }
    }

    async fn carry(&mut self) {
        let now = Instant::now();
        for followed in self.followed.values_mut() {
            if let Some(carrier) =
                followed.carrier.as_mut().filter(|carrier| carrier.due().is_some_and(|due| due <= now))
            {
                let frames = carrier.look(&followed.task).await;
                self.queue.extend(frames.iter().map(|frame| sse::message(None, frame)));
            }
        }
    }

    async fn tell(&mut self, id: TaskId, seen: Seen) {
        let Some(followed) = self.followed.get_mut(&id) else { return };
        let Seen::Task { task, .. } = seen else {
            let frames = followed.carrier.as_mut().map(Carrier::close).unwrap_or_default();
            self.queue.extend(frames.iter().map(|frame| sse::message(None, frame)));
            self.forget(id);
            return;
        };
        followed.task = task.clone();
        if let Some(told) = &mut followed.told {
            let now = Told::of(&task);
            let rises = now.progress.is_some_and(|progress| told.progress.is_none_or(|former| progress > former));
            if let (true, Some(token), Some(progress)) = (rises, &task.progress_token, &task.progress)
                && let Some(frame) = v2025::notify::progress(token, progress, Some(id))
            {
                self.queue.push_back(sse::message(None, &frame));
            }
            if (now.ending, now.is_asking, &now.message) != (told.ending, told.is_asking, &told.message) {
                let mut shown = (*task).clone();
                self.shared.show(&mut shown, None);
                let frame = v2025::notify::task_status(&shown, self.shared.config.poll_interval_ms);
                self.queue.push_back(sse::message(None, &frame));
            }
            *told = now;
        }
        if let Some(carrier) = &mut followed.carrier {
            let frames = carrier.look(&task).await;
            self.queue.extend(frames.iter().map(|frame| sse::message(None, frame)));
        }
        let is_of_interest = if followed.told.is_some() { task.ending().is_none() } else { task.is_asking() };
        if !is_of_interest {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: TaskId) {
        self.watched.remove(&id);
        self.followed.remove(&id);
    }
}

/// Whether there is anything that a task may ask such a client.
fn can_be_asked(client: ClientCapabilities) -> bool {
    client.elicitation_form || client.elicitation_url
}

impl Drop for Standalone {
    fn drop(&mut self) {
        self.shared.notifier.leave(self.tag, &self.stream);
    }
}
