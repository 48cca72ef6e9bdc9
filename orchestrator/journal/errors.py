"""Errors of a journal. Each message says what the operator should do."""

from muster.daemon.errors import DaemonError


class JournalError(DaemonError):
    """Root of all errors that make a journal unusable."""


class ForeignJournalError(JournalError):
    """The file is not a journal of Muster, so nothing may be written to it."""


class NewerJournalError(JournalError):
    """A newer Muster wrote it; reading it here would lose what this version does not know."""


class CorruptJournalError(JournalError):
    """Written data is missing or damaged. A backup is the way out; callers that know the command
    line add the command.
    """


class LostTailError(CorruptJournalError):
    """The last commits cannot be read, but everything before them can. Continuing without them
    loses less than a backup does.
    """


class LostLogError(LostTailError):
    """The write-ahead log is missing. Another program may have checkpointed it into the database,
    so continuing without it is the last resort.
    """


class HalfRestoredError(CorruptJournalError):
    """A restore was killed between its renames. The next one undoes it first."""


class JournalFullError(JournalError):
    """The disk has no room to open the journal."""


class JournalWriteError(JournalError):
    """A commit failed: the disk no longer matches the decisions of this process."""
