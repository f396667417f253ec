//! Server-sent events of bounded size, as Streamable HTTP uses them: only their data matters.

use bytes::{Bytes, BytesMut};

/// The event grew beyond the maximum.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Cuts a stream of bytes into the data of its events.
pub(super) struct Events {
    max: usize,
    /// What came and is no whole line yet; up to `searched` there is no break in it.
    rest: BytesMut,
    searched: usize,
    /// The data of the event that is being read.
    data: Option<BytesMut>,
    is_message: bool,
}

impl Events {
    pub(super) fn new(max: usize) -> Self {
        Self { max, rest: BytesMut::new(), searched: 0, data: None, is_message: true }
    }

    /// Adds bytes as they came.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// The data of the next whole event of type `message` that has any.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLarge> {
        while let Some(line) = self.line() {
            if line.is_empty() {
                let data = self.data.take().filter(|data| !data.is_empty() && self.is_message);
                self.is_message = true;
                if let Some(data) = data {
                    return Ok(Some(data.freeze()));
                }
                continue;
            }
            let (field, value) = match line.iter().position(|byte| *byte == b':') {
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (&line[..], &[][..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match field {
                b"data" => match &mut self.data {
                    Some(data) => {
                        data.extend_from_slice(b"\n");
                        data.extend_from_slice(value);
                    }
                    None => self.data = Some(BytesMut::from(value)),
                },
                b"event" => self.is_message = value.is_empty() || value == b"message",
                _ => {}
            }
            if self.data.as_ref().is_some_and(|data| data.len() > self.max) {
                return Err(TooLarge);
            }
        }
        let held = self.rest.len() + self.data.as_ref().map_or(0, BytesMut::len);
        if held > self.max { Err(TooLarge) } else { Ok(None) }
    }

    /// The next whole line. A line ends with LF, CR or both; a CR that is the last byte may have its LF still to come.
    fn line(&mut self) -> Option<BytesMut> {
        let Some(end) = self.rest[self.searched..].iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.searched = self.rest.len();
            return None;
        };
        let end = self.searched + end;
        let size = match (self.rest[end], self.rest.get(end + 1)) {
            (b'\r', None) => {
                self.searched = end;
                return None;
            }
            (b'\r', Some(b'\n')) => 2,
            _ => 1,
        };
        let mut line = self.rest.split_to(end + size);
        line.truncate(end);
        self.searched = 0;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, step: usize) -> Vec<Bytes> {
        let mut events = Events::new(1000);
        let mut found = Vec::new();
        for chunk in text.as_bytes().chunks(step) {
            events.push(chunk);
            while let Some(data) = events.next().unwrap() {
                found.push(data);
            }
        }
        found
    }

    #[test]
    fn events_are_found_however_the_bytes_come() {
        let text = "id: 1\ndata: \n\n: comment\r\n\r\nevent: message\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nevent: ping\ndata: x\n\ndata:é\nretry: 5\n\ndata\n\ndata: half\n";
        for step in [1, 2, 3, 7, 1000] {
            assert_eq!(all(text, step), ["{\"a\":\n1}", "é"], "{step}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        for part in ["data: x", "data: x\n", "x"] {
            let mut events = Events::new(1000);
            let refused = (0..2000).any(|_| {
                events.push(part.as_bytes());
                events.next() == Err(TooLarge)
            });
            assert!(refused, "{part}");
        }
    }
}
