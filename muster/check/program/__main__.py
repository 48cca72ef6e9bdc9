"""Entry point of a check's process. On the first node it also runs the hub."""

from __future__ import annotations

import json
import os
import sys

from muster.check.program.driver import Hub
from muster.check.program.peer import Peer
from muster.check.program.sockets import listen


def main() -> int:
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    names = os.environ["MUSTER_NODE_NAMES"].splitlines()
    rank = int(os.environ["RANK"])
    rendezvous = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    hub = None
    if rank == 0:
        hub = Hub(plan, names, listen(*rendezvous))
        hub.start()
    Peer(plan, names, rank).serve(rendezvous)
    if hub is not None:
        hub.join()
        return 1 if hub.failed else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
