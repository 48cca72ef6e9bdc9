"""/tmp, /var/tmp, /dev/shm and /proc of one job, and what it still sees of the machine's."""

from __future__ import annotations

import ctypes
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.shim_protocol import (
    ShimExit,
    ShimPhase,
    ShimPlaces,
    ShimRelease,
    ShimStart,
    ShimUser,
)
from examples.local_cluster import free_port
from tests.agent.shims.conftest import Node, Spoken, Stage
from tests.agent.shims.test_termination import carriers
from tests.agent.shims.test_torchrun import PYTHON, torchrun

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
]
NOBODY = 65534
PLACES = ("/tmp", "/var/tmp", "/dev/shm")
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below /tmp that all users may pass; one of the job's own is in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o711)
        (path / "tmp").mkdir(mode=0o700)
        os.chown(path / "tmp", NOBODY, NOBODY)
        yield path


def places(folder: Path, *shown: Path | str, made: str = "", hide: bool = False) -> ShimPlaces:
    return ShimPlaces(str(folder / "tmp"), [str(it) for it in shown], [made] if made else [], hide)


async def output(task: Spoken, script: str, **given: object) -> list[str]:
    """The output of a job of another user."""
    status = await task.prepared(user=ShimUser("nobody"), **given)
    assert status.phase is ShimPhase.PREPARED, status.refusal
    await task.send(ShimStart(argv=["/bin/sh", "-c", script]))
    ended = await task.ended()
    assert ended.phase is ShimPhase.CLEANED, ended.refusal
    said = task.read(ended.ranks[0].stdout) + task.read(ended.ranks[0].stderr)
    await task.send(ShimRelease())
    await task.gone()
    return said.decode().splitlines()


def test_ranks_and_setup_share_them_and_the_machine_gets_nothing(
    any_stage: Stage, folder: Path
) -> None:
    name = f"muster-{secrets.token_hex(8)}"
    paths = sorted(f"{place}/{name}" for place in PLACES)
    wait = "until [ -e /dev/shm/$0$other ]; do sleep 0.05; done"
    script = f"other=$((1 - RANK)); echo $RANK > /dev/shm/$0$RANK; {wait}; cat /dev/shm/$0$other"

    async def story(node: Node) -> None:
        task = await node.task()
        setup = ["/bin/sh", "-c", f"touch {' '.join(paths)}"]
        user = ShimUser("nobody")
        status = await task.prepared(user=user, setup=setup, places=places(folder), launcher="none")
        assert status.phase is ShimPhase.PREPARED, status.refusal
        own: list[dict[str, str]] = [{"RANK": "0"}, {"RANK": "1"}]
        script_too = f"ls {' '.join(paths)} && {script}"
        await task.send(ShimStart(argv=["/bin/sh", "-c", script_too, name], ranks=own))
        ended = await task.ended()
        said = {rank.rank: task.read(rank.stdout).decode() for rank in ended.ranks}
        errors = [task.read(rank.stderr) for rank in ended.ranks]
        assert said == {
            rank: "".join(f"{it}\n" for it in paths) + f"{1 - rank}\n" for rank in (0, 1)
        }, errors

    any_stage.play(story)
    assert not [path for path in paths if Path(path).exists()]
    assert (folder / "tmp" / name).exists()


def test_memory_of_a_job_is_bounded_and_its_own(any_stage: Stage, folder: Path) -> None:
    async def story(node: Node) -> None:
        script = "stat -f -c '%T %b' /dev/shm; stat -c %a /dev/shm; ls -A /dev/shm /tmp | wc -l"
        said = await output(await node.task(), script, places=places(folder))
        kind, blocks = said[0].split()
        assert kind == "tmpfs"
        assert int(blocks) * os.sysconf("SC_PAGE_SIZE") < os.sysconf("SC_PAGE_SIZE") * os.sysconf(
            "SC_PHYS_PAGES"
        )
        assert said[1:] == ["1777", "3"]

    any_stage.play(story)


