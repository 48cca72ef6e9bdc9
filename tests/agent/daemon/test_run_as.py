"""An agent that runs as root and its jobs that do not."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from muster.protocol.link.control_channel import ForgetTask, TaskReport
from muster.protocol.link.log_channel import StreamId, StreamKind
from muster.protocol.states import TaskState
from tests.agent.coordinator import Coordinator
from tests.agent.daemon.test_one_task import TASK, begin, is_in, prepare, until_gone
from tests.agent.process_of_agent import AgentProcess, joined, write_config

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.mark.parametrize("umask", ["022", "077"])
def test_a_job_is_its_user_in_its_own_folders(umask: str) -> None:
    """Also under an agent that was started with a umask that lets nobody else in."""
    within = ("sh", "-c", f'umask {umask}; exec "$@"', "sh")

    async def story(folder: Path) -> None:
        config = {"run_as": "nobody", "allow_root_jobs": False}
        async with (
            Coordinator() as coordinator,
            AgentProcess(write_config(folder, coordinator.url, **config), within=within),
        ):
            session = await coordinator.session()
            await session.welcome()
            script = (
                "id -un; pwd; touch made; touch $0/made; cat ../hostfile; "
                "cat ../task.json || ls .. || ls ../.. || echo closed"
            )
            output = folder / "state/output/7/1"
            await begin(session, "/bin/sh", "-c", script, str(output))
            end = await session.expect(TaskReport, is_in(TaskState.CLEANED))
            assert end.refusal is None
            await coordinator.logs.until(lambda store: TASK in store.tasks)
            said = bytes(coordinator.logs.data[StreamId(TASK, StreamKind.STDOUT, 0)]).decode()
            scratch = folder / "state/tasks" / TASK / "scratch"
            assert said.splitlines() == ["nobody", str(scratch), "n1 slots=1", "closed"]
            assert (output / "made").owner() == "nobody"
            await session.send(ForgetTask(TASK))
            await until_gone(scratch.parent)

    # pytest's own folders let nobody else pass.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        asyncio.run(story(Path(name)))


async def test_a_root_job_is_refused_where_policy_does_not_allow_it(tmp_path: Path) -> None:
    async with joined(tmp_path, allow_root_jobs=False) as (_, _, session):
        await session.send(prepare(user="root"))
        report = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert report.refusal is not None
        assert report.refusal.code == "user_refused"
