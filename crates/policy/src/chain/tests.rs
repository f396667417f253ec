use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::{Caller, TenantId, TestClock, Timestamp};
use tempfile::{NamedTempFile, TempDir};

use super::*;
use crate::cedar::Tags;
use crate::guardrails::{Failing, GuardrailsConfig, WebhookConfig, ok, server};
use crate::rates::{Limits, RatesConfig};

/// Switches everything off.
struct Off;

impl Switch for Off {
    fn check(&self, _principal: &Principal, _target: &Target) -> Result<(), Denied> {
        Err(Denied { by: Check::KillSwitch, message: "off".into(), retry_after: None })
    }
}

/// A budget for so many calls.
#[derive(Debug, Default)]
struct Purse {
    left: AtomicUsize,
}

#[async_trait]
impl Budget for Purse {
    async fn reserve(&self, _principal: &Principal, _target: &Target) -> Result<Reservation, Error> {
        let take = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(Reservation::none()),
            Err(_) => Err(denied(Denied { by: Check::Budget, message: "spent".into(), retry_after: None })),
        }
    }
}

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<Check>>);

impl Record for Heard {
    fn refused(&self, _principal: &Principal, target: &Target, denied: &Denied, _traceparent: Option<&str>) {
        assert_eq!(target.name(), "x");
        self.0.lock().unwrap().push(denied.by);
    }
}

fn principal() -> Principal {
    Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) }
}

fn call(aim: Aim, source: Source) -> Call {
    let arguments = Bytes::from_static(br#"{"card":"4111111111111111"}"#);
    Call { target: Target::Tool("x".into()), arguments, aim, source }
}

fn policies(text: &str) -> (TempDir, Arc<Policies>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.cedar"), text).unwrap();
    let clock = Arc::new(TestClock::at(Timestamp::from_micros(0)));
    let policies = Policies::read(folder.path(), Tags::new(), clock).unwrap();
    (folder, Arc::new(policies))
}

fn data(action: &str) -> (NamedTempFile, Arc<DataPolicies>) {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "[[policies]]\nname = \"cards\"\ndetect = [\"card\"]\naction = \"{action}\"").unwrap();
    let policies = DataPolicies::read(file.path()).unwrap();
    (file, Arc::new(policies))
}

/// Rates that one call has used up.
fn spent(calls: Option<&str>, creates: Option<&str>) -> Arc<Rates> {
    let limits =
        |rate: Option<&str>| Limits { per_tenant: rate.map(|rate| rate.parse().unwrap()), ..Limits::default() };
    let config = RatesConfig { calls: limits(calls), creates: limits(creates), replicas: 1, ..RatesConfig::default() };
    let rates = Rates::new(&config, None).unwrap();
    rates.check(&[Kind::Call, Kind::Create], &principal(), &Target::Tool("y".into())).unwrap();
    Arc::new(rates)
}

fn guardrails(arguments_bytes_max: usize, webhook: Option<WebhookConfig>) -> Arc<Guardrails> {
    let config = GuardrailsConfig { arguments_bytes_max, webhook, ..GuardrailsConfig::default() };
    Arc::new(Guardrails::new(config).unwrap())
}

/// A check of each kind that is against any call, in the order of the chain.
struct Against {
    checks: [Checks; 6],
    _files: (TempDir, NamedTempFile),
}

impl Against {
    fn all() -> Self {
        let (folder, forbidding) = policies("forbid (principal, action, resource);");
        let (file, blocking) = data("block");
        let none = Checks::default;
        let checks = [
            Checks { switch: Some(Arc::new(Off)), ..none() },
            Checks { rates: Some(spent(Some("1/d"), None)), ..none() },
            Checks { policies: Some(forbidding), ..none() },
            Checks { budget: Some(Arc::new(Purse::default())), ..none() },
            Checks { data: Some(blocking), ..none() },
            Checks { guardrails: Some(guardrails(1, None)), ..none() },
        ];
        Self { checks, _files: (folder, file) }
    }

    /// All of those from the nth on, in one.
    fn from(&self, nth: usize) -> Checks {
        self.checks[nth..].iter().cloned().fold(Checks::default(), |all, one| Checks {
            switch: all.switch.or(one.switch),
            rates: all.rates.or(one.rates),
            policies: all.policies.or(one.policies),
            budget: all.budget.or(one.budget),
            data: all.data.or(one.data),
            guardrails: all.guardrails.or(one.guardrails),
            record: all.record.or(one.record),
        })
    }
}

