//! Server-sent events of bounded size, as Streamable HTTP uses them: their data matters, and where a stream can be taken
//! up again.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

/// The longest id of an event that is kept: it has to go into a header.
const ID_BYTES_MAX: usize = 1024;

/// The event grew beyond the maximum.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// Cuts a stream of bytes into the data of its events.
pub(crate) struct Events {
    max: usize,
    /// Events of other types than `message` count too.
    all_types: bool,
    /// What came and is no whole line yet; up to `searched` there is no break in it.
    rest: BytesMut,
    searched: usize,
    /// The data of the event that is being read.
    data: Option<BytesMut>,
    is_message: bool,
    /// The id of the event that is being read, and of the last whole one.
    id: Option<Bytes>,
    last_id: Option<Bytes>,
    retry: Option<Duration>,
}

impl Events {
    /// Those of type `message`; `max` is the largest one, in bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            all_types: false,
            rest: BytesMut::new(),
            searched: 0,
            data: None,
            is_message: true,
            id: None,
            last_id: None,
            retry: None,
        }
    }

    /// Those of any type.
    pub(crate) fn of_all_types(max: usize) -> Self {
        Self { all_types: true, ..Self::new(max) }
    }

    /// The id after which the stream can be taken up again, if the server gives any.
    pub(super) fn last_id(&self) -> Option<&Bytes> {
        self.last_id.as_ref()
    }

    /// How long the server wants to be left alone before that.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// The stream has ended, and another one carries on: what was half read is lost.
    pub(super) fn restart(&mut self) {
        let (last_id, retry) = (self.last_id.take(), self.retry);
        *self = Self { id: last_id.clone(), last_id, retry, all_types: self.all_types, ..Self::new(self.max) };
    }

    /// Adds bytes as they came.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// The data of the next whole event that has any.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, TooLarge> {
        while let Some(line) = self.line() {
            if line.is_empty() {
                let data = self.data.take().filter(|data| !data.is_empty() && self.is_message);
                self.is_message = true;
                self.last_id.clone_from(&self.id);
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
                b"id" if value.len() <= ID_BYTES_MAX && !value.contains(&0) => {
                    self.id = Some(Bytes::copy_from_slice(value)).filter(|id| !id.is_empty());
                }
                b"retry" => {
                    let ms = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                    self.retry = ms.map(Duration::from_millis).or(self.retry);
                }
                b"event" => self.is_message = self.all_types || value.is_empty() || value == b"message",
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
    fn it_is_known_where_a_stream_can_be_taken_up_again() {
        let mut events = Events::new(1000);
        let mut after = |text: &str| {
            events.push(text.as_bytes());
            while events.next().unwrap().is_some() {}
            let known = (events.last_id().cloned(), events.retry().map(|retry| retry.as_millis()));
            events.restart();
            known
        };
        assert_eq!(after("data: x\n\n"), (None, None));
        assert_eq!(after("id: a\nretry: 50\ndata: \n\nid: half"), (Some("a".into()), Some(50)));
        assert_eq!(after("retry: soon\ndata: x\n\n"), (Some("a".into()), Some(50)));
        assert_eq!(
            after(&format!("id: {}\n\nid: b\ndata: x\n\n", "x".repeat(ID_BYTES_MAX + 1))),
            (Some("b".into()), Some(50))
        );
        assert_eq!(after("id\n\n"), (None, Some(50)));
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
