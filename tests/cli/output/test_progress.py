"""Progress of long steps, on a terminal and without one."""

import io

import pytest

from muster.cli.output import progress
from muster.cli.output.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    found = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: found[0])
    return found


def test_a_terminal_has_one_line_that_is_erased(now: list[float]) -> None:
    stream = Terminal()
    shown = Progress("sending code", stream)
    shown.show(0, 5_000_000)
    assert stream.getvalue() == ""
    now[0] = 2.0
    shown.show(1_000_000, 5_000_000)
    shown.show(1_500_000, 5_000_000)  # a moment later
    line = "sending code: 1.0 MB of 5.0 MB"
    assert stream.getvalue() == f"\r{line}"
    shown.end()
    assert stream.getvalue() == f"\r{line}\r{' ' * len(line)}\r"


def test_without_a_terminal_a_line_comes_now_and_then(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress("reading code", io.StringIO())
    for second in range(25):
        now[0] = float(second)
        shown.show(second * 1_000_000, 25_000_000)
    shown.end()
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[-1] for line in said] == [
        "1.0 MB of 25.0 MB",
        "11.0 MB of 25.0 MB",
        "21.0 MB of 25.0 MB",
    ]
