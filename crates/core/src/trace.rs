//! The trace that a call belongs to, in the words of W3C Trace Context and W3C Baggage.

/// The longest `traceparent` kept, in bytes; version 00 has 55.
const TRACEPARENT_BYTES_MAX: usize = 128;
/// The longest `tracestate` kept, in bytes (W3C Trace Context, section 3.3.1.5, asks for at least 512).
const TRACESTATE_BYTES_MAX: usize = 512;
/// The most members of a `tracestate` (section 3.3.1.1).
const TRACESTATE_MEMBERS_MAX: usize = 32;
/// The longest key and value of such a member, in bytes (sections 3.3.1.3.1 and 3.3.1.3.2).
const TRACESTATE_FIELD_BYTES_MAX: usize = 256;
/// The longest `baggage` kept, in bytes (W3C Baggage, section 3.3.2, asks for 8192).
const BAGGAGE_BYTES_MAX: usize = 8192;
/// The most members of a `baggage` (the same section asks for at least 64).
const BAGGAGE_MEMBERS_MAX: usize = 180;

/// A W3C trace context; whatever has not the right shape is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceContext {
    /// `traceparent`
    pub traceparent: Option<String>,
    /// `tracestate`; only beside a `traceparent`.
    pub tracestate: Option<String>,
    /// `baggage`
    pub baggage: Option<String>,
}

impl TraceContext {
    /// Keeps what is well formed and short enough, whether it came in headers or in `_meta` (SEP-414).
    pub fn new(traceparent: Option<&str>, tracestate: Option<&str>, baggage: Option<&str>) -> Self {
        let traceparent = traceparent.filter(|text| is_traceparent(text));
        let tracestate = tracestate.filter(|text| traceparent.is_some() && is_tracestate(text));
        let baggage = baggage.filter(|text| is_baggage(text));
        Self {
            traceparent: traceparent.map(str::to_owned),
            tracestate: tracestate.map(str::to_owned),
            baggage: baggage.map(str::to_owned),
        }
    }

    /// The same, seen from a span within: `traceparent` is that span's, if it has one. What the trace's state says of
    /// another trace is left out.
    pub fn within(&self, traceparent: Option<String>) -> Self {
        let Some(traceparent) = traceparent else { return self.clone() };
        let trace = |text: &str| text.split('-').nth(1).map(str::to_owned);
        let is_same = self.traceparent.as_deref().and_then(trace) == trace(&traceparent);
        let tracestate = self.tracestate.clone().filter(|_| is_same);
        Self { traceparent: Some(traceparent), tracestate, baggage: self.baggage.clone() }
    }
}

