"""A hosts file that one job sees, and nobody else."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from agent.core.shim_protocol import ShimHosts, ShimPhase, ShimStart, ShimUser
from tests.agent.shims.conftest import Node, Stage

pytestmark = pytest.mark.root

MACHINE = Path("/etc/hosts")


def test_a_job_and_its_setup_see_a_file_that_is_written_while_they_wait(
    any_stage: Stage, tmp_path: Path
) -> None:
    source = tmp_path / "own"
    source.write_text("192.0.2.1 before\n")
    machine = MACHINE.read_bytes()
    seen = tmp_path / "seen-by-setup"

    async def story(node: Node) -> None:
        task = await node.task()
        hosts = ShimHosts(str(source), str(MACHINE))
        setup = ["/bin/cp", str(MACHINE), str(seen)]
        status = await task.prepared(hosts=hosts, setup=setup)
        assert status.phase is ShimPhase.PREPARED, status.refusal
        source.write_text("192.0.2.2 after\n")
        await task.send(ShimStart(argv=["/bin/sh", "-c", "cat /etc/hosts; getent hosts after"]))
        ended = await task.ended()
        assert ended.exit is not None
        out = task.read(ended.ranks[0].stdout).decode()
        assert out.splitlines()[0] == "192.0.2.2 after"
        assert out.splitlines()[1].split() == ["192.0.2.2", "after"]

    any_stage.play(story)
    assert seen.read_text() == "192.0.2.1 before\n"
    assert MACHINE.read_bytes() == machine


def test_a_job_of_another_user_sees_it_too_and_cannot_write_it(
    any_stage: Stage, tmp_path: Path
) -> None:
    source = tmp_path / "own"
    source.write_text("192.0.2.1 mine\n")

    async def story(node: Node) -> None:
        task = await node.task()
        hosts = ShimHosts(str(source), str(MACHINE))
        user = ShimUser(pwd.getpwuid(65534).pw_name)
        script = "cat /etc/hosts; echo x >> /etc/hosts || umount /etc/hosts || echo kept"
        await task.run("/bin/sh", "-c", script, hosts=hosts, user=user)
        ended = await task.ended()
        out = task.read(ended.ranks[0].stdout).decode()
        assert out.splitlines() == ["192.0.2.1 mine", "kept"]

    any_stage.play(story)
    assert source.read_text() == "192.0.2.1 mine\n"


def test_a_file_that_is_not_there_is_a_refusal_in_words(any_stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(hosts=ShimHosts(str(tmp_path / "nothing"), str(MACHINE)))
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert "/etc/hosts of its own" in status.refusal.text

    any_stage.play(story)
