"""A job that writes so many MiB, in blocks, at so many MiB a second (0: as fast as it can)."""

import os
import sys
import time

BLOCK = b"x" * 65535 + b"\n"

blocks, rate = int(sys.argv[1]) * 16, float(sys.argv[2]) * 16
began = time.monotonic()
for number in range(blocks):
    if rate and (ahead := number / rate - (time.monotonic() - began)) > 0:
        time.sleep(ahead)
    os.write(1, BLOCK)
