"""Task state and task reports, derived from the status of the task's shim."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from agent.core.network_phase import NetworkPhase, needed
from agent.core.shim_protocol import (
    ShimExit,
    ShimFingerprint,
    ShimPhase,
    ShimRank,
    ShimStartMethod,
    ShimStatus,
)
from agent.core.state import HeldTask, State
from muster.protocol.ids import TaskId
from muster.protocol.instant import Instant
from muster.protocol.link.codec import FRAME_BYTES_MAX
from muster.protocol.link.control_channel import (
    Fingerprint,
    Prepared,
    RankReport,
    Refusal,
    TaskReport,
)
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.hangs import RankActivity
from muster.protocol.observations.hardware_events import OOM
from muster.protocol.observations.interfaces import Interface, InterfaceKind
from muster.protocol.observations.ranks_start import RanksStart
from muster.protocol.observations.tasks import Checkpoint, TaskObservations
from muster.protocol.outcome import ExitStatus
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState
from muster.protocol.text import EPILOG, PROLOG

PHASES: Final[dict[ShimPhase, frozenset[ShimPhase]]] = {
    ShimPhase.NEW: frozenset(
        {ShimPhase.PREPARING, ShimPhase.REFUSED, ShimPhase.STOPPING, ShimPhase.CLEANED}
    ),
    ShimPhase.PREPARING: frozenset(
        {ShimPhase.PREPARED, ShimPhase.REFUSED, ShimPhase.STOPPING, ShimPhase.CLEANED}
    ),
    ShimPhase.PREPARED: frozenset(
        {
            ShimPhase.RUNNING,
            ShimPhase.REFUSED,
            ShimPhase.STOPPING,
            ShimPhase.EXITED,
            ShimPhase.CLEANED,
        }
    ),
    ShimPhase.REFUSED: frozenset(),
    ShimPhase.RUNNING: frozenset({ShimPhase.STOPPING, ShimPhase.EXITED, ShimPhase.CLEANED}),
    # The task may have been refused, or its bootstrap may have died at the gate, before the stop.
    ShimPhase.STOPPING: frozenset(
        {ShimPhase.EXITED, ShimPhase.REFUSED, ShimPhase.CLEANED, ShimPhase.STUCK}
    ),
    ShimPhase.EXITED: frozenset({ShimPhase.REFUSED, ShimPhase.CLEANED, ShimPhase.STUCK}),
    ShimPhase.STUCK: frozenset({ShimPhase.REFUSED, ShimPhase.CLEANED}),
    ShimPhase.CLEANED: frozenset(),
}
"""The transitions of a shim's phase. The agent may miss intermediate phases; no phase goes back."""

NODE_FAULTS: Final = frozenset(
    {
        RefusalCode.SPAWN_FAILED,
        RefusalCode.NO_SPACE,
        RefusalCode.NO_PORTS,
        RefusalCode.NO_DESCRIPTORS,
    }
)
"""Refusals that are the node's fault, whatever the job: another node may do better."""

_ON_EVERY_MACHINE: Final = frozenset({InterfaceKind.LOOPBACK, InterfaceKind.VIRTUAL})
"""Kinds whose addresses repeat on every machine: docker's bridge is 172.17.0.1 everywhere. A veth
is not among them, because it may be a container's only way out."""

_SIGKILL: Final = 9

ERRORS_MAX: Final = 4
"""Reports quote the errors of at most this many ranks that failed by themselves. The first may have
died of another rank's failure, and the errors of a thousand would not fit a frame."""

HELLO_BYTES: Final = FRAME_BYTES_MAX * 3 // 4
"""The part of a Hello that is for its tasks; the rest is for the node."""
_BARE_BYTES: Final = FRAME_BYTES_MAX * 5 // 32
"""The part beyond that for ended tasks with just their end."""


def _reachable(old: ShimPhase) -> frozenset[ShimPhase]:
    reachable, frontier = {old}, [old]
    while frontier:
        for phase in PHASES[frontier.pop()] - reachable:
            reachable.add(phase)
            frontier.append(phase)
    return frozenset(reachable)


LATER: Final = {phase: _reachable(phase) for phase in ShimPhase}
"""The phases that can follow a phase, in any number of steps, including itself."""


def started(status: ShimStatus) -> bool:
    """True if the program has been started, even if it has ended since."""
    return status.running_s is not None or status.exit is not None


def succeeded(status: ShimStatus) -> bool:
    """True if the program has ended successfully."""
    return status.exit is not None and not status.exit.failed


