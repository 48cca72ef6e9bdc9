"""react: effects that follow from a fact, regardless of its cause. Reads the state after the
fact."""

from __future__ import annotations

import math
import posixpath
from typing import Final, assert_never

from agent.core import effects as a
from agent.core import facts as f
from agent.core.git_fetch import fetch_program
from agent.core.inputs import TaskPaths
from agent.core.network_phase import NetworkPhase, needed
from agent.core.record import TaskRecord
from agent.core.shim_protocol import (
    ShimHostfile,
    ShimHosts,
    ShimKill,
    ShimLease,
    ShimLimit,
    ShimPhase,
    ShimPlaces,
    ShimPrepare,
    ShimRelease,
    ShimStart,
    ShimStop,
)
from agent.core.state import HeldTask, State
from agent.core.task import report, succeeded, task_state
from agent.core.vouching import asks, questions
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.states import TaskState

STOPPABLE: Final = frozenset(
    {ShimPhase.NEW, ShimPhase.PREPARING, ShimPhase.PREPARED, ShimPhase.RUNNING}
)
SHORTENABLE: Final = STOPPABLE | {ShimPhase.STOPPING, ShimPhase.EXITED}
"""The phases in which a stop may still shorten the deadline: a shim whose task is ending keeps the
earlier one."""
LEASE_S_MIN: Final = 0.001
_EARLIER_S: Final = 5.0
TMPDIR_CHARS_MAX: Final = 68
"""Longer paths leave no room for the names of sockets (107 characters) that multiprocessing and
torch create in TMPDIR."""


def react(state: State, fact: f.Fact, now: Instant) -> list[a.Effect]:
    match fact:
        # The most frequent fact stands first, because a match tries its cases in order.
        case f.Heard():
            return []
        case f.ShimSeen(task) | f.TaskAdopted(task):
            held = state.tasks[task]
            restored = _restore(held)
            # Hold back a success until the names are removed: one report instead of two.
            waits = restored and held.status is not None and succeeded(held.status)
            said = [] if waits else _report(state, held, now)
            adopted = isinstance(fact, f.TaskAdopted)
            # The agent before may have stored a limit that it did not pass on.
            resumed = [*_ask_soon(held, now), *limit_command(held)] if adopted else []
            driven = _advance_shim(state, held, now)
            return [*driven, *resumed, *restored, *said, *_cleanup(held)]
        case f.RecordKept(task, record):
            held = state.tasks[task]
            # The report of the start confirms the first terms, and that of its effect most stops.
            stopped = held.confirms_end and record.stop is not None and not _is_stoppable(held)
            changed = record.plan is not None and record.terms != record.plan.terms
            said = _report(state, held, now) if stopped or changed else []
            limit = limit_command(held) if changed else []
            return [*limit, *(_open_gate(held) if held.started else []), *said]
        case f.Acknowledged():
            return [
                command for held in state.tasks.values() for command in _renew(state, held, now)
            ]
        case f.RoundBegun(task):
            held = state.tasks[task]
            if not held.awaited:
                return _renew(state, held, now)
            return [a.AskMembers(questions(state, held))]
        case f.MemberVouched(task):
            held = state.tasks[task]
            return [] if held.awaited else _renew(state, held, now)
        case f.TaskAccepted(task, prepare):
            return [a.CreateTask(task, prepare)]
        case f.GateOpened(task):
            return _open_gate(state.tasks[task])
        case f.PlanTaken(task, arrange):
            hostfile = a.SendToShim(task, ShimHostfile(arrange.hostfile))
            held = state.tasks[task]
            stored = [*_store(state, held), *_ask_soon(held, now)]
            if needed(arrange):
                return [*stored, hostfile, a.ArrangeNetwork(task, arrange)]
            # If the plan starts the task at once, the start implies that it was arranged.
            said = [] if arrange.start else _report(state, state.tasks[task], now)
            return [*stored, hostfile, *said]
        case f.TermsTaken(task):
            held = state.tasks[task]
            return [*_store(state, held), *_ask_soon(held, now)]
        case f.NetworkReady(task):
            held = state.tasks[task]
            return [*_report(state, held, now), *(_open_gate(held) if held.started else [])]
        case f.NetworkDenied(task):
            return _report(state, state.tasks[task], now)
        case f.NetworkFreed(task):
            held = state.tasks[task]
            return [*_report(state, held, now), *_cleanup(held)]
        case f.StopTaken(task, _):
            held = state.tasks[task]
            is_first = held.stored is None or held.stored.stop is None
            stored = _store(state, held) if is_first else []
            return [*_stop(held, SHORTENABLE), *stored]
        case f.TaskChanged(task):
            # The report with the task's directories comes first, and contains the change.
            held = state.tasks[task]
            return [] if held.paths is None else _report(state, held, now)
        case f.TaskDirsCreated(task) | f.TaskFailed(task):
            held = state.tasks[task]
            stored = [] if held.stop is None else _store(state, held)
            return [*stored, *_report(state, held, now), *_cleanup(held)]
        case f.Forgotten(task) | f.LogsKept(task):
            return _cleanup(state.tasks[task])
        case (
            f.LinkOpened()
            | f.LinkClosed()
            | f.Welcomed()
            | f.SettingsChanged()
            | f.StoppedUnseen()
            | f.NodeChanged()
            # The report of the task's end follows, and contains it.
            | f.EpilogSaid()
            | f.TaskGone()
        ):
            return []
        case _:
            assert_never(fact)


