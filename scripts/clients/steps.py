"""Prints one line per step of a client's run: `ok   what`, or `FAIL what: why`, and counts the failures."""

import traceback
from contextlib import asynccontextmanager

import anyio

STEP_SECONDS_MAX = 30


class Steps:
    def __init__(self):
        self.failed = 0

    @asynccontextmanager
    async def __call__(self, what):
        # A failed step does not end the run: one run should show every fault.
        try:
            with anyio.fail_after(STEP_SECONDS_MAX):
                yield
            print(f"ok   {what}", flush=True)
        except Exception as error:
            self.failed += 1
            print(f"FAIL {what}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
