"""Shims as units of systemd: what is asked of it, and the program that a unit runs, here without
systemd. tests/systemd/test_booted.py has a real one."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.core.shim_protocol import ShimKill, ShimPhase, ShimRelease, ShimStatus
from agent.leftovers import units as left_units
from agent.leftovers.units import LeftUnit
from agent.probe.fabric import host_problems
from agent.shim import exit_record
from agent.shim.system.cgroup import Cgroup
from agent.shims import backend, systemd
from agent.shims.backend import ShimOptions, SpawnError, by_units, request_of
from agent.shims.systemd import (
    SystemdUnits,
    argv_of,
    command_of,
    description_of,
    folder_of,
    unit_of,
)
from agent.tasks.adoption import Ownership, examine
from muster.daemon.config_loader import load_config
from muster.daemon.errors import ConfigError
from tests.agent.shims.conftest import PATIENCE_S, Dialogue, Node, Spoken, Stage, cgroup_writable
from tests.agent.shims.test_termination import eventually
from tests.systemd.test_units import SYSTEMD, settings_of

SHIM_BYTES_MAX = 20_000_000
FOLDER = Path("/state/tasks/7.1.0")


def properties(argv: list[str]) -> dict[str, str]:
    given = [word.removeprefix("--property=") for word in argv if word.startswith("--property=")]
    return dict(text.partition("=")[::2] for text in given)


def unlimited(which: int) -> tuple[int, int]:
    if which == resource.RLIMIT_NOFILE:
        return 1024, 1048576
    return resource.RLIM_INFINITY, resource.RLIM_INFINITY


# --- what is asked of systemd ---------------------------------------------------------------------


def test_a_unit_is_named_after_its_task_and_names_its_folder() -> None:
    assert unit_of("7.1.0") == "muster-task-7-1-0.service"
    argv = argv_of(FOLDER, ShimOptions())
    assert f"--unit={unit_of('7.1.0')}" in argv
    assert f"--description={description_of(FOLDER)}" in argv
    assert folder_of(description_of(FOLDER)) == FOLDER
    assert folder_of("D-Bus System Message Bus") is None


def test_a_unit_depends_on_nothing_of_the_agents() -> None:
    argv = argv_of(FOLDER, ShimOptions())
    assert "--slice=muster.slice" in argv
    assert not any("muster-agent" in word for word in argv)
    assert not {"Requires", "BindsTo", "PartOf", "Wants"} & set(properties(argv))


def test_the_properties_of_a_unit() -> None:
    argv = argv_of(FOLDER, ShimOptions(), unlimited)
    assert argv[:3] == ["systemd-run", "--quiet", "--collect"]  # CollectMode=inactive-or-failed
    given = properties(argv)
    assert given["Type"] == "notify"
    assert given["KillMode"] == "mixed"
    assert given["OOMPolicy"] == "continue"
    assert given["Delegate"] == "yes"
    assert given["TasksMax"] == "infinity"
    assert int(given["OOMScoreAdjust"]) < 0
    assert given["LimitMEMLOCK"] == "infinity"
    assert given["LimitNOFILE"] == "1024:1048576"


def test_a_task_has_the_capabilities_of_an_agent_that_forks_its_shims() -> None:
    everything, bounding = settings_of(SYSTEMD / "forked-shims.conf")["Service"][
        "CapabilityBoundingSet"
    ]
    assert everything == "~"
    assert properties(argv_of(FOLDER, ShimOptions()))["CapabilityBoundingSet"] == bounding


def test_nothing_in_the_command_is_for_systemd_to_expand() -> None:
    folder = Path("/st$HOME/%n/${PATH}/7.1.0")
    argv = argv_of(folder, ShimOptions(unkillable_s=7.0))
    command = argv[argv.index("--") + 1 :]
    assert not any("$" in word.replace("$$", "") or "%" in word for word in command)
    request = json.loads(bytes.fromhex(command[-1]))
    assert request["task_dir"] == str(folder)
    assert (request["task"], request["unkillable_s"], request["sigterm"]) == ("7.1.0", 7.0, True)


def test_a_folder_has_an_absolute_path() -> None:
    with pytest.raises(SpawnError, match="absolute"):
        argv_of(Path("tasks/7.1.0"), ShimOptions())


# --- which backend --------------------------------------------------------------------------------


@pytest.fixture
def in_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An agent in its unit: on a machine of systemd, as root, a child of PID 1."""
    monkeypatch.setattr(backend, "BOOTED", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.getppid", lambda: 1)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    return {"INVOCATION_ID": "0"}


def config(**given: object) -> AgentConfig:
    return AgentConfig(node="n1", **given)  # type: ignore[arg-type]


def test_an_agent_in_a_unit_makes_units(in_unit: dict[str, str]) -> None:
    assert by_units(config(), in_unit)
    assert by_units(config(shims="systemd"), in_unit)
    assert not by_units(config(shims="forked"), in_unit)


def test_an_agent_that_was_started_by_hand_forks(
    in_unit: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not by_units(config(), {})
    assert not by_units(config(shared_host=True), in_unit)
    monkeypatch.setattr("os.getppid", lambda: 4711)
    assert not by_units(config(), in_unit)
    assert by_units(config(shims="systemd"), in_unit)


def test_an_impossible_unit_is_forked_or_refused(
    in_unit: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(why: str) -> None:
        assert not by_units(config(), in_unit)
        with pytest.raises(SpawnError, match=why):
            by_units(config(shims="systemd"), in_unit)

    monkeypatch.setattr("shutil.which", lambda name: None)
    refused("no systemd-run")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    refused("only root")
    monkeypatch.setattr(backend, "BOOTED", tmp_path / "absent")
    refused("not booted by systemd")


def test_agents_that_share_a_machine_make_no_units(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("shims: systemd\nshared_host: true\n")
    with pytest.raises(ConfigError, match="same names"):
        load_config(AgentConfig, prefix="MUSTER_AGENT", file=file, environ={})


# --- starting one ---------------------------------------------------------------------------------

# Acts like systemd-run: returns when the shim is ready and leaves it running. The shim writes its
# identity once its socket listens, shortly after the socket exists.
SYSTEMD_RUN = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
"$@" 2>/dev/null &
until [ -e "{folder}/shim.json" ]; do sleep 0.01; done
"""
FAILING = """#!/bin/sh
echo 'Failed to start transient service unit:' >&2
echo 'Unit muster-task-7-1-0.service was already loaded.' >&2
exit 1
"""


def systemd_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = tmp_path / "bin" / "systemd-run"
    program.parent.mkdir(exist_ok=True)
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_a_unit_is_started_and_spoken_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "7.1.0"
    systemd_run(tmp_path, monkeypatch, SYSTEMD_RUN.format(folder=folder))

    async def story() -> None:
        backend = SystemdUnits(ShimOptions(cgroup=False))
        await backend.start()
        pid = await backend.spawn(folder)
        task = Spoken(await Dialogue.begin(folder), pid)
        await task.run("sh", "-c", "exit 7")
        status = await task.ended()
        assert status.exit is not None
        assert status.exit.code == 7
        systemd_run(tmp_path, monkeypatch, FAILING)
        with pytest.raises(SpawnError, match="belongs to a shim that is still alive"):
            await backend.spawn(folder)
        await task.send(ShimRelease())
        await task.gone()
        await backend.close()

    asyncio.run(story())


def test_why_there_is_no_unit_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SystemdUnits(ShimOptions())

    def refused(text: str, why: str) -> None:
        systemd_run(tmp_path, monkeypatch, text)
        with pytest.raises(SpawnError, match=why):
            asyncio.run(backend.spawn(tmp_path / "7.1.0"))

    refused(FAILING, "already loaded")
    refused("#!/bin/sh\nexit 3\n", "systemd-run ended with 3")
    refused("#!/bin/sh\n", "journalctl -u muster-task-7-1-0.service")
    monkeypatch.setattr(systemd, "START_S", -9.9)
    refused("#!/bin/sh\nexec sleep 1000\n", "does not start its unit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpawnError, match="No such file"):
        asyncio.run(backend.spawn(tmp_path / "7.1.0"))


# --- what is left ---------------------------------------------------------------------------------

SHOWN = """\
Id=muster-task-7-1-0.service
Description=Muster task in /state/tasks/7.1.0
ActiveState=active

Id=muster-task-8-1-0.service
Description=Muster task in /state/tasks/8=1 0
ActiveState=deactivating

Id=muster-task-9-1-0.service
Description=muster-task-9-1-0.service
ActiveState=inactive
"""


def test_units_are_read() -> None:
    assert left_units.parse(SHOWN) == {
        "muster-task-7-1-0.service": FOLDER,
        "muster-task-8-1-0.service": Path("/state/tasks/8=1 0"),
    }
    assert left_units.parse("") == {}


def test_a_unit_without_a_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = tmp_path / "7.1.0", tmp_path / "8.1.0"
    kept.mkdir()
    shown = "\n".join(
        f"Id={unit_of(path.name)}\nDescription={description_of(path)}\nActiveState=active\n"
        for path in (kept, gone)
    )
    monkeypatch.setattr(left_units, "BOOTED", tmp_path)
    monkeypatch.setattr(left_units, "_systemctl", lambda *_, **__: shown)
    found = left_units.left_units()
    assert found == (LeftUnit("muster-task-8-1-0.service", gone),)
    (problem,) = host_problems.of_left_units(found)
    assert "muster-task-8-1-0.service" in problem.what
    assert "systemctl stop muster-task-8-1-0.service" in problem.fix
    assert list(host_problems.of_left_units(())) == []
    assert left_units.stop(found) == ["muster-task-8-1-0.service"]


# --- the program of a unit ------------------------------------------------------------------------

ENTER = 'echo 0 > "$0/cgroup.procs" && exec "$@"'


@contextmanager
def alone(
    folder: Path, options: ShimOptions, unit: Cgroup | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A shim that was started as systemd would, in the cgroup of its unit, and that is ready."""
    command = command_of({**request_of(folder, options), "sigterm": True})
    if unit is not None:
        command = ["sh", "-c", ENTER, unit.path, *command]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        notify = folder.parent / f"{folder.name}.notify"
        manager.bind(str(notify))
        manager.settimeout(PATIENCE_S)
        environ = {"NOTIFY_SOCKET": str(notify), "PATH": os.defpath}
        with subprocess.Popen(command, env=environ) as process:
            try:
                assert manager.recv(100) == b"READY=1"
                yield process
            finally:
                process.kill()
                process.wait()
                examine(folder)


@pytest.fixture
def unit(request: pytest.FixtureRequest) -> Iterator[Cgroup | None]:
    """The cgroup that systemd would have made; None where none can be made."""
    made = Cgroup.make(None, f"unit-{os.getpid()}") if cgroup_writable() else None
    yield made
    assert made is None or made.remove()


async def spoken(folder: Path, process: subprocess.Popen[bytes]) -> Spoken:
    pid = await asyncio.to_thread(systemd._pid, folder)
    assert pid == process.pid
    return Spoken(await Dialogue.begin(folder), pid)


def test_it_runs_one_task_and_ends(tmp_path: Path, unit: Cgroup | None) -> None:
    folder = tmp_path / "7.1.0"

    async def story(process: subprocess.Popen[bytes]) -> ShimStatus:
        task = await spoken(folder, process)
        await task.run("sh", "-c", "exit 7")
        status = await task.ended()
        await task.send(ShimRelease())
        await task.gone()
        return status

    with alone(folder, ShimOptions(cgroup=unit is not None), unit) as process:
        status = asyncio.run(story(process))
        assert status.task == "7.1.0"
        assert status.exit is not None
        assert status.exit.code == 7
        assert process.wait(PATIENCE_S) == 0
    assert examine(folder).ownership is Ownership.ENDED


def test_stopping_the_unit_stops_the_job_with_its_own_signal(
    tmp_path: Path, unit: Cgroup | None
) -> None:
    folder = tmp_path / "7.1.0"
    program = "trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.1; done"

    async def story(process: subprocess.Popen[bytes]) -> ShimStatus:
        task = await spoken(folder, process)
        await task.run("sh", "-c", program)
        status = await task.phase(ShimPhase.RUNNING)
        (output,) = [it.path for it in status.streams if it.stream == "stdout"]
        await eventually(lambda: task.read(output) == b"up\n")
        process.send_signal(signal.SIGTERM)
        status = await task.ended()
        assert task.read(output) == b"up\nasked\n"
        task.connection.close()
        return status

    with alone(folder, ShimOptions(cgroup=unit is not None), unit) as process:
        status = asyncio.run(story(process))
        assert (status.phase, status.stopped_by) == (ShimPhase.CLEANED, "stop")
        assert process.wait(PATIENCE_S) == 0  # nobody speaks to it, and it does not linger
    assert examine(folder).ownership is Ownership.ENDED


def test_it_takes_no_folder_of_another(tmp_path: Path, unit: Cgroup | None) -> None:
    folder = tmp_path / "7.1.0"
    with alone(folder, ShimOptions(cgroup=unit is not None), unit):
        assert systemd._owned(folder)
        command = command_of(request_of(folder, ShimOptions()))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "belongs to a shim that is still alive" in done.stderr
    assert not systemd._owned(folder)


def test_its_task_has_a_cgroup_of_its_own_in_that_of_the_unit(
    tmp_path: Path, unit: Cgroup | None
) -> None:
    if unit is None:
        pytest.skip("no cgroup v2 can be written here")
    folder = tmp_path / "7.1.0"
    itself = Path(unit.path, "cgroup.procs").read_text

    async def story(process: subprocess.Popen[bytes]) -> None:
        task = await spoken(folder, process)
        await task.run("sleep", "1000")
        await task.phase(ShimPhase.RUNNING)
        own = Cgroup(json.loads(task.read(exit_record.IDENTITY))["cgroup"])
        assert own.path.startswith(f"{unit.path}/muster/")
        assert process.pid not in own.members()
        assert own.populated()
        # The kernel lets a cgroup hand controllers down that holds no process itself.
        assert itself() == ""
        task.connection.close()

    with alone(folder, ShimOptions(), unit) as process:
        asyncio.run(story(process))


def memory_of(pid: int) -> int:
    """Bytes that it holds and shares with nobody, or its part of what it shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) * 1024


def test_a_shim_is_small(tmp_path: Path, any_stage: Stage) -> None:
    """A backend that forks shares with its fork server, a unit shares with nobody."""
    folder = tmp_path / "8.1.0"
    with alone(folder, ShimOptions(cgroup=False)) as process:
        assert memory_of(process.pid) < SHIM_BYTES_MAX

    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "1000")
        await task.phase(ShimPhase.RUNNING)
        assert memory_of(task.pid) < SHIM_BYTES_MAX
        await task.send(ShimKill())
        await task.ended()
        await task.send(ShimRelease())
        await task.gone()

    any_stage.play(story)
