"""`torchrun_args`: options of torchrun that Muster does not set itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.spec.errors import InvalidValueError, printable

# Options with one value.
ALLOWED: Final = (
    "--role",
    "--local-ranks-filter",
    "--monitor-interval",
    "--event-log-handler",
    "--shutdown-timeout",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
)
_LOGS: Final = "Muster reads the output of each rank from its own file: see `muster logs`"
_RENDEZVOUS: Final = "Muster sets the rendezvous of each attempt"
_PROGRAM: Final = "the program is in `run`"
_SET_BY_MUSTER: Final = {
    "--nnodes": "`nodes` is the key",
    "--node-rank": _RENDEZVOUS,
    "--nproc-per-node": "`nproc_per_node` is the key",
    "--rdzv-backend": "`rendezvous` is the key",
    "--rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-id": _RENDEZVOUS,
    "--rdzv-conf": _RENDEZVOUS,
    "--standalone": _RENDEZVOUS,
    "--master-addr": _RENDEZVOUS,
    "--master-port": _RENDEZVOUS,
    "--local-addr": _RENDEZVOUS,
    "--max-restarts": "`retry` is the key: Muster restarts the whole gang, torchrun one node",
    "--numa-binding": "`resources.numa_binding` is the key",
    "--start-method": "torchrun ignores it for programs",
    "--signals-to-handle": "`stop.signal` is the key",
    "--log-dir": _LOGS,
    "--redirects": _LOGS,
    "-r": _LOGS,
    "--tee": _LOGS,
    "-t": _LOGS,
    "--logs-specs": _LOGS,
    "--virtual-local-rank": "Muster needs the LOCAL_RANK of each rank",
    "-m": _PROGRAM,
    "--module": _PROGRAM,
    "--no-python": _PROGRAM,
    "--run-path": _PROGRAM,
}


def read_torchrun_args(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words in the form `--option=value`, so that no value can be taken for the program.

    Raises `InvalidValueError`.
    """
    made: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        option = name.replace("_", "-")
        if option in _SET_BY_MUSTER:
            raise InvalidValueError(f"`{printable(name)}` is set by Muster", _SET_BY_MUSTER[option])
        if option not in ALLOWED:
            raise InvalidValueError(
                f"`{printable(word)}` is not an option that Muster passes to torchrun",
                f"these are: {', '.join(ALLOWED)}",
            )
        if not equals:
            if not rest:
                raise InvalidValueError(f"`{option}` has no value", f"give it as `{option}=VALUE`")
            value = rest.pop(0)
        made.append(f"{option}={value}")
    return tuple(made)
