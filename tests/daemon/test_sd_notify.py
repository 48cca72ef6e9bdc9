"""Notifications of the service manager, through a real socket."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.daemon.sd_notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A listening service manager, and the NOTIFY_SOCKET that leads to it."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        if request.param == "path":
            sock.bind(name)
            yield sock, name
        else:
            sock.bind("\0" + name)
            yield sock, "@" + name


def test_each_state_arrives(manager: tuple[socket.socket, str]) -> None:
    sock, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.ready("serving 3 agents\nand no line more")
    notifier.status("busy")
    notifier.watchdog()
    notifier.stopping()
    assert [sock.recv(4096) for _ in range(4)] == [
        b"READY=1\nSTATUS=serving 3 agents and no line more",
        b"STATUS=busy",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")
    Notifier({"NOTIFY_SOCKET": "/" + "x" * 200}).ready("x")


def test_a_manager_that_does_not_read_holds_nobody_up(manager: tuple[socket.socket, str]) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager[1]})
    for _ in range(2000):
        notifier.watchdog()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_asked(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert Notifier(environ, pid=7).watchdog_s == seconds
