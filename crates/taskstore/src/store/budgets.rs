//! What the task-store asks of a database engine about budgets.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::budget::AMOUNT_MAX;
use longhaul_core::{Amount, BudgetKey, Delta, Limit, Task, Timestamp};
use longhaul_rpc::{BudgetLease, BudgetReturn, BudgetState, BudgetWish};

use super::row::{TaskRow, moment, there};
use super::{Answer, Fault};

/// How long a lease or a return that is said again is known; longer than anyone tries.
pub(crate) const MOVES_KEPT: Duration = Duration::from_secs(600);
/// How long a budget is kept after its window.
pub(crate) const BUDGETS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The part of a database engine that keeps budgets. Every method may be repeated without harm.
#[async_trait]
pub(crate) trait BudgetStore: Send + Sync {
    /// Leases slices; one answer per wish, in order.
    async fn lease_budget(&self, wishes: &[BudgetWish]) -> Answer<Vec<BudgetLease>>;
    /// Adds to what was taken, unless that was said before.
    async fn return_budget(&self, returns: &[BudgetReturn]) -> Answer<()>;
    /// How budgets stand in their present windows, in order.
    async fn budgets(&self, after: Option<&BudgetKey>, limit: usize) -> Answer<Vec<BudgetState>>;
    /// Forgets what is long over, at most so many rows of each kind; answers whether there may be more.
    async fn prune_budgets(&self, rows_max: u32) -> Answer<bool>;
}

/// What is to be added to one budget when a task ends.
pub(crate) struct Settlement<'a> {
    pub key: &'a BudgetKey,
    pub starts_at: Timestamp,
    pub delta: Delta,
}

/// What the end of a task settles, if it has ended and its price was another one.
pub(crate) fn settlements(task: &Task) -> impl Iterator<Item = Settlement<'_>> {
    let delta = task.settlement().filter(|delta| *delta != Delta::ZERO);
    let from = delta.and(task.reserved.as_ref()).map(|reserved| &reserved.from);
    from.into_iter().flatten().map(move |window| Settlement {
        key: &window.key,
        starts_at: window.starts_at,
        delta: delta.unwrap_or_default(),
    })
}

/// A number as the engines take it.
pub(crate) fn number(amount: u64) -> i64 {
    amount.min(AMOUNT_MAX) as i64
}

pub(crate) fn amount<R: TaskRow>(row: &R, at: usize) -> Result<Amount, Fault> {
    let number = |at| Ok::<_, Fault>(there(row.long(at)?, "an amount")? as u64);
    Ok(Amount { units: number(at)?, micro_usd: number(at + 1)? })
}

pub(crate) fn limit<R: TaskRow>(row: &R, at: usize) -> Result<Limit, Fault> {
    let number = |at| Ok::<_, Fault>(row.long(at)?.map(|number| number as u64));
    Ok(Limit { units: number(at)?, micro_usd: number(at + 1)? })
}

/// `budget, tenant, holder, starts_at, ends_at, limit_units, limit_micro_usd, taken_units, taken_micro_usd` as a state.
pub(crate) fn state<R: TaskRow>(row: &R) -> Result<BudgetState, Fault> {
    let text = |at| there(row.text(at)?, "a key");
    Ok(BudgetState {
        key: BudgetKey { budget: text(0)?, tenant: text(1)?, holder: text(2)? },
        starts_at: moment(row, 3)?,
        ends_at: moment(row, 4)?,
        limit: limit(row, 5)?,
        taken: amount(row, 7)?,
    })
}
