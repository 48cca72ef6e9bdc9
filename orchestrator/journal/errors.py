"""Errors of a journal, each with a message that says what the operator should do."""

from muster.daemon.errors import DaemonError


class JournalError(DaemonError):
    """The root of everything that makes a journal unusable."""


class ForeignJournalError(JournalError):
    """The file is no journal of Muster, so nothing may be written to it."""


class NewerJournalError(JournalError):
    """A newer Muster wrote it; reading it here would lose what this version does not know."""


class CorruptJournalError(JournalError):
    """What was written is not there, or not as it was written. A backup is the way out: who knows
    the command line adds the command."""


class LostTailError(CorruptJournalError):
    """What was committed last cannot be read, and what came before it can: to go on with that loses
    less than a backup does."""


class LostLogError(LostTailError):
    """The write-ahead log is not there. Another program that opened the journal since may have
    written it into the database, so to go on without it is the last way out."""


class HalfRestoredError(CorruptJournalError):
    """A restore was killed between its renames. The next one undoes it first."""


class JournalFullError(JournalError):
    """There is no room on its disk to open it."""


class JournalWriteError(JournalError):
    """A commit failed: what is on disk is no longer what this process decided."""
