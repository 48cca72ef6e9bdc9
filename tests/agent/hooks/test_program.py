"""Programs that root may run: those that nobody else can change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.hooks.program import HookError, check_program


def _file(folder: Path) -> Path:
    path = folder / "sub" / "program"
    path.parent.mkdir(mode=0o755)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_of_ones_own_is_fine(tmp_path: Path) -> None:
    check_program(_file(tmp_path))


def _by_link(path: Path) -> Path:
    link = path.parent / "link"
    link.symlink_to(path)
    return link


def _mode(mode: int, *, of_folder: bool = False) -> Callable[[Path], Path]:
    def change(path: Path) -> Path:
        (path.parent if of_folder else path).chmod(mode)
        return path

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_mode(0o757), "others can write"),
        (_mode(0o775), "others can write"),
        (_mode(0o777, of_folder=True), "others can write"),
        (_mode(0o644), "is not an executable file"),
        (lambda path: path.parent, "is not an executable file"),
        (lambda path: path.parent / "missing", "No such file"),
        (_by_link, "without symbolic links"),
        (lambda path: Path(path.name), "No such file"),
        (lambda path: path.parent / ".." / "sub" / path.name, "without symbolic links"),
    ],
)
def test_anything_else_is_refused(
    tmp_path: Path, change: Callable[[Path], Path], says: str
) -> None:
    with pytest.raises(HookError, match=says):
        check_program(change(_file(tmp_path)))


def test_a_sticky_folder_protects_what_is_in_it(tmp_path: Path) -> None:
    path = _file(tmp_path)
    path.parent.chmod(0o1777)
    check_program(path)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_program_of_another_user_is_refused(tmp_path: Path, place: str) -> None:
    path = _file(tmp_path)
    os.chown(path if place == "file" else path.parent, 47_311, 0)
    with pytest.raises(HookError, match="belongs to uid 47311, not to root"):
        check_program(path)
