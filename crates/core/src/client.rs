//! What a client can be asked and told, whatever dialect it speaks.

use bytes::Bytes;

use crate::input::Question;

/// What a client can be asked (`ClientCapabilities` of both eras).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCapabilities {
    /// To show a form.
    pub elicitation_form: bool,
    /// To open a URL.
    pub elicitation_url: bool,
    /// To ask its model.
    pub sampling: bool,
    /// To name its roots.
    pub roots: bool,
}

impl ClientCapabilities {
    /// Whether such a client can be asked this.
    pub const fn can_answer(self, question: &Question) -> bool {
        match question {
            Question::Form { .. } => self.elicitation_form,
            Question::Url { .. } => self.elicitation_url,
            Question::Sample { .. } => self.sampling,
            Question::Roots => self.roots,
        }
    }

    /// Those of `needed` that are not here.
    pub const fn missing(self, needed: Self) -> Self {
        Self {
            elicitation_form: needed.elicitation_form && !self.elicitation_form,
            elicitation_url: needed.elicitation_url && !self.elicitation_url,
            sampling: needed.sampling && !self.sampling,
            roots: needed.roots && !self.roots,
        }
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.bits() == 0
    }

    /// As a number, for storage and travel.
    pub const fn bits(self) -> u8 {
        self.elicitation_form as u8
            | (self.elicitation_url as u8) << 1
            | (self.sampling as u8) << 2
            | (self.roots as u8) << 3
    }

    /// Reads what [`bits`](Self::bits) wrote; unknown bits are ignored.
    pub const fn from_bits(bits: u8) -> Self {
        Self {
            elicitation_form: bits & 1 != 0,
            elicitation_url: bits & 2 != 0,
            sampling: bits & 4 != 0,
            roots: bits & 8 != 0,
        }
    }
}

/// How grave a log message is (RFC 5424), the least grave first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of RFC 5424")]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl LogLevel {
    const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Its name on every wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// The level of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// A log message for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogMessage {
    /// How grave.
    pub level: LogLevel,
    /// Which part speaks.
    pub logger: Option<String>,
    /// Any JSON, as it came.
    pub data: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_levels_read_back_as_they_were_written() {
        for bits in 0..16 {
            assert_eq!(ClientCapabilities::from_bits(bits).bits(), bits);
        }
        assert_eq!(ClientCapabilities::from_bits(0b101).missing(ClientCapabilities::from_bits(0b111)).bits(), 0b010);
        for level in LogLevel::ALL {
            assert_eq!(LogLevel::from_name(level.name()), Some(level));
        }
        assert_eq!(LogLevel::from_name("Info"), None);
        assert!(LogLevel::Debug < LogLevel::Emergency);
    }
}
