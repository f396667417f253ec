//! What may happen to a task: each verb takes the present task and answers with the next one, or a refusal.
//!
//! A verb says nothing of time: the store stamps `updated_at` with its own clock as it commits.

use crate::audit::Event;
use crate::budget::{AMOUNT_MAX, Amount};
use crate::input::{self, Input, InputKey, InputRequest, InputResponse, InputState, QUESTIONS_MAX, Question};
use crate::limits::{STATUS_MESSAGE_BYTES_MAX, cut};
use crate::refusal::Refusal;
use crate::task::{Fence, Interruption, Lease, OnInterrupt, Outcome, Phase, Progress, Retry, Task};
use crate::time::Timestamp;

/// A task's next value. To be committed if the stored version is still `task.version - 1`.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The next value.
    pub task: Task,
    /// What the audit log records, in the same transaction.
    pub event: Option<Event>,
    /// What to store as outcome, when the task ends.
    pub outcome: Option<Outcome>,
    /// Answers for its worker to collect: the number of the question, from 1.
    pub responses: Vec<(u32, InputResponse)>,
    /// Whether its questions are other than before; false only if they surely are not.
    pub moves_inputs: bool,
}

impl Task {
    /// A worker takes it.
    pub fn claim(mut self, lease: Lease) -> Result<Change, Refusal> {
        match self.phase {
            Phase::Queued => {
                self.phase = Phase::Running(lease);
                self.attempt += 1;
                Ok(self.next(None))
            }
            Phase::Running(_) => Err(Refusal::Fenced),
            Phase::Ended(ending) => Err(Refusal::AlreadyEnded(ending)),
        }
    }

    /// Its worker says how it goes. What is `None` stays as it was; progress that does not rise is dropped.
    pub fn report(
        mut self,
        fence: &Fence,
        message: Option<String>,
        progress: Option<Progress>,
    ) -> Result<Change, Refusal> {
        self.held_under(fence)?;
        if let Some(message) = message {
            self.status_message = Some(cut(&message, STATUS_MESSAGE_BYTES_MAX).to_owned());
        }
        if let Some(mut progress) = progress
            && self.progress.as_ref().is_none_or(|former| progress.progress > former.progress)
        {
            progress.message = progress.message.map(|message| cut(&message, STATUS_MESSAGE_BYTES_MAX).to_owned());
            self.progress = Some(progress);
        }
        Ok(self.next(None))
    }

    /// Its worker says what it has used so far, all attempts together; less than before changes nothing of it.
    pub fn spend(mut self, fence: &Fence, total: Amount) -> Result<Change, Refusal> {
        self.held_under(fence)?;
        let most = Amount { units: AMOUNT_MAX, micro_usd: AMOUNT_MAX };
        self.spent = Some(self.spent.unwrap_or_default().max(total.min(most)));
        Ok(self.next(None))
    }

    /// Its worker asks its owner. The same questions again change nothing ([`has_asked`](Self::has_asked)), which is for
    /// the store to see first.
    pub fn request_input(
        mut self,
        fence: &Fence,
        requests: Vec<InputRequest>,
        until: Timestamp,
    ) -> Result<Change, Refusal> {
        self.held_under(fence)?;
        for InputRequest { key, question } in requests {
            // Inside a task a client's model and roots are out of reach (docs/PROTOCOL.md).
            let is_for_people = matches!(question, Question::Form { .. } | Question::Url { .. });
            if !is_for_people
                || !self.client.can_answer(&question)
                || !input::is_key(&key)
                || input::vet(&question).is_err()
            {
                return Err(Refusal::Unaskable);
            }
            match self.inputs.iter().find(|input| input.key == key) {
                Some(Input { state: InputState::Open { question: former, .. }, .. }) if *former == question => continue,
                Some(_) => return Err(Refusal::KeyUsed(key)),
                None if self.inputs.len() == QUESTIONS_MAX => return Err(Refusal::TooManyQuestions),
                None => self.inputs.push(Input { key, state: InputState::Open { question, until } }),
            }
        }
        Ok(self.next(Some(Event::InputRequired)))
    }

