-- What a task's trace says beside its ids.

ALTER TABLE tasks ADD COLUMN tracestate TEXT; -- W3C `tracestate` of the creating call
ALTER TABLE tasks ADD COLUMN baggage TEXT;    -- W3C `baggage` of the creating call
