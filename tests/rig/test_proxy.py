"""The proxy damages a connection as requested, all bytes or none, and equally for one seed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from examples.rig.proxy import End, Flow, Proxy, Way
from tests.cluster.jobs import until

PATIENCE_S = 180.0
SAID = random.Random(1).randbytes(300_000)


class Echo:
    """A server that echoes, and records the ends of its connections."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.ends: list[str] = []
        self.heard = 0
        self.ended = threading.Condition()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.getsockname()[1]

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.server.accept()
                threading.Thread(target=self._echo, args=(peer,), daemon=True).start()

    def _echo(self, peer: socket.socket) -> None:
        end = "fin"
        with peer:
            try:
                while data := peer.recv(65536):
                    self.heard += len(data)
                    peer.sendall(data)
            except ConnectionError:
                end = "reset"
        with self.ended:
            self.ends.append(end)
            self.ended.notify_all()

    def end(self) -> str:
        with self.ended:
            assert self.ended.wait_for(lambda: bool(self.ends), PATIENCE_S)
            return self.ends.pop()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.address, seed=7) as made:
        yield made


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)


def say(sock: socket.socket, data: bytes) -> threading.Thread:
    """Send in a thread, because large data must be received at the same time."""

    def send() -> None:
        with contextlib.suppress(OSError):
            sock.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def hear(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return bytes(data)


def hears_nothing(sock: socket.socket, seconds: float = 0.2) -> bool:
    sock.settimeout(seconds)
    try:
        return sock.recv(1) is None
    except TimeoutError:
        return True
    finally:
        sock.settimeout(PATIENCE_S)


def test_bytes_arrive_and_so_does_the_end(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as sock:
        say(sock, SAID)
        assert hear(sock, len(SAID)) == SAID
        (connection,) = proxy.live()
        assert connection.moved == (len(SAID), len(SAID))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
    assert echo.end() == "fin"


def test_a_delay_moves_bytes_and_does_not_thin_them_out(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        proxy.shape(up=Way(delay_s=0.2), down=Way(delay_s=0.1))
        began = time.monotonic()
        sock.sendall(b"first")
        sock.sendall(b"second")
        assert hear(sock, 11) == b"firstsecond"
        assert time.monotonic() - began >= 0.3


def test_a_rate_is_shared_by_all_and_a_small_one_passes_a_great_one(proxy: Proxy) -> None:
    with dial(proxy) as great, dial(proxy) as small:
        proxy.shape(up=Way(rate=100_000))
        began = time.monotonic()
        say(great, SAID)
        small.sendall(b"x")
        assert hear(small, 1) == b"x"
        early = proxy.live()[0].moved[0]
        assert early < len(SAID)
        assert hear(great, len(SAID)) == SAID
        assert time.monotonic() - began >= 2.5


def test_stalls_hold_up_and_lose_nothing(proxy: Proxy) -> None:
    proxy.shape(up=Way(stalls=0.2, stall_s=0.01))
    began = time.monotonic()
    with dial(proxy) as sock:
        say(sock, SAID)
        assert hashlib.sha256(hear(sock, len(SAID))).digest() == hashlib.sha256(SAID).digest()
    assert time.monotonic() - began >= 0.05


def test_the_same_seed_gives_the_same_faults(echo: Echo) -> None:
    def fate(seed: int) -> list[bool]:
        with Proxy(echo.address, seed=seed) as proxy:
            proxy.shape(up=Way(stalls=0.5, stall_s=0.0))
            with dial(proxy) as sock:
                say(sock, SAID)
                hear(sock, len(SAID))
                (connection,) = proxy.live()
                return [connection.up.chance.random() < 0.5 for _ in range(20)]

    assert fate(3) == fate(3)
    assert fate(3) != fate(4)


def test_held_bytes_go_on_later(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        proxy.shape(down=Way(flow=Flow.HOLD))
        sock.sendall(b"word")
        assert hears_nothing(sock)
        proxy.mend()
        assert hear(sock, 4) == b"word"


def test_a_swallowed_connection_is_half_open(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"one")
        assert hear(sock, 3) == b"one"
        proxy.shape(up=Way(flow=Flow.SWALLOW), down=Way(flow=Flow.SWALLOW))
        sock.sendall(b"two")
        assert hears_nothing(sock)
        proxy.mend()
        sock.sendall(b"three")
        assert hears_nothing(sock)
        with dial(proxy) as fresh:
            fresh.sendall(b"new")
            assert hear(fresh, 3) == b"new"
        assert echo.end() == "fin"
        until(lambda: len(proxy.live()) == 1, "the fresh one has ended")
    # Its end is no news to the other side either.
    assert echo.heard == len("one") + len("new")
    assert echo.ends == []
    assert proxy.cut() == 1
    assert echo.end() == "reset"


@pytest.mark.parametrize("end", list(End))
def test_a_cut_is_felt_on_both_sides(proxy: Proxy, echo: Echo, end: End) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"word")
        assert hear(sock, 4) == b"word"
        assert proxy.cut(end) == 1
        assert echo.end() == end.value
        if end is End.FIN:
            assert sock.recv(1) == b""
        else:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
    assert proxy.live() == []


def test_after_so_many_bytes_it_is_cut(proxy: Proxy, echo: Echo) -> None:
    proxy.shape(down=Way(cut_after=10_001, end=End.FIN))
    with dial(proxy) as sock:
        say(sock, SAID)
        assert hear(sock, len(SAID)) == SAID[:10_001]
    assert echo.end() in {"fin", "reset"}


def test_a_half_close_leaves_the_other_direction(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"word")
        assert hear(sock, 4) == b"word"
        assert proxy.half_close() == 1
        assert sock.recv(1) == b""
        sock.sendall(b"still")
        sock.shutdown(socket.SHUT_WR)
    assert echo.end() == "fin"
    assert echo.heard == 9


def test_a_refused_connection_is_reset(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionResetError), dial(proxy) as sock:
        sock.recv(1)
    proxy.refuse(refused=False)
    with dial(proxy) as sock:
        sock.sendall(b"word")
        assert hear(sock, 4) == b"word"


def test_nobody_there_is_a_reset(echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        target = "127.0.0.1", gone.getsockname()[1]
    with Proxy(target) as proxy, pytest.raises(ConnectionResetError), dial(proxy) as sock:
        sock.recv(1)


def test_a_fault_may_be_for_one_path_alone(proxy: Proxy) -> None:
    with dial(proxy) as logs, dial(proxy) as control:
        proxy.shape(up=Way(flow=Flow.HOLD), path="/v1/agent/logs")
        logs.sendall(b"GET /v1/agent/logs HTTP/1.1\r\n")
        control.sendall(b"GET /v1/agent HTTP/1.1\r\n")
        assert hear(control, 24) == b"GET /v1/agent HTTP/1.1\r\n"
        assert hears_nothing(logs)
        assert len(proxy.live("/v1/agent/logs")) == 1
        assert proxy.cut(path="/v1/agent/logs") == 1
        control.sendall(b"more")
        assert hear(control, 4) == b"more"
