//! Who may run, and for how long: a slot and a clock, both given up while a run waits for its caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::{Principal, TenantId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::metrics::{Busy, Slots};

/// Runs of one worker that wait for their callers, at a time; with more, a question counts as declined.
pub(crate) const WAITING_MAX: usize = 1_000;
/// Those of one tenant: others can wait too.
pub(crate) const TENANT_WAITING_MAX: usize = 750;
/// Those of one principal that are not tasks: nobody takes all places by hanging up on questions.
pub(crate) const CALLS_WAITING_MAX: usize = 100;
/// What all calls that wait and are not tasks keep in memory, in bytes of arguments, questions and answers.
pub(crate) const CALLS_WAITING_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Who wants to wait.
#[derive(Clone, Copy)]
pub(crate) struct Waiter<'a> {
    /// For whom.
    pub(crate) principal: &'a Principal,
    /// What a call keeps in memory meanwhile, in bytes; `None` for a task, which can be had again.
    pub(crate) call_bytes: Option<usize>,
}

/// The places of runs that wait for their callers.
pub(crate) struct Places {
    free: Arc<Semaphore>,
    taken: Mutex<Taken>,
}

/// Who has them.
#[derive(Default)]
struct Taken {
    tenants: HashMap<TenantId, usize>,
    /// Of calls that are not tasks.
    calls: HashMap<Principal, usize>,
    call_bytes: usize,
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(max)), taken: Mutex::default() })
    }

    pub(crate) fn take(self: &Arc<Self>, waiter: Waiter<'_>) -> Result<Place, Full> {
        let Waiter { principal, call_bytes } = waiter;
        let permit = self.free.clone().try_acquire_owned().map_err(|_| Full::Worker)?;
        let mut taken = self.taken();
        if taken.tenants.get(&principal.tenant).is_some_and(|count| *count >= TENANT_WAITING_MAX) {
            return Err(Full::Tenant);
        }
        if let Some(bytes) = call_bytes {
            if taken.calls.get(principal).is_some_and(|count| *count >= CALLS_WAITING_MAX) {
                return Err(Full::Caller);
            }
            taken.keep(bytes)?;
            *taken.calls.entry(principal.clone()).or_default() += 1;
        }
        *taken.tenants.entry(principal.tenant.clone()).or_default() += 1;
        Ok(Place { places: self.clone(), principal: principal.clone(), call_bytes, _permit: permit })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn keep(&mut self, bytes: usize) -> Result<(), Full> {
        if self.call_bytes.saturating_add(bytes) > CALLS_WAITING_BYTES_MAX {
            return Err(Full::Bytes);
        }
        self.call_bytes += bytes;
        Ok(())
    }
}

/// A place, until it is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    principal: Principal,
    call_bytes: Option<usize>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Its run waits for more.
    fn keep(&mut self, more: Option<usize>) -> Result<(), Full> {
        if let (Some(bytes), Some(more)) = (&mut self.call_bytes, more) {
            self.places.taken().keep(more)?;
            *bytes += more;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        less_one(&mut taken.tenants, &self.principal.tenant);
        if let Some(bytes) = self.call_bytes {
            taken.call_bytes -= bytes;
            less_one(&mut taken.calls, &self.principal);
        }
    }
}

/// Nobody is remembered for ever.
fn less_one<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// As many runs wait as may.
    Worker,
    /// As many of this tenant wait as may.
    Tenant,
    /// As many calls of this principal wait as may.
    Caller,
    /// The calls that wait keep as much as they may.
    Bytes,
}

impl Full {
    /// Says so in the log: what became of the run.
    pub(crate) fn log(self, caller: &Principal, what: &'static str) {
        let tenant = caller.tenant.as_str();
        match self {
            Self::Worker => tracing::warn!(WAITING_MAX, "too many runs wait for their callers: {what}"),
            Self::Tenant => {
                tracing::warn!(TENANT_WAITING_MAX, tenant.id = tenant, "too many runs of one tenant wait: {what}");
            }
            Self::Caller => {
                tracing::warn!(
                    CALLS_WAITING_MAX,
                    tenant.id = tenant,
                    "too many calls wait for the same caller: {what}"
                );
            }
            Self::Bytes => {
                tracing::warn!(
                    CALLS_WAITING_BYTES_MAX,
                    tenant.id = tenant,
                    "the calls that wait keep too much in memory: {what}"
                );
            }
        }
    }
}

