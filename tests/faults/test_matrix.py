"""The matrix of faults is whole, names tests that there are, and says what their run has shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.page import PAGE, page, state
from tests.faults.record import Shown, read
from tests.faults.table import ROOT, Fault, by_test, faults, named, names_in

KNOWN = range(1, 63)


def test_every_fault_is_there_once_with_a_test_or_the_reason() -> None:
    numbers = [row.number for row in faults()]
    assert len(numbers) == len(set(numbers))
    assert set(KNOWN) <= set(numbers)
    tests = named()
    assert [row.number for row in faults() if not tests[row.number] and not row.why] == []


def named_in_files() -> set[str]:
    return {
        f"{file.relative_to(ROOT).as_posix()}::{name}"
        for file in ROOT.glob("tests/**/test_*.py")
        for name in names_in(file)
    }


def test_every_test_that_is_named_is_there() -> None:
    assert sorted(set(by_test()) - named_in_files()) == []


def test_no_test_names_a_fault_that_is_none() -> None:
    assert set(named()) == {row.number for row in faults()}


def test_the_record_speaks_of_tests_that_are_there_and_none_failed() -> None:
    """A test that goes, or gets another name, takes its outcome along: `./dev matrix` makes it
    anew."""
    record = read()
    assert sorted(set(record) - named_in_files()) == []
    assert [name for name, one in record.items() if one.outcome == "failed"] == []


def test_the_page_says_what_the_record_says() -> None:
    assert PAGE.read_text("utf-8") == page(faults(), named(), read()), (
        "docs/reference/fault-matrix.md is not of this table and this record: "
        "run `python -m tests.faults --page`"
    )


FAULT = Fault(number=7, fault="f", injected="i", promised="p", why="no")
GOOD, BAD = Shown(outcome="passed"), Shown(outcome="failed")


@pytest.mark.parametrize(
    ("tests", "record", "wanted"),
    [
        (set(), {}, "no"),
        ({"a"}, {"a": GOOD}, "passed; no"),
        ({"a", "b"}, {"a": GOOD, "b": BAD}, "failed (1 of 2 tests)"),
        ({"a", "b"}, {"a": GOOD}, "not run (1 of 2 tests)"),
        ({"a"}, {"a": Shown(outcome="skipped: no root")}, "skipped: no root (1 of 1 tests)"),
    ],
)
def test_a_fault_is_shown_if_all_its_tests_passed(
    tests: set[str], record: dict[str, Shown], wanted: str
) -> None:
    assert state(FAULT, tests, record) == wanted


CASES = """
import pytest

@pytest.mark.fault(7, 8)
@pytest.mark.parametrize("good", [True, False])
def test_both(good, measured):
    measured(7, 2.5 if good else 1.5)
    assert good

@pytest.mark.fault(9)
def test_skipped():
    pytest.skip("no such kernel")

@pytest.mark.fault(9)
def test_that_is_fine():
    pass

def test_of_no_fault():
    assert False
"""


def test_a_run_is_recorded(tmp_path: Path) -> None:
    """Cases are taken together, the worst counts; figures are kept, the greatest of them."""
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    fault: x\n    long: x\n")
    file = tmp_path / "record.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:randomly"),
            *(f"--record-faults={file}", str(tmp_path)),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert {name: (s.outcome, s.measured_s) for name, s in read(file).items()} == {
        "test_cases.py::test_both": ("failed", {"7": 2.5}),
        "test_cases.py::test_skipped": ("skipped: no such kernel", {}),
        "test_cases.py::test_that_is_fine": ("passed", {}),
    }
