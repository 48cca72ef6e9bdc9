"""The exit codes of `muster`, as `--help` and docs/reference/cli.md print them."""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final = (
    ("0", "done"),
    (
        "the job's own",
        (
            "code of the first failing rank (128+N: signal N): wait, attach, submit --wait, "
            "logs --exit-status"
        ),
    ),
    ("1", "bench: below the pass line, or a wrong sum; check and doctor: warnings"),
    ("2", "usage error, or a refused job; check and doctor: faults"),
    ("121", "the job was cancelled"),
    ("122", "infrastructure: a node was lost, a check failed"),
    ("123", "the job never started: no nodes could run it, or none could be prepared"),
    ("124", "the job's time limit"),
    ("125", "client or coordinator error; wait --timeout has expired"),
    ("130", "detached by Ctrl-C, or because the output of attach was closed"),
)
