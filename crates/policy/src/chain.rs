//! The order of the checks.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use longhaul_core::{CallError, Check, Denied, Outcome, Principal, Refusal, Target, TaskId};
use longhaul_rpc::{Error, trace};

use crate::admitted::{Admitted, Becoming};
use crate::budget::Reservation;
use crate::cedar::{Action, Policies};
use crate::data::{DataPolicies, Passage, Verdict};
use crate::guardrails::Guardrails;
use crate::hooks::{Budget, Record, Switch};
use crate::metrics::Metrics;
use crate::rates::{Kind, Rates};

/// What a caller wants done. The checks see the very bytes that the tool will see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What is called.
    pub target: Target,
    /// The JSON object of arguments, as it came.
    pub arguments: Bytes,
    /// What is to become of it.
    pub aim: Aim,
    /// Where it comes from.
    pub source: Source,
}

/// What is to become of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aim {
    /// It is answered at once.
    Answer,
    /// It is stored as a task.
    Task,
    /// A task, or else an answer: it becomes no task if only that is refused.
    Either,
    /// It goes on, with what it has asked its caller. It was counted when it began; what was set aside then was given back
    /// while it waited, and is set aside anew.
    Resumed,
}

/// Where a call comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A client, at a gateway.
    Client,
    /// The work of a task, or of another call.
    Work,
}

impl Source {
    /// Its name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Work => "work",
        }
    }
}

/// The checks that come before the task-store's own, in their order. The limits on open tasks are not among them: only
/// the statement that stores a task can count exactly.
const ORDER: [Check; 6] =
    [Check::KillSwitch, Check::RateLimit, Check::Policy, Check::Budget, Check::DataPolicy, Check::Guardrail];

/// The checks there are; one that is not there has nothing against any call.
#[derive(Default, Clone)]
pub struct Checks {
    /// What operators have switched off.
    pub switch: Option<Arc<dyn Switch>>,
    /// How often.
    pub rates: Option<Arc<Rates>>,
    /// Who may do what.
    pub policies: Option<Arc<Policies>>,
    /// How much.
    pub budget: Option<Arc<dyn Budget>>,
    /// Which data may pass.
    pub data: Option<Arc<DataPolicies>>,
    /// Which shape a call may have, and what an external judge says of it.
    pub guardrails: Option<Arc<Guardrails>>,
    /// Who hears of refusals.
    pub record: Option<Arc<dyn Record>>,
}

/// Says yes or no.
#[derive(Default)]
pub struct Chain {
    checks: Checks,
    metrics: Metrics,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chain")
    }
}

/// A call on its way through the chain.
struct Asking {
    principal: Principal,
    call: Call,
    reservation: Reservation,
}

impl Chain {
    /// A chain of these checks. Its instruments come from the global meter provider, which must be set by then.
    pub fn new(checks: Checks) -> Self {
        Self { checks, metrics: Metrics::new() }
    }

    /// Lets a call in, or says which check was against it. What cannot be evaluated is unavailable.
    pub async fn admit(&self, principal: Principal, call: Call) -> Result<Admitted, Error> {
        let began = Instant::now();
        let mut asking = Asking { principal, call, reservation: Reservation::none() };
        let mut decided = Ok(());
        for check in ORDER {
            decided = self.ask(check, &mut asking).await;
            if decided.is_err() {
                break;
            }
        }
        self.decided(&asking.principal, &asking.call.target, began, &decided);
        let Asking { principal, call, reservation } = asking;
        decided.map(|()| Admitted::new(principal, call, reservation))
    }

