"""Prepare the process of a daemon, whether systemd, a shell or a careless script started it."""

import os
import signal
import sys


def prepare_process_env() -> None:
    """Prepare the standard streams and ignore SIGHUP, so that a terminal's hang-up does not end the
    daemon.

    Call it before anything is opened or written.
    """
    prepare_streams()
    # A handler and not SIG_IGN, which child processes would inherit.
    signal.signal(signal.SIGHUP, lambda *_: None)


def prepare_streams() -> None:
    """Make sure that the standard streams are open and can write any text.

    If one of the descriptors 0 to 2 were closed, the next opened file would get it, and messages
    for the operator would end up in that file.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    # Python has None for a stream that was closed at the start.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Print non-ASCII text and file names that are not UTF-8 in escaped form instead of
            # failing.
            stream.reconfigure(errors="backslashreplace")