    /// Its worker no longer wants the answers to these questions. What it has not asked yet, by whatever way that may still
    /// be under way, it will never ask; what is closed stays so.
    pub fn withdraw(mut self, fence: &Fence, keys: &[String]) -> Result<Change, Refusal> {
        self.held_under(fence)?;
        let mut changes = false;
        for key in keys {
            let is_full = self.inputs.len() == QUESTIONS_MAX;
            match self.inputs.iter_mut().find(|input| input.key == *key) {
                Some(Input { state: InputState::Closed, .. }) => {}
                Some(input) => (input.state, changes) = (InputState::Closed, true),
                // It can never be asked.
                None if is_full || !input::is_key(key) => {}
                None => {
                    self.inputs.push(Input { key: key.clone(), state: InputState::Closed });
                    changes = true;
                }
            }
        }
        match changes {
            true => Ok(Change { moves_inputs: true, ..self.next(None) }),
            false => Err(Refusal::NotAsked),
        }
    }

    /// Its owner answers. What does not fit its question counts as a decline; what is not open is left out.
    pub fn respond(mut self, responses: Vec<(InputKey, InputResponse)>) -> Result<Change, Refusal> {
        self.open()?;
        let mut taken = Vec::new();
        for (key, response) in responses {
            let at = match key {
                InputKey::Named(key) => self.inputs.iter().position(|input| input.key == key),
                InputKey::Nth(nth) => (nth as usize).checked_sub(1),
            };
            let Some((at, input)) = at.and_then(|at| Some((at, self.inputs.get_mut(at)?))) else { continue };
            if let InputState::Open { question, .. } = std::mem::replace(&mut input.state, InputState::Closed) {
                taken.push((at as u32 + 1, input::fit(&question, response)));
            }
        }
        self.answered(taken)
    }

    /// Its owner did not answer in time.
    pub fn lapse(mut self, now: Timestamp) -> Result<Change, Refusal> {
        self.open()?;
        let mut taken = Vec::new();
        for (nth, input) in (1..).zip(&mut self.inputs) {
            if matches!(input.state, InputState::Open { until, .. } if until <= now) {
                input.state = InputState::Closed;
                taken.push((nth, InputResponse::Decline));
            }
        }
        self.answered(taken)
    }

    fn answered(self, responses: Vec<(u32, InputResponse)>) -> Result<Change, Refusal> {
        if responses.is_empty() {
            return Err(Refusal::NotAsked);
        }
        Ok(Change { responses, ..self.next(Some(Event::InputAnswered)) })
    }

    /// Its worker is done.
    pub fn complete(self, fence: &Fence, outcome: Outcome) -> Result<Change, Refusal> {
        self.held_under(fence)?;
        Ok(match outcome {
            Outcome::Interrupted(why) => self.interrupted(why),
            Outcome::Result { .. } | Outcome::Error(_) | Outcome::Cancelled => self.end(outcome),
        })
    }

    /// Its owner no longer wants it.
    pub fn cancel(self) -> Result<Change, Refusal> {
        self.open()?;
        Ok(self.end(Outcome::Cancelled))
    }

    /// Its lease ran out: nobody has heard of its worker.
    pub fn interrupt(self, now: Timestamp) -> Result<Change, Refusal> {
        self.open()?;
        match &self.phase {
            Phase::Running(lease) if lease.until <= now => Ok(self.interrupted(Interruption::WorkerLost)),
            Phase::Running(_) | Phase::Queued | Phase::Ended(_) => Err(Refusal::Fenced),
        }
    }

    /// Its time to live ran out before it was done.
    pub fn expire(self, now: Timestamp) -> Result<Change, Refusal> {
        self.open()?;
        match self.expires_at() {
            Some(end) if end <= now => Ok(self.end(Outcome::Interrupted(Interruption::Expired))),
            Some(_) | None => Err(Refusal::Fenced),
        }
    }

    /// Its worker can do no more for it: another one may, as often as its tool allows.
    fn interrupted(mut self, why: Interruption) -> Change {
        let Retry { on_interrupt, max_attempts } = self.retry;
        let is_final = match on_interrupt {
            OnInterrupt::Fail => true,
            OnInterrupt::Requeue | OnInterrupt::Resume => self.attempt >= max_attempts || why == Interruption::Expired,
        };
        if is_final {
            return self.end(Outcome::Interrupted(why));
        }
        self.phase = Phase::Queued;
        self.status_message = Some(format!("{}; it waits for another one", why.cause()));
        self.withdraw_all();
        Change { moves_inputs: true, ..self.next(None) }
    }

