//! What an agent does next: a function of what has happened, apart from everything that happens.

use serde::{Deserialize, Serialize};

use super::model::{Message, Said, Stop, ToolAnswer, ToolCall, Usage};

/// Calls of one answer that are made; the others are answered with an error.
const CALLS_AT_ONCE_MAX: usize = 32;

/// Something that has happened: an entry of the run's journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// The model has answered.
    Said {
        said: Said,
        /// How long the run had worked by then, in milliseconds.
        worked_ms: u64,
    },
    /// These calls of the model's last answer are about to be made; what becomes of them is unknown until they are answered.
    Begun { calls: Vec<usize> },
    /// A call of the model's last answer has its answer.
    Answered { call: usize, answer: ToolAnswer, worked_ms: u64 },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    /// Ask the model.
    Ask {
        /// The largest answer.
        tokens_max: u64,
    },
    /// Make these calls of the model's last answer.
    Call(Vec<usize>),
    /// Nothing more.
    End(End),
}

/// Why a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The model has finished.
    Done,
    /// The model's answer became too long.
    Length,
    /// The model, or its provider, will not answer.
    Refused,
    /// It has taken as many steps as it may.
    Steps,
    /// It has used as many tokens as it may.
    Tokens,
    /// It has cost as much as it may.
    Money,
    /// It has worked for as long as it may.
    Time,
}

/// What a run may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) steps: u32,
    pub(crate) tokens: u64,
    /// Millionths of a USD; 0 is no limit.
    pub(crate) micro_usd: u64,
    pub(crate) answer_tokens: u64,
}

/// What has happened so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct State {
    history: Vec<Message>,
    /// The calls of the model's last answer.
    open: Vec<Open>,
    steps: u32,
    usage: Usage,
    worked_ms: u64,
}

#[derive(Debug, Clone, PartialEq)]
enum Open {
    Waiting,
    Begun,
    Answered(ToolAnswer),
}

impl State {
    /// Before anything has happened.
    pub(crate) fn new(message: String) -> Self {
        Self {
            history: vec![Message::Person(message)],
            open: Vec::new(),
            steps: 0,
            usage: Usage::default(),
            worked_ms: 0,
        }
    }

