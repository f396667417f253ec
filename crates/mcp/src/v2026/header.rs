//! Values in headers (MCP 2026-07-28, basic/transports/streamable-http, "Value Encoding").

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What a header says, decoded if it is wrapped as base64. `None` if that is malformed, or a character is none that a
/// header may have.
pub(super) fn decoded(value: &str) -> Option<Cow<'_, str>> {
    if !value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
        return None;
    }
    // Only with both marks, spelled exactly so; anything else is a plain value.
    let Some(wrapped) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(wrapped).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_plain_or_wrapped_with_both_marks_exactly() {
        for (value, says) in [
            ("us-west1", Some("us-west1")),
            ("us west 1", Some("us west 1")),
            ("a\tb", Some("a\tb")),
            ("", Some("")),
            ("=?base64?SGVsbG8=?=", Some("Hello")),
            ("=?base64?SGVsbG8sIOS4lueVjA==?=", Some("Hello, 世界")),
            ("=?base64?IHBhZGRlZCA=?=", Some(" padded ")),
            ("=?base64?bGluZTENCmxpbmUy?=", Some("line1\r\nline2")),
            ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", Some("=?base64?literal?=")),
            ("=?base64??=", Some("")),
            // Missing or unlike marks: a literal.
            ("SGVsbG8=", Some("SGVsbG8=")),
            ("SGVsbG8=?=", Some("SGVsbG8=?=")),
            ("=?base64?SGVsbG8=", Some("=?base64?SGVsbG8=")),
            ("=?BASE64?SGVsbG8=?=", Some("=?BASE64?SGVsbG8=?=")),
            ("=?base64?=", Some("=?base64?=")),
            // Padding, alphabet, trailing bits, UTF-8.
            ("=?base64?SGVsbG8?=", None),
            ("=?base64?SGVsbG8==?=", None),
            ("=?base64?SGVs!!!bG8=?=", None),
            ("=?base64?SGVsbG9=?=", None),
            ("=?base64?_-8=?=", None),
            ("=?base64? SGVsbG8=?=", None),
            ("=?base64?/w==?=", None),
            ("Région", None),
            ("a\nb", None),
            ("a\0", None),
            ("a\u{7f}", None),
        ] {
            assert_eq!(decoded(value).as_deref(), says, "{value:?}");
        }
    }
}