    /// Nobody waits for its answers any more.
    fn withdraw_all(&mut self) {
        self.inputs.iter_mut().for_each(|input| input.state = InputState::Closed);
    }

    fn open(&self) -> Result<(), Refusal> {
        match self.ending() {
            Some(ending) => Err(Refusal::AlreadyEnded(ending)),
            None => Ok(()),
        }
    }

    /// Whether a worker still holds it.
    pub fn held_under(&self, fence: &Fence) -> Result<(), Refusal> {
        match &self.phase {
            Phase::Running(lease) if lease.token == fence.token && self.attempt == fence.attempt => Ok(()),
            Phase::Running(_) | Phase::Queued => Err(Refusal::Fenced),
            Phase::Ended(ending) => Err(Refusal::AlreadyEnded(*ending)),
        }
    }

    fn end(mut self, outcome: Outcome) -> Change {
        let ending = outcome.ending();
        // A failed task should say why (MCP 2025-11-25, basic/utilities/tasks, "Task Status").
        match &outcome {
            Outcome::Error(error) => {
                self.status_message = Some(cut(&error.message, STATUS_MESSAGE_BYTES_MAX).to_owned())
            }
            Outcome::Interrupted(why) => self.status_message = Some(why.sentence().to_owned()),
            // What it was doing when it was cancelled is no longer so.
            Outcome::Cancelled => self.status_message = Some("The task was cancelled".to_owned()),
            // The worker has said why, if the tool failed.
            Outcome::Result { .. } => {}
        }
        self.phase = Phase::Ended(ending);
        self.withdraw_all();
        Change { outcome: Some(outcome), ..self.next(Some(Event::of(ending))) }
    }

