//! Which revision of MCP is spoken.

use crate::errors::code;
use crate::jsonrpc::RpcError;
use longhaul_core::limits::cut;

/// How much of an unknown version an error repeats.
const ECHOED_VERSION_BYTES_MAX: usize = 32;

/// A revision that we speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// 2025-06-18: no tasks, and no empty first event on streams, which its clients may try to parse.
    V2025_06_18,
    /// 2025-11-25.
    V2025_11_25,
    /// 2026-07-28: no sessions; every request says all there is to know.
    V2026_07_28,
}

/// The versions that we speak, newest first: what `server/discover` and every error about a version list.
pub const SUPPORTED_VERSIONS: [&str; 3] =
    [Dialect::V2026_07_28.version(), Dialect::V2025_11_25.version(), Dialect::V2025_06_18.version()];

impl Dialect {
    /// The newest revision with sessions.
    pub const NEWEST: Self = Self::V2025_11_25;

    /// Its name on the wire.
    pub const fn version(self) -> &'static str {
        match self {
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The revision of exactly that name. Unknown names are never compared as dates.
    pub fn of_version(version: &str) -> Option<Self> {
        [Self::V2026_07_28, Self::V2025_11_25, Self::V2025_06_18]
            .into_iter()
            .find(|dialect| dialect.version() == version)
    }

    /// What `initialize` answers to a wish: that version if it is one with sessions, else the newest of those
    /// (MCP 2025-11-25, basic/lifecycle, "Version Negotiation").
    pub fn negotiate(requested: &str) -> Self {
        Self::of_version(requested).filter(|dialect| dialect.has_sessions()).unwrap_or(Self::NEWEST)
    }

    /// Whether it knows tasks.
    pub const fn has_tasks(self) -> bool {
        match self {
            Self::V2025_06_18 => false,
            Self::V2025_11_25 | Self::V2026_07_28 => true,
        }
    }

    /// Whether its streams begin with an event that has an id and empty data, and can be resumed.
    pub const fn has_priming(self) -> bool {
        match self {
            Self::V2025_11_25 => true,
            Self::V2025_06_18 | Self::V2026_07_28 => false,
        }
    }

    /// Whether it begins with `initialize`.
    pub const fn has_sessions(self) -> bool {
        !self.is_modern()
    }

    /// Whether each request stands for itself.
    pub const fn is_modern(self) -> bool {
        matches!(self, Self::V2026_07_28)
    }
}

/// Checks the `MCP-Protocol-Version` header of a request in a session. A missing one is fine: the session knows its
/// version. The error goes with HTTP 400.
pub fn check_header(version: Option<&str>) -> Result<(), RpcError> {
    match version {
        None => Ok(()),
        Some(version) if Dialect::of_version(version).is_some_and(Dialect::has_sessions) => Ok(()),
        Some(version) => Err(unsupported(version, &SUPPORTED_VERSIONS, "Unsupported protocol version")),
    }
}

/// The error for a version that we do not speak, or not there.
pub(crate) fn unsupported(requested: &str, supported: &[&str], message: &'static str) -> RpcError {
    let requested = cut(requested, ECHOED_VERSION_BYTES_MAX);
    let data = serde_json::json!({ "supported": supported, "requested": requested });
    RpcError::with_data(code::UNSUPPORTED_VERSION, message, &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_version_with_sessions_is_granted_and_any_other_wish_gets_the_newest_of_those() {
        for (wish, granted) in [
            ("2025-11-25", "2025-11-25"),
            ("2025-06-18", "2025-06-18"),
            ("2025-03-26", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("9999-99-99", "2025-11-25"),
            ("", "2025-11-25"),
        ] {
            assert_eq!(Dialect::negotiate(wish).version(), granted, "{wish}");
        }
    }

    #[test]
    fn a_header_is_compared_letter_by_letter() {
        for good in [None, Some("2025-11-25"), Some("2025-06-18")] {
            assert_eq!(check_header(good), Ok(()));
        }
        for bad in ["", " 2025-11-25", "2025-11-26", "2025-03-26", "2026-07-28", &"é".repeat(100)] {
            let error = check_header(Some(bad)).unwrap_err();
            assert_eq!(error.code, -32022);
            let data: serde_json::Value = serde_json::from_slice(error.data.as_ref().unwrap()).unwrap();
            assert_eq!(data["supported"], serde_json::json!(["2026-07-28", "2025-11-25", "2025-06-18"]));
            assert!(data["requested"].as_str().unwrap().len() <= ECHOED_VERSION_BYTES_MAX);
        }
    }

    #[test]
    fn every_supported_version_is_a_dialect() {
        for version in SUPPORTED_VERSIONS {
            let dialect = Dialect::of_version(version).unwrap();
            assert_eq!(dialect.has_sessions(), !dialect.is_modern());
            assert_eq!(dialect.has_priming(), dialect == Dialect::V2025_11_25);
        }
        assert_eq!(Dialect::of_version("2026-07-29"), None);
    }
}
