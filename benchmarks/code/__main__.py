"""Code that travels with a job, compared with `tar` piped to `tar` of the same folder.

Each figure is a whole `muster submit` of a folder of many files: until the coordinator has all of
it on its disk and the job is queued, because another one has the only node. The peer writes a copy
and syncs it to disk, as the coordinator does. The floor is the peer with a SHA-256 of all bytes at
both ends: code is named by its content, and verified where it arrives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.code import fan_out
from benchmarks.launch.cluster import cluster
from benchmarks.launch.report import machine, table, write_json
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import LocalCluster

AGAIN_AIM_MS = 400
CHANGED_AIM_MS = 800
FIRST_AIM = 1.2
_FOLDERS = 200
_HASHED = 2 * " tee >(sha256sum > /dev/null) |"


def main() -> int:
    args = _arguments()
    where = machine()
    if args.fan_out:
        with tempfile.TemporaryDirectory(prefix="muster-code-", dir=args.dir) as folder:
            fan_out.measure(
                Path(folder),
                args.fan_out_bytes,
                lambda rows: print(table(where, rows, []), flush=True),
            )
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="muster-code-", dir=args.dir) as folder,
        cluster(1, lambda _, agents: LocalCluster(Path(folder) / "cluster", agents)) as local,
    ):
        local.muster("submit", "--", "sleep", "infinity")
        rows = measure(local, Path(folder), args.files, args.bytes, args.rounds)
        # Before the end of the cluster, which may fail on a busy machine.
        print(table(where, rows, []), flush=True)
        if args.json is not None:
            write_json(args.json, where, rows, [])
    return 0


def measure(local: LocalCluster, folder: Path, files: int, size: int, rounds: int) -> list[Row]:
    """Measure Muster and tar in turns, each round with new content."""
    what = f"{size / 1e9:g} GB in {files} files"
    first = Row("first", f"submit of {what}", "ours")
    tar = Row("first", "tar | tar, synced", "peer")
    hashed = Row("first", "tar | sha256sum | sha256sum | tar, synced", "floor")
    ratio = Row("first", "submit / tar", "ours", "x", aim=Aim(FIRST_AIM))
    again = Row("again", "the same, unchanged", "ours", aim=Aim(AGAIN_AIM_MS))
    changed = Row("changed", "one line changed", "ours", aim=Aim(CHANGED_AIM_MS))
    tree = folder / "tree"
    for number in range(rounds):
        write_tree(tree, files, size)
        time.sleep(2.1)  # files that have changed just now stay out of the index
        tar.add(_took(lambda: _copy(tree, folder / "copy")))
        shutil.rmtree(folder / "copy")
        hashed.add(_took(lambda: _copy(tree, folder / "copy", _HASHED)))
        first.add(_took(lambda: _submit(local, folder, tree, new=files)))
        ratio.add(first.samples[-1] / tar.samples[-1])
        _submit(local, folder, tree, new=0)
        again.add(_took(lambda: _submit(local, folder, tree, new=0)))
        with (tree / "0" / "0.py").open("ab") as file:
            file.write(b"line %d\n" % number)
        changed.add(_took(lambda: _submit(local, folder, tree, new=1)))
        shutil.rmtree(tree)
        shutil.rmtree(folder / "copy")
    return [first, tar, hashed, ratio, again, changed]


def write_tree(tree: Path, files: int, size: int) -> None:
    """Write files of equal size and random content."""
    for number in range(files):
        path = tree / str(number % _FOLDERS) / f"{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size // files))
    os.sync()


def _submit(local: LocalCluster, folder: Path, tree: Path, *, new: int) -> None:
    done = subprocess.run(
        local.command("submit", "--name", "code", "--set", "workdir=.", "--", "true"),
        cwd=tree,
        env={**local.base_env(), "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"in {new} new piece" in done.stderr if new else " new piece" not in done.stderr
    if done.returncode != 0 or not said:
        raise SystemExit(f"muster submit: exit {done.returncode}: {done.stderr}")


def _copy(tree: Path, to: Path, through: str = "") -> None:
    to.mkdir()
    script = f'tar -cf - -C "$1" . |{through} tar -xf - -C "$2" && sync -f "$2"'
    subprocess.run(["bash", "-euo", "pipefail", "-c", script, "tar", tree, to], check=True)


def _took(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench code", description=__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="number of files")
    parser.add_argument("--bytes", type=int, default=2_000_000_000, help="bytes of all files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="folder for the files (default: TMPDIR)")
    parser.add_argument("--fan-out", action="store_true", help="to simulated nodes; needs root")
    parser.add_argument("--fan-out-bytes", type=int, default=256_000_000)
    parser.add_argument("--json", type=Path, help="write the samples here")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
