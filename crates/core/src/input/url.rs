//! Which URLs may be shown to people.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::url::{Host, Url};

use super::format::{is_host_name, is_uri};

/// The longest URL, in bytes.
pub const URL_BYTES_MAX: usize = 2048;

/// Names that are never registered: of special use (RFC 6761, RFC 6762, RFC 7686, RFC 9476, `internal` by ICANN's
/// resolution of 2024), of infrastructure (`arpa`, and so `home.arpa`), and those that people give their own networks.
const LOCAL_SUFFIXES: [&str; 16] = [
    "alt",
    "arpa",
    "corp",
    "example",
    "home",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "mail",
    "onion",
    "private",
    "test",
];

/// Why it may not, if it may not. What is shown is the text as it came, so that text must leave no choice how it is read:
/// where the WHATWG's parser, as browsers have it, would repair it, it is refused.
pub(super) fn vet(url: &str) -> Result<(), &'static str> {
    if url.len() > URL_BYTES_MAX {
        return Err("it has more than 2048 bytes");
    }
    let rest = match url.split_at_checked("https://".len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https://") => rest,
        _ => return Err("it does not begin with https://"),
    };
    // Also refuses spaces, control characters, backslashes and all that is not ASCII: an international name is written
    // as its A-label, as the network knows it.
    if !is_uri(url) {
        return Err("it is not written as RFC 3986 asks");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("it names a user");
    }
    if authority.starts_with('[') {
        return Err("its host is an address, not a name");
    }
    let name = authority.strip_suffix(":443").unwrap_or(authority);
    if name.contains(':') {
        return Err("its port is not 443");
    }
    let parsed = Url::parse(url).map_err(|_| "its host cannot be read")?;
    match parsed.host() {
        Some(Host::Domain(read)) if read.eq_ignore_ascii_case(name) => vet_name(read),
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => Err("its host is an address, not a name"),
        Some(Host::Domain(_)) | None => Err("its host is not written as it is read"),
    }
}

/// A name as the parser gives it: in lower case.
fn vet_name(name: &str) -> Result<(), &'static str> {
    if !is_host_name(name) {
        return Err("its host is not a registered name");
    }
    let Some((_, last)) = name.rsplit_once('.') else { return Err("its host is a single label") };
    // The delegated ones are letters or A-labels (RFC 3696, §2).
    if !last.bytes().all(|byte| byte.is_ascii_lowercase()) && !last.starts_with("xn--") {
        return Err("its host is not a registered name");
    }
    let local = |suffix: &&str| name.strip_suffix(*suffix).is_some_and(|rest| rest.ends_with('.'));
    if LOCAL_SUFFIXES.iter().any(local) {
        return Err("its host is a local name");
    }
    Ok(())
}

/// Whether an address is one of the public internet: assigned to a host that anybody can reach, by IANA's registries of
/// special-purpose addresses. One that carries an IPv4 address for a translator is judged by that.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(address) => is_public_v4(address),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        // "This network", loopback, private (RFC 1918).
        [0 | 127 | 10, ..]
            | [172, 16..=31, ..]
            | [192, 168, ..]
            // Shared by carriers (RFC 6598), link-local.
            | [100, 64..=127, ..]
            | [169, 254, ..]
            // IETF protocols, the former relays of 6to4.
            | [192, 0, 0, _]
            | [192, 88, 99, _]
            // Documentation, benchmarks.
            | [192, 0, 2, _]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
            | [198, 18 | 19, ..]
            // Multicast, reserved, broadcast.
            | [224..=255, ..]
    )
}

/// The IPv4 address in an IPv4-mapped one (RFC 4291, §2.5.5.2) or one for NAT64 (RFC 6052, §2.1), which is what a network
/// without IPv4 resolves every name to that has no other.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => None,
    }
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    // Global unicast is 2000::/3 (RFC 4291, §2.4): outside of it are the unspecified and loopback addresses, local NAT64,
    // discard-only, segment routing, unique-local, link-local and multicast ones.
    first & 0xe000 == 0x2000
        && !matches!(
            (first, second),
            // IETF protocols, with Teredo and benchmarks; documentation; 6to4; documentation.
            (0x2001, 0..=0x1ff) | (0x2001, 0xdb8) | (0x2002, _) | (0x3fff, 0..=0xfff)
        )
}
