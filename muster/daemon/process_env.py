"""What a daemon finds around it when it is started, by systemd, a shell or a careless script."""

import os
import signal
import sys


def prepare_process_env() -> None:
    """Make them fit: call it before anything is opened or written.

    A hang-up of the terminal ends nobody.
    """
    prepare_streams()
    # A handler and not SIG_IGN, which what we start would inherit.
    signal.signal(signal.SIGHUP, lambda *_: None)


def prepare_streams() -> None:
    """The standard streams as every program wants them: open, and able to write any text.

    Of the descriptors 0 to 2 one that is closed would else be given to the next file that is
    opened, and what is said to an operator would end in it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    # Python has None for a stream that was closed when it began.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Where the locale is ASCII, or a file name no UTF-8, a line must be written all the
            # same.
            stream.reconfigure(errors="backslashreplace")
