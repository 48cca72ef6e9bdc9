"""Text reports of a probe, at most 80 columns wide, and a doctor's verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from muster.fabric.model import (
    Affinity,
    AffinityClass,
    FabricProblem,
    Hca,
    NetworkInterface,
    Probe,
    Severity,
)

_WIDTH: Final = 80
_WORDS: Final = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "note",
}

Rows = Sequence[Sequence[str]]


def probe_text(probe: Probe) -> str:
    """Every port with its class and why it is used or not; GPUs, interfaces and environment."""
    parts = [_head(probe)]
    if probe.hcas:
        parts.append("\n".join(_hcas(probe.hcas)))
    if probe.gpus:
        parts.append("\n".join(_gpus(probe)))
    if probe.networks:
        parts.append("\n".join(_networks(probe.networks)))
    if probe.env:
        parts.append("\n".join(_env(probe.env)))
    if probe.problems:
        parts.append("\n".join(_problems(probe.problems)))
    return _printable("\n\n".join([*parts, summary(probe)]))


def doctor_text(probe: Probe, *, notes: bool = True) -> str:
    """The problems, with their effect and fix. Without `notes`, a line has the number of those."""
    shown = [each for each in probe.problems if notes or each.severity is not Severity.INFO]
    parts = ["\n".join(_problems(shown))] if shown else []
    parts.append(summary(probe))
    if left_out := len(probe.problems) - len(shown):
        what = "1 note" if left_out == 1 else f"{left_out} notes"
        parts[-1] += f"\n{what} about what this node has and limits: muster doctor"
    return _printable("\n\n".join(parts))


def exit_code(probe: Probe) -> int:
    """Exit code: 0 healthy, 1 warnings, 2 errors."""
    severities = {problem.severity for problem in probe.problems}
    if Severity.ERROR in severities:
        return 2
    return 1 if Severity.WARNING in severities else 0


def summary(probe: Probe) -> str:
    """A line: the number of problems, and what jobs will use."""
    errors, warnings = (
        sum(problem.severity is severity for problem in probe.problems)
        for severity in (Severity.ERROR, Severity.WARNING)
    )
    total = errors + warnings
    count = f"{total} problem{'' if total == 1 else 's'}"
    if errors and warnings:
        count += f" ({errors} of them error{'' if errors == 1 else 's'})"
    fabric = probe.fabric
    if fabric.used:
        of = "" if fabric.used == fabric.expected else f" of {fabric.expected}"
        ports = f"{fabric.used}{of} port{'' if fabric.used == 1 and not of else 's'}"
        return f"{count}, RDMA over {ports} ({fabric.name})"
    if fabric.unread:
        return f"{count}, RDMA unknown"
    if not probe.hcas:
        return f"{count}, no RDMA here: TCP"
    of = f" (0 of {fabric.expected}, {fabric.name})" if fabric.expected else ""
    return f"{count}, no HCA can be used{of}: TCP"


def _head(probe: Probe) -> str:
    software = probe.software
    known = (
        ("Linux", software.kernel),
        ("NVIDIA driver", software.nvidia_driver),
        ("OFED", software.ofed),
        ("NCCL", software.nccl),
        ("GPUDirect", software.gpudirect),
    )
    versions = ", ".join(f"{name} {value}" for name, value in known if value)
    return _wrapped(f"{probe.hostname}: {versions}" if versions else probe.hostname)


def _hcas(hcas: Sequence[Hca]) -> Iterator[str]:
    heading = ("HCA", "USE", "LINK", "Gb/s", "STATE", "GID", "PCI", "NETDEV")
    first, *lines = _table([heading, *map(_port, hcas)])
    yield first
    for line, hca in zip(lines, hcas, strict=True):
        yield line
        yield _wrapped(f"{hca.group}: {hca.reason}", indent="    ")


def _port(hca: Hca) -> tuple[str, ...]:
    return (
        hca.key,
        "yes" if hca.use else "no",
        hca.link_layer or "?",
        "?" if hca.rate_gbps is None else f"{hca.rate_gbps:g}",
        _state(hca),
        "-" if hca.gid_index is None else str(hca.gid_index),
        hca.pci or "?",
        ",".join(hca.netdevs) or "-",
    )


def _state(hca: Hca) -> str:
    if hca.state is None:
        return "?"
    return hca.state if hca.state == "ACTIVE" else f"{hca.state}/{hca.phys_state or '?'}"


def _gpus(probe: Probe) -> Iterator[str]:
    rows = [("GPU", "PCI", "NUMA", "NEAREST HCAS", "")]
    for gpu in probe.gpus:
        pairs = [pair for pair in probe.affinity if pair.gpu == gpu.pci]
        numa = "?" if gpu.numa_node in (None, -1) else str(gpu.numa_node)
        rows.append((str(gpu.index), gpu.pci, numa, _nearest(pairs), gpu.name or gpu.pci_id))
    yield from _table(rows)


def _nearest(pairs: Sequence[Affinity]) -> str:
    if not pairs:
        return "-"
    first = pairs[0]
    if first.distance is AffinityClass.UNKNOWN:
        return "unknown"
    same = [
        pair.hca for pair in pairs if (pair.distance, pair.hops) == (first.distance, first.hops)
    ]
    names = ",".join(same[:3]) + (f" and {len(same) - 3} more" if len(same) > 3 else "")
    return f"{names} {first.distance.value}"


def _networks(networks: Sequence[NetworkInterface]) -> Iterator[str]:
    heading = ("INTERFACE", "KIND", "UP", "MTU", "Mb/s", "ADDRESSES")
    yield from _table([heading, *map(_network, networks)])


def _network(network: NetworkInterface) -> tuple[str, ...]:
    return (
        network.name,
        network.kind,
        {True: "yes", False: "no", None: "?"}[network.running],
        str(network.mtu or "?"),
        str(network.speed_mbps or "?"),
        ", ".join(network.addresses) or "-",
    )


def _env(env: dict[str, str]) -> Iterator[str]:
    yield "ENVIRONMENT OF JOBS"
    # Never shortened, because users copy it.
    yield from (f"{name}={value}" for name, value in env.items())


def _problems(problems: Iterable[FabricProblem]) -> Iterator[str]:
    for problem in problems:
        yield _wrapped(f"{_WORDS[problem.severity]}: {problem.what}", indent="", rest="    ")
        if problem.fix != "nothing":
            yield _wrapped(f"fix: {problem.fix}", indent="    ")


def _table(rows: Rows) -> Iterator[str]:
    """Columns as wide as their widest cell. The last one is cut at the page width."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line = line.rstrip()
        yield line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}~"


def _wrapped(text: str, indent: str = "", rest: str | None = None) -> str:
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _printable(text: str) -> str:
    """Remove terminal control characters, which names and file contents may have."""
    return "".join(one if one == "\n" or one.isprintable() else "?" for one in text)
