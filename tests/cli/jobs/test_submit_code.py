"""Code that travels with a job, as the command line shows it before anything is sent."""

import os
from pathlib import Path
from typing import cast

import pytest

from muster.bundle.index import RACY_NS
from muster.bundle.manifest import decode, digest
from muster.bundle.pack import BadPackError, unpack
from muster.bundle.scan import ScanError, listing, scan
from muster.bundle.sources import folder_of
from muster.bundle.suspects import DATA_FILES
from muster.cli.input.code import Upload
from muster.client import ApiError, Client
from muster.http.views import Problem, VersionView
from tests.cli.conftest import DEADLINE_S, Run, Start
from tests.client.fake_coordinator import FakeCoordinator, job_view


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


def test_the_folder_of_a_job_on_standard_input_is_the_current_one(
    start: Start, laptop: Path
) -> None:
    process = start("submit", "-f", "-", "--list-files")
    listed, _ = process.communicate(b"run: laptop/train.py\nworkdir: .\n", timeout=DEADLINE_S)
    assert process.returncode == 0
    assert b"laptop/train.py" in listed


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


@pytest.mark.parametrize(
    "job",
    [
        "launcher: none\nrun: |\n  export A=1\n  python tain.py --lr 1\n",
        "launcher: none\nrun: ./tain.py\n",
        "run: train.py\nroles: {worker: {run: tain.py}}\n",
    ],
)
def test_a_script_that_any_command_starts_is_looked_for(run: Run, laptop: Path, job: str) -> None:
    (laptop / "job.yaml").write_text(job)
    done = run("submit", "-f", "laptop/job.yaml", "--list-files")
    assert done.returncode == 0, done.stderr
    assert b"tain.py is not in the code that travels with the job; there is no such" in done.stderr
    (laptop / "tain.py").touch()
    (laptop / "tain.py").chmod(0o755)
    assert b"is not in" not in run("submit", "-f", "laptop/job.yaml", "--list-files").stderr


def test_a_script_below_a_link_is_in_the_code(run: Run, laptop: Path) -> None:
    (laptop / "lib").symlink_to("src")
    done = run("submit", "-f", "laptop/job.yaml", "--set", "run=lib/a.py", "--list-files")
    assert done.returncode == 0
    assert b"is not in" not in done.stderr


