"""The errors that the daemons' shared code raises.

    DaemonError                 its text is a sentence for a person: what, which value, what to do
      ConfigError               a configuration that cannot be used
        InsecureConfigError     one that would send secrets over a network in the clear
      TlsError                  a certificate or key that cannot be used
      FileError                 a file that cannot be written durably
      DirectoryLockedError      a state folder that another process holds
      TaskEndedError            a task that keeps the daemon alive ended

A daemon's `main` prints the text of a `DaemonError` on stderr and exits. Users see no traceback.
"""


class DaemonError(Exception):
    """The root. `str(error)` is a complete message that needs no further context."""


class ConfigError(DaemonError):
    """A configuration that is missing, unreadable, malformed, or holds a wrong value."""


class InsecureConfigError(ConfigError):
    """A configuration that would send tokens or jobs over a network without TLS."""


class TlsError(DaemonError):
    """A certificate, key or CA file that is missing, unreadable or does not fit."""


class FileError(DaemonError):
    """A file that could not be written durably; the old content, if any, is unchanged."""


class DirectoryLockedError(DaemonError):
    """Another process holds the folder. `pid` is that process, or None if unknown."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class TaskEndedError(DaemonError):
    """A task that must run as long as its daemon ended; its error is `__cause__`."""
