"""A fence around the ports of gangs: nftables, in a table of this agent's own.

On the gang's nodes only the job's user may connect to a leased port, and from other machines only
the gang's addresses: none until they are known, so a gang of one node stays closed. Only that
user's listener can answer. Each change replaces the whole table, so nothing of an ended task stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Never

import structlog

from agent.config import AgentConfig
from agent.core.record import TaskRecord
from agent.gang.fence_claim import claim, claimed
from agent.shims.apart import ask_nft, run_nft
from agent.taskdirs.taskdirs import TaskDirs, user_of
from muster.daemon.errors import DaemonError, FileError
from muster.daemon.listen_address import is_address
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, PrepareTask
from muster.protocol.link.terms import Terms

LOOK_S: Final = 60.0
"""Seconds between two checks that the table is there."""
_LINK_LOCAL: Final = {4: "169.254.0.0/16", 6: "fe80::/10"}
_MARK: Final = 'comment "task '
_TABLE: Final = re.compile(r"^table inet (muster_[0-9a-f]{12})$", re.MULTILINE)
# Only the beginning of a connection: the rest belongs to one that was let in.
_NEW: Final = "tcp flags & (syn | ack) == syn"
_ANSWER: Final = "tcp flags & (syn | ack) == (syn | ack)"
_log = structlog.get_logger("agent.gang.fence")


class FenceError(DaemonError):
    """The fence that the site demands cannot be written. The text is a sentence."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A task: the user of its job, the ports leased on this node, the gang's addresses (() until
    they are known), and addresses and port of its rendezvous (None on one node).

    `grows`: nodes may join the gang. `open`: a coordinator of an earlier release does not say which
    ones have, so other machines are let in.
    """

    uid: int
    ports: tuple[int, ...]
    members: tuple[str, ...] = ()
    rendezvous: tuple[tuple[str, ...], int] | None = None
    grows: bool = False
    open: bool = False


def leased(uid: int, ports: tuple[int, ...], prepare: PrepareTask) -> Fenced:
    """The fence of a task before its gang is known. Of a gang that runs already, the rendezvous is:
    nobody else on this node connects to it once the launcher's node lets this node in."""
    meets = prepare.meets
    rendezvous = None if meets is None else (_addresses(meets[0]), meets[1])
    return Fenced(uid, ports, rendezvous=rendezvous, grows=prepare.grows)


def in_gang(fenced: Fenced, plan: ArrangeTask, terms: Terms | None = None) -> Fenced:
    """The fence of a task whose gang is known, by the newest of its terms (None: the plan's). A
    gang of one node has no table of hosts."""
    newest = terms or plan.terms
    admits = () if newest is None else _addresses(newest.admits)
    fenced = replace(fenced, members=admits, open=fenced.grows and not admits)
    if not plan.hosts:
        return fenced
    members = [address for _, address in plan.hosts]
    members += [address for more in plan.others.values() for address in more]
    first = plan.hosts[0][1]
    launcher = _addresses([first, *plan.others.get(first, ())])
    port = plan.env.get("MASTER_PORT", "")
    rendezvous = (launcher, int(port)) if launcher and port.isdecimal() else None
    return replace(fenced, members=admits or _addresses(members), rendezvous=rendezvous)


def _addresses(found: Iterable[str]) -> tuple[str, ...]:
    """The addresses among these texts, each once, without zones, which nft does not know."""
    return tuple(filter(is_address, dict.fromkeys(it.partition("%")[0] for it in found)))


def fenced_in(folders: TaskDirs) -> dict[TaskId, Fenced]:
    """The fences of the tasks that an earlier agent process left. Blocks."""
    found = {}
    for task in folders.found():
        manifest = folders.manifest(task)
        if manifest is None:
            continue
        with contextlib.suppress(OSError):
            uid = user_of(folders.path(task)).uid
            fenced = leased(uid, manifest.ports, manifest.prepare)
            found[task] = _by_record(fenced, manifest.record)
    return found


def _by_record(fenced: Fenced, record: TaskRecord | None) -> Fenced:
    if record is None or record.plan is None:
        return fenced
    return in_gang(fenced, record.plan, record.terms)


