-- What there is to spend, what is taken of it, and what tasks have set aside.

ALTER TABLE tasks ADD COLUMN reserved BLOB;           -- JSON of what was set aside for it, and of which budgets; NULL if no budget is charged
ALTER TABLE tasks ADD COLUMN spent_units INTEGER;     -- what its runs say that they have used so far; NULL if they never said
ALTER TABLE tasks ADD COLUMN spent_micro_usd INTEGER; -- the same in millionths of a US dollar

CREATE TABLE budgets (
  budget          TEXT NOT NULL,              -- its name
  tenant          TEXT NOT NULL,              -- the organisation
  holder          TEXT NOT NULL,              -- the caller or the tool; empty for the organisation as a whole
  starts_at       INTEGER NOT NULL,           -- when the window began
  ends_at         INTEGER NOT NULL,           -- when it ends
  limit_units     INTEGER,                    -- how much there is, as was said with the last lease; NULL is without end
  limit_micro_usd INTEGER,
  taken_units     INTEGER NOT NULL DEFAULT 0 CHECK (taken_units >= 0), -- what was handed out and not given back
  taken_micro_usd INTEGER NOT NULL DEFAULT 0 CHECK (taken_micro_usd >= 0),
  PRIMARY KEY (budget, tenant, holder, starts_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX budgets_prune ON budgets (ends_at);

-- Leases and returns of the last minutes, so that one that is said again is known.
CREATE TABLE budget_moves (
  id        TEXT NOT NULL,                    -- random
  starts_at INTEGER NOT NULL,                 -- in which window: said again in the next one, it is another one
  units     INTEGER NOT NULL,                 -- what was granted
  micro_usd INTEGER NOT NULL,
  at        INTEGER NOT NULL,                 -- when
  PRIMARY KEY (id, starts_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX budget_moves_prune ON budget_moves (at);
