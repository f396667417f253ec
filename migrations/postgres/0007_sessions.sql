-- Whose sessions are remembered, and since when, so that gateways read changes alone.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER TABLE session_notes
  ADD COLUMN tenant     text COLLATE "C" NOT NULL DEFAULT '', -- whose session it is; empty for those of an earlier version
  ADD COLUMN owner      text COLLATE "C" NOT NULL DEFAULT '', -- the same, within the tenant
  ADD COLUMN changed_at bigint NOT NULL DEFAULT 0;            -- when anything of it was last changed
-- The table is small, and its rows live for a day.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX session_notes_owner ON session_notes (tenant, owner);
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX session_notes_changed ON session_notes (changed_at, session);
