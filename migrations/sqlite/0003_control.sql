-- What operators decide while everything runs: who may call, and where calls are switched off.

CREATE TABLE control_changes (
  kind      TEXT PRIMARY KEY,              -- credentials, switches
  last      INTEGER NOT NULL DEFAULT 0,    -- the number of the last change
  forgotten INTEGER NOT NULL DEFAULT 0     -- of changes up to this number some are no longer known
) STRICT;
INSERT INTO control_changes (kind) VALUES ('credentials'), ('switches');

CREATE TABLE credentials (
  id           TEXT PRIMARY KEY,           -- not secret
  tenant       TEXT NOT NULL,              -- the organisation of the agent
  agent        TEXT NOT NULL,              -- whom it names
  sha256       BLOB NOT NULL,              -- digest of its key, which is nowhere
  former       BLOB,                       -- digest of its key before that
  former_until INTEGER,                    -- until when that one is accepted
  created_at   INTEGER NOT NULL,           -- when it was stored
  expires_at   INTEGER,                    -- when it is accepted no more; NULL is never
  rotated_at   INTEGER,                    -- when it last got another key
  revoked_at   INTEGER,                    -- when it was revoked; forgotten some time after that, or after it expired
  changed      INTEGER NOT NULL            -- the number of its last change
) STRICT;
-- what gateways read
CREATE UNIQUE INDEX credentials_changed ON credentials (changed);
CREATE UNIQUE INDEX credentials_sha256 ON credentials (sha256);

CREATE TABLE switches (
  scope      TEXT PRIMARY KEY,             -- the next three in one
  tenant     TEXT,                         -- whose calls; NULL is everyone's
  tool       TEXT,                         -- calls of what; NULL is of anything
  caller     TEXT,                         -- calls by whom; NULL is by anyone
  off        INTEGER NOT NULL,             -- whether they are refused
  why        TEXT NOT NULL,                -- the operator's reason
  changed_at INTEGER NOT NULL,             -- since when; one that is on is forgotten some time after that
  changed    INTEGER NOT NULL              -- the number of its last change
) STRICT;
CREATE UNIQUE INDEX switches_changed ON switches (changed);

-- What was decided, for the audit log.
CREATE TABLE control_events (
  id      INTEGER PRIMARY KEY,             -- order of writing
  at      INTEGER NOT NULL,                -- when
  event   TEXT NOT NULL,                   -- mcp.switch.changed, mcp.credential.created, .rotated, .revoked
  tenant  TEXT,                            -- whose; NULL is everyone's
  subject TEXT NOT NULL,                   -- a credential's id; a switch's scope
  why     TEXT                             -- for a switch: off or on, and the operator's reason
) STRICT;
CREATE INDEX control_events_at ON control_events (at);
