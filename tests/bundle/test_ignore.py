"""Ignore rules, compared with git itself on generated trees."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from muster.bundle.scan import scan

NAMES = ("a", "b", "ab", "a.py", "b.d", "data", ".env", "x y", "é", "c[1]", "#n", "!n")
PATTERNS = (
    "a", "/a", "a/", "b*", "*.py", "!a.py", "*.d/", "!b.d/", "data/", "data/*", "!data/a",
    "**/ab", "a/**", "a/**/b", "a/**/", "**/", "*", "!*/", "/*", "!/a", "!/data/", "x\\ y", "[ab]",
    "[!a]", "a?", "?", "# comment", "", "\\#n", "\\!n", "c\\[1\\]", "a/b", "data/a.py", "  a",
    "*/b", "**", "/data/**/a", "é", ".env", "!.env", "a  ", "[", "a\\", "b.d/**", "!**/a.py",
)  # fmt: skip


def grow(folder: Path, chance: random.Random, depth: int) -> None:
    """Make files and directories at random, some with rules."""
    for name in chance.sample(NAMES, chance.randint(1, 6)):
        path = folder / name
        if depth and chance.random() < 0.45:
            path.mkdir()
            grow(path, chance, depth - 1)
        else:
            path.write_text(name)
    if chance.random() < (1 if depth == 3 else 0.3):
        lines = chance.sample(PATTERNS, chance.randint(1, 8))
        (folder / ".gitignore").write_text(chance.choice(("\n", "\r\n")).join(lines) + "\n")


def of_git(folder: Path) -> set[str]:
    """Return what git would take."""
    listed = subprocess.run(
        ("git", "-c", "core.excludesFile=/dev/null", "ls-files", "-co", "-z", "--exclude-standard"),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}


@pytest.mark.parametrize("seed", range(10))
def test_the_files_of_fifty_trees_are_those_of_git(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        grow(folder, chance, 3)
        subprocess.run(["git", "init", "-q", folder], check=True)
        if chance.random() < 0.3:
            (folder / ".git/info").mkdir(exist_ok=True)
            (folder / ".git/info/exclude").write_text(chance.choice(PATTERNS) + "\n")
        below = folder
        if chance.random() < 0.3 and (folder / "data").is_dir():
            below = folder / "data"
        found = scan(below, tmp_path / "cache")
        ours = {file.path for file in found.manifest.files}
        rules = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob(".gitignore")}
        if below == folder:
            assert ours == of_git(below), rules
        else:
            inside = {n.removeprefix("data/") for n in of_git(folder) if n.startswith("data/")}
            if inside:  # git takes nothing from a directory that is itself ignored
                assert ours == inside, rules
