//! A bus between processes, over Redis publish/subscribe.
//!
//! One connection (RESP3) publishes and hears. A stopped Redis is invisible to it: no event, no error. So each bus also
//! publishes a heartbeat on a channel of its own, and believes in its connection only while it hears itself.
//!
//! Redis holds no locks and no truth, and no keys but those of the quotas. It needs the commands `HELLO`, `PUBLISH` and
//! `SUBSCRIBE` on `PREFIX:*`, and for the quotas `EVAL`, `TIME`, `GET` and `SET` on the keys `PREFIX:quota:*`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError, Value,
};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use crate::metrics::{Dropped, Metrics};
use crate::quotas::RedisQuotas;
use crate::wire::{self, SHARDS};
use crate::{Bus, Hint, Quotas, UNREAD_MAX};

/// Time to connect and shake hands; connecting to a stopped Redis would else hang for half a minute.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for Redis to answer a command.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(250);
/// How often the bus speaks to itself.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long it may hear nothing from itself before it gives the connection up.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Wait before the first new attempt to connect; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest wait between two attempts, of which there is no last.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Hints that wait to be sent; beyond them a hint is dropped.
const UNSENT_MAX: usize = 8 * 1024;
/// Hints sent in one go.
const BATCH_MAX: usize = 512;

/// Carries hints between all processes that use the same Redis and prefix.
///
/// While Redis is away, the roles of this process still hear each other.
#[derive(Debug)]
pub struct RedisBus {
    hints: broadcast::Sender<Hint>,
    unsent: mpsc::Sender<Hint>,
    healthy: Arc<AtomicBool>,
    metrics: Metrics,
    quotas: Arc<RedisQuotas>,
    // Ends with the bus.
    _link: JoinSet<()>,
}

/// Why there can be no bus. A Redis that is away is no reason: the bus waits for it in the background.
#[derive(Debug, thiserror::Error)]
pub enum RedisBusError {
    /// The URL names no Redis.
    #[error("the Redis URL is not usable: {0}")]
    Url(RedisError),
    /// The operating system gave no random numbers.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

impl RedisBus {
    /// A bus over the Redis at `url` (`redis://` or `rediss://`), on channels `PREFIX:…`.
    ///
    /// Returns at once; [`Bus::healthy`] turns true, and [`Hint::Missed`] is heard, when the connection stands.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn connect(url: &str, prefix: &str) -> Result<Self, RedisBusError> {
        let address = url.into_connection_info().map_err(RedisBusError::Url)?;
        // Only RESP3 lets one connection both subscribe and publish.
        let settings = address.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let client = Client::open(address.set_redis_settings(settings)).map_err(RedisBusError::Url)?;
        let origin = format!("{:016x}", getrandom::u64().map_err(RedisBusError::Random)?);

        let hints = broadcast::Sender::new(UNREAD_MAX);
        let (unsent, outbox) = mpsc::channel(UNSENT_MAX);
        let healthy = Arc::new(AtomicBool::new(false));
        let metrics = Metrics::new("redis");
        let quotas = RedisQuotas::new(client.clone(), prefix);
        let link = Link {
            client,
            channels: Channels::new(prefix, &origin),
            origin,
            hints: hints.clone(),
            outbox,
            batch: Vec::with_capacity(BATCH_MAX),
            healthy: healthy.clone(),
            metrics: metrics.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(link.run());
        Ok(Self { hints, unsent, healthy, metrics, quotas, _link: tasks })
    }

    /// Whether a URL is one of Redis, wherever it leads.
    pub fn check(url: &str) -> Result<(), RedisBusError> {
        Client::open(url).map(drop).map_err(RedisBusError::Url)
    }
}

impl Bus for RedisBus {
    fn publish(&self, hint: Hint) {
        // This process hears its own hints at once, and not again when they come back from Redis.
        let _ = self.hints.send(hint.clone());
        if self.unsent.try_send(hint).is_err() {
            self.metrics.dropped(1, Dropped::Full);
        }
    }

    fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    fn quotas(&self) -> Option<Arc<dyn Quotas>> {
        Some(self.quotas.clone())
    }
}

/// The names of the channels.
struct Channels {
    tasks: Vec<String>,
    control: String,
    heartbeat: String,
}

impl Channels {
    fn new(prefix: &str, origin: &str) -> Self {
        Self {
            tasks: (0..SHARDS).map(|shard| format!("{prefix}:task:{shard}")).collect(),
            control: format!("{prefix}:control"),
            heartbeat: format!("{prefix}:heartbeat:{origin}"),
        }
    }

    fn of(&self, hint: &Hint) -> &str {
        match hint {
            Hint::Task { id, .. } => &self.tasks[wire::shard(*id)],
            Hint::Control(_) | Hint::Missed => &self.control,
        }
    }

