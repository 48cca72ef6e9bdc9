"""The single-threaded event loop of a shim: file descriptors, timers and dead children."""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import time
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

# A lease runs on while the machine sleeps but timers of epoll do not, so check the clock this
# often.
LONGEST_WAIT_S = 5.0


def now() -> float:
    """Seconds since boot, including sleep; independent of the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Loop:
    """Readiness, named timers and SIGCHLD, each handled by a callback; callbacks never wait.

    Use it in a `with`, or close it.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Callable[[], None], Callable[[], None] | None]] = {}
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._after_turn: list[Callable[[], None]] = []
        self._stopped = False
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._on_signal: dict[int, Callable[[], None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._epoll.close()
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            for end in self._wakeup:
                end.close()

    def watch(
        self,
        fd: int,
        on_read: Callable[[], None],
        on_write: Callable[[], None] | None = None,
    ) -> None:
        """Call on_read when `fd` is readable and, if given, on_write when it is writable."""
        events = select.EPOLLIN | (select.EPOLLOUT if on_write else 0)
        if fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._watched[fd] = (on_read, on_write)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`. Does nothing if it was not watched."""
        if self._watched.pop(fd, None) is None:
            return
        try:
            self._epoll.unregister(fd)
        except (OSError, ValueError):
            # It has been closed, which ends the watch as well.
            pass

    def at(self, name: str, deadline: float, action: Callable[[], None]) -> None:
        """Call `action` once when `now()` passes `deadline`; replaces a timer of the same name."""
        self._timers[name] = (deadline, action)

    def cancel(self, name: str) -> None:
        self._timers.pop(name, None)

    def pending(self, name: str) -> float | None:
        """The deadline of the timer of that name. Returns None if there is no such timer."""
        timer = self._timers.get(name)
        return None if timer is None else timer[0]

    def after_turn(self, action: Callable[[], None]) -> None:
        """Call `action` at the end of every turn, so that changes of one turn are sent once."""
        self._after_turn.append(action)

    def on_child(self, action: Callable[[], None]) -> None:
        """Call `action` after children may have died."""
        ours, kernels = socket.socketpair()
        ours.setblocking(False)
        kernels.setblocking(False)
        self._wakeup = (ours, kernels)
        _note_children(os.getpid())
        signal.set_wakeup_fd(kernels.fileno(), warn_on_full_buffer=False)

        def woken() -> None:
            for number in set(ours.recv(4096)):
                self._on_signal.get(number, lambda: None)()
            action()

        self.watch(ours.fileno(), woken)

    def on_signal(self, number: int, action: Callable[[], None]) -> None:
        """Call `action` in a turn after this signal has come. Requires `on_child`."""
        self._on_signal[number] = action
        signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Turn until `stop`."""
        while not self._stopped:
            for fd, events in self._epoll.poll(self._wait_s()):
                # An earlier callback of this turn may have closed it.
                watched = self._watched.get(fd)
                if watched is None:
                    continue
                on_read, on_write = watched
                if events & ~select.EPOLLIN and on_write:
                    on_write()
                # The write may have closed it.
                if events & ~select.EPOLLOUT and self._watched.get(fd) is watched:
                    on_read()
            self._fire()
            for action in self._after_turn:
                action()

    def _wait_s(self) -> float:
        if not self._timers:
            return LONGEST_WAIT_S
        nearest = min(deadline for deadline, _ in self._timers.values())
        return min(max(nearest - now(), 0.0), LONGEST_WAIT_S)

    def _fire(self) -> None:
        moment = now()
        due = [name for name, (deadline, _) in self._timers.items() if deadline <= moment]
        for name in due:
            timer = self._timers.get(name)
            if timer is not None and timer[0] <= moment:
                del self._timers[name]
                timer[1]()


@functools.cache
def _note_children(own: int) -> None:  # noqa: ARG001  a fork is another process
    """Install the SIGCHLD handler once a process; the byte in the wakeup socket carries
    the news.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)


def close_quietly(fd: int) -> None:
    """Close a descriptor that may be closed already."""
    try:
        os.close(fd)
    except OSError:
        pass
