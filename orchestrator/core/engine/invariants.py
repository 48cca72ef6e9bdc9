"""Invariants of the coordinator's state. Pure; reads, changes nothing.

The simulator checks them after every turn. A test of any part of the core can, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.protocol.ids import JobId, NodeName
from muster.protocol.states import TaskState
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.plan import WaitingIndex
from orchestrator.core.model.state import Attempt, Job, Node, Share, State, Task
from orchestrator.core.model.task import OVER, reached
from orchestrator.core.model.user_webhooks import UserWebhooks
from orchestrator.core.scheduling.gpus import free_cpus, free_memory, share_of


def check(state: State) -> list[str]:
    """Return each violation as a sentence. Empty if the state is consistent."""
    return [*_jobs(state), *_queues(state), *_nodes(state), *_ports(state), *_sessions(state)]


def _jobs(state: State) -> Iterator[str]:
    for number, job in state.jobs.items():
        if number != job.id or number >= state.next_job:
            yield f"job {job.id} is kept as {number}, and the next one will be {state.next_job}"
        yield from _job(job)
    if state.webhook_jobs != {number for number, job in state.jobs.items() if job.queued_webhooks}:
        yield f"webhooks are queued for {sorted(state.webhook_jobs)}, and others have notices"
    waiting: dict[str, UserWebhooks] = {}
    for job in state.jobs.values():
        if job.queued_webhooks:
            found = waiting.setdefault(job.user, UserWebhooks())
            found.add(job.id, job.spec_bytes, len(job.queued_webhooks))
    if state.queued_webhooks != waiting:
        yield f"notices by user are {waiting}, and {state.queued_webhooks} are counted"
    live: dict[str, int] = {}
    for job in state.jobs.values():
        if job.phase is not JobPhase.ENDED:
            live[job.user] = live.get(job.user, 0) + job.spec_bytes
    if state.spec_bytes != live:
        yield f"specifications have {live} bytes, and {state.spec_bytes} are counted"
    for number in state.running:
        attempt = state.jobs[number].current
        if attempt is None or attempt.phase is not AttemptPhase.RUNNING:
            yield f"job {number} is said to run, and its attempt is {_number(attempt)}"
    for (user, key), (owner, _) in state.keys.items():
        if owner not in state.jobs:
            yield f"the key {key!r} of {user} leads to job {owner}, which does not exist"


def _job(job: Job) -> Iterator[str]:
    current = job.current
    if (job.phase is JobPhase.ENDED) != (job.cause is not None):
        yield f"job {job.id} is {job.phase.value} and its cause is {job.cause}"
    if (job.phase is JobPhase.ACTIVE) != (current is not None):
        yield f"job {job.id} is {job.phase.value} and its current attempt is {_number(current)}"
    if (job.phase is JobPhase.HELD) != (job.hold is not None):
        yield f"job {job.id} is {job.phase.value} and is held by {job.hold}"
    if job.infra_used > job.spec.retry.infra or job.user_used > job.spec.retry.user:
        yield f"job {job.id} was tried again more often than it asked for"
    if current is not None and len(current.present) > job.spec.most_nodes:
        yield f"job {job.id} has more nodes than it may"
    before = 0
    for attempt in job.attempts:
        # Only a restore leaves numbers out.
        gap = attempt.number > before + 1 and before >= job.left_out_to
        if attempt.number <= before or gap or attempt.job != job.id:
            yield (
                f"attempt {attempt.job}.{attempt.number} of job {job.id} follows attempt {before}, "
                f"and numbers up to {job.left_out_to} were left out"
            )
        before = attempt.number
        if attempt is not current:
            yield from _closed(job, attempt)
        elif attempt.phase is AttemptPhase.CLOSED:
            yield f"the current attempt of job {job.id} is closed"
        yield from _attempt(attempt, restored=job.is_restored(attempt.number))


def _closed(job: Job, attempt: Attempt) -> Iterator[str]:
    if attempt.phase is not AttemptPhase.CLOSED:
        yield f"job {job.id} has two attempts that are not closed; one is {attempt.number}"
    if any(task.state not in OVER for task in attempt.tasks):
        yield f"attempt {job.id}.{attempt.number} is closed and not all of its tasks are over"


def _attempt(attempt: Attempt, *, restored: bool) -> Iterator[str]:
    name = f"attempt {attempt.job}.{attempt.number}"
    stopping = attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED)
    if stopping != (attempt.cause is not None):
        yield f"{name} is {attempt.phase.value} and its cause is {attempt.cause}"
    here = [task.node for task in attempt.tasks if task.present or task.state not in OVER]
    if len(set(here)) != len(here):
        yield f"{name} has a node twice"
    if attempt.tasks[0].left is not None:
        yield f"{name} goes on without its launcher"
    nodes = [task.node for task in attempt.tasks if not task.joined]
    if attempt.endpoints and [endpoint.node for endpoint in attempt.endpoints] != nodes:
        yield f"{name} is on {nodes} and meets at {attempt.endpoints}"
    if attempt.endpoints and attempt.endpoints[0].address != attempt.master_addr:
        yield f"{name} meets at {attempt.master_addr}, which is not its launcher's address"
    for task in attempt.tasks:
        yield from _task(attempt, task)
        # A restored journal may lack that the gates were opened.
        if attempt.released_at is None and task.state is TaskState.STARTED and not restored:
            yield f"task {task.id} has started although {name} never did"


def _task(attempt: Attempt, task: Task) -> Iterator[str]:
    name = f"attempt {attempt.job}.{attempt.number}"
    if task.prepared is None:
        if task.state not in (TaskState.ASSIGNED, TaskState.CLEANED, TaskState.LOST):
            yield f"task {task.id} is {task.state.value} and was never prepared"
        whole = not task.joined and task.present
        if whole and attempt.phase in (AttemptPhase.ARRANGING, AttemptPhase.RUNNING):
            yield f"{name} is {attempt.phase.value} and task {task.id} was never prepared"
    alone = len(attempt.tasks) == 1
    if attempt.phase is AttemptPhase.RUNNING and not (
        alone
        or task.joined
        or task.state is TaskState.LOST
        or reached(task.state, TaskState.ARRANGED)
    ):
        yield f"{name} is running and task {task.id} was never arranged"


def _queues(state: State) -> Iterator[str]:
    held = {job.id for job in state.jobs.values() if job.phase is JobPhase.HELD}
    if held != state.held:
        yield f"jobs {sorted(held)} are held and jobs {sorted(state.held)} are kept as such"
    waiting = {job.id for job in state.jobs.values() if job.phase is JobPhase.QUEUED}
    queued: list[JobId] = []
    for pool, queue in state.queues.items():
        if queue != sorted(queue):
            yield f"the queue of pool {pool} is out of order: {queue}"
        for priority, name in queue:
            queued.append(name)
            job = state.jobs[name]
            if job.spec.pool != pool or -job.spec.priority != priority:
                yield f"job {name} waits in pool {pool} with priority {-priority}: not its own"
    if len(queued) != len(set(queued)) or set(queued) != waiting:
        yield f"jobs {sorted(queued)} are in queues and jobs {sorted(waiting)} are waiting"
    index = WaitingIndex()
    for name in queued:
        index.add(state.jobs[name].spec, name)
    if index != state.waiting:
        yield f"the index of waiting jobs is {state.waiting}, and the queues say {index}"


def _nodes(state: State) -> Iterator[str]:
    owners: dict[NodeName, dict[tuple[JobId, int], Share]] = {}
    for job in state.jobs.values():
        attempt = job.current
        if attempt is None:
            continue
        for task in attempt.tasks:
            if not attempt.holds(task):
                continue
            here = owners.setdefault(task.node, {})
            here[job.id, attempt.number] = share_of(job.spec, task.gpus)
            if task.gpus and len(task.gpus) != (job.spec.resources.gpu or len(task.gpus)):
                yield f"task {task.id} wants {job.spec.resources.gpu} GPUs and has {task.gpus}"
    for name, node in state.nodes.items():
        if node.drain is not None:
            yield from _drained(state, node)
        if node.holders != owners.get(name, {}):
            yield f"{name} is held by {node.holders} and has tasks of {owners.get(name)}"
        yield from _shares(node)
    yield from _gpus(state)


def _drained(state: State, node: Node) -> Iterator[str]:
    """Yield gangs that start on a drained node, and gangs that run past the deadline of a drain."""
    over = node.drain is not None and node.drain.left_s == 0
    for number, count in node.holders:
        attempt = state.jobs[number].attempt(count)
        # Skip tasks that are over, such as after a refusal: the consequences are decided.
        if not any(t.node == node.name and t.state not in OVER for t in attempt.present):
            continue
        name = f"attempt {number}.{count} is {attempt.phase.value} on {node.name}"
        if attempt.phase in (AttemptPhase.PREPARING, AttemptPhase.ARRANGING):
            yield f"{name}, which is drained"
        if over and attempt.phase is AttemptPhase.RUNNING:
            yield f"{name} beyond the deadline of its drain"


def _shares(node: Node) -> Iterator[str]:
    """Yield conflicts between holders: a whole node held twice, too few CPUs, too little memory."""
    shares = node.holders
    if len(shares) < 2:
        return
    whole = [holder for holder, share in shares.items() if share.whole]
    if whole:
        others = sorted(name for name, _ in shares if (name, _) != whole[0])
        yield f"{node.name} belongs to job {whole[0][0]} and to job {others[0]}"
    if free_cpus(node) < 0 and node.inventory.cpus:
        yield f"{node.name} has {node.inventory.cpus} CPUs, and its jobs {shares} want more"
    if free_memory(node) < 0 and node.inventory.memory_bytes:
        yield f"{node.name} has too little memory for its jobs {shares}"


def _gpus(state: State) -> Iterator[str]:
    """Yield GPUs given to two tasks, even through different agents of one machine."""
    owners: dict[tuple[str, str], tuple[JobId, NodeName]] = {}
    for node in state.nodes.values():
        for holder, share in node.holders.items():
            if len(set(share.gpus)) < len(share.gpus):
                yield f"job {holder[0]} has a GPU of {node.name} twice: {share.gpus}"
            for uuid in set(share.gpus):
                mine = holder[0], node.name
                other = owners.setdefault((node.inventory.machine_id, uuid), mine)
                if other != mine:
                    jobs = f"job {other[0]} on {other[1]} and job {mine[0]} on {mine[1]}"
                    yield f"{uuid} belongs to {jobs}"


def _ports(state: State) -> Iterator[str]:
    leased: dict[str, set[int]] = {}
    for job in state.jobs.values():
        attempt = job.current
        if attempt is None or not attempt.master_port:
            continue
        ports = leased.setdefault(attempt.machine_id, set())
        if attempt.master_port in ports:
            yield f"port {attempt.master_port} of {attempt.machine_id} is leased twice"
        ports.add(attempt.master_port)
    known = {machine: ports for machine, ports in state.ports.items() if ports}
    if known != leased:
        yield f"the ports leased are {known}, those in use {leased}"


def _sessions(state: State) -> Iterator[str]:
    connected = {
        node.session: name for name, node in state.nodes.items() if node.session is not None
    }
    if connected != state.sessions:
        yield f"sessions {state.sessions} are known, and nodes have {connected}"
    for name, node in state.nodes.items():
        if (node.link is LinkState.CONNECTED) != (node.session is not None):
            yield f"{name} is {node.link.value} and its session is {node.session}"


def _number(attempt: Attempt | None) -> int | None:
    return None if attempt is None else attempt.number
