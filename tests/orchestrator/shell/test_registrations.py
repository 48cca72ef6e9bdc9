"""Agents that register again and again: the journal hardly grows."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from muster.protocol.link.control_channel import (
    Heartbeat,
    HeartbeatAck,
    Inventory,
    NodeChanges,
    Refused,
)
from muster.protocol.observations.gpus import GpuDevice
from orchestrator.journal.schema import FILE_NAME
from tests.orchestrator.fake_agent import connect, hello
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of

NEW_NODES = 20


def records(coordinator: CoordinatorProcess) -> int:
    with closing(sqlite3.connect(coordinator.state_dir / FILE_NAME)) as database:
        query = "SELECT count(*) FROM fact WHERE kind = 'NodeRegistered'"
        ((number,),) = database.execute(query).fetchall()
        return int(number)


def described(node: str, fault: int = 0) -> Inventory:
    gpus = (GpuDevice("0000:01:00.0", f"GPU-{node}", fault=f"has fault {fault}"),)
    return Inventory("127.0.0.1", f"machine-{node}", labels={"big": "x" * 200}, devices=gpus)


def test_an_agent_and_made_up_agents_fill_no_journal(tmp_path: Path) -> None:
    async def main() -> None:
        async with connect(coordinator, "flaps") as agent:
            await agent.hello(inventory=described("flaps"))
            for number in range(300):
                gpus = described("flaps", number).devices
                await agent.say(Heartbeat(float(number), changes=NodeChanges(devices=gpus)))
                assert await agent.hear() == HeartbeatAck(float(number))
            async with user_of(coordinator) as user:
                (node,) = (await user.get("/v1/nodes"))["nodes"]
                assert node["devices"][0]["fault"] == "has fault 299"
        for number in range(1, 2 * NEW_NODES):
            async with connect(coordinator, f"fake{number}") as agent:
                if number < NEW_NODES:
                    await agent.hello(inventory=described(f"fake{number}"))
                else:
                    await agent.say(hello(f"fake{number}", inventory=described(f"fake{number}")))
                    assert (await agent.expect(Refused)).code == "too_many_new_nodes"
        # A node that is known is let in nevertheless.
        async with connect(coordinator, "flaps") as agent:
            await agent.hello(inventory=described("flaps", 1000))

    limits = {"new_nodes_per_hour": NEW_NODES}
    with CoordinatorProcess(tmp_path, limits=limits) as coordinator:
        coordinator.start()
        asyncio.run(main())
        # Only the first and the newest record of the node that changes are kept.
        assert records(coordinator) == NEW_NODES + 1
        coordinator.kill()
        coordinator.start()
        asyncio.run(knows(coordinator))


async def knows(coordinator: CoordinatorProcess) -> None:
    async with user_of(coordinator) as user:
        assert len((await user.get("/v1/nodes"))["nodes"]) == NEW_NODES
