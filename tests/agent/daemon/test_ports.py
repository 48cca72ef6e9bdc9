"""Ports that a job can have."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agent.gang.ports import NoPortsError, check_range, free_ports
from tests.descriptors import descriptors_left


def test_as_many_as_wanted_from_the_range() -> None:
    ports = free_ports(20, 20_000, 29_999)
    assert len(set(ports)) == 20
    assert all(20_000 <= port <= 29_999 for port in ports)
    assert free_ports(0, 20_000, 29_999) == ()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_port_on_which_somebody_listens_is_not_free(
    family: socket.AddressFamily, address: str
) -> None:
    (port,) = free_ports(1, 20_000, 29_999)
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # Another socket with this option could bind the wildcard address of the same port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            pytest.skip("no IPv6 here")
        listener.listen()
        with pytest.raises(NoPortsError):
            free_ports(1, port, port)
    assert free_ports(1, port, port) == (port,)


def test_the_kernels_own_range_and_what_is_taken_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "proc/sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("20004\t20999\n")
    assert check_range(20_000, 20_009, tmp_path) == 4
    ports = free_ports(3, 20_000, 20_009, taken={20_001}, root=tmp_path)
    assert set(ports) == {20_000, 20_002, 20_003}
    with pytest.raises(
        NoPortsError, match=r"only 3 .* are free .* 20004 to 20999, and 4 are needed"
    ):
        free_ports(4, 20_000, 20_009, taken={20_001}, root=tmp_path)


def test_agents_of_one_host_do_not_all_offer_the_same() -> None:
    assert len({free_ports(1, 20_000, 29_999) for _ in range(20)}) > 1


def test_ports_that_the_kernel_reserves_can_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "proc/sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("20000\t20999\n")
    with pytest.raises(NoPortsError, match=r"ports: 20000 to 20009 lies within the kernel's own"):
        check_range(20_000, 20_009, tmp_path)
    (folder / "ip_local_reserved_ports").write_text("20001,20005-20006\n")
    assert check_range(20_000, 20_009, tmp_path) == 3
    ports = free_ports(3, 20_000, 20_009, root=tmp_path)
    assert set(ports) == {20_001, 20_005, 20_006}


def test_a_port_that_is_taken_is_not_offered_but_another_one_is() -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", free_ports(1, 20_000, 29_998)[0]))
        listener.listen()
        port = listener.getsockname()[1]
        assert free_ports(1, port, port + 1) == (port + 1,)


def test_without_a_descriptor_left_no_port_is_called_taken() -> None:
    with (
        descriptors_left(),
        pytest.raises(NoPortsError, match=r"Too many open files.*LimitNOFILE") as caught,
    ):
        free_ports(1, 20_000, 20_010)
    assert "widen" not in str(caught.value)
