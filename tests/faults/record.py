"""Record of a run of the tests, by fault, kept beside the table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.faults.table import by_test

FILE = Path(__file__).with_name("record.json")
_MEASURED = "fault "


class Shown(msgspec.Struct, kw_only=True):
    """Result of one test: `passed`, `failed` or `skipped: why`, its cases taken together; and
    measurements in seconds, by fault."""

    outcome: str
    measured_s: dict[str, float] = {}


class Recorder:
    """Marks the tests of faults, and writes down how they went if it is asked to."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._shown: dict[str, Shown] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = by_test()
        for item in items:
            numbers = known.get(_name(item.nodeid), [])
            if numbers:
                item.add_marker(pytest.mark.fault(*numbers))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "fault" not in report.keywords:
            return
        name = _name(report.nodeid)
        if report.when == "call" or not report.passed:
            before = self._shown.get(name)
            now = _outcome(report)
            if before is None:
                self._shown[name] = Shown(outcome=now)
            elif _GRAVITY[now.partition(":")[0]] > _GRAVITY[before.outcome.partition(":")[0]]:
                before.outcome = now
        if report.when == "teardown" and name in self._shown:
            for key, value in report.user_properties:
                if key.startswith(_MEASURED) and isinstance(value, float):
                    figures = self._shown[name].measured_s
                    number = key.removeprefix(_MEASURED)
                    figures[number] = max(value, figures.get(number, 0.0))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._file is not None and not hasattr(session.config, "workerinput"):
            write(self._file, self._shown)


_GRAVITY = {"passed": 0, "skipped": 1, "failed": 2}


def _name(nodeid: str) -> str:
    """Without parameters."""
    return nodeid.partition("[")[0]


def _outcome(report: pytest.TestReport) -> str:
    if report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return f"skipped: {why.removeprefix('Skipped: ')}"
    return str(report.outcome)


def write(file: Path, shown: Mapping[str, Shown]) -> None:
    """Replace the record, its tests in order."""
    ordered = {name: shown[name] for name in sorted(shown)}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


def read(file: Path = FILE) -> dict[str, Shown]:
    """The record; an empty one where there is none yet."""
    if not file.exists():
        return {}
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Shown])