    async fn ask(&self, check: Check, asking: &mut Asking) -> Result<(), Error> {
        let Asking { principal, call, reservation } = asking;
        match check {
            Check::KillSwitch => self.switched(principal, &call.target)?,
            Check::RateLimit => match call.aim {
                Aim::Answer => self.limited(&[Kind::Call], principal, &call.target)?,
                Aim::Task => self.limited(&[Kind::Call, Kind::Create], principal, &call.target)?,
                Aim::Either => {
                    self.limited(&[Kind::Call], principal, &call.target)?;
                    or_answer(call, self.limited(&[Kind::Create], principal, &call.target))?;
                }
                Aim::Resumed => {}
            },
            Check::Policy => {
                // What may not be called may not be called as a task either.
                self.allowed(Action::of(&call.target), principal, &call.target, Some(call))?;
                match (call.aim, &call.target) {
                    (Aim::Task | Aim::Either, target) => {
                        or_answer(call, self.allowed(Action::CreateTask, principal, target, Some(call)))?;
                    }
                    (Aim::Resumed, target @ Target::Tool(_)) => {
                        self.allowed(Action::Answer, principal, target, None)?
                    }
                    (Aim::Answer | Aim::Resumed, _) => {}
                }
            }
            Check::Budget => {
                if let Some(budget) = &self.checks.budget {
                    *reservation = budget.reserve(principal, &call.target).await?;
                }
            }
            Check::DataPolicy => self.screen(principal, call)?,
            Check::Guardrail => {
                if let Some(guardrails) = &self.checks.guardrails
                    && let Some(replaced) = guardrails.check(principal, call).await?
                {
                    call.arguments = replaced;
                    // The judge's arguments are as good as the caller's.
                    self.screen(principal, call)?;
                    guardrails.shape(&call.arguments)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a call that was let in, and has begun, may go on as a task.
    pub fn create(&self, becoming: &Becoming) -> Result<(), Error> {
        let (principal, call) = becoming.asks();
        let began = Instant::now();
        let decided = self.switched(principal, &call.target).and_then(|()| {
            self.limited(&[Kind::Create], principal, &call.target)?;
            self.allowed(Action::CreateTask, principal, &call.target, Some(call))
        });
        self.decided(principal, &call.target, began, &decided);
        decided
    }

    /// Whether `principal` may answer the questions of a call of `target`.
    pub fn answer(&self, principal: &Principal, target: &Target) -> Result<(), Error> {
        let began = Instant::now();
        let decided =
            self.switched(principal, target).and_then(|()| self.allowed(Action::Answer, principal, target, None));
        self.decided(principal, target, began, &decided);
        decided
    }

    /// Whether work that was let in as a call of `target` may take its next step.
    pub fn go_on(&self, principal: &Principal, target: &Target) -> Result<(), Error> {
        let began = Instant::now();
        let decided =
            self.switched(principal, target).and_then(|()| self.allowed(Action::of(target), principal, target, None));
        self.decided(principal, target, began, &decided);
        decided
    }

    /// Whether there is anything to ask before an answer is taken.
    pub const fn judges_answers(&self) -> bool {
        self.checks.switch.is_some() || self.checks.policies.is_some()
    }

    /// Whether `principal` may look at a task once more now.
    pub fn poll(&self, principal: &Principal, task: TaskId) -> Result<(), Error> {
        let Some(rates) = &self.checks.rates else { return Ok(()) };
        let decided = rates.poll(principal, task).map_err(denied);
        if let Err(Error::Refused(refusal)) = &decided {
            self.metrics.refused(refusal.name());
        }
        decided
    }

    /// What of an outcome `principal` may see: nothing if it is as it came. Looks at what a data policy says now, whatever it
    /// said when the task ended.
    pub fn release(
        &self,
        principal: &Principal,
        target: &Target,
        outcome: &Outcome,
    ) -> Result<Option<Outcome>, Denied> {
        let Some(data) = &self.checks.data else { return Ok(None) };
        let released = redacted(data, principal, target, outcome);
        if let Err(denied) = &released {
            self.metrics.refused(denied.by.name());
            self.note(principal, target, denied);
        }
        released
    }

    /// What of a sentence about a task `principal` may read: nothing if it is as it came.
    pub fn release_message(&self, principal: &Principal, target: &Target, message: &str) -> Option<String> {
        let data = self.checks.data.as_ref()?;
        match data.screen(Passage::Results, principal, target, &quoted(message)) {
            Verdict::Clean => None,
            Verdict::Redacted(quoted) => serde_json::from_slice(&quoted).ok(),
            Verdict::Blocked => Some(blocked(Passage::Results).message),
        }
    }

    /// Follows the files of rules as they change, and keeps rates with other replicas, as long as it is awaited.
    pub async fn run(&self) -> Infallible {
        let Checks { rates, policies, data, .. } = &self.checks;
        let rates = async {
            match rates {
                Some(rates) => rates.run().await,
                None => pending().await,
            }
        };
        let policies = async {
            match policies {
                Some(policies) => policies.follow().await,
                None => pending().await,
            }
        };
        let data = async {
            match data {
                Some(data) => data.follow().await,
                None => pending().await,
            }
        };
        tokio::select! {
            never = rates => never,
            never = policies => never,
            never = data => never,
        }
    }

    /// What operators should know: each line says what is wrong.
    pub fn mentions(&self) -> Vec<String> {
        let Checks { policies, data, .. } = &self.checks;
        let policies = policies.as_ref().and_then(|policies| policies.stale());
        let data = data.as_ref().and_then(|data| data.stale());
        policies.into_iter().chain(data).collect()
    }

    fn switched(&self, principal: &Principal, target: &Target) -> Result<(), Error> {
        self.checks.switch.as_ref().map_or(Ok(()), |switch| switch.check(principal, target)).map_err(denied)
    }

    fn limited(&self, kinds: &[Kind], principal: &Principal, target: &Target) -> Result<(), Error> {
        self.checks.rates.as_ref().map_or(Ok(()), |rates| rates.check(kinds, principal, target)).map_err(denied)
    }

    fn allowed(
        &self,
        action: Action,
        principal: &Principal,
        target: &Target,
        call: Option<&Call>,
    ) -> Result<(), Error> {
        self.checks.policies.as_ref().map_or(Ok(()), |policies| policies.check(action, principal, target, call))
    }

    fn screen(&self, principal: &Principal, call: &mut Call) -> Result<(), Error> {
        let Some(data) = &self.checks.data else { return Ok(()) };
        match data.screen(Passage::Arguments, principal, &call.target, &call.arguments) {
            Verdict::Clean => Ok(()),
            Verdict::Redacted(arguments) => {
                call.arguments = arguments;
                Ok(())
            }
            Verdict::Blocked => Err(denied(blocked(Passage::Arguments))),
        }
    }

    fn decided(&self, principal: &Principal, target: &Target, began: Instant, decided: &Result<(), Error>) {
        self.metrics.decided(began.elapsed(), decided);
        if let Err(Error::Refused(Refusal::Denied(denied))) = decided {
            self.metrics.refused(denied.by.name());
            self.note(principal, target, denied);
        }
    }

    fn note(&self, principal: &Principal, target: &Target, denied: &Denied) {
        if let Some(record) = &self.checks.record {
            record.refused(principal, target, denied, trace::current().as_deref());
        }
    }
}

/// A call that may become a task, and may not: it is answered at once, if it can be.
fn or_answer(call: &mut Call, decided: Result<(), Error>) -> Result<(), Error> {
    match decided {
        Err(Error::Refused(_)) if call.aim == Aim::Either => {
            call.aim = Aim::Answer;
            Ok(())
        }
        decided => decided,
    }
}

/// A check's no.
pub(crate) fn denied(denied: Denied) -> Error {
    Error::Refused(Refusal::Denied(denied))
}

fn blocked(passage: Passage) -> Denied {
    let message = match passage {
        Passage::Arguments => {
            "A data policy does not let these arguments pass: leave out personal data and secrets, or ask your operator"
        }
        Passage::Results => "A data policy withholds this result: ask your operator",
    };
    Denied { by: Check::DataPolicy, message: message.into(), retry_after: None }
}

/// A text as JSON.
fn quoted(text: &str) -> Bytes {
    serde_json::Value::from(text).to_string().into()
}

/// The outcome without what may not pass; nothing if all of it may.
fn redacted(
    data: &DataPolicies,
    principal: &Principal,
    target: &Target,
    outcome: &Outcome,
) -> Result<Option<Outcome>, Denied> {
    let screen = |json: &Bytes| match data.screen(Passage::Results, principal, target, json) {
        Verdict::Clean => Ok(None),
        Verdict::Redacted(json) => Ok(Some(json)),
        Verdict::Blocked => Err(blocked(Passage::Results)),
    };
    match outcome {
        Outcome::Result { is_error, body } => {
            Ok(screen(body)?.map(|body| Outcome::Result { is_error: *is_error, body }))
        }
        Outcome::Error(CallError { code, message, data: detail }) => {
            let said = screen(&quoted(message))?.and_then(|quoted| serde_json::from_slice(&quoted).ok());
            let shown = detail.as_ref().map(screen).transpose()?.flatten();
            Ok((said.is_some() || shown.is_some()).then(|| {
                let (message, data) = (said.unwrap_or_else(|| message.clone()), shown.or_else(|| detail.clone()));
                Outcome::Error(CallError { code: *code, message, data })
            }))
        }
        // These are our own words.
        Outcome::Cancelled | Outcome::Interrupted(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
