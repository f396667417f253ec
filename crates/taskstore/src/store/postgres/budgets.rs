//! Budgets on PostgreSQL.

use async_trait::async_trait;
use longhaul_core::{BudgetKey, Timestamp};
use longhaul_rpc::{BudgetLease, BudgetReturn, BudgetState, BudgetWish};

use super::PostgresStore;
use crate::store::budgets::{BUDGETS_KEPT, BudgetStore, MOVES_KEPT, amount, limit, number, state};
use crate::store::row::{TaskRow as _, there};
use crate::store::{Answer, micros};

#[async_trait]
impl BudgetStore for PostgresStore {
    async fn lease_budget(&self, wishes: &[BudgetWish]) -> Answer<Vec<BudgetLease>> {
        // A window that ends between the two statements is one that has just ended: whoever leased it asks again.
        let now = self.calls.one("now", sqlx::query("SELECT longhaul_now()")).await?;
        let now = Timestamp::from_micros(there(now.long(0)?, "a moment")?);
        let windows: Vec<_> = wishes.iter().map(|wish| wish.window.around(now)).collect();
        // In the order of their keys, so that two batches cannot wait for each other.
        let mut order: Vec<usize> = (0..wishes.len()).collect();
        order.sort_by_key(|at| (&wishes[*at].key, windows[*at].0));
        let texts =
            |of: fn(&BudgetWish) -> &str| order.iter().map(|at| of(&wishes[*at]).to_owned()).collect::<Vec<_>>();
        let numbers =
            |of: &dyn Fn(&BudgetWish) -> u64| -> Vec<i64> { order.iter().map(|at| number(of(&wishes[*at]))).collect() };
        let limits = |of: fn(&BudgetWish) -> Option<u64>| {
            order.iter().map(|at| of(&wishes[*at]).map(number)).collect::<Vec<_>>()
        };
        let query = sqlx::query(LEASE)
            .bind(texts(|wish| &wish.id))
            .bind(texts(|wish| &wish.key.budget))
            .bind(texts(|wish| &wish.key.tenant))
            .bind(texts(|wish| &wish.key.holder))
            .bind(order.iter().map(|at| windows[*at].0.as_micros()).collect::<Vec<_>>())
            .bind(order.iter().map(|at| windows[*at].1.as_micros()).collect::<Vec<_>>())
            .bind(limits(|wish| wish.limit.units))
            .bind(limits(|wish| wish.limit.micro_usd))
            .bind(numbers(&|wish| wish.demand.units))
            .bind(numbers(&|wish| wish.demand.micro_usd))
            .bind(numbers(&|wish| wish.ahead.units))
            .bind(numbers(&|wish| wish.ahead.micro_usd));
        let rows = self.calls.all("lease_budget", query).await?;
        let mut leases = vec![None; wishes.len()];
        for (at, row) in order.into_iter().zip(&rows) {
            let (starts_at, ends_at) = windows[at];
            leases[at] = Some(BudgetLease { starts_at, ends_at, now, granted: amount(row, 0)?, left: limit(row, 2)? });
        }
        leases.into_iter().map(|lease| there(lease, "an answer")).collect()
    }

    async fn return_budget(&self, returns: &[BudgetReturn]) -> Answer<()> {
        let texts = |of: fn(&BudgetReturn) -> &str| returns.iter().map(|one| of(one).to_owned()).collect::<Vec<_>>();
        let numbers = |of: fn(&BudgetReturn) -> i64| returns.iter().map(of).collect::<Vec<_>>();
        let query = sqlx::query(RETURN)
            .bind(texts(|one| &one.id))
            .bind(texts(|one| &one.from.key.budget))
            .bind(texts(|one| &one.from.key.tenant))
            .bind(texts(|one| &one.from.key.holder))
            .bind(numbers(|one| one.from.starts_at.as_micros()))
            .bind(numbers(|one| one.delta.units))
            .bind(numbers(|one| one.delta.micro_usd));
        self.calls.all("return_budget", query).await.map(drop)
    }

    async fn budgets(&self, after: Option<&BudgetKey>, limit: usize) -> Answer<Vec<BudgetState>> {
        // No budget has an empty name.
        let after = |of: fn(&BudgetKey) -> &str| after.map(of).unwrap_or_default().to_owned();
        let query = sqlx::query(BUDGETS)
            .bind(after(|key| &key.budget))
            .bind(after(|key| &key.tenant))
            .bind(after(|key| &key.holder))
            .bind(limit as i64);
        self.calls.all("budgets", query).await?.iter().map(state).collect()
    }

    async fn prune_budgets(&self, rows_max: u32) -> Answer<bool> {
        let query = sqlx::query(PRUNE).bind(micros(BUDGETS_KEPT)).bind(micros(MOVES_KEPT)).bind(i64::from(rows_max));
        let row = self.pulse.one("prune_budgets", query).await?;
        let folded = self.pulse.one("fold_budgets", sqlx::query(FOLD).bind(i64::from(rows_max))).await?;
        let count = |row: &sqlx::postgres::PgRow| there(row.long(0)?, "a count");
        Ok(count(&row)?.max(count(&folded)?) >= i64::from(rows_max))
    }
}