def _advance_shim(state: State, held: HeldTask, now: Instant) -> list[a.Effect]:
    """The commands that the shim needs in its current phase. Repeating them is harmless."""
    if held.status is None:
        return []
    if held.stop is not None:
        return _stop(held, STOPPABLE)
    if held.status.phase is not ShimPhase.NEW:
        return []
    if held.prepare is None or held.paths is None:
        # The agent died before it sent the prepare command, so the task cannot continue.
        return [a.SendToShim(held.id, ShimKill())]
    until = held.lease_until(state.acknowledged_at)
    if until <= now.mono:
        # The agent itself was suspended for so long that the task may have been placed elsewhere.
        return [a.SendToShim(held.id, ShimKill())]
    prepare = held.prepare
    who, node = state.identity, state.observed.inventory
    return [
        *_lease(held, until, now),
        a.SendToShim(
            held.id,
            ShimPrepare(
                launcher=prepare.launcher,
                cwd=held.paths.workdir,
                python=prepare.python or node.python or None,
                setup=prepare.setup or None,
                env={**_temporary(held.paths), **prepare.env},
                user=held.user,
                allow_root=who.allow_root_jobs,
                setup_timeout_s=_before(prepare.timeout_s),
                bootstrap_timeout_s=_before(prepare.timeout_s),
                hosts=_hosts(held.paths),
                places=_places(held.paths, prepare, node.python, hide=who.hide_processes),
                fetch=fetch_program(prepare.git, held.paths, who.git_config),
            ),
        ),
    ]


def _before(timeout_s: float) -> float:
    """Return a limit that passes before the coordinator's, which knows no program's last lines."""
    return timeout_s - min(_EARLIER_S, timeout_s / 10)


def _temporary(paths: TaskPaths) -> dict[str, str]:
    """The place for temporary files, which goes with the task."""
    return {"TMPDIR": paths.scratch} if len(paths.scratch) <= TMPDIR_CHARS_MAX else {}


def _hosts(paths: TaskPaths) -> ShimHosts | None:
    return ShimHosts(paths.hosts, paths.hosts_of) if paths.hosts else None


def _places(
    paths: TaskPaths, prepare: PrepareTask, python: str, *, hide: bool
) -> ShimPlaces | None:
    """The places of the job alone, in which the folders that Muster and the job name are shown."""
    if not paths.tmp:
        return ShimPlaces(hide=True) if hide else None
    folder, name = posixpath.split(prepare.python or python)
    prefix = (
        posixpath.dirname(folder) if posixpath.basename(folder) == "bin" else f"{folder}/{name}"
    )
    task = posixpath.dirname(paths.hostfile)
    shown = [path for path in (task, paths.output, paths.workdir, prefix) if path]
    made = [prepare.checkpoint_dir] if prepare.checkpoint_dir else []
    return ShimPlaces(paths.tmp, shown, made, hide)


