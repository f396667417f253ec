//! The notification stream of a session (`GET` without a request to go on with): its tasks, and the list of tools.
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
use longhaul_core::{Ending, Principal, Task, TaskId};
use longhaul_mcp::seal::Session;
use longhaul_mcp::{sse, v2025};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamMap;
use tokio_util::sync::CancellationToken;

use crate::metrics::OpenStream;
use crate::sessions::{Sessions, Tag};
use crate::stream::{EventIds, Frames, KeepAlive, Source, frames};
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
        self.lock().values().for_each(|slot| slot.look.notify_one());
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
pub(crate) fn open(shared: &Arc<Shared>, principal: Arc<Principal>, session: Session, tag: Tag) -> Frames {
    let stream = format!("{}{:016x}", shared.notifier.prefix(), u64::from_be_bytes(random()));
    let (tell, created) = mpsc::channel(CREATED_MAX);
    let (look, close) = (Arc::new(Notify::new()), CancellationToken::new());
    let slot = Slot { stream: stream.clone(), created: tell, look: look.clone(), close: close.clone() };
    if let Some(older) = shared.notifier.lock().insert(tag, slot) {
        older.close.cancel();
    }
    shared.bus.publish(Hint::Control(Control::StreamOpened { session: tag.to_string(), stream: stream.clone() }));
    let ids = EventIds::new(shared, &principal, &session, u64::from_be_bytes(random()), None, None);
    let tools = shared.catalogue.changes();
    let has_tasks = shared.config.tasks_enabled && session.dialect.has_tasks();
    frames(Standalone {
        shared: shared.clone(),
        principal,
        tag,
        has_tasks,
        stream,
        created,
        look,
        close,
        tools,
        followed: StreamMap::new(),
        told: HashMap::new(),
        queue: VecDeque::new(),
        ids,
        keep_alive: KeepAlive::new(shared.config.pace.keep_alive),
        look_due: Instant::now(),
        step: Step::Begin,
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
    stream: String,
    created: mpsc::Receiver<TaskId>,
    look: Arc<Notify>,
    close: CancellationToken,
    tools: watch::Receiver<u64>,
    followed: StreamMap<TaskId, BoxStream<'static, Seen>>,
    /// What the client knows of each task.
    told: HashMap<TaskId, Told>,
    /// At most a few frames of one piece of news.
    queue: VecDeque<Bytes>,
    ids: EventIds,
    keep_alive: KeepAlive,
    look_due: Instant,
    step: Step,
    _open: OpenStream,
}

/// What a client can see of a task in a notification.
#[derive(Default, PartialEq)]
struct Told {
    ending: Option<Ending>,
    message: Option<String>,
    progress: Option<f64>,
}

impl Told {
    fn of(task: &Task) -> Self {
        Self {
            ending: task.ending(),
            message: task.status_message.clone(),
            progress: task.progress.as_ref().map(|progress| progress.progress),
        }
    }
}

enum News {
    Created(TaskId),
    Seen(TaskId, Seen),
    Tools,
    Look,
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
            let drain = self.shared.drain.clone();
            let news = tokio::select! {
                () = self.close.cancelled() => {
                    self.step = Step::Done;
                    return Some(sse::comment("closed: a newer stream has taken over, or the session has ended"));
                }
                () = drain.cancelled() => {
                    self.step = Step::Done;
                    return Some(self.ids.come_back());
                }
                Some((id, seen)) = self.followed.next() => News::Seen(id, seen),
                Some(id) = self.created.recv() => News::Created(id),
                Ok(()) = self.tools.changed() => News::Tools,
                () = self.look.notified() => News::Look,
                () = tokio::time::sleep_until(self.look_due) => News::Look,
                comment = self.keep_alive.due() => return Some(comment),
            };
            match news {
                News::Created(id) => self.follow(id, Told::default()).await,
                News::Seen(id, seen) => self.tell(id, seen),
                News::Tools => self.queue.push_back(sse::message(None, &v2025::notify::tools_list_changed())),
                News::Look => self.look().await,
            }
        }
    }
}

impl Standalone {
    /// Begins to tell of a task of which the client knows `told`.
    async fn follow(&mut self, id: TaskId, told: Told) {
        if self.told.contains_key(&id) || self.told.len() >= FOLLOWED_MAX {
            return;
        }
        // What cannot be read now is found at the next look.
        let Ok((watch, first)) = self.shared.watches.open(&self.principal, id, false).await else { return };
        let later = futures::stream::unfold(watch, async |mut watch| Some((watch.next().await, watch)));
        self.followed.insert(id, later.boxed());
        self.told.insert(id, told);
        self.tell(id, first);
    }

    /// Finds the session's open tasks, whatever was heard of them.
    async fn look(&mut self) {
        let pace = self.shared.config.pace;
        self.look_due = Instant::now() + if self.shared.bus.healthy() { pace.floor } else { pace.floor_deaf };
        if !self.has_tasks {
            return;
        }
        let Ok(page) = self.shared.tasks.list(&self.principal, None, LIST_PAGE).await else { return };
        let tag = self.tag.to_string();
        for task in page.tasks {
            if task.ending().is_none() && task.session.as_deref() == Some(&*tag) {
                self.follow(task.id, Told::of(&task)).await;
            }
        }
    }

    fn tell(&mut self, id: TaskId, seen: Seen) {
        let Seen::Task { task, .. } = seen else {
            self.forget(id);
            return;
        };
        let Some(told) = self.told.get_mut(&id) else { return };
        let now = Told::of(&task);
        let rises = now.progress.is_some_and(|progress| told.progress.is_none_or(|former| progress > former));
        if let (true, Some(token), Some(progress)) = (rises, &task.progress_token, &task.progress)
            && let Some(frame) = v2025::notify::progress(token, progress, Some(id))
        {
            self.queue.push_back(sse::message(None, &frame));
        }
        if (now.ending, &now.message) != (told.ending, &told.message) {
            let frame = v2025::notify::task_status(&task, self.shared.config.poll_interval_ms);
            self.queue.push_back(sse::message(None, &frame));
        }
        let is_over = now.ending.is_some();
        *told = now;
        if is_over {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: TaskId) {
        self.followed.remove(&id);
        self.told.remove(&id);
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        self.shared.notifier.leave(self.tag, &self.stream);
    }
}
