//! The chain of a tenant's audit log: each row carries a hash over its content and the hash of the row before it, so that
//! nothing can be changed, left out, put in or moved without every later hash telling.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::id::TenantId;
use crate::time::Timestamp;

/// The length of a hash, in bytes.
const HASH_BYTES: usize = 32;
/// What every hashed row begins with: another layout would have another one.
const LAYOUT: &[u8] = b"longhaul audit 1";

/// A row's hash (SHA-256).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hash([u8; HASH_BYTES]);

impl Hash {
    /// A hash of its bytes; `None` if there are not as many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a hash: 64 hex digits are expected")]
pub struct NotAHash;

impl FromStr for Hash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let mut bytes = [0; HASH_BYTES];
        if text.len() != 2 * HASH_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAHash);
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| NotAHash)?;
        }
        Ok(Self(bytes))
    }
}

/// What a row says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The order of writing.
    pub id: i64,
    /// When it happened.
    pub at: Timestamp,
    /// The event's name; a row may be of another version, which knows other events.
    pub event: String,
    /// Whose; empty for what concerns the installation as a whole.
    pub tenant: TenantId,
    /// Which caller in it ([`Principal::owner`](crate::Principal::owner)).
    pub owner: Option<String>,
    /// What was called.
    pub tool: Option<String>,
    /// Which task.
    pub task: Option<String>,
    /// The task's version after the event.
    pub version: Option<i64>,
    /// A name: how a task ended, what refused a call. For a switch, off or on and the operator's reason.
    pub reason: Option<String>,
    /// What an operator changed: a credential's id, a switch's scope.
    pub subject: Option<String>,
    /// The trace it belongs to.
    pub trace_id: Option<String>,
    /// How often it happened.
    pub times: i32,
}

/// A row in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// What it says.
    pub entry: Entry,
    /// Its place in the chain, from 1, without gaps.
    pub seq: u64,
    /// When it was put there; never before the row before it, nor before it happened.
    pub sealed_at: Timestamp,
    /// What it must hash to.
    pub hash: Hash,
}

/// A place in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// The row's number; 0 is before the first.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Link {
    /// Puts a row behind this place.
    pub fn seal(self, entry: Entry, sealed_at: Timestamp) -> Sealed {
        let seq = self.seq + 1;
        let hash = hash(self.hash, seq, sealed_at, &entry);
        Sealed { entry, seq, sealed_at, hash }
    }
}

impl Sealed {
    /// Its place.
    pub const fn link(&self) -> Link {
        Link { seq: self.seq, hash: self.hash }
    }
}

/// Every field with its length before it, so that no two rows have the same bytes.
fn hash(before: Hash, seq: u64, sealed_at: Timestamp, entry: &Entry) -> Hash {
    let Entry { id, at, event, tenant, owner, tool, task, version, reason, subject, trace_id, times } = entry;
    let mut sha = Sha256::new();
    sha.update(LAYOUT);
    sha.update(before.0);
    sha.update(seq.to_be_bytes());
    for number in [sealed_at.as_micros(), *id, at.as_micros(), i64::from(*times)] {
        sha.update(number.to_be_bytes());
    }
    match version {
        Some(version) => {
            sha.update([1]);
            sha.update(version.to_be_bytes());
        }
        None => sha.update([0]),
    }
    let optional = [owner, tool, task, reason, subject, trace_id].map(Option::as_deref);
    for text in [Some(&**event), Some(tenant.as_str())].into_iter().chain(optional) {
        match text {
            Some(text) => {
                sha.update([1]);
                sha.update((text.len() as u64).to_be_bytes());
                sha.update(text);
            }
            None => sha.update([0]),
        }
    }
    Hash(sha.finalize().into())
}

/// Where a chain is broken. Each names the first row at which that shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Rows are not there.
    #[error("row {0} is missing")]
    Missing(u64),
    /// A number is there twice, or again after the chain was cut behind it.
    #[error("row {0} is there, but does not belong there")]
    Extra(u64),
    /// The row's content, or what is before it, is not what it was.
    #[error("row {0} is not what was sealed")]
    Changed(u64),
    /// The row is not the one that was noted.
    #[error("row {0} is not the one that was noted")]
    Other(u64),
}

/// Somebody who goes along a chain and looks at each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    last: Link,
    sealed_at: Timestamp,
}

impl Walk {
    /// Begins behind a place that is believed.
    pub const fn behind(place: Link) -> Self {
        Self { last: place, sealed_at: Timestamp::from_micros(i64::MIN) }
    }

    /// The last place looked at.
    pub const fn last(&self) -> Link {
        self.last
    }

