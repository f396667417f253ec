//! A copy of what is switched off follows the task-store's word, with hints and without, and never forgets.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use longhaul_bus::{Bus, Control as ControlHint, DeafBus, Hint, LocalBus};
use longhaul_core::audit::Sealed;
use longhaul_core::{BudgetKey, Caller, Check, LogLevel, Principal, Scope, Target, TenantId, Timestamp};
use longhaul_policy::follow::{LOOK, Mirror as _, follow};
use longhaul_policy::switch::Switches;
use longhaul_rpc::{
    AuditChain, AuditRange, Batch, BudgetLease, BudgetReturn, BudgetState, BudgetWish, Changes, Control,
    CredentialChange, CredentialInfo, Error, KeyDigest, NewCredential, SessionNote, SessionPosition, Stopped, Switch,
    Switched,
};
use tokio::sync::Notify;

/// On a page of the double.
const PAGE: usize = 2;

/// The switches of a task-store, and nothing else.
#[derive(Default)]
struct Store {
    switches: Mutex<Vec<Switch>>,
    forgotten: Mutex<u64>,
    down: AtomicBool,
    reads: AtomicUsize,
    read: Notify,
}

impl Store {
    fn set(&self, tool: &str, off: bool, why: &str) {
        let mut switches = self.switches.lock().unwrap();
        let number = switches.last().map_or(1, |last| last.number + 1);
        switches.retain(|switch| switch.scope != scope(tool));
        let changed_at = Timestamp::from_micros(0);
        switches.push(Switch { number, scope: scope(tool), off, why: why.into(), changed_at });
    }
}

fn scope(tool: &str) -> Scope {
    Scope { tool: Some(tool.into()), ..Scope::default() }
}

#[async_trait]
impl Control for Store {
    async fn switch_changes(&self, since: u64) -> Result<Changes<Switch>, Error> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.read.notify_waiters();
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::Unavailable("down".into()));
        }
        let switches = self.switches.lock().unwrap();
        let changes = switches.iter().filter(|switch| switch.number > since).take(PAGE).cloned().collect();
        Ok(Changes { changes, forgotten: *self.forgotten.lock().unwrap() })
    }
    async fn record(&self, _: Batch) -> Result<(), Error> {
        panic!("not asked here")
    }
    async fn audit_chains(&self, _: Option<&TenantId>) -> Result<Vec<AuditChain>, Error> {
        panic!("not asked here")
    }
    async fn audit_rows(&self, _: AuditRange) -> Result<Vec<Sealed>, Error> {
        panic!("not asked here")
    }
    async fn end_session(&self, _: &Principal, _: &str, _: Timestamp) -> Result<bool, Error> {
        panic!("not asked here")
    }
    async fn set_log_level(&self, _: &Principal, _: &str, _: LogLevel, _: Timestamp) -> Result<bool, Error> {
        panic!("not asked here")
    }
    async fn sessions(&self, _: &SessionPosition) -> Result<Vec<SessionNote>, Error> {
        panic!("not asked here")
    }
    async fn subscribe(&self, _: &str, _: &str, _: bool, _: Timestamp) -> Result<bool, Error> {
        panic!("not asked here")
    }
    async fn subscriptions(&self, _: &str) -> Result<Vec<String>, Error> {
        panic!("not asked here")
    }
    async fn create_credential(&self, _: NewCredential) -> Result<Option<CredentialInfo>, Error> {
        panic!("not asked here")
    }
    async fn rotate_credential(
        &self,
        _: &str,
        _: KeyDigest,
        _: Duration,
        _: Option<Duration>,
    ) -> Result<Option<CredentialInfo>, Error> {
        panic!("not asked here")
    }
    async fn revoke_credential(&self, _: &str) -> Result<Option<CredentialInfo>, Error> {
        panic!("not asked here")
    }
    async fn credentials(&self, _: Option<&str>, _: &str) -> Result<Vec<CredentialInfo>, Error> {
        panic!("not asked here")
    }
    async fn credential_changes(&self, _: u64) -> Result<Changes<CredentialChange>, Error> {
        panic!("not asked here")
    }
    async fn set_switch(&self, _: &Scope, _: bool, _: &str) -> Result<Switched, Error> {
        panic!("not asked here")
    }
    async fn stop_running(&self, _: &Scope) -> Result<Stopped, Error> {
        panic!("not asked here")
    }
    async fn lease_budget(&self, _: Vec<BudgetWish>) -> Result<Vec<BudgetLease>, Error> {
        panic!("not asked here")
    }
    async fn return_budget(&self, _: Vec<BudgetReturn>) -> Result<(), Error> {
        panic!("not asked here")
    }
    async fn budgets(&self, _: Option<BudgetKey>) -> Result<Vec<BudgetState>, Error> {
        panic!("not asked here")
    }
}

fn refused(switches: &Switches, tool: &str) -> Option<String> {
    let principal = Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) };
    let denied = switches.check(&principal, &Target::Tool(tool.into())).err()?;
    assert_eq!(denied.by, Check::KillSwitch);
    Some(denied.message)
}

