"""The program that nodes run, as processes of this machine."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.local_cluster import free_port
from muster.check.parse_output import CheckOutput
from muster.check.program import driver, name_lookup, peer

NET = "127.0.0.0/8"
KEY = "k"


def plan(count: int, **more: Any) -> dict[str, Any]:
    addresses = {f"n{number}": f"127.0.0.{number + 1}" for number in range(count)}
    return {"networks": {NET: addresses}, "bytes": 1 << 16, "timeout_s": 60.0, "key": KEY, **more}


def run(folder: Path, wanted: dict[str, Any], count: int) -> CheckOutput:
    """Run a gang of `count` processes; returns the output of rank 0."""
    file = folder / "plan.json"
    file.write_text(json.dumps(wanted))
    env = {
        **os.environ,
        "MUSTER_NODE_NAMES": "\n".join(f"n{number}" for number in range(count)),
        "MUSTER_NODE_IPS": "\n".join(f"127.0.0.{number + 1}" for number in range(count)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "muster.check.program", str(file)],
            env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(count)
    ]
    said, _ = ranks[0].communicate(timeout=300)
    assert [rank.wait(300) for rank in ranks] == [0] * count
    output = CheckOutput()
    for line in said.decode().splitlines():
        output.take(line)
    assert output.end
    return output


def test_all_send_to_all(tmp_path: Path) -> None:
    output = run(tmp_path, plan(4), 4)
    assert len(output.pairs) == 12
    assert all(pair.gb_s is not None and pair.gb_s > 0 for pair in output.pairs)
    assert output.nodes["n3"].facts["kernel"] == os.uname().release


def test_a_node_on_an_address_that_is_not_its_own_is_left_out(tmp_path: Path) -> None:
    wanted = plan(5, timeout_s=5.0)
    wanted["networks"][NET]["n4"] = "192.0.2.77"
    output = run(tmp_path, wanted, 5)
    bad = {(pair.sender, pair.receiver) for pair in output.pairs if pair.gb_s is None}
    assert bad
    assert all("n4" in ends for ends in bad)
    # Each try costs a time-out, so it is not tried by all.
    assert len({*(name for ends in bad for name in ends)} - {"n4"}) == driver.GIVE_UP
    assert len([pair for pair in output.pairs if pair.gb_s is not None]) == 12


def test_a_single_node_reports_itself(tmp_path: Path) -> None:
    output = run(tmp_path, plan(1), 1)
    assert output.pairs == ()
    assert list(output.nodes) == ["n0"]


@pytest.fixture
def ends() -> Iterator[tuple[peer.Peer, peer.Peer]]:
    """A sender and a receiver."""
    both = ["n0", "n1"]
    sender, receiver = (peer.Peer(plan(2), both, rank) for rank in (0, 1))
    sender._ports = [0, receiver._listener.getsockname()[1]]
    with sender._listener, receiver._listener:
        yield sender, receiver


def sent(ends: tuple[peer.Peer, peer.Peer]) -> tuple[float | None, str]:
    """Return the sender's result of one transfer, which the receiver answers."""
    sender, receiver = ends

    def answer() -> None:
        receiver._answer(receiver._listener.accept()[0])

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        return sender._send(1, "127.0.0.1", "127.0.0.2")
    finally:
        answering.join()


def test_bytes_that_change_on_the_way_are_found(ends: tuple[peer.Peer, peer.Peer]) -> None:
    assert sent(ends)[1] == ""
    ends[0]._crc ^= 1
    assert sent(ends) == (None, "the bytes that arrive are not those that were sent")


def test_another_node_at_the_address_is_named(ends: tuple[peer.Peer, peer.Peer]) -> None:
    ends[1]._names = ["n0", "other"]
    assert sent(ends) == (None, "other answers there")


def test_a_stranger_at_the_address_is_reported(ends: tuple[peer.Peer, peer.Peer]) -> None:
    ends[1]._plan["key"] = "another"
    assert sent(ends) == (None, "another program answers there")


def test_a_port_at_which_nobody_listens(ends: tuple[peer.Peer, peer.Peer]) -> None:
    sender, receiver = ends
    receiver._listener.close()
    speed, why = sender._send(1, "127.0.0.1", "127.0.0.2")
    assert speed is None
    assert why.startswith("the connection is refused")


def test_a_name_that_leads_elsewhere_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_NODE_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3")
    known = {"b": ["10.9.9.9"], "c": ["10.0.0.3"], "stranger": ["10.8.8.8"]}
    back = {"10.0.0.2": "b", "10.0.0.3": "stranger"}

    def name_of(address: tuple[str, int], _flags: int) -> tuple[str, str]:
        return back[address[0]], "0"

    monkeypatch.setattr(name_lookup, "_addresses", lambda name: known.get(name, []))
    monkeypatch.setattr(socket, "getnameinfo", name_of)
    proof = name_lookup.NameProof({"networks": {}}, ["a", "b", "c"], 0)
    proof.run()
    assert proof.problems() == {
        "wrong": [
            "the name b leads to 10.9.9.9 here, and its node is at 10.0.0.2",
            "the address 10.0.0.3 of c is called stranger here, which leads elsewhere",
        ],
        "unknown": [],
        "late": 0,
    }


def hub_that_knows(well: set[str], bad: list[tuple[str, str]]) -> driver.Hub:
    gang = [f"n{number}" for number in range(10)]
    with socket.socket() as unused:
        made = driver.Hub(plan(10), gang, unused)
    for name in well:
        made._well.add((gang.index(name), 0))
    for one, other in bad:
        made._learn([gang.index(one), gang.index(other), 0, None, "no answer"])
    made._leave_out()
    return made


def test_a_node_that_fails_with_three_healthy_ones_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = [("n9", "n0"), ("n9", "n1"), ("n2", "n9")]
    assert hub_that_knows({"n0", "n1", "n2"}, bad)._without == {(9, 0)}
    assert f"n9 reaches nobody on {NET}: left out" in capsys.readouterr().out


def test_a_node_that_met_only_bad_ones_is_not_left_out() -> None:
    bad = [("n5", "n7"), ("n5", "n8"), ("n5", "n9")]
    assert hub_that_knows({"n0", "n1"}, bad)._without == set()


def test_a_healthy_node_stays() -> None:
    bad = [("n0", "n1"), ("n0", "n2"), ("n0", "n3")]
    assert hub_that_knows({"n0", "n1", "n2", "n3"}, bad)._without == set()


def test_a_network_that_carries_nothing_is_given_up() -> None:
    bad = [(one, other) for one in ("n0", "n1", "n2", "n3") for other in ("n0", "n1", "n2", "n3")]
    assert len(hub_that_knows(set(), [p for p in bad if p[0] != p[1]])._without) == 4
