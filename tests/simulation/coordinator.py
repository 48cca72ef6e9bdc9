"""The coordinator's process made up around its real core: inbox, journal, timers, sessions.

Facts first, then one sync, then the actions: as in the real shell, and it can die in between.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from muster.protocol.ids import SessionId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Hello, Report, Welcome
from orchestrator.core.engine.fast_path import is_answer, is_plain_heartbeat
from orchestrator.core.engine.guarded_turn import TurnFailedError, guarded_turns
from orchestrator.core.engine.turn import Turn, turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import Durability
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.plan import PoolPolicy
from orchestrator.core.model.state import State
from tests.simulation.checkers import Checkers
from tests.simulation.crashes import Deed, Point, When, Who
from tests.simulation.disk import Disk
from tests.simulation.network import Connection, Network
from tests.simulation.world import World

LAZY_FLUSH_S = 0.2
PATIENCE_S = 0.005
HEARS_ON = range(450, 600)
"""The seeds in which heartbeats are answered while a commit lasts. Others stay what they were."""
_LOOK = s.TimerFired(a.Timer(a.TimerKind.QUEUE))
Answered = Callable[[a.Result], None]


class Moment(enum.Enum):
    """The moment of a commit at which a crash comes."""

    BEFORE_SYNC = "before_sync"
    BEFORE_ACTIONS = "before_actions"
    BETWEEN_ACTIONS = "between_actions"


@dataclass(frozen=True, slots=True)
class Doom:
    """Die at the next commit that holds a fact of this type."""

    fact: type[f.Fact]
    moment: Moment
    power: bool = False


class Coordinator:
    """Up, down or stopped (SIGSTOP)."""

    def __init__(
        self, world: World, network: Network, disk: Disk, limits: Limits, checkers: Checkers
    ) -> None:
        self.world = world
        self.network = network
        self.disk = disk
        self.limits = limits
        self.checkers = checkers
        self.state = State()
        self.turn: Callable[[State, s.Input, Instant, Limits], Turn] = turn
        self.shares_looks = False  # else each input has its own: most seeds stay what they were
        self.up = False
        self.frozen = False
        self.doom: Doom | None = None
        self.slow_disk = 0.0
        self.epochs = 0  # known to a restore
        self.first_job = 0
        self.pools: dict[str, PoolPolicy] = {}
        self.secret = ""  # of a new journal
        self.crashed: Callable[[], None] = lambda: None
        self.committed: Callable[[list[f.Fact]], None] = lambda _: None
        self._life = 0
        self._clock_offset = 0.0
        self._inbox: list[tuple[s.Input, Instant]] = []
        self._busy = False
        self._deferred: list[Callable[[], None]] = []
        self._flush_at: float | None = None
        self._held: list[a.Effect] = []  # until the commit that waits for company
        self._patient = False
        self._waits: list[a.Effect] | None = None  # for the commit that goes on
        self._timers: dict[a.Timer, float] = {}
        self._looks_due = 0  # timers for the queues that have fired and are not judged yet
        checkers.looks_soon = self._looks_soon
        self._sessions: dict[SessionId, Connection] = {}
        self._next_session = 1
        self._requests: dict[a.RequestId, Answered] = {}
        self._next_request = 1

    # --- its life -------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        return self.up and not self.frozen

    def start(self) -> None:
        if self.up:
            return
        self.up = True
        self._life += 1
        self._clock_offset = self.world.rng.uniform(0.0, 1e6)
        self._inbox.clear()
        self._timers.clear()
        self._looks_due = 0
        self._sessions.clear()
        self._requests.clear()
        self._busy, self._flush_at = False, None
        self._held, self._patient, self._waits = [], False, None
        self.state = self.disk.replay()
        epoch = max(self.epochs, self.state.epoch) + 1
        self.world.log(f"coordinator starts, epoch {epoch}")
        self.checkers.restarted(self.state)
        self.put(s.CoordinatorStarted(epoch, "sim", (), self.first_job, self.pools, self.secret))

    def crash(self, *, power: bool = False) -> None:
        if not self.up:
            return
        self.up = self.frozen = False
        self.network.coordinator_frozen = False
        self.doom = None
        self._deferred.clear()
        lost = self.disk.crash()
        self.world.log(f"coordinator dies, {lost} facts unsynced")
        self.world.met["unsynced_facts_lost"] += lost
        for connection in list(self.network.connections):
            connection.close_coordinator(tell=not power)
        self.crashed()

    def freeze(self) -> None:
        self.frozen = True
        self.network.coordinator_frozen = True

    def thaw(self) -> None:
        if not self.frozen:
            return
        self.frozen = False
        deferred, self._deferred = self._deferred, []
        self.network.coordinator_frozen = False
        if self.world.chance(0.5):
            self.network.flow()
        for call in deferred:
            call()
        self.network.flow()

    def now(self) -> Instant:
        return Instant(self.mono, self.world.wall())

    @property
    def mono(self) -> float:
        """Seconds of the clock that this process goes by."""
        return self.world.now + self._clock_offset

    # --- what comes in --------------------------------------------------------------------

    def accept(self, connection: Connection, peer: str) -> None:
        connection.on_report = partial(self._hear, connection, peer, None)
        connection.on_coordinator_end = lambda: None

    def ask(self, make: Callable[[a.RequestId], s.Input], answered: Answered) -> None:
        """A request of a user; there is no answer if the process dies first."""
        if not self.listening:
            return
        request = a.RequestId(self._next_request)
        self._next_request += 1
        self._requests[request] = answered
        self.put(make(request))

    def put(self, given: s.Input) -> None:
        self._inbox.append((given, self.now()))
        if not self._busy:
            self._step()

    def _hear(
        self, connection: Connection, peer: str, session: SessionId | None, report: Report
    ) -> None:
        if not self.up:
            return
        name = type(report).__name__
        if self._dies(Deed.TAKES, name, When.BEFORE):
            return
        self._take(connection, peer, session, report)
        self._dies(Deed.TAKES, name, When.AFTER)

    def _take(
        self, connection: Connection, peer: str, session: SessionId | None, report: Report
    ) -> None:
        match report:
            case Hello():
                if session is not None:
                    return
                session = SessionId(self._next_session)
                self._next_session += 1
                self._sessions[session] = connection
                connection.on_report = partial(self._hear, connection, peer, session)
                connection.on_coordinator_end = partial(self._gone, session)
                self.put(s.HelloReceived(session, report, peer))
            case _:
                if session is not None:
                    self.put(s.ReportReceived(session, report))

    def _gone(self, session: SessionId) -> None:
        if self._sessions.pop(session, None) is not None and self.up:
            self.put(s.SessionEnded(session))

    # --- deciding -------------------------------------------------------------------------

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.world.at(delay_s, partial(self._arrive, self._life, call))

    def _arrive(self, life: int, call: Callable[[], None]) -> None:
        if not self.up or self._life != life:
            return
        if self.frozen:
            self._deferred.append(partial(self._arrive, life, call))
        else:
            call()

    def _step(self, *, flush: bool = False) -> None:
        """Judge everything that has come in, stage the facts, and sync before acting."""
        while self._inbox or flush:
            batch, self._inbox = self._inbox, []
            due: set[Durability] = {Durability.SYNC} if flush else set()
            flush = False
            if self.shares_looks and len(batch) > 1:
                due |= self._turn_together(batch)
                batch = []
            for given, received in batch:
                self.world.steps += 1
                self._looks_due -= given == _LOOK
                done = self._turn(given, received)
                if done is None:
                    return
                self._held += done.effects
                due |= self._stage(done.facts, received)
                self.checkers.turned(self.state, done.facts, received, self.limits)
            if Durability.SYNC in due and self.disk.staged:
                self._commit()
                return
            if Durability.PATIENT in due and not self._patient:
                self._patient = True
                self._later(PATIENCE_S, self._impatient)
            if self.disk.staged and self._flush_at is None:
                self._flush_at = self.world.now
                self._later(LAZY_FLUSH_S, partial(self._flush, self._flush_at))
            if not self._patient:
                effects, self._held = self._held, []
                if not self._perform_all(effects):
                    return

    def _turn(self, given: s.Input, received: Instant) -> Turn | None:
        """Returns None if the process has ended, with that on record."""
        try:
            return self.turn(self.state, given, received, self.limits)
        except TurnFailedError as error:
            self._stage([] if error.fact is None else [error.fact], received)
            self.checkers.synced(self.disk.sync())
            self.world.met["turn_failed"] += 1
            self.crash()
            return None

    def _turn_together(self, batch: list[tuple[s.Input, Instant]]) -> set[Durability]:
        """Judge a batch as the real shell does: with one look at the queues, at its end."""
        self.world.steps += len(batch)
        self.world.met["look_shared"] += 1
        self._looks_due = 0
        due: set[Durability] = set()
        facts: list[f.Fact] = []
        for done, at, _, error in guarded_turns(self.state, batch, self.limits):
            if error is not None:
                raise error
            self._held += done.effects
            due |= self._stage(done.facts, at)
            facts += done.facts
        self.checkers.turned(self.state, facts, batch[-1][1], self.limits)
        return due

    def _stage(self, facts: list[f.Fact], received: Instant) -> set[Durability]:
        found: set[Durability] = set()
        for fact in facts:
            durability = fact.durability
            if durability is not Durability.EPHEMERAL:
                self.world.log(f"fact {type(fact).__name__} {_brief(fact)}")
                self.disk.stage(fact, received.wall)
                found.add(durability)
        return found

    def _impatient(self) -> None:
        if self._patient and not self._busy:
            self._step(flush=True)

    def _flush(self, at: float) -> None:
        if self._flush_at == at and not self._busy:
            self._step(flush=True)

    def _commit(self) -> None:
        effects, self._held = self._held, []
        self._patient = False
        self._busy = True
        self._flush_at = None
        rng = self.world.rng
        if self.world.chance(self.slow_disk):
            self.world.met["slow_sync"] += 1
            takes_s = rng.uniform(0.05, 4.0)
        else:
            takes_s = rng.uniform(0.0001, 0.001)
        doom = self.doom
        if doom is not None and not any(isinstance(x, doom.fact) for x, _ in self.disk.staged):
            doom = None
        self._waits = effects
        if takes_s > self.limits.heartbeat_s / 4 and self.world.seed in HEARS_ON:
            self._later(self.limits.heartbeat_s / 4, partial(self._answer_heartbeats, effects))
        self._later(takes_s, partial(self._committed, effects, doom))

    def _answer_heartbeats(self, effects: list[a.Effect]) -> None:
        """The commit lasts: answer heartbeats, as the real shell does."""
        if self._waits is not effects:
            return
        beats = [one for one in self._inbox if is_plain_heartbeat(self.state, one[0])]
        self._inbox = [one for one in self._inbox if not is_plain_heartbeat(self.state, one[0])]
        for given, received in beats:
            self.world.steps += 1
            done = self._turn(given, received)
            if done is None:
                return
            self.checkers.turned(self.state, done.facts, received, self.limits)
            effects += done.effects
        answers = [action for action in effects if is_answer(action)]
        effects[:] = [action for action in effects if not is_answer(action)]
        self.world.met["answered_while_slow"] += len(answers)
        if self._perform_all(answers):
            self._later(self.limits.heartbeat_s / 4, partial(self._answer_heartbeats, effects))

    def _committed(self, effects: list[a.Effect], doom: Doom | None) -> None:
        self._waits = None
        if doom is not None:
            self._meet(doom, effects)
            return
        written = dict.fromkeys(type(fact).__name__ for fact, _ in self.disk.staged)
        if any(self._dies(Deed.WRITES, name, When.BEFORE) for name in written):
            return
        facts = self.disk.sync()
        self.checkers.synced(facts)
        if any(self._dies(Deed.WRITES, name, When.AFTER) for name in written):
            return
        self._busy = False
        self.committed(facts)
        if not self._perform_all(effects):
            return
        self.checkers.settled(self.state, self.disk)
        if not self._busy:
            self._step()

    def _meet(self, doom: Doom, effects: list[a.Effect]) -> None:
        self.world.met[f"crash_{doom.moment.value}"] += 1
        self.world.met[f"crash_at_{doom.fact.__name__}"] += 1
        if doom.moment is not Moment.BEFORE_SYNC:
            self.checkers.synced(self.disk.sync())
        if doom.moment is Moment.BETWEEN_ACTIONS and effects:
            self._busy = True  # what an action brings in at once is not judged any more
            for action in effects[: self.world.rng.randrange(len(effects))]:
                self._perform(action)
        self.crash(power=doom.power)

    def _dies(self, deed: Deed, what: str, when: When) -> bool:
        crashes = self.world.crashes
        if crashes is None or not self.up or not crashes.due(Who.COORDINATOR, deed, what, when):
            return False
        self.world.log(f"{Point(Who.COORDINATOR, deed, what, when)}")
        self.crash()
        return True

    # --- acting ---------------------------------------------------------------------------

    def _perform_all(self, effects: list[a.Effect]) -> bool:
        """Returns whether the process has survived that."""
        life = self._life
        for action in effects:
            sent = _sent(action)
            if sent is not None and self._dies(Deed.SENDS, sent, When.BEFORE):
                break
            self._perform(action)
            if sent is not None and self._dies(Deed.SENDS, sent, When.AFTER):
                break
        return self.up and self._life == life

    def _perform(self, action: a.Effect) -> None:
        match action:
            case a.Send(_, session, command):
                connection = self._sessions.get(session)
                if connection is not None:
                    if isinstance(command, Welcome):
                        self.checkers.greeted(command.epoch)
                    connection.send_command(command)
            case a.RefuseSession(session, refused):
                connection = self._sessions.get(session)
                if connection is not None:
                    self.world.met["session_refused"] += 1
                    connection.send_command(refused)
                    self._close(session)
            case a.CloseSession(session, _):
                self._close(session)
            case a.SetTimer(timer, at):
                self._timers[timer] = at
                delay_s = max(0.0, at - self.now().mono)
                self._later(delay_s, partial(self._timer, timer, at))
            case a.Answer(request, result):
                answered = self._requests.pop(request, None)
                self.checkers.promises.answered(result)
                if answered is not None:
                    answered(result)
            case _:
                assert_never(action)

    def _close(self, session: SessionId) -> None:
        connection = self._sessions.get(session)
        if connection is not None:
            connection.close_coordinator()
            self._later(0.0, partial(self._gone, session))

    def _timer(self, timer: a.Timer, at: float) -> None:
        if self._timers.get(timer) == at:
            del self._timers[timer]
            self._looks_due += timer == _LOOK.timer
            self.put(s.TimerFired(timer))

    def _looks_soon(self) -> bool:
        """True if the timer for the queues is due, and its turn has not come yet."""
        due = [*self._held, *(self._waits or [])]
        timers = [(it.timer, it.at) for it in due if isinstance(it, a.SetTimer)]
        timers += self._timers.items()
        return self._looks_due > 0 or any(
            timer == _LOOK.timer and at <= self.mono for timer, at in timers
        )


def _sent(action: a.Effect) -> str | None:
    """The kind of message or answer that an action sends, if it sends one."""
    match action:
        case a.Send(_, _, command) | a.RefuseSession(_, command):
            return type(command).__name__
        case a.Answer(_, result):
            return type(result).__name__
        case _:
            return None


def _brief(fact: f.Fact) -> str:
    """Enough to follow the story."""
    words = [
        str(value)
        for name in ("job", "attempt", "rank", "node", "nodes", "epoch", "master_port")
        if (value := getattr(fact, name, None)) is not None
    ]
    cause = getattr(fact, "cause", None)
    if cause is not None:
        words += [cause.code.value, cause.text]
    return " ".join(words)
