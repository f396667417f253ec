//! What a run has said so far, for whoever listens to it.

use std::collections::VecDeque;

use bytes::Bytes;
use http::StatusCode;
use longhaul_core::TaskId;
use longhaul_mcp::v2025;
use tokio::sync::{oneshot, watch};

use crate::metrics::Ended;

/// Words kept for who has not heard them; with more, the oldest are left out.
const WORDS_MAX: usize = 64;
/// The same in bytes.
const WORDS_BYTES_MAX: usize = 64 * 1024;

/// Hears of a run.
pub(super) type News = watch::Receiver<Said>;

/// How a run ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// With this message; `task` is what its client hears of in it and nowhere else.
    Message { status: StatusCode, body: Bytes, how: Ended, task: Option<TaskId> },
    /// No worker could be reached, or all are full; none has begun.
    Unavailable,
    /// Its client no longer wanted it.
    Unwanted,
}

/// All that a run has said.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Notifications and their numbers, in order.
    words: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// The number of the latest word or question, from 1.
    last: u64,
    /// What the client of a session was asked: at most [`longhaul_core::input::QUESTIONS_MAX`].
    questions: Vec<Asking>,
    end: Option<End>,
}

#[derive(Debug)]
struct Asking {
    number: u64,
    key: String,
    id: String,
    frame: Bytes,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// By the client that was asked.
    Answered,
    /// Nobody waits for an answer any more.
    Withdrawn,
}

impl Said {
    /// Adds a notification. One that is too large to be kept is left out.
    pub(super) fn word(&mut self, frame: Bytes) {
        if frame.len() > WORDS_BYTES_MAX {
            return;
        }
        self.last += 1;
        self.bytes += frame.len();
        self.words.push_back((self.last, frame));
        while self.words.len() > WORDS_MAX || self.bytes > WORDS_BYTES_MAX {
            let dropped = self.words.pop_front();
            self.bytes -= dropped.map_or(0, |(_, frame)| frame.len());
        }
    }

    /// Adds a question; answers with its place.
    pub(super) fn question(&mut self, key: String, id: String, frame: Bytes) -> usize {
        self.last += 1;
        self.questions.push(Asking { number: self.last, key, id, frame, state: State::Open });
        self.questions.len() - 1
    }

    /// How many questions there were.
    pub(super) fn questions(&self) -> usize {
        self.questions.len()
    }

    /// Whether there was a question of this key.
    pub(super) fn has_asked(&self, key: &str) -> bool {
        self.questions.iter().any(|question| question.key == key)
    }

    /// A question was answered.
    pub(super) fn answered(&mut self, at: usize) {
        let state = &mut self.questions[at].state;
        if *state == State::Open {
            *state = State::Answered;
        }
    }

    /// The run does not want the answers to these questions any more; gives the ids of those that were open.
    pub(super) fn give_up(&mut self, keys: &[String]) -> Vec<String> {
        let open = self.questions.iter_mut().filter(|asking| asking.state == State::Open && keys.contains(&asking.key));
        open.map(|asking| {
            asking.state = State::Withdrawn;
            asking.id.clone()
        })
        .collect()
    }

    /// Nobody waits for the answer to a question any more.
    pub(super) fn withdraw(&mut self, at: usize) {
        let state = &mut self.questions[at].state;
        if *state == State::Open {
            *state = State::Withdrawn;
        }
    }

