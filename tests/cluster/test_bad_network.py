"""A bad network harms no job: it runs on, once, and its log is complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.rig.proxy import Connection, End, Flow, Way
from muster.protocol.states import ENDED_STATES, JobState
from tests.cluster.conftest import PORTS
from tests.cluster.jobs import await_file, await_running, log_of, submit, until, wait
from tests.cluster.proxied import COUNT, SWALLOW, ProxiedCluster, whole

HEARTBEAT_S = 2.0
NODE = "node-1"
CONTROL, LOGS = "/v1/agent", "/v1/agent/logs"
STORM_BYTES = 100_000_000

Measured = Callable[[int, float], None]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Two nodes, and a proxy before each."""
    folder = tmp_path_factory.mktemp("crossed")
    made = ProxiedCluster(folder, agents=2, env=PORTS, heartbeat_s=HEARTBEAT_S)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


@pytest.fixture
def cluster(crossed: ProxiedCluster) -> Iterator[ProxiedCluster]:
    yield crossed
    mend(crossed)
    for job in crossed.client().all_jobs().jobs:
        if job.state not in ENDED_STATES:
            crossed.muster("cancel", "--wait", str(job.id))


def mend(cluster: ProxiedCluster) -> None:
    """A good network again, and every node on it."""
    for name, proxy in cluster.proxies.items():
        broken = proxy.live()
        proxy.mend()
        for connection in broken:
            if connection.up.swallows or connection.down.swallows:
                proxy.cut()
        until(lambda n=name: cluster.link(n) == "connected", f"{name} is back")  # type: ignore[misc]


def control(cluster: ProxiedCluster) -> Connection:
    """The one control connection of the node there is."""
    (found,) = [c for c in cluster.proxies[NODE].live(CONTROL) if c.path == CONTROL]
    return found


def log_connection(cluster: ProxiedCluster, folder: Path) -> Connection:
    """The one log connection of the node there is; without a log to ship none is made."""
    job = submit(cluster, folder, placement={"include": [NODE]}, run="echo shipped")
    assert wait(cluster, job) == 0
    assert log_of(cluster, job) == "shipped\n"
    until(lambda: len(cluster.proxies[NODE].live(LOGS)) == 1, "there is a log connection")
    return cluster.proxies[NODE].live(LOGS)[0]


def start_counting(cluster: ProxiedCluster, folder: Path) -> str:
    job = submit(cluster, folder, nodes=2, run=COUNT)
    for rank in (0, 1):
        await_file(folder / f"pids.{rank}")
    await_running(cluster, job)
    until(lambda: bool(cluster.proxies[NODE].live(LOGS)), "logs are on their way")
    return job


def end_counting(cluster: ProxiedCluster, folder: Path, job: str) -> None:
    """It ran through all that happened, once, and every line of it is there, once."""
    assert cluster.client().job(int(job)).state is JobState.RUNNING
    (folder / "go").touch()
    assert wait(cluster, job) == 0
    for rank in (0, 1):
        assert len((folder / f"pids.{rank}").read_text().split()) == 1
        assert whole(log_of(cluster, job, "--rank", str(rank)), folder, rank)
    assert len(cluster.client().job(int(job)).attempts) == 1


@pytest.mark.fault(13, 15, 16, 19)
@pytest.mark.parametrize(
    ("fault", "up", "down"),
    [(19, SWALLOW, SWALLOW), (16, SWALLOW, Way()), (15, Way(), SWALLOW)],
    ids=["both ways", "from the agent", "to the agent"],
)
def test_a_half_open_connection_is_noticed_on_both_sides(
    cluster: ProxiedCluster, tmp_path: Path, measured: Measured, fault: int, up: Way, down: Way
) -> None:
    job = start_counting(cluster, tmp_path)
    before = cluster.said(NODE, "disconnected")
    cluster.proxies[NODE].shape(up=up, down=down)
    began = time.monotonic()
    until(lambda: cluster.link(NODE) == "suspect", "the coordinator has noticed")
    noticed = time.monotonic() - began
    until(lambda: cluster.said(NODE, "disconnected") > before, "the agent has noticed")
    measured(fault, max(noticed, time.monotonic() - began))
    if fault == 19:
        measured(13, noticed)
    # The kernel reported nothing: the agent concluded it from silence.
    assert cluster.said(NODE, "the coordinator has been silent for") or fault == 16
    assert cluster.client().job(int(job)).state is JobState.RUNNING
    mend(cluster)
    end_counting(cluster, tmp_path, job)


