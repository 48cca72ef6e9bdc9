"""The main job of Muster, seen in a minute: a small cluster on this machine runs a gang of three
nodes.

Started by `./dev demo`. Everything it makes lies in one folder, which it removes; `--keep` leaves
the cluster running.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples.local_cluster import MUSTER, ClusterError, LocalCluster

PI = Path(__file__).parent / "pi"
NODES = 3
LEAVING_S = 5.0


def say(text: str = "") -> None:
    print(text, flush=True)


def typed(cluster: LocalCluster, *args: str) -> int:
    """Show a command as a person would type it, and run it on this terminal."""
    say(f"\n$ muster {' '.join(args)}")
    return subprocess.run([MUSTER, *args], env=cluster.base_env(), check=False).returncode


def run_job(cluster: LocalCluster) -> int:
    """Submit pi, follow its log, show what became of it; returns the job's exit code."""
    submit = ("submit", "-f", str(PI / "job.yaml"), "--set", f"workdir={PI}")
    say(f"\n$ muster {' '.join(submit)}")
    job = cluster.muster(*submit).stdout.strip()
    say(job)
    try:
        code = typed(cluster, "logs", "-f", "--rank", "all", "--tail", "all", "--exit-status", job)
        typed(cluster, "show", job)
    except KeyboardInterrupt:
        say("\nstopping")
        cluster.muster("cancel", "--wait", "--grace", "2s", job, check=False)
        return 130
    return code


def leave_running(cluster: LocalCluster) -> None:
    say(
        f"""
The cluster goes on. To use it:

  export MUSTER_CONFIG={cluster.client_config}
  export PATH={Path(MUSTER).parent}:$PATH
  muster nodes
  muster submit --name hello --nodes 3 --follow -- echo hello

Kill any of them and start it again; a running job does not notice:

{_restarts(cluster)}

To end it: cancel what still runs (muster ps, muster cancel --wait ID), then

  kill {" ".join(str(d.pid) for d in (*cluster.nodes.values(), cluster.coordinator))}
  rm -r {cluster.root}"""
    )


def _restarts(cluster: LocalCluster) -> str:
    return "\n".join(
        f"  {daemon.name} (pid {daemon.pid}): muster {' '.join(daemon.argv[1:])}"
        for daemon in (cluster.coordinator, *cluster.nodes.values())
    )


def check_nothing_left(cluster: LocalCluster) -> list[str]:
    """What is still there after every daemon has stopped and the folder is gone."""
    deadline = time.monotonic() + LEAVING_S
    while cluster.leftovers() and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [f"process {line}" for line in cluster.leftovers()]
    if cluster.root.exists():
        left.append(f"folder {cluster.root}")
    return left


def main() -> int:
    """Run the demo; returns its exit code."""
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    began = time.monotonic()
    cluster = LocalCluster(Path(tempfile.mkdtemp(prefix="muster-demo-")), agents=NODES)
    names = ", ".join(cluster.nodes)
    say(f"Starting a coordinator on 127.0.0.1:{cluster.port} and the agents {names}.")
    say("All of them share this machine's loopback, so host names are not tested here.")
    kept = False
    try:
        cluster.start()
        typed(cluster, "nodes")
        code = run_job(cluster)
        if args.keep:
            leave_running(cluster)
            kept = True
            return code
    except ClusterError as error:
        say(f"demo: {error}")
        return 1
    finally:
        if not kept:
            cluster.stop()
            cluster.remove()
    left = check_nothing_left(cluster)
    for line in left:
        say(f"left behind: {line}")
    if not left:
        say(f"\nEvery daemon has stopped and nothing is left. {time.monotonic() - began:.0f} s.")
    return code or int(bool(left))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
