"""A job that writes timestamps, one line at a time, as a training loop prints its steps."""

import os
import sys
import time

for _ in range(int(sys.argv[1])):
    os.write(1, b"%d\n" % time.time_ns())
    time.sleep(0.02)
