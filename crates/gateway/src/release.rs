//! What of a task, and of what came of a call, its owner may see now: data policies may have changed since it ended.

use std::borrow::Cow;

use longhaul_core::{Denied, Ending, Outcome, Principal, Target, Task};
use longhaul_mcp::withheld;

use crate::Shared;

impl Shared {
    /// What came of a call, as its caller may see it.
    pub(crate) fn release<'a>(
        &self,
        principal: &Principal,
        target: &Target,
        outcome: &'a Outcome,
    ) -> Result<Cow<'a, Outcome>, Denied> {
        Ok(self.chain.release(principal, target, outcome)?.map_or(Cow::Borrowed(outcome), Cow::Owned))
    }

    /// A look at a task: its status stays, and in the place of an output that may not pass it says so.
    pub(crate) fn show<'a>(&self, task: &mut Task, outcome: Option<&'a Outcome>) -> Option<Cow<'a, Outcome>> {
        let target = Target::Tool(task.tool.clone());
        if let Some(message) = &task.status_message
            && let Some(message) = self.chain.release_message(&task.owner, &target, message)
        {
            task.status_message = Some(message);
        }
        let outcome = outcome?;
        let shown = self.release(&task.owner, &target, outcome);
        let is_error = matches!(task.ending(), Some(Ending::Error));
        Some(shown.unwrap_or_else(|denied| Cow::Owned(withheld(&denied, is_error))))
    }
}
