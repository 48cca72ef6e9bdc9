"""Demo of Muster in a minute: a small cluster on this machine runs a gang of three nodes.

Started by `./dev demo`. All files are in one directory, which is removed at the end; `--keep`
leaves the cluster running. `--namespaces` gives every node a simulated machine with its own
network, host name, /etc/hosts and processes; this needs root.
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
from examples.namespace_cluster import NamespaceCluster
from examples.rig.machine import RigError
from examples.rig.rig import missing
from muster.client import ClientError
from muster.protocol.states import ENDED_STATES, JobState

PI = Path(__file__).parent / "pi"
NODES = 3
LEAVING_S = 5.0


def say(text: str = "") -> None:
    print(text, flush=True)


def typed(cluster: LocalCluster, *args: str) -> int:
    """Show a command as typed, and run it on this terminal."""
    say(f"\n$ muster {' '.join(args)}")
    return subprocess.run(cluster.command(*args), env=cluster.base_env(), check=False).returncode


def run_job(cluster: LocalCluster) -> int:
    """Submit pi, follow its log, and show the result. Returns the job's exit code."""
    submit = ("submit", "-f", str(PI / "job.yaml"))
    say(f"\n$ muster {' '.join(submit)}")
    job = cluster.muster(*submit).stdout.strip()
    say(job)
    try:
        if isinstance(cluster, NamespaceCluster):
            show_names(cluster, int(job))
        code = typed(cluster, "logs", "-f", "--rank", "all", "--tail", "all", "--exit-status", job)
        typed(cluster, "show", job)
    except KeyboardInterrupt:
        say("\nstopping")
        cluster.muster("cancel", "--wait", "--grace", "2s", job, check=False)
        return 130
    if isinstance(cluster, NamespaceCluster):
        show_hosts(cluster, "after the job")
    return code


def show_names(cluster: NamespaceCluster, job: int) -> None:
    """While the job runs, show each node's entries for the names of the gang."""
    client = cluster.client()
    while (state := client.job(job).state) is not JobState.RUNNING and state not in ENDED_STATES:
        time.sleep(0.05)
    show_hosts(cluster, "while the job runs")
    first, *peers = cluster.machines.values()
    for machine, peer in ((first, peers[0]), (peers[0], first)):
        found = machine.exec("getent", "hosts", peer.name, check=False).stdout.strip()
        say(f"\n{machine.name}$ getent hosts {peer.name}\n{found or '(no such name there)'}")


def show_hosts(cluster: NamespaceCluster, when: str) -> None:
    for machine in cluster.machines.values():
        say(f"\n{machine.name}$ cat /etc/hosts   # {when}\n{machine.hosts().rstrip()}")


def leave_running(cluster: LocalCluster) -> None:
    if isinstance(cluster, NamespaceCluster):
        leave_rig_running(cluster)
        return
    say(
        f"""
The cluster keeps running. To use it:

  export MUSTER_CONFIG={cluster.client_config}
  export PATH={Path(MUSTER).parent}:$PATH
  muster nodes
  muster submit --name hello --nodes 3 --wait -- echo hello && muster logs --rank all hello

Kill any daemon and start it again with its command; running jobs do not notice:

{_restarts(cluster)}

To stop it: cancel the jobs that still run (muster ps, muster cancel --wait ID), then

  kill {" ".join(str(d.pid) for d in (*cluster.nodes.values(), cluster.coordinator))}
  rm -r {cluster.root}"""
    )


def leave_rig_running(cluster: NamespaceCluster) -> None:
    cluster.rig.keep()
    muster = " ".join(cluster.command())
    say(
        f"""
The cluster keeps running. To use it:

  export MUSTER_CONFIG={cluster.client_config}
  alias muster='{muster}'
  muster nodes

To enter a machine, or to cut its power:

{_machines(cluster)}

To stop all of it:

  kill {cluster.rig.supervisor_pid}"""
    )


def _machines(cluster: NamespaceCluster) -> str:
    return "\n".join(
        f"  {machine.name} ({machine.address}): nsenter -t {machine.pid} -a, kill -9 {machine.pid}"
        for machine in (cluster.head, *cluster.machines.values())
    )


def _restarts(cluster: LocalCluster) -> str:
    return "\n".join(
        f"  {daemon.name} (pid {daemon.pid}): muster {' '.join(daemon.argv[1:])}"
        for daemon in (cluster.coordinator, *cluster.nodes.values())
    )


def check_nothing_left(cluster: LocalCluster) -> list[str]:
    """Return what is left after every daemon has stopped and the directory is removed."""
    deadline = time.monotonic() + LEAVING_S
    while cluster.leftovers() and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [f"process {line}" for line in cluster.leftovers()]
    if cluster.root.exists():
        left.append(f"folder {cluster.root}")
    return left


def make(folder: Path, *, namespaces: bool) -> LocalCluster:
    """Return the cluster, not yet started, and a description."""
    if namespaces:
        cluster = NamespaceCluster(folder, agents=NODES, transient=True)
        say(f"A coordinator on {cluster.head.address} and the agents {', '.join(cluster.nodes)},")
        say("each on a machine of its own: network, host name, /etc, processes, boot id.")
        return cluster
    local = LocalCluster(folder, agents=NODES)
    say(
        f"Starting a coordinator on 127.0.0.1:{local.port} and the agents {', '.join(local.nodes)}."
    )
    say("All of them share this machine's loopback, so host names are not tested here.")
    return local


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument(
        "--namespaces", action="store_true", help="a machine for each node (needs root)"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.namespaces and (why := missing()):
        say(f"demo: {why}; without --namespaces the nodes share this machine")
        return 1

    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
    kept = False
    cluster = None
    try:
        cluster = make(folder, namespaces=args.namespaces)
        cluster.start()
        typed(cluster, "nodes")
        code = run_job(cluster)
        if args.keep:
            kept = True
            leave_running(cluster)
            return code
    except KeyboardInterrupt:
        say("\nstopping")
        code = 130
    except (ClusterError, RigError, ClientError) as error:
        say(f"demo: {error}")
        return 1
    finally:
        if cluster is not None and not kept:
            cluster.stop()
            cluster.remove()
    left = check_nothing_left(cluster) if cluster is not None else []
    for line in left:
        say(f"left behind: {line}")
    if not left:
        say(f"\nEvery daemon has stopped and nothing is left. {time.monotonic() - began:.0f} s.")
    return code or int(bool(left))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
