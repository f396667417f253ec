//! Budgets on SQLite. With one writer at a time nothing waits to be folded.

use async_trait::async_trait;
use longhaul_core::{Amount, BudgetKey, Delta, Timestamp};
use longhaul_rpc::{BudgetLease, BudgetReturn, BudgetState, BudgetWish};

use super::{SqliteStore, Work, all};
use crate::store::budgets::{BUDGETS_KEPT, BudgetStore, MOVES_KEPT, Settlement, amount, number, state};
use crate::store::{Answer, micros};

impl Work<'_> {
    /// Adds to what was taken; never makes it less than nothing.
    pub(super) async fn settle(&mut self, settlement: Settlement<'_>) -> Answer<()> {
        let Settlement { key, starts_at, delta } = settlement;
        let settle = sqlx::query(
            "UPDATE budgets SET taken_units = max(taken_units + ?5, 0), taken_micro_usd = max(taken_micro_usd + ?6, 0)
             WHERE budget = ?1 AND tenant = ?2 AND holder = ?3 AND starts_at = ?4",
        )
        .bind(&key.budget)
        .bind(&key.tenant)
        .bind(&key.holder)
        .bind(starts_at.as_micros())
        .bind(delta.units)
        .bind(delta.micro_usd);
        self.run(settle).await.map(drop)
    }

    /// Notes that this was said of a window; false if it was said before.
    async fn is_new(&mut self, id: &str, starts_at: Timestamp, granted: Amount) -> Answer<bool> {
        let note = sqlx::query(
            "INSERT INTO budget_moves (id, starts_at, units, micro_usd, at) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
        )
        .bind(id)
        .bind(starts_at.as_micros())
        .bind(number(granted.units))
        .bind(number(granted.micro_usd))
        .bind(self.now);
        Ok(self.run(note).await? > 0)
    }
}

#[async_trait]
impl BudgetStore for SqliteStore {
    async fn lease_budget(&self, wishes: &[BudgetWish]) -> Answer<Vec<BudgetLease>> {
        let mut work = self.begin().await?;
        let now = Timestamp::from_micros(work.now);
        let mut leases = Vec::with_capacity(wishes.len());
        for BudgetWish { id, key, window, limit, demand, ahead } in wishes {
            let (starts_at, ends_at) = window.around(now);
            let of = |query: super::Sql<'static>| {
                query
                    .bind(key.budget.clone())
                    .bind(key.tenant.clone())
                    .bind(key.holder.clone())
                    .bind(starts_at.as_micros())
            };
            let touch = of(sqlx::query(
                "INSERT INTO budgets (budget, tenant, holder, starts_at, ends_at, limit_units, limit_micro_usd)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT DO UPDATE SET limit_units = ?6, limit_micro_usd = ?7
                 RETURNING taken_units, taken_micro_usd",
            ))
            .bind(ends_at.as_micros())
            .bind(limit.units.map(number))
            .bind(limit.micro_usd.map(number));
            let taken = work.all(touch).await?;
            let mut taken = amount(taken.first().ok_or_else(nothing)?, 0)?;
            let known = sqlx::query("SELECT units, micro_usd FROM budget_moves WHERE id = ?1 AND starts_at = ?2");
            let known = work.all(known.bind(id).bind(starts_at.as_micros())).await?;
            let granted = match known.first() {
                Some(known) => amount(known, 0)?,
                None => {
                    let granted = limit.without(taken).share(*demand, *ahead);
                    work.is_new(id, starts_at, granted).await?;
                    let delta = granted.less(Amount::ZERO);
                    work.settle(Settlement { key, starts_at, delta }).await?;
                    taken = taken.plus(granted);
                    granted
                }
            };
            leases.push(BudgetLease { starts_at, ends_at, now, granted, left: limit.without(taken) });
        }
        work.commit(leases).await
    }

    async fn return_budget(&self, returns: &[BudgetReturn]) -> Answer<()> {
        let mut work = self.begin().await?;
        for BudgetReturn { id, from, delta } in returns {
            if work.is_new(id, from.starts_at, Amount::ZERO).await? && *delta != Delta::ZERO {
                work.settle(Settlement { key: &from.key, starts_at: from.starts_at, delta: *delta }).await?;
            }
        }
        work.commit(()).await
    }

    async fn budgets(&self, after: Option<&BudgetKey>, limit: usize) -> Answer<Vec<BudgetState>> {
        let mut reader = self.reader.lock().await;
        let now = self.now(&mut reader).await?;
        // No budget has an empty name.
        let after = |of: fn(&BudgetKey) -> &str| after.map(of).unwrap_or_default().to_owned();
        let query = sqlx::query(
            "SELECT budget, tenant, holder, starts_at, ends_at, limit_units, limit_micro_usd, taken_units, taken_micro_usd
             FROM budgets WHERE (budget, tenant, holder) > (?1, ?2, ?3) AND starts_at <= ?4 AND ends_at > ?4
             ORDER BY budget, tenant, holder, starts_at LIMIT ?5",
        )
        .bind(after(|key| &key.budget))
        .bind(after(|key| &key.tenant))
        .bind(after(|key| &key.holder))
        .bind(now)
        .bind(limit as i64);
        all(&mut reader, query).await?.iter().map(state).collect()
    }

    async fn prune_budgets(&self, rows_max: u32) -> Answer<bool> {
        let mut work = self.begin().await?;
        let (now, rows_max) = (work.now, i64::from(rows_max));
        let gone = sqlx::query(
            "DELETE FROM budgets WHERE (budget, tenant, holder, starts_at) IN
               (SELECT budget, tenant, holder, starts_at FROM budgets WHERE ends_at <= ?1 LIMIT ?2)",
        );
        let gone = work.run(gone.bind(now - micros(BUDGETS_KEPT)).bind(rows_max)).await?;
        let moves = "DELETE FROM budget_moves WHERE (id, starts_at) IN (SELECT id, starts_at FROM budget_moves WHERE at <= ?1 LIMIT ?2)";
        let moves = work.run(sqlx::query(moves).bind(now - micros(MOVES_KEPT)).bind(rows_max)).await?;
        work.commit(gone.max(moves) >= rows_max as u64).await
    }
}

fn nothing() -> crate::store::Fault {
    crate::store::Fault::Failed("a budget without a row".into())
}
