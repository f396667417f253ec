//! Lines of bounded length.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// How much of both ends of a line that is too long is kept.
const END_BYTES: usize = 128;

/// A line without its break.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    Whole(Bytes),
    /// One that was too long: its first and last bytes.
    Oversized {
        head: Bytes,
        tail: Bytes,
    },
}

pub(super) struct Lines<R> {
    read: BufReader<R>,
    max: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(read: R, max: usize) -> Self {
        Self { read: BufReader::new(read), max }
    }

    /// The next line; what follows the last break is none.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<Line>> {
        let mut line = BytesMut::new();
        let mut head = None;
        loop {
            let found = self.read.fill_buf().await?;
            if found.is_empty() {
                return Ok(None);
            }
            let end = found.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&found[..end.unwrap_or(found.len())]);
            let taken = end.map_or(found.len(), |end| end + 1);
            self.read.consume(taken);
            if line.len() > self.max {
                head.get_or_insert_with(|| Bytes::copy_from_slice(&line[..END_BYTES.min(line.len())]));
            }
            if head.is_some() {
                line = BytesMut::from(&line[line.len().saturating_sub(END_BYTES)..]);
            }
            if end.is_some() {
                let line = line.freeze();
                return Ok(Some(match head {
                    None => Line::Whole(line),
                    Some(head) => Line::Oversized { head, tail: line },
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_leaves_its_ends_and_the_next_line_whole() {
        let long = format!("head{}tail", "x".repeat(100_000));
        let text = format!("one\r\n\n{long}\ntwo\nrest");
        let mut lines = Lines::new(text.as_bytes(), 1000);
        assert_eq!(lines.next().await.unwrap(), Some(Line::Whole("one\r".into())));
        assert_eq!(lines.next().await.unwrap(), Some(Line::Whole("".into())));
        let Some(Line::Oversized { head, tail }) = lines.next().await.unwrap() else { panic!() };
        assert!(head.starts_with(b"headx") && tail.ends_with(b"xtail"));
        assert_eq!((head.len(), tail.len()), (END_BYTES, END_BYTES));
        assert_eq!(lines.next().await.unwrap(), Some(Line::Whole("two".into())));
        assert_eq!(lines.next().await.unwrap(), None);
    }
}
