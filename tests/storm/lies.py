"""Jobs of users who mean harm: launchers that lie, and programs that write without end."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.storm.liar import LIES

LIAR = Path(__file__).with_name("liar.py")
FLOODS = {
    "sparse": "truncate -s 100G /proc/self/fd/1; sleep 600",
    "flood": "yes 'a line of a job that writes without end'",
}
"""Programs that fill the store of the logs, at the cost of their own disk and without."""
KINDS = (*LIES, *FLOODS)
_NOBODY = 65534


def job(kind: str, folder: Path, nodes: Sequence[str] = ()) -> dict[str, Any]:
    """The spec of such a job; `folder` is its own. `nodes`: those that it is to have."""
    folder.mkdir(mode=0o777, parents=True)
    folder.chmod(0o777)  # whatever the umask is
    common: dict[str, Any] = {
        "name": f"lie-{kind}",
        "workdir": str(folder),
        "stop": {"grace": "1s"},
        "retry": {"infra": 0},
        "nccl_debug": True,
    }
    if nodes:
        common |= {"placement": {"include": list(nodes)}, "nodes": len(nodes)}
    if kind in FLOODS:
        return {**common, "launcher": "none", "run": ["sh", "-c", FLOODS[kind]]}
    program = folder / kind
    text = LIAR.read_text()
    program.write_text(f"#!{interpreter()} -I\n{text}")
    program.chmod(0o755)
    run = {"launcher": "torchrun", "nproc_per_node": 1, "run": ["train.py"]}
    return {**common, **run, "python": str(program)}


def notes(folder: Path) -> list[str]:
    """Return the notes of a liar on what it has done."""
    try:
        return (folder / "noted").read_text().splitlines()
    except FileNotFoundError:
        return []


@functools.cache
def interpreter() -> str:
    """Return an interpreter that every user may run: a developer's own is often in a closed
    home."""
    found = (shutil.which(name, path="/usr/bin:/usr/local/bin:/bin") for name in ("python3",))
    for path in (*found, shutil.which("python3")):
        if path is not None and _runs(os.path.realpath(path)):
            return os.path.realpath(path)
    raise AssertionError("there is no Python that any user may run")


def _runs(path: str) -> bool:
    nobody = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    argv = [*(nobody if os.geteuid() == 0 else []), path, "-c", ""]
    try:
        return subprocess.run(argv, cwd="/", capture_output=True, check=False).returncode == 0
    except OSError:
        return False
