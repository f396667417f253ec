//! Which URLs may be shown to people, and which addresses are public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use longhaul_core::input::{Objection, Question, URL_BYTES_MAX, is_public, vet};
use proptest::prelude::*;

use crate::witness;

fn shown(url: &str) -> Result<(), &'static str> {
    match vet(&Question::Url { message: "Sign in".to_owned(), url: url.to_owned() }) {
        Ok(()) => Ok(()),
        Err(Objection::Url(why)) => Err(why),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_public_https_url_is_shown() {
    for url in [
        "https://connect.example.net/el_8h2",
        "https://example.com",
        "https://example.com:443/a?b=c#d",
        "https://example.com?next=https://other.org/",
        "https://EXAMPLE.com/",
        "HTTPS://example.com/",
        "https://a-b.c--d.example.co.uk/@user/..;/~x/%20%2F?q=a@b:c#!$&'()*+,;=",
        "https://xn--bcher-kva.example.org/",
        "https://xn--fiqs8s.xn--fiqs8s/",
        "https://3com.com/",
        "https://1.2.3.4.example.com/",
        "https://internal.example.com/",
        "https://mylocal.com/",
        "https://example.email/",
        "https://nothome.arpanet.org/",
    ] {
        assert_eq!(shown(url), Ok(()), "{url}");
    }
    let long = format!("https://example.com/{}", "a".repeat(URL_BYTES_MAX - 20));
    assert_eq!(shown(&long), Ok(()));
    assert!(shown(&(long + "a")).is_err());
}

#[test]
fn any_other_url_is_not() {
    for url in [
        "",
        "https",
        "https:",
        "https://",
        "https:///",
        "https:///example.com/",
        "https:/example.com/",
        "https:example.com/",
        "https:\\\\example.com/",
        "https:/\\example.com/",
        "//example.com/",
        "example.com",
        "http://example.com/",
        "ws://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "javascript://example.com/%0aalert(1)",
        "data:text/html,x",
        "blob:https://example.com/x",
        "view-source:https://example.com/",
        "intent://example.com/#Intent;scheme=https;end",
        // Ports.
        "https://example.com:22/",
        "https://example.com:80/",
        "https://example.com:8443/",
        "https://example.com:0/",
        "https://example.com:0443/",
        "https://example.com:/",
        "https://example.com:443:443/",
        "https://example.com:65979/",
        "https://example.com:44３/",
        // Users.
        "https://user:pw@good.example.com/",
        "https://good.example.com@127.0.0.1/",
        "https://good.example.com@evil.com/",
        "https://@example.com/",
        "https://:@example.com/",
        "https://good.example.com%40evil.com/",
        "https://127.0.0.1\\@good.example.com/",
        "https://good.example.com\\@evil.com/",
        "https://good.example.com\\.evil.com/",
        // Addresses, in every spelling.
        "https://127.0.0.1/",
        "https://8.8.8.8/",
        "https://127.1/",
        "https://127.0.1/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://0x7f.0.0.1/",
        "https://0x7f.1/",
        "https://0x7f000001/",
        "https://017700000001/",
        "https://127.0.0.1./",
        "https://0/",
        "https://0.0.0.0/",
        "https://00000000/",
        "https://4294967295/",
        "https://256.256.256.256/",
        "https://1.2.3.4.5/",
        "https://example.1/",
        "https://example.0x1/",
        "https://example.08/",
        "https://%31%32%37.0.0.1/",
        "https://１２７.０.０.１/",
        "https://127。0。0。1/",
        "https://①②⑦.0.0.1/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:a9fe:a9fe]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2606:4700:4700::1111]/",
        "https://[2606:4700:4700::1111]:443/",
        "https://[fe80::1%25eth0]/",
        "https://[v1.a]/",
        "https://[::1/",
        "https://::1/",
        "https://169.254.169.254/latest/meta-data/",
        // Names that are not registered.
        "https://localhost/",
        "https://localhost./",
        "https://LOCALHOST/",
        "https://loc%61lhost/",
        "https://ｌocalhost/",
        "https://intranet/",
        "https://com/",
        "https://printer.local/",
        "https://printer.LOCAL/",
        "https://printer.local./",
        "https://a.localhost/",
        "https://a.localdomain/",
        "https://metadata.google.internal/",
        "https://a.intranet/",
        "https://nas.lan/",
        "https://nas.home/",
        "https://nas.home.arpa/",
        "https://1.0.0.127.in-addr.arpa/",
        "https://a.corp/",
        "https://a.mail/",
        "https://a.private/",
        "https://a.test/",
        "https://good.example/",
        "https://a.invalid/",
        "https://facebookcorewwwi.onion/",
        "https://a.alt/",
        "https://example.com./",
        "https://.example.com/",
        "https://example..com/",
        "https://-a.example.com/",
        "https://a-.example.com/",
        "https://a_b.example.com/",
        "https://*.example.com/",
        "https://a!b.example.com/",
        "https://exam%70le.com/",
        "https://example.c0m/",
        "https://example.-com/",
        "https://xn--a/",
        "https://xn--.com/",
        "https://xn--zzzzzzzzz99999.com/",
        "https://bücher.example.org/",
        "https://еxample.com/",
        "https://exam\u{ad}ple.com/",
        "https://exam\u{200b}ple.com/",
        "https://example.com\u{ff0f}.evil.com/",
        "https://example.com\u{2024}evil.org/",
        // What a parser drops or repairs.
        " https://example.com/",
        "https://example.com/ ",
        "https://example.com/a b",
        "https://exam ple.com/",
        "https://exam\tple.com/",
        "https://example.com/\n",
        "https://example.com\r\nHost: evil.com/",
        "ht\ntps://example.com/",
        "https://example.com/\0",
        "https://example.com/\u{7f}",
        "https://example.com/\u{85}",
        "https://example.com/é",
        "https://example.com/\u{202e}gpj.exe",
        "https://example.com/<a>",
        "https://example.com/\"",
        "https://example.com/a\\b",
        "https://example.com/{x}",
        "https://example.com/%",
        "https://example.com/%zz",
        "https://example.com/#a#b",
        "https://?/",
        "https://#/",
        "https://./",
        "https://../",
    ] {
        assert!(shown(url).is_err(), "{url:?}");
    }
    let label = "a".repeat(64);
    assert!(shown(&format!("https://{label}.com/")).is_err());
    assert!(shown(&format!("https://{}com/", "a.".repeat(130))).is_err());
}

#[test]
fn the_objection_says_why() {
    let why = |url: &str| shown(url).unwrap_err();
    assert_eq!(why("http://example.com/"), "it does not begin with https://");
    assert_eq!(why("https://example.com/a b"), "it is not written as RFC 3986 asks");
    assert_eq!(why("https://a@example.com/"), "it names a user");
    assert_eq!(why("https://example.com:8080/"), "its port is not 443");
    assert_eq!(why("https://10.0.0.1/"), "its host is an address, not a name");
    assert_eq!(why("https://[::1]/"), "its host is an address, not a name");
    assert_eq!(why("https://intranet/"), "its host is a single label");
    assert_eq!(why("https://a.internal/"), "its host is a local name");
    assert_eq!(why("https://a_b.example.com/"), "its host is not a registered name");
}

/// The blocks that IANA's registries of special-purpose addresses take out of the public ones, and multicast.
const SPECIAL_V4: [([u8; 4], u32); 17] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([233, 252, 0, 0], 24),
    ([240, 0, 0, 0], 4),
    ([255, 255, 255, 255], 32),
];