def task_state(held: HeldTask) -> TaskState:
    """The state of a task in the terms of the control protocol."""
    status = held.status
    if status is None:
        return TaskState.ASSIGNED if held.failure is None else TaskState.CLEANED
    match status.phase:
        case ShimPhase.NEW | ShimPhase.PREPARING:
            return TaskState.ASSIGNED
        case ShimPhase.PREPARED:
            if held.paths is None or held.fabric is None:
                return TaskState.ASSIGNED
            return TaskState.ARRANGED if _arranged(held) else TaskState.PREPARED
        case ShimPhase.RUNNING:
            return TaskState.STARTED
        case ShimPhase.STOPPING | ShimPhase.STUCK:
            return TaskState.STARTED if started(status) else TaskState.ASSIGNED
        case ShimPhase.EXITED:
            return TaskState.EXITED
        case ShimPhase.CLEANED | ShimPhase.REFUSED:
            # A shim refuses only after it has cleaned up.
            if held.network is NetworkPhase.NONE:
                return TaskState.CLEANED
            return TaskState.EXITED if started(status) else TaskState.ASSIGNED
        case _:
            assert_never(status.phase)


def _arranged(held: HeldTask) -> bool:
    if held.arrange is None or held.network is NetworkPhase.LEFT:
        return False
    return held.network is NetworkPhase.READY or not needed(held.arrange)


def report(state: State, held: HeldTask, now: Instant) -> TaskReport:
    """The complete report of a task."""
    status = held.status
    if status is None:
        state_of = task_state(held)
        return TaskReport(
            held.id,
            state_of,
            refusal=held.failure,
            warnings=_warnings(held),
            no_output=held.no_output,
            stop_stored=held.stop_stored,
        )
    running_s = status.running_s or 0.0
    if status.phase is ShimPhase.RUNNING:
        running_s += max(0.0, now.mono - held.status_at)
    return TaskReport(
        task=held.id,
        state=task_state(held),
        refusal=_refusal(status) or held.denied,
        prepared=_prepared(state, held, status),
        listening=status.listening,
        ranks=_ranks(status, _kills(state, held.id)),
        exit=_exit_status(status.exit),
        first_failed=status.first_failed,
        running_s=running_s,
        stopped_by=status.stopped_by or "",
        launcher_said=status.launcher_said or "",
        warnings=_warnings(held),
        survivors=status.survivors if status.phase is ShimPhase.STUCK else (),
        doomed=status.doomed,
        no_output=held.no_output,
        start=_start(status.start_method),
        observed=_observed(held, now),
        terms=_terms(held),
        stop_stored=held.stop_stored,
        warned_s=status.warned_s,
    )


def _warnings(held: HeldTask) -> tuple[str, ...]:
    """The warnings of a task, with the lines of the site's programs."""
    prolog = (f"{PROLOG}{held.prolog}",) if held.prolog else ()
    epilog = (f"{EPILOG}{held.epilog}",) if held.epilog else ()
    return (*prolog, *held.warnings, *epilog)


def _terms(held: HeldTask) -> int:
    stored = None if held.stored is None else held.stored.terms
    return 0 if stored is None else stored.number


def reports(state: State, now: Instant) -> tuple[TaskReport, ...]:
    """The reports of all tasks, cut to fit one frame. Running tasks and the latest ones come whole,
    others with just their end, and ended ones are left out once there is no room. After the welcome
    the agent sends a whole report of each."""
    room = HELLO_BYTES
    fits: dict[TaskId, TaskReport] = {}
    last_first = reversed(state.tasks.values())
    for held in sorted(last_first, key=_ended):
        if room <= -_BARE_BYTES and _ended(held):
            break  # all others have ended, too
        whole = report(state, held, now)
        said = next((it for it in (whole, _quiet(whole)) if _size(it) <= room), _bare(whole))
        room -= _size(said)
        fits[held.id] = said
    return tuple(fits[task] for task in state.tasks if task in fits)


def _ended(held: HeldTask) -> bool:
    return held.status is None or held.status.phase.terminal


def _quiet(said: TaskReport) -> TaskReport:
    """A report without the output of programs and the kernel."""
    ranks = tuple(
        msgspec.structs.replace(rank, error="", stderr="", kernel="", oom_said="")
        for rank in said.ranks
    )
    return msgspec.structs.replace(said, ranks=ranks, launcher_said="")


def _bare(said: TaskReport) -> TaskReport:
    return msgspec.structs.replace(said, prepared=None, ranks=(), launcher_said="")


def _size(said: TaskReport) -> int:
    return len(msgspec.json.encode(said))


def _kills(state: State, task: TaskId) -> dict[int, str]:
    """Kernel messages about processes killed for lack of memory, by pid, except those of other
    tasks."""
    return {
        event.pid: event.text
        for event in state.observed.hardware
        if event.code == OOM and event.task in (None, task)
    }


def _was_killed(rank: ShimRank, kills: dict[int, str]) -> bool:
    """True if the kernel killed the rank for lack of memory. If the cgroup does not count its
    kills, the kernel log is the only source."""
    if rank.exit is None or rank.exit.signal != _SIGKILL or rank.stopped:
        return rank.oom
    return rank.oom or rank.pid in kills


def _start(found: ShimStartMethod | None) -> RanksStart | None:
    if found is None:
        return None
    seconds = (found.import_s, found.preload_s, found.check_s, found.fork_s)
    return RanksStart(found.method, found.why, *seconds)


