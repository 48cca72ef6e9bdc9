"""Installation of the shipped units, with a systemctl that writes down what it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.daemon import units
from muster.daemon.units import AGENT, COORDINATOR, install_unit


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    program, said = tmp_path / "bin" / "systemctl", tmp_path / "asked"
    program.write_text(f'#!/bin/sh\necho "$*" >> {said}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(units, "_UNITS", tmp_path)
    return said


def test_a_unit_that_runs_is_left_alone(asked: Path, tmp_path: Path) -> None:
    install_unit(COORDINATOR, tmp_path / "coordinator.yaml")
    text = (tmp_path / COORDINATOR).read_text()
    assert f" coordinator --config {tmp_path / 'coordinator.yaml'}\n" in text
    assert asked.read_text() == f"daemon-reload\nenable --now {COORDINATOR}\n"


def test_an_agent_that_runs_is_restarted_for_its_new_configuration(
    asked: Path, tmp_path: Path
) -> None:
    install_unit(AGENT, tmp_path / "agent.yaml", restart=True)
    assert asked.read_text() == f"daemon-reload\nenable {AGENT}\nrestart {AGENT}\n"