/// A run's slot among those that run at a time, and its time limit, which goes on only while the run does.
pub(crate) struct Seat {
    free: Arc<Semaphore>,
    gauge: Option<Slots>,
    state: Mutex<State>,
    limit: watch::Sender<Limit>,
    worked: watch::Sender<Worked>,
}

/// How long a run has worked, without the time it waited for its caller.
#[derive(Clone, Copy, Default)]
struct Worked {
    before: Duration,
    /// Since when it does, if it does.
    since: Option<Instant>,
}

#[derive(Default)]
struct State {
    slot: Option<(OwnedSemaphorePermit, Option<Busy>)>,
    /// How many questions are waited for.
    waiting: u32,
    /// Its place among the runs that wait.
    place: Option<Place>,
    /// The run is over: it needs no slot any more.
    left: bool,
}

#[derive(Clone, Copy)]
enum Limit {
    Never,
    /// So much is left.
    Paused(Duration),
    At(Instant),
}

impl Seat {
    /// A seat that is not taken yet.
    pub(crate) fn new(free: Arc<Semaphore>, gauge: Option<Slots>, limit: Option<Duration>) -> Self {
        let limit = limit.map_or(Limit::Never, Limit::Paused);
        let (limit, worked) = (watch::Sender::new(limit), watch::Sender::new(Worked::default()));
        Self { free, gauge, state: Mutex::default(), limit, worked }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot, unless it has one.
    pub(crate) async fn take(&self) {
        if self.state().slot.is_some() {
            return;
        }
        if let Ok(permit) = self.free.clone().acquire_owned().await {
            self.sit(permit);
        }
    }

    /// Begins, or goes on.
    pub(crate) fn sit(&self, permit: OwnedSemaphorePermit) {
        self.state().sit(Some(permit), self.gauge.as_ref());
        self.run_clock(true);
    }

    fn run_clock(&self, on: bool) {
        let now = Instant::now();
        self.limit.send_modify(|limit| match (on, *limit) {
            // A limit beyond the clock's range is none.
            (true, Limit::Paused(left)) => *limit = now.checked_add(left).map_or(Limit::Never, Limit::At),
            (false, Limit::At(end)) => *limit = Limit::Paused(end.saturating_duration_since(now)),
            (true, Limit::Never | Limit::At(_)) | (false, Limit::Never | Limit::Paused(_)) => {}
        });
        self.worked.send_modify(|worked| match (on, worked.since) {
            (true, None) => worked.since = Some(now),
            (false, Some(since)) => *worked = Worked { before: worked.before + (now - since), since: None },
            (true, Some(_)) | (false, None) => {}
        });
    }

    /// How long the run has worked so far.
    pub(crate) fn worked(&self) -> Duration {
        let Worked { before, since } = *self.worked.borrow();
        before + since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits until the run has worked for so long in all.
    pub(crate) async fn until_worked(&self, whole: Duration) {
        let mut worked = self.worked.subscribe();
        loop {
            let Worked { before, since } = *worked.borrow_and_update();
            // A time beyond the clock's range never comes.
            match since.and_then(|since| since.checked_add(whole.saturating_sub(before))) {
                Some(end) => {
                    if tokio::time::timeout_at(end, worked.changed()).await.is_err() {
                        return;
                    }
                }
                None => {
                    let _ = worked.changed().await;
                }
            }
        }
    }

    /// When the time limit ends the run; `None` is never, or not while it waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match *self.limit.borrow() {
            Limit::At(end) => Some(end),
            Limit::Never | Limit::Paused(_) => None,
        }
    }

    /// Waits until the time limit is reached.
    pub(crate) async fn run_out(&self) {
        let mut limit = self.limit.subscribe();
        loop {
            let now = *limit.borrow_and_update();
            match now {
                Limit::At(end) => {
                    if tokio::time::timeout_at(end, limit.changed()).await.is_err() {
                        return;
                    }
                }
                Limit::Never | Limit::Paused(_) => {
                    let _ = limit.changed().await;
                }
            }
        }
    }