def reset(cluster: ProxiedCluster) -> None:
    for _ in range(3):
        assert cluster.proxies[NODE].cut(End.RESET) > 0
        until(lambda: bool(cluster.proxies[NODE].live(CONTROL)), "it is dialled anew")


def close(cluster: ProxiedCluster) -> None:
    assert cluster.proxies[NODE].cut(End.FIN) > 0


def half_close(cluster: ProxiedCluster) -> None:
    was = control(cluster)
    assert cluster.proxies[NODE].half_close() > 0
    until(was.over.is_set, "the connection is given up")


def truncate(cluster: ProxiedCluster) -> None:
    proxy = cluster.proxies[NODE]
    until_cut = Way(cut_after=3000, end=End.FIN)
    seen = len(proxy.connections)
    proxy.shape(up=until_cut, down=until_cut)
    until(lambda: len(proxy.connections) >= seen + 5, "it is cut and dialled again and again")


def stall(cluster: ProxiedCluster) -> None:
    """Lose segments that are sent again, for less than two heartbeats."""
    was, proxy = control(cluster), cluster.proxies[NODE]
    moved = was.up.moved
    loss = Way(stalls=0.05, stall_s=0.5)
    proxy.shape(up=loss, down=loss)
    until(lambda: was.up.moved > moved + 150, "heartbeats go on")
    assert not was.over.is_set()


def delay(cluster: ProxiedCluster) -> None:
    was, proxy = control(cluster), cluster.proxies[NODE]
    proxy.shape(up=Way(delay_s=0.5), down=Way(delay_s=0.5))
    heard = was.down.moved
    until(lambda: was.down.moved > heard + 100, "answers come, a second late")
    assert not was.over.is_set()
    # A new connection has more to say before it stands.
    assert proxy.cut() > 0
    until(was.over.is_set, "it is over")
    until(lambda: cluster.link(NODE) == "connected", "a slow one is made")


@pytest.mark.fault(18, 20)
@pytest.mark.parametrize("fault", [reset, close, half_close, truncate, stall, delay])
def test_a_job_runs_on_and_its_log_is_whole(
    cluster: ProxiedCluster, tmp_path: Path, fault: Callable[[ProxiedCluster], None]
) -> None:
    job = start_counting(cluster, tmp_path)
    fault(cluster)
    mend(cluster)
    end_counting(cluster, tmp_path, job)


@pytest.mark.fault(19)
def test_a_half_open_log_connection_is_noticed_too(cluster: ProxiedCluster, tmp_path: Path) -> None:
    job = start_counting(cluster, tmp_path)
    was, proxy = control(cluster), cluster.proxies[NODE]
    until(lambda: len(proxy.live(LOGS)) == 1, "no log connection of before is left")
    (half_open,) = proxy.live(LOGS)
    proxy.shape(up=SWALLOW, down=SWALLOW, path=LOGS)
    until(lambda: half_open.up.swallows, "bytes are thrown away")
    proxy.mend()
    until(half_open.over.is_set, "the log connection is given up")
    assert not was.over.is_set(), "the control connection is no party to it"
    end_counting(cluster, tmp_path, job)


SOME_REPORTS = 16
"""Pieces of a line: an agent may have several reports to make at once."""


