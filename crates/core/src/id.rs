//! Names of things.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Characters of a task id: 128 bits, five to a character.
const LENGTH: usize = 26;

/// A task's id: 128 random bits, written as 26 characters of `[a-z2-7]`, safe in a header and a URL.
///
/// Nothing sorts or pages by it. Knowing one gives no rights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u128);

impl TaskId {
    /// An id from 128 bits that the caller took from the operating system's random source.
    pub const fn from_random(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits, for choosing a shard.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; LENGTH];
        // 26 × 5 = 130 bits: the first character holds the three highest bits.
        for (at, byte) in text.iter_mut().enumerate() {
            let shift = 5 * (LENGTH - 1 - at);
            *byte = ALPHABET[(self.0 >> shift) as usize & 31];
        }
        f.write_str(std::str::from_utf8(&text).expect("invariant: the alphabet is ASCII"))
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text does not have the shape of a task id; to a client that is the same as an unknown one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a task id")]
pub struct NotATaskId;

impl FromStr for TaskId {
    type Err = NotATaskId;

    fn from_str(text: &str) -> Result<Self, NotATaskId> {
        if text.len() != LENGTH {
            return Err(NotATaskId);
        }
        let mut bits: u128 = 0;
        for (at, byte) in text.bytes().enumerate() {
            let value = match byte {
                b'a'..=b'z' => byte - b'a',
                b'2'..=b'7' => byte - b'2' + 26,
                _ => return Err(NotATaskId),
            };
            // Only eight of the 32 first characters fit 128 bits; the rest would be a second spelling of another id.
            if at == 0 && value > 7 {
                return Err(NotATaskId);
            }
            bits = bits << 5 | u128::from(value);
        }
        Ok(Self(bits))
    }
}

/// A tenant: the wall between organisations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// A tenant by its configured name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One process that runs tools.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerId {
    /// Stable across restarts of the same worker, if the operator named it; else random.
    pub name: String,
    /// Random for each process start: tells a restarted worker from its former self. Empty if there is no such process any
    /// more, and what it offered is still on offer for a while.
    pub incarnation: String,
}

impl WorkerId {
    /// Whether the process is known to have gone.
    pub fn is_gone(&self) -> bool {
        self.incarnation.is_empty()
    }
}

/// Random for each claim; names the claim in every later word about its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_reads_back_as_it_was_written() {
        for bits in [0, 1, 31, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let id = TaskId::from_random(bits);
            assert_eq!(id.to_string().len(), LENGTH);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn every_other_shape_is_refused() {
        let good = TaskId::from_random(7).to_string();
        for bad in [
            "",
            "a",
            &good[1..],
            &format!("{good}a"),
            &good.to_uppercase(),
            &good.replace('a', "1"),
            "zzzzzzzzzzzzzzzzzzzzzzzzzz",
            "ééééééééééééé",
        ] {
            assert_eq!(bad.parse::<TaskId>(), Err(NotATaskId), "{bad}");
        }
    }
}
