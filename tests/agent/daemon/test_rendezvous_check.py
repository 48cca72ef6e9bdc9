"""The proof that a gang meets, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest

from agent.gang.rendezvous_check import RendezvousChecks, listener
from examples.local_cluster import free_port
from examples.rig.rig import missing
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Refusal, RendezvousCheck
from muster.protocol.refusal_codes import RefusalCode

LAUNCHER, WORKER = TaskId("7.1.0"), TaskId("7.1.1")


def check(port: int, address: str = "127.0.0.1", **more: object) -> RendezvousCheck:
    fields: dict[str, object] = {"timeout_s": 5.0, "source": "127.0.0.1", **more}
    return RendezvousCheck(LAUNCHER, "gpu-1", address, port, **fields)  # type: ignore[arg-type]


@pytest.fixture
def port() -> int:
    # Outside of the range that the agents of clusters beside this test offer.
    return free_port()


def both(story: Callable[[RendezvousChecks, RendezvousChecks], Awaitable[None]]) -> None:
    """The agents of a launcher and of a worker."""

    async def run() -> None:
        async with asyncio.timeout(180):
            launcher, worker = RendezvousChecks(), RendezvousChecks()
            try:
                await story(launcher, worker)
            finally:
                launcher.let_go(LAUNCHER)

    asyncio.run(run())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_worker_reaches_the_launchers_agent(port: int, address: str) -> None:
    async def story(launcher: RendezvousChecks, worker: RendezvousChecks) -> None:
        plan = check(port, address, source=address)
        assert await launcher.prove(LAUNCHER, plan) is None
        for _ in range(20):
            assert await worker.prove(WORKER, plan) is None

    both(story)


def test_a_worker_may_be_there_first(port: int) -> None:
    async def story(launcher: RendezvousChecks, worker: RendezvousChecks) -> None:
        reached = asyncio.create_task(worker.prove(WORKER, check(port)))
        await asyncio.sleep(0.02)
        assert not reached.done()
        assert await launcher.prove(LAUNCHER, check(port)) is None
        assert await reached is None

    both(story)


def test_the_program_can_listen_at_once_when_the_port_is_let_go(port: int) -> None:
    async def story(launcher: RendezvousChecks, worker: RendezvousChecks) -> None:
        assert await launcher.prove(LAUNCHER, check(port)) is None
        idle = socket.create_connection(("127.0.0.1", port))
        for _ in range(5):
            assert await worker.prove(WORKER, check(port)) is None
        with pytest.raises(OSError, match="in use"):
            listener(port)
        launcher.let_go(LAUNCHER)
        # Not even SO_REUSEADDR is needed: nothing of ours stays behind, also of one that idles.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as plain:
            plain.bind(("0.0.0.0", port))
            plain.listen()
        idle.close()
        launcher.let_go(LAUNCHER)

    both(story)


def refused(
    story: Callable[[RendezvousChecks, RendezvousChecks], Awaitable[Refusal | None]],
) -> Refusal:
    found: list[Refusal | None] = []

    async def kept(launcher: RendezvousChecks, worker: RendezvousChecks) -> None:
        found.append(await story(launcher, worker))

    both(kept)
    assert found[0] is not None
    return found[0]


def test_a_port_that_somebody_took_meanwhile_is_refused(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        no = refused(lambda launcher, _: launcher.prove(LAUNCHER, check(port)))
    assert no.code == RefusalCode.PORT_TAKEN
    assert not no.node_fault
    assert no.text == f"port {port} was free, but another program has taken it since"


def test_nobody_listens(port: int) -> None:
    no = refused(lambda _, worker: worker.prove(WORKER, check(port, timeout_s=0.2)))
    assert (no.code, no.node_fault) == (RefusalCode.UNREACHABLE, True)
    assert no.text.startswith(
        f"gpu-1 is not reached at 127.0.0.1 port {port}: the connection is refused "
        "(does a firewall reject it?); let the nodes connect"
    )


def test_another_launcher_is_there(port: int) -> None:
    async def story(launcher: RendezvousChecks, worker: RendezvousChecks) -> Refusal | None:
        other = RendezvousCheck(TaskId("8.1.0"), "gpu-9", "127.0.0.1", port)
        assert await launcher.prove(TaskId("8.1.0"), other) is None
        try:
            return await worker.prove(WORKER, check(port, timeout_s=0.2))
        finally:
            launcher.let_go(TaskId("8.1.0"))

    assert "the launcher of another task ('8.1.0') answers there" in refused(story).text


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "another program answers there"),
        (b"", "another program listens there, which sends nothing within 0.3 s"),
        (None, "the connection is closed at once"),
        (b"x" * 5000, "another program answers there"),
    ],
)
def test_another_program_is_there(port: int, says: bytes | None, words: str) -> None:
    silent: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", port)) as server:

        def greet() -> None:
            while True:
                peer, _ = server.accept()
                peer.sendall(says or b"")
                if says == b"":
                    silent.append(peer)
                else:
                    peer.close()

        def serve() -> None:
            with contextlib.suppress(OSError):
                greet()

        thread = threading.Thread(target=serve)
        thread.start()
        no = refused(lambda _, worker: worker.prove(WORKER, check(port, timeout_s=0.3)))
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for peer in silent:
        peer.close()
    assert words in no.text


def test_packets_that_are_dropped_are_distinguished_from_those_that_are_rejected(port: int) -> None:
    # A full backlog drops what comes, as a firewall does.
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", port))
        deaf.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        no = refused(lambda _, worker: worker.prove(WORKER, check(port, timeout_s=0.5)))
    assert "no answer in 0.5 s (does a firewall drop the packets?)" in no.text


def test_an_address_that_this_node_has_no_more(port: int) -> None:
    away = check(port, source="203.0.113.77", timeout_s=0.2)
    no = refused(lambda _, worker: worker.prove(WORKER, away))
    assert "this node no longer has its address 203.0.113.77" in no.text


NAMESPACE = """
import asyncio, subprocess, sys
from agent.gang.rendezvous_check import RendezvousChecks
from muster.protocol.link.control_channel import RendezvousCheck
def ip(*words): subprocess.run(["ip", *words], check=True)
ip("link", "set", "lo", "up")
ip("link", "add", "eth0", "type", "veth", "peer", "name", "far")
ip("link", "set", "far", "up")
ip("link", "set", "eth0", "up")
ip("addr", "add", "10.7.0.1/24", "dev", "eth0")
ip("route", "add", *sys.argv[2:]) if sys.argv[2:] else None
plan = RendezvousCheck("7.1.0", "gpu-1", sys.argv[1], 20000, "10.7.0.1", 0.3)
print(asyncio.run(RendezvousChecks().prove("7.1.1", plan)).text)
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("address", "route", "words"),
    [
        ("10.9.0.1", (), "network is unreachable"),
        ("10.9.0.1", ("unreachable", "10.9.0.0/24"), "no route to host"),
        ("10.9.0.1", ("prohibit", "10.9.0.0/24"), "a rule of this node forbids the connection"),
        ("10.7.0.2", (), "no answer in 0.3 s"),
    ],
)
def test_a_broken_route_is_reported(address: str, route: tuple[str, ...], words: str) -> None:
    if why := missing():
        pytest.skip(why)
    command = ["unshare", "--net", sys.executable, "-c", NAMESPACE, address, *route]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
