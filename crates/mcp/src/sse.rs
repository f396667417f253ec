//! Server-sent events.

use bytes::Bytes;

/// The first event of a stream: an id and empty data, so that a client can come back even before the first message.
pub fn priming(id: &str, retry_ms: u64) -> Bytes {
    format!("id: {}\nretry: {retry_ms}\ndata:\n\n", one_line(id)).into()
}

/// How long a client should wait before it comes back; sent before a connection is closed on purpose.
pub fn retry(retry_ms: u64) -> Bytes {
    format!("retry: {retry_ms}\n\n").into()
}

/// A line that clients skip; it shows proxies that the connection lives.
pub fn comment(text: &str) -> Bytes {
    format!(": {}\n\n", one_line(text)).into()
}

/// One JSON-RPC message, on one `data` line.
pub fn message(id: Option<&str>, json: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(json.len() + id.map_or(0, str::len) + 16);
    if let Some(id) = id {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(one_line(id).as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    let start = out.len();
    out.extend_from_slice(json);
    // In JSON a line break can only stand between tokens, where a space means the same. Not several `data` lines, as
    // the standard would allow: not every client puts them together again.
    for byte in &mut out[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\n\n");
    out.into()
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\0'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a stream, as the HTML standard reads them, and nothing else of it.
    fn events(stream: &[u8]) -> Vec<Vec<(String, String)>> {
        let text = std::str::from_utf8(stream).unwrap().replace("\r\n", "\n").replace('\r', "\n");
        let blocks = text.strip_suffix("\n\n").unwrap().split("\n\n");
        let field = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_owned(), value.strip_prefix(' ').unwrap_or(value).to_owned())
        };
        blocks.map(|block| block.lines().map(field).collect()).collect()
    }

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn each_event_has_its_fields_and_no_others() {
        let stream =
            [priming("e.0", 2000), comment("ka"), message(Some("e.1"), b"{}"), message(None, b"[1]"), retry(5)];
        assert_eq!(
            events(&stream.concat()),
            [
                vec![field("id", "e.0"), field("retry", "2000"), field("data", "")],
                vec![field("", "ka")],
                vec![field("id", "e.1"), field("data", "{}")],
                vec![field("data", "[1]")],
                vec![field("retry", "5")],
            ]
        );
    }

    #[test]
    fn line_breaks_between_tokens_do_not_break_the_frame() {
        let json = "{\r\n \"a\":\n\n\"b\\n\u{2028}c\"\r}";
        let stream = message(None, json.as_bytes());
        let events = events(&stream);
        let [event] = events.as_slice() else { panic!("{events:?}") };
        let [(name, data)] = event.as_slice() else { panic!("{event:?}") };
        assert_eq!(name, "data");
        let sent: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(sent, serde_json::from_str::<serde_json::Value>(json).unwrap());
    }

    #[test]
    fn ids_and_comments_cannot_add_fields() {
        let stream = [comment("a\ndata: x"), priming("i\r\ndata: y", 1), message(Some("j\n\nid: z"), b"1")].concat();
        let names: Vec<_> = events(&stream).concat().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["", "id", "retry", "data", "id", "data"]);
    }
}
