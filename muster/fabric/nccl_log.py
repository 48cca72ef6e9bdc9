"""Parser of NCCL's log lines about its network.

Input is the file of one process (NCCL_DEBUG_FILE), in pieces as it grows. NCCL logs no line for a
fallback. Evidence in order: channels `via NET/<name>`, the last `Using network <name>`,
`Initialized NET plugin <name>`, a list `NET/IB : Using [0]...` that is not empty. Formats are those
of NCCL 2.4 to 2.30.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from muster.fabric.nccl_communicators import (
    SOCKET,
    Comms,
    Communicator,
    Here,
    Room,
    between,
    ranks_here,
)
from muster.protocol.observations.traffic import NcclEvidence

LINE_BYTES_MAX: Final = 4096
DEVICES_MAX: Final = 64
TROUBLE_MAX: Final = 4
_TROUBLE_CHARS: Final = 200
_WORD_CHARS: Final = 64

_NETWORK: Final = re.compile(r"NCCL INFO Using network (\S.{0,62}?)\s*$")
# NCCL 2.4 wrote Ring. A proxy on another GPU is in brackets.
_CHANNEL: Final = re.compile(
    r"(?:Channel|Ring) \d{1,4}.{0,120}? via (NET|COLLNET)/([^/]{1,62})/\d{1,4}(?:\(\d{1,6}\))?"
    r"(/GDRDMA)?"
)
_NVLINK: Final = re.compile(r"Channel \d{1,4}.{0,120}? via (?:P2P|NVLS)/\S{0,40}MNNVL")
_PLUGIN: Final = re.compile(r"(?:Initialized|Assigned) NET plugin (\S.{0,62}?)(?: to comm)?\s*$")
_LIST: Final = re.compile(r"NET/IB : Using (.{1,4000}?)(?:; OOB .*)?$")
_DEVICE: Final = re.compile(r"([A-Za-z0-9_.-]{1,63}):(\d{1,3})/(?:IB|RoCE)\b")
_VERSION: Final = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_WARNING: Final = re.compile(r"NCCL WARN (.+)$")

# Reasons for not using RDMA, most important first; the first match is reported.
_REASONS: Final = (
    (re.compile(r"NCCL_IB_DISABLE set (?:by environment )?to ([1-9])"), "NCCL_IB_DISABLE={0}"),
    (
        re.compile(r"NCCL_NET set (?:by environment )?to ([Ss]ocket\w*)"),
        "NCCL_NET={0} is set",
    ),
    (
        re.compile(r"Failed to open (libibverbs\.so[.\d]{0,8})"),
        "{0} cannot be loaded: install rdma-core (libibverbs1) on the node",
    ),
    (
        re.compile(r"NET/IB : Unable to open device ([\w.-]{1,63})"),
        "{0} cannot be opened: see the permissions of /dev/infiniband",
    ),
    (re.compile(r"NET/IB : No IP interface found"), "NET/IB found no IP interface for its set-up"),
    (re.compile(r"NET/IB : No device found"), "NET/IB found no device"),
    (
        re.compile(r"Failed to initialize NET plugin ([\w.-]{1,40})"),
        "NET plugin {0} failed to start",
    ),
)
_HCAS: Final = re.compile(r"NCCL_IB_HCA set (?:by environment )?to (\S{1,120})")
_NO_DEVICE: Final = 5
_TROUBLE: Final = re.compile(
    r"Got completion |ibv_\w{1,40} failed|Call to ibv_|Unable to open device|Failed to open lib"
    r"|async (?:fatal )?event|GID table changed|network \S+ not found|any NET plugin"
    r"|No IP interface|No such (?:file|device)|Connection timed out|unhandled system error",
    re.IGNORECASE,
)
# NCCL 2.27 and later query it on every mlx5; ConnectX-7 and older have none.
_NOISE: Final = "mlx5dv_get_data_direct_sysfs_path"


class ProcessEvidence(NcclEvidence, frozen=True, omit_defaults=True):
    """Evidence of one process, as if it were alone on its host. `comms` lets the evidence of the
    other processes correct it.
    """

    comms: tuple[Communicator, ...] = ()


class NcclLog:
    """Parser of one process's lines. `feed` takes the file in pieces of any size. It never raises,
    and uses bounded memory.
    """

    def __init__(self, known: ProcessEvidence | None = None, room: Room | None = None) -> None:
        """`known` is the evidence from the part already read. `room` is shared by the logs of a
        task.
        """
        known = known or ProcessEvidence()
        self._rest = b""
        self._skip = False
        self._version = known.version
        self._comms = Comms(known.comms, room or Room(known.comms))
        self._plugin = known.plugin
        self._nvlink = known.over_nvlink
        self._devices = dict.fromkeys(known.devices)
        self._reason, self._reason_rank = known.reason, 0 if known.reason else len(_REASONS)
        self._hcas = ""
        self._trouble = list(known.trouble)

    @property
    def unfinished(self) -> int:
        """Number of fed bytes that do not form a complete line yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> None:
        """Process the next piece of the file."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole, self._rest = self._rest + line[:LINE_BYTES_MAX], b""
            if self._skip:
                self._skip = False
            else:
                self._line(whole[:LINE_BYTES_MAX].decode("utf-8", "replace").rstrip())
        if self._skip:
            return
        self._rest = (self._rest + rest[: LINE_BYTES_MAX + 1])[: LINE_BYTES_MAX + 1]
        if len(self._rest) > LINE_BYTES_MAX:
            # NCCL's lines are never so long: judge the beginning and skip the rest.
            self._line(self._rest[:LINE_BYTES_MAX].decode("utf-8", "replace"))
            self._rest, self._skip = b"", True

    def evidence(self) -> ProcessEvidence:
        """Return the evidence so far."""
        said = ProcessEvidence(
            processes=1,
            version=self._version,
            plugin=self._plugin,
            over_nvlink=self._nvlink,
            devices=tuple(self._devices),
            reason=self._why(),
            trouble=tuple(self._trouble),
            comms=self._comms.known(),
        )
        return _settled(said, ranks_here(said.comms))

    def _why(self) -> str:
        if self._reason_rank == _NO_DEVICE and self._hcas:
            return f"{self._reason} that fits NCCL_IB_HCA={self._hcas}"
        return self._reason

    def _line(self, line: str) -> None:
        if "NET" in line or "network" in line or "MNNVL" in line:
            self._about_network(line)
        if "commId" in line:
            self._comms.init(line)
        if "NCCL version" in line and (found := _VERSION.search(line)):
            self._version = found[1]
        if "NCCL_IB_HCA" in line and (found := _HCAS.search(line)):
            self._hcas = _shown(found[1])
        for rank, (pattern, text) in enumerate(_REASONS[: self._reason_rank]):
            if found := pattern.search(line):
                self._reason = text.format(*map(_shown, found.groups()))
                self._reason_rank = rank
        if "NCCL WARN" in line and _NOISE not in line and (found := _WARNING.search(line)):
            self._warned(found[1])

    def _about_network(self, line: str) -> None:
        if found := _CHANNEL.search(line):
            tcp = found[1] == "NET" and found[2] == SOCKET
            self._comms.channel(line, tcp=tcp, gdr=not tcp and found[3] is not None)
        elif _NVLINK.search(line):
            self._nvlink += 1
        elif found := _NETWORK.search(line):
            self._comms.word(line, _shown(found[1]))
        elif found := _PLUGIN.search(line):
            self._plugin = _shown(found[1])
        elif found := _LIST.search(line):
            for name, port in _DEVICE.findall(found[1]):
                if len(self._devices) < DEVICES_MAX:
                    self._devices[f"{name}:{port}"] = None

    def _warned(self, text: str) -> None:
        line = _shown(text, _TROUBLE_CHARS)
        if len(self._trouble) < TROUBLE_MAX and line not in self._trouble and _TROUBLE.search(line):
            self._trouble.append(line)


def merged(found: Iterable[ProcessEvidence]) -> NcclEvidence:
    """Combine the evidence of all processes of a node."""
    processes = list(found)
    if not processes:
        return NcclEvidence()
    here = ranks_here(comm for one in processes for comm in one.comms)
    every = [_settled(one, here) for one in processes]
    # Prefer a process on sockets, if there is one.
    chief = next((one for one in every if one.sockets), None) or max(
        every, key=lambda one: (one.over_rdma, bool(one.network), one.decided)
    )
    return NcclEvidence(
        processes=sum(one.processes for one in every),
        decided=sum(one.decided for one in every),
        sockets=sum(one.sockets for one in every),
        version=next((one.version for one in every if one.version), ""),
        network=chief.network,
        plugin=chief.plugin,
        over_rdma=sum(one.over_rdma for one in every),
        over_tcp=sum(one.over_tcp for one in every),
        over_nvlink=sum(one.over_nvlink for one in every),
        gdr=sum(one.gdr for one in every),
        devices=tuple(dict.fromkeys(name for one in every for name in one.devices))[:DEVICES_MAX],
        reason=next((one.reason for one in every if one.reason), ""),
        trouble=tuple(dict.fromkeys(said for one in every for said in one.trouble))[:TROUBLE_MAX],
    )


def _settled(one: ProcessEvidence, here: Here) -> ProcessEvidence:
    """Reduce the evidence to traffic between hosts. `here` is of all processes of this host."""
    known = between(one.comms, here)
    local = bool(one.comms) and known.local
    channels = known.rdma or known.tcp
    sockets = known.sockets or not (known.word or channels or local or one.plugin != SOCKET)
    evidence = known.word or channels or one.plugin or one.devices
    return msgspec.structs.replace(
        one,
        decided=int(bool(evidence) and not local),
        sockets=int(sockets),
        network=known.word,
        over_rdma=known.rdma,
        over_tcp=known.tcp,
        gdr=known.gdr,
        reason=one.reason if sockets else "",
    )


def _shown(text: str, most: int = _WORD_CHARS) -> str:
    """Return the text safe for a terminal, whatever a process wrote."""
    return "".join(c if c.isprintable() else "?" for c in text.strip())[:most]
