-- Whose sessions are remembered, and since when, so that gateways read changes alone.

ALTER TABLE session_notes ADD COLUMN tenant TEXT NOT NULL DEFAULT '';        -- whose session it is; empty for those of an earlier version
ALTER TABLE session_notes ADD COLUMN owner TEXT NOT NULL DEFAULT '';         -- the same, within the tenant
ALTER TABLE session_notes ADD COLUMN changed_at INTEGER NOT NULL DEFAULT 0;  -- when anything of it was last changed
CREATE INDEX session_notes_owner ON session_notes (tenant, owner);
CREATE INDEX session_notes_changed ON session_notes (changed_at, session);
