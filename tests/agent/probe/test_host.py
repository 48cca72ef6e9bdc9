"""Description of a node, from files made for the test and from this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig, FabricSettings
from agent.probe import host
from agent.probe.network import NetworkProbe
from muster.daemon.errors import ConfigError

BOOT = "2f0e4a52-0a60-4a3b-8f0f-6c3f4a0c8b11"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    boot = tmp_path / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text(f"{BOOT}\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       2048 kB\nMemFree:  1 kB\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    return tmp_path


def config(root: Path = Path("/"), **more: Any) -> AgentConfig:
    fixed = {"coordinator": "http://127.0.0.1:7077", "python": Path("/py")}
    return AgentConfig(**{**fixed, "fabric": FabricSettings(root=root), **more})


def add_gpu(root: Path, address: str, model: str) -> None:
    card = root / "proc/driver/nvidia/gpus" / address
    card.mkdir(parents=True)
    (card / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 44\nGPU UUID: \t GPU-1\n")


def test_an_inventory_holds_what_files_and_configuration_say(root: Path) -> None:
    add_gpu(root, "0000:1b:00.0", "NVIDIA H200")
    add_gpu(root, "0000:43:00.0", "NVIDIA H200")
    found = host.inventory(
        config(root, labels={"rack": "r1"}, pool="big", shared_host=True), root=root
    )
    assert (found.gpus, found.gpu_model) == (2, "NVIDIA H200")
    assert (found.address, found.python) == ("127.0.0.1", "/py")
    assert found.machine_id == "0123456789abcdef0123456789abcdef"
    assert found.memory_bytes == 2048 * 1024
    assert found.cpus == len(os.sched_getaffinity(0))
    assert (found.pool, found.labels, found.shared_host) == ("big", {"rack": "r1"}, True)


def test_a_node_without_git_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.inventory(config(root), root=root).git
    monkeypatch.setattr(host, "PATH", str(root))
    assert not host.inventory(config(root), root=root).git


def test_the_number_of_gpus_can_be_set(root: Path) -> None:
    add_gpu(root, "0000:1b:00.0", "NVIDIA H200")
    assert host.inventory(config(root, gpus=0), root=root).gpus == 0
    assert host.inventory(config(root, gpus=4), root=root).gpus == 4


def test_a_node_without_gpus_has_none(root: Path) -> None:
    found = host.inventory(config(root), root=root)
    assert (found.gpus, found.gpu_model, found.devices) == (0, "", ())


@pytest.mark.parametrize("content", [None, "", "uninitialized\n"])
def test_a_machine_without_an_id_is_named_by_its_boot(root: Path, content: str | None) -> None:
    path = root / "etc/machine-id"
    path.unlink() if content is None else path.write_text(content)
    assert host.machine_id(root) == BOOT


def test_the_address_is_the_one_on_the_way_to_the_coordinator() -> None:
    assert host.address_towards("http://127.0.0.5:7077") == "127.0.0.1"
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        assert host.address_towards("http://[::1]:7077") == "::1"
    assert host.inventory(config(address="10.9.8.7")).address == "10.9.8.7"


def test_an_unknown_coordinator_is_reported_in_words() -> None:
    with pytest.raises(host.ProbeError, match=r"cannot resolve coordinator\.invalid .* /etc/hosts"):
        host.address_towards("https://coordinator.invalid:7077")


def test_labels_are_text_for_people() -> None:
    with pytest.raises(ConfigError, match=r"labels\.rack"):
        host.check_labels(config(labels={"rack": "r\n1"}))


def test_a_pinned_interface_has_to_be_there() -> None:
    with pytest.raises(host.ProbeError, match=r"interface: ib7 has no address .* have one: .*lo"):
        host.interfaces(config(interface="ib7"), NetworkProbe(interface="ib7"))
    (lo,) = [i for i in host.interfaces(config(), NetworkProbe(interface="lo")) if i.pinned]
    assert lo.name == "lo"
