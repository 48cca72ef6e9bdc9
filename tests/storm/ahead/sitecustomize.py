"""A wall clock that is days ahead, for a daemon that has this folder in its PYTHONPATH."""

import os
import time

_AHEAD_S = float(os.environ.get("MUSTER_TEST_AHEAD_S", "0"))
_time, _time_ns = time.time, time.time_ns
vars(time).update(
    time=lambda: _time() + _AHEAD_S,
    time_ns=lambda: _time_ns() + int(_AHEAD_S * 1e9),
)
