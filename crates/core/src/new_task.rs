//! A task that does not exist yet.

use bytes::Bytes;

use crate::budget::Reserved;
use crate::client::ClientCapabilities;
use crate::id::{LeaseToken, TaskId, WorkerId};
use crate::principal::Principal;
use crate::task::Retry;
use crate::trace::TraceContext;

/// An admitted call that is to become a task. Only the policy chain makes one for a client's call.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Made before the insert, so that a create with unknown outcome is repeated as the same create.
    pub id: TaskId,
    /// Its owner.
    pub owner: Principal,
    /// The tool to call.
    pub tool: String,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
    /// How long its owner wants it kept.
    pub ttl: TtlWish,
    /// The call's progress token: a JSON string or integer.
    pub progress_token: Option<Bytes>,
    /// The tag of the session it came in.
    pub session: Option<String>,
    /// The trace it belongs to.
    pub trace: TraceContext,
    /// What its creator can be asked, as it said in the creating call or its session.
    pub client: ClientCapabilities,
    /// Whether it is handed out again when its worker is lost.
    pub retry: Retry,
    /// Set for a call that has begun already and goes on as a task: it is created running.
    pub claimed: Option<Claimed>,
    /// What its budgets have set aside for it.
    pub reserved: Option<Reserved>,
}

/// In whose hands a task is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The worker that runs it.
    pub worker: WorkerId,
    /// Random; together with attempt 1, its fence.
    pub token: LeaseToken,
}

/// How long a client wants its task kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TtlWish {
    /// It did not say.
    #[default]
    Unsaid,
    /// So many milliseconds.
    Ms(u64),
    /// As long as possible (`null`).
    Longest,
}

/// The operator's bounds on how long tasks are kept, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TtlLimits {
    /// Without a wish; 0 is for ever, if the cap is 0 too.
    pub default_ms: u64,
    /// The least.
    pub min_ms: u64,
    /// The most; 0 is no cap.
    pub max_ms: u64,
}

impl Default for TtlLimits {
    fn default() -> Self {
        Self { default_ms: 3_600_000, min_ms: 3_600_000, max_ms: 86_400_000 }
    }
}

impl TtlLimits {
    /// What a wish is granted; `None` is for ever. The cap wins over the floor.
    pub fn grant(&self, wish: TtlWish) -> Option<u64> {
        let wanted = match wish {
            TtlWish::Longest => None,
            TtlWish::Unsaid if self.default_ms == 0 => None,
            TtlWish::Unsaid => Some(self.default_ms),
            TtlWish::Ms(ms) => Some(ms),
        };
        match (wanted, self.max_ms) {
            (None, 0) => None,
            (None, cap) => Some(cap),
            (Some(ms), 0) => Some(ms.max(self.min_ms)),
            (Some(ms), cap) => Some(ms.max(self.min_ms).min(cap)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_clamped_to_the_bounds() {
        let capped = TtlLimits::default();
        let free = TtlLimits { default_ms: 0, min_ms: 1000, max_ms: 0 };
        let odd = TtlLimits { default_ms: 5, min_ms: 100, max_ms: 50 };
        for (limits, wish, granted) in [
            (capped, TtlWish::Unsaid, Some(3_600_000)),
            (capped, TtlWish::Ms(60_000), Some(3_600_000)),
            (capped, TtlWish::Ms(0), Some(3_600_000)),
            (capped, TtlWish::Ms(7_200_000), Some(7_200_000)),
            (capped, TtlWish::Ms(u64::MAX), Some(86_400_000)),
            (capped, TtlWish::Longest, Some(86_400_000)),
            (free, TtlWish::Unsaid, None),
            (free, TtlWish::Longest, None),
            (free, TtlWish::Ms(1), Some(1000)),
            (odd, TtlWish::Unsaid, Some(50)),
        ] {
            assert_eq!(limits.grant(wish), granted, "{limits:?} {wish:?}");
        }
    }
}
