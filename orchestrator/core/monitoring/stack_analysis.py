"""Analysis of stacks: position of each rank, ranks that wait for others, and the odd rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from muster.protocol.observations.hangs import Frame, RankStacks, StackGroup

_DEPTH: Final = 8
"""Number of innermost frames that are searched for a waiting call."""
_WAITS: Final = (
    (re.compile(r"torch/distributed/(distributed_c10d|_functional_collectives)\.py$"), None),
    (re.compile(r"torch/distributed/c10d_logger\.py$"), None),
    (re.compile(r"torch/cuda/(__init__|streams)\.py$"), re.compile(r"synchronize$|wait")),
    (re.compile(r"torch/(accelerator|xpu)/__init__\.py$"), re.compile(r"synchronize$")),
    (re.compile(r"deepspeed/comm/\w+\.py$"), None),
    (re.compile(r"horovod/torch/mpi_ops\.py$"), re.compile(r"synchronize$|poll$|wait")),
)
_WORKS: Final = frozenset({"_object_to_tensor", "_tensor_to_object"})
"""Functions in the same files that compute and do not wait."""
_FILES: Final = re.compile(
    r"(^|/)(shutil|pathlib|zipfile|tarfile|gzip)\.py$"
    r"|torch/serialization\.py$"
    r"|torch/distributed/checkpoint/"
    r"|/(fsspec|s3fs|gcsfs|adlfs|botocore|boto3|urllib3|requests|httpx|aiohttp|safetensors|zarr"
    r"|h5py|lmdb|webdataset|streaming|huggingface_hub|datasets|petastorm|tensorstore)/"
)
_LIBRARY: Final = re.compile(
    r"/(site-packages|dist-packages)/|/lib/python\d[^/]*/|^<frozen |^<string>$|^/usr/lib/python"
)


def waits(frames: Sequence[Frame]) -> bool:
    """True if the rank is in a call that waits for other ranks or their data."""
    for frame in frames[:_DEPTH]:
        name = frame.name.rpartition(".")[2]
        if name in _WORKS:
            return False
        for file, function in _WAITS:
            if file.search(frame.file) and (function is None or function.search(name)):
                return True
    return False


def reads_or_writes(frames: Sequence[Frame]) -> bool:
    """True if the rank is in a library that moves files, or talks to a file server."""
    return not waits(frames) and any(_FILES.search(frame.file) for frame in frames[:_DEPTH])


def place_of(frames: Sequence[Frame]) -> str:
    """Text such as `train.py:41`: the innermost line of the job's own code; empty if no stack."""
    own = next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)
    frame = own or (frames[0] if frames else None)
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line}"


def grouped(stacks: Sequence[RankStacks], nodes: Mapping[int, str]) -> tuple[StackGroup, ...]:
    """Group ranks with equal stacks, the smallest group first; `nodes` has each rank's node."""
    found: dict[object, list[RankStacks]] = {}
    for rank in sorted(stacks, key=lambda rank: rank.rank):
        found.setdefault((rank.main, rank.problem), []).append(rank)
    groups = [
        StackGroup(
            ranks=tuple(rank.rank for rank in group),
            nodes=tuple(sorted({nodes[rank.rank] for rank in group if rank.rank in nodes})),
            place=place_of(group[0].main),
            waits=waits(group[0].main),
            frames=group[0].main,
            problem=group[0].problem,
        )
        for group in found.values()
    ]
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))


def odd_one(groups: Sequence[StackGroup]) -> StackGroup | None:
    """The group that keeps the others waiting.

    This is a group that waits for nobody while others wait, otherwise the smallest. Returns None if
    all groups are alike or the two smallest are of equal size.
    """
    known = [group for group in groups if group.frames]
    busy = [group for group in known if not group.waits]
    if busy and len(busy) < len(known) and sum(len(g.ranks) for g in busy) <= _half(known):
        return min(busy, key=lambda group: (len(group.ranks), group.ranks))
    if len(known) < 2 or len(known[0].ranks) == len(known[1].ranks):
        return None
    return known[0]


def _half(groups: Sequence[StackGroup]) -> float:
    return sum(len(group.ranks) for group in groups) / 2


def ranks_text(ranks: Sequence[int]) -> str:
    """Text such as `rank 3`, `ranks 0 to 6` or `ranks 1, 4`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:6]
    ]
    return f"ranks {', '.join(parts)}" + (" and more" if len(runs) > 6 else "")
