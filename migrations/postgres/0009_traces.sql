-- What a task's trace says beside its ids.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER TABLE tasks
  ADD COLUMN tracestate text COLLATE "C", -- W3C `tracestate` of the creating call
  ADD COLUMN baggage    text COLLATE "C"; -- W3C `baggage` of the creating call
