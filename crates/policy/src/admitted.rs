//! The proof that a call was let in.

use bytes::Bytes;
use longhaul_core::{NewTask, Principal, TaskId, TtlWish};
use longhaul_rpc::Invocation;

use crate::chain::Call;

/// A call that was let in. It is spent by carrying it out.
///
/// Nobody else can make one:
///
/// ```compile_fail,E0451
/// # use longhaul_policy::{Admitted, Call};
/// # fn forge(principal: longhaul_core::Principal, call: Call) -> Admitted {
/// Admitted { principal, call }
/// # }
/// ```
#[derive(Debug)]
pub struct Admitted {
    principal: Principal,
    call: Call,
}

/// What a caller may choose of its task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wish {
    /// How long it wants the task kept.
    pub ttl: TtlWish,
    /// Under which token it wants to hear of progress: a JSON string or integer.
    pub progress_token: Option<Bytes>,
    /// The tag of the session it came in.
    pub session: Option<String>,
    /// The trace that the call belongs to (W3C `traceparent`).
    pub traceparent: Option<String>,
}

impl Admitted {
    pub(crate) fn new(principal: Principal, call: Call) -> Self {
        Self { principal, call }
    }

    /// The call as a task.
    pub fn new_task(self, id: TaskId, wish: Wish) -> NewTask {
        let Wish { ttl, progress_token, session, traceparent } = wish;
        let Self { principal: owner, call: Call { tool, arguments } } = self;
        NewTask { id, owner, tool, arguments, ttl, progress_token, session, traceparent }
    }

    /// The call as one that is answered at once; `progress` if its caller wants to hear how far it is.
    pub fn invocation(self, progress: bool) -> Invocation {
        let Self { principal, call: Call { tool, arguments } } = self;
        Invocation { principal, tool, arguments, progress }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Caller, TenantId};

    use super::*;
    use crate::chain::Chain;

    #[test]
    fn an_admitted_call_is_carried_out_as_its_caller_sent_it() {
        let principal = Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) };
        let call = Call { tool: "echo".into(), arguments: Bytes::from_static(b"{ \"n\": 1e2 }") };
        let wish = Wish { ttl: TtlWish::Ms(7), session: Some("s".into()), ..Wish::default() };

        let admit = || Chain.admit(principal.clone(), call.clone()).unwrap();
        let task = admit().new_task(TaskId::from_random(1), wish);
        assert_eq!((&task.owner, &task.tool, &task.arguments), (&principal, &call.tool, &call.arguments));
        assert_eq!((task.ttl, task.session.as_deref()), (TtlWish::Ms(7), Some("s")));

        let invocation = admit().invocation(true);
        assert_eq!(
            (invocation.principal, invocation.tool, invocation.arguments),
            (principal, call.tool, call.arguments)
        );
        assert!(invocation.progress);
    }
}
