"""An agent redials a coordinator that falls silent, and no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.decide import WELCOME_S
from agent.core.state import AgentIdentity, State
from agent.core.turn import turn
from muster.protocol.ids import NodeName, SessionId
from muster.protocol.instant import ROUNDING_S, Instant
from muster.protocol.link import control_channel as m

HEARTBEAT_S = 5.0
IDENTITY = AgentIdentity(NodeName("n1"), "id", "boot", "0.1.0")
OBSERVED = m.NodeObservations(m.Inventory("10.0.0.1", "machine"))


class Line:
    """An agent and what its coordinator answers: `delay_s` after each heartbeat, until `silent`."""

    def __init__(self, delay_s: float, silent: float) -> None:
        self.state = State(IDENTITY, OBSERVED)
        self.delay_s, self.silent = delay_s, silent
        self.timer = 0.0
        self.answers: list[tuple[float, m.Command]] = []
        self.closed: float | None = None

    def run(self, until: float) -> None:
        self._turn(s.LinkUp(), 0.0)
        welcome = m.Welcome(1, SessionId(1), HEARTBEAT_S, "0")
        self._answer(0.0, welcome)
        while self.closed is None:
            at = min([self.timer, *(when for when, _ in self.answers)])
            if at > until:
                return
            if self.answers and self.answers[0][0] == at:
                self._turn(s.CommandReceived(self.answers.pop(0)[1]), at)
            else:
                self._turn(s.TimerFired(a.Timer.HEARTBEAT), at)

    def _answer(self, now: float, command: m.Command) -> None:
        if now + self.delay_s < self.silent:
            self.answers.append((now + self.delay_s, command))

    def _turn(self, received: s.Input, now: float) -> None:
        for action in turn(self.state, received, Instant(now, 0.0)):
            match action:
                case a.SetTimer(a.Timer.HEARTBEAT, at):
                    self.timer = at
                case a.SendReport(m.Heartbeat(sent_s)):
                    self._answer(now, m.HeartbeatAck(sent_s))
                case a.CloseLink():
                    self.closed = now
                case _:
                    pass


@given(delay_s=st.floats(0.0, 0.5 * HEARTBEAT_S), silent=st.floats(10.0, 30.0))
def test_silence_is_noticed_within_two_heartbeats(delay_s: float, silent: float) -> None:
    line = Line(delay_s, silent)
    line.run(1000.0)
    assert line.closed is not None
    assert line.closed - silent <= 2 * HEARTBEAT_S + ROUNDING_S


@given(delay_s=st.floats(0.0, 0.9 * HEARTBEAT_S))
def test_an_answer_that_is_only_late_is_no_silence(delay_s: float) -> None:
    line = Line(delay_s, silent=1e9)
    line.run(1000.0)
    assert line.closed is None


def test_a_coordinator_that_never_welcomes_is_given_the_time_of_a_storm() -> None:
    line = Line(0.0, silent=0.0)
    line.run(1000.0)
    assert line.closed is not None
    assert WELCOME_S - ROUNDING_S <= line.closed <= WELCOME_S + HEARTBEAT_S