fn is_special_v4(address: u32) -> bool {
    SPECIAL_V4.iter().any(|(block, bits)| {
        let mask = u32::MAX << (32 - bits);
        address & mask == u32::from_be_bytes(*block)
    })
}

#[test]
fn an_ipv4_address_is_public_exactly_outside_of_the_special_blocks() {
    for (block, bits) in SPECIAL_V4 {
        let first = u32::from_be_bytes(block);
        let last = first | u32::MAX.checked_shr(bits).unwrap_or(0);
        for address in [first.wrapping_sub(1), first, first + (last - first) / 2, last, last.wrapping_add(1)] {
            let ip = Ipv4Addr::from_bits(address);
            assert_eq!(is_public(ip.into()), !is_special_v4(address), "{ip}");
        }
    }
    for public in
        ["1.1.1.1", "8.8.8.8", "93.184.215.14", "100.63.255.255", "172.32.0.1", "192.0.1.1", "223.255.255.255"]
    {
        assert!(is_public(public.parse().unwrap()), "{public}");
    }
}

#[test]
fn an_ipv6_address_is_public_if_it_is_global_unicast_and_not_special() {
    for public in
        ["2606:4700:4700::1111", "2a00:1450:4001::1", "2001:200::1", "2003::1", "2400::1", "3ffe::1", "2620:fe::fe"]
    {
        assert!(is_public(public.parse().unwrap()), "{public}");
    }
    for special in [
        "::",
        "::1",
        "::2",
        "::127.0.0.1",
        "::8.8.8.8",
        "100::1",
        "64:ff9b:1::1",
        "64:ff9b:1::808:808",
        "64:ff9b:0:1::808:808",
        "2001::1",
        "2001:0:7f00:1::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:1ff:ffff::1",
        "2001:db8::1",
        "2002::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "3fff::1",
        "3fff:fff::1",
        "5f00::1",
        "4000::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ffff::1",
        "::ffff:0:127.0.0.1",
    ] {
        assert!(!is_public(special.parse().unwrap()), "{special}");
    }
}

