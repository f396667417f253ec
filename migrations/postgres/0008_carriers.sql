-- Of the streams that could carry a task's questions, which one comes next.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER TABLE carriers
  ADD COLUMN since       bigint NOT NULL DEFAULT 0, -- when it began; 0 for a session's, which gives way to any that waits for the result
  ADD COLUMN heir        text COLLATE "C",          -- a stream that came later, to which it is to give way; NULL if there is none
  ADD COLUMN heir_opened bigint,                    -- when the heir was opened
  ADD COLUMN heir_until  bigint;                    -- how long the heir is waited for, unless it says so again
