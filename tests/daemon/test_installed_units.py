"""Installation of the shipped units, with a systemctl that writes down what it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.daemon import units
from muster.daemon.errors import FileError
from muster.daemon.units import AGENT, COORDINATOR, install_unit, link_program, program


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


def test_the_command_is_linked_and_another_program_stays(tmp_path: Path) -> None:
    link = tmp_path / "bin" / "muster"
    assert link_program(link.parent) == f"linked {link} to {program()}"
    assert str(link.readlink()) == program()
    assert link_program(link.parent) == ""
    link.unlink()
    link.symlink_to("/opt/gone/bin/muster")
    assert link_program(link.parent).startswith("linked")
    assert [each.name for each in link.parent.iterdir()] == ["muster"]
    link.unlink()
    link.write_text("another")
    assert link_program(link.parent).startswith(f"warning: {link} is another program and stays")
    assert link.read_text() == "another"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot be linked"):
        link_program(tmp_path / "file" / "bin")
