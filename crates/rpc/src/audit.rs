//! The audit log over gRPC.

use std::time::Duration;

use longhaul_core::audit::{Entry, Hash, Link, Record, Refused, RefusedBy, Sealed};
use longhaul_core::{TenantId, Timestamp};

use crate::convert::{self, Bad, Read};
use crate::pb;

/// Records in one batch.
pub const RECORDS_MAX: usize = 500;
/// Chains on one page.
pub const CHAINS_PAGE: usize = 500;
/// Rows of a chain on one page.
pub const AUDIT_PAGE: usize = 500;

/// Things to record together. The same batch again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Random.
    pub id: u128,
    /// At most [`RECORDS_MAX`].
    pub records: Vec<Record>,
}

/// The chain of a tenant's audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditChain {
    /// Whose; empty for what concerns the installation as a whole.
    pub tenant: TenantId,
    /// Its last row that is past its retention and gone.
    pub anchor: Link,
    /// Its last row.
    pub head: Link,
}

/// Rows of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRange {
    /// Whose chain.
    pub tenant: TenantId,
    /// Those after this one.
    pub after: u64,
    /// Of these only those that were sealed at this moment or later.
    pub since: Option<Timestamp>,
}

pub(crate) fn batch_to(batch: &Batch) -> pb::RecordRequest {
    let record = |record: &Record| {
        use pb::audit_record::What;
        let what = match record {
            Record::Retrieved(task) => What::Retrieved(task.to_string()),
            Record::Refused(refused) => {
                let Refused { principal, called, by, trace_id, times, ago } = refused;
                What::Refused(pb::RefusedCalls {
                    principal: Some(convert::principal_to(principal)),
                    called: called.clone(),
                    by: by.name().to_owned(),
                    trace_id: trace_id.clone(),
                    times: *times,
                    ago_us: u64::try_from(ago.as_micros()).unwrap_or(u64::MAX),
                })
            }
        };
        pb::AuditRecord { what: Some(what) }
    };
    pb::RecordRequest {
        batch: batch.id.to_be_bytes().to_vec().into(),
        records: batch.records.iter().map(record).collect(),
    }
}

pub(crate) fn batch_from(request: pb::RecordRequest) -> Read<Batch> {
    let record = |record: pb::AuditRecord| {
        use pb::audit_record::What;
        Ok(match record.what.ok_or(Bad("record"))? {
            What::Retrieved(task) => Record::Retrieved(task.parse().map_err(|_| Bad("task id"))?),
            What::Refused(pb::RefusedCalls { principal, called, by, trace_id, times, ago_us }) => {
                Record::Refused(Refused {
                    principal: convert::principal_from(principal)?,
                    called,
                    by: RefusedBy::from_name(&by).ok_or(Bad("refused_by"))?,
                    trace_id,
                    times,
                    ago: Duration::from_micros(ago_us),
                })
            }
        })
    };
    Ok(Batch {
        id: u128::from_be_bytes((&*request.batch).try_into().map_err(|_| Bad("batch"))?),
        records: request.records.into_iter().map(record).collect::<Read<_>>()?,
    })
}

fn link_to(link: Link) -> pb::AuditLink {
    pb::AuditLink { seq: link.seq, hash: link.hash.as_bytes().to_vec().into() }
}

fn link_from(link: Option<pb::AuditLink>) -> Read<Link> {
    let pb::AuditLink { seq, hash } = link.ok_or(Bad("link"))?;
    Ok(Link { seq, hash: Hash::from_bytes(&hash).ok_or(Bad("hash"))? })
}

pub(crate) fn chains_to(chains: Vec<AuditChain>) -> pb::AuditChainsResponse {
    let chain = |AuditChain { tenant, anchor, head }: AuditChain| pb::AuditChain {
        tenant: tenant.as_str().to_owned(),
        anchor: Some(link_to(anchor)),
        head: Some(link_to(head)),
    };
    pb::AuditChainsResponse { chains: chains.into_iter().map(chain).collect() }
}

pub(crate) fn chains_from(response: pb::AuditChainsResponse) -> Read<Vec<AuditChain>> {
    let chain = |pb::AuditChain { tenant, anchor, head }| {
        Ok(AuditChain { tenant: TenantId::new(tenant), anchor: link_from(anchor)?, head: link_from(head)? })
    };
    response.chains.into_iter().map(chain).collect()
}

pub(crate) fn range_to(range: &AuditRange) -> pb::AuditRowsRequest {
    let AuditRange { tenant, after, since } = range;
    pb::AuditRowsRequest { tenant: tenant.as_str().to_owned(), after: *after, since: since.map(Timestamp::as_micros) }
}

pub(crate) fn range_from(request: pb::AuditRowsRequest) -> AuditRange {
    let pb::AuditRowsRequest { tenant, after, since } = request;
    AuditRange { tenant: TenantId::new(tenant), after, since: since.map(Timestamp::from_micros) }
}

pub(crate) fn rows_to(rows: Vec<Sealed>) -> pb::AuditRowsResponse {
    let row = |Sealed { entry, seq, sealed_at, hash }: Sealed| {
        let Entry { id, at, event, tenant, owner, tool, task, version, reason, subject, trace_id, times } = entry;
        pb::AuditRow {
            seq,
            sealed_at: sealed_at.as_micros(),
            hash: hash.as_bytes().to_vec().into(),
            id,
            at: at.as_micros(),
            event,
            tenant: tenant.as_str().to_owned(),
            owner,
            tool,
            task,
            version,
            reason,
            subject,
            trace_id,
            times,
        }
    };
    pb::AuditRowsResponse { rows: rows.into_iter().map(row).collect() }
}

pub(crate) fn rows_from(response: pb::AuditRowsResponse) -> Read<Vec<Sealed>> {
    let row = |row: pb::AuditRow| {
        Ok(Sealed {
            seq: row.seq,
            sealed_at: Timestamp::from_micros(row.sealed_at),
            hash: Hash::from_bytes(&row.hash).ok_or(Bad("hash"))?,
            entry: Entry {
                id: row.id,
                at: Timestamp::from_micros(row.at),
                event: row.event,
                tenant: TenantId::new(row.tenant),
                owner: row.owner,
                tool: row.tool,
                task: row.task,
                version: row.version,
                reason: row.reason,
                subject: row.subject,
                trace_id: row.trace_id,
                times: row.times,
            },
        })
    };
    response.rows.into_iter().map(row).collect()
}
