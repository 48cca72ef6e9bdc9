"""All-reduce by size, with the conventions of nccl-tests: the program that the ranks of
`muster bench allreduce` run.

One stand-alone file, shipped inside the job and run by torchrun in the job's interpreter: Python
3.9, torch, nothing of Muster's. Rank 0 prints a line of JSON behind `# ` that says what was
measured, then a row for each size, as it is done:

    size  count  type  redop  iterations  time  p50  min  algbw  busbw  #wrong
    (B)   (elements)                      (us, mean over ranks)  (GB/s = 1e9 B/s)

Every rank fills its buffer with whole numbers that add up exactly, and counts the elements of the
sum that are not what they must be.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

PERIOD = 1021  # a prime, so that data displaced by a power of two is detected
CHUNK = PERIOD * 4096
RANK_VALUES = 8
ITERATIONS_MIN = 3
ELEMENT_BYTES = 4  # float32, in which sums up to 2**24 are exact
NODES_NAMED = 8
RANKS_MAX = 2**24 // (PERIOD + RANK_VALUES)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--warmups", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, for each size")
    wanted = parser.parse_args()
    bench = Bench(*_join(), wanted.iters, wanted.warmups, wanted.seconds)
    bench.print_header()
    wrong = sum(bench.measure(int(size)) for size in wanted.sizes.split(","))
    bench.print_line(f"# Out of bounds values : {wrong} {'OK' if not wrong else 'FAILED'}")
    dist.destroy_process_group()
    return 0


def _join() -> tuple[torch.device, str]:
    """Create the process group: NCCL if every rank has a GPU, otherwise gloo. Returns the device to
    measure on, and why NCCL is not used."""
    local = int(os.environ["LOCAL_RANK"])
    store, rank, world = next(dist.rendezvous("env://"))
    if world > RANKS_MAX:
        sys.exit(f"{world} ranks are more than {RANKS_MAX}, whose sums can be checked")
    usable = torch.cuda.is_available() and local < torch.cuda.device_count()
    blind = "" if usable else _own_name()
    without, some = _agree(store, world, blind)
    if not without:
        torch.cuda.set_device(local)
        device, why = torch.device("cuda", local), ""
    else:
        where = f" on {', '.join(some)}" if without < world else ""
        device, why = torch.device("cpu"), f"torch sees no GPU{where}"
    dist.init_process_group(
        "gloo" if why else "nccl",
        store=dist.PrefixStore("bench", store),
        rank=rank,
        world_size=world,
    )
    return device, why


def _agree(store: Any, world: int, blind: str) -> tuple[int, list[str]]:
    """Return the number of ranks without a GPU, and some of their nodes. `blind`: this node's name
    if it has none. Each rank sends a constant number of requests to the store."""
    if blind:
        store.set(f"bench/blind/{store.add('bench/blind', 1)}", blind.encode())
    if store.add("bench/seen", 1) == world:
        store.set("bench/all", b"1")
    store.wait(["bench/all"])
    count = int(store.add("bench/blind", 0))
    named = range(1, min(count, NODES_NAMED) + 1)
    return count, sorted({bytes(store.get(f"bench/blind/{n}")).decode() for n in named})


def _own_name() -> str:
    names = os.environ.get("MUSTER_NODE_NAMES", "").splitlines()
    rank = int(os.environ.get("MUSTER_NODE_RANK", "0"))
    return names[rank] if rank < len(names) else socket.gethostname()


class Bench:
    """Measures on every rank, and prints on rank 0."""

    def __init__(
        self, device: torch.device, why: str, iters: int, warmups: int, seconds: float
    ) -> None:
        self._device = device
        self._why = why
        self._iters = iters
        self._warmups = warmups
        self._seconds = seconds
        self._world = dist.get_world_size()
        self._rank = dist.get_rank()
        self._reduced(torch.zeros(1, device=device))  # connections are made here

    def print_line(self, line: str) -> None:
        if self._rank == 0:
            print(line, flush=True)

    def print_header(self) -> None:
        cuda = self._device.type == "cuda"
        about = {
            "collective": "all_reduce",
            "ranks": self._world,
            "nodes": int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            "backend": dist.get_backend(),
            "why": self._why,
            "device": torch.cuda.get_device_name(self._device) if cuda else "CPU",
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "",
            "warmups": self._warmups,
            "iterations": self._iters,
        }
        self.print_line(f"# {json.dumps(about)}")
        self.print_line(
            f"#{'size':>11} {'count':>12} {'type':>6} {'redop':>6} {'iters':>6} {'time':>11} "
            f"{'p50':>11} {'min':>11} {'algbw':>8} {'busbw':>8} {'#wrong':>7}"
        )

    def measure(self, size: int) -> int:
        """Measure and print one row. Returns the number of wrong elements over all ranks."""
        count = max(size // ELEMENT_BYTES, 1)
        size = count * ELEMENT_BYTES
        data = torch.zeros(count, device=self._device)
        iterations = self._warm_up(data)
        times = self._average(self._times(data, iterations))
        wrong = self._wrong(data)
        mean = sum(times) / len(times)
        ordered = sorted(times)
        algbw = size / mean / 1e9
        busbw = algbw * 2 * (self._world - 1) / self._world
        p50, least = ordered[len(ordered) // 2], ordered[0]
        self.print_line(
            f" {size:>11} {count:>12} {'float':>6} {'sum':>6} {iterations:>6} {mean * 1e6:>11.1f} "
            f"{p50 * 1e6:>11.1f} {least * 1e6:>11.1f} {algbw:>8.3f} {busbw:>8.3f} {wrong:>7}"
        )
        return wrong

    def _warm_up(self, data: torch.Tensor) -> int:
        """Warm up, and return the number of iterations that fit the time, the same on every
        rank."""
        began = time.perf_counter()
        self._reduced(data)
        took = torch.tensor([time.perf_counter() - began], device=self._device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        fit = int(self._seconds / max(took.item(), 1e-9))
        for _ in range(min(self._warmups - 1, fit)):
            dist.all_reduce(data)
        self._wait()
        return min(self._iters, max(fit, ITERATIONS_MIN))

    def _times(self, data: torch.Tensor, iterations: int) -> list[float]:
        """Return the seconds of each iteration on this rank."""
        dist.barrier()
        if self._device.type == "cpu":
            marks = [time.perf_counter()]
            for _ in range(iterations):
                dist.all_reduce(data)
                marks.append(time.perf_counter())
            return [marks[i + 1] - marks[i] for i in range(iterations)]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        events[0].record()
        for event in events[1:]:
            dist.all_reduce(data)
            event.record()
        self._wait()
        return [events[i].elapsed_time(events[i + 1]) / 1e3 for i in range(iterations)]

    def _average(self, times: list[float]) -> list[float]:
        """Average each iteration over the ranks."""
        found = torch.tensor(times, device=self._device, dtype=torch.float32)
        dist.all_reduce(found)
        average: list[float] = (found / self._world).tolist()
        return average

    def _wrong(self, data: torch.Tensor) -> int:
        fill(data, self._rank)
        self._reduced(data)
        wrong = torch.tensor([count_wrong(data, self._world)], device=self._device)
        dist.all_reduce(wrong)
        return int(wrong.item())

    def _reduced(self, data: torch.Tensor) -> None:
        dist.all_reduce(data)
        self._wait()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def fill(data: torch.Tensor, rank: int) -> None:
    """Fill `data` with this rank's summand: a pattern by position plus a number by rank."""
    pattern = _pattern(data)
    for begin in range(0, data.numel(), CHUNK):
        part = data[begin : begin + CHUNK]
        torch.add(pattern[: part.numel()], rank % RANK_VALUES + 1, out=part)


def count_wrong(data: torch.Tensor, world: int) -> int:
    """Count the elements that are not the sum of what `fill` wrote on `world` ranks."""
    right = _pattern(data) * world + sum(rank % RANK_VALUES + 1 for rank in range(world))
    wrong = 0
    for begin in range(0, data.numel(), CHUNK):
        part: Any = data[begin : begin + CHUNK]
        wrong += int((part != right[: part.numel()]).sum().item())
    return wrong


def _pattern(data: torch.Tensor) -> torch.Tensor:
    places = torch.arange(min(CHUNK, data.numel()), device=data.device)
    return (places % PERIOD).to(data.dtype)


if __name__ == "__main__":
    sys.exit(main())
