"""Ids are ours: what is not spelled as one is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.ids import BadId, JobId, check_node_name, parse_task_id, task_id


@given(st.integers(1, 10**17), st.integers(1, 10**8), st.integers(0, 10**8))
def test_task_ids_round_trip(job: int, attempt: int, rank: int) -> None:
    assert parse_task_id(task_id(JobId(job), attempt, rank)) == (job, attempt, rank)


@pytest.mark.parametrize(
    "text", ["", "1", "1.1", "0.1.0", "1.0.0", "01.1.0", "1.1.0\n", "1.1.-1", "../1.1.0", "1.1.٣"]
)
def test_invalid_task_ids(text: str) -> None:
    with pytest.raises(BadId):
        parse_task_id(text)


@pytest.mark.parametrize("name", ["gpu-01", "a", "gpu-01.rack2.example"])
def test_node_names(name: str) -> None:
    assert check_node_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "GPU", "a_b", "-a", "a-", "a..b", "a b", "a\n1.2.3.4 b", "a#b", "localhost", "x" * 64],
)
def test_names_that_could_do_harm_in_a_hosts_file(name: str) -> None:
    with pytest.raises(BadId):
        check_node_name(name)
