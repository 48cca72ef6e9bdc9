"""The interpreter of jobs that name none: whether it has torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import SUBMITTER, AgentConfig
from agent.core.inputs import Input, NodeObserved
from agent.monitors.interpreter import InterpreterMonitor
from agent.probe.interpreter import UnknownError, look_for_torch
from agent.taskdirs.task_accounts import TaskAccounts
from muster.protocol.link.control_channel import NodeChanges
from tests.agent.process_of_agent import joined

OWN = AgentConfig(allow_root_jobs=True) if os.geteuid() == 0 else AgentConfig()
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def prefix() -> Iterator[Path]:
    """A virtual environment that all users can enter, without torch, of an interpreter that all
    users can run."""
    system = Path("/usr/bin/python3")
    base = (system if system.exists() else Path(sys.executable)).resolve()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "venv"
        (folder / "bin").mkdir(parents=True)
        for each in ("python3", "python"):
            (folder / "bin" / each).symlink_to(base)
        text = f"home = {base.parent}\ninclude-system-site-packages = false\n"
        (folder / "pyvenv.cfg").write_text(text)
        packages(folder).mkdir(parents=True)
        yield folder


def packages(prefix: Path) -> Path:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    argv = [str(prefix / "bin" / "python3"), "-c", where]
    return Path(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip())


def check(python: Path, user: str | None = None, timeout_s: float = 60.0) -> str:
    submitters = user == SUBMITTER
    name = None if submitters else user
    lack = look_for_torch(python, name, submitters=submitters, timeout_s=timeout_s)
    return "" if lack is None else lack.what


def test_torch_is_looked_for_and_not_imported(prefix: Path) -> None:
    assert check(prefix) == f"no torch in {prefix}/bin/python3"
    assert check(prefix / "bin" / "python") == f"no torch in {prefix}/bin/python"
    torch = packages(prefix) / "torch"
    torch.mkdir()
    assert check(prefix) != "", "a folder is no package"
    (torch / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert check(prefix) == ""


def test_an_interpreter_that_cannot_run_is_named(prefix: Path) -> None:
    assert "cannot run (No such file or directory)" in check(prefix / "none")
    missing = look_for_torch(prefix / "none", None)
    assert missing is not None
    assert f"make one with torch at {prefix}/none, which needs no restart" in missing.fix
    broken = prefix / "broken"
    broken.write_text("#!/bin/sh\necho 'no libpython' >&2\nexit 127\n")
    broken.chmod(0o755)
    assert "cannot run (no libpython)" in check(broken)


def test_one_that_does_not_answer_is_unknown(prefix: Path) -> None:
    hung = prefix / "hung"
    hung.write_text("#!/bin/sh\nexec sleep 1000\n")
    hung.chmod(0o755)
    with pytest.raises(UnknownError, match="no answer within"):
        check(hung, timeout_s=0.2)


def test_its_output_takes_no_memory(prefix: Path) -> None:
    """A home of users may have code that every interpreter of theirs runs."""
    loud = prefix / "loud"
    text = "head -c 67108864 /dev/zero | tr '\\0' x"
    loud.write_text(f"#!/bin/sh\n{text}\n{text} >&2\necho the end >&2\nexit 3\n")
    loud.chmod(0o755)
    tracemalloc.start()
    try:
        assert check(loud).endswith("the end)")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("words", ["", "True", "yes no"])
def test_another_answer_is_unknown(prefix: Path, words: str) -> None:
    odd = prefix / "odd"
    odd.write_text(f"#!/bin/sh\necho {words}\n")
    odd.chmod(0o755)
    with pytest.raises(UnknownError, match="no answer that can be read"):
        check(odd)


@AS_ROOT
@pytest.mark.root
def test_the_user_of_the_jobs_looks(prefix: Path) -> None:
    assert check(prefix, "nobody").startswith("no torch in")
    assert check(prefix, SUBMITTER).startswith("no torch in")
    prefix.parent.chmod(0o700)
    assert "cannot run (Permission denied)" in check(prefix / "bin" / "python", "nobody")
    with pytest.raises(UnknownError):  # a group of a submitter may be let in
        check(prefix / "bin" / "python", SUBMITTER)


@AS_ROOT
@pytest.mark.root
def test_submitters_may_have_torch_of_their_own(prefix: Path) -> None:
    """Unlike a virtual environment, an interpreter of the system looks in their homes."""
    text = (prefix / "pyvenv.cfg").read_text()
    (prefix / "pyvenv.cfg").write_text(text.replace("packages = false", "packages = true"))
    asked = "import importlib.util as u, site; print(u.find_spec('torch'), site.ENABLE_USER_SITE)"
    said = subprocess.run(
        [prefix / "bin/python", "-c", asked], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    if said.split() != ["None", "True"]:
        pytest.skip(f"the system's interpreter here: {said}")
    assert check(prefix, "nobody").startswith("no torch in")
    with pytest.raises(UnknownError, match="of their own"):
        check(prefix, SUBMITTER)


async def test_a_change_is_posted_once(prefix: Path) -> None:
    posted: list[Input] = []
    monitor = InterpreterMonitor(prefix, TaskAccounts(OWN), posted.append)
    await monitor.look()
    await monitor.look()
    (packages(prefix) / "torch").mkdir()
    (packages(prefix) / "torch" / "__init__.py").touch()
    await monitor.look()
    await monitor.look()
    without, found = posted
    assert found == NodeObserved(NodeChanges(no_torch=""))
    assert isinstance(without, NodeObserved)
    assert f"no torch in {prefix}" in (without.changes.no_torch or "")


async def test_one_that_has_torch_is_asked_again_when_its_file_changes(prefix: Path) -> None:
    torch = packages(prefix) / "torch"
    torch.mkdir()
    (torch / "__init__.py").touch()
    posted: list[Input] = []
    monitor = InterpreterMonitor(prefix, TaskAccounts(OWN), posted.append)
    await monitor.look()
    (torch / "__init__.py").unlink()
    await monitor.look()
    assert posted == []
    python = prefix / "bin" / "python3"
    target = python.resolve()
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {prefix}/bin/other "$@"\n')
    python.chmod(0o755)
    (prefix / "bin" / "other").symlink_to(target)
    await monitor.look()
    assert len(posted) == 1


async def test_the_hello_says_so(prefix: Path, tmp_path: Path) -> None:
    """No job is placed before the coordinator knows."""
    async with joined(tmp_path, python=str(prefix)) as (_, agent, session):
        assert f"no torch in {prefix}" in session.hello.observed.no_torch
        assert '"no_torch"' in agent.log.read_text()
