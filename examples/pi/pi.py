"""Pi by the trapezoid rule: each rank computes a slice of the interval, and one all-reduce sums
them.

Needs no GPU: `torchrun pi.py [STEPS]`, or `muster submit -f job.yaml`.
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist


def slice_of_pi(rank: int, ranks: int, steps: int) -> float:
    """The integral of 4 / (1 + x^2) over this rank's share of [0, 1]."""
    low, high = rank * steps // ranks, (rank + 1) * steps // ranks
    x = torch.arange(low, high + 1, dtype=torch.float64) / steps
    y = 4.0 / (1.0 + x * x)
    return float((y.sum() - 0.5 * (y[0] + y[-1])) / steps)


def main() -> None:
    """Join the group, sum the slices, and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", nargs="?", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="sums to make, with a line for each")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two of them")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    node = os.environ.get("MUSTER_NODE_RANK", "?")
    print(f"rank {rank} of {ranks} on node {node}, local rank {os.environ['LOCAL_RANK']}")

    total = torch.zeros(1, dtype=torch.float64)
    for step in range(1, args.rounds + 1):
        steps = args.steps * step // args.rounds
        total[0] = slice_of_pi(rank, ranks, steps)
        dist.all_reduce(total)
        error = abs(float(total) - math.pi)
        print(f"rank {rank}: round {step}, {steps} steps, error {error:.1e}")
        if step < args.rounds:
            time.sleep(args.pause)
    if rank == 0:
        print(f"pi = {float(total):.12f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
