"""The settings that a coordinator may give: everything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import agent.config
import orchestrator.config
from agent.config import AgentConfig
from muster.daemon.config_loader import settings
from muster.daemon.errors import ConfigError
from muster.daemon.node_settings import GIVEN, NotGivenError, check_given, read_given

OF_AGENTS = {setting.path: setting.type for setting in settings(AgentConfig, "X")}
NEVER = (
    "allow_root_jobs",
    "run_as",
    "devices_allowed",
    "uid_min",
    "prolog",
    "epilog",
    "health_check",
    "mounts_allowed",
    "state_dir",
    "coordinator",
    "tls_ca",
    "certificate",
    "token_file",
    "node",
    "python",
    "hosts.file",
    "hosts.mode",
    "fabric.root",
    "user_map",
)


def test_each_is_a_setting_of_an_agent_within_the_bounds_of_its_file() -> None:
    least = {
        "hangs.period_s": 0.5,
        "unkillable_s": 5.0,
        "processes_max": 16,
        "health_check_period_s": 1.0,
        "log.level": "debug",
    }
    assert least.keys() == GIVEN.keys()
    for name, value in least.items():
        assert check_given(name, value) == msgspec.convert(value, OF_AGENTS[name]) == value


@pytest.mark.parametrize("name", sorted({*NEVER, *OF_AGENTS} - {*GIVEN}))
def test_no_other_setting_is_taken_by_an_agent_or_by_the_coordinators_file(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(NotGivenError, match="is not for a coordinator to give"):
        check_given(name, True)
    tree: Any = "true"
    for word in reversed(name.split(".")):
        tree = {word: tree}
    file = tmp_path / "coordinator.yaml"
    file.write_bytes(msgspec.yaml.encode({"nodes": {"names": {"n1": tree}}}))
    with pytest.raises(ConfigError, match=r"nodes\.names\.n1\.\S+ is not for a coordinator"):
        orchestrator.config.load(file=file, environ={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("names: {n1: {hangs: {period_s: 0}}}", r"nodes\.names\.n1\.hangs\.period_s: expected"),
        ("names: {n1: {hangs: {period_s: 0.01}}}", r"expected float >= 0\.5"),
        ("names: {n1: {unkillable_s: 1}}", r"expected float >= 5"),
        ("names: {n1: {health_check_period_s: 0.1}}", r"expected float >= 1"),
        ("names: {n1: {processes_max: 10000000}}", r"expected int <= 4194304"),
        ("names: {n1: {hangs: {period_s: soon}}}", "expected float, got str"),
        ("names: {n1: {hangs: 7}}", r"nodes\.names\.n1\.hangs is not for a coordinator"),
        ("pools: {lab: {processes_max: 15}}", r"nodes\.pools\.lab\.processes_max: expected int"),
        ("pools: {lab: {log: {level: loud}}}", "invalid enum value"),
        ("pools: {lab: {unkilable_s: 3}}", r"did you mean unkillable_s\?"),
        ("labels: {rack: {unkillable_s: 3}}", r"nodes\.labels\.rack: write a label as NAME=VALUE"),
        ("racks: {}", r"nodes\.racks: no such setting"),
    ],
)
def test_a_value_that_no_agents_file_could_have_is_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text(f"nodes: {{{text}}}\n")
    with pytest.raises(ConfigError, match=words):
        orchestrator.config.load(file=file, environ={})


def test_values_have_their_types() -> None:
    tree = {"hangs": {"period_s": "2"}, "processes_max": "100", "log": {"level": "debug"}}
    found = dict(read_given(tree))
    assert found == {"hangs.period_s": 2.0, "processes_max": 100, "log.level": "debug"}
    with pytest.raises(NotGivenError, match="expected float, got str"):
        check_given("hangs.period_s", "2")


def test_the_origin_is_the_file_or_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("hangs: {period_s: 5}\nunkillable_s: 60\n")
    environ = {"MUSTER_AGENT_UNKILLABLE_S": "70"}
    found = agent.config.written(file=file, environ=environ)
    assert found == {"hangs.period_s": str(file), "unkillable_s": "MUSTER_AGENT_UNKILLABLE_S"}