def waiting_pieces(control: Connection, logs: Connection) -> tuple[int, int]:
    """Return the longest queue of each connection until some heartbeats have passed."""
    heard, most, deadline = control.up.moved, (0, 0), time.monotonic() + 60
    while control.up.moved < heard + 400 and time.monotonic() < deadline:
        most = (max(most[0], control.up.line.qsize()), max(most[1], logs.up.line.qsize()))
        time.sleep(0.001)
    return most


STORM = "import os\nfor i in range(1000): os.write(1, b'%07d %s\\n' % (i, b'x' * 99991))\n"


@pytest.mark.fault(18, 28)
def test_control_never_waits_behind_logs_on_a_slow_line(
    cluster: ProxiedCluster, tmp_path: Path, measured: Measured
) -> None:
    (tmp_path / "storm.py").write_text(STORM)
    was, proxy, logs = control(cluster), cluster.proxies[NODE], log_connection(cluster, tmp_path)
    before = logs.up.moved
    proxy.shape(up=Way(rate=64_000))
    script = "python3 storm.py; touch written; until [ -e go ]; do sleep 0.05; done"
    job = submit(cluster, tmp_path, placement={"include": [NODE]}, run=script)
    until((tmp_path / "written").exists, "100 MB wait")
    until(lambda: logs.up.moved > before + 200_000, "logs fill the line")
    behind, of_logs = waiting_pieces(was, logs)
    began = time.monotonic()
    cluster.muster("cancel", job)
    assert wait(cluster, job) == 121
    measured(18, time.monotonic() - began)
    assert control(cluster) is was, "no heartbeat was missed"
    assert behind <= SOME_REPORTS < of_logs, "a heartbeat waits behind none of the logs"
    assert logs.up.moved < before + STORM_BYTES / 10, "the backlog is still there"
    assert cluster.link(NODE) == "connected"
    mend(cluster)
    assert log_of(cluster, job) == "".join(f"{i:07d} {'x' * 99991}\n" for i in range(1000))


@pytest.mark.long
@pytest.mark.fault(28)
def test_a_storm_of_one_rank_holds_up_no_control(
    cluster: ProxiedCluster, tmp_path: Path, measured: Measured
) -> None:
    was, proxy, logs = control(cluster), cluster.proxies[NODE], log_connection(cluster, tmp_path)
    before = logs.up.moved
    proxy.shape(down=Way(), up=Way(rate=20_000_000))
    script = "until [ -e go ]; do head -c 1000000 /dev/zero; done"
    job = submit(cluster, tmp_path, placement={"include": [NODE]}, run=script)
    until(lambda: logs.up.moved > before + 10_000_000, "it storms")
    behind, of_logs = waiting_pieces(was, logs)
    began = time.monotonic()
    cluster.muster("cancel", "--force", job)
    assert wait(cluster, job) == 121
    measured(28, time.monotonic() - began)
    assert control(cluster) is was, "no heartbeat was missed"
    assert behind <= SOME_REPORTS < of_logs, "a heartbeat waits behind none of the logs"


@pytest.mark.fault(13, 18)
def test_delayed_messages_arrive_in_order(cluster: ProxiedCluster, tmp_path: Path) -> None:
    """A network that comes back before anybody has doubted it: nothing is said twice."""
    job = start_counting(cluster, tmp_path)
    was, proxy = control(cluster), cluster.proxies[NODE]
    until(lambda: len(proxy.live(LOGS)) == 1, "no log connection of before is left")
    (logs,) = proxy.live(LOGS)
    hold = Way(flow=Flow.HOLD)
    proxy.shape(up=hold, down=hold, path=LOGS)
    moved = was.up.moved
    until(lambda: was.up.moved > moved, "control goes on while logs are held")
    proxy.mend()
    before = logs.up.moved
    until(lambda: logs.up.moved > before + 1000, "they go on")
    assert control(cluster) is was
    end_counting(cluster, tmp_path, job)
