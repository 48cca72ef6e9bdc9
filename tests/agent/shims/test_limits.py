"""Limits of tasks that share a node: for whom, and as properties of units and files of cgroups."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from agent.config import AgentConfig
from agent.probe.fabric.fs_root import FsRoot
from agent.shim.system import cgroup
from agent.shim.system.cgroup import Cgroup
from agent.shims import backend
from agent.shims.backend import ShimOptions, request_of, why_devices_are_open
from agent.shims.limits import (
    COMMON_DEVICES,
    NO_LIMITS,
    SHIM_BYTES,
    SHIM_TASKS,
    NodeParts,
    TaskLimits,
    files_of,
    limits_of,
    properties_of,
    unenforced,
)
from agent.shims.systemd import argv_of
from agent.tasks.part_limits import read_limits
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Inventory, PrepareTask
from muster.protocol.observations.gpus import GpuDevice

FOLDER = Path("/state/tasks/7.1.0")
GIB = 1 << 30
GPUS = tuple(GpuDevice(pci=f"0000:{n:02x}:00.0", uuid=f"GPU-{n}") for n in range(4))
MINORS = {gpu.pci: 3 - n for n, gpu in enumerate(GPUS)}
NODE = NodeParts(64, 100 * GIB, GPUS, MINORS, ("uverbs0", "uverbs1"))
FULL = TaskLimits(10 * GIB, 25, ("/dev/nvidia3 rw",))


def prepare(*gpus: str, cpus: int = 0, memory_bytes: int = 0) -> PrepareTask:
    return PrepareTask(
        TaskId("7.1.0"),
        "none",
        None,
        None,
        (),
        {},
        60.0,
        gpus=gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
    )


# --- which limits ---------------------------------------------------------------------------------


def test_a_part_gets_its_request_as_limit_and_the_cpus_by_its_gpus() -> None:
    asked = limits_of(prepare("GPU-0", memory_bytes=10 * GIB), NODE, "requests")
    assert (asked.memory_bytes, asked.cpu_weight) == (10 * GIB, 25)
    more = limits_of(prepare("GPU-0", cpus=48), NODE, "requests")
    assert (more.memory_bytes, more.cpu_weight) == (None, 75)


def test_a_part_without_a_request_gets_a_share_of_memory_where_the_site_says_so() -> None:
    part = prepare("GPU-0", "GPU-1", "GPU-2")
    assert limits_of(part, NODE, "requests").memory_bytes is None
    assert limits_of(part, NODE, "shares").memory_bytes == 75 * GIB
    asked = prepare("GPU-0", memory_bytes=90 * GIB)
    assert limits_of(asked, NODE, "shares").memory_bytes == 90 * GIB


def test_a_part_has_its_own_gpus_the_hcas_and_the_usual_devices() -> None:
    devices = limits_of(prepare("GPU-0", "GPU-3"), NODE, "requests").devices
    assert devices is not None
    own = ("/dev/nvidia3 rw", "/dev/nvidia0 rw", "/dev/infiniband/uverbs0 rw")
    assert devices == (*own, "/dev/infiniband/uverbs1 rw", *COMMON_DEVICES)


def test_a_site_lets_jobs_open_more_devices() -> None:
    node = msgspec.structs.replace(NODE, allowed=("/dev/net/tun", "char-drm"))
    devices = limits_of(prepare("GPU-0"), node, "requests").devices
    assert devices is not None
    assert devices[-2:] == ("/dev/net/tun rw", "char-drm rw")


@pytest.mark.parametrize("device", ["tun", "/etc/shadow", "/dev/", "/dev/x rw", "char-%n", "*"])
def test_only_devices_are_allowed(device: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="devices_allowed"):
        msgspec.convert({"devices_allowed": [device]}, AgentConfig)


@pytest.mark.parametrize(
    ("gpus", "rule"),
    [
        ((), "shares"),  # the node to itself
        (tuple(gpu.uuid for gpu in GPUS), "shares"),
        (("GPU-0",), "none"),
    ],
)
def test_others_have_no_limits(gpus: tuple[str, ...], rule: str) -> None:
    asked = prepare(*gpus, cpus=1, memory_bytes=GIB)
    assert limits_of(asked, NODE, rule) == NO_LIMITS  # type: ignore[arg-type]


def test_no_device_is_closed_if_that_of_a_gpu_is_unknown() -> None:
    node = NodeParts(64, 100 * GIB, GPUS, {GPUS[0].pci: 0})
    assert limits_of(prepare("GPU-0"), node, "requests").devices is not None
    assert limits_of(prepare("GPU-0", "GPU-1"), node, "requests").devices is None


def test_a_share_is_at_least_something() -> None:
    node = NodeParts(512, 0, GPUS, MINORS)
    limits = limits_of(prepare("GPU-0", cpus=1), node, "shares")
    assert (limits.memory_bytes, limits.cpu_weight) == (None, 1)


# --- what is read of the node ---------------------------------------------------------------------


@pytest.mark.parametrize("uvm", [True, False])
def test_the_device_files_are_read_from_the_node(tmp_path: Path, *, uvm: bool) -> None:
    for gpu in GPUS[:2]:
        folder = tmp_path / "proc/driver/nvidia/gpus" / gpu.pci
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t H100\nDevice Minor: \t {MINORS[gpu.pci]}\n")
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    for name in ("infiniband/rdma_cm", "infiniband/uverbs1", *(("nvidia-uvm",) if uvm else ())):
        (tmp_path / "dev" / name).touch()
    inventory = Inventory("10.0.0.1", "m", cpus=64, memory_bytes=100 * GIB, devices=GPUS[:2])
    site = ("/dev/net/tun",)
    found = read_limits(prepare("GPU-1"), inventory, FsRoot(tmp_path), "shares", site)
    assert (found.memory_bytes, found.cpu_weight) == (50 * GIB, 50)
    # A program of NVIDIA's makes the device at the first use of CUDA, as the job.
    own = ("/dev/nvidia2 rw", "/dev/infiniband/uverbs1 rw")
    wanted = (*own, *COMMON_DEVICES, "/dev/net/tun rw") if uvm else None
    assert found.devices == wanted
    assert read_limits(prepare(), inventory, FsRoot(tmp_path), "shares") == NO_LIMITS


# --- properties of a unit -------------------------------------------------------------------------


def test_the_properties_of_a_unit_with_limits() -> None:
    argv = argv_of(FOLDER, ShimOptions(processes_max=1000), limits=FULL)
    given = [word.removeprefix("--property=") for word in argv if word.startswith("--property=")]
    told = [text for text in given if text.startswith(("Tasks", "Memory", "CPUW", "Device"))]
    # The task meets its own limit first, and its shim can say so.
    assert told == [
        f"TasksMax={1000 + SHIM_TASKS}",
        f"MemoryMax={10 * GIB + SHIM_BYTES}",
        "CPUWeight=25",
        "DevicePolicy=closed",
        "DeviceAllow=/dev/nvidia3 rw",
    ]
    request = json.loads(bytes.fromhex(argv[-1]))
    assert request["limits"] == {"pids.max": "1000", "memory.max": str(10 * GIB)}


def test_a_unit_without_limits_has_no_property_of_them() -> None:
    assert properties_of(NO_LIMITS, None) == ["TasksMax=infinity"]
    assert json.loads(bytes.fromhex(argv_of(FOLDER, ShimOptions())[-1]))["limits"] == {}


# --- files of a cgroup ----------------------------------------------------------------------------


def test_a_forked_shim_writes_the_limits_into_its_tasks_cgroup(tmp_path: Path) -> None:
    wish = request_of(FOLDER, ShimOptions(processes_max=1000), FULL)
    assert wish["limits"] == files_of(FULL, 1000)
    names = ("memory.max", "cpu.weight", "pids.max")
    for name in names:
        (tmp_path / name).touch()
    Cgroup(str(tmp_path)).limit(files_of(FULL, 1000))
    assert [(tmp_path / name).read_text() for name in names] == [str(10 * GIB), "25", "1000"]


def test_the_files_of_missing_controllers_are_not_made(tmp_path: Path) -> None:
    Cgroup(str(tmp_path)).limit(files_of(FULL, 1000))
    assert list(tmp_path.iterdir()) == []


def test_the_limit_that_was_reached_is_the_one_that_was_set(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    for name in ("memory.max", "memory.events"):
        (tmp_path / name).touch()
    task = Cgroup(str(tmp_path))
    assert task.memory_limit_reached() is None
    task.limit({"memory.max": "1000000000"})
    # The kernel rounds it down to whole pages.
    (tmp_path / "memory.max").write_text("999997440\n")
    assert task.memory_limit_reached() is None
    # Killed because of a limit above this one, or because the node has no memory left.
    events.write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 0\n")
    assert (task.oom_kills(), task.memory_limit_reached()) == (1, None)
    events.write_text("low 0\nhigh 0\nmax 80\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert (task.oom_kills(), task.memory_limit_reached()) == (1, 1000000000)


# --- what is not enforced -------------------------------------------------------------------------


def test_each_missing_controller_is_named_with_what_it_would_limit() -> None:
    assert unenforced({"memory", "cpu", "pids"}, "") == {}
    assert unenforced({"cpu"}, "") == {
        "memory": "the memory controller is missing",
        "processes": "the pids controller is missing",
    }
    assert unenforced({"memory", "cpu", "pids"}, "forked") == {"devices": "forked"}


def test_devices_are_limited_only_by_units_of_systemd_on_a_machine_with_cgroup_v2(
    tmp_path: Path,
) -> None:
    def why(*, units: bool) -> str:
        return why_devices_are_open(units=units, root=tmp_path)

    assert "not the only hierarchy" in why(units=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").touch()
    assert why(units=True) == ""
    assert "forked" in why(units=False)
    (tmp_path / "run/systemd").mkdir(parents=True)
    (tmp_path / "run/systemd/container").touch()
    assert "container" in why(units=True)


def test_an_agent_knows_what_its_own_backend_cannot_enforce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroup, "available", lambda: {"memory", "cpu", "pids"})
    monkeypatch.setattr(cgroup, "given_to_tasks", lambda: {"cpu"})
    monkeypatch.setattr(backend, "by_units", lambda _: True)
    monkeypatch.setattr(
        backend, "why_devices_are_open", lambda *, units: "" if units else "they are forked"
    )
    assert backend.unenforced_limits(AgentConfig()) == {}
    monkeypatch.setattr(backend, "by_units", lambda _: False)
    assert list(backend.unenforced_limits(AgentConfig())) == ["memory", "processes", "devices"]


def test_the_controllers_of_forked_shims_are_tried_out_and_nothing_is_left() -> None:
    found = cgroup.given_to_tasks()
    assert found <= {"memory", "cpu", "pids"}
    assert found <= cgroup.available()
    own = cgroup.own_cgroup()
    # Other agents try it out at the same time.
    mine = f"{cgroup.prefix_of(os.getpid())}probe"
    assert own is None or not (Path(own) / cgroup.FOLDER / mine).exists()
