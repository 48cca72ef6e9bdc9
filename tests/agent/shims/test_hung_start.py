"""A hang before a start hangs the runner only: the shim goes on, and refuses in time."""

from __future__ import annotations

import os
import signal

import pytest

from agent.core.shim_protocol import ShimPhase, ShimPrepare, ShimRelease, ShimUser
from muster.protocol.refusal_codes import RefusalCode
from tests.agent.shims.conftest import Node, Spoken, Stage

LIMIT_S = 3.0


def children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    ppid = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if ppid == parent:
                found.append(int(name))
    return found


def hang(task: Spoken) -> int:
    """Stop what waits to become the job: it stands for one that the kernel holds in chdir(2)."""
    [runner] = children(task.pid)
    os.kill(runner, signal.SIGSTOP)
    return runner


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (None, ["could not enter the folder", "no answer within 3 s", "another `workdir`"]),
        (ShimUser("nobody"), ["Looking up user nobody", "no answer within 3 s", "getent passwd"]),
    ],
    ids=["folder", "directory service"],
)
def test_a_hanging_step_is_refused_in_time_and_the_shim_keeps_answering(
    any_stage: Stage, user: ShimUser | None, words: list[str]
) -> None:
    if user is not None and os.geteuid() != 0:
        pytest.skip("not root")

    async def story(node: Node) -> None:
        task = await node.task()
        await task.phase(ShimPhase.NEW)
        runner = hang(task)
        folder = str(node.state_dir)
        await task.send(
            ShimPrepare(cwd=folder, user=user, allow_root=True, setup_timeout_s=LIMIT_S)
        )
        # Too early, which it says at once: it waits for nobody.
        await task.send(ShimRelease())
        status = await task.until(lambda status: status.complaint, "an answer")
        assert status.phase is ShimPhase.PREPARING
        status = await task.ended()
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.SPAWN_FAILED
        for word in words if user is not None else [*words, folder]:
            assert word in status.refusal.text
        assert runner not in children(task.pid)

    any_stage.play(story)
