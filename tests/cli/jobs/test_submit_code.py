"""Code that travels with a job, as the command line shows it before anything is sent."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def laptop(tmp_path: Path) -> Path:
    """A folder below the current one."""
    folder = tmp_path / "laptop"
    (folder / "src").mkdir(parents=True)
    (folder / "job.yaml").write_text("run: train.py\nworkdir: .\n")
    (folder / "train.py").write_text("x")
    (folder / "src/a.py").write_text("xx")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "old.log").write_text("x")
    return folder


def test_the_files_that_would_travel_are_listed(run: Run, laptop: Path) -> None:
    done = run("submit", "-f", "laptop/job.yaml", "--list-files")
    assert done.returncode == 0, done.stderr
    names = [line.split()[-1] for line in done.stdout.decode().splitlines()]
    assert names == [".gitignore", "job.yaml", "src/a.py", "train.py"]
    assert b"4 files" in done.stderr
    below = run("submit", "-f", "laptop/job.yaml", "--set", "workdir=src", "--list-files")
    assert below.stdout.split()[-1] == b"a.py"
    nodes = run("submit", "-f", "laptop/job.yaml", "--set", "workdir=/x", "--list-files")
    assert (nodes.returncode, nodes.stdout) == (0, b"")
    assert b"no files travel" in nodes.stderr


def test_the_folder_of_a_command_is_the_current_one(run: Run, laptop: Path) -> None:
    done = run("submit", "--set", "workdir=laptop", "--list-files", "--", "python", "train.py")
    assert b"train.py" in done.stdout


def test_what_looks_like_a_secret_is_named_before_it_is_sent(run: Run, laptop: Path) -> None:
    (laptop / ".env").write_text("TOKEN=1")
    done = run("submit", "-f", "laptop/job.yaml", "--list-files")
    assert b"look like secrets: .env" in done.stderr


def test_a_script_that_does_not_travel_is_named_with_its_rule(run: Run, laptop: Path) -> None:
    (laptop / ".gitignore").write_text("\ntrain.py\n")
    done = run("submit", "-f", "laptop/job.yaml", "--list-files")
    assert b"train.py is not in the code" in done.stderr
    assert b"line 2 of .gitignore ignores it" in done.stderr
    done = run("submit", "-f", "laptop/job.yaml", "--set", "run=tain.py", "--list-files")
    assert b"tain.py is not in the code" in done.stderr


def test_what_cannot_travel_is_refused_in_words(run: Run, laptop: Path) -> None:
    (laptop / "data").symlink_to("/shared/data")
    done = run("submit", "-f", "laptop/job.yaml")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"the link data has the absolute target '/shared/data'" in done.stderr
    assert b".musterignore" in done.stderr
    missing = run("submit", "-f", "laptop/job.yaml", "--set", "workdir=nothing")
    assert missing.returncode == 125
    assert b"there is no folder" in missing.stderr
