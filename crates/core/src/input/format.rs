//! The four formats that a text may be asked to have.

use std::net::{Ipv4Addr, Ipv6Addr};

/// How a text must be written (JSON Schema 2020-12 Validation, "Defined Formats").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A `Mailbox` of RFC 5321, §4.1.2.
    Email,
    /// A `URI` of RFC 3986, with its scheme.
    Uri,
    /// A `full-date` of RFC 3339, of a day that there is.
    Date,
    /// A `date-time` of RFC 3339.
    DateTime,
}

impl Format {
    /// The one of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "email" => Some(Self::Email),
            "uri" => Some(Self::Uri),
            "date" => Some(Self::Date),
            "date-time" => Some(Self::DateTime),
            _ => None,
        }
    }

    /// Whether a text has it.
    pub(super) fn allows(self, text: &str) -> bool {
        match self {
            Self::Email => is_email(text),
            Self::Uri => is_uri(text),
            Self::Date => is_date(text),
            Self::DateTime => is_date_time(text),
        }
    }
}

/// The longest part before the `@`, in bytes (RFC 5321, §4.5.3.1.1).
const LOCAL_PART_BYTES_MAX: usize = 64;
/// The longest name of a host, in bytes (RFC 1035, §2.3.4, without its last dot and length).
pub(super) const HOST_BYTES_MAX: usize = 253;
/// The longest label of such a name, in bytes (RFC 1035, §2.3.4).
const LABEL_BYTES_MAX: usize = 63;

fn is_email(text: &str) -> bool {
    // Unquoted, an `@` stands nowhere else; quoted, it may stand in the local part only.
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let local_fits = local.len() <= LOCAL_PART_BYTES_MAX
        && match local.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(quoted) => is_quoted(quoted),
            None => local.split('.').all(|atom| !atom.is_empty() && atom.bytes().all(is_atext)),
        };
    let domain_fits = match domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(literal) => match literal.split_at_checked(5) {
            Some((tag, address)) if tag.eq_ignore_ascii_case("IPv6:") => address.parse::<Ipv6Addr>().is_ok(),
            _ => literal.parse::<Ipv4Addr>().is_ok(),
        },
        None => is_host_name(domain),
    };
    local_fits && domain_fits
}

/// `atext` of RFC 5322, §3.2.3.
fn is_atext(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte)
}

/// What may stand between the quotes of a `Quoted-string` (RFC 5321, §4.1.2).
fn is_quoted(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let fits = match byte {
            b'\\' => bytes.next().is_some_and(|escaped| matches!(escaped, b' '..=b'~')),
            b'"' => false,
            _ => matches!(byte, b' '..=b'~'),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// Labels of ASCII letters, digits and inner hyphens (RFC 1123, §2.1), without a last dot.
pub(super) fn is_host_name(text: &str) -> bool {
    text.len() <= HOST_BYTES_MAX
        && text.split('.').all(|label| {
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

/// `URI` of RFC 3986, §3.
pub(super) fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let scheme_fits = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    scheme_fits
        && is_authority(authority)
        && is_uri_text(path, b":@/")
        && is_uri_text(query, b":@/?")
        && is_uri_text(fragment, b":@/?")
}

fn is_authority(text: &str) -> bool {
    let (user, rest) = text.split_once('@').unwrap_or(("", text));
    let (host_fits, port) = match rest.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return false,
        Some(Some((literal, port))) => (literal.parse::<Ipv6Addr>().is_ok() || is_future(literal), port),
        None => {
            let (host, port) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
            (is_uri_text(host, b""), port)
        }
    };
    let port_fits = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    is_uri_text(user, b":") && host_fits && port_fits
}

/// `IPvFuture` of RFC 3986, §3.2.2.
fn is_future(literal: &str) -> bool {
    let Some((version, address)) = literal.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    !version.is_empty()
        && version.bytes().all(|byte| byte.is_ascii_hexdigit())
        && !address.is_empty()
        && address.bytes().all(|byte| is_unreserved(byte) || is_sub_delim(byte) || byte == b':')
}

/// Characters that stand for themselves, percent-encoded ones, and those of `besides`.
fn is_uri_text(text: &str, besides: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            if !bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                return false;
            }
            at += 3;
        } else if is_unreserved(byte) || is_sub_delim(byte) || besides.contains(&byte) {
            at += 1;
        } else {
            return false;
        }
    }
    true
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn is_sub_delim(byte: u8) -> bool {
    b"!$&'()*+,;=".contains(&byte)
}

fn is_date(text: &str) -> bool {
    let &[y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = text.as_bytes() else { return false };
    let (Some(year), Some(month), Some(day)) = (digits(&[y1, y2, y3, y4]), digits(&[m1, m2]), digits(&[d1, d2])) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// `date-time` of RFC 3339, §5.6; a 60th second stands only at the end of a day in UTC (§5.7).
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    let Some((clock, rest)) = time.as_bytes().split_first_chunk::<8>() else { return false };
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = clock else { return false };
    let (Some(hour), Some(minute), Some(second)) = (digits(&[h1, h2]), digits(&[m1, m2]), digits(&[s1, s2])) else {
        return false;
    };
    let offset = match rest {
        [b'.', fraction @ ..] => match fraction.iter().position(|byte| !byte.is_ascii_digit()) {
            None | Some(0) => return false,
            Some(end) => &fraction[end..],
        },
        _ => rest,
    };
    let ahead = match *offset {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => match (digits(&[h1, h2]), digits(&[m1, m2])) {
            (Some(hours @ 0..=23), Some(minutes @ 0..=59)) => {
                let ahead = i32::from(hours) * 60 + i32::from(minutes);
                if sign == b'+' { ahead } else { -ahead }
            }
            _ => return false,
        },
        _ => return false,
    };
    let minute_of_day = (i32::from(hour) * 60 + i32::from(minute) - ahead).rem_euclid(24 * 60);
    is_date(date) && hour <= 23 && minute <= 59 && (second <= 59 || second == 60 && minute_of_day == 24 * 60 - 1)
}

/// The number that ASCII digits write; at most four of them.
fn digits(text: &[u8]) -> Option<u16> {
    text.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + u16::from(byte - b'0')))
}