    fn all(&self) -> Vec<&str> {
        self.tasks.iter().chain([&self.control, &self.heartbeat]).map(String::as_str).collect()
    }
}

/// Why a connection was given up.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    NoAnswer,
    #[error("the connection was closed")]
    Closed,
    #[error("own heartbeat not heard for {SILENCE_MAX:?}")]
    Silent,
    #[error(transparent)]
    Redis(#[from] RedisError),
}

/// What the connection's reader tells its link.
#[derive(Clone, Copy, Default)]
struct Heard {
    beat: u64,
    closed: bool,
}

/// Keeps a connection, for as long as the bus lives.
struct Link {
    client: Client,
    channels: Channels,
    origin: String,
    hints: broadcast::Sender<Hint>,
    outbox: mpsc::Receiver<Hint>,
    // What is being sent; kept when the connection breaks, and sent again on the next one.
    batch: Vec<Hint>,
    healthy: Arc<AtomicBool>,
    metrics: Metrics,
}

impl Link {
    async fn run(mut self) {
        let mut retry = RETRY_MIN;
        let mut told = false;
        loop {
            let Err(broken) = self.session().await else { return };
            if self.healthy.swap(false, Ordering::AcqRel) {
                retry = RETRY_MIN;
                told = false;
                self.metrics.connected(false);
                // Hints since the last heartbeat are lost: whoever waits reads now, not at the end of its long interval.
                let _ = self.hints.send(Hint::Missed);
            }
            if told {
                tracing::debug!(error = %broken, "still no Redis");
            } else {
                tracing::warn!(error = %broken, "no Redis; tasks are read again on a short timer until it is there");
                told = true;
            }
            sleep(retry).await;
            retry = RETRY_MAX.min(retry * 2);
        }
    }

    /// Serves one connection until it breaks; `Ok` when the bus is gone.
    async fn session(&mut self) -> Result<(), Broken> {
        let (heard, mut ear) = watch::channel(Heard::default());
        let mut connection = self.open(heard).await?;
        let mut ticks = interval(HEARTBEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beat = 0;
        let mut sent = Instant::now();
        let mut last_heard = sent;
        loop {
            tokio::select! {
                // What was heard counts before the silence does: a process that was itself stopped has both to read.
                biased;
                changed = ear.changed() => {
                    let now = *ear.borrow_and_update();
                    if now.closed || changed.is_err() {
                        return Err(Broken::Closed);
                    }
                    last_heard = Instant::now();
                    if now.beat == beat {
                        self.metrics.lag(sent.elapsed().as_secs_f64());
                    }
                    self.stands();
                    continue;
                }
                () = sleep_until(last_heard + SILENCE_MAX) => return Err(Broken::Silent),
                _ = ticks.tick() => {
                    beat += 1;
                    sent = Instant::now();
                    self.send(&mut connection, Some(beat)).await?;
                }
                received = self.outbox.recv_many(&mut self.batch, BATCH_MAX) => {
                    if received == 0 {
                        return Ok(());
                    }
                    self.send(&mut connection, None).await?;
                }
            }
        }
    }

    /// A connection that has every subscription.
    async fn open(&self, heard: watch::Sender<Heard>) -> Result<MultiplexedConnection, Broken> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(COMMAND_TIMEOUT))
            .set_push_sender(self.reader(heard));
        let opening = self.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = timeout(CONNECT_TIMEOUT, opening).await.map_err(|_| Broken::NoAnswer)??;
        connection.subscribe(self.channels.all()).await?;
        Ok(connection)
    }

    /// Runs on the connection's own task for each message: passes hints on without another queue between.
    fn reader(&self, heard: watch::Sender<Heard>) -> impl Fn(PushInfo) -> Result<(), RedisError> + use<> {
        let hints = self.hints.clone();
        let metrics = self.metrics.clone();
        let origin = self.origin.clone();
        let heartbeat = self.channels.heartbeat.clone();
        move |push| {
            match (push.kind, push.data.as_slice()) {
                (PushKind::Disconnection, _) => heard.send_modify(|heard| heard.closed = true),
                (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)])
                    if channel == heartbeat.as_bytes() =>
                {
                    match std::str::from_utf8(message).ok().and_then(|beat| beat.parse().ok()) {
                        Some(beat) => heard.send_modify(|heard| heard.beat = beat),
                        None => metrics.ignored(),
                    }
                }
                (PushKind::Message, [_, Value::BulkString(message)]) => match wire::read(message) {
                    Some((from, _)) if from == origin => {}
                    Some((_, hint)) => {
                        let _ = hints.send(hint);
                    }
                    None => metrics.ignored(),
                },
                _ => {}
            }
            Ok(())
        }
    }

    /// Sends the batch, and a heartbeat if it is time.
    async fn send(&mut self, connection: &mut MultiplexedConnection, beat: Option<u64>) -> Result<(), Broken> {
        let mut pipeline = ::redis::pipe();
        if let Some(beat) = beat {
            pipeline.publish(&self.channels.heartbeat, beat).ignore();
        }
        for hint in &self.batch {
            match wire::write(&self.origin, hint) {
                Some(line) => {
                    pipeline.publish(self.channels.of(hint), line).ignore();
                }
                None => self.metrics.dropped(1, Dropped::Unfit),
            }
        }
        if pipeline.is_empty() {
            self.batch.clear();
            return Ok(());
        }
        match pipeline.query_async::<()>(connection).await {
            Ok(()) => {}
            Err(error) if error.is_unrecoverable_error() => return Err(error.into()),
            // A slow or unwilling Redis is not yet a broken one: the heartbeat decides. Nothing is sent twice here, or
            // what made it slow would grow.
            Err(error) => {
                self.metrics.dropped(self.batch.len() as u64, Dropped::Failed);
                tracing::debug!(%error, hints = self.batch.len(), "hints not published");
            }
        }
        self.batch.clear();
        Ok(())
    }

    /// The first heartbeat has come back: every subscription works from here on.
    fn stands(&self) {
        if !self.healthy.swap(true, Ordering::AcqRel) {
            self.metrics.connected(true);
            tracing::info!("connected to Redis");
            let _ = self.hints.send(Hint::Missed);
        }
    }
}
