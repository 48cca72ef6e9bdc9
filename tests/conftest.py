"""Fixtures of every test: skips, with the reason, if the machine lacks what a marker names."""

import asyncio
import gc
import importlib.util
import inspect
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.faults.record import Recorder

# No deadlines: how long an example takes, to be made or to be tried, says more about the machine
# than about the code.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--soak", action="store_true", help="also run what takes tens of minutes")
    parser.addoption(
        "--record-faults", type=Path, metavar="FILE", help="write down what is shown of each fault"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config.getoption("--record-faults")))
    # A shell that starts a run in the background has it ignore SIGINT, and every program that the
    # tests start would inherit that: none of them could be stopped by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {name for name in ("long", "soak") if not config.getoption(f"--{name}")}
    away = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    items[:] = [item for item in items if item not in set(away)]
    config.hook.pytest_deselected(items=away)
    # Side by side, the end waits for the file that takes the longest: those that may, begin first.
    patience: dict[Path, float] = {}
    for item in items:
        patience[item.path] = max(patience.get(item.path, 0.0), _patience_s(item))
    items.sort(key=lambda item: -patience[item.path])


def _patience_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None and marker.args else 0.0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a marked test whose needs are not met."""
    for marker, missing in (
        ("torch", "torch is not installed" if importlib.util.find_spec("torch") is None else ""),
        ("root", "needs the superuser" if os.geteuid() != 0 else ""),
        ("cgroup", _cgroup_missing()),
    ):
        if missing and item.get_closest_marker(marker) is not None:
            pytest.skip(missing)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Run a test that is a coroutine function in an event loop of its own."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = lambda **fixtures: asyncio.run(test(**fixtures))


TESTS = Path(__file__).parent
# Their tests open connections in this process. Elsewhere, the collections only cost time.
CONNECT = tuple(
    TESTS / each
    for each in ("agent/link", "client", "orchestrator/api", "orchestrator/webhooks", "check")
)


def pytest_collection_finish() -> None:
    """Leave what the imports have made out of all later collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_unclosed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a connection, a response or a file unclosed.

    Each warns when it is collected. A collection at another time would blame another test.
    """
    yield
    if any(request.path.is_relative_to(folder) for folder in CONNECT):
        gc.collect()


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Fail a test that leaves another umask to the tests after it."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    after = os.umask(before)
    assert after == before, f"the test left umask {after:03o}"


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[int, float], None]:
    """Record the seconds of a fault for docs/reference/fault-matrix.md; no test depends on them."""

    def note(fault: int, seconds: float) -> None:
        record_property(f"fault {fault}", round(seconds, 3))

    return note


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup of the first version. Once it is frozen its processes survive SIGKILL until they are
    thawed, as those do which the kernel holds."""
    made = Path("/sys/fs/cgroup/freezer") / f"muster-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer of cgroup v1 can be written here: {error}")
    yield made
    (made / "freezer.state").write_text("THAWED")
    deadline = time.monotonic() + 60.0
    while (made / "cgroup.procs").read_text():
        assert time.monotonic() < deadline, "the freezer is not empty"
        time.sleep(0.01)
    made.rmdir()


def _cgroup_missing() -> str:
    top = Path("/sys/fs/cgroup")
    if not (top / "cgroup.controllers").exists():
        return "no cgroup v2 at /sys/fs/cgroup"
    own = Path("/proc/self/cgroup").read_text(encoding="ascii").strip().rpartition("::")[2]
    if not os.access(top / own.lstrip("/"), os.W_OK):
        return f"the cgroup {own} is not writable"
    return ""
