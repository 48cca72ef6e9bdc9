"""Replay of the disk: the whole state, and each archived job by itself."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TypeVar

from muster.protocol.ids import JobId
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Job, Node, State
from orchestrator.core.nodes.registration import lasting
from tests.simulation.disk import Disk
from tests.simulation.world import Violation

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass
class Replay:
    retraced: set[JobId] = field(default_factory=set)

    def check(self, state: State, disk: Disk) -> None:
        """Raise Violation where what is on disk amounts to something else."""
        self._compare(state, disk.replay())
        self._archived(state, disk)

    def _archived(self, state: State, disk: Disk) -> None:
        """Check a disk on which all ended jobs are archived: the rest holds the rest of the state,
        and each ended job can be rebuilt from its own facts."""
        over = {name for name, job in state.jobs.items() if job.phase is JobPhase.ENDED}
        live = disk.replay(without=over)
        jobs = {name: job for name, job in state.jobs.items() if name not in over}
        keys = {key: found for key, found in state.keys.items() if found[0] not in over}
        self._compare(replace(state, jobs=jobs, keys=keys, next_job=live.next_job), live)
        histories = disk.histories(over - self.retraced)
        self.retraced |= over
        for name, facts in histories.items():
            wanted, found = _without_the_seen(deepcopy(state.jobs[name])), replay_job(facts)
            if found != wanted:
                raise Violation(f"archive: job {name} was {wanted}, and its facts say {found}")

    def _compare(self, state: State, replayed: State) -> None:
        for name, wanted, found in (
            ("epoch", state.epoch, replayed.epoch),
            ("next job", state.next_job, replayed.next_job),
            ("jobs", state.jobs, replayed.jobs),
            ("keys", state.keys, replayed.keys),
            ("awaited", state.awaited, replayed.awaited),
            ("elastic gangs", state.elastic, replayed.elastic),
            ("held", state.held, replayed.held),
            ("queues", _filled(state.queues), _filled(replayed.queues)),
            ("ports", _filled(state.ports), _filled(replayed.ports)),
            ("nodes", _lasting(state, state), _lasting(replayed, state)),
        ):
            if wanted != found and _settled(wanted) != _settled(found):
                raise Violation(f"replay: {name} are {found} on disk and {wanted} in memory")


def _settled(jobs: object) -> object:
    """Without what is seen of tasks that have not ended: that is not on disk."""
    if not isinstance(jobs, dict):
        return jobs
    jobs = deepcopy(jobs)
    for job in jobs.values():
        if not isinstance(job, Job):
            continue
        for attempt in _without_the_seen(job).attempts:
            for task in attempt.tasks:
                if task.exit is None:
                    task.traffic = None
    return jobs


def _without_the_seen(job: Job) -> Job:
    """Without what a process knows of it for itself."""
    job.left_out_to = 0  # of no use to one that has ended
    for place, webhook in job.queued_webhooks.items():
        job.queued_webhooks[place] = webhook._replace(problem="")
    for attempt in job.attempts:
        for task in attempt.tasks:
            task.activity, task.activity_at, task.silent = (), 0.0, ()
            task.idle_since = task.mute_at = None
            task.terms, task.terms_at = 0, 0.0
    return job


def _filled(table: dict[_Key, _Value]) -> dict[_Key, _Value]:
    return {key: value for key, value in table.items() if value}


def _lasting(state: State, current: State) -> list[tuple[object, ...]]:
    """Return what the journal has of the nodes.

    A description that `current` has and the journal does not have yet is left out.
    """
    return [
        (
            n.name,
            n.agent_id,
            n.boot_id,
            None if _unrecorded(current, n) else (n.version, lasting(n.inventory)),
            n.holders,
            n.drains,
            n.faults,
        )
        for n in state.nodes.values()
    ]


def _unrecorded(current: State, node: Node) -> bool:
    return node.name in current.nodes and current.nodes[node.name].unrecorded