    /// Gives the slot up until [`Away::back`], unless too many runs wait already. One that waits for several things has one
    /// place, and keeps what is for each of them until it needs none.
    pub(crate) fn leave(&self, places: &Arc<Places>, waiter: Waiter<'_>) -> Result<Away<'_>, Full> {
        let mut state = self.state();
        match &mut state.place {
            Some(place) => place.keep(waiter.call_bytes)?,
            None => {
                state.place = Some(places.take(waiter)?);
                state.slot = None;
                self.run_clock(false);
            }
        }
        state.waiting += 1;
        drop(state);
        Ok(Away { seat: self, permit: None })
    }

    /// The run is over.
    pub(crate) fn free(&self) {
        let mut state = self.state();
        state.left = true;
        state.slot = None;
    }
}

impl State {
    fn sit(&mut self, permit: Option<OwnedSemaphorePermit>, gauge: Option<&Slots>) {
        if !self.left && self.slot.is_none() {
            self.slot = permit.map(|permit| (permit, gauge.map(Slots::busy)));
        }
    }
}

/// A run that waits for its caller. Dropped early it goes on at once, without a slot if there is none.
pub(crate) struct Away<'a> {
    seat: &'a Seat,
    permit: Option<OwnedSemaphorePermit>,
}

impl Away<'_> {
    /// Waits for a slot to go on in. A run that waits for something else besides goes on without.
    pub(crate) async fn back(mut self) {
        let alone = self.seat.state().waiting == 1;
        if alone {
            self.permit = self.seat.free.clone().acquire_owned().await.ok();
        }
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let mut state = self.seat.state();
        state.waiting -= 1;
        if state.waiting > 0 {
            return;
        }
        state.place = None;
        let permit = self.permit.take().or_else(|| self.seat.free.clone().try_acquire_owned().ok());
        state.sit(permit, self.seat.gauge.as_ref());
        self.seat.run_clock(true);
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::Caller;

    use super::*;

    fn principal(tenant: &str, name: &str) -> Principal {
        Principal { tenant: TenantId::new(tenant), caller: Caller::Agent(name.into()) }
    }

    fn task(principal: &Principal) -> Waiter<'_> {
        Waiter { principal, call_bytes: None }
    }

    fn call(principal: &Principal, bytes: usize) -> Waiter<'_> {
        Waiter { principal, call_bytes: Some(bytes) }
    }

    fn seats() -> (Arc<Semaphore>, Arc<Places>) {
        (Arc::new(Semaphore::new(1)), Places::new(1))
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_waits_has_neither_slot_nor_clock() {
        let (free, places) = seats();
        let seat = Seat::new(free.clone(), None, Some(Duration::from_secs(10)));
        assert_eq!(seat.deadline(), None);
        seat.take().await;
        assert_eq!((free.available_permits(), seat.deadline()), (0, Some(Instant::now() + Duration::from_secs(10))));
        tokio::time::advance(Duration::from_secs(4)).await;
        let away = seat.leave(&places, task(&principal("t", "a"))).unwrap();
        assert_eq!((free.available_permits(), places.free.available_permits(), seat.deadline()), (1, 0, None));
        tokio::time::timeout(Duration::from_secs(100), seat.run_out()).await.unwrap_err();
        away.back().await;
        assert_eq!((free.available_permits(), places.free.available_permits()), (0, 1));
        let start = Instant::now();
        seat.run_out().await;
        assert!(start.elapsed().abs_diff(Duration::from_secs(6)) < Duration::from_millis(10), "{:?}", start.elapsed());
        assert!(seat.worked().abs_diff(Duration::from_secs(10)) < Duration::from_millis(10), "{:?}", seat.worked());
        seat.until_worked(Duration::from_secs(12)).await;
        assert!(start.elapsed().abs_diff(Duration::from_secs(8)) < Duration::from_millis(10), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_comes_back_when_a_slot_is_free_and_leaves_none_behind() {
        let (free, places) = seats();
        let (one, other) = (Seat::new(free.clone(), None, None), Seat::new(free.clone(), None, None));
        one.take().await;
        let away = one.leave(&places, task(&principal("t", "a"))).unwrap();
        assert!(other.leave(&places, task(&principal("t", "a"))).is_err(), "there is one place to wait");
        let second = one.leave(&places, task(&principal("t", "a"))).unwrap();
        other.take().await;
        second.back().await;
        let mut back = std::pin::pin!(away.back());
        tokio::time::timeout(Duration::from_secs(1), &mut back).await.unwrap_err();
        other.free();
        back.await;
        assert_eq!(free.available_permits(), 0);
        one.free();
        // What is left behind of a run cannot take its slot again.
        drop(one.leave(&places, task(&principal("t", "a"))).unwrap());
        assert_eq!((free.available_permits(), places.free.available_permits()), (1, 1));
    }

    #[test]
    fn calls_of_one_caller_leave_places_to_everybody_else() {
        let places = Places::new(CALLS_WAITING_MAX + 3);
        let [one, other] = ["a", "b"].map(|name| principal("t", name));
        let mut taken: Vec<_> = (0..CALLS_WAITING_MAX).map(|_| places.take(call(&one, 0)).unwrap()).collect();
        assert_eq!(places.take(call(&one, 0)).err(), Some(Full::Caller));
        let others = [places.take(call(&other, 0)).unwrap(), places.take(task(&one)).unwrap()];
        taken.pop();
        taken.push(places.take(call(&one, 0)).unwrap());
        assert_eq!(places.take(call(&one, 0)).err(), Some(Full::Caller));
        let _last = places.take(task(&one)).unwrap();
        assert_eq!(places.take(task(&other)).err(), Some(Full::Worker));
        drop((taken, others));
        assert!(places.taken().calls.is_empty(), "nobody is remembered for ever");
    }

    #[test]
    fn one_tenant_leaves_places_to_all_others() {
        let places = Places::new(WAITING_MAX);
        let [one, same, other] = [("t", "a"), ("t", "b"), ("u", "a")].map(|(tenant, name)| principal(tenant, name));
        let mut taken: Vec<_> = (0..TENANT_WAITING_MAX - 1).map(|_| places.take(task(&one)).unwrap()).collect();
        taken.push(places.take(call(&same, 7)).unwrap());
        for full in [task(&one), task(&same), call(&same, 0)] {
            assert_eq!(places.take(full).err(), Some(Full::Tenant));
        }
        let others: Vec<_> =
            (0..WAITING_MAX - TENANT_WAITING_MAX).map(|_| places.take(task(&other)).unwrap()).collect();
        assert_eq!(places.take(task(&other)).err(), Some(Full::Worker));
        drop(others);
        taken.pop();
        taken.push(places.take(task(&same)).unwrap());
        drop(taken);
        let taken = places.taken();
        assert!(taken.tenants.is_empty() && taken.calls.is_empty() && taken.call_bytes == 0);
    }

    #[tokio::test]
    async fn what_calls_keep_in_memory_while_they_wait_is_bounded() {
        let (free, places) = (Arc::new(Semaphore::new(9)), Places::new(9));
        let who = principal("t", "a");
        let [one, other] = [(); 2].map(|()| Seat::new(free.clone(), None, None));
        let most = CALLS_WAITING_BYTES_MAX;
        assert_eq!(other.leave(&places, call(&who, most + 1)).err(), Some(Full::Bytes));
        let first = one.leave(&places, call(&who, most - 10)).unwrap();
        // A run that waits for several things keeps all of it.
        let second = one.leave(&places, call(&who, 6)).unwrap();
        assert_eq!(one.leave(&places, call(&who, 5)).err(), Some(Full::Bytes));
        assert_eq!(other.leave(&places, call(&who, 5)).err(), Some(Full::Bytes));
        drop(other.leave(&places, call(&who, 4)).unwrap());
        drop(other.leave(&places, task(&who)).unwrap());
        first.back().await;
        assert_eq!(other.leave(&places, call(&who, 5)).err(), Some(Full::Bytes), "it still waits");
        second.back().await;
        drop(other.leave(&places, call(&who, most)).unwrap());
        assert_eq!((places.taken().call_bytes, places.free.available_permits()), (0, 9));
    }
}
