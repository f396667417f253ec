//! How often.
//!
//! A rate is a bucket (GCRA) that holds a burst and gains one call each interval. Half of the burst is divided between the
//! replicas: each lets its slice pass on its own word, and has it filled up again in the background from the bucket that
//! they share, which holds the other half. So no call waits for Redis, and what passes in total never exceeds the rate:
//! all the slices and the shared bucket together hold the burst. While the bucket cannot be reached a slice gains its
//! fixed share of the rate instead; who comes back empties the bucket, which has gained all the while.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use longhaul_bus::{Grant, Quotas, WISHES_MAX, Wish};
use longhaul_core::{Check, Denied, Principal, Target, TaskId};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio::time::{Instant, interval, sleep_until};

use crate::metrics;

/// Slices that are not whole; those of all callers that call at present.
const SLICES_MAX: usize = 100_000;
/// Tasks whose polls are counted; beyond them polls are not counted, so that nobody can lock others out by asking for many.
const POLLED_MAX: usize = 100_000;
/// How often tasks that are no longer polled are forgotten, and full tables looked through.
const FORGET: Duration = Duration::from_secs(10);
/// How often a quiet replica looks whether the shared buckets are there.
const PROBE: Duration = Duration::from_secs(2);
/// How long a bucket that could not be reached is left alone.
const RETRY: Duration = Duration::from_millis(500);
/// When to try again if the next call is being paid for.
const SOON: Duration = Duration::from_millis(50);
/// The most calls in one of its units that a rate can name.
const COUNT_MAX: u32 = 1_000_000;

/// So many calls in so much time, written `60/m`: bursts of 60, and one more each second. The units are `s`, `m`, `h`, `d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    count: u32,
    per: Duration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no rate: write it as 60/m, with s, m, h or d, and 1 to {COUNT_MAX} calls");
        let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
        let per = match unit.trim() {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let count = count.trim().parse().ok().filter(|count| (1..=COUNT_MAX).contains(count)).ok_or_else(wrong)?;
        Ok(Self { count, per: Duration::from_secs(per) })
    }
}

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.per.as_secs() {
            1 => "s",
            60 => "m",
            3600 => "h",
            _ => "d",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

/// What is limited, and how.
#[derive(Debug, Clone, Default)]
pub struct RatesConfig {
    /// Calls of all kinds.
    pub calls: Limits,
    /// Those that become tasks; they count as calls too.
    pub creates: Limits,
    /// Looks at one task by its owner (`tasks/get`, `tasks/result`); each replica counts its share of them.
    pub polls_per_task: Option<Rate>,
    /// The most replicas that run at a time.
    pub replicas: u32,
}

/// The limits on one kind of call.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Of each caller.
    pub per_principal: Option<Rate>,
    /// Of all callers of a tenant together.
    pub per_tenant: Option<Rate>,
    /// Of a tool by its name, whoever calls it.
    pub per_tool: BTreeMap<String, Rate>,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A call.
    Call,
    /// A call that becomes a task.
    Create,
}

impl Kind {
    const fn letter(self) -> u8 {
        match self {
            Self::Call => b'c',
            Self::Create => b't',
        }
    }

    const fn no(self) -> &'static str {
        match self {
            Self::Call => "Too many calls in too short a time: try again later",
            Self::Create => "Too many new tasks in too short a time: try again later",
        }
    }
}

/// A bucket: what it counts, of whom, and a digest of the name, which may be a person's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Bucket([u8; 18]);

impl Bucket {
    fn new(kind: u8, scope: u8, name: &[&str]) -> Self {
        let mut digest = Sha256::new();
        for part in name {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut bucket = [0; 18];
        (bucket[0], bucket[1]) = (kind, scope);
        bucket[2..].copy_from_slice(&digest.finalize()[..16]);
        Self(bucket)
    }

    fn name(self) -> String {
        let hex = self.0[2..].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{}{}:{hex}", char::from(self.0[0]), char::from(self.0[1]))
    }
}

/// A rate, divided between replicas.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// In which the whole gains one.
    interval: Duration,
    /// Calls that the whole holds.
    burst: u32,
    /// Calls that the slice of a replica holds.
    slice: u32,
    /// Calls that the shared bucket holds. None: then each slice gains its fixed share.
    shared: u32,
    /// In which a slice gains one by itself.
    alone: Duration,
}

