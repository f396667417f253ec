-- What tasks ask their owners and are answered, and what is remembered of sessions.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER TABLE tasks
  -- squawk-ignore prefer-bigint-over-smallint
  ADD COLUMN client      smallint NOT NULL DEFAULT 0,       -- bits of what its creator can be asked
  ADD COLUMN inputs      bytea,                             -- JSON of all its questions, in order; NULL if it never asked
  ADD COLUMN input_until bigint;                            -- when the next open question counts as declined; NULL if none is open
-- the lapse sweep
-- The index is empty at first, and the roles are stopped meanwhile.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX tasks_inputs ON tasks (input_until) WHERE input_until IS NOT NULL;

-- Answers that wait for their worker. Written with the change that closes their question; deleted once the worker has them,
-- or with the change that ends their task.
CREATE TABLE answers (
  task_id text COLLATE "C" NOT NULL,      -- of an open task
  nth     integer NOT NULL,               -- the number of its question, from 1
  sealed  bytea NOT NULL,                 -- the answer, sealed for this task, question and owner
  PRIMARY KEY (task_id, nth)
);

CREATE TABLE carriers (
  task_id text COLLATE "C" PRIMARY KEY,   -- whose questions
  stream  text COLLATE "C" NOT NULL,      -- the one stream that carries them
  until   bigint NOT NULL                 -- until when, unless it says so again
);

CREATE TABLE session_notes (
  session    text COLLATE "C" PRIMARY KEY, -- its tag
  ended      boolean NOT NULL,             -- its client has ended it
  log_level  text COLLATE "C",             -- the least level of log messages that it wants; NULL if it never said
  expires_at bigint NOT NULL               -- when the session expires; forgotten then
);
CREATE INDEX session_notes_prune ON session_notes (expires_at);
INSERT INTO session_notes (session, ended, expires_at) SELECT session, true, expires_at FROM ended_sessions;
-- squawk-ignore ban-drop-table
DROP TABLE ended_sessions;

CREATE TABLE subscriptions (
  session    text COLLATE "C" NOT NULL,   -- its tag
  slot       integer NOT NULL,            -- from 0; taken once, so that the maximum is exact
  uri        text COLLATE "C" NOT NULL,   -- a resource whose changes it wants to hear of
  expires_at bigint NOT NULL,             -- when the session expires; forgotten then
  PRIMARY KEY (session, slot)
);
CREATE INDEX subscriptions_prune ON subscriptions (expires_at);

-- `tools` is from now on a JSON array of [name, task support, definition, whether it decides, bits of what it needs].
ALTER TABLE workers
  ADD COLUMN offers bytea;                -- JSON object of its prompts, resources, templates; NULL if it has none