/// Waits, for no longer than `within` of the test's own time, until it holds after some read.
async fn until(store: &Store, within: Duration, holds: impl Fn() -> bool) {
    let waits = async {
        while !holds() {
            // A read takes effect before the next one, or before the pause after it.
            let _ = tokio::time::timeout(Duration::from_millis(10), store.read.notified()).await;
        }
    };
    tokio::time::timeout(within, waits).await.expect("it holds in time");
}

/// Follows a store while `steps` are gone through. The clock is the test's, and stands still while anybody works.
async fn with(bus: &dyn Bus, steps: impl AsyncFnOnce(&Store, &Switches)) {
    let (store, switches) = (Store::default(), Switches::default());
    tokio::select! {
        // What a test does before it first waits comes before the first look.
        biased;
        () = steps(&store, &switches) => {}
        never = follow(&switches, &store, bus) => match never {},
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_let_in_before_it_is_known_what_is_switched_off() {
    let switches = Switches::default();
    assert!(refused(&switches, "echo").unwrap().contains("not known yet"));
    switches.take(Vec::new(), true);
    assert!(refused(&switches, "echo").is_some(), "only a look that went well counts");
    with(&DeafBus::new(), async |store, switches| {
        until(store, LOOK / 2, || switches.freshness().is_there()).await;
        switches.freshness().there().await;
        assert_eq!(refused(switches, "echo"), None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_hints_a_switch_is_heard_of_within_the_look() {
    with(&DeafBus::new(), async |store, switches| {
        until(store, LOOK, || switches.freshness().is_there()).await;
        store.set("echo", true, "it burns");
        until(store, LOOK * 3 / 2, || refused(switches, "echo").is_some()).await;
        let message = refused(switches, "echo").unwrap();
        assert!(message.contains("it burns") && message.contains("tool \"echo\""), "{message}");
        assert_eq!(refused(switches, "other"), None);
        store.set("echo", false, "out");
        until(store, LOOK * 3 / 2, || refused(switches, "echo").is_none()).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_it_at_once_and_other_hints_do_not() {
    let bus = Arc::new(LocalBus::new());
    with(&*bus.clone(), async |store, switches| {
        until(store, LOOK, || switches.freshness().is_there()).await;
        let reads = store.reads.load(Ordering::SeqCst);
        for hint in [Hint::Control(ControlHint::Tools), Hint::Control(ControlHint::Credentials)] {
            bus.publish(hint);
        }
        tokio::time::sleep(LOOK / 4).await;
        assert_eq!(store.reads.load(Ordering::SeqCst), reads);
        store.set("echo", true, "why");
        bus.publish(Hint::Control(ControlHint::Switches));
        until(store, LOOK / 4, || refused(switches, "echo").is_some()).await;
        // An idle look asks once.
        let reads = store.reads.load(Ordering::SeqCst);
        bus.publish(Hint::Missed);
        until(store, LOOK / 4, || store.reads.load(Ordering::SeqCst) > reads).await;
        tokio::time::sleep(LOOK / 8).await;
        assert_eq!(store.reads.load(Ordering::SeqCst), reads + 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn while_the_task_store_is_away_the_last_word_holds_and_shows_its_age() {
    with(&DeafBus::new(), async |store, switches| {
        store.set("echo", true, "why");
        until(store, LOOK, || switches.freshness().is_there()).await;
        store.down.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(refused(switches, "echo").is_some());
        assert_eq!(refused(switches, "other"), None);
        assert!(switches.freshness().age().unwrap() >= Duration::from_secs(3600));
        // A database that was put back: its numbers are lower than those that were seen.
        store.switches.lock().unwrap().clear();
        store.set("other", true, "why");
        store.down.store(false, Ordering::SeqCst);
        until(store, LOOK, || refused(switches, "other").is_some()).await;
        assert_eq!(refused(switches, "echo"), None);
        assert!(switches.freshness().age().unwrap() < LOOK * 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_changes_come_in_pages_and_what_was_forgotten_makes_it_read_everything() {
    with(&DeafBus::new(), async |store, switches| {
        for at in 0..7 {
            store.set(&format!("t{at}"), true, "why");
        }
        // Forgotten long ago: who begins at the beginning misses nothing.
        *store.forgotten.lock().unwrap() = 5;
        until(store, LOOK, || switches.freshness().is_there()).await;
        assert!((0..7).all(|at| refused(switches, &format!("t{at}")).is_some()));
        // Forgotten since: that t0 is on is said no more.
        store.switches.lock().unwrap().remove(0);
        *store.forgotten.lock().unwrap() = 8;
        store.switches.lock().unwrap().last_mut().unwrap().number = 9;
        until(store, LOOK * 2, || refused(switches, "t0").is_none()).await;
        assert!((1..7).all(|at| refused(switches, &format!("t{at}")).is_some()));
    })
    .await;
}
