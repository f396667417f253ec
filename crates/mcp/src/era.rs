//! Which era a message belongs to: that of sessions, or that in which each request stands for itself.

use crate::dialect::Dialect;
use crate::json::{self, Object};
use crate::jsonrpc::{Message, Params};
use crate::v2026::{META_VERSION, VERSION_HEADER};

/// A header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header<'a> {
    /// There is none of this name.
    Absent,
    /// There is one.
    One(&'a str),
    /// There are several, or it is not text.
    Bad,
}

impl<'a> Header<'a> {
    /// Its value, without the space around it.
    pub(crate) fn trimmed(self) -> Self {
        match self {
            Self::One(value) => Self::One(value.trim_matches([' ', '\t'])),
            Self::Absent | Self::Bad => self,
        }
    }
}

/// The headers of a request, whatever carries them.
pub trait Headers {
    /// The header of this name, in lower case.
    fn header(&self, name: &str) -> Header<'_>;
}

/// Which rules a message is under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 2025-11-25 and before.
    Sessions,
    /// 2026-07-28.
    Modern,
}

/// The era of a message. What a client says of itself decides, the method only where
/// no other revision has it. `has_session`: it showed an `Mcp-Session-Id` of ours.
pub fn era(message: &Message<'_>, headers: &dyn Headers, has_session: bool) -> Era {
    let in_header = headers.header(VERSION_HEADER).trimmed() == Header::One(Dialect::V2026_07_28.version());
    let is_modern = match message {
        Message::Request { method, params, .. } => {
            by_meta(params, has_session) || in_header || is_modern_method(method)
        }
        Message::Notification { params, .. } => by_meta(params, has_session) || in_header,
        Message::Response { .. } => in_header,
    };
    if is_modern { Era::Modern } else { Era::Sessions }
}

/// Whether `_meta` says that the request stands for itself. One that names a revision with sessions, and has one, is
/// taken at its session's word; without a session it is to hear what is wrong with it.
fn by_meta(params: &Params<'_>, has_session: bool) -> bool {
    let meta = params.get("_meta").and_then(|meta| Object::read(meta.as_bytes()));
    let Some(version) = meta.as_ref().and_then(|meta| meta.get(META_VERSION)) else { return false };
    let dialect = json::string(version).and_then(|version| Dialect::of_version(&version));
    !(has_session && dialect.is_some_and(Dialect::has_sessions))
}

fn is_modern_method(method: &str) -> bool {
    matches!(method, "server/discover" | "subscriptions/listen" | "tasks/update")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::jsonrpc::parse;

    /// Headers by their names; `None` for one that is bad.
    pub(crate) struct Given<'a>(pub(crate) Vec<(&'a str, Option<&'a str>)>);

    impl Headers for Given<'_> {
        fn header(&self, name: &str) -> Header<'_> {
            let mut values = self.0.iter().filter(|(given, _)| *given == name).map(|(_, value)| *value);
            match (values.next(), values.next()) {
                (None, _) => Header::Absent,
                (Some(Some(value)), None) => Header::One(value),
                (Some(_), _) => Header::Bad,
            }
        }
    }

    fn era_of(body: &str, header: Option<&str>, has_session: bool) -> Era {
        let headers = Given(header.map(|version| ("mcp-protocol-version", Some(version))).into_iter().collect());
        era(&parse(body.as_bytes()).unwrap(), &headers, has_session)
    }

    #[test]
    fn what_a_message_says_of_itself_decides_its_era() {
        use Era::{Modern, Sessions};
        let versions = ["2026-07-28", "2025-11-25", "2025-06-18", "2031-01-01", ""];
        for method in ["tools/call", "initialize", "ping", "nonsense"] {
            let request = |meta: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{meta}}}}}"#);
            let meta = |version: &str| {
                request(&format!(r#""_meta":{{"io.modelcontextprotocol/protocolVersion":"{version}"}}"#))
            };
            for has_session in [false, true] {
                // (2) and (4): without a word in the body, the header decides.
                for bare in ["", r#""_meta":{"progressToken":1}"#, r#""_meta":7"#] {
                    let bare = request(bare);
                    assert_eq!(era_of(&bare, None, has_session), Sessions);
                    for version in versions {
                        let expected = if version == "2026-07-28" { Modern } else { Sessions };
                        assert_eq!(era_of(&bare, Some(version), has_session), expected, "{method} {version}");
                        assert_eq!(era_of(&bare, Some(&format!(" {version}\t")), has_session), expected);
                    }
                }
                // (1): the body decides, whatever the header says.
                for version in ["2026-07-28", "2031-01-01", "1900-01-01", "2025-03-26", ""] {
                    for header in [None, Some("2026-07-28"), Some("2025-11-25")] {
                        assert_eq!(era_of(&meta(version), header, has_session), Modern, "{method} {version}");
                    }
                }
                let number = request(r#""_meta":{"io.modelcontextprotocol/protocolVersion":7}"#);
                assert_eq!(era_of(&number, None, has_session), Modern);
                // A revision with sessions, in the way of one without: only a session excuses it (A-01).
                for version in ["2025-11-25", "2025-06-18"] {
                    let expected = if has_session { Sessions } else { Modern };
                    assert_eq!(era_of(&meta(version), None, has_session), expected);
                    assert_eq!(era_of(&meta(version), Some("2025-11-25"), has_session), expected);
                    assert_eq!(era_of(&meta(version), Some("2026-07-28"), has_session), Modern);
                }
            }
        }
    }

    #[test]
    fn methods_of_one_era_alone_belong_to_it() {
        for method in ["server/discover", "subscriptions/listen", "tasks/update"] {
            for header in [None, Some("2025-11-25")] {
                let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
                assert_eq!(era_of(&body, header, true), Era::Modern, "{method}");
            }
        }
    }

    #[test]
    fn notifications_and_answers_have_an_era_too() {
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        for body in [notification, answer] {
            for has_session in [false, true] {
                assert_eq!(era_of(body, None, has_session), Era::Sessions);
                assert_eq!(era_of(body, Some("2025-11-25"), has_session), Era::Sessions);
                assert_eq!(era_of(body, Some("2026-07-28"), has_session), Era::Modern);
            }
        }
    }

    #[test]
    fn a_version_header_that_is_there_twice_says_nothing() {
        let twice = Given(vec![("mcp-protocol-version", Some("2026-07-28")); 2]);
        let body = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        assert_eq!(era(&parse(body).unwrap(), &twice, false), Era::Sessions);
    }
}
