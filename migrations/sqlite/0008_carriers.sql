-- Of the streams that could carry a task's questions, which one comes next.

ALTER TABLE carriers ADD COLUMN since INTEGER NOT NULL DEFAULT 0; -- when it began; 0 for a session's, which gives way to any that waits for the result
ALTER TABLE carriers ADD COLUMN heir TEXT;                -- a stream that came later, to which it is to give way; NULL if there is none
ALTER TABLE carriers ADD COLUMN heir_opened INTEGER;      -- when the heir was opened
ALTER TABLE carriers ADD COLUMN heir_until INTEGER;       -- how long the heir is waited for, unless it says so again
