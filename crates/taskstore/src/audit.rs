//! The audit log: what is recorded apart from changes, the sealing sweep, retention.

use std::time::Duration;

use longhaul_core::audit::Record;
use longhaul_rpc::{Batch, Error, RECORDS_MAX};

use crate::ops::storable;
use crate::store::audit::{Unsealed, stretches};
use crate::store::insist;
use crate::{TaskStore, metrics};

/// How often what was recorded is sealed.
pub(crate) const SEAL_EVERY: Duration = Duration::from_secs(1);
/// Rows sealed in one statement.
const SEAL_ROWS: usize = 500;
/// Statements of one sweep; the rest is left to the next one.
const ROUNDS_MAX: u32 = 200;
/// Rows forgotten in one statement, and statements; a month at a time, where there are months.
const PRUNE_ROWS: u32 = 500;
/// The longest name of something that was called.
const CALLED_BYTES_MAX: usize = 1024;

impl TaskStore {
    pub(crate) async fn record_batch(&self, mut batch: Batch) -> Result<(), Error> {
        if batch.records.len() > RECORDS_MAX {
            return Err(Error::Fault(format!("a batch of more than {RECORDS_MAX} records")));
        }
        batch.records.retain(is_sound);
        let this = self.clone();
        self.shielded(async move {
            let written = insist(|| this.inner.store.record_apart(&batch)).await;
            metrics::audited(written.as_ref().ok().copied());
            Ok(written.map(drop)?)
        })
        .await
    }

    /// Moves what waits in the inbox behind the ends of its chains; answers how many rows. Any number of replicas may do so
    /// at once.
    pub async fn seal(&self) -> Result<u64, Error> {
        let sealed = self.seal_rounds().await;
        if sealed.is_err() {
            metrics::audited(None);
        }
        sealed
    }

    async fn seal_rounds(&self) -> Result<u64, Error> {
        let store = &self.inner.store;
        insist(|| store.make_room()).await?;
        let (mut sealed, mut after) = (0, i64::MIN);
        for round in 0..ROUNDS_MAX {
            let unsealed = insist(|| store.unsealed(after, SEAL_ROWS)).await?;
            if round == 0 {
                metrics::unsealed(oldest(&unsealed));
            }
            let Some((last, _)) = unsealed.rows.last() else { break };
            let wanted = unsealed.rows.len();
            // What is committed meanwhile with a lower id is found by the next sweep; to begin anew each time would be to
            // step over all that was just deleted.
            after = last.id;
            let stretches = stretches(unsealed);
            let now_sealed = insist(|| store.seal(&stretches)).await?;
            metrics::audited(Some(now_sealed));
            sealed += now_sealed;
            // Fewer than wanted: another replica is sealing them.
            if wanted < SEAL_ROWS || now_sealed < wanted as u64 {
                break;
            }
        }
        Ok(sealed)
    }

    /// Sealing is no news.
    pub(crate) async fn seal_quietly(&self) -> Result<u64, Error> {
        self.seal().await.map(|_| 0)
    }

    pub(crate) async fn prune_audit(&self) -> Result<(), Error> {
        let (store, config) = (&self.inner.store, &self.inner.config);
        let days = Duration::from_secs(u64::from(config.audit_retention_days) * 24 * 3600);
        let retention = (!days.is_zero()).then(|| days.max(Duration::from_millis(config.ttl.max_ms)));
        for _ in 0..ROUNDS_MAX {
            if !insist(|| store.prune_audit(retention, PRUNE_ROWS)).await? {
                break;
            }
        }
        Ok(())
    }
}

fn oldest(unsealed: &Unsealed) -> Duration {
    let first = unsealed.rows.iter().map(|(entry, _)| entry.at).min();
    let waited = first.map_or(0, |first| unsealed.now.as_micros().saturating_sub(first.as_micros()));
    Duration::from_micros(u64::try_from(waited).unwrap_or(0))
}

/// Whether it can be stored; one that cannot must not keep the others out.
fn is_sound(record: &Record) -> bool {
    let sound = match record {
        Record::Retrieved(_) => true,
        Record::Refused(refused) => {
            let owner = refused.principal.owner();
            let names = [refused.principal.tenant.as_str(), &owner, &refused.called];
            refused.called.len() <= CALLED_BYTES_MAX
                && storable(names.into_iter().chain(refused.trace_id.as_deref())).is_ok()
        }
    };
    if !sound {
        tracing::warn!("a record that cannot be stored is left out");
    }
    sound
}
