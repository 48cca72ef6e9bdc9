"""The UDP port of agents of gangs, when somebody else has it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from agent.config import AgentConfig
from agent.gang.vouch_socket import open_socket
from agent.probe.fabric.probe import ProbeOptions, probe
from agent.probe.udp_port import owners, taken_by_others

# A socket of another user, as any local user may open one. Prints its port.
SQUATS = """
import os, socket, sys
os.setuid(65533)
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.bind(("127.0.0.1", 0))
print(made.getsockname()[1], flush=True)
sys.stdin.read()
"""


def config(folder: Path, port: int) -> AgentConfig:
    return AgentConfig(state_dir=folder, peer_port=port)


def test_the_owners_of_a_port_are_those_of_its_sockets() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as made:
        made.bind(("::", 0))
        assert owners(made.getsockname()[1]) == [os.geteuid()]


def test_a_port_that_the_agent_itself_has_is_no_problem(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        assert taken_by_others(config(tmp_path, made.getsockname()[1])) == ""


@pytest.mark.root
def test_a_port_that_another_user_has_is_named_by_the_log_and_by_doctor(tmp_path: Path) -> None:
    squatter = subprocess.Popen(
        [sys.executable, "-c", SQUATS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with squatter:
        assert squatter.stdout is not None
        port = int(squatter.stdout.readline())
        with capture_logs() as logs:
            assert open_socket(port, tmp_path, shared=False) is None
        (line,) = [each for each in logs if each["event"] == "no_peer_port"]
        assert f"UDP port {port} is taken by a program of uid 65533: gangs with" in line["why"]
        text = taken_by_others(config(tmp_path, port))
        assert f"a program of uid 65533 has UDP port {port} (peer_port): gangs with" in text
        # An agent that shares its host takes another one.
        assert taken_by_others(structs.replace(config(tmp_path, port), shared_host=True)) == ""
    problems = probe(tmp_path, ProbeOptions(peer_port=text)).problems
    (fix,) = [found.fix for found in problems if found.what == text]
    assert "systemctl restart muster-agent" in fix
