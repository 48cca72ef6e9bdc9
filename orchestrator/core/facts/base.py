"""Base classes of facts, and the properties that each fact declares where it is defined."""

from __future__ import annotations

import enum
from typing import Any, ClassVar, Final, dataclass_transform

import msgspec

from muster.protocol.ids import JobId


class Durability(enum.Enum):
    """The time at which a fact must be on disk.

    SYNC: before any of its effects. PATIENT: the same, but without haste, so the commit may wait
    for more facts. LAZY: with the next sync; if lost, the agent reports it again, or the webhook is
    sent again. EPHEMERAL: never, as it concerns connections of this process.
    """

    SYNC = "sync"
    PATIENT = "patient"
    LAZY = "lazy"
    EPHEMERAL = "ephemeral"


SYNC: Final = Durability.SYNC
PATIENT: Final = Durability.PATIENT
LAZY: Final = Durability.LAZY
EPHEMERAL: Final = Durability.EPHEMERAL


PROPERTIES: Final = ("durability", "reschedules", "milestone", "revises")


class _FactMeta(msgspec.StructMeta):
    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        family: bool = False,
        **given: Any,
    ) -> type:
        declared = {key: given.pop(key) for key in PROPERTIES if key in given}
        options = {"frozen": True, "omit_defaults": True, "tag": True, **given}
        made = super().__new__(cls, name, bases, namespace | declared, **options)
        if not family:
            _check(made)
        return made


def _check(fact: Any) -> None:
    missing = [key for key in PROPERTIES if not hasattr(fact, key)]
    if missing:
        raise TypeError(f"the fact {fact.__name__} must declare {', '.join(missing)}: see BaseFact")
    durable = fact.durability is not EPHEMERAL
    if fact.revises and not (durable and issubclass(fact, JobFact)):
        # A replay must count the same revisions.
        raise TypeError(f"the fact {fact.__name__} revises a job, so it must be a durable JobFact")
    if durable and fact.describe is BaseFact.describe:
        raise TypeError(f"the fact {fact.__name__} is durable, so it must define describe()")


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class BaseFact(msgspec.Struct, metaclass=_FactMeta, frozen=True, family=True):
    """Base of all facts. Each declares its PROPERTIES as keywords, or its `family` does.

    `durability`: when it must be on disk. `reschedules`: a gang may be placed after it that could
    not be placed before, as it frees capacity, or changes a queue, a node, its link, the networks
    or the disk space. `milestone`: the coordinator logs it. `revises`: it counts as a new revision
    of its job.
    """

    durability: ClassVar[Durability]
    reschedules: ClassVar[bool]
    milestone: ClassVar[bool]
    revises: ClassVar[bool]

    def describe(self) -> str:
        """The fact in words, for the history of its job or node. Every durable fact has some."""
        raise NotImplementedError


class Inert(BaseFact, family=True):
    """A fact without immediate consequences: it only changes the state."""


class JobFact(BaseFact, family=True, revises=True):
    """A fact about a job."""

    job: JobId


class AttemptFact(JobFact, family=True):
    """A fact about an attempt of a job."""

    attempt: int


class TaskFact(AttemptFact, family=True, milestone=False):
    """A fact about the task of one node of a gang, by its node rank."""

    rank: int


class ClusterFact(BaseFact, family=True, revises=False):
    """A fact about the coordinator, its disk, or all nodes."""
