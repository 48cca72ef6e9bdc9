"""The command line as whole processes, compared with an interpreter that only imports."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.launch.cluster import Wrong, cluster, settle
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import MUSTER

NODES = 4
_WARM_UP = 2


def measure(rounds: int) -> tuple[list[Row], list[str]]:
    """Measure all commands in turns."""
    python = sys.executable
    submit = [MUSTER, "submit", "--nodes", str(NODES), "--set", "launcher=none"]
    cases = [
        (
            Row("cli", f"muster submit --nodes {NODES} --wait -- true", "ours", aim=Aim(120.0)),
            [*submit, "--wait", "--", "true"],
        ),
        (Row("cli", "muster --help", "ours", aim=Aim(120.0)), [MUSTER, "--help"]),
        (Row("cli", "muster ps", "ours", aim=Aim(120.0)), [MUSTER, "ps"]),
        (Row("cli", "python -c 'import aiohttp'", "peer"), [python, "-c", "import aiohttp"]),
        (Row("cli", "python -c pass", "floor"), [python, "-c", "pass"]),
    ]
    with cluster(NODES) as local:
        # Like an installed muster: without bytecode, every start would compile all modules.
        env = {k: v for k, v in local.base_env().items() if k != "PYTHONDONTWRITEBYTECODE"}
        for number in range(-_WARM_UP, rounds):
            for row, argv in cases:
                settle(local)
                took_ms = _run(argv, env)
                if number >= 0:
                    row.add(took_ms)
    return [row for row, _ in cases], []


def _run(argv: Sequence[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - began
    if done.returncode != 0:
        raise Wrong(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr}")
    return took_s * 1e3