impl Terms {
    fn new(rate: Rate, replicas: u32) -> Self {
        let interval = rate.per / rate.count;
        let slice = (rate.count / (2 * replicas)).max(1);
        let shared = rate.count.saturating_sub(slice.saturating_mul(replicas));
        Self { interval, burst: rate.count, slice, shared, alone: interval * replicas }
    }
}

/// The limits in force on one kind of call.
#[derive(Debug)]
struct Counted {
    per_principal: Option<Terms>,
    per_tenant: Option<Terms>,
    per_tool: HashMap<String, Terms>,
}

impl Counted {
    fn new(limits: &Limits, replicas: u32) -> Self {
        let terms = |rate: &Rate| Terms::new(*rate, replicas);
        Self {
            per_principal: limits.per_principal.as_ref().map(terms),
            per_tenant: limits.per_tenant.as_ref().map(terms),
            per_tool: limits.per_tool.iter().map(|(name, rate)| (name.clone(), terms(rate))).collect(),
        }
    }
}

/// What a replica has let pass of a bucket.
#[derive(Debug)]
struct Slice {
    terms: Terms,
    /// Calls of the slice that are yet to be filled up.
    spent: u32,
    /// Whether it has gained by itself what the shared bucket gained too.
    has_gained: bool,
    /// Since when it gains by itself, if it does.
    gains_from: Instant,
    /// When the shared bucket is known to have one more.
    next: Instant,
    /// Whether it waits in line to be filled up.
    queued: bool,
}

impl Slice {
    fn is_whole(&self) -> bool {
        self.spent == 0 && !self.has_gained
    }

    /// Takes what it has gained by itself since `since`.
    fn gain(&mut self, now: Instant, since: Instant) {
        let from = self.gains_from.max(since);
        let gained = now.saturating_duration_since(from).as_micros() / self.terms.alone.as_micros().max(1);
        let gained = u32::try_from(gained).unwrap_or(u32::MAX);
        let taken = gained.min(self.spent);
        self.spent -= taken;
        self.has_gained |= taken > 0 && self.terms.shared > 0;
        self.gains_from = if self.spent == 0 { now } else { from + self.terms.alone * taken };
    }
}

#[derive(Debug)]
struct State {
    slices: HashMap<Bucket, Slice>,
    /// Those to fill up, and when.
    line: BinaryHeap<Reverse<(Instant, Bucket)>>,
    /// Whether the shared buckets can be reached.
    is_shared: bool,
    /// Since when not.
    alone_since: Instant,
    looked_through: Instant,
}

impl State {
    fn queue(&mut self, bucket: Bucket, at: Instant) {
        if let Some(slice) = self.slices.get_mut(&bucket).filter(|slice| !slice.queued && slice.terms.shared > 0) {
            slice.queued = true;
            self.line.push(Reverse((at, bucket)));
        }
    }

    /// Forgets what is whole if there is too much; whether there is room.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.slices.len() >= SLICES_MAX && now.saturating_duration_since(self.looked_through) >= FORGET {
            self.looked_through = now;
            let (is_shared, since) = (self.is_shared, self.alone_since);
            self.slices.retain(|_, slice| {
                if !is_shared || slice.terms.shared == 0 {
                    slice.gain(now, since);
                }
                !slice.is_whole()
            });
        }
        self.slices.len() < SLICES_MAX
    }

    /// Those whose turn it is to be filled up.
    fn due(&mut self, now: Instant) -> Vec<(Bucket, Wish)> {
        let mut due = Vec::new();
        while let Some(Reverse((at, bucket))) = self.line.peek().copied() {
            if at > now || due.len() == WISHES_MAX {
                break;
            }
            self.line.pop();
            if let Some(slice) = self.slices.get_mut(&bucket) {
                slice.queued = false;
                let Terms { interval, shared: burst, .. } = slice.terms;
                let (wanted, empties) = (slice.spent, slice.has_gained);
                due.push((bucket, Wish { bucket: bucket.name(), wanted, interval, burst, empties }));
            }
        }
        due
    }

    /// Whether the shared buckets can be reached has changed, perhaps.
    fn reached(&mut self, is_shared: bool, now: Instant) {
        if self.is_shared != is_shared {
            self.is_shared = is_shared;
            metrics::shared(is_shared);
            if is_shared {
                tracing::info!("rate limits are shared between replicas");
            } else {
                self.alone_since = now;
                tracing::warn!("rate limits cannot be shared: each replica keeps its fixed share of them");
            }
        }
    }

    fn given(&mut self, bucket: Bucket, granted: Grant, now: Instant) {
        let Some(slice) = self.slices.get_mut(&bucket) else { return };
        slice.spent = slice.spent.saturating_sub(granted.granted);
        slice.has_gained = false;
        slice.next = now + granted.next;
        if slice.is_whole() {
            self.slices.remove(&bucket);
        } else {
            let next = slice.next;
            self.queue(bucket, next);
        }
    }
}

