-- What there is to spend, what is taken of it, and what tasks have set aside.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER TABLE tasks
  ADD COLUMN reserved        bytea,       -- JSON of what was set aside for it, and of which budgets; NULL if no budget is charged
  ADD COLUMN spent_units     bigint,      -- what its runs say that they have used so far; NULL if they never said
  ADD COLUMN spent_micro_usd bigint;      -- the same in millionths of a US dollar

CREATE TABLE budgets (
  budget          text COLLATE "C" NOT NULL, -- its name
  tenant          text COLLATE "C" NOT NULL, -- the organisation
  holder          text COLLATE "C" NOT NULL, -- the caller or the tool; empty for the organisation as a whole
  starts_at       bigint NOT NULL,           -- when the window began
  ends_at         bigint NOT NULL,           -- when it ends
  limit_units     bigint,                    -- how much there is, as was said with the last lease; NULL is without end
  limit_micro_usd bigint,
  taken_units     bigint NOT NULL DEFAULT 0, -- what was handed out and not given back, as far as settlements are folded
  taken_micro_usd bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (budget, tenant, holder, starts_at),
  CONSTRAINT taken_is_not_negative CHECK (taken_units >= 0 AND taken_micro_usd >= 0)
) WITH (fillfactor = 50); -- locked and changed by every lease
CREATE INDEX budgets_prune ON budgets (ends_at);

-- What is to be added to budgets.taken. A row of its own, so that the end of a task waits for no lease; the next lease of the
-- same budget, or the prune sweep, moves it there.
CREATE TABLE budget_settlements (
  budget    text COLLATE "C" NOT NULL,    -- as in budgets
  tenant    text COLLATE "C" NOT NULL,    -- as in budgets
  holder    text COLLATE "C" NOT NULL,    -- as in budgets
  starts_at bigint NOT NULL,              -- as in budgets
  units     bigint NOT NULL,              -- what is given back is negative
  micro_usd bigint NOT NULL
);
CREATE INDEX budget_settlements_key ON budget_settlements (budget, tenant, holder, starts_at);

-- Leases and returns of the last minutes, so that one that is said again is known.
CREATE TABLE budget_moves (
  id        text COLLATE "C" NOT NULL,   -- random
  starts_at bigint NOT NULL,              -- in which window: said again in the next one, it is another one
  units     bigint NOT NULL,              -- what was granted
  micro_usd bigint NOT NULL,
  at        bigint NOT NULL,              -- when
  PRIMARY KEY (id, starts_at)
);
CREATE INDEX budget_moves_prune ON budget_moves (at);

-- What is left of a limit; of NULL there is no end.
CREATE FUNCTION longhaul_left(most bigint, taken bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN most IS NOT NULL THEN greatest(most - taken, 0) END
$$;

-- What is handed out of `remains`; see Limit::share in longhaul-core, with which a test compares it.
CREATE FUNCTION longhaul_share(remains bigint, demand bigint, ahead bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN remains IS NULL THEN least(demand + ahead, 1000000000000000)
    WHEN remains <= demand THEN remains ELSE demand + least(ahead, (remains - demand) / 8) END
$$;

-- Leases a slice. Whoever has locked the budget moves the settlements into it first.
CREATE FUNCTION longhaul_lease(
  the_id text, the_budget text, the_tenant text, the_holder text, the_start bigint, the_end bigint,
  most_units bigint, most_micro_usd bigint, demand_units bigint, demand_micro_usd bigint, ahead_units bigint, ahead_micro_usd bigint,
  OUT granted_units bigint, OUT granted_micro_usd bigint, OUT left_units bigint, OUT left_micro_usd bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  b budgets;
  settled_units bigint;
  settled_micro_usd bigint;
BEGIN
  INSERT INTO budgets (budget, tenant, holder, starts_at, ends_at) VALUES (the_budget, the_tenant, the_holder, the_start, the_end)
  ON CONFLICT DO NOTHING;
  SELECT * INTO STRICT b FROM budgets
  WHERE budget = the_budget AND tenant = the_tenant AND holder = the_holder AND starts_at = the_start FOR UPDATE;
  WITH folded AS (
    DELETE FROM budget_settlements
    WHERE budget = the_budget AND tenant = the_tenant AND holder = the_holder AND starts_at = the_start
    RETURNING units, micro_usd
  )
  SELECT coalesce(sum(units), 0), coalesce(sum(micro_usd), 0) INTO settled_units, settled_micro_usd FROM folded;
  b.taken_units := greatest(b.taken_units + settled_units, 0);
  b.taken_micro_usd := greatest(b.taken_micro_usd + settled_micro_usd, 0);
  -- Under the lock, so that two copies of one wish take turns.
  SELECT units, micro_usd INTO granted_units, granted_micro_usd FROM budget_moves WHERE id = the_id AND starts_at = the_start;
  IF NOT FOUND THEN
    granted_units := longhaul_share(longhaul_left(most_units, b.taken_units), demand_units, ahead_units);
    granted_micro_usd := longhaul_share(longhaul_left(most_micro_usd, b.taken_micro_usd), demand_micro_usd, ahead_micro_usd);
    INSERT INTO budget_moves (id, starts_at, units, micro_usd, at)
    VALUES (the_id, the_start, granted_units, granted_micro_usd, longhaul_now());
    b.taken_units := b.taken_units + granted_units;
    b.taken_micro_usd := b.taken_micro_usd + granted_micro_usd;
  END IF;
  UPDATE budgets SET taken_units = b.taken_units, taken_micro_usd = b.taken_micro_usd,
    limit_units = most_units, limit_micro_usd = most_micro_usd
  WHERE budget = the_budget AND tenant = the_tenant AND holder = the_holder AND starts_at = the_start;
  left_units := longhaul_left(most_units, b.taken_units);
  left_micro_usd := longhaul_left(most_micro_usd, b.taken_micro_usd);
END $$;