def test_a_dry_run_says_what_is_absent_and_what_looks_like_data(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    (laptop / "data/cats").mkdir(parents=True)
    for number in range(DATA_FILES):
        (laptop / f"data/cats/{number}.jpg").touch()
    (laptop / "job.yaml").write_text("launcher: none\nrun: |\n  date\n  python tain.py\n")
    done = run("submit", "-f", "laptop/job.yaml", "--dry-run")
    assert b"tain.py is not in the code" in done.stderr
    assert b"folders that look like data: data/ (500 files, 0 B)" in done.stderr
    assert not fake.script.bundles


@pytest.mark.parametrize("workdir", ["", "workdir: .\n"])
@pytest.mark.parametrize("dry", [("--dry-run",), ()])
def test_a_program_that_does_not_travel_is_refused_with_the_nearest(
    run: Run, fake: FakeCoordinator, laptop: Path, workdir: str, dry: tuple[str, ...]
) -> None:
    (laptop / "job.yaml").write_text(f"run: trian.py\n{workdir}")
    done = run("submit", "-f", "laptop/job.yaml", *dry)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"run: trian.py is not in the code that travels with the job" in done.stderr
    assert b"did you mean train.py?" in done.stderr
    assert not fake.script.bundles
    assert not any(line.startswith("POST") for line in fake.script.requests)


def test_a_program_of_the_pools_own_folder_is_not_looked_for(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    fake.script.version = VersionView("0.1.0", 1, 1, 7, workdirs={"default": "/shared"})
    (laptop / "job.yaml").write_text("run: trian.py\n")
    for words in (("--dry-run",), ()):
        done = run("submit", "-f", "laptop/job.yaml", *words)
        assert b"did you mean" not in done.stderr


def test_what_cannot_travel_is_refused_in_words(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    (laptop / "data").symlink_to("/shared/data")
    done = run("submit", "-f", "laptop/job.yaml")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"the link data has the absolute target '/shared/data'" in done.stderr
    assert b".musterignore" in done.stderr
    missing = run("submit", "-f", "laptop/job.yaml", "--set", "workdir=nothing")
    assert missing.returncode == 125
    assert b"there is no folder" in missing.stderr


def test_a_job_without_workdir_takes_the_folder_of_its_file(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    (laptop / "job.yaml").write_text("run: train.py\n")
    done = run("submit", "-f", "laptop/job.yaml")
    assert done.stdout == b"42\n", done.stderr
    (sha256,) = fake.script.bundles
    assert submitted(fake)["workdir"] == {"bundle": sha256}
    assert f"code: {laptop} (4 files".encode() in done.stderr
    again = run("submit", "-f", "laptop/job.yaml")
    assert again.returncode == 0
    assert not [r for r in fake.script.requests[-3:] if "blobs" in r]
    none = run("submit", "-f", "laptop/job.yaml", "--set", "workdir=none")
    assert none.returncode == 0
    assert list(fake.script.submitted.values())[-1][1]["workdir"] == "none"


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A home that is neither the current folder nor below it."""
    return str(tmp_path_factory.mktemp("home"))


def test_the_folder_of_a_command_travels_without_workdir(
    run: Run, fake: FakeCoordinator, laptop: Path, home: str
) -> None:
    (laptop.parent / "train.py").touch()
    done = run("submit", "--", "python", "train.py", HOME=home)
    assert done.stdout == b"42\n", done.stderr
    ((sha256, manifest),) = fake.script.bundles.items()
    assert submitted(fake)["workdir"] == {"bundle": sha256}
    assert {"train.py", "laptop/train.py"} <= set(decode(manifest).paths())


def test_the_folder_of_a_job_on_standard_input_travels_without_workdir(
    start: Start, fake: FakeCoordinator, laptop: Path, home: str
) -> None:
    (laptop.parent / "train.py").touch()
    process = start("submit", "-f", "-", HOME=home)
    number, said = process.communicate(b"run: train.py\n", timeout=DEADLINE_S)
    assert number == b"42\n", said
    ((sha256, manifest),) = fake.script.bundles.items()
    assert submitted(fake)["workdir"] == {"bundle": sha256}
    assert {"train.py", "laptop/train.py"} <= set(decode(manifest).paths())


def test_an_empty_folder_does_not_travel_unasked(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    (laptop / ".gitignore").write_text("*\n")
    (laptop / "job.yaml").write_text("run: hostname\nlauncher: none\n")
    assert run("submit", "-f", "laptop/job.yaml").returncode == 0
    assert "workdir" not in submitted(fake)
    assert not fake.script.bundles


def test_the_folder_that_a_pool_sets_is_preferred(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    fake.script.version = VersionView("0.1.0", 1, 1, 7, workdirs={"lab": "/shared/lab"})
    (laptop / "job.yaml").write_text("run: train.py\n")
    done = run("submit", "-f", "laptop/job.yaml", "--pool", "lab")
    assert b"workdir: /shared/lab, by the defaults of pool lab" in done.stderr
    assert submitted(fake) == {"run": "train.py", "pool": "lab"}
    assert not fake.script.bundles


@pytest.mark.parametrize("of", ["home", "above"])
def test_a_home_directory_does_not_travel_unasked(
    run: Run, fake: FakeCoordinator, tmp_path: Path, of: str
) -> None:
    home = str(tmp_path if of == "home" else tmp_path / "ann")
    (tmp_path / "train.py").touch()
    (tmp_path / "model").mkdir()
    said = b"your home directory" if of == "home" else b"above your home directory"
    for command in (
        ("python", "train.py"),
        ("-m", "train"),
        ("sh", "-c", "cat <./train.py"),
        ("ls", "model"),
    ):
        done = run("submit", "--", *command, HOME=home)
        assert (done.returncode, done.stdout) == (125, b""), command
        assert said in done.stderr
        assert b"workdir: none" in done.stderr
    assert not fake.script.submitted
    done = run("submit", "--", "nvidia-smi", "-q", HOME=home)
    assert done.stdout == b"42\n", done.stderr
    assert b"workdir: an empty folder" in done.stderr
    assert "workdir" not in submitted(fake)
    asked = run("submit", "--set", "workdir=.", "--", "python", "train.py", HOME=home)
    assert asked.returncode == 0, asked.stderr
    assert fake.script.bundles


def test_a_large_folder_is_refused_before_it_is_read(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    fake.script.version = VersionView("0.1.0", 1, 1, 7, code_bytes_max=1000)
    for number in range(12):
        (laptop / f"data-{number}").write_bytes(bytes(number * 100))
    (laptop / "data-11").chmod(0)  # reading it would fail, for other users than root
    done = run("submit", "-f", "laptop/job.yaml")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"at most 1000 may travel with a job; the largest files:" in done.stderr
    assert [line.split()[-1] for line in done.stderr.decode().splitlines()[1:11]] == [
        f"data-{number}" for number in range(11, 1, -1)
    ]
    assert not fake.script.bundles


@pytest.mark.parametrize("path", ["blobs:missing", "blobs", "bundles"])
@pytest.mark.parametrize("size", [100, 5 << 20])
def test_a_full_quota_is_refused_with_the_largest_files(
    run: Run, fake: FakeCoordinator, laptop: Path, path: str, size: int
) -> None:
    """Whichever request meets it, and whether content is sent while it is read or after."""
    for number in range(12):
        (laptop / f"data-{number}").write_bytes(os.urandom(size + number))
    fake.script.full = path
    done = run("submit", "-f", "laptop/job.yaml")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"the code of alice has reached 9 bytes; the largest files:" in done.stderr
    lines = done.stderr.decode().partition("largest files:\n")[2].splitlines()
    assert [line.split()[-1] for line in lines[:10]] == [f"data-{n}" for n in range(11, 1, -1)]
    assert b".musterignore" in done.stderr
    assert not fake.script.submitted


def test_a_folder_of_many_files_comes_with_the_advice_to_send_none(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    (laptop / "data").touch()
    os.truncate(laptop / "data", 51 << 20)
    (laptop / "job.yaml").write_text("run: hostname\nlauncher: none\n")
    done = run("submit", "-f", "laptop/job.yaml", "--list-files")
    assert b"--set workdir=none" in done.stderr
    (laptop / "job.yaml").write_text("run: hostname\nlauncher: none\nworkdir: .\n")
    named = run("submit", "-f", "laptop/job.yaml", "--list-files")
    assert b"--set workdir=none" not in named.stderr


def test_much_that_is_new_is_sent_while_it_is_read(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    parts = [os.urandom(1 << 20) for _ in range(30)]
    for number, part in enumerate(parts):
        (laptop / f"{number}.bin").write_bytes(part)
    (laptop / "large.bin").write_bytes(b"".join(parts))
    (laptop / "same.bin").write_bytes(parts[0])
    (laptop / "empty").touch()
    done = run("submit", "-f", "laptop/job.yaml")
    assert done.returncode == 0, done.stderr
    ((sha256, manifest),) = fake.script.bundles.items()
    chunks = decode(manifest).chunks()
    assert fake.script.chunks.keys() == chunks.keys()
    assert b"sent 62.9 MB of code in 42 new pieces" in done.stderr
    asked = list(fake.script.requests)
    # The coordinator was asked for each part as it was read, so not for the whole again.
    assert f"GET /v1/bundles/{sha256}" not in asked
    assert asked.count("POST /v1/blobs") <= asked.count("POST /v1/blobs:missing") <= 6
    fake.script.requests.clear()
    fake.script.bundles.clear()
    again = run("submit", "-f", "laptop/job.yaml", XDG_CACHE_HOME=str(laptop.parent / "other"))
    assert again.returncode == 0, again.stderr
    assert b"new piece" not in again.stderr
    assert "POST /v1/blobs" not in fake.script.requests
    assert sha256 in fake.script.bundles


def test_names_that_cannot_travel_are_refused_before_content_is_sent(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    (laptop / "large.bin").write_bytes(os.urandom(5 << 20))
    (laptop / "TRAIN.py").touch()
    done = run("submit", "-f", "laptop/job.yaml")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"'TRAIN.py' and 'train.py' differ only by case" in done.stderr
    assert not [line for line in fake.script.requests if "blobs" in line]


def test_rerun_ship_names_the_folder_and_what_looks_like_a_secret(
    run: Run, fake: FakeCoordinator, laptop: Path
) -> None:
    assert run("submit", "-f", "laptop/job.yaml").returncode == 0
    (sha256,) = fake.script.bundles
    fake.put(job_view(42, user="alice", spec={"workdir": {"bundle": sha256}}))
    fake.script.version = VersionView("0.1.0", 1, 1, 7, user="bob", role="operator")
    (laptop / ".env").write_text("TOKEN=1")
    fake.script.requests.clear()
    theirs = run("rerun", "42", "--ship")
    assert (theirs.returncode, theirs.stdout) == (125, b"")
    assert b"only alice and the role admin may submit it again" in theirs.stderr
    assert all(line.startswith("GET") for line in fake.script.requests)
    for user, role in (("alice", "user"), ("root", "admin")):
        fake.script.version = VersionView("0.1.0", 1, 1, 7, user=user, role=role)
        done = run("rerun", "42", "--ship")
        assert f"code: {laptop} (5 files".encode() in done.stderr
        assert b"look like secrets: .env" in done.stderr
    assert len(fake.script.bundles) == 2


class Verifies:
    """A coordinator that has nothing yet, and refuses content that is not what its name says."""

    def bundle(self, _sha256: str) -> None:
        raise ApiError(Problem("about:blank", "", 404, "unknown_bundle", ""))

    def missing_chunks(self, chunks: dict[str, int], _size: int) -> dict[str, int]:
        return chunks

    def send_chunks(self, data: bytearray) -> None:
        try:
            list(unpack(data))
        except BadPackError as error:
            raise ApiError(Problem("about:blank", "", 422, "bad_content", str(error))) from error


class Has:
    """A coordinator that has some bundles, and perhaps less content than it should have."""

    def __init__(self, *bundles: str, lost: str = "") -> None:
        self.bundles = set(bundles)
        self.asked: list[set[str]] = []
        self._lost = lost

    def bundle(self, sha256: str) -> None:
        if sha256 not in self.bundles:
            raise ApiError(Problem("about:blank", "", 404, "unknown_bundle", ""))

    def missing_chunks(self, chunks: dict[str, int], _size: int) -> dict[str, int]:
        self.asked.append(set(chunks))
        return chunks

    def send_chunks(self, data: bytearray) -> None:
        if self._lost in {name for name, _ in unpack(data)}:
            self._lost = ""

    def send_manifest(self, sha256: str, _data: bytes) -> None:
        if self._lost:
            raise ApiError(Problem("about:blank", "", 409, "content_missing", ""))
        self.bundles.add(sha256)


def test_a_changed_line_is_all_that_the_coordinator_is_asked_about(
    laptop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Make the files look some seconds old.
    monkeypatch.setattr("muster.bundle.index.RACY_NS", -RACY_NS)
    before = scan(laptop, tmp_path / "index")
    (laptop / "train.py").write_text("another")
    code = scan(laptop, tmp_path / "index")
    assert code.before == before.sha256
    assert code.fresh == frozenset({digest(b"another")})
    everything = set(code.manifest.chunks())
    for coordinator, asked in (
        (Has(before.sha256), [{digest(b"another")}]),
        (Has(code.sha256), []),
        (Has(), [everything]),
        (Has(before.sha256, lost=digest(b"xx")), [{digest(b"another")}, everything]),
    ):
        Upload(cast("Client", coordinator), listing(laptop)).finish(code)
        assert coordinator.asked == asked
        assert code.sha256 in coordinator.bundles


def test_a_file_that_changes_before_it_is_sent_is_named(
    laptop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = scan(laptop, tmp_path / "cache")
    upload = Upload(cast("Client", Verifies()), listing(laptop))
    for text in ("yy", "y", ""):
        (laptop / "src/a.py").write_text(text)
        with pytest.raises(ScanError, match=r"src/a\.py has changed since it was read"):
            upload.finish(code)
    (laptop / "src/a.py").unlink()
    with pytest.raises(ScanError, match=r"src/a\.py cannot be read"):
        upload.finish(code)
    assert folder_of(tmp_path / "cache/muster/code", code.sha256) is None


def submitted(fake: FakeCoordinator) -> dict[str, object]:
    """The first job."""
    return dict(next(iter(fake.script.submitted.values()))[1])
