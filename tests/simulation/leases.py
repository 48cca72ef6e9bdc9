"""Leases of jobs, and checkpoints."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from muster.spec.model import JobSpec
from tests.simulation.world import World

FIRST_LEASED: Final = 420
"""From this seed on. Those before stay the runs that they were."""


def with_checkpoints(world: World, number: int, spec: JobSpec) -> JobSpec:
    """Perhaps a job that says where it writes them."""
    own = random.Random(f"checkpoints {world.seed} {number}")
    if world.seed < FIRST_LEASED or own.random() < 0.4:
        return spec
    return msgspec.structs.replace(spec, checkpoint_dir="/data/ckpt")


def with_lease(world: World, number: int, spec: JobSpec) -> JobSpec:
    """Give the job a longer or shorter lease, in some runs."""
    own = random.Random(f"lease {world.seed} {number}")
    if world.seed < FIRST_LEASED or own.random() < 0.5:
        return spec
    return msgspec.structs.replace(spec, lease_s=own.choice((15.0, 20.0, 90.0, 200.0)))
