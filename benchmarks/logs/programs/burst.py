"""A job that writes a number of MiB in blocks, at a rate in MiB per second (0: full speed)."""

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
