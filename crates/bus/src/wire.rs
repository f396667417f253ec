//! How a hint is written on Redis.
//!
//! One line of ASCII, fields separated by single spaces: the format's version (`1`), the origin (random, one for each
//! bus, so that a bus ignores its own echo), a word, and what the word needs:
//!
//! ```text
//! 1 ORIGIN task ID VERSION
//! 1 ORIGIN tools
//! 1 ORIGIN sessions
//! 1 ORIGIN subscriptions SESSION
//! 1 ORIGIN stream-opened SESSION STREAM
//! 1 ORIGIN session-task SESSION ID
//! 1 ORIGIN request-cancelled REQUEST
//! 1 ORIGIN credentials
//! 1 ORIGIN switches
//! ```
//!
//! A reader ignores and counts every other line, those of a later format included: while versions mix during an update,
//! an unread hint costs latency and nothing else.

use longhaul_core::TaskId;

use crate::{Control, Hint};

/// Bytes of a line; a longer one is neither sent nor read.
pub(crate) const LINE_MAX: usize = 512;
/// Characters of a tag or an origin.
const TAG_MAX: usize = 128;
const FORMAT: &str = "1";

/// The line of a hint; `None` for [`Hint::Missed`], which is never sent, and for tags that do not fit the format.
pub(crate) fn write(origin: &str, hint: &Hint) -> Option<String> {
    Some(match hint {
        Hint::Task { id, version } => format!("{FORMAT} {origin} task {id} {version}"),
        Hint::Control(Control::Tools) => format!("{FORMAT} {origin} tools"),
        Hint::Control(Control::Sessions) => format!("{FORMAT} {origin} sessions"),
        Hint::Control(Control::Subscriptions { session }) => {
            format!("{FORMAT} {origin} subscriptions {}", tag(session)?)
        }
        Hint::Control(Control::StreamOpened { session, stream }) => {
            format!("{FORMAT} {origin} stream-opened {} {}", tag(session)?, tag(stream)?)
        }
        Hint::Control(Control::SessionTask { session, id }) => {
            format!("{FORMAT} {origin} session-task {} {id}", tag(session)?)
        }
        Hint::Control(Control::RequestCancelled { request }) => {
            format!("{FORMAT} {origin} request-cancelled {}", tag(request)?)
        }
        Hint::Control(Control::Credentials) => format!("{FORMAT} {origin} credentials"),
        Hint::Control(Control::Switches) => format!("{FORMAT} {origin} switches"),
        Hint::Missed => return None,
    })
}

/// The origin and the hint of a line; `None` for everything else. Never trusts: anyone who reaches Redis can write to it.
pub(crate) fn read(line: &[u8]) -> Option<(&str, Hint)> {
    if line.len() > LINE_MAX {
        return None;
    }
    let mut fields = std::str::from_utf8(line).ok()?.split(' ');
    if fields.next()? != FORMAT {
        return None;
    }
    let origin = tag(fields.next()?)?;
    let hint = match fields.next()? {
        "task" => Hint::Task { id: fields.next()?.parse().ok()?, version: fields.next()?.parse().ok()? },
        "tools" => Hint::Control(Control::Tools),
        "sessions" => Hint::Control(Control::Sessions),
        "subscriptions" => Hint::Control(Control::Subscriptions { session: owned(fields.next()?)? }),
        "stream-opened" => {
            Hint::Control(Control::StreamOpened { session: owned(fields.next()?)?, stream: owned(fields.next()?)? })
        }
        "session-task" => {
            Hint::Control(Control::SessionTask { session: owned(fields.next()?)?, id: fields.next()?.parse().ok()? })
        }
        "request-cancelled" => Hint::Control(Control::RequestCancelled { request: owned(fields.next()?)? }),
        "credentials" => Hint::Control(Control::Credentials),
        "switches" => Hint::Control(Control::Switches),
        _ => return None,
    };
    fields.next().is_none().then_some((origin, hint))
}

/// One of 64 channels, so that a later release can let a replica hear only some.
pub(crate) fn shard(id: TaskId) -> usize {
    (id.bits() % SHARDS as u128) as usize
}

/// Channels that carry hints about tasks.
pub(crate) const SHARDS: usize = 64;

fn owned(text: &str) -> Option<String> {
    tag(text).map(str::to_owned)
}

/// A tag that fits a field: digests and random names in hexadecimal, base32 or base64.
fn tag(text: &str) -> Option<&str> {
    let fits = (1..=TAG_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_+/=.~".contains(&byte));
    fits.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints() -> Vec<Hint> {
        let id = TaskId::from_random(u128::MAX - 3);
        let (session, stream) = ("c2Vzc2lvbg==".to_owned(), "a".repeat(TAG_MAX));
        vec![
            Hint::Task { id, version: u64::MAX },
            Hint::Control(Control::Tools),
            Hint::Control(Control::Sessions),
            Hint::Control(Control::Subscriptions { session: session.clone() }),
            Hint::Control(Control::StreamOpened { session: session.clone(), stream }),
            Hint::Control(Control::SessionTask { session, id }),
            Hint::Control(Control::RequestCancelled { request: "Zm9v-_".to_owned() }),
            Hint::Control(Control::Credentials),
            Hint::Control(Control::Switches),
        ]
    }

    #[test]
    fn every_hint_reads_back_as_it_was_written() {
        for hint in hints() {
            let line = write("origin", &hint).unwrap();
            assert!(line.len() <= LINE_MAX, "{line}");
            assert_eq!(read(line.as_bytes()), Some(("origin", hint)));
        }
    }

    #[test]
    fn missed_is_never_sent_and_a_tag_cannot_smuggle_fields() {
        assert_eq!(write("origin", &Hint::Missed), None);
        let long = "a".repeat(TAG_MAX + 1);
        for tag in ["", "a b", "a\nb", "é", &long] {
            assert_eq!(write("origin", &Hint::Control(Control::RequestCancelled { request: tag.to_owned() })), None);
        }
    }

    #[test]
    fn whatever_is_not_a_line_of_this_format_is_ignored() {
        let id = TaskId::from_random(1);
        let good = format!("1 o task {id} 7");
        assert!(read(good.as_bytes()).is_some());
        let bad = [
            String::new(),
            "1".to_owned(),
            "1 o".to_owned(),
            "1 o task".to_owned(),
            format!("2 o task {id} 7"),
            format!("1 o task {id}"),
            format!("1 o task {id} -1"),
            format!("1 o task {id} 18446744073709551616"),
            format!("1 o task {} 7", id.to_string().to_uppercase()),
            format!("1  task {id} 7"),
            format!("1 o  task {id} 7"),
            format!("{good} "),
            format!("{good}\n"),
            format!("{good} more"),
            "1 o tools more".to_owned(),
            "1 o missed".to_owned(),
            "1 o stream-opened a".to_owned(),
            "{\"task\":1}".to_owned(),
            format!("1 o request-cancelled {}", "a".repeat(LINE_MAX)),
        ];
        for line in bad {
            assert_eq!(read(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(read(&[0xff, 0x00, b' ']), None);
    }
}
