//! Calls that the work of a task makes: each passes the admission chain as the task's owner, as if the owner called.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_core::{Denied, Outcome, Principal, Target};
use longhaul_policy::{Admitted, Aim, Call, Chain, Error, Source};

/// The only way to an inner call.
#[derive(Debug, Clone)]
pub(crate) struct Inner(Arc<Chain>);

impl Inner {
    pub(crate) fn new(chain: Arc<Chain>) -> Self {
        Self(chain)
    }

    /// Lets a call in that the work of `owner` makes, or says which check is against it.
    pub(crate) async fn admit(&self, owner: &Principal, target: Target, arguments: Bytes) -> Result<Admitted, Error> {
        let call = Call { target, arguments, aim: Aim::Answer, source: Source::Work };
        self.0.admit(owner.clone(), call).await
    }

    /// Whether the work of `owner`, a call of `target`, may take its next step.
    pub(crate) fn go_on(&self, owner: &Principal, target: &Target) -> Result<(), Error> {
        self.0.go_on(owner, target)
    }

    /// What of an outcome the work may see: nothing if it is as it came.
    pub(crate) fn release(
        &self,
        owner: &Principal,
        target: &Target,
        outcome: &Outcome,
    ) -> Result<Option<Outcome>, Denied> {
        self.0.release(owner, target, outcome)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Caller, Refusal, TenantId, TestClock, Timestamp};
    use longhaul_policy::Checks;
    use longhaul_policy::cedar::{Policies, Tags};

    use super::*;

    #[tokio::test]
    async fn an_inner_call_is_let_in_as_its_tasks_owner_calls_it() {
        let folder = tempfile::tempdir().unwrap();
        let rules = r#"permit (principal == Agent::"t/a", action == Action::"call_tool", resource == Tool::"x")
            when { context.source == "work" };"#;
        std::fs::write(folder.path().join("rules.cedar"), rules).unwrap();
        let clock = Arc::new(TestClock::at(Timestamp::from_micros(0)));
        let policies = Some(Arc::new(Policies::read(folder.path(), Tags::new(), clock).unwrap()));
        let inner = Inner::new(Arc::new(Chain::new(Checks { policies, ..Checks::default() })));
        let agent = |name: &str| Principal { tenant: TenantId::new("t"), caller: Caller::Agent(name.into()) };
        let admit = async |name: &str, tool: &str| {
            inner.admit(&agent(name), Target::Tool(tool.into()), Bytes::from_static(b"{}")).await
        };
        assert_eq!(admit("a", "x").await.unwrap().arguments(), &b"{}"[..]);
        for (name, tool) in [("b", "x"), ("a", "y")] {
            assert!(matches!(admit(name, tool).await, Err(Error::Refused(Refusal::Denied(_)))), "{name} {tool}");
        }
        let outcome = Outcome::Result { is_error: false, body: Bytes::from_static(b"{}") };
        assert_eq!(inner.release(&agent("a"), &Target::Tool("x".into()), &outcome), Ok(None));
    }
}