/// The rate limits of a replica.
pub struct Rates {
    calls: Counted,
    creates: Counted,
    polls: Option<(Terms, DefaultKeyedRateLimiter<Bucket>)>,
    quotas: Option<Arc<dyn Quotas>>,
    /// Whether all that count together are in this process.
    is_local: bool,
    state: Mutex<State>,
    spent: Notify,
}

impl fmt::Debug for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rates")
    }
}

impl Rates {
    /// Limits that replicas keep by these quotas; without them each keeps its fixed share. The error says which limit cannot be.
    pub fn new(config: &RatesConfig, quotas: Option<Arc<dyn Quotas>>) -> Result<Self, String> {
        let replicas = config.replicas;
        if replicas == 0 {
            return Err("there is no replica".into());
        }
        let is_local = quotas.as_ref().is_some_and(|quotas| quotas.take_now(&[]).is_some());
        let all = [&config.calls, &config.creates];
        let all = all
            .iter()
            .flat_map(|limits| limits.per_principal.iter().chain(&limits.per_tenant).chain(limits.per_tool.values()));
        if let Some(small) = all.clone().find(|rate| !is_local && rate.count < replicas) {
            return Err(format!(
                "{small} cannot be shared by {replicas} replicas: name at least {replicas} calls, in a longer time"
            ));
        }
        let polls = config.polls_per_task.map(|rate| {
            let burst = NonZeroU32::new(rate.count / replicas).unwrap_or(NonZeroU32::MIN);
            let quota = Quota::with_period(rate.per / rate.count * replicas).expect("invariant: at least 1 µs");
            (Terms::new(rate, replicas), RateLimiter::keyed(quota.allow_burst(burst)))
        });
        let now = Instant::now();
        metrics::shared(is_local);
        Ok(Self {
            calls: Counted::new(&config.calls, replicas),
            creates: Counted::new(&config.creates, replicas),
            polls,
            quotas,
            is_local,
            state: Mutex::new(State {
                slices: HashMap::new(),
                line: BinaryHeap::new(),
                is_shared: false,
                alone_since: now,
                looked_through: now,
            }),
            spent: Notify::new(),
        })
    }

    /// Counts a call of these kinds; refused, it counts for none.
    pub(crate) fn check(&self, kinds: &[Kind], principal: &Principal, target: &Target) -> Result<(), Denied> {
        let buckets = self.buckets(kinds, principal, target);
        if buckets.is_empty() {
            return Ok(());
        }
        let wait = if self.is_local { self.take_now(&buckets) } else { self.take(&buckets) };
        let Some((kind, wait)) = wait else { return Ok(()) };
        Err(no(kind.no(), wait))
    }

    /// Counts a look at a task.
    pub(crate) fn poll(&self, principal: &Principal, task: TaskId) -> Result<(), Denied> {
        const NO: &str = "This task is asked for too often: keep to its poll interval";
        let Some((terms, polls)) = &self.polls else { return Ok(()) };
        let bucket = Bucket::new(b'p', b'i', &[principal.tenant.as_str(), &principal.owner(), &task.to_string()]);
        if self.is_local {
            return self.take_now(&[(Kind::Call, bucket, *terms)]).map_or(Ok(()), |(_, wait)| Err(no(NO, wait)));
        }
        if polls.len() >= POLLED_MAX {
            return Ok(());
        }
        polls.check_key(&bucket).map_err(|until| no(NO, until.wait_time_from(DefaultClock::default().now())))
    }

    /// Fills up what has been spent, as long as it is awaited.
    pub async fn run(&self) -> Infallible {
        let forget = async {
            let mut turns = interval(FORGET);
            loop {
                turns.tick().await;
                if let Some((_, polls)) = &self.polls {
                    polls.retain_recent();
                    polls.shrink_to_fit();
                }
            }
        };
        let pay = async {
            match self.quotas.as_ref().filter(|_| !self.is_local) {
                None => std::future::pending().await,
                Some(quotas) => self.pay(&**quotas).await,
            }
        };
        tokio::join!(forget, pay).0
    }