def ruleset(table: str, tasks: Mapping[TaskId, Fenced]) -> str:
    """The input of nft that replaces the table; without tasks, the table is removed."""
    lines = [f"table inet {table}", f"delete table inet {table}"]
    if tasks:
        lines += [f"table inet {table} {{"]
        for chain, rules in (("input", _into), ("forward", _through), ("output", _out_of)):
            lines += [f"chain {chain} {{", f"type filter hook {chain} priority -5; policy accept;"]
            for task, fenced in tasks.items():
                lines += [f'{rule} {_MARK}{task}"' for rule in rules(fenced)]
            lines.append("}")
        lines.append("}")
    return "\n".join([*lines, ""])


def _into(fenced: Fenced) -> Iterator[str]:
    """From other machines only the gang. Until it is known, the ports look closed, so that agents
    of nodes that are early try again at once.

    Nor at a link-local address: there the gang's nodes do not hold back their other users.
    """
    if not fenced.ports or fenced.open:
        return
    verdict = "drop" if fenced.members else "reject with tcp reset"
    to = f'iifname != "lo" tcp dport {_set(fenced.ports)} {_NEW}'
    for family, version in (("ip", 4), ("ip6", 6)):
        if gang := _of(version, fenced.members):
            yield f"{to} {family} saddr != {_set(gang)} {verdict}"
            yield f"{to} {family} daddr {_LINK_LOCAL[version]} {verdict}"
        else:
            yield f"{to} meta nfproto ipv{version} {verdict}"


def _out_of(fenced: Fenced) -> Iterator[str]:
    """From this machine only the job's user; root is the agent, which checks the rendezvous.

    Another user may win a leased port between the agent's close and the launcher's bind: such a
    listener completes no handshake. Nor does one who connects from that port to a node that
    connects to it at the same moment. A packet without a socket, such as a SYN cookie, has no user
    and is refused, too.
    """
    reset = "reject with tcp reset"
    if fenced.ports:
        ports = _set(fenced.ports)
        yield from _by_user(fenced, f'oifname "lo" tcp dport {ports} {_NEW}', reset)
        yield from _by_user(fenced, f"tcp sport {ports} {_NEW}", reset)
        yield from _by_user(fenced, f"tcp sport {ports} {_ANSWER}", "drop")
    for match in _to_launcher(fenced):
        yield from _by_user(fenced, match, reset)


def _through(fenced: Fenced) -> Iterator[str]:
    """Nobody in a network namespace of this machine, whose packets would have the address of a
    node of the gang, connects to the rendezvous, or from a leased port."""
    if fenced.ports:
        yield f"tcp sport {_set(fenced.ports)} {_NEW} reject with tcp reset"
    for match in _to_launcher(fenced):
        yield f"{match} reject with tcp reset"


def _to_launcher(fenced: Fenced) -> Iterator[str]:
    if fenced.rendezvous is None:
        return
    launcher, port = fenced.rendezvous
    for family, version in (("ip", 4), ("ip6", 6)):
        if to := _of(version, launcher):
            yield f"{family} daddr {_set(to)} tcp dport {port} {_NEW}"


def _by_user(fenced: Fenced, match: str, verdict: str) -> Iterator[str]:
    yield f"{match} meta skuid {_set(sorted({0, fenced.uid}))} accept"
    yield f"{match} {verdict}"


def _of(version: int, addresses: tuple[str, ...]) -> list[str]:
    return [it for it in addresses if ipaddress.ip_address(it).version == version]


def _set(members: object) -> str:
    assert isinstance(members, list | tuple)
    return f"{{ {', '.join(str(it) for it in members)} }}"


def fence_of(config: AgentConfig, agent_id: str) -> Fence:
    """The fence that an agent with this configuration has."""
    must, alone = config.fence is True, not config.shared_host
    return Fence(agent_id, on=config.fences, must=must, alone=alone)


