"""A rank: joins, sums once, and writes the time of the result."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    moment = time.time()
    assert int(total) == dist.get_world_size()
    folder = Path(os.environ["BENCH_MOMENTS"])
    (folder / f"rank-{dist.get_rank()}").write_text(repr(moment))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