proptest! {
    #[test]
    fn any_ipv4_address_is_public_as_the_registry_says(address in any::<u32>()) {
        prop_assert_eq!(is_public(Ipv4Addr::from_bits(address).into()), !is_special_v4(address));
    }

    #[test]
    fn an_ipv4_address_in_an_ipv6_one_is_judged_as_itself(address in any::<u32>()) {
        let v4 = Ipv4Addr::from_bits(address);
        let [a, b, c, d] = v4.octets().map(u16::from);
        let (high, low) = (a << 8 | b, c << 8 | d);
        for carrier in [v4.to_ipv6_mapped(), Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low)] {
            prop_assert_eq!(is_public(IpAddr::V6(carrier)), is_public(v4.into()), "{}", carrier);
        }
        for carrier in [Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0, high, low, 0, 0, !high, !low)] {
            prop_assert!(!is_public(IpAddr::V6(carrier)), "{}", carrier);
        }
    }

    #[test]
    fn no_address_outside_of_global_unicast_is_public(bits in any::<u128>()) {
        let address = Ipv6Addr::from_bits(bits);
        let mapped = bits >> 32 == 0xffff || bits >> 32 == 0x64_ff9b << 64;
        if bits >> 125 != 1 && !mapped {
            prop_assert!(!is_public(address.into()), "{}", address);
        }
    }

    /// Any way to write the same host differently is refused, or is the same host to every reader.
    #[test]
    fn what_is_shown_has_one_reading(
        url in r"https://[a-zA-Z0-9.@:%\\_\[\]-]{0,12}(example\.com|[a-z0-9.-]{1,12})[:/?#@%a-z0-9.]{0,8}",
    ) {
        if shown(&url).is_ok() {
            is_read_the_same_by_all(&url);
        }
    }
}

/// Checks a URL that is shown against three readers.
pub fn is_read_the_same_by_all(url: &str) {
    let host = witness::host(url);
    let by_browsers = url::Url::parse(url).unwrap();
    assert_eq!(by_browsers.scheme(), "https");
    assert_eq!(by_browsers.port_or_known_default(), Some(443));
    assert_eq!((by_browsers.username(), by_browsers.password()), ("", None));
    let domain = by_browsers.domain().unwrap();
    assert!(domain.eq_ignore_ascii_case(host), "{url}");
    // Written out and read again, it is the same.
    assert_eq!(url::Url::parse(by_browsers.as_str()).unwrap(), by_browsers);
    let without_fragment = url.split('#').next().unwrap();
    let by_http: http::Uri = without_fragment.parse().unwrap();
    assert_eq!(by_http.host(), Some(host));
    assert!(matches!(by_http.port_u16(), None | Some(443)));
    assert!(host.parse::<IpAddr>().is_err() && host.is_ascii() && host.contains('.'));
    let last = host.rsplit('.').next().unwrap().to_ascii_lowercase();
    assert!(!["local", "localhost", "internal", "test", "onion", "arpa", ""].contains(&last.as_str()), "{url}");
    assert!(!last.starts_with(|first: char| first.is_ascii_digit()), "{url}");
}