def _observed(held: HeldTask, now: Instant) -> TaskObservations:
    return TaskObservations(
        traffic=held.traffic,
        silent=held.silent,
        checkpoint=_checkpoint(held, now),
        activity=_activity(held, now),
        idle_s=_idle_s(held, now),
    )


def _checkpoint(held: HeldTask, now: Instant) -> Checkpoint | None:
    if held.checkpoint is None:
        return None
    fresh, name, at = held.checkpoint
    return Checkpoint(fresh, name, max(0.0, now.mono - at))


def _idle_s(held: HeldTask, now: Instant) -> float | None:
    if held.idle_since is None or task_state(held) is not TaskState.STARTED:
        return None
    return max(0.0, now.mono - held.idle_since)


def _activity(held: HeldTask, now: Instant) -> tuple[RankActivity, ...]:
    if task_state(held) is not TaskState.STARTED:
        return ()
    return tuple(rank.later(max(0.0, now.mono - held.activity_at)) for rank in held.activity)


def _ranks(status: ShimStatus, kills: dict[int, str]) -> tuple[RankReport, ...]:
    failed = sorted(
        (_at_s(rank), rank.rank != status.first_failed, rank.rank)
        for rank in status.ranks
        if _failed(rank)
    )
    quoted = {number for _, _, number in failed[:ERRORS_MAX]}
    return tuple(
        RankReport(
            rank.rank,
            rank.local_rank,
            rank.pid or 0,
            exit=_exit_status(rank.exit),
            # For a rank that succeeded, `error` is one that it ignored.
            error=(rank.error or "") if rank.rank in quoted or _ok(rank) else "",
            stderr=(rank.stderr_tail or "") if rank.rank in quoted else "",
            at_s=rank.exit.at_s if rank.exit is not None else None,
            stopped=rank.stopped,
            disk_full=rank.disk_full,
            oom=_was_killed(rank, kills),
            oom_said=kills.get(rank.pid or 0, "") if _was_killed(rank, kills) else "",
            kernel=(rank.kernel or "") if rank.rank in quoted else "",
            memory_max=(status.memory_max or 0) if _failed(rank) else 0,
        )
        for rank in status.ranks
    )


def _failed(rank: ShimRank) -> bool:
    """True if the rank has failed by itself."""
    return rank.exit is not None and rank.exit.failed and not rank.stopped


def _ok(rank: ShimRank) -> bool:
    return rank.exit is not None and not rank.exit.failed


def _at_s(rank: ShimRank) -> float:
    return (rank.exit.at_s or 0.0) if rank.exit is not None else 0.0


def _exit_status(found: ShimExit | None) -> ExitStatus | None:
    return None if found is None else ExitStatus(found.code, found.signal)


def gone(task: TaskId) -> TaskReport:
    """The report of a task of which nothing is on this node."""
    return TaskReport(task, TaskState.CLEANED, stop_stored=True)


def _refusal(status: ShimStatus) -> Refusal | None:
    if status.refusal is None:
        return None
    code = status.refusal.code
    return Refusal(code, status.refusal.text, node_fault=code in NODE_FAULTS)


def _prepared(state: State, held: HeldTask, status: ShimStatus) -> Prepared | None:
    at_gate = status.phase is ShimPhase.PREPARED and held.fabric is not None
    if held.paths is None or not (at_gate or started(status)):
        return None
    inventory = state.observed.inventory
    return Prepared(
        address=inventory.address,
        ports=held.ports,
        gpus=inventory.gpus,
        log_dir=status.log_dir,
        workdir=held.paths.workdir,
        scratch=held.paths.scratch,
        output=held.paths.output,
        hostfile=held.paths.hostfile,
        interface=inventory.interface,
        fingerprint=_fingerprint(status.fingerprint),
        boot_s=status.boot_s or 0.0,
        hostname=inventory.hostname,
        addresses=_addresses(inventory.interfaces),
        # Once the gang has started, the coordinator does not need it any more.
        fabric=None if started(status) else _fabric(held),
        nccl=held.paths.nccl,
        peer_port=state.identity.peer_port,
    )


def _fabric(held: HeldTask) -> NodeFabric | None:
    """The node's fabric. The distances of the GPUs from the ports matter only if the task has some
    of them."""
    if held.fabric is None or held.gpus or not held.fabric.gpus:
        return held.fabric
    return msgspec.structs.replace(held.fabric, gpus=())


def _addresses(interfaces: tuple[Interface, ...]) -> tuple[str, ...]:
    """The node's addresses without prefix lengths, except those that repeat on every machine."""
    return tuple(
        text.partition("/")[0]
        for face in interfaces
        if face.kind not in _ON_EVERY_MACHINE
        for text in face.addresses
    )


def _fingerprint(found: ShimFingerprint | None) -> Fingerprint:
    if found is None:
        return Fingerprint()
    return Fingerprint(found.python, found.torch, found.cuda or "", found.nccl or "")