    fn next(mut self, event: Option<Event>) -> Change {
        self.version += 1;
        let moves_inputs = event.is_some();
        Change { task: self, event, outcome: None, responses: Vec::new(), moves_inputs }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::client::ClientCapabilities;
    use crate::id::{LeaseToken, TaskId, TenantId, WorkerId};
    use crate::principal::{Caller, Principal};
    use crate::task::{CallError, Ending};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const EARLIER: Timestamp = Timestamp::from_micros(0);

    fn lease(token: &str) -> Lease {
        Lease {
            worker: WorkerId { name: "w".into(), incarnation: "1".into() },
            token: LeaseToken(token.into()),
            until: NOW,
        }
    }

    fn fence(attempt: u32, token: &str) -> Fence {
        Fence { id: TaskId::from_random(1), attempt, token: LeaseToken(token.into()) }
    }

    fn task(phase: Phase) -> Task {
        Task {
            id: TaskId::from_random(1),
            owner: Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) },
            tool: "echo".into(),
            attempt: u32::from(!matches!(phase, Phase::Queued)),
            phase,
            version: 3,
            status_message: None,
            progress: None,
            progress_token: None,
            session: None,
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
            ttl_ms: Some(1000),
            client: ClientCapabilities { elicitation_form: true, elicitation_url: true, sampling: true, roots: true },
            retry: Retry::default(),
            inputs: Vec::new(),
            reserved: None,
            spent: None,
        }
    }

    fn running() -> Task {
        task(Phase::Running(lease("x")))
    }

    fn form(key: &str, message: &str) -> InputRequest {
        let schema = Bytes::from_static(br#"{"type":"object","properties":{"colour":{"type":"string"}}}"#);
        InputRequest { key: key.into(), question: Question::Form { message: message.into(), schema } }
    }

    fn ask(task: Task, requests: Vec<InputRequest>) -> Result<Task, Refusal> {
        Ok(task.request_input(&fence(1, "x"), requests, NOW)?.task)
    }

    fn asking(keys: &[&str]) -> Task {
        ask(running(), keys.iter().map(|key| form(key, "Which?")).collect()).unwrap()
    }

    fn open_keys(task: &Task) -> Vec<&str> {
        task.open_inputs().map(|(_, key, _)| key).collect()
    }

    fn named(key: &str) -> InputKey {
        InputKey::Named(key.into())
    }

    fn blue() -> InputResponse {
        InputResponse::Accept(Some(Bytes::from_static(br#"{"colour":"blue"}"#)))
    }

    fn done() -> Outcome {
        Outcome::Result { is_error: false, body: Bytes::from_static(b"{}") }
    }

    fn stands(task: &Task) -> &'static str {
        match task.phase {
            Phase::Queued => "queued",
            Phase::Running(_) if task.is_asking() => "asking",
            Phase::Running(_) => "running",
            Phase::Ended(_) => "ended",
        }
    }

    /// Every verb from every phase: where it leads, or why not.
    #[test]
    fn nothing_is_possible_by_accident() {
        let ended = Ending::Result { is_error: true };
        let over = || Err(Refusal::AlreadyEnded(ended));
        let fenced = || Err(Refusal::Fenced);
        let unasked = || Err(Refusal::NotAsked);
        let tasks = [task(Phase::Queued), running(), asking(&["k"]), task(Phase::Ended(ended))];
        type Verb = fn(Task) -> Result<Change, Refusal>;
        type Answers = [Result<&'static str, Refusal>; 4];
        let table: [(&str, Verb, Option<Event>, Answers); 17] = [
            ("claim", |t| t.claim(lease("y")), None, [Ok("running"), fenced(), fenced(), over()]),
            (
                "report",
                |t| t.report(&fence(1, "x"), Some("hm".into()), None),
                None,
                [fenced(), Ok("running"), Ok("asking"), over()],
            ),
            (
                "request_input",
                |t| t.request_input(&fence(1, "x"), vec![form("new", "?")], NOW),
                Some(Event::InputRequired),
                [fenced(), Ok("asking"), Ok("asking"), over()],
            ),
            (
                "request_input of another attempt",
                |t| t.request_input(&fence(2, "x"), vec![form("new", "?")], NOW),
                None,
                [fenced(), fenced(), fenced(), over()],
            ),
            (
                "request_input under another token",
                |t| t.request_input(&fence(1, "z"), vec![form("new", "?")], NOW),
                None,
                [fenced(), fenced(), fenced(), over()],
            ),
            (
                "withdraw",
                |t| t.withdraw(&fence(1, "x"), &["k".into()]),
                None,
                [fenced(), Ok("running"), Ok("running"), over()],
            ),
            (
                "withdraw of another attempt",
                |t| t.withdraw(&fence(2, "x"), &["k".into()]),
                None,
                [fenced(), fenced(), fenced(), over()],
            ),
            (
                "respond",
                |t| t.respond(vec![(named("k"), blue())]),
                Some(Event::InputAnswered),
                [unasked(), unasked(), Ok("running"), over()],
            ),
            (
                "respond to nothing",
                |t| t.respond(vec![(named("new"), blue())]),
                None,
                [unasked(), unasked(), unasked(), over()],
            ),
            ("lapse", |t| t.lapse(NOW), Some(Event::InputAnswered), [unasked(), unasked(), Ok("running"), over()]),
            ("lapse too early", |t| t.lapse(EARLIER), None, [unasked(), unasked(), unasked(), over()]),
            (
                "complete",
                |t| t.complete(&fence(1, "x"), done()),
                Some(Event::Completed),
                [fenced(), Ok("ended"), Ok("ended"), over()],
            ),
            (
                "complete of another attempt",
                |t| t.complete(&fence(2, "x"), done()),
                None,
                [fenced(), fenced(), fenced(), over()],
            ),
            (
                "complete under another token",
                |t| t.complete(&fence(1, "z"), done()),
                None,
                [fenced(), fenced(), fenced(), over()],
            ),
            ("cancel", Task::cancel, Some(Event::Cancelled), [Ok("ended"), Ok("ended"), Ok("ended"), over()]),
            ("interrupt", |t| t.interrupt(NOW), Some(Event::Failed), [fenced(), Ok("ended"), Ok("ended"), over()]),
            ("expire", |t| t.expire(NOW), Some(Event::Failed), [Ok("ended"), Ok("ended"), Ok("ended"), over()]),
        ];
        for (name, verb, event, answers) in table {
            for (before, answer) in tasks.iter().zip(answers) {
                let from = stands(before);
                match (verb(before.clone()), answer) {
                    (Err(refusal), Err(expected)) => assert_eq!(refusal, expected, "{name} from {from}"),
                    (Ok(change), Ok(expected)) => {
                        assert_eq!(stands(&change.task), expected, "{name} from {from}");
                        assert_eq!(change.task.version, before.version + 1);
                        assert_eq!(change.outcome.is_some(), expected == "ended");
                        assert_eq!(change.event, event, "{name} from {from}");
                        assert_eq!(!change.responses.is_empty(), event == Some(Event::InputAnswered));
                        assert!(expected == "asking" || !change.task.is_asking(), "an end withdraws what is asked");
                        assert_eq!(change.task.is_asking(), change.task.input_until().is_some());
                    }
                    (got, expected) => panic!("{name} from {from}: {got:?}, not {expected:?}"),
                }
            }
        }
        assert_eq!(running().interrupt(EARLIER), Err(Refusal::Fenced), "its lease has not run out");
    }

    #[test]
    fn a_task_whose_worker_is_lost_is_handed_out_again_as_often_as_its_tool_allows() {
        let lost = |task: Task| task.interrupt(NOW).unwrap();
        let drained = |task: Task| {
            let fence = fence(task.attempt, "x");
            task.complete(&fence, Outcome::Interrupted(Interruption::Drained)).unwrap()
        };
        for (policy, attempt, max_attempts, again) in [
            (OnInterrupt::Fail, 1, 3, false),
            (OnInterrupt::Requeue, 1, 3, true),
            (OnInterrupt::Requeue, 2, 3, true),
            (OnInterrupt::Requeue, 3, 3, false),
            (OnInterrupt::Resume, 2, 3, true),
            (OnInterrupt::Resume, 1, 1, false),
            (OnInterrupt::Resume, 1, 0, false),
        ] {
            let retry = Retry { on_interrupt: policy, max_attempts };
            let task = Task { attempt, retry, ..asking(&["k"]) };
            for (verb, why, change) in
                [("lost", "stopped responding", lost(task.clone())), ("drained", "shut down", drained(task.clone()))]
            {
                assert_eq!(change.task.phase == Phase::Queued, again, "{verb} {policy:?} {attempt} of {max_attempts}");
                assert_eq!(change.outcome.is_none(), again);
                assert_eq!(change.event, (!again).then_some(Event::Failed));
                assert!(!change.task.is_asking(), "what it asked is withdrawn");
                assert!(change.task.status_message.unwrap().contains(why));
                assert_eq!(change.task.version, task.version + 1);
            }
            // Its time to live is over for all workers.
            assert!(task.expire(NOW).unwrap().outcome.is_some());
        }
        let retry = Retry { on_interrupt: OnInterrupt::Resume, max_attempts: 3 };
        let again = lost(Task { retry, ..asking(&["k"]) }).task;
        assert_eq!(again.held_under(&fence(1, "x")), Err(Refusal::Fenced), "its former worker has lost it for good");
        let second = again.claim(lease("y")).unwrap().task;
        assert_eq!(second.attempt, 2);
        assert_eq!(
            second.request_input(&fence(2, "y"), vec![form("k", "Which?")], NOW),
            Err(Refusal::KeyUsed("k".into()))
        );
    }

    #[test]
    fn a_key_names_one_question_for_the_life_of_its_task() {
        let task = asking(&["a", "b"]);
        assert!(task.has_asked(&[form("a", "Which?")]) && task.has_asked(&[form("b", "Which?"), form("a", "Which?")]));
        assert!(!task.has_asked(&[form("a", "Which?"), form("c", "Which?")]));
        assert!(!task.has_asked(&[form("a", "What?")]));
        let used = |key: &str| Err(Refusal::KeyUsed(key.into()));
        assert_eq!(ask(task.clone(), vec![form("c", "?"), form("a", "What?")]), used("a"));
        assert_eq!(ask(running(), vec![form("a", "One?"), form("a", "Two?")]), used("a"));
        // The same again beside a new one asks the new one alone.
        let more = ask(task.clone(), vec![form("a", "Which?"), form("c", "Which?")]).unwrap();
        assert_eq!(open_keys(&more), ["a", "b", "c"]);
        // Its answer does not free a key.
        let answered = task.respond(vec![(named("a"), blue())]).unwrap().task;
        assert_eq!(ask(answered.clone(), vec![form("a", "Which?")]), used("a"));
        assert!(answered.has_asked(&[form("a", "Which?")]), "what is closed is known by its key");
        assert_eq!(open_keys(&answered), ["b"]);
    }

    #[test]
    fn a_task_asks_so_many_questions_and_no_more() {
        let many = |from: usize, to: usize| (from..to).map(|at| form(&at.to_string(), "?")).collect::<Vec<_>>();
        let task = ask(running(), many(0, QUESTIONS_MAX)).unwrap();
        assert_eq!(ask(task.clone(), many(0, QUESTIONS_MAX)).unwrap().inputs, task.inputs);
        assert_eq!(ask(task.clone(), many(1, QUESTIONS_MAX + 1)), Err(Refusal::TooManyQuestions));
        // Answered ones count.
        let answered = task.lapse(NOW).unwrap().task;
        assert_eq!(ask(answered, many(QUESTIONS_MAX, QUESTIONS_MAX + 1)), Err(Refusal::TooManyQuestions));
    }

    #[test]
    fn what_may_not_be_shown_or_cannot_be_answered_is_not_asked() {
        let url = |url: &str| Question::Url { message: "Look".into(), url: url.into() };
        let asked = |key: &str, question| InputRequest { key: key.into(), question };
        let secret = Bytes::from_static(br#"{"type":"object","properties":{"password":{"type":"string"}}}"#);
        for request in [
            asked("k", Question::Sample { params: Bytes::from_static(b"{}") }),
            asked("k", Question::Roots),
            asked("k", url("http://example.com/")),
            asked("k", Question::Form { message: "Hm".into(), schema: Bytes::from_static(b"[]") }),
            asked("k", Question::Form { message: "Hm".into(), schema: secret }),
            form("k", &"x".repeat(input::QUESTION_BYTES_MAX + 1)),
            form("", "Which?"),
            form("a key", "Which?"),
            form(&"k".repeat(input::KEY_BYTES_MAX + 1), "Which?"),
        ] {
            let answer = ask(running(), vec![form("good", "Which?"), request.clone()]);
            assert_eq!(answer, Err(Refusal::Unaskable), "{request:?}");
        }
        let (form, url) = (form("k", "Which?"), asked("k", url("https://longhaul.dev/")));
        for (client, askable) in [
            (ClientCapabilities { elicitation_form: true, ..Default::default() }, [true, false]),
            (ClientCapabilities { elicitation_url: true, ..Default::default() }, [false, true]),
            (ClientCapabilities { sampling: true, roots: true, ..Default::default() }, [false, false]),
        ] {
            let answers = [&form, &url].map(|request| ask(Task { client, ..running() }, vec![request.clone()]).is_ok());
            assert_eq!(answers, askable, "{client:?}");
        }
    }

    #[test]
    fn each_question_takes_its_first_answer_and_the_rest_wait_on() {
        let task = asking(&["a", "b", "c", "d"]);
        let other = InputResponse::Accept(Some(Bytes::from_static(br#"{"colour":"red"}"#)));
        let first = task.respond(vec![
            (InputKey::Nth(2), blue()),
            (named("b"), other.clone()),
            (named("nobody"), blue()),
            (InputKey::Nth(0), blue()),
            (InputKey::Nth(5), blue()),
            (InputKey::Nth(u32::MAX), blue()),
            (named("d"), InputResponse::Cancel),
        ]);
        let first = first.unwrap();
        assert_eq!(first.responses, [(2, blue()), (4, InputResponse::Cancel)]);
        assert_eq!(open_keys(&first.task), ["a", "c"]);
        assert_eq!(first.task.clone().respond(vec![(named("b"), other.clone())]), Err(Refusal::NotAsked));
        // What does not fit its question counts as a decline, and that too is an answer.
        let odd = InputResponse::Result(Bytes::from_static(b"{}"));
        let second = first.task.respond(vec![(named("a"), odd), (InputKey::Nth(3), other.clone())]).unwrap();
        assert_eq!(second.responses, [(1, InputResponse::Decline), (3, other)]);
        assert!(!second.task.is_asking());
        assert_eq!(second.task.inputs.len(), 4);
    }

    #[test]
    fn a_question_that_its_worker_withdraws_is_closed_without_an_answer_and_its_key_stays_used() {
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let withdraw = |task: Task, of: &[&str]| task.withdraw(&fence(1, "x"), &keys(of));
        let first = withdraw(asking(&["a", "b"]), &["a"]).unwrap();
        assert_eq!((open_keys(&first.task), first.responses.as_slice(), first.event), (vec!["b"], [].as_slice(), None));
        assert!(first.moves_inputs);
        assert_eq!(withdraw(first.task.clone(), &["a"]), Err(Refusal::NotAsked), "once is enough");
        assert_eq!(first.task.clone().respond(vec![(named("a"), blue())]), Err(Refusal::NotAsked), "it is too late");
        assert_eq!(ask(first.task.clone(), vec![form("a", "Which?")]), Err(Refusal::KeyUsed("a".into())));
        // It may overtake the very request that asks.
        let early = withdraw(first.task, &["b", "c"]).unwrap().task;
        assert!(!early.is_asking() && early.has_asked(&[form("c", "Which?")]));
        assert_eq!(early.inputs.len(), 3);
        assert_eq!(withdraw(running(), &["no key"]), Err(Refusal::NotAsked));
        let many: Vec<_> = (0..QUESTIONS_MAX).map(|at| at.to_string()).collect();
        let full = running().withdraw(&fence(1, "x"), &many).unwrap().task;
        assert_eq!(withdraw(full, &["more"]), Err(Refusal::NotAsked));
    }

    #[test]
    fn only_the_questions_whose_time_is_over_lapse() {
        let later = NOW.plus(std::time::Duration::from_micros(1));
        let task = asking(&["a"]).request_input(&fence(1, "x"), vec![form("b", "Which?")], later).unwrap().task;
        assert_eq!(task.input_until(), Some(NOW));
        let lapsed = task.lapse(NOW).unwrap();
        assert_eq!(lapsed.responses, [(1, InputResponse::Decline)]);
        assert_eq!((open_keys(&lapsed.task), lapsed.task.input_until()), (vec!["b"], Some(later)));
    }

    #[test]
    fn a_task_without_end_never_expires() {
        let mut task = task(Phase::Queued);
        task.ttl_ms = None;
        assert_eq!(task.expire(Timestamp::from_micros(i64::MAX)), Err(Refusal::Fenced));
    }

    #[test]
    fn progress_only_rises_and_messages_are_cut() {
        let progress = |value| Some(Progress { progress: value, total: None, message: Some("é".repeat(1000)) });
        let task = task(Phase::Running(lease("x")));
        let task = task.report(&fence(1, "x"), Some("é".repeat(1000)), progress(2.0)).unwrap().task;
        assert_eq!(task.status_message.as_ref().unwrap().len(), STATUS_MESSAGE_BYTES_MAX);
        assert_eq!(task.progress.as_ref().unwrap().message.as_ref().unwrap().len(), STATUS_MESSAGE_BYTES_MAX);
        for not_higher in [1.0, 2.0, f64::NAN] {
            let after = task.clone().report(&fence(1, "x"), None, progress(not_higher)).unwrap().task;
            assert_eq!(after.progress, task.progress);
            assert_eq!(after.status_message, task.status_message);
        }
    }

    #[test]
    fn a_failed_task_says_why() {
        let error = CallError { code: -32000, message: "no".into(), data: None };
        let task = task(Phase::Running(lease("x")));
        let failed = task.clone().complete(&fence(1, "x"), Outcome::Error(error)).unwrap();
        assert_eq!(failed.task.status_message.as_deref(), Some("no"));
        assert_eq!(failed.event, Some(Event::Failed));
        let lost = task.interrupt(NOW).unwrap();
        assert!(lost.task.status_message.unwrap().contains("interrupted"));
    }
}