    /// Something has happened. What cannot have happened is left out.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Said { said, worked_ms } => {
                self.steps += 1;
                self.usage.add(&said.usage);
                self.worked_ms = self.worked_ms.max(worked_ms);
                self.open = said.calls.iter().map(|_| Open::Waiting).collect();
                self.history.push(Message::Model(said));
            }
            Event::Begun { calls } => {
                for call in calls {
                    if let Some(open @ Open::Waiting) = self.open.get_mut(call) {
                        *open = Open::Begun;
                    }
                }
            }
            Event::Answered { call, answer, worked_ms } => {
                self.worked_ms = self.worked_ms.max(worked_ms);
                match self.open.get_mut(call) {
                    Some(open @ (Open::Waiting | Open::Begun)) => *open = Open::Answered(answer),
                    Some(Open::Answered(_)) | None => return,
                }
                let answered = |open: &Open| match open {
                    Open::Answered(answer) => Some(answer.clone()),
                    Open::Waiting | Open::Begun => None,
                };
                if let Some(answers) = self.open.iter().map(answered).collect() {
                    self.history.push(Message::Tools(answers));
                    self.open.clear();
                }
            }
        }
    }

    /// What is to be done now. `cost` is what the usage so far costs, in millionths of a USD.
    pub(crate) fn next(&self, limits: &Limits, cost: u64) -> Next {
        let waiting: Vec<usize> = self.numbered(|open| matches!(open, Open::Waiting));
        if !self.open.is_empty() {
            return Next::Call(waiting);
        }
        if let Some(Message::Model(said)) = self.history.last() {
            return Next::End(match said.stop {
                Stop::Done => End::Done,
                Stop::Length => End::Length,
                Stop::Refused => End::Refused,
            });
        }
        let left = limits.tokens.saturating_sub(self.usage.tokens());
        if self.steps >= limits.steps {
            Next::End(End::Steps)
        } else if left == 0 {
            Next::End(End::Tokens)
        } else if limits.micro_usd > 0 && cost >= limits.micro_usd {
            Next::End(End::Money)
        } else {
            Next::Ask { tokens_max: limits.answer_tokens.min(left) }
        }
    }

    /// Calls that a former attempt began and that have no answer.
    pub(crate) fn lost(&self) -> Vec<usize> {
        self.numbered(|open| matches!(open, Open::Begun))
    }

    fn numbered(&self, is: impl Fn(&Open) -> bool) -> Vec<usize> {
        self.open.iter().enumerate().filter(|(_, open)| is(open)).map(|(at, _)| at).collect()
    }

    /// A call of the model's last answer.
    pub(crate) fn call(&self, at: usize) -> Option<&ToolCall> {
        self.history
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::Model(said) => Some(&said.calls),
                Message::Person(_) | Message::Tools(_) => None,
            })?
            .get(at)
    }

    /// Whether a call is one too many.
    pub(crate) fn is_too_many(at: usize) -> bool {
        at >= CALLS_AT_ONCE_MAX
    }

    pub(crate) fn history(&self) -> &[Message] {
        &self.history
    }

    /// How often the model has answered.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// How long all attempts together have worked, in milliseconds, as far as it is written down.
    pub(crate) fn worked_ms(&self) -> u64 {
        self.worked_ms
    }

    /// What has been found so far: all that the model said, or else what its tools last answered.
    pub(crate) fn found(&self) -> String {
        let said = self.history.iter().filter_map(|message| match message {
            Message::Model(said) if !said.text.trim().is_empty() => Some(said.text.trim()),
            Message::Model(_) | Message::Person(_) | Message::Tools(_) => None,
        });
        let said = said.collect::<Vec<_>>().join("\n\n");
        if !said.is_empty() {
            return said;
        }
        let answers = self.history.iter().rev().find_map(|message| match message {
            Message::Tools(answers) => Some(answers),
            Message::Person(_) | Message::Model(_) => None,
        });
        answers.map(|all| all.iter().map(|one| &*one.text).collect::<Vec<_>>().join("\n\n")).unwrap_or_default()
    }

    /// The model's last words.
    pub(crate) fn last(&self) -> &str {
        match self.history.last() {
            Some(Message::Model(said)) => said.text.trim(),
            Some(Message::Person(_) | Message::Tools(_)) | None => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { steps: 3, tokens: 1000, micro_usd: 50, answer_tokens: 400 };

    fn said(text: &str, calls: usize) -> Event {
        let call = |nth: usize| ToolCall { id: format!("c{nth}"), name: "t".into(), arguments: "{}".into() };
        let usage = Usage { input: 200, output: 100, ..Usage::default() };
        let said = Said { text: text.into(), calls: (0..calls).map(call).collect(), stop: Stop::Done, usage };
        Event::Said { said, worked_ms: 10 }
    }

    fn answered(call: usize) -> Event {
        let answer = ToolAnswer { text: format!("a{call}"), is_error: false };
        Event::Answered { call, answer, worked_ms: 20 }
    }

    fn after(events: impl IntoIterator<Item = Event>) -> State {
        let mut state = State::new("do it".into());
        events.into_iter().for_each(|event| state.apply(event));
        state
    }

    #[test]
    fn the_model_is_asked_until_it_calls_no_more() {
        assert_eq!(after([]).next(&LIMITS, 0), Next::Ask { tokens_max: 400 });
        assert_eq!(after([said("", 2)]).next(&LIMITS, 0), Next::Call(vec![0, 1]));
        assert_eq!(after([said("", 2), answered(1)]).next(&LIMITS, 0), Next::Call(vec![0]));
        let both = after([said("", 2), answered(1), answered(0)]);
        assert_eq!(both.next(&LIMITS, 0), Next::Ask { tokens_max: 400 });
        let Some(Message::Tools(answers)) = both.history().last() else { panic!("no answers") };
        assert_eq!(answers.iter().map(|answer| &*answer.text).collect::<Vec<_>>(), ["a0", "a1"]);
        let done = after([said("", 1), answered(0), said("all done", 0)]);
        assert_eq!((done.next(&LIMITS, 0), done.last()), (Next::End(End::Done), "all done"));
    }

    #[test]
    fn a_limit_ends_it_and_keeps_what_was_found() {
        let two = after([said("one", 1), answered(0), said("two", 1), answered(0)]);
        assert_eq!(two.next(&LIMITS, 0), Next::Ask { tokens_max: 400 }, "400 tokens are left");
        assert_eq!(two.next(&Limits { tokens: 700, ..LIMITS }, 0), Next::Ask { tokens_max: 100 });
        assert_eq!(two.next(&Limits { tokens: 600, ..LIMITS }, 0), Next::End(End::Tokens));
        assert_eq!(two.next(&Limits { steps: 2, ..LIMITS }, 0), Next::End(End::Steps));
        assert_eq!(two.next(&LIMITS, 50), Next::End(End::Money));
        assert_eq!(two.found(), "one\n\ntwo");
        assert_eq!(after([said("", 1), answered(0)]).found(), "a0");
    }

    #[test]
    fn what_was_begun_and_not_answered_is_lost_and_not_made_again() {
        let lost = after([said("", 3), Event::Begun { calls: vec![0, 1] }, answered(1)]);
        assert_eq!((lost.lost(), lost.next(&LIMITS, 0)), (vec![0], Next::Call(vec![2])));
    }

    #[test]
    fn what_cannot_have_happened_changes_nothing() {
        let mut state = after([said("", 1), answered(0)]);
        let before = state.clone();
        state.apply(answered(0));
        state.apply(answered(7));
        state.apply(Event::Begun { calls: vec![0, 9] });
        assert_eq!(state, before);
    }

    #[test]
    fn the_same_events_read_from_a_journal_give_the_same_state() {
        let events = [said("", 2), Event::Begun { calls: vec![1] }, answered(1), answered(0), said("x", 0)];
        let journal: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        let read = journal.iter().map(|entry| serde_json::from_str(entry).unwrap());
        assert_eq!(after(read), after(events));
    }
}