def _renew(state: State, held: HeldTask, now: Instant) -> list[a.Effect]:
    if held.status is None or task_state(held) is TaskState.CLEANED:
        return []
    return _lease(held, held.lease_until(state.acknowledged_at), now)


def _ask_soon(held: HeldTask, now: Instant) -> list[a.Effect]:
    return [a.SetTimer(a.Timer.VOUCHES, now.mono)] if asks(held) else []


def _lease(held: HeldTask, until: float, now: Instant) -> list[a.Effect]:
    """Send the shim the task's lease, if it has one. Its rest is at least LEASE_S_MIN, because a
    shim takes 0 as a lease without end."""
    if math.isinf(until):
        return []
    rest_s = max(LEASE_S_MIN, until - now.mono)
    return [a.SendToShim(held.id, ShimLease(rest_s, until=until))]


def _open_gate(held: HeldTask) -> list[a.Effect]:
    if held.arrange is None:
        raise AssertionError(f"task {held.id} starts without a plan")
    arrange = held.arrange
    stored = held.stored is not None and held.stored.plan is arrange
    if task_state(held) is not TaskState.ARRANGED or not stored:
        return []
    start = ShimStart(
        arrange.argv,
        arrange.env,
        arrange.listen_port,
        arrange.grace_s,
        arrange.stop_signal,
        arrange.ranks,
        arrange.interpreter,
    )
    holds = arrange.rendezvous is not None and arrange.rendezvous.launcher == held.id
    let_go: list[a.Effect] = [a.ReleasePort(held.id)] if holds else []
    # A gang of one has no traffic and no hosts table.
    gang = arrange.fabric is not None and bool(arrange.hosts)
    watch: list[a.Effect] = [a.WatchTraffic(held.id, arrange)] if gang else []
    peers: list[a.Effect] = [a.WatchPeers(held.id, arrange)] if arrange.hosts else []
    return [*watch, *peers, *let_go, *limit_command(held), a.SendToShim(held.id, start)]


def limit_command(held: HeldTask) -> list[a.Effect]:
    """Send the shim the task's time limit, as it is on disk. A task without one gets nothing
    until that changes."""
    terms = None if held.stored is None else held.stored.terms
    over = task_state(held) is TaskState.CLEANED
    if terms is None or over or (terms.limit_s is None and terms.number == 1):
        return []
    warn_signal = terms.warn_signal or None
    limit = ShimLimit(terms.number, terms.limit_s, terms.warn_s, warn_signal)
    return [a.SendToShim(held.id, limit)]


def _is_stoppable(held: HeldTask) -> bool:
    return held.status is not None and held.status.phase in STOPPABLE


def _store(state: State, held: HeldTask) -> list[a.Effect]:
    """Store what the coordinator has said of the task, once the task has a folder."""
    if held.paths is None:
        return []
    boot = state.identity.boot_id
    record = TaskRecord(boot, held.cluster, held.arrange, held.terms, held.stop)
    return [a.StoreRecord(held.id, record)]


def _restore(held: HeldTask) -> list[a.Effect]:
    """Undo the network once no process of the task can run: until then it needs the names."""
    if held.status is None or not held.status.phase.terminal or held.network is NetworkPhase.NONE:
        return []
    return [a.RestoreNetwork(held.id)]


def _stop(held: HeldTask, phases: frozenset[ShimPhase]) -> list[a.Effect]:
    if held.stop is None or held.status is None:
        return []
    if held.stop.force:
        return [a.SendToShim(held.id, ShimKill())]
    if held.status.phase not in phases:
        return []
    return [a.SendToShim(held.id, ShimStop(held.stop.signal, held.stop.grace_s))]


def _report(state: State, held: HeldTask, now: Instant) -> list[a.Effect]:
    return [a.SendReport(report(state, held, now))] if state.welcomed else []


def _cleanup(held: HeldTask) -> list[a.Effect]:
    """Remove the task once the coordinator has its end and all of its log. A task that wrote
    nothing has no log to store."""
    if not held.forgotten or task_state(held) is not TaskState.CLEANED:
        return []
    found: list[a.Effect] = []
    if held.status is not None:
        found.append(a.SendToShim(held.id, ShimRelease()))
    if held.logs_stored or held.no_output:
        found.append(a.RemoveTask(held.id))
    return found
