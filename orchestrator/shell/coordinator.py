"""The single task that owns the state: it decides on inputs, commits the facts, then acts.

Everything else goes through it: agents' connections and timers put inputs, requests wait for their
answer, readers read the committed state, and watchers wait for a job to change.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Final, Never, Protocol, assert_never

import msgspec
import structlog
from msgspec.structs import replace

from muster.daemon.clock import Clock
from muster.daemon.errors import DaemonError
from muster.daemon.timers import Timers
from muster.protocol.ids import JobId, SessionId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Command, Refused
from orchestrator.core.engine.decide import submitted_before
from orchestrator.core.engine.fast_path import is_answer, is_plain_heartbeat
from orchestrator.core.engine.guarded_turn import TurnFailedError, guarded_turns
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.inputs import (
    CoordinatorStarted,
    DiskSpaceChecked,
    Input,
    JobsArchived,
    SubmitReceived,
    TimerFired,
)
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.people import People
from orchestrator.core.model.plan import PoolPolicy
from orchestrator.core.model.state import Job, State
from orchestrator.core.storage.removal import clock_doubt, may_remove_by_age
from orchestrator.journal.records import Recorded
from orchestrator.journal.writer import JournalWriter
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.fact_log import log_fact
from orchestrator.shell.inbox import Inbox, Received, submit_bytes
from orchestrator.shell.job_archive import ROOM_AGAIN_S, JobArchive
from orchestrator.shell.job_index import JobIndex
from orchestrator.shell.new_webhooks import NewWebhooks
from orchestrator.shell.periodic import Periodic
from orchestrator.shell.request_turns import CommitReaders
from orchestrator.shell.stats import Stats

LAZY_FLUSH_S: Final = 0.2
PATIENCE_S: Final = 0.005
QUIET_S: Final = 0.005
"""Wait this long after a commit, because the next one of the same job often follows."""
GIVE_WAY_MAX_S: Final = 0.05
SPACE_EVERY_S: Final = 2.0
# Submits of this many bytes are judged by the free space of now, not by that of 2 s ago.
SUBMITS_UNCHECKED_BYTES: Final = 100 << 10
FORGOTTEN_HINT: Final = "ended_jobs in the coordinator's configuration limits their number"

_log = structlog.get_logger("muster.coordinator")


class CoordinatorStoppedError(DaemonError):
    """The coordinator has ended: a request was not answered, but may have been carried out."""


class Sessions(Protocol):
    """Destination of commands to agents. No method blocks."""

    def send(self, session: SessionId, command: Command) -> None: ...

    def refuse(self, session: SessionId, refused: Refused) -> None: ...

    def close(self, session: SessionId, why: str) -> None: ...


class Coordinator:
    """Owner of `state`. Others read it after `settled` and never change it.

    `changes` counts changes by job id, by node name and by `events_key`. A counter is bumped once
    the change is on disk.
    """

    def __init__(
        self,
        *,
        state: State,
        journal: JournalWriter,
        clock: Clock,
        limits: Limits,
        sessions: Sessions,
        changes: ChangeCounters,
        networks: tuple[str, ...] = (),
        pools: Mapping[str, PoolPolicy] | None = None,
        first_job: int = 0,
        archived: Mapping[str, int] | None = None,
        forgotten_to: int = 0,
        last_record_at: float | None = None,
        people: People | None = None,
    ) -> None:
        self.state = state
        self.meters = Stats()
        self.index = JobIndex(state)
        self.webhooks = NewWebhooks(state)
        self.archive = JobArchive(journal, state, archived or {}, forgotten_to)
        self.changes = changes
        self._journal = journal
        self._clock = clock
        began = clock.now()
        self._began_mono = began.mono
        # Measured on the monotonic clock, which nobody can set.
        self._last_record = None if last_record_at is None else last_record_at - began.mono
        self.limits = limits
        begin = partial(CoordinatorStarted, networks=networks, first_job=first_job, people=people)
        self._begin = partial(begin, pools=dict(pools or {}))
        self._sessions = sessions
        self._inbox = Inbox(clock)
        self._timers: Timers[a.Timer] = Timers(
            clock, lambda timer: self._inbox.put_now(TimerFired(timer))
        )
        self._staged: list[tuple[f.Fact, float]] = []
        self._flush: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._committing = False
        self._quiet_at = 0.0  # loop time until which another commit is likely
        self._committed: set[Hashable] = set()  # keys on disk, not yet announced
        self._readers = CommitReaders()
        self._requests: dict[a.RequestId, asyncio.Future[a.Result]] = {}
        self._next_request = 1
        self.started = asyncio.Event()  # set once the new epoch is on disk
        self._stopped = False
        self.revision = 0  # of what explanations depend on
        self._unchecked_bytes = 0  # of submits since the free space was last looked at

    def now(self) -> Instant:
        return self._clock.now()

    def clock_doubt(self, *ahead_s: float) -> str:
        """Return why the wall clock seems wrong, or "". `ahead_s` are leads of other clocks over
        it, beside those of the connected nodes.
        """
        now = self._clock.now()
        since = 0.0 if self._last_record is None else now.wall - now.mono - self._last_record
        return clock_doubt(since, [*self._ahead_s(), *ahead_s])

    def may_remove_by_age(self) -> bool:
        """Return whether the wall clock is trusted enough to remove what is old by it."""
        up_s = self._clock.now().mono - self._began_mono
        return not self.clock_doubt() and may_remove_by_age(up_s, self._ahead_s())

    def _ahead_s(self) -> list[float]:
        nodes = self.state.nodes.values()
        return [node.ahead_s for node in nodes if node.link is LinkState.CONNECTED]

    async def run(self, epoch: int) -> None:
        """Own the state until cancelled. Any exception means that the process must exit."""
        name, secret = secrets.token_hex(6), secrets.token_hex(32)
        self._inbox.put_now(self._begin(epoch, cluster=name, secret=secret))
        try:
            while True:
                await self._step(await self._inbox.take())
                self.started.set()
        except TurnFailedError as error:
            _log.critical("turn_failed", why=str(error.__cause__), exc_info=error.__cause__)
            if error.fact is not None:
                # Without the facts of the failed batch. The next process starts from the journal.
                await self._journal.append([*self._staged, (error.fact, self.now().wall)])
                self._staged = []
            raise
        finally:
            self._stop()

    async def watch_space(self) -> Never:
        """Poll the free space on the journal's disk, because no event reports it."""
        while True:
            checked = await self._check_space()
            if checked is not None:
                await self._inbox.put(checked)
            await asyncio.sleep(SPACE_EVERY_S)

    async def _check_space(self) -> DiskSpaceChecked | None:
        """Return whether the journal's disk is full, or None if the state knows it already."""
        problem = await self._journal.problem()
        if bool(problem) == bool(self.state.disk_full):
            return None
        if problem:
            _log.error("disk_full", why=problem)
        else:
            _log.warning("disk_has_room", why="submits are accepted again")
        return DiskSpaceChecked(problem)

    async def put(self, given: Input) -> None:
        """Add an input to the inbox. Waits while the inbox is full."""
        await self._inbox.put(given)

    def put_now(self, given: Input) -> None:
        """Like `put`, but never waits: for inputs that must not be lost, such as SessionEnded."""
        self._inbox.put_now(given)

    async def request(self, make: Callable[[a.RequestId], Input]) -> a.Result:
        """Send a request and return its answer, once the facts behind it are on disk.

        Raises CoordinatorStoppedError.
        """
        if self._stopped:
            raise _stopped()
        request = a.RequestId(self._next_request)
        self._next_request += 1
        future: asyncio.Future[a.Result] = asyncio.get_running_loop().create_future()
        self._requests[request] = future
        asked = make(request)
        try:
            await self._inbox.put(asked)
            result = await future
        finally:
            self._requests.pop(request, None)
        if isinstance(result, a.Declined) and result.code == a.UNKNOWN_JOB:
            found = await self.archive.answer(self.state, asked, self.now(), self.limits)
            name = getattr(asked, "job", None)
            if found is None and name is not None and self.forgot(name):
                return a.Declined(a.UNKNOWN_JOB, forgotten_text(name), FORGOTTEN_HINT)
            return result if found is None else found
        return result

    async def submit(self, submit: SubmitReceived) -> a.Result:
        """Like `request`, for a submit.

        An idempotency key never creates a second job, even if the first is already in the archive.

        Raises CoordinatorStoppedError and JournalError.
        """
        submit = replace(submit, size=len(msgspec.json.encode(submit.spec)))
        while True:
            searched = self.state.forgotten
            known = await self.submitted(submit.user, submit.key)
            if known is not None:
                return submitted_before(submit.key, submit.digest, *known)
            result = await self.request(partial(_numbered, replace(submit, searched=searched)))
            if not isinstance(result, a.Declined) or result.code != a.SEARCH_AGAIN:
                return result

    async def submitted(self, user: str, key: str) -> tuple[JobId, str] | None:
        """Return the job committed under an idempotency key, and the digest of its submit.

        Returns None if there is no such job, or if `key` is "". Raises CoordinatorStoppedError and
        JournalError.
        """
        known = (await self.durable_state()).keys.get((user, key))
        return known if known or not key else await self.archive.submitted(user, key)

    async def job(self, name: JobId) -> Job | None:
        """Return a job from the state or the archive. A job in the state keeps changing.

        Raises CoordinatorStoppedError and JournalError.
        """
        known = (await self.durable_state()).jobs.get(name)
        return known if known is not None else await self.archive.find(name)

    def forgot(self, name: JobId) -> bool:
        """True if retention has removed a job that is neither in the state nor in the archive."""
        return name <= self.archive.forgotten_to

    async def archive_ended(self) -> Never:
        """Move ended jobs to the archive, forever."""
        while True:
            jobs = await self.archive.due()
            # A fact that is written after its job has moved would refer to a job that is gone.
            await self._sync()
            state = await self.durable_state()
            if not state.disk_full and await self.archive.move(state, jobs):
                await self.put(JobsArchived(tuple(jobs)))
            else:
                await asyncio.sleep(ROOM_AGAIN_S)

    async def _sync(self) -> None:
        """Wait until everything decided so far is on disk. Raises CoordinatorStoppedError."""
        if self._staged:
            self._flush_due = True
            await self.next_turn()

    async def durable_state(self) -> State:
        """Return the state when all of it is on disk. That holds until the caller next awaits.

        Raises CoordinatorStoppedError.
        """
        if self._stopped:
            raise _stopped()
        if self._committing:
            await self._readers.wait()
        return self.state

    async def next_turn(self) -> None:
        """Wait for the coordinator's next turn, which also runs if the inbox is empty.

        Raises CoordinatorStoppedError.
        """
        if self._stopped:
            raise _stopped()
        self._inbox.wake()
        await self._readers.wait()

    async def yield_to_scheduling(self) -> None:
        """Let scheduling go first. Called by bulk transfers such as log bytes.

        Waits at most GIVE_WAY_MAX_S, so that neither side starves.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + GIVE_WAY_MAX_S
        # Polls, because no event signals that no commit follows.
        while (now := loop.time()) < until and (self._committing or now < self._quiet_at):  # noqa: ASYNC110
            await asyncio.sleep(QUIET_S)

    async def events(
        self, *, job: int | None, after_seq: int, limit: int, bytes_max: int
    ) -> list[Recorded]:
        """The same as `JournalWriter.events`."""
        read = self._journal.events
        return await read(job=job, after_seq=after_seq, limit=limit, bytes_max=bytes_max)

    async def flush(self) -> None:
        """Write all pending facts to disk. Called at the end of the process, after `run`."""
        staged, self._staged = self._staged, []
        if staged:
            await self._journal.append(staged)

    async def _step(self, batch: list[Received]) -> None:
        facts: list[f.Fact] = []
        effects: list[a.Effect] = []
        new_bytes = sum(submit_bytes(received.given) for received in batch)
        if new_bytes and self._unchecked_bytes + new_bytes > SUBMITS_UNCHECKED_BYTES:
            # Submits alone could else use up the reserve, which ends of jobs need.
            self._unchecked_bytes = 0
            checked = await self._check_space()
            if checked is not None:
                batch = [Received(checked, self.now()), *batch]
        due = self._judge(batch, facts, effects)
        if due is Durability.PATIENT:
            await self._linger_for_group_commit(facts, effects)
        if due is not None:
            self._flush_due = False
            if self._staged:
                await self._commit(facts, effects)
        elif self._staged and self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(LAZY_FLUSH_S, self._flush_now)
        for action in effects:
            self._perform(action)
        self.changes.bump(_touched(facts) | self._committed)
        self.changes.drop(_final(facts))
        self._committed.clear()
        # Readers run before the next batch moves the state ahead of the disk again. Effects are
        # sent before their facts are logged.
        if await self._readers.wake():
            self._inbox.wake()
        for fact in facts:
            log_fact(fact)

    def _judge(
        self, batch: list[Received], facts: list[f.Fact], effects: list[a.Effect]
    ) -> Durability | None:
        """Decide on a batch and stage its durable facts.

        Returns SYNC or PATIENT if the facts must be on disk before the effects are carried out.
        """
        began, known = time.perf_counter(), len(facts)
        found: set[Durability] = {Durability.SYNC} if self._flush_due else set()
        self._unchecked_bytes += sum(submit_bytes(received.given) for received in batch)
        inputs = [(received.given, received.at) for received in batch]
        for turned, at, given, error in guarded_turns(self.state, inputs, self.limits):
            if error is not None:
                what = type(given).__name__
                _log.critical("input_refused", input=what, why=str(error), exc_info=error)
            effects += turned.effects
            for fact in turned.facts:
                facts.append(fact)
                if fact.durability is not Durability.EPHEMERAL:
                    self._staged.append((fact, at.wall))
                    found.add(fact.durability)
                    self.revision += 1
                elif fact.reschedules:
                    self.revision += 1
        self.meters.observe(facts[known:])
        self.index.observe(self.state, facts[known:])
        self.webhooks.observe(self.state, facts[known:])
        self.archive.observe(facts[known:])
        self.meters.turns.add(time.perf_counter() - began)
        for durability in (Durability.SYNC, Durability.PATIENT):
            if durability in found:
                return durability
        return None

    async def _linger_for_group_commit(self, facts: list[f.Fact], effects: list[a.Effect]) -> None:
        """Group commit: wait up to PATIENCE_S for more facts to share this fsync.

        Stops early if a fact needs SYNC, because then somebody waits for it.
        """
        self._committing = True
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._judge(await self._inbox.take(), facts, effects) is not Durability.SYNC:
                    pass
        except TimeoutError:
            pass

    async def _commit(self, facts: list[f.Fact], effects: list[a.Effect]) -> None:
        staged, self._staged = self._staged, []
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self._committing = True
        # Stays set if the append fails, because nobody may read a state that is not on disk.
        began = time.perf_counter()
        with Periodic(
            self.limits.heartbeat_s / 4, partial(self._answer_heartbeats, facts, effects)
        ):
            await self._journal.append(staged)
        self.meters.commits.add(time.perf_counter() - began)
        self.meters.facts += len(staged)
        self._committing = False
        self._quiet_at = asyncio.get_running_loop().time() + QUIET_S
        self._committed |= {events_key(getattr(fact, "job", None)) for fact, _ in staged}
        self._committed.add(events_key(None))

    def _answer_heartbeats(self, facts: list[f.Fact], held: list[a.Effect]) -> None:
        """Answer the plain heartbeats of this batch and later ones while a commit is pending."""
        self._judge(self._inbox.pick(partial(is_plain_heartbeat, self.state)), facts, held)
        for answer in [action for action in held if is_answer(action)]:
            self._perform(answer)
        held[:] = [action for action in held if not is_answer(action)]

    def _flush_now(self) -> None:
        self._flush, self._flush_due = None, True
        self._inbox.wake()

    def _perform(self, action: a.Effect) -> None:
        match action:
            case a.Send(_, session, command):
                self._sessions.send(session, command)
            case a.RefuseSession(session, refused):
                self._sessions.refuse(session, refused)
            case a.CloseSession(session, why):
                self._sessions.close(session, why)
            case a.SetTimer(timer, at):
                self._timers.set(timer, at)
            case a.Answer(request, result):
                future = self._requests.get(request)
                if future is not None and not future.done():
                    future.set_result(result)
            case _:
                assert_never(action)

    def _stop(self) -> None:
        self._stopped = True
        self._timers.close()
        if self._flush is not None:
            self._flush.cancel()
        for future in self._requests.values():
            if not future.done():
                future.set_exception(_stopped())
        self._readers.fail(_stopped())
        self.changes.close()


def events_key(job: int | None) -> Hashable:
    """Key in `changes` for facts that reached the disk: those of a job, or of any job if None."""
    return ("events", job)


def forgotten_text(name: int) -> str:
    return f"job {name} was forgotten by retention after its end (ended_jobs)"


def _numbered(submit: SubmitReceived, request: a.RequestId) -> SubmitReceived:
    return replace(submit, request=request)


def _stopped() -> CoordinatorStoppedError:
    return CoordinatorStoppedError("the coordinator is stopping; retry with the same key")


def _touched(facts: list[f.Fact]) -> set[Hashable]:
    keys: set[Hashable] = set()
    for fact in facts:
        job, node = getattr(fact, "job", None), getattr(fact, "node", None)
        keys.update(key for key in (job, node) if key is not None)
    return keys


def _final(facts: list[f.Fact]) -> set[Hashable]:
    """Keys of removed jobs, which will not change any more."""
    gone = [fact.job for fact in facts if isinstance(fact, f.JobForgotten)]
    return {key for job in gone for key in (job, events_key(job))}
