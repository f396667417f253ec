//! Agent credentials: a copy of the task-store's, by the digests of their keys.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use longhaul_bus::Control as ControlHint;
use longhaul_core::{Caller, Clock, Principal, Timestamp};
use longhaul_policy::follow::{Freshness, Mirror};
use longhaul_rpc::{Changes, Control, CredentialChange, Error, KeyDigest};
use tokio_util::sync::CancellationToken;

/// How often it is looked which keys have expired.
pub(crate) const EXPIRE: Duration = Duration::from_secs(1);

/// Whose a key is, and how long that holds.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) principal: Arc<Principal>,
    /// Fires when the key is no longer accepted; one that stays as long as this process has none.
    pub(crate) ended: Option<CancellationToken>,
}

/// The keys that are accepted now.
pub(crate) struct Credentials {
    keys: RwLock<Keys>,
    freshness: Freshness,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Keys {
    by_digest: HashMap<KeyDigest, Key>,
    /// Of each credential.
    by_id: HashMap<String, Vec<KeyDigest>>,
    /// When the next one expires.
    next_end: Option<Timestamp>,
}

struct Key {
    principal: Arc<Principal>,
    until: Option<Timestamp>,
    ended: CancellationToken,
}

impl Key {
    fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// None is known yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { keys: RwLock::default(), freshness: Freshness::default(), clock }
    }

    /// Whose key has this digest. It takes as long for a key that is not there: nothing about a key can be learned from
    /// where the digests of others lie.
    pub(crate) fn of(&self, digest: &KeyDigest) -> Option<Known> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.by_digest.get(digest).filter(|key| !key.is_over(self.clock.now()))?;
        Some(Known { principal: key.principal.clone(), ended: Some(key.ended.clone()) })
    }

    /// Ends the keys that have expired.
    pub(crate) fn expire(&self) {
        let now = self.clock.now();
        let is_due = |keys: &Keys| keys.next_end.is_some_and(|end| end <= now);
        if is_due(&self.keys.read().unwrap_or_else(PoisonError::into_inner)) {
            self.keys.write().unwrap_or_else(PoisonError::into_inner).expire(now);
        }
    }
}

impl Mirror for Credentials {
    type Change = CredentialChange;

    const NAME: &'static str = "credentials";
    const HINT: ControlHint = ControlHint::Credentials;

    async fn read(control: &dyn Control, since: u64) -> Result<Changes<CredentialChange>, Error> {
        control.credential_changes(since).await
    }

    fn number(change: &CredentialChange) -> u64 {
        change.number
    }

    fn take(&self, changes: Vec<CredentialChange>, whole: bool) {
        if changes.is_empty() && !whole {
            return;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if whole {
            let there: std::collections::HashSet<&str> = changes.iter().map(|change| &*change.id).collect();
            let gone: Vec<_> = keys.by_id.keys().filter(|id| !there.contains(&***id)).cloned().collect();
            gone.iter().for_each(|id| keys.forget(id));
        }
        changes.into_iter().for_each(|change| keys.change(change));
        keys.expire(self.clock.now());
    }

    fn freshness(&self) -> &Freshness {
        &self.freshness
    }
}

impl Keys {
    /// A credential has these keys now, and no others.
    fn change(&mut self, change: CredentialChange) {
        let CredentialChange { id, tenant, agent, keys, .. } = change;
        let principal = Arc::new(Principal { tenant, caller: Caller::Agent(agent) });
        for digest in self.by_id.remove(&id).unwrap_or_default() {
            if !keys.iter().any(|(key, _)| *key == digest) {
                self.end(&digest);
            }
        }
        if keys.is_empty() {
            return;
        }
        for (digest, until) in &keys {
            // What is open with a key that stays goes on.
            let key = self.by_digest.entry(*digest).or_insert_with(|| Key {
                principal: principal.clone(),
                until: None,
                ended: CancellationToken::new(),
            });
            key.until = *until;
        }
        self.by_id.insert(id, keys.into_iter().map(|(digest, _)| digest).collect());
    }

    fn forget(&mut self, id: &str) {
        for digest in self.by_id.remove(id).unwrap_or_default() {
            self.end(&digest);
        }
    }

