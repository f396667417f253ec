-- Tasks that are handed out again when their worker is lost, and the journals that say where to go on.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER TABLE tasks
  ADD COLUMN on_interrupt text COLLATE "C" NOT NULL DEFAULT 'fail', -- fail, requeue, resume
  ADD COLUMN max_attempts integer NOT NULL DEFAULT 3;               -- how often it is handed out at most

-- What the runs of an open task have finished. Deleted with the change that ends it.
CREATE TABLE journal (
  task_id text COLLATE "C" NOT NULL,      -- of an open task
  nth     integer NOT NULL,               -- its place, from 1, without gaps
  sealed  bytea NOT NULL,                 -- the entry, sealed for this task, place and owner
  PRIMARY KEY (task_id, nth)
);
