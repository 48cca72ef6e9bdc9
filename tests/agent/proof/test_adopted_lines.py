"""What NCCL wrote reaches the coordinator also where the agent was away as its task ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from agent.core.shim import ShimExit, ShimPhase, ShimStatus
from agent.core.stimuli import Stimulus, TaskFound, TaskPaths
from agent.folders import NCCL, Folders
from agent.hangs.watch import HangWatch
from agent.keeper import Keeper
from agent.proof.lines import LOG
from agent.proof.proofs import Proofs
from agent.proof.sampler import STATE, Watched
from muster.daemon.clock import SystemClock
from muster.daemon.tasks import TaskOwner
from muster.protocol.fabric import NodeFabric
from muster.protocol.ids import TaskId
from muster.protocol.logs import StreamId, StreamKind
from muster.protocol.messages import NO_OUTPUT
from tests.agent.coordinator import DEADLINE_S, Coordinator
from tests.agent.logs.test_shipper import STREAMS, TASK, shipping

EARLIER = b"h.1 what the earlier life had read\n"
SINCE = b"h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n"


OTHER = TaskId("8.1.0")


@pytest.mark.parametrize("earlier", [b"", EARLIER])
def test_its_lines_are_sent_before_the_log_is_said_to_end(tmp_path: Path, earlier: bytes) -> None:
    async def story() -> None:
        posted: list[Stimulus] = []
        async with (
            Coordinator() as coordinator,
            shipping(tmp_path, coordinator, NO_OUTPUT) as (logs, stored),
            TaskOwner("test") as owner,
        ):
            folders = Folders(tmp_path, None)
            folder = folders.path(TASK)
            (folder / "logs").mkdir(parents=True)
            (folder / NCCL).mkdir()
            for stream in STREAMS:
                (folder / stream.path).touch()
            (folder / LOG).write_bytes(earlier)
            (folder / NCCL / "h.1").write_bytes(SINCE)
            (folder / STATE).write_bytes(msgspec.json.encode(Watched()))
            proofs = Proofs(tmp_path, folders, logs, SystemClock(), posted.append, owner)
            proofs.adopt(TASK)
            hangs = HangWatch(SystemClock(), posted.append, 5.0, root=tmp_path)
            known = TaskPaths("", "", "", ""), (), NodeFabric(), ()
            # The connection is there: what is said is heard at once.
            logs.complete_late(OTHER)
            assert await stored.take(1) == {OTHER}
            keeper = Keeper(TASK, folders, logs, proofs, hangs, posted.append, found=known)
            ended = ShimStatus(
                TASK, ShimPhase.CLEANED, running_s=1.0, exit=ShimExit(0), streams=STREAMS
            )
            keeper._heard(ended)
            async with asyncio.timeout(DEADLINE_S):
                await keeper.known.wait()
            assert await stored.take(1) == {TASK}
            sent = coordinator.logs.data[StreamId(TASK, StreamKind.NCCL)]
            assert sent.startswith(earlier)
            assert b"mlx5_0" in sent
            assert isinstance(posted[0], TaskFound)

    asyncio.run(story())
