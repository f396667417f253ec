//! What the task-store asks of a database engine about the audit log.
//!
//! Whatever is recorded is written to the inbox, by the very statement that makes it true. The sealing sweep moves it from
//! there to the log, behind the last row of its tenant's chain, in one statement that succeeds only if that row is still the
//! last: of two sweeps at once one does nothing. What is committed later than a row of a higher id is simply still in the
//! inbox at the next look, and is sealed then. So nobody need know which transactions are under way, none is waited for, and
//! nothing is sealed twice or left out. The order of a chain is that of sealing. It never contradicts cause and effect: who
//! has seen a row committed writes its own later and with a higher id, and rows that are seen together are sealed by id.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::audit::{Entry, Hash, Link, Sealed};
use longhaul_core::{TenantId, Timestamp};
use longhaul_rpc::{AuditChain, AuditRange, Batch};

use super::row::{TaskRow, moment, there};
use super::{Answer, Fault};

/// As [`Store`](super::Store): every method may be repeated without harm.
#[async_trait]
pub(crate) trait AuditStore {
    /// Writes what has not been written in a batch of the same id; answers how many rows.
    async fn record_apart(&self, batch: &Batch) -> Answer<u64>;
    /// Makes room in the log for what is sealed from now on.
    async fn make_room(&self) -> Answer<()>;
    /// The first rows in the inbox after this one, by id, and the ends of their chains at the same moment.
    async fn unsealed(&self, after: i64, limit: usize) -> Answer<Unsealed>;
    /// Moves rows to the log, of each chain all or none; answers how many.
    async fn seal(&self, stretches: &[Stretch]) -> Answer<u64>;
    async fn chains(&self, from: Option<&TenantId>, limit: usize) -> Answer<Vec<AuditChain>>;
    async fn audit_rows(&self, range: &AuditRange, limit: usize) -> Answer<Vec<Sealed>>;
    /// Forgets what is past its retention, `None` for ever, and keeps the ends that the rest is proved from; answers whether
    /// there may be more.
    async fn prune_audit(&self, retention: Option<Duration>, rows_max: u32) -> Answer<bool>;
}

/// Rows that wait to be sealed.
#[derive(Debug)]
pub(crate) struct Unsealed {
    pub now: Timestamp,
    /// Each with the end of its chain.
    pub rows: Vec<(Entry, End)>,
}

/// The end of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub link: Link,
    pub sealed_at: Timestamp,
}

/// Rows to put behind one another.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub tenant: TenantId,
    /// The number of the row behind which they go.
    pub behind: u64,
    /// Not empty.
    pub rows: Vec<Sealed>,
}

impl Stretch {
    /// The end of the chain with them.
    pub(crate) fn end(&self) -> End {
        let last = self.rows.last().expect("invariant: a stretch has rows");
        End { link: last.link(), sealed_at: last.sealed_at }
    }
}

/// Puts rows behind the ends of their chains, in their order.
pub(crate) fn stretches(unsealed: Unsealed) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for (entry, end) in unsealed.rows {
        let at = stretches.iter().position(|stretch| stretch.tenant == entry.tenant);
        let at = at.unwrap_or_else(|| {
            let (tenant, behind) = (entry.tenant.clone(), end.link.seq);
            stretches.push(Stretch { tenant, behind, rows: Vec::new() });
            stretches.len() - 1
        });
        let rows = &mut stretches[at].rows;
        let end = rows.last().map_or(end, |last| End { link: last.link(), sealed_at: last.sealed_at });
        // Clocks may be set back.
        let sealed_at = unsealed.now.max(end.sealed_at).max(entry.at);
        rows.push(end.link.seal(entry, sealed_at));
    }
    // Whoever locks several chains does so in one order.
    stretches.sort_by(|one, other| one.tenant.cmp(&other.tenant));
    stretches
}

/// The columns that [`entry`] reads, of the table called `$t` in the statement.
macro_rules! entry_columns {
    ($t:literal) => {
        concat!(
            $t,
            ".id, ",
            $t,
            ".at, ",
            $t,
            ".event, ",
            $t,
            ".tenant, ",
            $t,
            ".owner, ",
            $t,
            ".tool, ",
            $t,
            ".task_id, ",
            $t,
            ".version, ",
            $t,
            ".reason, ",
            $t,
            ".subject, ",
            $t,
            ".trace_id, ",
            $t,
            ".times"
        )
    };
}
pub(crate) use entry_columns;

/// How many columns [`entry_columns`] are.
const ENTRY: usize = 12;

fn entry(row: &impl TaskRow) -> Answer<Entry> {
    Ok(Entry {
        id: there(row.long(0)?, "id")?,
        at: moment(row, 1)?,
        event: there(row.text(2)?, "event")?,
        tenant: TenantId::new(there(row.text(3)?, "tenant")?),
        owner: row.text(4)?,
        tool: row.text(5)?,
        task: row.text(6)?,
        version: row.long(7)?,
        reason: row.text(8)?,
        subject: row.text(9)?,
        trace_id: row.text(10)?,
        times: there(row.int(11)?, "times")?,
    })
}

/// `seq, hash` as a place; no row is the beginning.
fn link(row: &impl TaskRow, at: usize) -> Answer<Link> {
    let seq = row.long(at)?.unwrap_or(0) as u64;
    // A hash of another length was not made here: it fits nothing, as this one.
    let hash = row.blob(at + 1)?.and_then(|hash| Hash::from_bytes(&hash)).unwrap_or_default();
    Ok(Link { seq, hash })
}

/// [`entry_columns`], then `seq, hash, sealed_at` of its chain's end.
pub(crate) fn unsealed(row: &impl TaskRow) -> Answer<(Entry, End)> {
    let sealed_at = Timestamp::from_micros(row.long(ENTRY + 2)?.unwrap_or(0));
    Ok((entry(row)?, End { link: link(row, ENTRY)?, sealed_at }))
}

/// [`entry_columns`], then `seq, hash, sealed_at`.
pub(crate) fn sealed(row: &impl TaskRow) -> Answer<Sealed> {
    let Link { seq, hash } = link(row, ENTRY)?;
    Ok(Sealed { entry: entry(row)?, seq, hash, sealed_at: moment(row, ENTRY + 2)? })
}

/// `tenant, anchor_seq, anchor_hash, seq, hash`
pub(crate) fn chain(row: &impl TaskRow) -> Answer<AuditChain> {
    let tenant = TenantId::new(there(row.text(0)?, "tenant")?);
    Ok::<_, Fault>(AuditChain { tenant, anchor: link(row, 1)?, head: link(row, 3)? })
}

/// The key of a batch.
pub(crate) fn batch_key(batch: &Batch) -> String {
    format!("{:032x}", batch.id)
}

/// How long the id of a batch is remembered: much longer than anyone says one again.
pub(crate) const BATCH_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long after a task has expired it is remembered that it was retrieved: much longer than anyone says so again.
pub(crate) const RETRIEVAL_KEPT: Duration = Duration::from_secs(24 * 3600);