// lease_budget
const LEASE: &str = "
SELECT l.granted_units, l.granted_micro_usd, l.left_units, l.left_micro_usd
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
  $10::bigint[], $11::bigint[], $12::bigint[])
  WITH ORDINALITY AS w(id, budget, tenant, holder, starts_at, ends_at, limit_units, limit_micro_usd, demand_units,
    demand_micro_usd, ahead_units, ahead_micro_usd, at)
CROSS JOIN LATERAL longhaul_lease(w.id, w.budget, w.tenant, w.holder, w.starts_at, w.ends_at, w.limit_units, w.limit_micro_usd,
  w.demand_units, w.demand_micro_usd, w.ahead_units, w.ahead_micro_usd) l
ORDER BY w.at";

// return_budget
const RETURN: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
r AS MATERIALIZED (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS r(id, budget, tenant, holder, starts_at, units, micro_usd)
),
noted AS (
  INSERT INTO budget_moves (id, starts_at, units, micro_usd, at) SELECT id, starts_at, 0, 0, now FROM r, clock ORDER BY id, starts_at
  ON CONFLICT DO NOTHING RETURNING id, starts_at
)
INSERT INTO budget_settlements (budget, tenant, holder, starts_at, units, micro_usd)
SELECT r.budget, r.tenant, r.holder, r.starts_at, r.units, r.micro_usd FROM (SELECT DISTINCT ON (id, starts_at) * FROM r) r JOIN noted ON noted.id = r.id AND noted.starts_at = r.starts_at";

// budgets
const BUDGETS: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
SELECT b.budget, b.tenant, b.holder, b.starts_at, b.ends_at, b.limit_units, b.limit_micro_usd,
  greatest(b.taken_units + s.units, 0), greatest(b.taken_micro_usd + s.micro_usd, 0)
FROM budgets b CROSS JOIN clock CROSS JOIN LATERAL (
  SELECT coalesce(sum(units), 0)::bigint AS units, coalesce(sum(micro_usd), 0)::bigint AS micro_usd FROM budget_settlements s
  WHERE s.budget = b.budget AND s.tenant = b.tenant AND s.holder = b.holder AND s.starts_at = b.starts_at
) s
WHERE (b.budget, b.tenant, b.holder) > ($1, $2, $3) AND b.starts_at <= clock.now AND b.ends_at > clock.now
ORDER BY b.budget, b.tenant, b.holder, b.starts_at LIMIT $4";

// prune_budgets
//
// A budget that is locked is in use: it is passed over.
const PRUNE: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
old AS MATERIALIZED (
  SELECT budget, tenant, holder, starts_at FROM budgets, clock WHERE ends_at <= now - $1 LIMIT $3 FOR UPDATE OF budgets SKIP LOCKED
),
gone AS (
  DELETE FROM budgets b USING old o
  WHERE b.budget = o.budget AND b.tenant = o.tenant AND b.holder = o.holder AND b.starts_at = o.starts_at RETURNING 1
),
moves AS (
  DELETE FROM budget_moves WHERE (id, starts_at) IN (SELECT id, starts_at FROM budget_moves, clock WHERE at <= now - $2 LIMIT $3)
  RETURNING 1
)
SELECT greatest((SELECT count(*) FROM gone), (SELECT count(*) FROM moves))";

// fold_budgets
//
// What a lease does for its own budget, for those that nobody leases any more. What belongs to none is of no use.
const FOLD: &str = "
WITH due AS MATERIALIZED (SELECT DISTINCT budget, tenant, holder, starts_at FROM budget_settlements LIMIT $1),
held AS MATERIALIZED (
  SELECT b.budget, b.tenant, b.holder, b.starts_at FROM budgets b
  JOIN due d ON b.budget = d.budget AND b.tenant = d.tenant AND b.holder = d.holder AND b.starts_at = d.starts_at
  ORDER BY b.budget, b.tenant, b.holder, b.starts_at FOR UPDATE OF b
),
folded AS (
  DELETE FROM budget_settlements s USING held h
  WHERE s.budget = h.budget AND s.tenant = h.tenant AND s.holder = h.holder AND s.starts_at = h.starts_at
  RETURNING s.budget, s.tenant, s.holder, s.starts_at, s.units, s.micro_usd
),
fold AS MATERIALIZED (
  SELECT budget, tenant, holder, starts_at, sum(units)::bigint AS units, sum(micro_usd)::bigint AS micro_usd
  FROM folded GROUP BY budget, tenant, holder, starts_at
),
changed AS (
  UPDATE budgets b SET taken_units = greatest(b.taken_units + f.units, 0), taken_micro_usd = greatest(b.taken_micro_usd + f.micro_usd, 0)
  FROM fold f WHERE b.budget = f.budget AND b.tenant = f.tenant AND b.holder = f.holder AND b.starts_at = f.starts_at
),
lost AS (
  DELETE FROM budget_settlements s USING due d
  WHERE s.budget = d.budget AND s.tenant = d.tenant AND s.holder = d.holder AND s.starts_at = d.starts_at
    AND NOT EXISTS (SELECT FROM budgets b
      WHERE b.budget = d.budget AND b.tenant = d.tenant AND b.holder = d.holder AND b.starts_at = d.starts_at)
)
SELECT count(*) FROM due";