    async fn pay(&self, quotas: &dyn Quotas) -> Infallible {
        loop {
            let due = self.state().due(Instant::now());
            let (buckets, wishes): (Vec<_>, Vec<_>) = due.into_iter().unzip();
            let given = quotas.take(&wishes).await;
            let now = Instant::now();
            let wake = {
                let mut state = self.state();
                state.reached(given.is_ok(), now);
                match given {
                    Ok(given) => {
                        for (bucket, given) in buckets.into_iter().zip(given) {
                            state.given(bucket, given, now);
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "rate limits");
                        for bucket in buckets {
                            state.queue(bucket, now + RETRY);
                        }
                    }
                }
                let next = state.line.peek().map_or(now + PROBE, |Reverse((at, _))| *at);
                if state.is_shared { next.min(now + PROBE) } else { now + RETRY }
            };
            // Whoever spends meanwhile has left a permit.
            let woken = async {
                if self.is_shared() {
                    self.spent.notified().await;
                } else {
                    std::future::pending().await
                }
            };
            tokio::select! {
                () = woken => {}
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Whether replicas count together at present.
    pub fn is_shared(&self) -> bool {
        self.is_local || self.state().is_shared
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buckets(&self, kinds: &[Kind], principal: &Principal, target: &Target) -> Vec<(Kind, Bucket, Terms)> {
        let (tenant, mut buckets) = (principal.tenant.as_str(), Vec::new());
        for kind in kinds {
            let (letter, counted) = (
                kind.letter(),
                match kind {
                    Kind::Call => &self.calls,
                    Kind::Create => &self.creates,
                },
            );
            if let Some(terms) = counted.per_principal {
                buckets.push((*kind, Bucket::new(letter, b'p', &[tenant, &principal.owner()]), terms));
            }
            if let Some(terms) = counted.per_tenant {
                buckets.push((*kind, Bucket::new(letter, b't', &[tenant]), terms));
            }
            if let Target::Tool(name) = target
                && let Some(terms) = counted.per_tool.get(name)
            {
                buckets.push((*kind, Bucket::new(letter, b'n', &[name]), *terms));
            }
        }
        buckets
    }

    /// Takes one of each bucket or none; if none, because of what, and for how long.
    fn take_now(&self, buckets: &[(Kind, Bucket, Terms)]) -> Option<(Kind, Duration)> {
        let wish = |(_, bucket, terms): &(Kind, Bucket, Terms)| Wish {
            bucket: bucket.name(),
            wanted: 1,
            interval: terms.interval,
            burst: terms.burst,
            empties: false,
        };
        let wishes: Vec<Wish> = buckets.iter().map(wish).collect();
        let (nth, wait) = self.quotas.as_ref()?.take_now(&wishes)?.err()?;
        Some((buckets[nth].0, wait))
    }

    fn take(&self, buckets: &[(Kind, Bucket, Terms)]) -> Option<(Kind, Duration)> {
        let now = Instant::now();
        let mut state = self.state();
        let State { is_shared, alone_since, .. } = *state;
        if !state.has_room(now) {
            return Some((buckets[0].0, FORGET));
        }
        let mut longest: Option<(Kind, Duration)> = None;
        for (kind, bucket, terms) in buckets {
            let Some(slice) = state.slices.get_mut(bucket) else { continue };
            let gains = !is_shared || terms.shared == 0;
            if gains {
                slice.gain(now, alone_since);
            }
            if slice.spent >= terms.slice {
                let at =
                    if gains { slice.gains_from.max(alone_since) + terms.alone } else { slice.next.max(now + SOON) };
                let wait = at.saturating_duration_since(now);
                if longest.is_none_or(|(_, longest)| wait > longest) {
                    longest = Some((*kind, wait));
                }
            }
        }
        if longest.is_some() {
            return longest;
        }
        for (_, bucket, terms) in buckets {
            let slice = state.slices.entry(*bucket).or_insert_with(|| Slice {
                terms: *terms,
                spent: 0,
                has_gained: false,
                gains_from: now,
                next: now,
                queued: false,
            });
            if slice.spent == 0 {
                slice.gains_from = now;
            }
            slice.spent += 1;
            let at = slice.next.max(now);
            state.queue(*bucket, at);
        }
        drop(state);
        self.spent.notify_one();
        None
    }
}

fn no(message: &str, wait: Duration) -> Denied {
    // Whoever comes at the very moment may be a moment early.
    let wait = wait.max(Duration::from_millis(1));
    Denied { by: Check::RateLimit, message: message.into(), retry_after: Some(wait) }
}

#[cfg(test)]
mod tests;
