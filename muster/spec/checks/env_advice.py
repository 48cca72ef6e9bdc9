"""Advice on variables that published recipes set and that have no effect or do harm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from muster.spec.model import Argv, Command, JobSpec, Shell

_GDR: Final = "NCCL_NET_GDR_LEVEL"
_GID: Final = "NCCL_IB_GID_INDEX"
_BY_VALUE: Final = (_GID, _GDR)
_ADVICE: Final = {
    "PYTORCH_TCP_SOCKET_IFNAME": "has no effect: no program reads it. Muster sets "
    "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME on each node",
    "NCCL_IB_CUDA_SUPPORT": "has no effect: NCCL removed it in 2.4. GPUDirect RDMA is used where "
    "the node has it (muster show --fabric)",
    _GID: "is one index for all nodes, and the GID tables of nodes differ: RDMA "
    "fails on a node where the index is another network or empty. Without it Muster sets the "
    "index of each node where NCCL needs one",
    _GDR: "is a number of older NCCL releases: a number above 4 means SYS, which permits GPUDirect "
    "RDMA at any distance. Leave it out, and NCCL decides by the topology; or write SYS",
}
# An assignment at the begin of a word, and not in a comment: `export A=1`, `env A=1`, `-x A=1`.
_ASSIGNED: Final = re.compile(rf"(?:^|[\s;&|(\"'])({'|'.join(_ADVICE)})=[\"']?([^\s;&|)\"']*)")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
# A command that prints its words, which may be in quotes.
_PRINTED: Final = re.compile(
    r"(?:^|[;&|({]|\b(?:do|else|then)\s)\s*(?:echo|printf)\s"
    r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|["'].*|[^;&|"'\\])*"""
)
_EXPANDED: Final = ("$", "`")
# Other programs may have arguments that look like an assignment.
_SETTERS: Final = frozenset({"bash", "dash", "env", "mpirun", "sh", "zsh"})


def env_advice(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for each variable of the job that is better left out."""
    launcher, worker = spec.roles.launcher, spec.roles.worker
    found: dict[str, None] = {}
    for where, env in (
        ("env", spec.env),
        ("roles.launcher.env", launcher.env),
        ("roles.worker.env", worker.env),
    ):
        for name, value in env.items():
            if _is_bad(name, value):
                found[f"{where}.{name} {_ADVICE[name]}"] = None
    for where, command in (
        ("run", spec.run),
        ("setup", spec.setup),
        ("roles.launcher.run", launcher.run),
        ("roles.worker.run", worker.run),
    ):
        for name, value in _assigned(command):
            # An expansion may be another value on each node.
            if name in _BY_VALUE and any(sign in value for sign in _EXPANDED):
                continue
            if _is_bad(name, value):
                found[f"{where}: {name} {_ADVICE[name]}"] = None
    return tuple(found)


def _is_bad(name: str, value: str) -> bool:
    # NCCL ignores an index of -1, and chooses itself.
    if name == _GID:
        return value != "-1"
    return value.isdigit() if name == _GDR else name in _ADVICE


def _assigned(command: Command | None) -> Iterator[tuple[str, str]]:
    """Yield the assignments to such variables in the text of a command, with their values."""
    if isinstance(command, Shell):
        lines = command.script.split("\n")
        texts = [_COMMENT.sub("", _PRINTED.sub(";", line)) for line in lines]
    elif isinstance(command, Argv) and command.argv[0].rpartition("/")[2] in _SETTERS:
        texts = list(command.argv[1:])
    else:
        return
    for text in texts:
        yield from _ASSIGNED.findall(text)
