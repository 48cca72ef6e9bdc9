"""A machine with a systemd of its own: Debian in a container, with Muster installed as
docs/how-to/install.md says.

The tree of Debian is made once and kept; a container leaves nothing in it. Whatever a container
starts is in cgroups of its own, and ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.cluster.jobs import until

TREE: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path("/var/cache/muster-tests")
PROGRAMS: Final = {"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container"}
PACKAGES: Final = "systemd,systemd-sysv,python3"
# For docs/how-to/install.md, for the fence, and a system bus, by which users could see each other.
# All files that need more than PACKAGES use this tree: making one takes minutes.
WHOLE: Final = ("python3-venv", "curl", "dbus", "nftables")
PATIENCE_S: Final = 180.0
# Other files have their containers meanwhile, or another test run has. The wait counts in no test's
# time limit (func_only).
LOCK_S: Final = 1800.0
DEBOOTSTRAP_S: Final = 600.0
_BOX: Final = "muster-booted-"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MUSTER: Final = """\
#!/opt/muster/bin/python3
import sys
from muster.cli.main import main
sys.exit(main())
"""


class Container:
    """A booted container. Commands run in it as root."""

    def __init__(self, leader: int) -> None:
        self.leader = leader

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--all", "--", *argv],
            env={"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done

    def said(self, *argv: str) -> str:
        return self.run(*argv).stdout.strip()

    def muster(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("/opt/muster/bin/muster", *argv, check=check)


@contextmanager
def booted(folder: Path, packages: Sequence[str] = ()) -> Iterator[Container]:
    """A container in which Muster lies at /opt/muster and its sources at /opt/tree, with Debian's
    PACKAGES and perhaps more. Skips, with the reason, where there can be none."""
    with locked():
        tree = debian(*packages)
        binds = {folder / "muster": "/opt/muster", TREE: "/opt/tree", _site(): "/opt/site"}
        _install(folder / "muster", tree)
        for path in binds:
            if path.stat().st_mode & 0o005 != 0o005:
                pytest.skip(f"{path} is for nobody else, and so not for the coordinator's user")
        with cgroups() as enter, (folder / "console").open("wb") as console:
            argv = [
                "systemd-nspawn",
                "--quiet",
                "--boot",
                f"--directory={tree}",
                "--volatile=overlay",
                f"--machine=muster-test-{os.getpid()}",
                "--register=no",
                "--keep-unit",
                "--private-network",
                "--link-journal=no",
                "--console=pipe",
                *(f"--bind-ro={path}:{place}" for path, place in binds.items()),
                "systemd.unit=multi-user.target",
            ]
            with subprocess.Popen(
                [*enter, *argv], stdin=subprocess.DEVNULL, stdout=console, stderr=console
            ) as process:
                try:
                    yield wait_booted(process, folder / "console")
                finally:
                    process.kill()


def debian(*more: str) -> Path:
    """The tree of this machine's own release, perhaps with more packages. Skips where it cannot be
    made."""
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (package {package})")
    release = _release()
    tree = CACHE / f"debian-{release}{'+'.join(['', *more])}"
    if tree.is_dir():
        return tree
    new = CACHE / f"new-{release}"
    if new.exists():
        shutil.rmtree(new)
    # The packages of one tree are most of another's.
    (CACHE / "packages").mkdir(exist_ok=True)
    # Mounts and processes of debootstrap end with it.
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    argv += [
        "debootstrap",
        "--variant=minbase",
        f"--cache-dir={CACHE / 'packages'}",
        f"--include={','.join([PACKAGES, *more])}",
        release,
        str(new),
        _mirror(release),
    ]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=DEBOOTSTRAP_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"debootstrap takes longer than {DEBOOTSTRAP_S:g} s here")
    if done.returncode != 0:
        pytest.skip(f"debootstrap cannot make a Debian {release} here: {done.stdout[-500:]}")
    new.rename(tree)
    return tree


def _release() -> str:
    words = dict(
        line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines()
    )
    if words.get("ID") != "debian" or "VERSION_CODENAME" not in words:
        pytest.skip("this machine is no Debian")
    return words["VERSION_CODENAME"]


def _mirror(release: str) -> str:
    """From which this machine has its own packages."""
    argv = ["apt-get", "indextargets", "--format", "$(RELEASE) $(SITE)", "Created-By: Packages"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        name, _, site = line.partition(" ")
        if name == release:
            return site
    pytest.skip(f"no mirror of Debian {release} is known here")


def _site() -> Path:
    """Return the folder in which Muster's requirements are installed."""
    return Path(msgspec.__file__).resolve().parents[1]


