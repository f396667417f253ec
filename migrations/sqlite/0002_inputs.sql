-- What tasks ask their owners and are answered, and what is remembered of sessions.

ALTER TABLE tasks ADD COLUMN client INTEGER NOT NULL DEFAULT 0; -- bits of what its creator can be asked
ALTER TABLE tasks ADD COLUMN inputs BLOB;         -- JSON of all its questions, in order; NULL if it never asked
ALTER TABLE tasks ADD COLUMN input_until INTEGER; -- when the next open question counts as declined; NULL if none is open
-- the lapse sweep
CREATE INDEX tasks_inputs ON tasks (input_until) WHERE input_until IS NOT NULL;

-- Answers that wait for their worker. Written with the change that closes their question; deleted once the worker has them,
-- or with the change that ends their task.
CREATE TABLE answers (
  task_id TEXT NOT NULL,                   -- of an open task
  nth     INTEGER NOT NULL,                -- the number of its question, from 1
  sealed  BLOB NOT NULL,                   -- the answer, sealed for this task, question and owner
  PRIMARY KEY (task_id, nth)
) STRICT;

CREATE TABLE carriers (
  task_id TEXT PRIMARY KEY,                -- whose questions
  stream  TEXT NOT NULL,                   -- the one stream that carries them
  until   INTEGER NOT NULL                 -- until when, unless it says so again
) STRICT;

CREATE TABLE session_notes (
  session    TEXT PRIMARY KEY,             -- its tag
  ended      INTEGER NOT NULL,             -- its client has ended it
  log_level  TEXT,                         -- the least level of log messages that it wants; NULL if it never said
  expires_at INTEGER NOT NULL              -- when the session expires; forgotten then
) STRICT;
CREATE INDEX session_notes_prune ON session_notes (expires_at);
INSERT INTO session_notes (session, ended, expires_at) SELECT session, 1, expires_at FROM ended_sessions;
DROP TABLE ended_sessions;

CREATE TABLE subscriptions (
  session    TEXT NOT NULL,                -- its tag
  slot       INTEGER NOT NULL,             -- from 0; taken once, so that the maximum is exact
  uri        TEXT NOT NULL,                -- a resource whose changes it wants to hear of
  expires_at INTEGER NOT NULL,             -- when the session expires; forgotten then
  PRIMARY KEY (session, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX subscriptions_prune ON subscriptions (expires_at);

-- `tools` is from now on a JSON array of [name, task support, definition, whether it decides, bits of what it needs].
ALTER TABLE workers ADD COLUMN offers BLOB; -- JSON object of its prompts, resources, templates; NULL if it has none
