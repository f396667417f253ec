//! Moments on the wire.

use chrono::{DateTime, SecondsFormat, Utc};
use longhaul_core::Timestamp;

/// ISO 8601 in UTC, to the millisecond.
pub(crate) fn rfc3339(moment: Timestamp) -> String {
    DateTime::from_timestamp_micros(moment.as_micros())
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_moment_is_beyond_writing() {
        for micros in [i64::MIN, -1, 0, i64::MAX] {
            assert!(rfc3339(Timestamp::from_micros(micros)).ends_with('Z'));
        }
    }
}