    fn end(&mut self, digest: &KeyDigest) {
        if let Some(key) = self.by_digest.remove(digest) {
            key.ended.cancel();
        }
    }

    fn expire(&mut self, now: Timestamp) {
        for (_, key) in self.by_digest.extract_if(|_, key| key.is_over(now)) {
            key.ended.cancel();
        }
        let by_digest = &self.by_digest;
        self.by_id.retain(|_, digests| {
            digests.retain(|digest| by_digest.contains_key(digest));
            !digests.is_empty()
        });
        self.next_end = self.by_digest.values().filter_map(|key| key.until).min();
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{TenantId, TestClock};

    use super::*;

    fn at(micros: i64) -> Option<Timestamp> {
        Some(Timestamp::from_micros(micros))
    }

    fn change(number: u64, id: &str, agent: &str, keys: &[(u8, Option<Timestamp>)]) -> CredentialChange {
        let keys = keys.iter().map(|(key, until)| ([*key; 32], *until)).collect();
        CredentialChange { number, id: id.into(), tenant: TenantId::new("t"), agent: agent.into(), keys }
    }

    /// Who shows this key, if it is accepted.
    fn who(credentials: &Credentials, key: u8) -> Option<String> {
        let Caller::Agent(agent) = credentials.of(&[key; 32])?.principal.caller.clone() else { panic!("an agent") };
        Some(agent)
    }

    fn ended(credentials: &Credentials, key: u8) -> CancellationToken {
        credentials.of(&[key; 32]).unwrap().ended.unwrap()
    }

    fn fresh() -> (Arc<TestClock>, Credentials) {
        let clock = Arc::new(TestClock::at(Timestamp::from_micros(0)));
        (clock.clone(), Credentials::new(clock))
    }

    #[test]
    fn a_rotated_key_goes_on_for_its_overlap_and_what_is_open_with_it_too() {
        let (clock, credentials) = fresh();
        credentials.take(vec![change(1, "c", "ann", &[(1, None)])], true);
        assert_eq!((who(&credentials, 1).as_deref(), who(&credentials, 2)), (Some("ann"), None));
        let open = ended(&credentials, 1);
        credentials.take(vec![change(2, "c", "ann", &[(2, None), (1, at(10))])], false);
        assert!(who(&credentials, 1).is_some() && who(&credentials, 2).is_some() && !open.is_cancelled());
        clock.advance(Duration::from_micros(9));
        credentials.expire();
        assert!(!open.is_cancelled());
        clock.advance(Duration::from_micros(1));
        assert_eq!(who(&credentials, 1), None, "at once, whenever it is cleared away");
        credentials.expire();
        assert!(open.is_cancelled() && who(&credentials, 2).is_some());
    }

    #[test]
    fn a_revoked_credential_ends_with_what_is_open_with_it_and_no_other_does() {
        let (_, credentials) = fresh();
        let all = vec![change(1, "c", "ann", &[(1, None), (2, at(9))]), change(2, "d", "ann", &[(3, None)])];
        credentials.take(all, true);
        let open = [1, 2, 3].map(|key| ended(&credentials, key));
        credentials.take(vec![change(3, "c", "ann", &[])], false);
        assert_eq!(open.each_ref().map(CancellationToken::is_cancelled), [true, true, false]);
        assert_eq!([1, 2, 3].map(|key| who(&credentials, key).is_some()), [false, false, true]);
        credentials.take(Vec::new(), false);
        assert!(who(&credentials, 3).is_some());
    }

    #[test]
    fn when_everything_is_read_again_what_is_still_there_stays_open() {
        let (_, credentials) = fresh();
        credentials.take(vec![change(1, "c", "ann", &[(1, None)]), change(2, "d", "bob", &[(2, None)])], true);
        let open = [1, 2].map(|key| ended(&credentials, key));
        credentials.take(vec![change(1, "d", "bob", &[(2, None)])], true);
        assert_eq!(open.each_ref().map(CancellationToken::is_cancelled), [true, false]);
        assert_eq!((who(&credentials, 1), who(&credentials, 2).as_deref()), (None, Some("bob")));
        credentials.take(Vec::new(), true);
        assert!(open[1].is_cancelled() && who(&credentials, 2).is_none());
        assert!(credentials.keys.read().unwrap().by_id.is_empty());
    }
}
