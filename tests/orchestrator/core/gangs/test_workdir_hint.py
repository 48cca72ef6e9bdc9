"""A job without a `workdir` whose file is missing: the cause names the folder in which it ran."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.link.control_channel import RankReport, Refusal
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import Argv
from tests.orchestrator.core.playbook import Cluster, prepared, spec

FOLDER = prepared().workdir
OPENED = "python: can't open file '{}': [Errno 2] No such file or directory"
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/shared/train.py", line 3, in <module>\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
)
SAID = "; the job has no `workdir`, so it ran in an empty folder: send the one that has {} "


def ended_with(said: str, workdir: str | None = None, **more: Any) -> str:
    """Return the job's cause after a rank has ended with these last words."""
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(workdir=workdir, **more))
    (one,) = cluster.run_gang(1)
    rank = RankReport(0, exit=ExitStatus(2), error=said)
    cluster.report(one, TaskState.EXITED, prepared=prepared(), ranks=(rank,), exit=ExitStatus(2))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    return cause.text


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (OPENED.format(f"{FOLDER}/train.py"), "train.py"),
        (OPENED.format(f"{FOLDER}/src/train.py"), "src/train.py"),
        (TRACEBACK.format("configs/qwen.yaml"), "configs/qwen.yaml"),
        ("bash: line 1: ./train.sh: No such file or directory", "./train.sh"),
    ],
)
def test_a_file_that_is_looked_for_in_the_empty_folder(said: str, name: str) -> None:
    text = ended_with(said)
    assert SAID.format(name) in text
    assert "see that `run` and `workdir` name it" not in text
    # No hint if the user named a folder, because the user then knows where the job runs.
    assert "empty folder" not in ended_with(said, workdir="/shared/x")


@pytest.mark.parametrize(
    "said",
    [
        OPENED.format("/shared/train.py"),
        TRACEBACK.format("/data/corpus.bin"),
        "bash: line 1: /opt/train.sh: No such file or directory",
        "ModuleNotFoundError: No module named 'flash_attn'",
        "",
    ],
)
def test_a_file_missing_elsewhere_gets_no_hint_on_the_workdir(said: str) -> None:
    assert "empty folder" not in ended_with(said)


def test_a_module_that_the_job_itself_names() -> None:
    said = (
        "python: Error while finding module specification for 'pkg.train' "
        "(ModuleNotFoundError: No module named '{}')"
    )
    own = Argv(("-m", "pkg.train"))
    assert SAID.format("pkg") in ended_with(said.format("pkg"), run=own)
    assert "empty folder" not in ended_with(said.format("pkg"), run=own, workdir="/shared/x")
    assert "empty folder" not in ended_with(said.format("torch"), run=own)
    assert "empty folder" not in ended_with(said.format("pkg"))


def test_a_program_that_is_named_by_its_place_in_the_folder() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(workdir=None))
    (one,) = cluster.run_gang(1)
    refusal = Refusal("start_failed", "The program 'bin/train' was not found for user alice;")
    cluster.report(
        one, TaskState.EXITED, prepared=prepared(), refusal=refusal, exit=ExitStatus(127)
    )
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert SAID.format("bin/train") in cause.text
