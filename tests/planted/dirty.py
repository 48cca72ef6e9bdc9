"""I5: a GPU whose memory an earlier job has not given back yet is given to no other one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import agent.monitors.gpus
from agent.config import AgentConfig
from agent.monitors.gpus import CLEAN_BYTES, GpuDirtyError, GpuGoneError, GpuMonitor
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.observations.gpus import GpuDevice, usable
from orchestrator.core.model.state import Node, State
from orchestrator.core.scheduling import gpus as core
from orchestrator.core.scheduling import placement
from tests.agent.daemon.test_gpus import Cards, prepare
from tests.cluster.cards import uuid
from tests.orchestrator.core.playbook import Cluster, spec
from tests.orchestrator.core.scheduling.test_gpus import gpu, join, part
from tests.planted import Bug, put, wrap

DIRTY = 40 << 30
WANTED = ((uuid(1, 0),), ())
"""The GPU itself, and all of its node."""


def _on(used: Iterator[int], story: Coroutine[Any, Any, None], users: tuple[int, ...] = ()) -> int:
    """Run the story while the first GPU has that much memory in use at each poll; returns the
    number of polls."""
    cards = Cards(used, users=users)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "pynvml", cards.module())
        asyncio.run(story)
    return cards.looks


async def _given(gpus: GpuMonitor, wanted: PrepareTask) -> bool:
    try:
        await gpus.check(wanted)
    except (GpuDirtyError, GpuGoneError):
        return False
    return True


def the_next_job_waits_for_the_memory(_: Path) -> None:
    for wanted in WANTED:
        gpus = GpuMonitor(AgentConfig(gpus="auto"), lambda _: None, poll_s=0.001, give_up_s=60.0)
        used = chain([DIRTY, CLEAN_BYTES], repeat(0))
        looks = _on(used, gpus.check(prepare(*wanted)))
        assert looks == 3, f"{wanted or 'the node'} is given after {looks} looks"


def what_stays_dirty_is_given_to_nobody(_: Path) -> None:
    async def story(gpus: GpuMonitor, wanted: PrepareTask) -> None:
        assert not await _given(gpus, wanted), "it is given, dirty as it is"
        # A task that comes later does not wait as long again.
        assert next(it.busy for it in await gpus.look()), "its node offers it again"

    for wanted in WANTED:
        gpus = GpuMonitor(AgentConfig(gpus="auto"), lambda _: None, poll_s=0.001, give_up_s=0.0)
        _on(repeat(DIRTY), story(gpus, prepare(*wanted)))


def a_gpu_that_its_node_says_is_in_use_is_not_given_out(_: Path) -> None:
    dirty = gpu(0, busy="has 40 GiB of its memory or more in use")
    cluster = Cluster()
    join(cluster, "a", devices=(dirty, gpu(1)))
    for _number in range(2):
        cluster.submit(part(1))
    given = [it.gpus for job in (1, 2) for at in cluster.job(job).attempts for it in at.tasks]
    assert given == [(gpu(1).uuid,)], f"{given} are given"
    cluster = Cluster()
    join(cluster, "a", devices=(dirty, gpu(1)))
    cluster.submit(spec())
    assert not cluster.job(1).attempts, "all of its node is given"


async def _nobody_looks(*_: Any) -> None:
    return


def _of_parts_alone(real: Any) -> Any:
    async def check(self: GpuMonitor, prepare: PrepareTask) -> None:
        if prepare.gpus:
            await real(self, prepare)

    return check


def _forgets(real: Any) -> Any:
    async def look(self: GpuMonitor) -> tuple[GpuDevice, ...]:
        return tuple(replace(gpu, busy="") for gpu in await real(self))

    return look


def _in_use_or_not(_: State, node: Node) -> tuple[GpuDevice, ...]:
    taken = {uuid for share in node.holders.values() for uuid in share.gpus}
    return tuple(it for it in usable(node.inventory.devices) if it.uuid not in taken)


def _by_nobody(_: Node) -> str:
    return ""


BUGS = (
    Bug(
        "a task begins without a look at the memory of its GPUs",
        "I5",
        put(GpuMonitor, "check", _nobody_looks),
        the_next_job_waits_for_the_memory,
    ),
    Bug(
        "what is in use of a GPU's memory is nothing to an agent",
        "I5",
        put(agent.monitors.gpus, "CLEAN_BYTES", 1 << 60),
        what_stays_dirty_is_given_to_nobody,
    ),
    Bug(
        "a job that has a whole node gets its GPUs as they are",
        "I5",
        wrap(GpuMonitor, "check", _of_parts_alone),
        the_next_job_waits_for_the_memory,
    ),
    Bug(
        "a GPU with a gigabyte in use counts as clean",
        "I5",
        put(agent.monitors.gpus, "CLEAN_BYTES", 1 << 30),
        the_next_job_waits_for_the_memory,
    ),
    Bug(
        "a GPU that was given up is offered to the next job",
        "I5",
        wrap(GpuMonitor, "look", _forgets),
        what_stays_dirty_is_given_to_nobody,
    ),
    Bug(
        "a GPU that its node says is in use counts as free",
        "I5",
        put(core, "free_gpus", _in_use_or_not),
        a_gpu_that_its_node_says_is_in_use_is_not_given_out,
    ),
    Bug(
        "a node of which a GPU is in use is given out whole",
        "I5",
        put(placement, "used_by_strangers", _by_nobody),
        a_gpu_that_its_node_says_is_in_use_is_not_given_out,
    ),
)