TRAINING = """
import os, sys, tempfile
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((2,), float(index))

if __name__ == "__main__":
    dist.init_process_group("gloo")
    # Tensors of the workers travel through files in /dev/shm.
    torch.multiprocessing.set_sharing_strategy("file_system")
    total = sum(batch.sum() for batch in DataLoader(Numbers(), batch_size=4, num_workers=2))
    dist.all_reduce(total)
    name = sys.argv[1]
    for place in ("/tmp", "/var/tmp", "/dev/shm", os.environ["TMPDIR"]):
        with open(f"{place}/{name}{dist.get_rank()}", "w") as file:
            file.write("left")
    dist.barrier()
    seen = sorted(it for it in os.listdir("/dev/shm") if it.startswith(name))
    print(total.item(), len(seen), tempfile.gettempdir() == os.environ["TMPDIR"])
    dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("method", ["fork", "exec"])
def test_a_torch_job_trains_in_its_own_places_and_leaves_nothing(
    any_stage: Stage, folder: Path, method: str
) -> None:
    work = folder / "work"
    # torch creates sockets in TMPDIR: its path must be short (TMPDIR_CHARS_MAX).
    scratch = work / "scratch"
    scratch.mkdir(parents=True)
    (work / "training.py").write_text(TRAINING)
    name = f"muster-{secrets.token_hex(8)}"
    env = {"OMP_NUM_THREADS": "1", "MUSTER_START_METHOD": method, "TMPDIR": str(scratch)}

    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(
            launcher="torchrun",
            python=PYTHON,
            cwd=str(work),
            env=env,
            # The interpreter may be below /tmp.
            places=places(folder, work, REPOSITORY, hide=True),
        )
        assert status.phase is ShimPhase.PREPARED, status.refusal
        start = torchrun(free_port(), "training.py", name)
        await task.send(ShimStart(argv=start.argv, env=env, grace_s=60))
        status = await task.ended()
        assert status.exit == ShimExit(0), [task.read(rank.stderr) for rank in status.ranks]
        forked = status.start_method is not None and status.start_method.method == "fork"
        assert (forked, len(status.ranks)) == (method == "fork", 2)
        for rank in status.ranks:
            assert task.read(rank.stdout) == b"112.0 2 True\n"
        assert carriers(task) == []

    any_stage.play(story)
    for place in PLACES:
        assert not list(Path(place).glob(f"{name}*"))
    # Files written to /tmp and /var/tmp are in the folder that is removed with the task.
    left = [it.name for it in (folder / "tmp").iterdir()]
    assert {f"{name}0", f"{name}1"} <= set(left)
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_folders_that_the_job_names_stay_visible(any_stage: Stage, folder: Path) -> None:
    data, alias, new = folder / "data", folder / "alias", folder / "open/new/checkpoints"
    data.mkdir()
    (data / "x").write_text("seen\n")
    alias.symlink_to(data)
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    (folder / "other").mkdir()

    async def story(node: Node) -> None:
        script = f"pwd; cat x {alias}/x; ls {folder}; touch {new}/kept; ls {folder}/other"
        said = await output(
            await node.task(),
            script,
            places=places(folder, data, alias, made=str(new)),
            cwd=str(data),
        )
        assert said[:6] == [str(data), "seen", "seen", "alias", "data", "open"]
        assert len(said) == 7
        assert "other" in said[6]

    any_stage.play(story)
    assert (new / "kept").stat().st_uid == NOBODY
    assert new.stat().st_uid == NOBODY


def test_nothing_is_shown_that_the_user_cannot_reach(any_stage: Stage, folder: Path) -> None:
    """Root opens what a job names with the rights of its user."""
    closed, link = folder / "closed", folder / "link"
    (closed / "secret").mkdir(parents=True)
    closed.chmod(0o700)
    link.symlink_to(closed / "secret")
    new = closed / "new"

    async def story(node: Node) -> None:
        shown = closed / "secret", link
        script = f"ls -d {closed}/secret {link} {new} 2>/dev/null; echo done"
        task = await node.task()
        said = await output(task, script, places=places(folder, *shown, made=str(new)))
        assert said == ["done"]

    any_stage.play(story)
    assert not new.exists()


@pytest.mark.parametrize("hide", [True, False])
def test_processes_of_other_users_are_invisible(
    any_stage: Stage, folder: Path, *, hide: bool
) -> None:
    async def story(node: Node) -> None:
        script = f"ls -d /proc/{os.getpid()} 2> /dev/null; cat /proc/$$/comm; ls -d /proc/meminfo"
        said = await output(await node.task(), script, places=places(folder, hide=hide))
        theirs = [] if hide else [f"/proc/{os.getpid()}"]
        assert said == [*theirs, "sh", "/proc/meminfo"]

    any_stage.play(story)
    assert Path(f"/proc/{os.getpid()}").exists()


@pytest.fixture
def bus() -> Iterator[Path]:
    """A file in the folder of the system bus."""
    folder = Path("/run/dbus")
    missing = not folder.exists()
    folder.mkdir(exist_ok=True)
    seen = folder / f"muster-{secrets.token_hex(8)}"
    seen.touch()
    yield seen
    seen.unlink()
    if missing:
        folder.rmdir()


@pytest.mark.parametrize("hide", [True, False])
def test_the_system_bus_which_shows_command_lines_of_all_users_is_invisible(
    any_stage: Stage, folder: Path, bus: Path, *, hide: bool
) -> None:
    async def story(node: Node) -> None:
        script = f"ls {bus.parent} | grep -x {bus.name}; touch {bus.parent}/mine 2> /dev/null"
        said = await output(
            await node.task(), f"{script}; echo $?", places=places(folder, hide=hide)
        )
        assert said == ([] if hide else [bus.name]) + ["1"]

    any_stage.play(story)
    assert bus.exists()


def test_a_link_that_leads_out_of_the_places_is_not_shown(any_stage: Stage, folder: Path) -> None:
    """Otherwise root would mount the machine's own /proc or /tmp where such a link is."""
    outside = {"proc": "/proc", "process": f"/proc/{os.getpid()}", "root": "/", "places": "/tmp"}
    links = [folder / name for name in outside]
    for link, target in zip(links, outside.values(), strict=True):
        link.symlink_to(target)
    kept = folder / "kept"
    kept.mkdir()

    async def story(node: Node) -> None:
        paths = " ".join(str(it) for it in (*links, kept))
        script = f"ls -d {paths} 2> /dev/null; ls -d /proc/{os.getpid()} 2> /dev/null; echo done"
        shown = places(folder, *links, kept, hide=True)
        assert await output(await node.task(), script, places=shown) == [str(kept), "done"]

    any_stage.play(story)


