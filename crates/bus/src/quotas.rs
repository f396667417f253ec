//! Counting together: buckets that all replicas take from.
//!
//! A bucket holds up to `burst` and gains one each `interval` (GCRA: all that is kept of it is one moment). Whoever takes says
//! how a bucket is to be, and takes in the background what it will give away later: nobody waits for this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client};
use async_trait::async_trait;
use tokio::time::Instant;

/// Buckets that are asked for in one go.
pub const WISHES_MAX: usize = 256;
/// Buckets of one process; one that is not there is full.
const BUCKETS_MAX: usize = 100_000;
/// Time to connect and shake hands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for Redis to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// What one wants of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The bucket: no secret and no name of a caller.
    pub bucket: String,
    /// How much, if there is as much.
    pub wanted: u32,
    /// How long it takes to gain one.
    pub interval: Duration,
    /// How much it holds at most.
    pub burst: u32,
    /// Whether what it holds now counts as gone, before anything is taken.
    pub empties: bool,
}

/// What was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// How much.
    pub granted: u32,
    /// When there will be one more.
    pub next: Duration,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
#[error("the quotas cannot be reached: {0}")]
pub struct QuotaError(String);

impl QuotaError {
    /// For this reason.
    pub fn new(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// Buckets that replicas share.
#[async_trait]
pub trait Quotas: Send + Sync {
    /// Takes from these buckets, at most [`WISHES_MAX`]; answers in their order.
    async fn take(&self, wishes: &[Wish]) -> Result<Vec<Grant>, QuotaError>;
    /// Takes one from each of these buckets or from none: then which of them has none, and for how long. Only where nobody
    /// has to be waited for; nothing otherwise.
    fn take_now(&self, wishes: &[Wish]) -> Option<Result<(), (usize, Duration)>>;
}

/// Takes up to `wanted` from a bucket that will be full again after `full_in` of now: what is given, what then is left to
/// wait, and when it will be full.
fn take(full_in: Duration, wish: &Wish) -> (Grant, Duration) {
    let interval = wish.interval.max(Duration::from_micros(1));
    let full_in = if wish.empties { full_in.max(interval * wish.burst) } else { full_in };
    let room = (interval * wish.burst).saturating_sub(full_in);
    let there = u32::try_from(room.as_micros() / interval.as_micros()).unwrap_or(u32::MAX);
    let granted = there.min(wish.wanted);
    let full_in = full_in + interval * granted;
    let next = (full_in + interval).saturating_sub(interval * wish.burst);
    (Grant { granted, next }, full_in)
}

/// Buckets in this process.
#[derive(Debug, Default)]
pub struct LocalQuotas(Mutex<HashMap<String, Instant>>);

#[async_trait]
impl Quotas for LocalQuotas {
    async fn take(&self, wishes: &[Wish]) -> Result<Vec<Grant>, QuotaError> {
        let (mut buckets, now) = (self.buckets(), Instant::now());
        let mut given = |wish: &Wish| {
            let full_at = buckets.entry(wish.bucket.clone()).or_insert(now);
            let (grant, full_in) = take(full_at.saturating_duration_since(now), wish);
            *full_at = now + full_in;
            grant
        };
        Ok(wishes.iter().map(&mut given).collect())
    }

    fn take_now(&self, wishes: &[Wish]) -> Option<Result<(), (usize, Duration)>> {
        let (mut buckets, now) = (self.buckets(), Instant::now());
        let mut taken = Vec::with_capacity(wishes.len());
        for (nth, wish) in wishes.iter().enumerate() {
            let full_in = buckets.get(&wish.bucket).map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
            let (grant, full_in) = take(full_in, &Wish { wanted: 1, ..wish.clone() });
            if grant.granted == 0 {
                return Some(Err((nth, grant.next)));
            }
            taken.push((wish.bucket.clone(), now + full_in));
        }
        buckets.extend(taken);
        Some(Ok(()))
    }
}

impl LocalQuotas {
    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > BUCKETS_MAX {
            let now = Instant::now();
            buckets.retain(|_, full_at| *full_at > now);
        }
        buckets
    }
}

/// Buckets on Redis: one key each, which is gone when its bucket is full. By Redis's clock.
pub(crate) struct RedisQuotas {
    client: Client,
    prefix: String,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

/// In microseconds: `KEYS` are the buckets, `ARGV` four numbers for each: wanted, interval, burst, whether it empties.
const TAKE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local given = {}
for at, key in ipairs(KEYS) do
  local wanted, interval = tonumber(ARGV[at * 4 - 3]), tonumber(ARGV[at * 4 - 2])
  local burst, empties = tonumber(ARGV[at * 4 - 1]), ARGV[at * 4] == '1'
  local full = math.max(tonumber(redis.call('GET', key) or 0) - now, 0)
  if empties then
    full = math.max(full, interval * burst)
  end
  local granted = math.max(math.min(math.floor((interval * burst - full) / interval), wanted), 0)
  if granted > 0 or empties then
    full = full + granted * interval
    redis.call('SET', key, string.format('%.0f', now + full), 'PX', math.ceil(full / 1000))
  end
  given[at * 2 - 1] = granted
  given[at * 2] = math.max(full + interval - interval * burst, 0)
end
return given";

impl RedisQuotas {
    pub(crate) fn new(client: Client, prefix: &str) -> Arc<Self> {
        Arc::new(Self { client, prefix: format!("{prefix}:quota:"), connection: tokio::sync::Mutex::default() })
    }

