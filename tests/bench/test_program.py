"""The program of the benchmark: sums that can be checked."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
allreduce = pytest.importorskip("muster.bench.allreduce")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("count", [1, 1020, 1021, 5000])
@pytest.mark.parametrize("world", [1, 2, 17])
def test_the_right_sum_is_right(count: int, world: int) -> None:
    total = torch.zeros(count)
    for rank in range(world):
        data = torch.empty(count)
        allreduce.fill(data, rank)
        total += data
    assert allreduce.count_wrong(total, world) == 0


def test_each_wrong_element_is_counted() -> None:
    count = allreduce.CHUNK + 1000
    data = torch.empty(count)
    allreduce.fill(data, 0)
    data[3] += 1
    data[allreduce.CHUNK + 7] = float("nan")
    assert allreduce.count_wrong(data, 1) == 2


def test_places_that_change_are_found() -> None:
    data = torch.empty(1 << 16)
    allreduce.fill(data, 0)
    assert allreduce.count_wrong(torch.roll(data, 4096), 1) > 60000


def test_sums_stay_exact() -> None:
    assert (allreduce.PERIOD + allreduce.RANK_VALUES) * allreduce.RANKS_MAX <= 2**24


class Store:
    """The part of a store that the ranks use, for ranks that come one after the other."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}

    def add(self, key: str, more: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + more
        return self.counts[key]

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str]) -> None:
        """Returns at once: the keys are there already."""


@pytest.mark.parametrize(
    ("blind", "found"),
    [
        (["", "", ""], (0, [])),
        (["", "b", "b"], (2, ["b"])),
        (["a", "b", "c"], (3, ["a", "b", "c"])),
        ([f"n{number:02}" for number in range(20)], (20, [f"n{number:02}" for number in range(8)])),
    ],
)
def test_ranks_without_a_gpu_are_counted_and_some_are_named(
    blind: list[str], found: tuple[int, list[str]]
) -> None:
    store = Store()
    *_, last = [allreduce._agree(store, len(blind), node) for node in blind]
    assert last == found
    assert store.values["bench/all"] == b"1"
