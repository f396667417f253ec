//! The proof that a call was let in.

use std::time::Duration;

use bytes::Bytes;
use longhaul_core::{Claimed, ClientCapabilities, NewTask, Principal, Retry, Target, TaskId, TraceContext, TtlWish};
use longhaul_rpc::{Invocation, Line};

use crate::budget::Reservation;
use crate::chain::{Aim, Call};

/// A call that was let in. It is spent by carrying it out.
///
/// Nobody else can make one:
///
/// ```compile_fail,E0451
/// # use longhaul_policy::{Admitted, Call};
/// # fn forge(principal: longhaul_core::Principal, call: Call) -> Admitted {
/// Admitted { principal, call, reservation: longhaul_policy::Reservation::none() }
/// # }
/// ```
#[derive(Debug)]
pub struct Admitted {
    principal: Principal,
    call: Call,
    /// What its budgets have set aside for it; shared by the call and the task that it may be instead.
    reservation: Reservation,
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
    /// The trace that the call belongs to.
    pub trace: TraceContext,
    /// What the caller can be asked.
    pub client: ClientCapabilities,
    /// Whether the task is handed out again when its worker is lost; its tool says so.
    pub retry: Retry,
}

impl Admitted {
    pub(crate) fn new(principal: Principal, call: Call, reservation: Reservation) -> Self {
        Self { principal, call, reservation }
    }

    /// What its budgets have set aside for it, to be settled once it is carried out.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The arguments as they were let in: what a check has taken out of them is gone.
    pub fn arguments(&self) -> &Bytes {
        &self.call.arguments
    }

    /// Whether it may become a task.
    pub fn may_be_task(&self) -> bool {
        matches!(self.call.aim, Aim::Task | Aim::Either)
    }

    /// The call as a task; `None` if it is not a tool's.
    pub fn new_task(self, id: TaskId, wish: Wish) -> Option<NewTask> {
        self.task(id, wish, None)
    }

    /// The call as a task, and the same call in case there is no room for the task and it need not be one.
    pub fn task_or_call(self, id: TaskId, wish: Wish) -> Option<(NewTask, Self)> {
        let (principal, call) = (self.principal.clone(), self.call.clone());
        let other = Self { principal, call, reservation: self.reservation.clone() };
        Some((self.task(id, wish, None)?, other))
    }

    /// The call as one that is answered at once, or goes on as a task.
    pub fn invocation(self, how: How) -> (Invocation, Becoming) {
        let (principal, Call { target, arguments, .. }) = (self.principal.clone(), self.call.clone());
        let How { client, line, park, may_become_task, trace } = how;
        let invocation = Invocation { principal, target, arguments, client, line, park, may_become_task, trace };
        (invocation, Becoming(self))
    }

    /// The call as one that has begun elsewhere, and may go on as a task.
    pub fn resumed(self) -> Becoming {
        Becoming(self)
    }

    fn task(self, id: TaskId, wish: Wish, claimed: Option<Claimed>) -> Option<NewTask> {
        let Wish { ttl, progress_token, session, trace, client, retry } = wish;
        let Self { principal: owner, call: Call { target, arguments, .. }, reservation } = self;
        let Target::Tool(tool) = target else { return None };
        Some(NewTask {
            id,
            owner,
            tool,
            arguments,
            ttl,
            progress_token,
            session,
            trace,
            client,
            retry,
            claimed,
            reserved: reservation.reserved(),
        })
    }
}

/// How a call is to be answered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct How {
    /// What its caller can be asked.
    pub client: ClientCapabilities,
    /// What its caller wants to hear meanwhile.
    pub line: Line,
    /// How long it waits parked for its caller, once it asks; `None` if the caller stays on the line.
    pub park: Option<Duration>,
    /// Whether it may go on as a task.
    pub may_become_task: bool,
    /// The trace that the call belongs to.
    pub trace: TraceContext,
}

/// A call that was let in, has begun, and may go on as a task in the hands that have it.
#[derive(Debug)]
pub struct Becoming(Admitted);

impl Becoming {
    /// As [`Admitted::reservation`].
    pub fn reservation(&self) -> &Reservation {
        &self.0.reservation
    }

    pub(crate) fn asks(&self) -> (&Principal, &Call) {
        (&self.0.principal, &self.0.call)
    }

    /// The task that it goes on as; `None` if it is not a tool's.
    pub fn new_task(self, id: TaskId, wish: Wish, claimed: Claimed) -> Option<NewTask> {
        self.0.task(id, wish, Some(claimed))
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Caller, LeaseToken, TenantId, WorkerId};

    use super::*;
    use crate::chain::{Chain, Source};

    fn call(target: Target, arguments: Bytes) -> Call {
        Call { target, arguments, aim: Aim::Task, source: Source::Client }
    }

    #[tokio::test]
    async fn an_admitted_call_is_carried_out_as_its_caller_sent_it() {
        let principal = Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) };
        let target = Target::Tool("echo".into());
        let call = call(target.clone(), Bytes::from_static(b"{ \"n\": 1e2 }"));
        let wish = Wish { ttl: TtlWish::Ms(7), session: Some("s".into()), ..Wish::default() };

        let chain = Chain::default();
        let admit = async || chain.admit(principal.clone(), call.clone()).await.unwrap();
        let task = admit().await.new_task(TaskId::from_random(1), wish.clone()).unwrap();
        assert_eq!((&task.owner, &*task.tool, &task.arguments), (&principal, "echo", &call.arguments));
        assert_eq!((task.ttl, task.session.as_deref(), &task.claimed), (TtlWish::Ms(7), Some("s"), &None));

        let (same, call_itself) = admit().await.task_or_call(TaskId::from_random(1), wish.clone()).unwrap();
        assert_eq!(same, task);
        assert_eq!(call_itself.new_task(TaskId::from_random(1), wish.clone()), Some(same));

        let how = How { may_become_task: true, ..How::default() };
        let (invocation, becoming) = admit().await.invocation(how);
        assert_eq!(
            (invocation.principal, invocation.target, invocation.arguments),
            (principal, target, call.arguments)
        );
        assert!(invocation.may_become_task && invocation.park.is_none());
        let worker = WorkerId { name: "w".into(), incarnation: "1".into() };
        let claimed = Claimed { worker, token: LeaseToken("t".into()) };
        let same = becoming.new_task(TaskId::from_random(1), wish, claimed.clone()).unwrap();
        assert_eq!(same, NewTask { claimed: Some(claimed), ..task });
    }

    #[tokio::test]
    async fn only_a_tool_call_becomes_a_task() {
        let principal = Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) };
        let call = call(Target::Prompt("p".into()), Bytes::new());
        let admitted = Chain::default().admit(principal, call).await.unwrap();
        assert_eq!(admitted.new_task(TaskId::from_random(1), Wish::default()), None);
    }
}