def _install(venv: Path, tree: Path) -> None:
    """A venv of the container's Python, which takes packages and sources from elsewhere."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not (tree / "usr/bin" / name).exists():
        pytest.skip(f"what is installed here is for {name}, which {tree} does not have")
    packages = venv / "lib" / name / "site-packages"
    packages.mkdir(parents=True)
    (packages / "muster.pth").write_text("/opt/tree\n/opt/site\n")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to(f"/usr/bin/{name}")
    (venv / "bin" / "muster").write_text(_MUSTER)
    (venv / "bin" / "muster").chmod(0o755)


@contextmanager
def locked() -> Iterator[None]:
    """Give the tree to one container at a time."""
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    pytest.fail(f"other tests have {CACHE} for longer than {LOCK_S:g} s")
                time.sleep(0.1)
        yield


@contextmanager
def cgroups(name: str = "") -> Iterator[list[str]]:
    """A command that goes on in cgroups of its own, of which nothing is left at the end: containers
    name theirs alike, and one lives on without the program that began it.
    """
    above = list(_own_cgroups())
    mine = f"{_BOX}{os.getpid()}"
    # Remove the cgroups of killed runs: such a run no longer holds the lock.
    for path in above:
        _end([it for it in path.glob(f"{_BOX}*") if not it.name.startswith(mine)])
    made = [path / f"{mine}{name}" for path in above]
    for path in made:
        path.mkdir()
    try:
        yield ["sh", "-c", _ENTER, "sh", *(str(path) for path in made), "--"]
    finally:
        _end(made)


def _end(boxes: list[Path]) -> None:
    """Kill whom the kernel names as members, and remove the cgroups. The first of a container's
    processes takes all others with it."""

    def gone() -> bool:
        for box in boxes:
            # Unlike Path.rglob, it bears folders that go meanwhile.
            for folder, _, _ in os.walk(box):
                with contextlib.suppress(OSError):
                    for pid in map(int, Path(folder, "cgroup.procs").read_text().split()):
                        # 0 is one that we cannot see, and to kill it all of us.
                        if pid > 0:
                            os.kill(pid, signal.SIGKILL)
        return all(_removed(box) for box in boxes)

    until(gone, f"{boxes} are empty")


_ENTER: Final = """
while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 1; shift; done
shift
exec "$@"
"""


def _own_cgroups() -> Iterator[Path]:
    """Yield the hierarchies of systemd: where it groups processes, not where resources are
    shared."""
    mounts = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            mounts[""] = left.split(" ")[4]
        elif kind == "cgroup" and "name=systemd" in options.split(","):
            mounts["name=systemd"] = left.split(" ")[4]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names in mounts:
            yield Path(mounts[names], path.lstrip("/"))


def _removed(path: Path) -> bool:
    """Remove a cgroup with all below, which the kernel refuses while a process is left."""
    try:
        for folder, _, _ in os.walk(path, topdown=False):
            os.rmdir(folder)
    except OSError:
        return False
    return not path.exists()


def wait_booted(process: subprocess.Popen[bytes], console: Path) -> Container:
    found: list[int] = []

    def system() -> bool:
        if process.poll() is not None:
            pytest.skip(f"no container boots here: {console.read_text()[-500:]}")
        found[:] = _systemd_below(process.pid)
        return bool(found)

    until(system, "systemd runs in the container")
    container = Container(found[0])

    def running() -> bool:
        done = container.run("systemctl", "is-system-running", check=False)
        return done.stdout.strip() in {"running", "degraded"}

    wait_long(running, f"the container has booted: {console.read_text()[-2000:]}")
    return container


def wait_long(reached: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait as `until` does, for what asks another program each time."""

    def look() -> bool:
        if reached():
            return True
        time.sleep(0.1)
        return False

    until(look, what, patience_s)


def _systemd_below(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(it) for it in children if Path(f"/proc/{it}/comm").read_text() == "systemd\n"]
    except OSError:
        return []
