"""A machine that gets another name while it has tasks: a new lease of its address, an operator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from agent.config import AgentConfig
from agent.identity import node_name
from tests.agent.daemon.test_one_task import until
from tests.agent.process_of_agent import AgentProcess, write_config
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of


def config_of(folder: Path, coordinator: CoordinatorProcess, node: str) -> Path:
    config = write_config(folder / "agent", coordinator.url, address="127.0.0.1", node=node)
    (folder / "agent" / "token").write_text(f"{coordinator.join}\n")
    return config


async def welcomed(agent: AgentProcess) -> str:
    """The name of the node, from the agent's log, which is a file."""
    await until(lambda: '"welcomed"' in agent.log.read_text())
    lines = [json.loads(line) for line in agent.log.read_text().splitlines()]
    return str(next(line["node"] for line in lines if line["event"] == "serving"))


def test_a_reboot_changes_no_name_while_exit_codes_are_still_here(tmp_path: Path) -> None:
    """Under another name, the coordinator would throw the exit code away and run the job again."""
    state = tmp_path / "state"
    (state / "tasks" / "7.1.0").mkdir(parents=True)
    (state / "node").write_text("n1 an-earlier-boot\n")
    config = AgentConfig(node="n2", state_dir=state)
    assert node_name(config) == "n1"
    (state / "tasks" / "7.1.0").rmdir()
    assert node_name(config) == "n2"
    assert node_name(config) == "n2"


def test_it_keeps_its_name_for_as_long_as_it_has_tasks(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()

    async def story(coordinator: CoordinatorProcess) -> None:
        async with user_of(coordinator) as user:
            async with AgentProcess(config_of(tmp_path, coordinator, "n1")) as agent:
                assert await welcomed(agent) == "n1"
                job = await user.submit(run=["/bin/sh", "-c", "echo it runs; exec sleep 1000"])
                async with user.http.get(f"/v1/jobs/{job}/logs?follow=1") as stream:
                    assert b"it runs" in await stream.content.readline()
                assert await agent.end() == 0
            config = config_of(tmp_path, coordinator, "n2")
            async with AgentProcess(config) as agent:
                assert await welcomed(agent) == "n1"
                (line,) = [line for line in agent.log.read_text().splitlines() if "renamed" in line]
                assert "stays n1 until a start without tasks; then it is n2" in line
                assert (await user.get(f"/v1/jobs/{job}"))["attempt"] == 1
                await user.cancel(job)
                assert (await user.ended(job))[0] == "CANCELLED"
                await until(lambda: not any((tmp_path / "agent/state/tasks").iterdir()))
                assert await agent.end() == 0
            async with AgentProcess(config) as agent:
                assert await welcomed(agent) == "n2"
                assert "renamed" not in agent.log.read_text()

    with CoordinatorProcess(tmp_path, heartbeat_s=1, lease_s=10).start() as coordinator:
        asyncio.run(story(coordinator))
