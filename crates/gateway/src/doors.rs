//! Which pages and which names may be used to reach us: the defence against DNS rebinding (MCP 2025-11-25,
//! basic/transports, "Security Warning").

use http::HeaderValue;
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::uri::{Authority, Uri};

/// The allow-lists.
#[derive(Debug, Clone)]
pub(crate) struct Doors {
    hosts: Allowed,
    origins: Allowed,
}

#[derive(Debug, Clone)]
enum Allowed {
    Any,
    Loopback,
    Listed(Vec<String>),
}

/// An entry of an allow-list that can never match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// Not a host.
    #[error("allowed_hosts: {0:?} is not a host name, with or without a port")]
    Host(String),
    /// Not an origin.
    #[error("allowed_origins: {0:?} is not an origin like https://name or http://name:8080")]
    Origin(String),
}

/// Whether every entry of the allow-lists can match.
pub fn check_allowed(hosts: &[String], origins: &[String]) -> Result<(), BadEntry> {
    for host in hosts {
        authority(host).ok_or_else(|| BadEntry::Host(host.clone()))?;
    }
    for origin in origins {
        origin_authority(origin).ok_or_else(|| BadEntry::Origin(origin.clone()))?;
    }
    Ok(())
}

impl Doors {
    /// The lists as configured, or what is safe on the interface that we listen on.
    pub(crate) fn new(hosts: &[String], origins: &[String], on_loopback: bool) -> Result<Self, BadEntry> {
        check_allowed(hosts, origins)?;
        let listed = |entries: &[String]| Allowed::Listed(entries.iter().map(|entry| entry.to_lowercase()).collect());
        Ok(Self {
            hosts: match (hosts, on_loopback) {
                ([], true) => Allowed::Loopback,
                ([], false) => Allowed::Any,
                (hosts, _) => listed(hosts),
            },
            origins: match (origins, on_loopback) {
                ([], true) => Allowed::Loopback,
                (origins, _) => listed(origins),
            },
        })
    }

    /// Whether a request may come in.
    pub(crate) fn admit(&self, request: &Parts) -> bool {
        self.admits_host(request) && self.admits_origin(request)
    }

    /// Whether there are origins whose pages are told that they may talk with us: those that somebody has listed.
    pub(crate) fn know_pages(&self) -> bool {
        matches!(&self.origins, Allowed::Listed(origins) if !origins.is_empty())
    }

    /// The origin of the page that a request comes from, if it is listed and may come in.
    pub(crate) fn page<'a>(&self, request: &'a Parts) -> Option<&'a HeaderValue> {
        request.headers.get(ORIGIN).filter(|_| self.know_pages() && self.admit(request))
    }

    fn admits_host(&self, request: &Parts) -> bool {
        // HTTP/2 has the name in the URI, HTTP/1 in the header, and a request through a forward proxy in both.
        let mut names = request.headers.get_all(HOST).iter();
        let header = match (names.next(), names.next()) {
            (_, Some(_)) => return false,
            (Some(name), None) => match name.to_str().ok().and_then(authority) {
                Some(name) => Some(name),
                None => return false,
            },
            (None, None) => None,
        };
        let in_uri = request.uri.authority().cloned();
        let mut any = false;
        let all = header.into_iter().chain(in_uri).all(|name| {
            any = true;
            match &self.hosts {
                Allowed::Any => true,
                Allowed::Loopback => is_loopback(name.host()),
                Allowed::Listed(hosts) => {
                    let (with_port, host) = (name.as_str().to_lowercase(), name.host().to_lowercase());
                    hosts.iter().any(|allowed| *allowed == with_port || *allowed == host)
                }
            }
        });
        any && all
    }

    fn admits_origin(&self, request: &Parts) -> bool {
        let mut origins = request.headers.get_all(ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(_), Some(_)) => false,
            (Some(origin), None) => origin.to_str().is_ok_and(|origin| match &self.origins {
                Allowed::Any => true,
                Allowed::Loopback => origin_authority(origin).is_some_and(|name| is_loopback(name.host())),
                Allowed::Listed(origins) => origins.contains(&origin.to_lowercase()),
            }),
        }
    }
}

fn authority(text: &str) -> Option<Authority> {
    // User information has no place here; with it, the name that we read might not be the one that another reads.
    text.parse::<Authority>().ok().filter(|name| !text.contains('@') && !name.host().is_empty())
}

fn origin_authority(origin: &str) -> Option<Authority> {
    let (scheme, name) = origin.split_once("://")?;
    let is_web = matches!(scheme, "http" | "https") && origin.parse::<Uri>().is_ok();
    if is_web { authority(name) } else { None }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host == "127.0.0.1" || host == "::1"
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn admits(doors: &Doors, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().uri("/mcp");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        doors.admit(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn on_loopback_only_loopback_names_are_let_in() {
        let doors = Doors::new(&[], &[], true).unwrap();
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080"] {
            assert!(admits(&doors, &[("host", host)]), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "user@localhost", "127.0.0.1.nip.io", "0.0.0.0"] {
            assert!(!admits(&doors, &[("host", host)]), "{host}");
        }
        assert!(!admits(&doors, &[]));
        assert!(!admits(&doors, &[("host", "localhost"), ("host", "localhost")]));
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"] {
            assert!(admits(&doors, &[("host", "localhost"), ("origin", origin)]), "{origin}");
        }
        for origin in [
            "null",
            "",
            "https://evil.example",
            "http://localhost.evil.example",
            "file://localhost",
            "http://localhost@evil.example",
        ] {
            assert!(!admits(&doors, &[("host", "localhost"), ("origin", origin)]), "{origin}");
        }
        let twice = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://localhost")];
        assert!(!admits(&doors, &twice));
    }

    #[test]
    fn elsewhere_the_lists_decide_and_no_page_is_let_in_without_one() {
        let open = Doors::new(&[], &[], false).unwrap();
        assert!(admits(&open, &[("host", "mcp.example")]));
        assert!(!admits(&open, &[("host", "mcp.example"), ("origin", "https://mcp.example")]));
        let listed = Doors::new(&["MCP.example".into()], &["https://App.example".into()], false).unwrap();
        assert!(admits(&listed, &[("host", "mcp.example:443"), ("origin", "https://app.example")]));
        assert!(!admits(&listed, &[("host", "other.example")]));
        assert!(!admits(&listed, &[("host", "mcp.example"), ("origin", "https://app.example:8443")]));
    }

    #[test]
    fn an_entry_that_can_never_match_is_an_error() {
        assert!(Doors::new(&["https://name".into()], &[], true).is_err());
        assert!(Doors::new(&[], &["name".into()], true).is_err());
    }
}
