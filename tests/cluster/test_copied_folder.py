"""A state folder that was copied: the first agent keeps the name, the second says why not."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.agent.process_of_agent import AgentProcess, write_config
from tests.orchestrator.process import DEADLINE_S, CoordinatorProcess
from tests.orchestrator.user import user_of


def agent_config(folder: Path, coordinator: CoordinatorProcess) -> Path:
    folder.mkdir(exist_ok=True)
    config = write_config(folder, coordinator.url, address="127.0.0.1")
    (folder / "token").write_text(f"{coordinator.join}\n")
    return config


async def logged(agent: AgentProcess, text: str) -> None:
    """Wait for a line of its log, which is a file."""
    async with asyncio.timeout(DEADLINE_S):
        while text not in agent.log.read_text():  # noqa: ASYNC110 - a file sends no event
            await asyncio.sleep(0.05)


@pytest.mark.long
def test_the_copy_is_refused_and_the_job_runs_on(tmp_path: Path) -> None:
    async def story(coordinator: CoordinatorProcess) -> None:
        first = agent_config(tmp_path / "first", coordinator)
        async with AgentProcess(first) as agent, user_of(coordinator) as user:
            await logged(agent, '"welcomed"')
            job = await user.submit(run=["/bin/sleep", "1000"])
            second = agent_config(tmp_path / "second", coordinator)
            (tmp_path / "second" / "state").mkdir()
            # A copy without tasks, as of an image that was taken of the machine when it had none.
            shutil.copy(tmp_path / "first" / "state" / "agent_id", tmp_path / "second" / "state")
            async with AgentProcess(second) as copy:
                await logged(copy, "the connection of n1 is still held by an agent at 127.0.0.1")
                assert '"welcomed"' not in copy.log.read_text()
                assert agent.log.read_text().count('"welcomed"') == 1
            summary = await user.get(f"/v1/jobs/{job}")
            assert summary["state"] in {"PREPARING", "RUNNING"}, summary
            assert summary["attempt"] == 1
            await user.cancel(job)
            assert (await user.ended(job))[0] == "CANCELLED"

    with CoordinatorProcess(tmp_path, heartbeat_s=1, lease_s=10).start() as coordinator:
        asyncio.run(story(coordinator))
        assert coordinator.logged("agent_refused")
