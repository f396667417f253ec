//! A server that runs as our child and speaks over its standard input and output.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longhaul_core::limits::cut;
use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::Fault;
use super::ears::{Back, Ears};
use super::lines::{Line, Lines};
use crate::wire::{self, Answer, Hello, Incoming};

/// Messages on their way to a server that does not read.
const OUTGOING_MAX: usize = 64;
/// The longest line of a server's standard error that is logged whole.
const LOG_LINE_BYTES_MAX: usize = 4096;
/// How long a server gets to leave: first after its input has ended, then after a SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
const SIGTERM: i32 = 15;

/// A running server.
pub(super) struct Child {
    outgoing: mpsc::Sender<Bytes>,
    waiting: Arc<Waiting>,
    pub(super) ears: Arc<Ears>,
    /// Cancelled when the server has stopped, or is to stop.
    pub(super) closed: CancellationToken,
}

/// The requests without an answer; none are taken once the server has stopped. There are no more than the worker runs
/// calls at once.
struct Waiting(Mutex<Option<HashMap<u64, Waiter>>>);

type Waiter = oneshot::Sender<Result<Answer, Fault>>;

impl Child {
    /// Starts a server.
    pub(super) fn start(
        ears: Arc<Ears>,
        argv: &[String],
        env: &[(OsString, OsString)],
        cwd: Option<&Path>,
        message_bytes_max: usize,
        tasks: &TaskTracker,
    ) -> std::io::Result<Self> {
        let name = ears.upstream.clone();
        let (program, arguments) = argv.split_first().expect("invariant: the config has a program");
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        // A group of its own, so that what the server starts ends with it, and no terminal's ^C reaches it before us.
        let mut process = CommandWrap::from(command).wrap(KillOnDrop).wrap(ProcessGroup::leader()).spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (process.stdin().take(), process.stdout().take(), process.stderr().take())
        else {
            return Err(std::io::Error::other("a child without pipes"));
        };
        let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
        let waiting = Arc::new(Waiting(Mutex::new(Some(HashMap::new()))));
        let closed = CancellationToken::new();
        let child =
            Self { outgoing: outgoing.clone(), waiting: waiting.clone(), ears: ears.clone(), closed: closed.clone() };
        let mut log = AbortOnDropHandle::new(tasks.spawn(log(name.clone(), stderr)));
        let back = Back::Line(outgoing);
        tasks.spawn(async move {
            let why = tokio::select! {
                why = receive(Lines::new(stdout, message_bytes_max), &waiting, &ears, &back) => why,
                why = send(stdin, queue) => why,
                () = closed.cancelled() => "we are done with it",
            };
            closed.cancel();
            // Those who wait for an answer hear of it when their senders are dropped.
            drop(waiting.lock().take());
            tracing::debug!(upstream = %name, why, "the upstream server's pipes are closed");
            end(&name, process).await;
            // Its last words; but somebody whom it left behind may hold the pipe for ever.
            let _ = timeout(GRACE, &mut log).await;
        });
        Ok(child)
    }

    /// Introduces us.
    pub(super) async fn initialize(&self, id: u64) -> Result<Hello, Fault> {
        let result =
            self.request(id, wire::initialize(id, self.ears.client)).await?.map_err(|error| Fault::refused(&error))?;
        let hello = wire::read_hello(&result).map_err(Fault::Odd)?;
        self.notify(wire::initialized());
        Ok(hello)
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn request(&self, id: u64, body: Bytes) -> Result<Answer, Fault> {
        let (answer, answered) = oneshot::channel();
        match &mut *self.waiting.lock() {
            Some(waiting) => waiting.insert(id, answer),
            None => return Err(Fault::Stopped),
        };
        self.outgoing.send(body).await.map_err(|_| Fault::Stopped)?;
        answered.await.map_err(|_| Fault::Stopped)?
    }

    /// Sends a notification, if the server has taken those before it.
    pub(super) fn notify(&self, body: Bytes) {
        // A server that does not even read cannot be told anything; its calls end by their time limits.
        let _ = self.outgoing.try_send(body);
    }

    /// Gives up a request; `false` if it has been answered.
    pub(super) fn forget(&self, id: u64) -> bool {
        let is_open = self.waiting.remove(id).is_some();
        if is_open {
            self.notify(wire::cancelled(id));
        }
        is_open
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, Waiter>>> {
        // Nothing panics with the lock held, and the map is whole at every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: u64) -> Option<Waiter> {
        self.lock().as_mut()?.remove(&id)
    }
}

/// Reads what the server says until it stops, and answers why.
async fn receive(
    mut lines: Lines<impl AsyncRead + Unpin>,
    waiting: &Waiting,
    ears: &Ears,
    back: &Back,
) -> &'static str {
    loop {
        let line = match lines.next().await {
            Ok(Some(Line::Whole(line))) => line,
            Ok(Some(Line::Oversized { head, tail })) => match wire::id_of_oversized(&head, &tail) {
                Some(id) => {
                    match waiting.remove(id) {
                        Some(answer) => drop(answer.send(Err(Fault::TooLarge))),
                        None => ears.calls.settle(id),
                    }
                    continue;
                }
                // Whoever waits for it would wait in vain.
                None => return "a message is too long",
            },
            Ok(None) => return "its output has ended",
            Err(_) => return "its output cannot be read",
        };
        match wire::read(&line) {
            Some(Incoming::Answer { id: Some(id), answer }) => match waiting.remove(id) {
                Some(waits) => drop(waits.send(Ok(answer))),
                None => ears.calls.settle(id),
            },
            Some(said) => ears.hear(said, None, back),
            // Some servers write other things to their output, against the specification.
            None => tracing::debug!(bytes = line.len(), "a line that is no message"),
        }
    }
}

/// Writes what the server is to read, until it no longer does, and answers why.
async fn send(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Bytes>) -> &'static str {
    while let Some(message) = queue.recv().await {
        let written = async {
            stdin.write_all(&message).await?;
            stdin.write_all(b"\n").await?;
            stdin.flush().await
        };
        if written.await.is_err() {
            return "its input is closed";
        }
    }
    "nobody needs it"
}

/// Ends the server and all that it started. Its input is closed already, which asks it to leave.
async fn end(name: &str, mut process: Box<dyn ChildWrapper>) {
    let mut status = leave(&mut process).await;
    if status.is_none() && process.signal(SIGTERM).is_ok() {
        status = leave(&mut process).await;
    }
    // Even if the server has left, others of its group may have stayed.
    let _ = process.start_kill();
    if status.is_none() {
        status = leave(&mut process).await;
    }
    match status {
        Some(status) => tracing::info!(upstream = name, %status, "the upstream server has left"),
        None => tracing::warn!(upstream = name, "the upstream server cannot be ended"),
    }
}

/// Waits for the server itself, not for the others of its group.
async fn leave(process: &mut Box<dyn ChildWrapper>) -> Option<ExitStatus> {
    timeout(GRACE, process.inner_mut().wait()).await.ok().and_then(Result::ok)
}

/// Puts a server's standard error into our log.
async fn log(name: Arc<str>, stderr: impl AsyncRead + Unpin) {
    let mut lines = Lines::new(stderr, LOG_LINE_BYTES_MAX);
    while let Ok(Some(line)) = lines.next().await {
        let (text, is_cut) = match &line {
            Line::Whole(line) => (line, false),
            Line::Oversized { head, .. } => (head, true),
        };
        let text = String::from_utf8_lossy(text);
        tracing::debug!(upstream = %name, is_cut, "{}", cut(text.trim_end(), LOG_LINE_BYTES_MAX));
    }
}
