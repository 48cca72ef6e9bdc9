"""A rank: starts CUDA, joins, sums once on its GPU, and writes when and how long that took."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    backend = os.environ["BENCH_BACKEND"]
    began = time.time()
    total = torch.ones(1, device="cuda:0" if backend == "nccl" else "cpu")
    if backend == "nccl":
        torch.cuda.synchronize()
    cuda_s = time.time() - began
    dist.init_process_group(backend)
    began = time.time()
    dist.all_reduce(total)
    assert int(total) == dist.get_world_size()
    moment = time.time()
    path = Path(os.environ["BENCH_MOMENTS"]) / f"rank-{dist.get_rank()}"
    path.write_text(f"{moment!r} {cuda_s!r} {moment - began!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
