"""When a fact must be on disk."""

from __future__ import annotations

import enum
from typing import Final, get_args

from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import idle as idf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts import webhooks as nf


class Durability(enum.Enum):
    """SYNC: before anything is done because of it. PATIENT: so too, but nobody waits for that, and
    a moment may pass in which more of its kind come. LAZY: with the next sync; an agent would
    report it again, a webhook would be told again. EPHEMERAL: never; it is about connections of
    this process.
    """

    SYNC = "sync"
    PATIENT = "patient"
    LAZY = "lazy"
    EPHEMERAL = "ephemeral"


# What follows from the last of them is another fact, and that one does not wait.
_PATIENT: Final = (f.TaskExited, f.TaskCleaned)
_LAZY: Final = (
    f.TaskPrepared,
    f.TaskArranged,
    f.TaskListening,
    f.TaskStarted,
    f.TaskUnreachable,
    f.TaskReachable,
    f.TrafficJudged,
    f.TaskCheckpointed,
    hf.HangCleared,
    idf.IdleOver,
    f.JobRequeued,
    nf.WebhookSettled,
    sf.DrainTimed,
    sf.NodeFaultsDecayed,
)
_EPHEMERAL: Final = (
    f.NodeConnected,
    f.NameClaimed,
    f.NodeSynced,
    f.FailureSuspected,
    f.NodeHeard,
    f.PortsSeen,
    f.PeersSeen,
    f.DisksSeen,
    f.SurvivorsSeen,
    f.NodeDisconnected,
    f.LeaseExtended,
    f.NodeLeaseExpired,
    f.JudgementPut,
    f.BrakeSet,
    f.BrakeReleased,
    f.RunTimed,
    f.SpaceChanged,
    f.TrafficMeasured,
    *get_args(hf.Looking),
    *get_args(idf.IdleWatching),
    nf.WebhookFailed,
    f.JobForgotten,
)


_OF: Final[dict[type, Durability]] = {
    **dict.fromkeys(_LAZY, Durability.LAZY),
    **dict.fromkeys(_PATIENT, Durability.PATIENT),
    **dict.fromkeys(_EPHEMERAL, Durability.EPHEMERAL),
}


def durability_of(fact: f.Fact) -> Durability:
    return _OF.get(type(fact), Durability.SYNC)
