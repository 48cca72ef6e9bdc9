"""Durability of facts: when each must be on disk."""

from __future__ import annotations

import enum
from typing import Final, get_args

from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import idle as idf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts import webhooks as nf


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


# The last of them causes another fact, and that one is SYNC.
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
    f.DuplicateNameSeen,
    f.NodeDescribed,
    f.NodeSynced,
    f.FailureSuspected,
    f.NodeHeard,
    f.PortsReported,
    f.PeersReported,
    f.DisksReported,
    f.SurvivorsReported,
    f.NodeDisconnected,
    f.LeaseExtended,
    f.NodeLeaseExpired,
    f.LivenessPaused,
    f.MassOutageDeclared,
    f.MassOutageCleared,
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