def test_a_place_that_cannot_be_made_is_a_refusal_in_words(any_stage: Stage, folder: Path) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(places=places(folder / "nowhere"))
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert "`private_tmp`" in status.refusal.text

    any_stage.play(story)


SHARED = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
name, rank = sys.argv[1].encode(), int(os.environ["RANK"])
anew = 0o1000 | 0o666
if rank == 0:
    made = [libc.shmget(4711, 4096, anew), libc.msgget(4711, anew), libc.semget(4711, 1, anew)]
    assert min(made) >= 0
    assert libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o666, None) >= 0
    open(f"/dev/shm{sys.argv[1]}", "w")
else:
    while not os.path.exists(f"/dev/shm{sys.argv[1]}"):
        time.sleep(0.01)
    print(libc.shmget(4711, 4096, 0) >= 0, libc.mq_open(name, os.O_RDWR) >= 0)
"""


def of_nobody() -> set[tuple[str, str]]:
    """The System V objects of this machine that the program above can make: kind and number."""
    found = set()
    for kind, number in (("shm", "shmid"), ("msg", "msqid"), ("sem", "semid")):
        heads, *rows = map(str.split, Path(f"/proc/sysvipc/{kind}").read_text().splitlines())
        for row in rows:
            values = dict(zip(heads, row, strict=True))
            if (values["key"], values["uid"]) == ("4711", str(NOBODY)):
                found.add((kind, values[number]))
    return found


def test_ranks_share_ipc_and_it_ends_with_the_job(any_stage: Stage, folder: Path) -> None:
    name = f"/muster-{secrets.token_hex(8)}"

    async def story(node: Node) -> None:
        task = await node.task()
        user = ShimUser("nobody")
        status = await task.prepared(user=user, places=places(folder), launcher="none")
        assert status.phase is ShimPhase.PREPARED, status.refusal
        argv = ["/usr/bin/python3", "-c", SHARED, name]
        await task.send(ShimStart(argv=argv, ranks=[{"RANK": "0"}, {"RANK": "1"}]))
        ended = await task.ended()
        said = {rank.rank: task.read(rank.stdout).decode() for rank in ended.ranks}
        errors = [task.read(rank.stderr) for rank in ended.ranks]
        assert said == {0: "", 1: "True True\n"}, errors

    # A run without this isolation, such as that of a mutant, may have left some.
    before = of_nobody()
    any_stage.play(story)
    assert of_nobody() <= before
    assert ctypes.CDLL(None).mq_open(name.encode(), os.O_RDWR) < 0
