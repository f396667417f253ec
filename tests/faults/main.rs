//! The real binary as processes, killed.
#![expect(clippy::unwrap_used, reason = "a test")]
