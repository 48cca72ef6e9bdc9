"""`muster check` beside a coordinator that is scripted: who is checked, and who is not."""

import json
from typing import Any

import msgspec
import pytest

from muster.http.views import DrainView, NodeView, Reason
from muster.protocol.states import JobState
from muster.protocol.timestamp import timestamp
from tests.check.test_networks import interface, node
from tests.cli.cluster.test_bench import fabric
from tests.cli.conftest import Run as Muster
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record

LINES = (
    '# {"nodes":["a","b"],"networks":["10.0.0.0/24"]}\n',
    '# {"node":"a","facts":{"kernel":"6.1"},"names":{},"clock_s":0}\n',
    '# {"node":"b","facts":{"kernel":"6.2"},"names":{},"clock_s":0}\n',
    '# {"step":"1/2","found":[[0,1,0,1.5,""]]}\n# {"step":"2/2","found":[[1,0,0,1.4,""]]}\n',
    '# {"end":true}\n',
)


def nodes(**states: str) -> tuple[NodeView, ...]:
    """Nodes by name, each in a state: free, busy or lost."""
    made = []
    for number, (name, state) in enumerate(states.items(), 1):
        address = f"10.0.0.{number}"
        view = node(name, address, interface("eth0", f"{address}/24"))
        link = "lost" if state == "lost" else "connected"
        reason = {"free": "free", "busy": "runs job 7", "lost": "silent beyond its lease"}[state]
        made.append(msgspec.structs.replace(view, link=link, state=Reason(state, reason)))
    return tuple(made)


def scene(fake: FakeCoordinator, *lines: str, **states: str) -> None:
    """The next job is over already, and has printed that."""
    with fake.script.changed:
        fake.script.nodes = nodes(**states)
        fake.script.jobs[42] = ended(job_view(42), JobState.SUCCEEDED, 0)
        fake.script.fabrics[42] = fabric(42, "preferred")
        fake.script.logs = [record(number, line) for number, line in enumerate(lines, 1)]


def report(run: Muster, *arguments: str, code: int) -> dict[str, Any]:
    done = run("check", "--json", *arguments)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_node_that_was_taken_out_of_service_is_no_fault_though_it_is_away(
    fake: FakeCoordinator, run: Muster
) -> None:
    scene(fake, *LINES, a="free", b="free", c="lost")
    with fake.script.changed:
        *others, away = fake.script.nodes
        drain = DrainView("ana", "gone for good", timestamp(0.0))
        fake.script.nodes = (*others, msgspec.structs.replace(away, drain=drain))
    found = report(run, code=1)
    assert "link" not in {one["kind"] for one in found["findings"]}
    assert found["skipped"] == {"c": "silent beyond its lease"}


def test_a_node_that_is_lost_is_a_fault(fake: FakeCoordinator, run: Muster) -> None:
    scene(fake, *LINES, a="free", b="free", c="lost")
    found = report(run, code=2)
    assert found["findings"][0]["text"] == "c is not connected: silent beyond its lease"
    ((_, sent),) = fake.script.submitted.values()
    assert sent["placement"] == {"include": ["a", "b"]}
    assert sent["nodes"] == 2


def test_differences_are_reported_in_words(fake: FakeCoordinator, run: Muster) -> None:
    scene(fake, *LINES, a="free", b="free", c="busy")
    done = run("check")
    assert done.returncode == 1
    text = done.stdout.decode()
    assert "warning  kernel: a has 6.1; b has 6.2\n" in text
    assert "skipped  c is left out: runs job 7\n" in text
    assert "b to a: 1.40 GB/s" in text
    assert text.endswith("2 nodes checked, 1 left out: 1 warning\n")


def test_only_the_named(fake: FakeCoordinator, run: Muster) -> None:
    scene(fake, *LINES, a="free", b="free", c="free")
    run("check", "b", "a", "b")
    ((_, sent),) = fake.script.submitted.values()
    assert sent["placement"] == {"include": ["b", "a"]}


def test_nothing_to_check(fake: FakeCoordinator, run: Muster) -> None:
    scene(fake, a="busy")
    assert report(run, code=1)["findings"][0]["text"] == "no node could be checked"
    assert not fake.script.submitted


def test_no_node_at_all(fake: FakeCoordinator, run: Muster) -> None:
    done = run("check")
    assert done.returncode == 125
    assert b"no node has joined; run `muster agent` on each" in done.stderr


def test_each_pool_for_itself(fake: FakeCoordinator, run: Muster) -> None:
    scene(fake, *LINES, a="free", b="free")
    one, other = fake.script.nodes
    fake.script.nodes = (one, msgspec.structs.replace(other, pool="big"))
    fake.script.jobs[43] = msgspec.structs.replace(fake.script.jobs[42], id=43)
    fake.script.fabrics[43] = fake.script.fabrics[42]
    run("check")
    sent = [mapping for _, mapping in fake.script.submitted.values()]
    assert [(job["pool"], job["nodes"]) for job in sent] == [("big", 1), ("default", 1)]


def test_a_job_that_was_cancelled_is_no_finding(fake: FakeCoordinator, run: Muster) -> None:
    scene(fake, *LINES[:2], a="free", b="free")
    fake.script.jobs[42] = ended(job_view(42), JobState.CANCELLED, 121, "cancelled by bob")
    done = run("check")
    assert done.returncode == 125
    assert b"job 42 CANCELLED: cancelled by bob; see muster show 42" in done.stderr


@pytest.mark.parametrize("size", ["0", "1025", "x"])
def test_a_size_that_cannot_be(fake: FakeCoordinator, run: Muster, size: str) -> None:
    assert run("check", "--mib", size).returncode == 2


def test_the_time_limit_is_printed(fake: FakeCoordinator, run: Muster) -> None:
    scene(fake, *LINES, a="free", b="free")
    with fake.script.changed:
        over = ended(job_view(42, time_limit_s=4 * 3600.0), JobState.SUCCEEDED, 0)
        fake.script.jobs[42] = over
    assert b"its time limit is 4h, the default of every check" in run("check").stderr