    /// Looks at the next row of the chain of `tenant`.
    pub fn step(&mut self, tenant: &TenantId, row: &Sealed) -> Result<(), Broken> {
        let expected = self.last.seq + 1;
        if row.seq > expected {
            return Err(Broken::Missing(expected));
        }
        if row.seq < expected {
            return Err(Broken::Extra(row.seq));
        }
        let fits = row.hash == hash(self.last.hash, row.seq, row.sealed_at, &row.entry);
        let is_in_order = row.sealed_at >= self.sealed_at && row.sealed_at >= row.entry.at;
        if !fits || !is_in_order || row.entry.tenant != *tenant {
            return Err(Broken::Changed(row.seq));
        }
        (self.last, self.sealed_at) = (row.link(), row.sealed_at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant() -> TenantId {
        TenantId::new("acme")
    }

    fn entry(id: i64) -> Entry {
        Entry {
            id,
            at: Timestamp::from_micros(id),
            event: "mcp.task.failed".into(),
            tenant: tenant(),
            owner: Some("agent:1:a".into()),
            tool: Some("echo".into()),
            task: Some("t".into()),
            version: Some(2),
            reason: Some("error".into()),
            subject: None,
            trace_id: None,
            times: 1,
        }
    }

    fn chain(rows: i64) -> Vec<Sealed> {
        let mut last = Link::default();
        let seal = |id| {
            let sealed = last.seal(entry(id), Timestamp::from_micros(100 + id));
            last = sealed.link();
            sealed
        };
        (1..=rows).map(seal).collect()
    }

    fn walk(rows: &[Sealed]) -> Result<Link, Broken> {
        let mut walk = Walk::behind(Link::default());
        rows.iter().try_for_each(|row| walk.step(&tenant(), row)).map(|()| walk.last())
    }

    #[test]
    fn an_untouched_chain_holds_and_the_first_row_that_is_not_is_named() {
        let rows = chain(4);
        assert_eq!(walk(&rows), Ok(rows[3].link()));
        let changed = |change: fn(&mut Vec<Sealed>)| {
            let mut rows = rows.clone();
            change(&mut rows);
            walk(&rows)
        };
        assert_eq!(changed(|rows| drop(rows.remove(0))), Err(Broken::Missing(1)));
        assert_eq!(changed(|rows| drop(rows.remove(1))), Err(Broken::Missing(2)));
        assert_eq!(changed(|rows| rows.insert(2, rows[1].clone())), Err(Broken::Extra(2)));
        assert_eq!(
            changed(|rows| {
                rows.swap(1, 2);
                (rows[1].seq, rows[2].seq) = (2, 3);
            }),
            Err(Broken::Changed(2))
        );
        // A forger who has the hash made anew is found out by the next row.
        let forged = changed(|rows| {
            let entry = Entry { reason: None, ..rows[1].entry.clone() };
            rows[1] = rows[0].link().seal(entry, rows[1].sealed_at);
        });
        assert_eq!(forged, Err(Broken::Changed(3)));
        let back = changed(|rows| rows[3] = rows[2].link().seal(entry(4), Timestamp::from_micros(102)));
        assert_eq!(back, Err(Broken::Changed(4)), "time does not go back");
    }

    #[test]
    fn no_field_can_change_unseen() {
        let changes: [fn(&mut Sealed); 13] = [
            |row| row.entry.id += 1,
            |row| row.entry.at = Timestamp::from_micros(0),
            |row| row.entry.event.push('x'),
            |row| row.entry.tenant = TenantId::new("acmf"),
            |row| row.entry.owner = None,
            |row| row.entry.tool = Some(String::new()),
            |row| row.entry.task = None,
            |row| row.entry.version = None,
            |row| row.entry.reason = Some("errors".into()),
            |row| row.entry.subject = Some(String::new()),
            |row| row.entry.trace_id = Some("0".into()),
            |row| row.entry.times = 2,
            |row| row.sealed_at = Timestamp::from_micros(102),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut rows = chain(2);
            change(&mut rows[0]);
            assert_eq!(walk(&rows), Err(Broken::Changed(1)), "change {at}");
        }
        // What moves from one field to its neighbour.
        let moved = |owner: &str, tool: &str| {
            let entry = Entry { owner: Some(owner.into()), tool: Some(tool.into()), ..entry(1) };
            Link::default().seal(entry, Timestamp::from_micros(2)).hash
        };
        assert_ne!(moved("ab", "c"), moved("a", "bc"));
    }

    /// What has been sealed must be verified for ever: a layout that changes needs another name.
    #[test]
    fn the_layout_does_not_change() {
        let hash = chain(1)[0].hash.to_string();
        assert_eq!(hash, "8607ca4d4ca511b4521318cafa3f38c63642cf0e64290d8ce305bfcc09173377");
        assert_eq!(hash.parse(), Ok(chain(1)[0].hash));
        for bad in ["", "a", &hash[1..], &format!("{hash}0"), &format!("é{}", &hash[2..]), &format!("+{}", &hash[1..])]
        {
            assert_eq!(bad.parse::<Hash>(), Err(NotAHash), "{bad}");
        }
    }
}
