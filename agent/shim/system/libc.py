"""The C library, for calls that Python does not offer. Errors are in `ctypes.get_errno()`."""

from __future__ import annotations

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
