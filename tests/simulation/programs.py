"""Programs of users: run time, failures and misbehaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.protocol.ids import JobId
from tests.simulation.world import World

RAISED = '  File "train.py", line 7, in <module>\nValueError: boom'
PEER_GONE = (
    '  File "train.py", line 9, in <module>\n'
    "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:22419."
)


@dataclass(frozen=True, slots=True)
class Program:
    """Behaviour of one job. Probabilities are drawn anew for each attempt (or task, where it says
    so)."""

    run_s: tuple[float, float]
    setup_s: tuple[float, float] = (0.01, 0.5)
    listen_s: tuple[float, float] = (0.01, 2.0)
    refuses: float = 0.0  # a task's preparation fails
    refuses_all: bool = False  # every task's does: it is the job's own fault
    refusal_code: str = "no_folder"
    gate_dies: float = 0.0  # a task's bootstrap is killed while it waits
    start_fails: float = 0.0  # a task's program cannot be started
    fails: float = 0.0  # a rank fails early, the others would go on for ever
    infects: bool = False  # ranks on the other nodes then lose their connection, and fail too
    fails_alone: bool = False  # then the other nodes end well by themselves
    never_ends: bool = False
    ignores_term: bool = False
    unkillable: float = 0.0  # a task's process stays in the kernel for minutes
    leftovers: float = 0.0  # a task's program leaves processes behind


@dataclass(slots=True)
class Course:
    """The course of one attempt, without interference."""

    run_s: float
    failing_node: int | None = None
    failing_local: int = 0
    fails_at_s: float = 0.0
    code: int = 0


@dataclass(slots=True)
class Programs:
    """All programs by the name of their job, and the course of each attempt."""

    world: World
    by_name: dict[str, Program] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)  # that each gang has at least
    _courses: dict[tuple[JobId, int], Course] = field(default_factory=dict)

    def course(self, name: str, job: JobId, attempt: int) -> Course:
        """The course of an attempt: drawn when its first task starts, the same for all."""
        known = self._courses.get((job, attempt))
        if known is None:
            known = self._courses[job, attempt] = self._draw(name)
        return known

    def _draw(self, name: str) -> Course:
        program, rng = self.by_name[name], self.world.rng
        course = Course(rng.uniform(*program.run_s))
        if self.world.chance(program.fails):
            course.failing_node = rng.randrange(self.nodes[name])
            course.failing_local = rng.randrange(2)
            course.fails_at_s = rng.uniform(0.0, course.run_s)
            course.code = rng.choice((1, 2, 77, -9, -11))
        return course