    /// It is over. Answers with the bytes that are kept of it.
    pub(super) fn end(&mut self, end: End) -> usize {
        (0..self.questions.len()).for_each(|at| self.withdraw(at));
        let body = if let End::Message { body, .. } = &end { body.len() } else { 0 };
        self.end = Some(end);
        self.bytes + body
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Whether there is anything to tell before the end.
    pub(super) fn has_words(&self) -> bool {
        self.last > 0
    }

    /// The next thing for one who has heard everything up to number `told` and carried the questions `carried`.
    fn next(&self, told: u64, carried: &[usize]) -> Option<Word> {
        let withdrawn = carried.iter().find(|at| self.questions[**at].state == State::Withdrawn);
        if let Some(&at) = withdrawn {
            return Some(Word::Withdrawn { at, frame: v2025::notify::cancelled(&self.questions[at].id) });
        }
        let word = self.words.iter().find(|(number, _)| *number > told);
        let unasked = |at: &usize| self.questions[*at].state == State::Open && !carried.contains(at);
        let question = (0..self.questions.len()).find(unasked).map(|at| (at, &self.questions[at]));
        match (word, question) {
            (word, Some((at, question))) if word.is_none_or(|(number, _)| *number > question.number) => {
                Some(Word::Question { at, number: question.number, frame: question.frame.clone() })
            }
            (Some((number, frame)), _) => Some(Word::Said { number: *number, frame: frame.clone() }),
            (None, _) => self.end.clone().map(Word::End),
        }
    }
}

/// One thing to tell.
#[derive(Debug, Clone)]
pub(super) enum Word {
    /// A notification.
    Said { number: u64, frame: Bytes },
    /// A question.
    Question { at: usize, number: u64, frame: Bytes },
    /// A question that was carried here is no longer one.
    Withdrawn { at: usize, frame: Bytes },
    /// The last word.
    End(End),
}

/// Somebody who listens to a run, and tells its client.
pub(super) struct Listener {
    news: News,
    /// The highest number that the client was told.
    told: u64,
    /// The questions that were carried to the client here and are not known to be closed.
    carried: Vec<usize>,
    /// Says that the end was heard; dropped unsaid, that nobody listens any more.
    heard: Option<oneshot::Sender<()>>,
}

impl Listener {
    /// Listens from what came after number `told` on.
    pub(super) fn new(news: News, told: u64, heard: Option<oneshot::Sender<()>>) -> Self {
        Self { news, told, carried: Vec::new(), heard }
    }

    /// Whether there was anything to tell before the end.
    pub(super) fn has_words(&self) -> bool {
        self.news.borrow().has_words()
    }

    /// What it listens to.
    pub(super) fn news(&self) -> News {
        self.news.clone()
    }

    /// The highest number that the client was told.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// Waits until the run is over or has something to say, if that is of interest before the end.
    pub(super) async fn wait(&mut self, words_matter: bool) {
        // An error means that the run is gone, which the next step finds too.
        let _ = self.news.wait_for(|said| said.is_over() || words_matter && said.has_words()).await;
    }

    /// The end, if it has come.
    pub(super) fn end(&mut self) -> Option<End> {
        let end = self.news.borrow().end.clone()?;
        self.hear();
        Some(end)
    }

    /// The next thing to tell. `None` if the run is gone without a last word. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<Word> {
        let (told, carried) = (self.told, &self.carried);
        let said = self.news.wait_for(|said| said.next(told, carried).is_some()).await.ok()?;
        let word = said.next(told, carried)?;
        drop(said);
        match &word {
            Word::Said { number, .. } => self.told = *number,
            Word::Question { at, number, .. } => {
                self.told = self.told.max(*number);
                self.carried.push(*at);
            }
            Word::Withdrawn { at, .. } => self.carried.retain(|carried| carried != at),
            Word::End(_) => self.hear(),
        }
        Some(word)
    }

