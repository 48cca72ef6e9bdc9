"""Workloads of the benchmark of quality: the model of Lublin and Feitelson, and one fitted to the
published tables of the Alibaba GPU trace of 2026.

Each has a daily cycle. Arrivals are spread so that the load is exactly the one wanted: the
GPU-seconds of all jobs over those of the cluster until the last arrival.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.queue.replay import GPUS, Wanted

DAY_S: Final = 86_400.0
LIMIT: Final = (1.0, 5.0)
"""Users ask for a time limit of so many times the run time."""

Sizes = Callable[[random.Random, int], tuple[int, int, float]]
"""Draws the nodes of a job, the GPUs of each (0 for whole nodes), and its run time in seconds."""


def work(it: Wanted) -> float:
    """The GPU-seconds of a job."""
    return size(it) * it.runs_s


def size(it: Wanted) -> int:
    """The GPUs of a job."""
    return it.nodes * (it.gpus or GPUS)


# Lublin and Feitelson, "The workload on parallel supercomputers" (2003), the parameters for jobs
# of all kinds. A processor of the model is a whole node.
_SERIAL, _POWER_OF_2 = 0.244, 0.576
_LOW, _LOW_SHARE = 0.8, 0.86
_GAMMAS = ((4.2, 0.94), (312.0, 0.03))
_SHORT_BY_NODE, _SHORT = -0.0054, 0.78
_LONGEST, _LATEST = 12.0, 13.0
_BETWEEN = (10.2303 * 1.0225, 0.4871)
_DAY = (8.1737, 3.9631)
_HALF_HOURS, _DAY_BEGINS = 48, 11


def _lublin(chance: random.Random, most: int) -> tuple[int, int, float]:
    high = math.log2(most)
    nodes = 1
    if chance.random() > _SERIAL:
        middle = high - 2.5
        first = chance.random() <= _LOW_SHARE
        power = chance.uniform(_LOW, middle) if first else chance.uniform(middle, high)
        nodes = round(2 ** (round(power) if chance.random() <= _POWER_OF_2 else power))
    short = chance.random() <= _SHORT_BY_NODE * nodes + _SHORT
    while (exponent := chance.gammavariate(*_GAMMAS[0 if short else 1])) > _LONGEST:
        pass
    return min(nodes, most), 0, max(1.0, math.exp(exponent))


def _lublin_day() -> list[float]:
    """The share of each half hour of the day, as the density of a gamma distribution."""
    shape, scale = _DAY
    weights = [0.0] * _HALF_HOURS
    for at in range(_DAY_BEGINS, _DAY_BEGINS + _HALF_HOURS):
        weights[at % _HALF_HOURS] = at ** (shape - 1) * math.exp(-at / scale)
    return weights


def _lublin_points(chance: random.Random, count: int) -> list[float]:
    steps = [math.exp(min(_LATEST, chance.gammavariate(*_BETWEEN))) for _ in range(count)]
    points = list(itertools.accumulate(steps))
    return [it / points[-1] for it in points]


# Alibaba, cluster-trace-v2026-spot-gpu, as tabulated in sultanul-ovi/
# GPU-Cluster-Spot-Resource-Dataset-Analysis: numbers of jobs by GPUs, by seconds, by hour of the
# day. Left out are jobs without GPUs, those of more than a day (most are services), and gangs of
# more than half of the cluster.
_BY_GPUS = (
    ((1, 1), 297_596),
    ((2, 4), 48_978),
    ((5, 8), 45_752),
    ((9, 16), 12_051),
    ((17, 32), 6_760),
    ((33, 64), 3_262),
    ((65, 128), 1_594),
    ((129, 256), 2_287),
)
_BY_SECONDS = (
    ((5, 60), 57_687),
    ((60, 600), 115_172),
    ((600, 3_600), 162_994),
    ((3_600, 21_600), 65_561),
    ((21_600, 86_400), 28_365),
)
_BY_HOUR = (
    *(22_451, 15_929, 14_089, 13_387, 12_921, 14_128, 14_232, 15_038),
    *(15_945, 16_972, 25_057, 25_735, 19_770, 19_276, 25_304, 25_039),
    *(27_015, 25_376, 20_016, 21_189, 21_885, 19_162, 18_813, 18_138),
)


def _log_uniform(chance: random.Random, table: Sequence[tuple[tuple[float, float], int]]) -> float:
    low, high = chance.choices([it for it, _ in table], [it for _, it in table])[0]
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def _alibaba(chance: random.Random, most: int) -> tuple[int, int, float]:
    gpus = min(round(_log_uniform(chance, _BY_GPUS)), max(1, most // 2) * GPUS)
    runs_s = _log_uniform(chance, _BY_SECONDS)
    return (1, gpus, runs_s) if gpus < GPUS else (-(-gpus // GPUS), 0, runs_s)


def _uniform_points(chance: random.Random, count: int) -> list[float]:
    return sorted(chance.random() for _ in range(count))


Points = Callable[[random.Random, int], list[float]]
"""Draws the arrivals of so many jobs, in order, each as a share of all that arrive."""

WORKLOADS: Final[dict[str, tuple[Sizes, Points, list[float]]]] = {
    "lublin": (_lublin, _lublin_points, _lublin_day()),
    "alibaba": (_alibaba, _uniform_points, [float(it) for it in _BY_HOUR]),
}


def workload(
    name: str, seed: int, jobs: int, nodes: int, load: float, longest_s: float = math.inf
) -> list[Wanted]:
    """Return `jobs` jobs for a cluster of `nodes`, in the order of their arrival. None runs for
    longer than `longest_s`.

    With the same seed, the jobs of all loads are the same.
    """
    sizes, points, day = WORKLOADS[name]
    chance = random.Random(f"{name} {seed}")
    drawn = []
    for at in points(chance, jobs):
        while (found := sizes(chance, nodes))[2] > longest_s:
            pass
        wanted, gpus, runs_s = found
        drawn.append(Wanted(at, runs_s, runs_s * chance.uniform(*LIMIT), wanted, gpus))
    span_s = sum(work(it) for it in drawn) / (nodes * GPUS * load)
    hours = _hours(day, span_s)
    return [it._replace(at=_when(hours, it.at)) for it in drawn]


def _hours(day: Sequence[float], span_s: float) -> tuple[list[float], list[float]]:
    """Times until `span_s`, and the arrivals until each, as a share of all."""
    step = DAY_S / len(day)
    times, sums = [0.0], [0.0]
    for weight in itertools.cycle(day):
        if times[-1] >= span_s:
            break
        length = min(step, span_s - times[-1])
        times.append(times[-1] + length)
        sums.append(sums[-1] + weight * length)
    return times, [it / sums[-1] for it in sums]


def _when(hours: tuple[list[float], list[float]], point: float) -> float:
    times, sums = hours
    at = min(max(1, bisect.bisect_left(sums, point)), len(times) - 1)
    part = (point - sums[at - 1]) / (sums[at] - sums[at - 1] or 1.0)
    return times[at - 1] + part * (times[at] - times[at - 1])
