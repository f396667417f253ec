//! MCP 2025-11-25, and 2025-06-18 as far as it is the same.

pub mod notify;

mod ask;
mod read;
mod write;

pub use ask::{ask, parse_task_question_id, task_question_id};
pub use read::{notification, read, trace};
pub use write::write;

use longhaul_core::{Ending, Phase, Task};

/// The key under which a message names the task it belongs to.
pub(crate) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// A task's status in the words of this revision. A result with `isError` counts as failed.
pub(crate) fn status(task: &Task) -> &'static str {
    match task.phase {
        Phase::Queued | Phase::Running(_) if task.is_asking() => "input_required",
        Phase::Queued | Phase::Running(_) => "working",
        Phase::Ended(Ending::Result { is_error: false }) => "completed",
        Phase::Ended(Ending::Cancelled) => "cancelled",
        Phase::Ended(Ending::Result { is_error: true } | Ending::Error | Ending::Interrupted(_)) => "failed",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use longhaul_core::{
        Caller, ClientCapabilities, Input, InputState, Interruption, Lease, LeaseToken, Principal, Question, TaskId,
        TenantId, Timestamp, WorkerId,
    };

    use super::*;

    /// A task in a phase, and nothing special.
    pub(crate) fn task(phase: Phase) -> Task {
        Task {
            id: TaskId::from_random(1),
            owner: Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) },
            tool: "echo".into(),
            phase,
            version: 1,
            attempt: 0,
            status_message: None,
            progress: None,
            progress_token: None,
            session: None,
            created_at: Timestamp::from_micros(1_796_029_200_000_000),
            updated_at: Timestamp::from_micros(1_796_029_201_234_999),
            ttl_ms: None,
            client: ClientCapabilities::default(),
            retry: longhaul_core::Retry::default(),
            inputs: Vec::new(),
            reserved: None,
            spent: None,
        }
    }

    /// A task that asks one question.
    pub(crate) fn asking(question: Question) -> Task {
        let state = InputState::Open { question, until: Timestamp::from_micros(i64::MAX) };
        let inputs = vec![Input { key: "q-1".into(), state }];
        Task { client: ClientCapabilities::from_bits(0b1111), inputs, ..task(Phase::Queued) }
    }

    #[test]
    fn each_phase_has_one_status() {
        let lease = Lease {
            worker: WorkerId { name: "w".into(), incarnation: "1".into() },
            token: LeaseToken("x".into()),
            until: Timestamp::from_micros(0),
        };
        for (phase, expected) in [
            (Phase::Queued, "working"),
            (Phase::Running(lease), "working"),
            (Phase::Ended(Ending::Result { is_error: false }), "completed"),
            (Phase::Ended(Ending::Result { is_error: true }), "failed"),
            (Phase::Ended(Ending::Error), "failed"),
            (Phase::Ended(Ending::Interrupted(Interruption::Drained)), "failed"),
            (Phase::Ended(Ending::Cancelled), "cancelled"),
        ] {
            assert_eq!(status(&task(phase.clone())), expected, "{phase:?}");
        }
        assert_eq!(status(&asking(Question::Roots)), "input_required");
    }
}