    /// The connection that stands, or a new one.
    async fn connection(&self) -> Result<MultiplexedConnection, ::redis::RedisError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        *kept = Some(connection.clone());
        Ok(connection)
    }
}

impl std::fmt::Debug for RedisQuotas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RedisQuotas")
    }
}

#[async_trait]
impl Quotas for RedisQuotas {
    async fn take(&self, wishes: &[Wish]) -> Result<Vec<Grant>, QuotaError> {
        let wishes = &wishes[..wishes.len().min(WISHES_MAX)];
        let mut command = ::redis::cmd("EVAL");
        command.arg(TAKE).arg(wishes.len());
        for wish in wishes {
            command.arg(format!("{}{}", self.prefix, wish.bucket));
        }
        for Wish { wanted, interval, burst, empties, .. } in wishes {
            let interval = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1);
            command.arg(*wanted).arg(interval).arg(*burst).arg(u8::from(*empties));
        }
        let asking = async {
            let mut connection = self.connection().await?;
            command.query_async::<Vec<u64>>(&mut connection).await
        };
        let given = tokio::time::timeout(CONNECT_TIMEOUT + ANSWER_TIMEOUT, asking).await;
        let given = given.map_err(|_| "no answer in time".to_owned());
        match given.and_then(|given| given.map_err(|error| error.to_string())) {
            Ok(given) if given.len() != wishes.len() * 2 => Err(QuotaError("an answer of another length".into())),
            Ok(given) => {
                let grant = |pair: &[u64]| Grant {
                    granted: u32::try_from(pair[0]).unwrap_or(0),
                    next: Duration::from_micros(pair[1]),
                };
                Ok(given.chunks_exact(2).map(grant).collect())
            }
            Err(error) => {
                // It may have come to nothing; the next one begins anew.
                *self.connection.lock().await = None;
                Err(QuotaError(error))
            }
        }
    }

    fn take_now(&self, _wishes: &[Wish]) -> Option<Result<(), (usize, Duration)>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(wanted: u32) -> Wish {
        Wish { bucket: "b".into(), wanted, interval: Duration::from_millis(100), burst: 5, empties: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_gives_its_burst_at_once_and_then_one_each_interval() {
        let quotas = LocalQuotas::default();
        let take = async |wanted| {
            let given = quotas.take(&[wish(wanted)]).await.unwrap()[0];
            (given.granted, given.next.as_millis())
        };
        assert_eq!(take(3).await, (3, 0));
        assert_eq!(take(3).await, (2, 100));
        assert_eq!(take(1).await, (0, 100));
        tokio::time::advance(Duration::from_millis(60)).await;
        assert_eq!(take(1).await, (0, 40));
        tokio::time::advance(Duration::from_millis(40)).await;
        assert_eq!(take(3).await, (1, 100));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(take(9).await, (5, 100));
        tokio::time::advance(Duration::from_secs(9)).await;
        let emptied = quotas.take(&[Wish { empties: true, ..wish(1) }]).await.unwrap();
        assert_eq!(emptied, [Grant { granted: 0, next: Duration::from_millis(100) }]);
        assert_eq!(take(1).await, (0, 100));
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_each_bucket_is_taken_or_none() {
        let quotas = LocalQuotas::default();
        let small = Wish { bucket: "small".into(), burst: 1, ..wish(1) };
        assert_eq!(quotas.take_now(&[wish(1), small.clone()]), Some(Ok(())));
        assert_eq!(quotas.take_now(&[wish(1), small]), Some(Err((1, Duration::from_millis(100)))));
        assert_eq!(quotas.take(&[wish(9)]).await.unwrap()[0].granted, 4);
    }
}