fn by(decided: Result<Admitted, Error>) -> Option<Check> {
    match decided {
        Ok(_) => None,
        Err(Error::Refused(Refusal::Denied(denied))) => Some(denied.by),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn the_checks_have_one_order_and_the_first_no_counts() {
    assert_eq!(ORDER, Check::ALL);
    let against = Against::all();
    for (nth, check) in ORDER.into_iter().enumerate() {
        let heard = Arc::new(Heard::default());
        let chain = Chain::new(Checks { record: Some(heard.clone()), ..against.from(nth) });
        assert_eq!(by(chain.admit(principal(), call(Aim::Task, Source::Client)).await), Some(check));
        assert_eq!(*heard.0.lock().unwrap(), [check]);
    }
    assert_eq!(by(Chain::default().admit(principal(), call(Aim::Task, Source::Client)).await), None);
}

#[tokio::test]
async fn each_check_is_made_of_answers_of_tasks_and_of_what_work_calls() {
    let against = Against::all();
    for (check, one) in ORDER.into_iter().zip(&against.checks) {
        let chain = Chain::new(one.clone());
        for (aim, source) in [
            (Aim::Answer, Source::Client),
            (Aim::Task, Source::Client),
            (Aim::Either, Source::Client),
            (Aim::Answer, Source::Work),
            (Aim::Task, Source::Work),
        ] {
            let decided = chain.admit(principal(), call(aim, source)).await;
            assert_eq!(by(decided), Some(check), "{aim:?} {source:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_may_be_answered_becomes_no_task_if_only_that_is_refused() {
    let (_folder, policies) = policies(
        "permit (principal, action, resource); forbid (principal, action == Action::\"create_task\", resource);",
    );
    for checks in [
        Checks { policies: Some(policies), ..Checks::default() },
        Checks { rates: Some(spent(Some("9/d"), Some("1/d"))), ..Checks::default() },
    ] {
        let chain = Chain::new(checks);
        let admit = async |aim| chain.admit(principal(), call(aim, Source::Client)).await;
        assert!(!admit(Aim::Either).await.unwrap().may_be_task());
        assert!(!admit(Aim::Answer).await.unwrap().may_be_task());
        assert!(by(admit(Aim::Task).await).is_some());
        let how = crate::How { may_become_task: true, ..crate::How::default() };
        let (_, becoming) = admit(Aim::Answer).await.unwrap().invocation(how);
        assert!(matches!(chain.create(&becoming), Err(Error::Refused(Refusal::Denied(_)))));
    }
    assert!(Chain::default().admit(principal(), call(Aim::Either, Source::Client)).await.unwrap().may_be_task());
}

#[tokio::test]
async fn a_call_that_goes_on_is_not_counted_again_but_must_still_be_allowed() {
    let admit =
        async |checks: Checks| by(Chain::new(checks).admit(principal(), call(Aim::Resumed, Source::Client)).await);
    let (_folder, policies) =
        policies("permit (principal, action, resource); forbid (principal, action == Action::\"answer\", resource);");
    let (_file, data) = data("block");
    let none = Checks::default;
    assert_eq!(admit(Checks { rates: Some(spent(Some("1/d"), None)), ..none() }).await, None);
    assert_eq!(admit(Checks { budget: Some(Arc::new(Purse::default())), ..none() }).await, Some(Check::Budget));
    assert_eq!(admit(Checks { switch: Some(Arc::new(Off)), ..none() }).await, Some(Check::KillSwitch));
    assert_eq!(admit(Checks { policies: Some(policies.clone()), ..none() }).await, Some(Check::Policy));
    assert_eq!(admit(Checks { data: Some(data), ..none() }).await, Some(Check::DataPolicy));

    // So must answers to the questions of a task.
    let chain = Chain::new(Checks { policies: Some(policies), ..none() });
    assert!(chain.answer(&principal(), &Target::Tool("x".into())).is_err());
    assert!(Chain::default().answer(&principal(), &Target::Tool("x".into())).is_ok());
}

#[tokio::test]
async fn later_checks_and_the_tool_see_what_a_data_policy_leaves() {
    let (_file, data) = data("redact");
    let left = br#"{"card":"[redacted:card]"}"#;
    let checks = Checks { data: Some(data), guardrails: Some(guardrails(left.len(), None)), ..Checks::default() };
    let admitted = Chain::new(checks).admit(principal(), call(Aim::Task, Source::Client)).await.unwrap();
    assert_eq!(admitted.arguments(), &left[..]);
}

#[tokio::test]
async fn what_a_judge_puts_in_place_of_the_arguments_is_looked_at_too() {
    let (_file, data) = data("block");
    let harmless = Call { arguments: Bytes::from_static(b"{}"), ..call(Aim::Answer, Source::Client) };
    for (arguments, refused) in [
        (r#"{"n":1}"#, None),
        (r#"{"card":"4111111111111111"}"#, Some(Check::DataPolicy)),
        (r#"{"long":"012345678901234567890123456789"}"#, Some(Check::Guardrail)),
    ] {
        let (url, _told) = server(ok(&format!(r#"{{"decision":"replace","arguments":{arguments}}}"#))).await;
        let deadline = Duration::from_secs(5);
        let webhook = WebhookConfig { url, token: None, deadline, on_failure: Failing::Closed, concurrency_max: 1 };
        let guardrails = Some(guardrails(30, Some(webhook)));
        let chain = Chain::new(Checks { data: Some(data.clone()), guardrails, ..Checks::default() });
        match chain.admit(principal(), harmless.clone()).await {
            Ok(admitted) => assert_eq!((admitted.arguments(), refused), (&Bytes::from(arguments), None)),
            refusal => assert_eq!(by(refusal), refused, "{arguments}"),
        }
    }
}

#[test]
fn what_came_of_a_call_is_told_as_data_policies_say_now() {
    let (target, owner) = (Target::Tool("x".into()), principal());
    let result = |body: &'static str| Outcome::Result { is_error: false, body: Bytes::from_static(body.as_bytes()) };
    let error = |message: &str, data: Option<&'static str>| {
        let data = data.map(|data| Bytes::from_static(data.as_bytes()));
        Outcome::Error(CallError { code: -1, message: message.into(), data })
    };
    let card = result(r#"{"n" : 4111111111111111}"#);
    let said = error("no \"4111111111111111\"", Some("[\"4111111111111111\"]"));
    let (_file, redacting) = data("redact");
    let chain = Chain::new(Checks { data: Some(redacting), ..Checks::default() });
    let release = |outcome: &Outcome| chain.release(&owner, &target, outcome).unwrap();
    assert_eq!(release(&card), Some(result(r#"{"n" : "[redacted:card]"}"#)));
    assert_eq!(release(&said), Some(error("no \"[redacted:card]\"", Some("[\"[redacted:card]\"]"))));
    for clean in [result("{}"), error("no", Some("1")), error("no", None), Outcome::Cancelled] {
        assert_eq!(release(&clean), None);
    }
    let message = |text: &str| chain.release_message(&owner, &target, text);
    assert_eq!(message("\"4111111111111111\"\n").as_deref(), Some("\"[redacted:card]\"\n"));
    assert_eq!(message("fine"), None);

    let (_file, blocking) = data("block");
    let heard = Arc::new(Heard::default());
    let chain = Chain::new(Checks { data: Some(blocking), record: Some(heard.clone()), ..Checks::default() });
    for outcome in [&card, &said] {
        let denied = chain.release(&owner, &target, outcome).unwrap_err();
        assert_eq!(denied.by, Check::DataPolicy);
        assert!(!denied.message.contains("card"));
    }
    assert_eq!(heard.0.lock().unwrap().len(), 2);
    let told = chain.release_message(&owner, &target, "4111111111111111").unwrap();
    assert!(!told.contains("4111"), "{told}");
    assert_eq!(Chain::default().release(&owner, &target, &card), Ok(None));
}

#[tokio::test]
async fn a_task_that_is_asked_for_too_often_is_refused_by_the_rate() {
    let config = RatesConfig { polls_per_task: Some("1/d".parse().unwrap()), replicas: 1, ..RatesConfig::default() };
    let rates = Some(Arc::new(Rates::new(&config, None).unwrap()));
    let chain = Chain::new(Checks { rates, ..Checks::default() });
    let task = TaskId::from_random(1);
    chain.poll(&principal(), task).unwrap();
    let Err(Error::Refused(Refusal::Denied(denied))) = chain.poll(&principal(), task) else { panic!() };
    assert_eq!(denied.by, Check::RateLimit);
    assert!(denied.retry_after.is_some());
}