/// Section 3.2: version, trace id, parent id and flags in lower-case hex; ids are not all zero.
fn is_traceparent(text: &str) -> bool {
    let hex = |field: &str, length| {
        field.len() == length && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let mut fields = text.split('-');
    let mut field = |length| fields.next().filter(|field| hex(field, length));
    let (Some(version), Some(trace), Some(parent), Some(_flags)) = (field(2), field(32), field(16), field(2)) else {
        return false;
    };
    let nonzero = |id: &str| id.bytes().any(|byte| byte != b'0');
    // Later versions may add fields; version 00 has none.
    let more = fields.next().is_some();
    version != "ff"
        && !(more && version == "00")
        && nonzero(trace)
        && nonzero(parent)
        && text.len() <= TRACEPARENT_BYTES_MAX
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Without the white space that lists may have around their members.
fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// The members of a list, without those that are empty.
fn members(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(trim).filter(|member| !member.is_empty())
}

/// Section 3.3.1: members `key=value`, each key once.
fn is_tracestate(text: &str) -> bool {
    let key = |key: &str| {
        key.len() <= TRACESTATE_FIELD_BYTES_MAX
            && key.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && key.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@'))
            && key.matches('@').count() <= 1
    };
    let value = |value: &str| {
        (1..=TRACESTATE_FIELD_BYTES_MAX).contains(&value.len())
            && value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=')
    };
    let mut keys = Vec::new();
    let are_well_formed = members(text).all(|member| match member.split_once('=') {
        Some((name, text)) if key(name) && value(text) && !keys.contains(&name) => {
            keys.push(name);
            keys.len() <= TRACESTATE_MEMBERS_MAX
        }
        Some(_) | None => false,
    });
    text.len() <= TRACESTATE_BYTES_MAX && are_well_formed && !keys.is_empty()
}

/// W3C Baggage, section 3.3.1: members `key=value`, each with properties behind semicolons.
fn is_baggage(text: &str) -> bool {
    let token = |token: &str| {
        !token.is_empty()
            && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    let value = |value: &str| {
        value.bytes().all(|byte| matches!(byte, 0x21 | 0x23..=0x2b | 0x2d..=0x3a | 0x3c..=0x5b | 0x5d..=0x7e))
    };
    let part = |(at, part): (usize, &str)| match part.split_once('=') {
        Some((key, text)) => token(trim(key)) && value(trim(text)),
        // Only a property may be a word alone.
        None => at > 0 && token(trim(part)),
    };
    let mut count = 0;
    let are_well_formed = members(text).all(|member| {
        count += 1;
        count <= BAGGAGE_MEMBERS_MAX && member.split(';').enumerate().all(part)
    });
    text.len() <= BAGGAGE_BYTES_MAX && are_well_formed && count > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_a_well_formed_traceparent_is_kept() {
        let later = PARENT.replacen("00", "01", 1) + "-more";
        for good in [PARENT, &later] {
            let trace = TraceContext::new(Some(good), Some("a=b"), Some("k=v"));
            assert_eq!(trace.traceparent.as_deref(), Some(good));
            assert_eq!(trace.tracestate.as_deref(), Some("a=b"));
        }
        for bad in [
            "",
            "00",
            &PARENT[..54],
            &PARENT.to_uppercase(),
            &format!("{PARENT}-more"),
            &PARENT.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            &format!("01{}-{}", &PARENT[2..], "x".repeat(100)),
            &format!("01{}-\n", &PARENT[2..]),
        ] {
            let trace = TraceContext::new(Some(bad), Some("a=b"), None);
            assert_eq!(trace, TraceContext::default(), "{bad}");
        }
    }

    #[test]
    fn a_tracestate_has_at_most_32_members_and_512_bytes_of_the_right_shape() {
        let many = |count: usize| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
        let kept = |text: &str| TraceContext::new(Some(PARENT), Some(text), None).tracestate.is_some();
        for good in ["a=b", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "t@s=1 2\t,, a*/-_=!~", &many(32)] {
            assert!(kept(good), "{good}");
        }
        let long = format!("k={}", "v".repeat(257));
        let longest = (0..3).map(|at| format!("k{at}={}", "v".repeat(200))).collect::<Vec<_>>().join(",");
        for bad in [
            "",
            " , ",
            "a",
            "a=",
            "=b",
            "A=b",
            "a=b=c",
            "a=b,a=c",
            "a@b@c=d",
            "a=\r\n",
            "a=é",
            &many(33),
            &long,
            &longest,
        ] {
            assert!(!kept(bad), "{bad}");
        }
    }

    #[test]
    fn a_baggage_has_at_most_8192_bytes_of_the_right_shape() {
        let kept = |text: &str| TraceContext::new(None, None, Some(text)).baggage.is_some();
        let longest = format!("k={}", "v".repeat(BAGGAGE_BYTES_MAX - 2));
        for good in ["k=v", "k1 = v1 ; p ; q = 2 , k2=", "user=Am%C3%A9lie,a=b=c", &longest] {
            assert!(kept(good), "{good}");
        }
        let many = vec!["k=v"; BAGGAGE_MEMBERS_MAX + 1].join(",");
        for bad in
            ["", ",", "k", "=v", "k k=v", "k=\r\n", "k=é", "k=a\"b", "k=v;", "k=a b", &many, &format!("{longest}v")]
        {
            assert!(!kept(bad), "{bad}");
        }
    }

    #[test]
    fn the_state_of_a_trace_is_not_taken_into_another() {
        let trace = TraceContext::new(Some(PARENT), Some("a=b"), Some("k=v"));
        assert_eq!(trace.within(None), trace);
        let child = PARENT.replace("00f067aa0ba902b7", "b7ad6b7169203331");
        let expected = TraceContext { traceparent: Some(child.clone()), ..trace.clone() };
        assert_eq!(trace.within(Some(child.clone())), expected);
        let other = child.replace("4bf9", "4bf8");
        let within = trace.within(Some(other.clone()));
        assert_eq!(within, TraceContext { traceparent: Some(other), tracestate: None, baggage: trace.baggage });
    }
}
