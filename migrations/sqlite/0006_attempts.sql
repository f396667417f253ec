-- Tasks that are handed out again when their worker is lost, and the journals that say where to go on.

ALTER TABLE tasks ADD COLUMN on_interrupt TEXT NOT NULL DEFAULT 'fail';   -- fail, requeue, resume
ALTER TABLE tasks ADD COLUMN max_attempts INTEGER NOT NULL DEFAULT 3;     -- how often it is handed out at most

-- What the runs of an open task have finished. Deleted with the change that ends it.
CREATE TABLE journal (
  task_id TEXT NOT NULL,                   -- of an open task
  nth     INTEGER NOT NULL,                -- its place, from 1, without gaps
  sealed  BLOB NOT NULL,                   -- the entry, sealed for this task, place and owner
  PRIMARY KEY (task_id, nth)
) STRICT;
