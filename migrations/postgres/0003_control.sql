-- What operators decide while everything runs: who may call, and where calls are switched off.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Whoever changes something locks its row until the commit: so numbers become visible in their order, and whoever has seen
-- one has seen all below it.
CREATE TABLE control_changes (
  kind      text COLLATE "C" PRIMARY KEY, -- credentials, switches
  last      bigint NOT NULL DEFAULT 0,    -- the number of the last change
  forgotten bigint NOT NULL DEFAULT 0     -- of changes up to this number some are no longer known
);
INSERT INTO control_changes (kind) VALUES ('credentials'), ('switches');

CREATE TABLE credentials (
  id           text COLLATE "C" PRIMARY KEY, -- not secret
  tenant       text COLLATE "C" NOT NULL,    -- the organisation of the agent
  agent        text COLLATE "C" NOT NULL,    -- whom it names
  sha256       bytea NOT NULL,               -- digest of its key, which is nowhere
  former       bytea,                        -- digest of its key before that
  former_until bigint,                       -- until when that one is accepted
  created_at   bigint NOT NULL,              -- when it was stored
  expires_at   bigint,                       -- when it is accepted no more; NULL is never
  rotated_at   bigint,                       -- when it last got another key
  revoked_at   bigint,                       -- when it was revoked; forgotten some time after that, or after it expired
  changed      bigint NOT NULL               -- the number of its last change
);
-- what gateways read
CREATE UNIQUE INDEX credentials_changed ON credentials (changed);
CREATE UNIQUE INDEX credentials_sha256 ON credentials (sha256);

CREATE TABLE switches (
  scope      text COLLATE "C" PRIMARY KEY, -- the next three in one
  tenant     text COLLATE "C",             -- whose calls; NULL is everyone's
  tool       text COLLATE "C",             -- calls of what; NULL is of anything
  caller     text COLLATE "C",             -- calls by whom; NULL is by anyone
  off        boolean NOT NULL,             -- whether they are refused
  why        text NOT NULL,                -- the operator's reason
  changed_at bigint NOT NULL,              -- since when; one that is on is forgotten some time after that
  changed    bigint NOT NULL               -- the number of its last change
);
CREATE UNIQUE INDEX switches_changed ON switches (changed);

-- What was decided, for the audit log.
CREATE TABLE control_events (
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- order of writing
  at      bigint NOT NULL,                 -- when
  event   text COLLATE "C" NOT NULL,       -- mcp.switch.changed, mcp.credential.created, .rotated, .revoked
  tenant  text COLLATE "C",                -- whose; NULL is everyone's
  subject text COLLATE "C" NOT NULL,       -- a credential's id; a switch's scope
  why     text                             -- for a switch: off or on, and the operator's reason
);
CREATE INDEX control_events_at ON control_events (at);
