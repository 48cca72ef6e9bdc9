"""Error messages and exit codes for failed commands."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from muster.cli.output.format import safe
from muster.protocol.outcome import EXIT_CLIENT, EXIT_DETACHED, EXIT_NEVER_STARTED

if TYPE_CHECKING:
    from muster.client.errors import ApiError

EXIT_USAGE = 2
EXIT_WARNED = 1
"""Exit code of a benchmark or check that found something. Faults exit with 2, like usage errors."""
_UNSATISFIABLE = "unsatisfiable"
"""Problem code of a job that the known nodes can never run."""
# Because hints name a command and, for other clients, an API request, remove the request.
_OF_THE_API = re.compile(r" \((?:GET|POST|PATCH|PUT|DELETE) /[^)]*\)")


class CliError(NamedTuple):
    """A message of one or more lines, safe for a terminal, and the exit code."""

    text: str
    code: int


class DetachedError(Exception):
    """The user detached. The message says what continues to run."""


class RefusedError(Exception):
    """A command that was not carried out. The message says why, and what to do."""


def explain_error(error: Exception) -> CliError:
    """Return the message and exit code for any error."""
    from muster.client.errors import ApiError, ClientError

    match error:
        case DetachedError():
            return CliError(str(error), EXIT_DETACHED)
        case RefusedError():
            return CliError(str(error), EXIT_CLIENT)
        case ApiError():
            return _refused_by_server(error)
        case ClientError():
            return CliError(_with_hint(safe(str(error)), error.hint), EXIT_CLIENT)
        case _:
            return _unexpected(error)


def _refused_by_server(error: ApiError) -> CliError:
    problem = error.problem
    hint = _OF_THE_API.sub("", problem.hint)
    # Because `detail` repeats the named fields in one string, leave it out.
    said = "the coordinator refuses this:" if problem.problems else safe(str(error))
    text = _with_hint(said, hint)
    for field in problem.problems:
        value = f" `{safe(field.value)}`:" if field.value else ""
        said = f"{safe(field.field)}:{value} {safe(field.message)}"
        text += "\n  " + _with_hint(said, field.hint, indent="      ")
    if problem.status >= 500 and problem.request_id:
        text += f"\n  request {safe(problem.request_id)} in the coordinator's log"
    if problem.code == _UNSATISFIABLE:
        return CliError(text, EXIT_NEVER_STARTED)
    return CliError(text, EXIT_USAGE if problem.status == 422 else EXIT_CLIENT)


def _unexpected(error: Exception) -> CliError:
    from muster.daemon.errors import DaemonError
    from muster.spec.errors import SpecError, printable

    match error:
        case SpecError():
            said = "the job is refused:\n" + _indented(str(error))
            notes = "".join(f"\n  {safe(note)}" for note in error.notes)
            return CliError(said + (f"\nhow it was read:{notes}" if notes else ""), EXIT_USAGE)
        case DaemonError():
            return CliError(safe(str(error)), EXIT_CLIENT)
        case UnicodeEncodeError():
            said = f"`{printable(error.object)}` is not UTF-8"
            return CliError(f"{said}: use a terminal with UTF-8 encoding", EXIT_USAGE)
        case OSError() if error.strerror:
            where = f"{safe(str(error.filename))}: " if error.filename else ""
            return CliError(f"{where}{error.strerror}", EXIT_CLIENT)
        case _:
            pass
    said = safe(str(error)) or "no message"
    details = _write_details(error)
    where = (
        "MUSTER_DEBUG=1 shows the traceback" if details is None else f"the details are in {details}"
    )
    return CliError(
        f"unexpected {type(error).__name__}: {said}\n  this is a bug in muster; {where}",
        EXIT_CLIENT,
    )


def _write_details(error: Exception) -> str | None:
    """Write the traceback of `error` to a file and return its path. Returns None if that fails."""
    import tempfile
    import traceback

    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    for folder in (os.path.join(state, "muster"), tempfile.gettempdir()):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            number, path = tempfile.mkstemp(".txt", "muster-error-", folder)
            with os.fdopen(number, "w", errors="backslashreplace") as file:
                file.write("".join(traceback.format_exception(error)))
        except OSError:
            continue
        return safe(path)
    return None


def _with_hint(said: str, hint: str, indent: str = "  ") -> str:
    return f"{said}\n{indent}{safe(hint)}" if hint else said


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