    fn hear(&mut self) {
        if let Some(heard) = self.heard.take() {
            // The run may have ended for want of a worker, and waits for nobody then.
            let _ = heard.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn frame(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn next(listener: &mut Listener) -> Option<String> {
        let word = listener.next().now_or_never()?.unwrap();
        Some(match word {
            Word::Said { number, frame } => format!("{number} {}", String::from_utf8_lossy(&frame)),
            Word::Question { number, frame, .. } => format!("{number}? {}", String::from_utf8_lossy(&frame)),
            Word::Withdrawn { at, .. } => format!("withdrawn {at}"),
            Word::End(_) => "end".into(),
        })
    }

    fn all(listener: &mut Listener) -> Vec<String> {
        std::iter::from_fn(|| next(listener)).take(100).collect()
    }

    #[test]
    fn words_and_questions_come_in_the_order_in_which_they_were_said() {
        let (tell, news) = watch::channel(Said::default());
        let mut listener = Listener::new(news.clone(), 0, None);
        assert_eq!(next(&mut listener), None);
        tell.send_modify(|said| {
            said.word(frame("a"));
            said.question("k".into(), "id".into(), frame("q"));
            said.word(frame("b"));
        });
        assert_eq!(all(&mut listener), ["1 a", "2? q", "3 b"]);
        // Who comes back is told what it has not heard, and asked again what it was asked.
        assert_eq!(all(&mut Listener::new(news.clone(), 1, None)), ["2? q", "3 b"]);
        assert_eq!(all(&mut Listener::new(news.clone(), 3, None)), ["2? q"]);
        tell.send_modify(|said| said.answered(0));
        assert_eq!(all(&mut Listener::new(news.clone(), 1, None)), ["3 b"]);
        tell.send_modify(|said| assert_eq!(said.end(End::Unwanted), 2));
        assert_eq!(next(&mut listener).as_deref(), Some("end"));
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_withdrawn_where_it_was_carried() {
        let (tell, news) = watch::channel(Said::default());
        tell.send_modify(|said| {
            said.question("k".into(), "1".into(), frame("p"));
            said.question("l".into(), "2".into(), frame("q"));
        });
        let mut listener = Listener::new(news.clone(), 0, None);
        assert_eq!(all(&mut listener), ["1? p", "2? q"]);
        tell.send_modify(|said| said.withdraw(0));
        assert_eq!(all(&mut listener), ["withdrawn 0"]);
        assert_eq!(all(&mut Listener::new(news.clone(), 0, None)), ["2? q"]);
        tell.send_modify(|said| {
            said.end(End::Unavailable);
        });
        assert_eq!(next(&mut listener).as_deref(), Some("withdrawn 1"));
        assert_eq!(next(&mut listener).as_deref(), Some("end"));
        assert_eq!(next(&mut Listener::new(news, 0, None)).as_deref(), Some("end"), "it was never asked here");
    }

    #[test]
    fn what_is_not_heard_in_time_makes_room_for_what_is_new() {
        let (tell, news) = watch::channel(Said::default());
        tell.send_modify(|said| (0..100).for_each(|_| said.word(frame("x"))));
        let heard = all(&mut Listener::new(news.clone(), 0, None));
        assert_eq!((heard.len(), &*heard[0]), (WORDS_MAX, "37 x"));
        tell.send_modify(|said| {
            said.word(Bytes::from(vec![b'y'; WORDS_BYTES_MAX + 1]));
            said.word(Bytes::from(vec![b'z'; WORDS_BYTES_MAX]));
        });
        let heard = all(&mut Listener::new(news, 0, None));
        assert_eq!(heard.len(), 1);
        assert!(heard[0].starts_with("101 z"));
    }

    #[tokio::test]
    async fn a_run_learns_whether_its_end_was_heard() {
        let (tell, news) = watch::channel(Said::default());
        let listening = || {
            let (heard, hears) = oneshot::channel();
            (Listener::new(news.clone(), 0, Some(heard)), hears)
        };
        let (gone, hears) = listening();
        drop(gone);
        assert!(hears.await.is_err());
        let (mut early, early_hears) = listening();
        assert!(early.end().is_none());
        tell.send_modify(|said| {
            said.end(End::Unwanted);
        });
        assert!(matches!(early.end(), Some(End::Unwanted)));
        assert!(early_hears.await.is_ok());
        let (mut late, late_hears) = listening();
        assert!(matches!(late.next().await, Some(Word::End(_))));
        assert!(late_hears.await.is_ok());
    }
}
