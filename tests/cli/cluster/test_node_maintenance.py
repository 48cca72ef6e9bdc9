"""`muster node drain` and `resume` by the real coordinator: what they say and exit with."""

from __future__ import annotations

import asyncio
import json
import os
import pty

from tests.cli.conftest import Muster
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess


def test_several_at_once_and_what_fails_does_not_keep_the_rest(muster: Muster) -> None:
    done = muster("node", "drain", "c1", "nobody", "c2", "--reason", "new racks", "--json")
    assert done.returncode == 125
    assert "there is no node 'nobody'" in done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert [(node["name"], node["admin"]) for node in nodes] == [
        ("c1", "drained"),
        ("c2", "drained"),
    ]
    shown = " ".join(muster("node", "show", "c1").stdout.split())
    assert "new racks" in shown
    assert "muster: c1: unreachable; drained by admin-user" in done.stderr
    refused = muster("node", "resume", "c1")
    assert refused.returncode == 125
    assert "muster node resume c1 --no-check" in refused.stderr
    done = muster("node", "resume", "c1", "c2", "--no-check")
    assert (done.returncode, "c1 active" in done.stderr) == (0, True)
    assert "was in service" in muster("node", "resume", "c1").stderr


def test_contradictory_drain_options_are_refused(muster: Muster) -> None:
    for options, word in (
        ((), "--reason"),
        (("--reason", " "), "--reason is empty"),
        (("--reason", "x", "--now", "--after-checkpoint"), "exclude each other"),
        (("--reason", "x", "--now", "--deadline", "2h"), "exclude each other"),
        (("--reason", "x", "--deadline", "soon"), "soon"),
    ):
        done = muster("node", "drain", "c1", *options)
        assert (done.returncode, word in done.stderr) == (2, True), done.stderr


def test_at_a_terminal_now_is_asked_about(muster: Muster) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"n\n")
        done = muster("node", "drain", "c1", "--reason", "x", "--now", stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 125
    assert "nothing was drained" in done.stderr
    assert muster("node", "drain", "c1", "--reason", "x", "--now").returncode == 0
    assert muster("node", "resume", "c1", "--no-check").returncode == 0


def test_a_loss_is_asked_about_in_words_that_a_yes_answers(
    muster: Muster, coordinator: CoordinatorProcess
) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"n\n")
        done = muster("node", "lost", "c1", stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "a job that still runs on c1 would run twice; declare c1 lost? [y/N]" in done.stderr
    assert (done.returncode, "no node was declared lost" in done.stderr) == (125, True)


def test_nodes_are_declared_lost(muster: Muster, coordinator: CoordinatorProcess) -> None:
    async def come_and_go() -> None:
        async with connect(coordinator, "dead") as agent:
            await agent.hello()
            refused = await asyncio.to_thread(muster, "node", "lost", "dead", "--yes")
            assert refused.returncode == 125
            assert "dead is connected" in refused.stderr

    asyncio.run(come_and_go())
    unsure = muster("node", "lost", "dead")
    assert (unsure.returncode, "give --yes" in unsure.stderr) == (2, True), unsure.stderr
    done = muster("node", "lost", "dead", "--yes", "--json")
    while "is connected" in done.stderr:  # the end of the connection has not been noticed
        done = muster("node", "lost", "dead", "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "muster: dead declared lost\n")
    assert json.loads(done.stdout) == {"nodes": [{"name": "dead", "changed": True}]}
    assert "no change" in muster("node", "lost", "dead", "-y").stderr
    assert "there is no node 'none'" in muster("node", "lost", "none", "-y").stderr
    assert "waits for no node" in muster("node", "lost", "--awaited").stderr
    assert muster("node", "lost").returncode == 2
    assert muster("node", "lost", "dead", "--awaited").returncode == 2
    assert muster("node", "remove", "dead").returncode == 0


def test_a_node_that_is_gone_is_removed(muster: Muster, coordinator: CoordinatorProcess) -> None:
    async def come_and_go() -> None:
        async with connect(coordinator, "gone") as agent:
            await agent.hello()
            refused = await asyncio.to_thread(muster, "node", "remove", "gone")
            assert refused.returncode == 125
            assert "gone is connected, and would come back at once" in refused.stderr

    asyncio.run(come_and_go())
    done = muster("node", "remove", "gone", "--json")
    while "is connected" in done.stderr:  # the end of the connection has not been noticed
        done = muster("node", "remove", "gone", "--json")
    assert (done.returncode, done.stderr) == (0, "muster: gone removed\n")
    assert [node["name"] for node in json.loads(done.stdout)["nodes"]] == ["gone"]
    assert "there is no node 'gone'" in muster("node", "remove", "gone").stderr