class Fence:
    """The fences of all tasks of one agent."""

    def __init__(self, agent_id: str, *, on: bool, must: bool, alone: bool = False) -> None:
        """`must`: an agent that cannot write its table does not start, and starts no task. `alone`:
        tables that no living agent has claimed are of those that have been here before."""
        self._table = f"muster_{agent_id[:12]}"
        self._alone = alone
        self._on = on
        self._must = must
        self._tasks: dict[TaskId, Fenced] = {}
        self._turn = asyncio.Lock()
        # Reason of the last failed write, or "".
        self._problem = ""
        self._claim: socket.socket | None = None

    def close(self) -> None:
        """At the agent's end. The table stays: jobs go on behind it."""
        if self._claim is not None:
            self._claim.close()

    def problem(self) -> str:
        """Return why the table could not be written last, or ""."""
        return self._problem if self._on else ""

    async def begin(self, tasks: Mapping[TaskId, Fenced]) -> None:
        """At the agent's start: keep the fences of these tasks and remove all others, also if it is
        switched off now, or the agent has lost its folder since. Raises FileError."""
        self._tasks = dict(tasks) if self._on else {}
        if os.geteuid() != 0:
            return
        try:
            self._claim = self._claim or claim(self._table)
        except OSError as error:
            _log.warning("fence_not_claimed", table=self._table, why=error.strerror)
        problem = await self._write(await asyncio.to_thread(self._left) if self._alone else "")
        if not problem or not self._on:
            return
        if self._must:
            raise FileError(f"fence: {problem}; install nftables, or set fence to false")
        _log.warning("rendezvous_not_fenced", why=problem)

    async def lease(self, task: TaskId, fenced: Fenced) -> None:
        """Before a task starts: only its user connects to its ports, and only on this node. Raises
        FenceError."""
        self._demand(await self._put(task, fenced))

    async def arrange(self, task: TaskId, plan: ArrangeTask) -> None:
        """Once its gang is known: only its addresses come in. Raises FenceError."""
        if task in self._tasks:
            self._demand(await self._put(task, in_gang(self._tasks[task], plan)))

    async def follow(self, task: TaskId, record: TaskRecord) -> None:
        """Before this record is stored and reported: who comes in follows its plan and terms. If
        that cannot be written, a node that joins stays out, by the table that is there."""
        if task in self._tasks:
            await self._put(task, _by_record(self._tasks[task], record))

    async def drop(self, task: TaskId) -> None:
        """Remove the fence of a task."""
        if self._tasks.pop(task, None) is not None:
            await self._tell()

    def _demand(self, problem: str) -> None:
        if problem and self._must:
            raise FenceError(
                f"The fence of the rendezvous cannot be written: {problem}, and `fence` is true "
                "in the agent's configuration; repair nftables on this node, or take `fence` out."
            )

    async def _put(self, task: TaskId, fenced: Fenced) -> str:
        """Fence a task; returns why that is impossible, or ""."""
        if not self._on:
            return ""
        if self._tasks.get(task) != fenced:
            self._tasks[task] = fenced
            return await self._tell()
        # It may just be written.
        async with self._turn:
            problem = self._problem
        return await self._tell() if problem else ""

    async def _tell(self) -> str:
        if problem := await self._write():
            _log.error("rendezvous_not_fenced", why=problem)
        return problem

    async def _write(self, more: str = "") -> str:
        """Write the table; returns why that is impossible, or ""."""
        async with self._turn:
            text = more + self._ruleset()
            self._problem = await asyncio.to_thread(run_nft, "-f", "-", text=text)
            return self._problem

    def _left(self) -> str:
        """The rules that remove the tables of all agents that live no more. Blocks."""
        found, _ = ask_nft("list", "tables")
        try:
            others = set(_TABLE.findall(found)) - claimed() - {self._table}
        except OSError as error:
            _log.warning("earlier_fences_not_removed", why=error.strerror)
            return ""
        return "".join(ruleset(table, {}) for table in sorted(others))

    def _ruleset(self) -> str:
        return ruleset(self._table, self._tasks)

    async def watch(self) -> Never:
        """Restore the table if somebody else has changed or removed it."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Write the table if that has failed, and restore it if it lacks rules."""
        before, why = self._problem, ""
        if not before:
            if not (self._on and self._tasks):
                return
            async with self._turn:
                arguments = ("list", "table", "inet", self._table)
                found, why = await asyncio.to_thread(ask_nft, *arguments)
            if found.count(_MARK) == self._ruleset().count(_MARK):
                return
        problem = await self._write()
        if before:
            # The failure has been logged.
            if not problem and self._on:
                _log.info("rendezvous_fenced")
            return
        _log.warning(
            "fence_was_gone",
            why=why or "rules were missing",
            done=f"nothing: {problem}" if problem else "restored",
        )
